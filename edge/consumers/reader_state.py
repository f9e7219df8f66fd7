"""ReaderCore: a reader without sockets: reads partitions from places that the program keeps.

PartitionReader (reader.py) and its form for asyncio run it. It requests the rings of its filters, has one
read under way for each ring, and returns batches with the place behind each. The broker stores nothing of a
reader. When the broker is lost, reads begin again at the same places, so that no record is skipped or
repeated.

A ring that appears later is read from its oldest record on.

Replay: with `speed` a record is returned when it is due (replay_clock.py). Of records that are due together,
those of one partition come in one batch, the partition with the oldest one first. The clock begins at the
oldest record of the first answers of all partitions.

Invariant: at most one read and one batch of each ring.
"""

from __future__ import annotations

import datetime as dt
import itertools
import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edge.consumers.protocol import (
    VERSION,
    Answer,
    Failed,
    Read,
    Records,
    RequestMessage,
    RingInfo,
    RingList,
    Rings,
)
from edge.consumers.replay_clock import ReplayClock
from edge.consumers.start_place import unix_ns
from edge.errors import Refused
from edge.local.shm_subscription import Place
from edge.logging_setup import pairs
from ringbuf import Batch, Record
from ringbuf.errors import Corrupt

log = logging.getLogger(__name__)

ReaderStart = Literal["oldest", "latest"] | dt.datetime | Mapping[str, Place | tuple[int, int]]

PATIENCE_S = 2.0  # for the rings; after that the broker counts as dead
# in addition to the time of a read: a read of the log may wait for those of other readers, on a slow disk
READ_PATIENCE_S = 30.0
MAX_WAIT_MS = 500
RINGS_S = 2.0  # between two requests for the rings
RETRY_S = 0.2  # after an answer without progress
BEGIN = Place(0, 0)


@dataclass(slots=True, eq=False)
class PartitionBatch:
    """Records of one partition, in order: iterate, index, len(). `next`: the place behind these records; a
    reader that starts there continues without a gap. `lost`: records before these that are gone.
    """

    ring: str
    epoch: int
    offset: int
    records: Sequence[Record]
    next: Place
    lost: int = 0

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]


@dataclass(slots=True, eq=False)
class _Partition:
    """Cursor in one ring."""

    ring: str
    place: Place | None  # None: the oldest record, or the record of time_ns
    time_ns: int | None = None
    request: int = 0  # the read under way
    retry_s: float = 0.0  # no read before this time
    lost: int = 0  # to be reported with the next batch
    answered: bool = False
    waiting: Batch | None = None  # records that were not returned yet, from `first` on
    first: int = 0
    begin: Place = BEGIN  # of the records that wait


