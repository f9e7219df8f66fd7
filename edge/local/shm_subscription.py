"""ShmSubscription: records of some topics, read from the rings that the broker and local producers write.

The control socket names the rings. They are read directly, with one KeyFilter that checks each distinct topic
once. When the broker ends and returns, a subscription continues by itself. A re-attached ring is the same
memory, so that no record is skipped or repeated. A new ring is read from its first record on, after the old
one has been read to its end.

Never writes to a ring, and never waits with asyncio (shm_subscription_asyncio.py).  One thread uses a
subscription.
"""

from __future__ import annotations

import logging
import os
import select
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, Self

from edge.config.directories import StrPath
from edge.errors import BrokerUnreachable, InvalidArgument, NotOpen, check_seconds
from edge.local.filters import checked_filters
from edge.local.protocol import Admit, Connection, Done, Message, Request, RingInfo, RingList, Rings
from edge.local.ring_poll import RingPoll
from edge.logging_setup import pairs
from edge.mqtt.topic_filters import matches
from ringbuf import Batch, KeyFilter, Reader, Record, Ring, WakeupThread
from ringbuf.errors import Evicted, OffsetGone, Overrun, RingError

log = logging.getLogger(__name__)

RETRY_FIRST_S, RETRY_MAX_S = 0.05, 1.0  # a restart takes well under a second, or a person is needed
LIMIT_MAX = 1 << 20  # records of one batch (ringbuf/c/python/py_batch.c)
PRESENT_S = 1.0  # patience with a ring that has no readable record before its end
SLICE_S = 0.2  # of waiting for one ring without asyncio, before the control socket is checked


class Place(NamedTuple):
    """Position of a reader in a ring: the next offset, and its epoch."""

    epoch: int
    offset: int


Start = Literal["latest", "oldest"] | Mapping[str, Place]

_NEW: Final = "new"  # start in a ring that was created while the subscription existed: at its first record


class RingBatch:
    """Records of one ring, in order: iterate, index, len(). `records` has them as columns too.

    `lost` records were overwritten just before these. A record is the ring's own memory. With `blocks_writer`
    the record is unchanged while the batch exists, otherwise until the writer overwrites it. record.valid()
    checks that; bytes(record) is a consistent copy.
    """

    __slots__ = ("epoch", "lost", "records", "ring", "stream")

    def __init__(self, info: RingInfo, records: Batch, lost: int) -> None:
        self.ring = info.name
        self.stream = info.stream
        self.epoch = info.epoch
        self.records = records
        self.lost = lost

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]


class _Source:
    """A ring that is read."""

    def __init__(self, info: RingInfo, ring: Ring, reader: Reader, lost: int) -> None:
        self.info = info
        self.reader = reader
        self.successor: RingInfo | None = None  # the same ring in a later epoch: to be read after this one
        self._ring = ring
        self._lost = lost  # to be reported with the next batch

    def read(self, limit: int) -> RingBatch | None:
        while True:
            try:
                records = self.reader.read_many(limit)
                break
            except Overrun as error:  # reported before later records are read
                self._lost += error.lost
        if not len(records) and not self._lost:
            return None
        lost, self._lost = self._lost, 0
        return RingBatch(self.info, records, lost)

    @property
    def unsettled(self) -> bool:
        """True if the source must be read even without records: it has losses to report, or a successor."""
        return self._lost > 0 or self.successor is not None

    def close(self) -> None:
        self.reader.close()
        self._ring.close()


