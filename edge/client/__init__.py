"""An MQTT client for asyncio: publish, subscribe, and come back when the connection breaks.

    async with edge.client.connect("mqtt://127.0.0.1:1883") as client:
        await client.publish("plant/1/temp", b"21.5", qos=1)      # returns when the broker has it
        async for message in client.subscribe("plant/+/temp", qos=1):
            print(message.topic, message.payload)

    client.py         Client: publishes, keeps what is in flight, reconnects
    subscriptions.py  Subscription: messages of some filters, in a bounded queue; Router: which get which
    link.py           Link: one network connection, asyncio streams around edge.mqtt.Connection
    options.py        what can be chosen, with its default; URLs; Reconnect
    errors.py         what can go wrong, and what to do about it

The protocol is edge.mqtt's; nothing here knows bytes.  Any MQTT 3.1.1 or 5 broker will do.
"""

from edge.client.client import Client, connect
from edge.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    ConnectRefused,
    DeliveryUnknown,
    PublishRefused,
    SubscribeRefused,
    TakenOver,
)
from edge.client.options import Options, Reconnect
from edge.client.subscriptions import Message, Subscription

__all__ = [
    "CannotConnect",
    "Client",
    "ClientError",
    "ConnectRefused",
    "ConnectionLost",
    "DeliveryUnknown",
    "Message",
    "Options",
    "PublishRefused",
    "Reconnect",
    "SubscribeRefused",
    "Subscription",
    "TakenOver",
    "connect",
]
