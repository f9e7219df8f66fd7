"""The broker process: MQTT in, rings in the middle, local subscribers out.

Importing this package loads nothing, so that `edge.mqtt` costs its users nothing else.
"""