class RingSubscription:
    """State of a subscription that ShmSubscription shares with its form for asyncio: rings, cursors, broker.

    `lost` counts the records that were overwritten before they were read.
    """

    def __init__(
        self,
        filters: str | Iterable[str],
        *,
        runtime_dir: StrPath | None = None,
        start: Start = "latest",
        blocks_writer: bool = False,
        name: str = "",
        limit: int = 256,  # enough for a low cost per record, few enough that overruns are rare
    ) -> None:
        if not 1 <= limit <= LIMIT_MAX:
            hint = "set the highest number of records of one batch"
            raise InvalidArgument(f"invalid limit {limit} (allowed: 1 to {LIMIT_MAX})", hint=hint)
        self.lost = 0
        self._filters = checked_filters(filters)
        self._directory = runtime_dir
        self._start = _checked_start(start)
        self._blocks_writer = blocks_writer
        self._name = name
        self._limit = limit
        self._match = KeyFilter(self._accepts)
        self._poll: RingPoll[_Source] = RingPoll(WakeupThread.of_process())
        self._sources: dict[str, _Source] = {}
        self._connection: Connection | None = None
        self._started = self._closed = False
        self._ended: list[_Source] = []  # read to their end, with a successor
        self._unsettled = False  # a source may be unsettled
        self._retry_s, self._retry_at = RETRY_FIRST_S, 0.0
        self._turn = 0

    @property
    def connected(self) -> bool:
        """True if the broker was there at the last check. Rings are read without it too."""
        return self._connection is not None

    def places(self) -> dict[str, Place]:
        """Position in each ring: a later subscription continues there, with this as `start`."""
        return {
            name: Place(source.info.epoch, source.reader.offset) for name, source in self._sources.items()
        }

    def ends(self) -> dict[str, Place]:
        """Present end of each ring."""
        return {
            name: Place(source.info.epoch, source.reader.offset + source.reader.lag)
            for name, source in self._sources.items()
        }

    def seek(self, offsets: Mapping[str, int]) -> None:
        """Continue at these offsets of rings, by name, or at the oldest records that are left after them."""
        for name, offset in offsets.items():
            if (source := self._sources.get(name)) is not None:
                try:
                    source.reader.seek(offset)
                except OffsetGone as error:
                    with suppress(OffsetGone):  # overwritten meanwhile: the next read reports a loss
                        source.reader.seek(error.nearest)
        self._poll.unwatch()  # its thread waits for records after the earlier offsets

    def _release(self) -> None:
        self._closed = True
        self._disconnect()
        self._poll.close()
        for source in self._sources.values():
            source.close()
        self._sources.clear()
        self._ended.clear()

    # ---- reading ----

    def _next_batch(self) -> RingBatch | None:
        """The next batch, from the rings in turn, so that a busy ring does not delay the rest."""
        readers, readable = self._poll.readable_readers()
        begin = self._first_source(readers)
        for step in range(len(readable)):
            source = readable[(begin + step) % len(readable)]
            try:
                batch = source.read(self._limit)
            except Evicted:
                self._drop(source)
                raise
            if batch is not None:
                self._turn = begin + step + 1
                self.lost += batch.lost
                return batch
            if source.successor is not None and source not in self._ended:
                self._ended.append(source)  # it has no writer any more, so it was read to its end
        return None

    def _first_source(self, readers: list[Reader]) -> int:
        """Index of the next source to read: the next one with records, unless others need attention."""
        turn = self._turn % max(1, len(readers))
        if self._unsettled:
            self._unsettled = any(source.unsettled for source in self._sources.values())
        due = -1 if self._unsettled else Reader.first_due(readers, turn)
        return turn if due < 0 else due

    def _listen(self) -> None:
        """Receive notifications of the broker, or notice its end."""
        if self._connection is not None:
            try:
                self._connection.receive()
            except BrokerUnreachable:
                self._lose_broker()

    # ---- the broker, and the rings that it names ----

    def _has_due_requests(self) -> bool:
        if self._connection is None:
            return self._closed or self._retry_in(time.monotonic()) <= 0
        return bool(self._connection.news or self._ended)

    def _due_requests(self) -> Generator[tuple[Request, type[Message]], Any, None]:
        """Requests that are due: yields each, and gets its answer by send(). Raises NotOpen."""
        if self._closed:
            raise NotOpen("the subscription is closed", hint="make another one to continue")
        if self._connection is None:
            self._connection = Connection(self._directory)
            answer = yield Rings(self._filters, follow=True), RingList
            for ring_info in answer.rings:
                yield from self._take(ring_info, self._start if not self._started else _NEW)
            self._started = True
            self._retry_s = RETRY_FIRST_S
        while self._connection.news:
            yield from self._take(self._connection.news.popleft().ring, _NEW)
        while self._ended:
            ended = self._ended.pop()
            self._drop(ended)
            if ended.successor is not None:
                yield from self._take(ended.successor, _NEW)

    def _take(
        self, info: RingInfo, start: Start | Literal["new"]
    ) -> Generator[tuple[Request, type[Message]], Any, None]:
        known = self._sources.get(info.name)
        if known is not None and known.info.epoch != info.epoch:
            known.successor = info
            self._unsettled = True
            self._poll.unwatch()  # the thread will never report the old ring again: read it now
            return
        source = known or self._open(info, start)
        if source is not None and self._blocks_writer and info.kind == "partition":
            yield Admit(info.name, source.reader.slot), Done

    def _open(self, info: RingInfo, start: Start | Literal["new"]) -> _Source | None:
        assert self._connection is not None
        try:
            ring = Ring.attach(info.path, owners={os.getuid(), 0, self._connection.uid})
        except FileNotFoundError:
            log.warning("ring disappeared before it was opened %s", pairs(name=info.name))
            return None
        except RingError as error:
            if info.kind != "producer":
                raise
            log.warning("producer ring not readable %s", pairs(name=info.name, reason=error))
            return None
        reader = ring.reader(
            name=self._name,
            start="oldest" if start == _NEW or isinstance(start, Mapping) else start,
            blocks_writer=self._blocks_writer,
            verify=info.kind == "producer",
        )
        lost = 0
        if (offset := _first_unread(ring, start)) is not None:
            try:
                reader.seek(offset)
            except OffsetGone as error:
                lost = max(0, error.nearest - offset)
        reader.match = self._match
        source = self._sources[info.name] = _Source(info, ring, reader, lost)
        self._unsettled = True
        self._poll.add(reader, source)
        return source

    def _drop(self, source: _Source) -> None:
        self._poll.remove(source.reader)
        self._sources.pop(source.info.name, None)
        source.close()

    def _lose_broker(self) -> None:
        self._disconnect()
        self._retry_at = time.monotonic() + self._retry_s
        self._retry_s = min(self._retry_s * 2, RETRY_MAX_S)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _retry_in(self, now: float) -> float:
        return self._retry_at - now if self._connection is None else SLICE_S

    def _accepts(self, key: bytes) -> bool:
        try:
            topic = key.decode()
        except UnicodeDecodeError:
            return False
        return any(matches(topic_filter, topic) for topic_filter in self._filters)


