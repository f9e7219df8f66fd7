"""MQTT client for asyncio: publishes, subscribes, and reconnects.

    async with edge.client.connect("mqtt://127.0.0.1:1883") as client:
        await client.publish("plant/1/temp", b"21.5", qos=1)      # returns when the broker has it
        async for message in client.subscribe("plant/+/temp", qos=1):
            print(message.topic, message.payload)

    client.py         Client: publishes, keeps messages in flight, reconnects
    subscriptions.py  Subscription: messages of filters in a bounded queue; Router: subscriptions by topic
    connection.py     Link: one network connection, asyncio streams around edge.mqtt.Connection
    options.py        options with their defaults; URLs; Reconnect
    errors.py         errors with remedies

edge.mqtt owns the protocol; no module here parses bytes. Works with any MQTT 3.1.1 or 5 broker.
"""

from edge.client.client import Client, connect
from edge.client.options import Options, Reconnect
from edge.client.subscriptions import Message, Subscription

__all__ = ["Client", "Message", "Options", "Reconnect", "Subscription", "connect"]
