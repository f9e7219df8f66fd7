"""Programs on the broker's machine, with asyncio: the functions of local_client.py, with the same arguments.

    async with subscribe_shm("plant/#") as plant:
        async for batch in plant:
            for record in batch:
                print(record.key, record.offset, bytes(record))

    async with producer("cam", "frames") as writer:
        writer.publish(b"21.5", key="frames/1")         # None: the ring is full

No function blocks the event loop.  Importing this loads no ZeroMQ.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from edge.control import Connection, Produce, RingList
from edge.directories import StrPath
from edge.local_client import BATCH_RECORDS, attached, checked_filters, writer_of, zmq_endpoint
from edge.shm_client import Start
from edge.shm_client_asyncio import ShmSubscription
from ringbuf import Writer

if TYPE_CHECKING:
    from edge.zmq_client_asyncio import ZmqSubscription

__all__ = ["ShmSubscription", "producer", "subscribe_shm", "subscribe_zmq"]


def subscribe_shm(
    filters: str | Iterable[str],
    *,
    runtime_dir: StrPath | None = None,
    start: Start = "latest",
    gating: bool = False,
    name: str = "",
    limit: int = BATCH_RECORDS,
) -> ShmSubscription:
    """See local_client.subscribe_shm()."""
    found = checked_filters(filters)
    return ShmSubscription(found, runtime_dir, start=start, gating=gating, name=name, limit=limit)


def subscribe_zmq(
    filters: str | Iterable[str],
    *,
    runtime_dir: StrPath | None = None,
    endpoint: str = "",
    receive_high_water: int = 10_000,
) -> ZmqSubscription:
    """See local_client.subscribe_zmq().  Needs a running event loop."""
    from edge.zmq_client_asyncio import ZmqSubscription

    place = zmq_endpoint(runtime_dir, endpoint)
    return ZmqSubscription(checked_filters(filters), place, receive_high_water=receive_high_water)


@asynccontextmanager
async def producer(
    name: str, stream: str = "default", *, runtime_dir: StrPath | None = None
) -> AsyncIterator[Writer]:
    """See local_client.producer().  publish() and claim() never wait: a full ring is None at once.

    With when_full = "block" the form without asyncio waits for readers, up to queue_timeout_ms.
    """
    with Connection(runtime_dir) as connection:
        facts = (await connection.ask_async(Produce(name, stream), RingList)).rings[0]
        with attached(facts, name) as ring:
            yield writer_of(ring, facts, "reject")