def _checked_start(start: Start) -> Start:
    """`start`, with plain tuples (epoch, offset) as places. Raises InvalidArgument."""
    if isinstance(start, Mapping):
        with suppress(TypeError):
            return {ring: Place(*place) for ring, place in start.items()}
    elif start in ("latest", "oldest"):  # a list has no hash
        return start
    text = f"invalid start {start!r} (allowed: 'oldest', 'latest', places by ring)"
    raise InvalidArgument(text, hint="places() returns places by ring")


def _first_unread(ring: Ring, start: Start | Literal["new"]) -> int | None:
    """Offset of the first record that the subscription has not read; None: it begins where the ring does."""
    if isinstance(start, Mapping):
        place = start.get(ring.path.name)
        if place is None or place.epoch > ring.epoch:
            return None
        return place.offset if place.epoch == ring.epoch else ring.first_offset
    return ring.first_offset if start == _NEW else None


class ShmSubscription(RingSubscription):
    """Records of the topics that `filters` match, as RingBatches of up to `limit`, from all rings.

    `start`: "latest": new records only; "oldest": from the oldest record in memory; or places() of an earlier
    subscription. `blocks_writer`: the broker waits for this reader (on streams that block or reject,
    for permitted users) instead of overwriting unread records. `name` is shown in `brim status`.

    Iteration does not end by itself. Entered by `with`, it begins at `start` from then on; otherwise at the
    first read. Raises InvalidArgument; BrokerUnreachable if no broker is there at the start; Refused or
    Evicted with blocks_writer=True; NotOpen after close().
    """

    def read(self, timeout_s: float = 0.0) -> RingBatch | None:
        """The next batch, of one ring; None if there is none within `timeout_s`."""
        check_seconds("timeout_s", timeout_s)
        deadline = time.monotonic() + timeout_s
        while True:
            if self._has_due_requests():
                self._send_requests()
            batch = self._next_batch()
            if batch is not None or not self._wait(deadline):
                return batch

    def present_batches(self) -> Iterator[RingBatch]:
        """Batches up to the present end of each ring."""
        ends = self.ends()
        deadline = time.monotonic() + PRESENT_S
        while ends and time.monotonic() < deadline:
            batch = self.read(0.0)
            if batch is not None:
                yield batch
                deadline = time.monotonic() + PRESENT_S
            places = self.places()
            ends = {ring: end for ring, end in ends.items() if ring in places and places[ring] < end}

    def close(self) -> None:
        """Close all rings. Records that the caller holds stay readable. May be called twice."""
        self._release()

    def __enter__(self) -> Self:
        try:
            self._send_requests()
        except BaseException:  # a refused request, or an interrupt
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[RingBatch]:
        return self

    def __next__(self) -> RingBatch:
        while (batch := self.read(SLICE_S)) is None:
            pass
        return batch

    def _wait(self, deadline: float) -> bool:
        """Wait until there may be something to read; False at the deadline."""
        while True:
            self._listen()
            if self._has_due_requests():
                return time.monotonic() < deadline
            now = time.monotonic()
            left_s = min(SLICE_S, deadline - now, self._retry_in(now))
            if left_s <= 0:
                return deadline > now
            if self._sleep(left_s):
                return True

    def _sleep(self, seconds: float) -> bool:
        if len(self._sources) == 1:  # it spins first, and needs no other thread
            self._poll.unwatch()
            return self._poll.readable()[0].reader.wait(seconds)
        self._poll.watch()
        waiting = select.poll()
        waiting.register(self._poll, select.POLLIN)
        if self._connection is not None:
            waiting.register(self._connection, select.POLLIN)
        has_event = bool(waiting.poll(seconds * 1000))
        self._poll.acknowledge()
        return has_event

    def _send_requests(self) -> None:
        requests, answer = self._due_requests(), None
        try:
            while True:
                request, expected = requests.send(answer)
                assert self._connection is not None
                answer = self._connection.request(request, expected)
        except StopIteration:
            return
        except BrokerUnreachable:
            self._lose_broker()
            if not self._started:
                self.close()
                raise