class ReaderCore:
    """State of one reader. Times are of time.monotonic()."""

    def __init__(
        self, filters: tuple[str, ...], start: ReaderStart, speed: float | None, batch_bytes: int
    ) -> None:
        self.refusal: Refused | None = None
        self.lost = 0
        self._filters = filters
        self._start = start
        self._clock = None if speed is None else ReplayClock(speed)
        self._batch_bytes = batch_bytes
        self._numbers = itertools.count(1)
        self._partitions: dict[str, _Partition] = {}
        self._turn = 0
        self._joined = False
        self._under_way: dict[int, float] = {}  # request -> time at which it is given up
        self._reads: dict[int, _Partition] = {}  # by request
        self._rings_id = 0
        self._rings_s = 0.0

    # ---- for the connection ----

    @property
    def joined(self) -> bool:
        """True if the rings are known."""
        return self._joined

    def requests(self, now_s: float, *, connected: bool) -> list[RequestMessage]:
        """Requests to send now. Pass those that cannot be sent to unsent()."""
        late = any(deadline <= now_s for deadline in self._under_way.values())
        if late or (not connected and self._under_way):
            self._lose()
        if not connected:
            return []
        requests: list[RequestMessage] = []
        if not self._rings_id and now_s >= self._rings_s:
            self._rings_id = next(self._numbers)
            requests.append(Rings(self._rings_id, VERSION, self._filters))
        requests += [
            self._read(partition)
            for partition in self._partitions.values()
            if not partition.request and partition.waiting is None and now_s >= partition.retry_s
        ]
        for request in requests:
            is_read = isinstance(request, Read)
            patience_s = READ_PATIENCE_S + MAX_WAIT_MS / 1000 if is_read else PATIENCE_S
            self._under_way[request.id] = now_s + patience_s
        return requests

    def unsent(self, request: RequestMessage) -> None:
        """Forget a request that could not be sent; the next requests() repeats it."""
        self._under_way.pop(request.id, None)
        if (partition := self._reads.pop(request.id, None)) is not None:
            partition.request = 0
        elif request.id == self._rings_id:
            self._rings_id = 0

    def due_s(self, now_s: float) -> float:
        """Time at which requests() or next_batch() may have something, if no answer comes."""
        due_s = min(self._under_way.values(), default=now_s + RINGS_S)
        if not self._rings_id:
            due_s = min(due_s, self._rings_s)
        for partition in self._partitions.values():
            if partition.waiting is None:
                due_s = min(due_s, now_s + RINGS_S if partition.request else partition.retry_s)
            elif self._clock is not None:
                next_s = self._replay_s(partition, self._clock, now_s)
                if next_s > now_s:  # otherwise the batch waits for the program, not for time
                    due_s = min(due_s, next_s)
        return due_s

    def take(self, answer: Answer, frames: list[bytes], now_s: float) -> None:
        """Process an answer."""
        deadline_s = self._under_way.pop(answer.id, None)
        if deadline_s is None:
            return
        if answer.id == self._rings_id:
            self._rings_id, self._rings_s = 0, now_s + RINGS_S
            self._take_rings(answer)
            return
        partition = self._reads.pop(answer.id)
        partition.request = 0
        if isinstance(answer, Records):
            if not self._take_records(partition, answer, frames) and now_s < deadline_s - READ_PATIENCE_S:
                partition.retry_s = now_s + RETRY_S  # the broker has no room for another read that waits
        elif isinstance(answer, Failed):
            partition.retry_s, partition.answered = now_s + RETRY_S, True
            if answer.code != "full":
                partition.retry_s = now_s + RINGS_S
                log.warning("reader refused %s", pairs(ring=partition.ring, reason=answer.error))

    def leave(self) -> None:
        """A reader leaves nothing behind: it needs no last request."""

    def next_batch(self, now_s: float) -> PartitionBatch | None:
        """Remove and return the next batch; None if there is none now."""
        waiting = [partition for partition in self._partitions.values() if partition.waiting is not None]
        if not waiting:
            return None
        if self._clock is None:
            self._turn += 1
            partition = waiting[self._turn % len(waiting)]
            return self._part(partition, None)
        partition = min(waiting, key=_first_ns)
        if self._replay_s(partition, self._clock, now_s) > now_s:
            return None
        return self._part(partition, self._clock.until_ns(now_s))

    def places(self) -> dict[str, Place]:
        """Place in each partition behind the records that next_batch() has returned."""
        places = {}
        for partition in self._partitions.values():
            place = partition.place if partition.waiting is None else partition.begin
            if place is not None:
                places[partition.ring] = place
        return places

    # ---- inside ----

    def _read(self, partition: _Partition) -> Read:
        number = partition.request = next(self._numbers)
        self._reads[number] = partition
        epoch, offset = partition.place or (None, None)
        filters = () if "#" in self._filters else self._filters
        return Read(
            number,
            VERSION,
            partition.ring,
            epoch,
            offset,
            partition.time_ns if partition.place is None else None,
            self._batch_bytes,
            MAX_WAIT_MS,
            filters,
        )

    def _lose(self) -> None:
        """Forget the requests under way: the broker has ended. Records that wait stay valid."""
        self._under_way.clear()
        self._reads.clear()
        self._rings_id = 0
        self._rings_s = 0.0
        for partition in self._partitions.values():
            partition.request = 0

    def _take_rings(self, answer: Answer) -> None:
        if isinstance(answer, RingList):
            for ring in answer.rings:
                if ring.name not in self._partitions:
                    self._partitions[ring.name] = self._begin(ring)
            self._joined = True
        elif isinstance(answer, Failed):
            if not self._joined:
                self.refusal = Refused(answer.error, hint=answer.hint)
            log.warning("reader refused %s", pairs(reason=answer.error))

    def _begin(self, ring: RingInfo) -> _Partition:
        """Cursor in a ring that was not known before."""
        if isinstance(self._start, Mapping):
            known = self._start.get(ring.name)
            return _Partition(ring.name, None if known is None else Place(*known))
        if self._joined or self._start == "oldest":
            return _Partition(ring.name, None)
        if isinstance(self._start, dt.datetime):
            return _Partition(ring.name, None, unix_ns(self._start))
        return _Partition(ring.name, Place(ring.epoch, ring.end_offset))

    def _take_records(self, partition: _Partition, answer: Records, frames: list[bytes]) -> bool:
        """Take the records of an answer. False: there is no progress."""
        place = Place(answer.next_epoch, answer.next_offset)
        begin, partition.place, partition.answered = partition.place, place, True
        lost = answer.lost
        if answer.batch is not None and frames:
            info = answer.batch
            end = info.offset + info.count
            try:
                partition.waiting = Batch.of(frames[0], info.epoch, info.offset, None, end)
                partition.first, partition.begin = 0, Place(info.epoch, info.offset)
            except Corrupt as error:
                log.error(
                    "invalid records skipped %s", pairs(ring=info.ring, offset=info.offset, reason=error)
                )
                lost += info.count
        partition.lost += lost
        self.lost += lost
        return answer.batch is not None or begin not in {None, place}

    def _replay_s(self, partition: _Partition, clock: ReplayClock, now_s: float) -> float:
        """Time at which the next record of a partition is due. The first call after the answers of all
        partitions begins the replay.
        """
        if not clock.has_begun:
            if not all(each.answered for each in self._partitions.values()):
                return now_s + MAX_WAIT_MS / 1000
            waiting = [each for each in self._partitions.values() if each.waiting is not None]
            clock.begin(now_s, min(map(_first_ns, waiting)))
        return clock.due_s(now_s, _first_ns(partition))

    def _part(self, partition: _Partition, until_ns: int | None) -> PartitionBatch:
        """Take the records of a partition up to a time; None: all."""
        records, place = partition.waiting, partition.place
        assert records is not None
        assert place is not None
        first, count = partition.first, len(records)
        end = count if until_ns is None else bisect_right(records.timestamps_ns, until_ns, first, count)
        end = max(end, first + 1)
        begin, lost = partition.begin, partition.lost
        whole: Any = records
        taken = whole if end - first == count else [records[index] for index in range(first, end)]
        if end < count:
            place = Place(begin.epoch, records[end].offset)
            partition.first, partition.begin = end, place
        else:
            partition.waiting = None
        partition.lost = 0
        return PartitionBatch(partition.ring, begin.epoch, begin.offset, taken, place, lost)


def _first_ns(partition: _Partition) -> int:
    """Time of the first record that waits."""
    assert partition.waiting is not None
    return partition.waiting.timestamps_ns[partition.first]
