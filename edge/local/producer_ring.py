"""Producer: the writer of this process's own ring, which the broker creates and reads.

with producer("cam", "frames") as writer:
with writer.claim(1 << 20, key="frames/1") as frame:
if frame is not None:                       # None: the ring is full
camera.readinto(frame)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal

from edge.config.directories import StrPath
from edge.errors import Refused
from edge.local.protocol import Connection, Produce, RingInfo, RingList
from ringbuf import Ring, Writer
from ringbuf.errors import WriterAlive


@contextmanager
def producer(name: str, stream: str = "", *, runtime_dir: StrPath | None = None) -> Iterator[Writer]:
    """Writer of this process's own ring in `stream`, which the broker creates and reads.

    Without `stream` it is that of the [[producer]] with this name, or "default".

    A record's key is its topic; an invalid topic, such as "a/#", raises ringbuf.errors.InvalidTopic.

    While the ring is full, and while the broker's log accepts no records of the stream, publish() returns
    None and claim() a claim that is false, and None inside `with`. Then writer.refusal is 0 (full) or the
    cause: REFUSAL_NO_ROOM (the disk is full, or the stream by discard = "new"), REFUSAL_NO_LOG, or
    REFUSAL_LOST (another process has shortened the ring's file) of ringbuf.

    The ring outlives the producer, which continues at the next offset when it returns. It also outlives the
    broker, which finds it at its next start. Raises BrokerUnreachable; Refused: not permitted, or another
    process is this producer.
    """
    with Connection(runtime_dir) as connection:
        info = connection.request(Produce(name, stream), RingList).rings[0]
        with _attached(info, name) as ring:
            yield _writer_of(ring, info, "block" if info.when_full == "block" else "reject")


@asynccontextmanager
async def producer_asyncio(
    name: str, stream: str = "", *, runtime_dir: StrPath | None = None
) -> AsyncIterator[Writer]:
    """Writer of this process's own ring in `stream`: producer() for asyncio, with the same errors.

    publish() and claim() never wait: a full ring is None at once. With when_full = "block" the form without
    asyncio waits for readers, up to queue_timeout_ms.
    """
    with Connection(runtime_dir) as connection:
        info = (await connection.request_async(Produce(name, stream), RingList)).rings[0]
        with _attached(info, name) as ring:
            yield _writer_of(ring, info, "reject")


def _attached(info: RingInfo, producer: str) -> Ring:
    """The producer's ring, for writing.  Raises Refused."""
    try:
        return Ring.reattach(info.path)
    except WriterAlive as error:
        text = f"producer {producer!r} of stream {info.stream!r} is another process already"
        raise Refused(text, hint="give each producer another name") from error
    except PermissionError as error:
        hint = "run as the broker's user, or share the group of its runtime directory"
        raise Refused(f"{info.path}.ring may not be written by this user", hint=hint) from error


def _writer_of(ring: Ring, info: RingInfo, when_full: Literal["block", "reject"]) -> Writer:
    """The writer of a producer's ring, as its stream is configured."""
    return ring.writer(
        when_full=when_full,
        queue_timeout_ms=info.queue_timeout_ms,
        blocking_readers="admitted" if info.when_full == "overwrite" else "all",
        keys="topics",
    )
