"""Brim for programs with asyncio: the functions and classes of `brim`, methods that wait as coroutines.

>>> import asyncio, brim.asyncio
>>> async def main():
...     async with brim.asyncio.subscribe("plant/#") as plant, brim.asyncio.connect() as client:
...         await client.publish("plant/1/temp", "21.5", qos=1)
...         async for batch in plant:
...             return [(record.key, bytes(record)) for record in batch]
>>> asyncio.run(main())
[(b'plant/1/temp', b'21.5')]

Both forms of a class have methods of the same names and arguments; here `with` is `async with` and `for` is
`async for`. No method blocks the event loop. So publish() of a producer never waits for readers: a full ring
returns None at once, also on a stream with when_full = "block".

Importing this module loads nothing: the first use of a name loads the modules that it needs.
"""

from brim._lazy import lazy

TYPE_CHECKING = False  # as of typing, which takes longer to import than this package
if TYPE_CHECKING:
    from typing import Any

    from edge.client.client import Client, connect
    from edge.client.subscriptions import Subscription as MessageSubscription
    from edge.consumers.client_asyncio import Consumer
    from edge.consumers.client_asyncio import Consumer as consumer  # noqa: N813
    from edge.consumers.reader_asyncio import PartitionReader
    from edge.consumers.reader_asyncio import PartitionReader as reader  # noqa: N813
    from edge.local.producer_ring import producer_asyncio as producer
    from edge.local.shm_subscription_asyncio import ShmSubscription as Subscription
    from edge.local.shm_subscription_asyncio import ShmSubscription as subscribe  # noqa: N813
    from edge.local.zmq_subscription_asyncio import ZmqSubscription
    from edge.local.zmq_subscription_asyncio import ZmqSubscription as subscribe_zmq  # noqa: N813

__all__ = [
    "Client",
    "Consumer",
    "MessageSubscription",
    "PartitionReader",
    "Subscription",
    "ZmqSubscription",
    "connect",
    "consumer",
    "producer",
    "reader",
    "subscribe",
    "subscribe_zmq",
]

_HOMES = {
    "edge.client.client": ("Client", "connect"),
    "edge.client.subscriptions": ("MessageSubscription=Subscription",),
    "edge.consumers.client_asyncio": ("Consumer", "consumer=Consumer"),
    "edge.consumers.reader_asyncio": ("PartitionReader", "reader=PartitionReader"),
    "edge.local.producer_ring": ("producer=producer_asyncio",),
    "edge.local.shm_subscription_asyncio": ("Subscription=ShmSubscription", "subscribe=ShmSubscription"),
    "edge.local.zmq_subscription_asyncio": ("ZmqSubscription", "subscribe_zmq=ZmqSubscription"),
}

if not TYPE_CHECKING:
    _attribute = lazy(__name__, _HOMES)

    def __getattr__(name: str) -> "Any":
        return globals().setdefault(name, _attribute(name))

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
