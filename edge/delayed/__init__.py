"""Delayed messages: what clients publish to $delayed/SECONDS/TOPIC is published to TOPIC after SECONDS.

    ring "delayed" -> DelayedMessages (thread) -> DelayedStore (SQLite) -> TOPIC

Owns the ring, the store and the thread. Never runs on the MQTT thread, except to publish a batch.
"""
