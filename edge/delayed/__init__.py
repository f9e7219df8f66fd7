"""Delayed messages: a message to $delayed/SECONDS/TOPIC is published to TOPIC after SECONDS.

    ring "delayed" -> DelayedMessages (thread) -> DelayedStore (SQLite) -> TOPIC

    ring.py             the partition of these messages, and the meaning of their topics
    delivery.py         DelayedMessages: moves records into the store, and publishes the due ones
    store.py            DelayedStore; clock.py: its delays; write_ahead_log.py: damage of its file
    publisher.py        publishes a batch on the MQTT thread

Owns the ring, the store and the thread. Never runs on the MQTT thread, except to publish a batch.
"""
