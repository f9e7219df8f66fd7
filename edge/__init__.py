"""The broker process: receives MQTT, stores records in rings, serves local subscribers.

Importing this package loads nothing, so that using only `edge.mqtt` costs nothing else.
"""
