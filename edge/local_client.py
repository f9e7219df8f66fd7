"""Python client for programs on the broker's machine.

    async with subscribe_shm("plant/#") as plant:       # or `with` and `for`, without asyncio
        async for batch in plant:                       # of one ring, in order
            for record in batch:
                print(record.key, record.offset, np.frombuffer(record))     # the broker's own memory

    with producer("cam", "frames") as writer:           # a separate ring for this process
        with writer.claim(1 << 20, key="frames/1") as frame:
            if frame is not None:                       # None: the ring is full
                camera.readinto(frame)

    async with subscribe_zmq("plant/+/temp") as plant:  # copied, by ZeroMQ
        async for topic, header, payload in plant:
            print(topic, header.offset, payload)

Importing this module does not load ZeroMQ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from edge.control import Connection, Produce, RingList
from edge.directories import StrPath, runtime_directory
from edge.errors import EdgeError, Refused
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topics import check_filter
from edge.shm_client import Place, RingBatch, ShmSubscription, Start
from ringbuf import Ring, Writer
from ringbuf.errors import WriterAlive

if TYPE_CHECKING:
    from edge.zmq_client import ZmqSubscription

__all__ = [
    "Place",
    "RingBatch",
    "ShmSubscription",
    "checked_filters",
    "producer",
    "subscribe_shm",
    "subscribe_zmq",
]

# in one batch at most: enough for a low cost per record, few enough that overruns are rare
BATCH_RECORDS = 256


def subscribe_shm(
    filters: str | Iterable[str],
    *,
    runtime_dir: StrPath | None = None,
    start: Start = "latest",
    gating: bool = False,
    name: str = "",
    limit: int = BATCH_RECORDS,
) -> ShmSubscription:
    """Subscribe to records of the topics that `filters` match, as RingBatches of up to `limit`, from all
    rings.

    `start`: "latest": new records only; "oldest": from the oldest record in memory; or places() of an earlier
    subscription. `gating`: the broker waits for this reader (on streams that block or reject, for permitted
    users) instead of overwriting unread records. `name` is shown in `brim status`.
    """
    found = checked_filters(filters)
    return ShmSubscription(found, runtime_dir, start=start, gating=gating, name=name, limit=limit)


def subscribe_zmq(
    filters: str | Iterable[str],
    *,
    runtime_dir: StrPath | None = None,
    endpoint: str = "",
    receive_high_water: int = 10_000,
) -> ZmqSubscription:
    """Subscribe by ZeroMQ: (topic, Header, payload) of matching topics. Needs a running event loop.

    `endpoint`: the broker's ZeroMQ endpoint, if it is not ipc://RUNTIME_DIR/zmq.sock. `receive_high_water`:
    messages that may wait here before ZeroMQ drops further ones.
    """
    from edge.zmq_client import ZmqSubscription

    place = endpoint or f"ipc://{runtime_directory(runtime_dir) / 'zmq.sock'}"
    return ZmqSubscription(checked_filters(filters), place, receive_high_water=receive_high_water)


@contextmanager
def producer(name: str, stream: str = "default", *, runtime_dir: StrPath | None = None) -> Iterator[Writer]:
    """Writer of this process's own ring in `stream`, which the broker creates and reads.

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
        facts = connection.ask(Produce(name, stream), RingList).rings[0]
        try:
            ring = Ring.reattach(facts.path)
        except WriterAlive as error:
            text = f"producer {name!r} of stream {stream!r} is another process already"
            raise Refused(text, hint="give each producer a name of its own") from error
        except PermissionError as error:
            hint = "run as the broker's user, or share the group of its runtime directory"
            raise Refused(f"{facts.path}.ring may not be written by this user", hint=hint) from error
        with ring:
            yield ring.writer(
                when_full="block" if facts.when_full == "block" else "reject",
                queue_timeout_ms=facts.queue_timeout_ms,
                gates="listed" if facts.when_full == "overwrite" else "all",
                keys="topics",
            )


def checked_filters(filters: str | Iterable[str]) -> tuple[str, ...]:
    """Return the filters as a tuple. Raises EdgeError for an invalid topic filter, or for none."""
    found = (filters,) if isinstance(filters, str) else tuple(filters)
    for topic_filter in found:
        try:
            check_filter(topic_filter)
        except ProtocolError as error:
            raise EdgeError(error.detail) from error
    if not found:
        raise EdgeError("no topic filter", hint='name at least one, such as "#"')
    return found
