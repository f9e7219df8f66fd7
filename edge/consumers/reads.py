"""Reads without a group: records of one ring from a place on, for clients that keep their offsets themselves.

Owns the reads that wait: for their turn, for the log, and, at the end of a ring, for new records. The broker
keeps nothing of a client between two reads. A frame has only records that match the filters of the read.

Bounds: reads of the log are limited in number and bytes, of each peer and of all (quota.py), and searches of
a first record in number (searches.py). Waiting reads are limited in number; a further one is answered at
once, without records. Bytes examined for one read are limited as for a fetch. Reads have READS_S of a turn,
so that they do not delay requests of other kinds; READY_MAX wait for the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from edge.consumers.faults import Contained
from edge.consumers.fetch import look_max_bytes
from edge.consumers.log_read_thread import LogReadThread, unreadable
from edge.consumers.outbox import Outbox
from edge.consumers.protocol import Answer, BatchInfo, NotDone, Read, Records
from edge.consumers.quota import Quota
from edge.consumers.registry import GroupRegistry, check_filters
from edge.consumers.requester import Requester
from edge.consumers.ring_source import Overwritten, RingRecords, RingSource
from edge.consumers.searches import FoundPlaces, Searches
from edge.consumers.selection import Scratch, Selection
from edge.consumers.start_place import StartPlace

READS_MAX, READS_EACH, READS_MAX_BYTES = 64, 16, 64 << 20  # reads that wait for the log
# reads that wait at the end of a ring; the bytes are of their filters
WAITING_MAX, WAITING_EACH, WAITING_MAX_BYTES = 4_096, 256, 16 << 20

READY_MAX = 1_024  # reads that wait for their turn; one more is answered at once
READS_S = 0.005

EVERYTHING: Final = Selection(("#",))


@dataclass(slots=True, eq=False)
class _PartitionRead:
    """A read without an answer yet."""

    peer: Requester
    request: Read
    source: RingSource
    epoch: int
    offset: int
    selection: Selection
    until_s: float

    @property
    def filter_bytes(self) -> int:
        return sum(map(len, self.request.filters))


class PartitionReads:
    """Answers reads. One thread; `answer` sends an answer with its frames."""

    def __init__(
        self,
        registry: GroupRegistry,
        log_reads: LogReadThread,
        searches: Searches,
        outbox: Outbox,
        clock: Callable[[], float],
        answer: Callable[[bytes, Answer, list[bytes]], None],
        contained: Contained,
    ) -> None:
        self._registry = registry
        self._log_reads = log_reads
        self._searches = searches
        self._outbox = outbox
        self._clock = clock
        self._send = answer
        self._contained = contained
        self._of_log = Quota("reads of the log", READS_MAX, READS_EACH, READS_MAX_BYTES)
        self._at_end = Quota("reads at the end of a ring", WAITING_MAX, WAITING_EACH, WAITING_MAX_BYTES)
        self._ready: deque[_PartitionRead] = deque()  # for their turn
        self._waiting: dict[_PartitionRead, None] = {}  # at the end of a ring, oldest first
        self._rang: set[str] = set()  # rings with new records since the last run()
        self._scratch = Scratch()

    def __len__(self) -> int:
        """Number of reads that wait for new records."""
        return len(self._waiting)

    def rang(self, ring: str) -> None:
        """Report that a ring has new records."""
        self._rang.add(ring)

    def read(self, peer: Requester, request: Read) -> None:
        """Answer a read, or let it wait. Raises NotDone."""
        check_filters(request.filters)
        source = self._source(request.ring)
        _check_epoch(source, request)
        if request.offset is not None:
            epoch = source.epoch if request.epoch is None else request.epoch
            self._begin(peer, request, source, epoch, request.offset)
            return
        start = StartPlace("oldest") if request.time_ns is None else StartPlace("time", request.time_ns)

        def begin(places: FoundPlaces) -> None:
            self._begin(peer, request, source, *places[source.name])

        self._searches.find(peer, request, [source], start, begin)

    def _begin(self, peer: Requester, request: Read, source: RingSource, epoch: int, offset: int) -> None:
        selection = Selection(request.filters) if request.filters else EVERYTHING
        until_s = self._clock() + request.max_wait_ms / 1000
        read = _PartitionRead(peer, request, source, epoch, offset, selection, until_s)
        if len(self._ready) < READY_MAX:
            self._ready.append(read)
        else:
            self._try(read)

    def run(self, now_s: float) -> None:
        """Answer waiting reads that have new records, or whose time is over."""
        for waiting in list(self._waiting):
            if waiting.source.name in self._rang or waiting.until_s <= now_s:
                del self._waiting[waiting]
                self._at_end.give(waiting.peer, waiting.filter_bytes)
                self._ready.append(waiting)
        self._rang.clear()
        end_s = self._clock() + READS_S
        for _ in range(len(self._ready)):
            read = self._ready.popleft()
            with self._contained(read.peer, read.request):
                self._try(read)
            if self._clock() >= end_s:
                break

    def until_s(self) -> float:
        """Time at which the next waiting read must be answered."""
        if self._ready:
            return 0.0
        return min((waiting.until_s for waiting in self._waiting), default=float("inf"))

    def _try(self, read: _PartitionRead) -> None:
        room = self._outbox.require_room(read.peer)
        limit_bytes = min(read.request.max_bytes, room, look_max_bytes(read.selection))
        source = read.source
        records: RingRecords | Overwritten | None = None
        if read.epoch == source.epoch:
            records = source.read(read.offset, limit_bytes)
        if source.log is not None and (read.epoch != source.epoch or isinstance(records, Overwritten)):
            self._of_log.take(read.peer, limit_bytes)
            take = partial(self._take_log, read, limit_bytes, records)
            read_log = partial(source.read_log, read.epoch, read.offset, limit_bytes, None)
            self._log_reads.submit(read_log, take)
            return
        if records is None and read.epoch == source.epoch and self._wait(read):
            return
        self._give(read, records)

    def _wait(self, read: _PartitionRead) -> bool:
        """Let a read wait for new records. False: its time is over, or too many wait."""
        if read.until_s <= self._clock():
            return False
        try:
            self._at_end.take(read.peer, read.filter_bytes)
        except NotDone:
            return False
        self._waiting[read] = None
        return True

    def _take_log(
        self,
        read: _PartitionRead,
        limit_bytes: int,
        hot: RingRecords | Overwritten | None,
        records: RingRecords | OSError | None,
    ) -> None:
        """Answer with the result of the log."""
        self._of_log.give(read.peer, limit_bytes)
        with self._contained(read.peer, read.request):
            if isinstance(records, OSError):
                raise unreadable(records)
            skips = isinstance(hot, Overwritten) and (records is None or records.offset >= hot.nearest)
            self._give(read, hot if skips else records)

    def _give(self, read: _PartitionRead, records: RingRecords | Overwritten | None) -> None:
        number = read.request.id
        if isinstance(records, RingRecords):
            self._give_selected(read, records)
            return
        if isinstance(records, Overwritten):
            lost = max(records.nearest - read.offset, 0)
            answer = Records(number, read.epoch, records.nearest, None, lost)
        elif (following := read.source.next_epoch(read.epoch)) is not None:
            answer = Records(number, following.epoch, following.first_offset)
        else:
            answer = Records(number, read.epoch, read.offset)
        self._send(read.peer, answer, [])

    def _give_selected(self, read: _PartitionRead, records: RingRecords) -> None:
        lost, data, end = max(records.offset - read.offset, 0), bytes(records.data), records.end
        if not read.selection.everything:
            selected = read.selection.of(records, None, self._scratch, records.count)
            data, end = selected.data, selected.end
            if end == records.offset:  # an invalid record
                end, lost = end + 1, lost + 1
        place = (read.source.name, records.epoch, records.offset)
        batch = BatchInfo(*place, end - records.offset) if data else None
        answer = Records(read.request.id, records.epoch, end, batch, lost)
        self._send(read.peer, answer, [data] if data else [])

    def _source(self, ring: str) -> RingSource:
        entry = self._registry.rings.get(ring)
        if entry is None:
            names = ", ".join(self._registry.rings)
            raise NotDone(f"there is no ring {ring}", "unknown", f"the rings are {names}")
        return entry.source


def _check_epoch(source: RingSource, request: Read) -> None:
    """Raise NotDone if the ring is in an earlier epoch."""
    if request.epoch is not None and request.epoch > source.epoch:
        text = f"ring {source.name} is in epoch {source.epoch}, not yet in {request.epoch}"
        hint = "the state of the broker was removed since that place was read; start at the oldest record"
        raise NotDone(text, "refused", hint)
