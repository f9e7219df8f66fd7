"""Programs on the broker's machine: subscriptions to shared memory and ZeroMQ, and producers.

    with subscribe_shm("plant/#") as plant:
        for batch in plant:                             # of one ring, in order
            for record in batch:
                print(record.key, record.offset, np.frombuffer(record))     # the broker's own memory

    with producer("cam", "frames") as writer:           # a separate ring for this process
        with writer.claim(1 << 20, key="frames/1") as frame:
            if frame is not None:                       # None: the ring is full
                camera.readinto(frame)

    with subscribe_zmq("plant/+/temp") as plant:        # copied, by ZeroMQ
        for topic, header, payload in plant:
            print(topic, header.offset, payload)

local_client_asyncio.py has the same functions for asyncio.  Importing this loads no ZeroMQ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

from edge.control import Connection, Produce, RingFacts, RingList
from edge.directories import StrPath, runtime_directory
from edge.errors import InvalidArgument, Refused
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
    "attached",
    "checked_filters",
    "producer",
    "subscribe_shm",
    "subscribe_zmq",
    "writer_of",
    "zmq_endpoint",
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
    """Subscribe by ZeroMQ: (topic, Header, payload) of matching topics.

    `endpoint`: the broker's ZeroMQ endpoint, if it is not ipc://RUNTIME_DIR/zmq.sock. `receive_high_water`:
    messages that may wait here before ZeroMQ drops further ones.
    """
    from edge.zmq_client import ZmqSubscription

    place = zmq_endpoint(runtime_dir, endpoint)
    return ZmqSubscription(checked_filters(filters), place, receive_high_water=receive_high_water)


def zmq_endpoint(runtime_dir: StrPath | None, endpoint: str) -> str:
    """Endpoint at which the broker publishes by ZeroMQ; `endpoint`, if it is given."""
    return endpoint or f"ipc://{runtime_directory(runtime_dir) / 'zmq.sock'}"


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
        with attached(facts, name) as ring:
            yield writer_of(ring, facts, "block" if facts.when_full == "block" else "reject")


def attached(facts: RingFacts, producer: str) -> Ring:
    """The producer's ring, for writing.  Raises Refused."""
    try:
        return Ring.reattach(facts.path)
    except WriterAlive as error:
        text = f"producer {producer!r} of stream {facts.stream!r} is another process already"
        raise Refused(text, hint="give each producer a name of its own") from error
    except PermissionError as error:
        hint = "run as the broker's user, or share the group of its runtime directory"
        raise Refused(f"{facts.path}.ring may not be written by this user", hint=hint) from error


def writer_of(ring: Ring, facts: RingFacts, when_full: Literal["block", "reject"]) -> Writer:
    """The writer of a producer's ring, as its stream is configured."""
    return ring.writer(
        when_full=when_full,
        queue_timeout_ms=facts.queue_timeout_ms,
        gates="listed" if facts.when_full == "overwrite" else "all",
        keys="topics",
    )


def checked_filters(filters: str | Iterable[str]) -> tuple[str, ...]:
    """Return the filters as a tuple. Raises InvalidArgument for an invalid topic filter, or for none."""
    found = (filters,) if isinstance(filters, str) else tuple(filters)
    for topic_filter in found:
        try:
            check_filter(topic_filter)
        except ProtocolError as error:
            raise InvalidArgument(error.detail) from error
    if not found:
        raise InvalidArgument("no topic filter", hint='name at least one, such as "#"')
    return found
