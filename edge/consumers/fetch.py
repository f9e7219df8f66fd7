"""Fetch: the records that a member gets for a fetch.

Owns the way from offers of an ack tracker to records: from the ring while it has them, otherwise from the
log, which another thread reads while the member waits. Records that neither has are skipped and counted as
lost. When an ended epoch is done, the next one follows. In a replay new records come when they are due
(group_replay.py).

A frame has exactly the records that a filter of the group matches and that are not done: see selection.py.
Records that no filter matches are passed over: done as soon as they were examined, so that they do not delay
a group.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Literal

from edge.consumers.ack_tracker import Offer
from edge.consumers.group_partition import GroupPartition, LogAnswer, NextRecord
from edge.consumers.group_replay import NOTHING_NS
from edge.consumers.groups import ConsumerGroup, Member
from edge.consumers.log_read_thread import LogReadThread
from edge.consumers.protocol import BatchInfo
from edge.consumers.registry import GroupRegistry
from edge.consumers.replay_clock import EVERYTHING_NS
from edge.consumers.ring_source import (
    Overwritten,
    RingRecords,
    RingSource,
    first_records,
    records_behind,
)
from edge.consumers.selection import Scratch, Selection
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from ringbuf.errors import Corrupt

log = logging.getLogger(__name__)

RETRY_S = 1.0  # before the next read after a disk error
STEPS_MAX = 64  # of one partition for one fetch: skips and batches
BATCHES_MAX = 64  # in one answer
LOG_ANSWERS_MAX = 64  # log answers that wait for a fetch, of all groups
COLD_MAX_BYTES = 4 << 20
LOOK_MAX_BYTES = 4 << 20  # examined for one fetch before other requests are served
FILTERS_EACH, FILTERS_EACH_BYTES = 16, 512  # each such number of further filters divides that limit
COUNTED_MAX_BYTES = 256 << 10  # read at once for a fetch by count, or a replay: most of it may be read again
UNLIMITED: Final = 1 << 62  # records


@dataclass(slots=True)
class FetchedBatches:
    """Batches for one answer."""

    batches: list[BatchInfo]
    frames: list[bytes]
    bytes_left: int
    look_left: int  # bytes
    records_left: int
    read_max_bytes: int  # at once
    until_ns: int  # new records with a later time are not due
    more: bool = False  # True if there may be records that were not examined yet
    due_s: float = math.inf  # time at which a record becomes due

    def add(self, info: BatchInfo, data: bytes, records: int) -> None:
        """Add a batch."""
        self.batches.append(info)
        self.frames.append(data)
        self.bytes_left -= len(data)
        self.records_left -= records


class _EndOfLog(Enum):
    """Answer of the log without records."""

    HERE = 0  # it has no records from that offset on


LOG_ENDED: Final = _EndOfLog.HERE


class FetchReader:
    """Selects records for members."""

    def __init__(self, registry: GroupRegistry, log_reads: LogReadThread, clock: Callable[[], float]) -> None:
        self._registry = registry
        self._log_reads = log_reads
        self._clock = clock
        self._may_log = LogThrottle(clock)
        self._scratch = Scratch()
        self._answered: dict[GroupPartition, None] = {}  # those with an answer of the log, oldest first

    def take(
        self, group: ConsumerGroup, member: Member, max_bytes: int, max_records: int, now_s: float
    ) -> FetchedBatches:
        """Give about `max_bytes` to `member`, and at most `max_records` unless that is 0. Empty if there are
        no records yet, or the member has its most records in flight.
        """
        records_left = min(max_records or UNLIMITED, group.room_of(member, UNLIMITED))
        until_ns = group.replay.until_ns(group.partitions.values(), now_s)
        at_once = max_bytes if (records_left, until_ns) == (UNLIMITED, EVERYTHING_NS) else COUNTED_MAX_BYTES
        look_left = look_max_bytes(group.selection)
        taken = FetchedBatches([], [], max_bytes, look_left, records_left, at_once, until_ns)
        for partition in group.open_to(member.id) if records_left else ():
            if partition.reading or partition.retry_s > now_s:
                continue
            for _ in range(STEPS_MAX):
                if taken.records_left <= 0:
                    return taken
                if taken.bytes_left <= 0 or taken.look_left <= 0 or len(taken.batches) >= BATCHES_MAX:
                    taken.more = True
                    return taken
                if not self._step(group, partition, member.id, taken, now_s):
                    break
            else:
                taken.more = True
        if until_ns == NOTHING_NS != group.replay.until_ns(group.partitions.values(), now_s):
            taken.more = True  # the first record has started the clock of the replay
            group.changes += 1  # for the other members
        return taken

    def _step(
        self,
        group: ConsumerGroup,
        partition: GroupPartition,
        member: str,
        taken: FetchedBatches,
        now_s: float,
    ) -> bool:
        """Handle one batch, or one gap, of a partition. False: no more for now."""
        tracker = partition.tracker
        offer = tracker.offer(now_s)
        if offer is None or (offer.end is None and not self._is_due(group, partition, taken, now_s)):
            return False
        records = self._look(group, partition, offer, min(taken.bytes_left, taken.read_max_bytes))
        if records is None:
            return False
        if records is LOG_ENDED:
            return self._end_epoch(group, partition, offer)
        if isinstance(records, Overwritten):
            tracker.skip(offer.first, min(records.nearest, offer.end or records.nearest))
            return True
        if records.offset > offer.first:
            self._keep_answer(partition, LogAnswer(records.epoch, records.offset, records))
            tracker.skip(offer.first, min(records.offset, offer.end or records.offset))
            return True
        taken.look_left -= len(records.data)
        group.replay.found(now_s)
        if group.selection.everything and offer.end is None and taken.until_ns == EVERYTHING_NS:
            records = first_records(records, taken.records_left)
            delivered = tracker.deliver(records.offset, records.end, member, now_s)
            batch = BatchInfo(partition.ring, records.epoch, records.offset, records.count)
            taken.add(batch, bytes(records.data), delivered)
        else:
            self._give_selected(group, partition, member, taken, offer, records)
        return True

    @staticmethod
    def _is_due(group: ConsumerGroup, partition: GroupPartition, taken: FetchedBatches, now_s: float) -> bool:
        """False: there are no new records now, or the next one is not due."""
        next_ns = partition.next_ns
        if next_ns is None or next_ns <= taken.until_ns:
            return not partition.idle
        taken.due_s = min(taken.due_s, group.replay.due_s(next_ns, now_s))
        return False

    def _give_selected(
        self,
        group: ConsumerGroup,
        partition: GroupPartition,
        member: str,
        taken: FetchedBatches,
        offer: Offer,
        records: RingRecords,
    ) -> None:
        """Deliver those of `records` that match and are not done; pass over the others."""
        tracker, again = partition.tracker, offer.end is not None
        done = tracker.done_of(records.offset, records.end) if again else None
        until_ns = EVERYTHING_NS if again else max(taken.until_ns, 0)
        selected = group.selection.of(records, done, self._scratch, taken.records_left, until_ns)
        if selected.next_ns is not None:
            partition.next_record = NextRecord(records.epoch, selected.end, selected.next_ns)
        rest = records_behind(records, selected.end) if records.of_log and not again else None
        if rest is not None:
            self._keep_answer(partition, LogAnswer(rest.epoch, rest.offset, rest))
        if selected.end == records.offset:
            if selected.next_ns is not None:
                return
            if self._may_log():
                where = pairs(
                    group=group.name, ring=partition.ring, epoch=records.epoch, offset=records.offset
                )
                log.error("record invalid, the consumer group skipped it %s", where)
            tracker.skip(records.offset, records.offset + 1)
            return
        delivered = tracker.deliver(records.offset, selected.end, member, self._clock(), selected.passed)
        if selected.data:
            count = selected.end - records.offset
            batch = BatchInfo(partition.ring, records.epoch, records.offset, count, offer.tries, again=again)
            taken.add(batch, selected.data, delivered)

    def _end_epoch(self, group: ConsumerGroup, partition: GroupPartition, offer: Offer) -> bool:
        """Skip records that the log lacks, or continue with the next epoch. False: there is none."""
        if offer.end is not None:
            partition.tracker.skip(offer.first, offer.end)
            return True
        # spans of this epoch come first
        return not partition.tracker.spans and self._registry.next_epoch(group, partition)

    def _look(
        self, group: ConsumerGroup, partition: GroupPartition, offer: Offer, limit_bytes: int
    ) -> RingRecords | Overwritten | Literal[_EndOfLog.HERE] | None:
        """Records of an offer that exist now. None: not yet."""
        source = self._registry.rings[partition.ring].source
        if partition.epoch != source.epoch:
            return self._look_in_log(group, partition, source, offer, limit_bytes)
        try:
            records = source.read(offer.first, limit_bytes, offer.limit)
        except Corrupt as error:  # its writer, another process, has damaged it; other rings are read
            partition.retry_s = self._clock() + RETRY_S
            if self._may_log():
                log.error("ring damaged, a consumer waits %s", pairs(ring=partition.ring, reason=error))
            return None
        if records is None:
            partition.idle = offer.end is None
        if not isinstance(records, Overwritten):
            return records
        logged = self._look_in_log(group, partition, source, offer, limit_bytes)
        if logged is None or (logged is not LOG_ENDED and logged.offset < records.nearest):
            return logged
        return records

    def _look_in_log(
        self,
        group: ConsumerGroup,
        partition: GroupPartition,
        source: RingSource,
        offer: Offer,
        limit_bytes: int,
    ) -> RingRecords | Literal[_EndOfLog.HERE] | None:
        """Records that the log has for the offer. None: the read is under way."""
        if source.log is None:
            return LOG_ENDED
        answer = self._take_answer(partition)
        if answer is not None and (answer.epoch, answer.offset) == (partition.epoch, offer.first):
            if answer.records is None:
                return LOG_ENDED
            if answer.records.count <= offer.limit:
                return answer.records
        partition.reading = True
        take = partial(self._read, group, partition, partition.epoch, offer.first)
        limit_bytes = min(limit_bytes, COLD_MAX_BYTES)
        read = partial(source.read_log, partition.epoch, offer.first, limit_bytes, offer.limit)
        self._log_reads.submit(read, take)
        return None

    def _read(
        self,
        group: ConsumerGroup,
        partition: GroupPartition,
        epoch: int,
        offset: int,
        records: RingRecords | OSError | None,
    ) -> None:
        """Handle the answer of the log."""
        partition.reading = False
        group.changes += 1
        if isinstance(records, OSError):
            reason = records.strerror
            log.warning("log not readable, a consumer waits %s", pairs(ring=partition.ring, reason=reason))
            partition.retry_s = self._clock() + RETRY_S
        else:
            self._keep_answer(partition, LogAnswer(epoch, offset, records))

    def _keep_answer(self, partition: GroupPartition, answer: LogAnswer) -> None:
        """Keep an answer of the log for the next fetch; above LOG_ANSWERS_MAX the oldest is read again."""
        partition.log_answer = answer
        self._answered[partition] = None
        if len(self._answered) > LOG_ANSWERS_MAX:
            self._take_answer(next(iter(self._answered)))

    def _take_answer(self, partition: GroupPartition) -> LogAnswer | None:
        self._answered.pop(partition, None)
        answer, partition.log_answer = partition.log_answer, None
        return answer


def look_max_bytes(selection: Selection) -> int:
    """Bytes to examine for one fetch, or one read: every filter is matched with every record."""
    filters = max(selection.count // FILTERS_EACH, selection.size_bytes // FILTERS_EACH_BYTES)
    return LOOK_MAX_BYTES // (1 + filters)
