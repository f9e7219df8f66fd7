"""Fetch: the records that a member gets for a fetch.

Owns the way from a window's offers to records: from the ring while it has them, otherwise from the log, which
another thread reads while the member waits. Records that neither has are skipped and counted as lost. When an
ended epoch is done, the next one follows.

A frame has exactly the records that a filter of the group matches and that are not done: see selection.py.
Records that no filter matches are passed over: done as soon as they were examined, so that they do not delay
a group.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final, Literal

from edge.consumers.ack_tracker import Offer
from edge.consumers.faults import Faults
from edge.consumers.groups import ColdAnswer, ConsumerGroup, Holding
from edge.consumers.protocol import BatchFacts
from edge.consumers.registry import Ledger
from edge.consumers.ring_source import Found, Gone, RingSource
from edge.consumers.selection import Scratch
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs

__all__ = ["ColdThread", "Delivery", "Taken"]

log = logging.getLogger(__name__)

RETRY_S = 1.0  # before the next read after a disk error
STEPS_MAX = 64  # of one partition for one fetch: skips and batches
BATCHES_MAX = 64  # in one answer
COLD_HELD_MAX = 64  # log answers that wait for a fetch, of all groups
COLD_MAX_BYTES = 4 << 20
LOOK_MAX_BYTES = 4 << 20  # examined for one fetch before other requests are served
# each such number of further filters divides that limit: every filter is matched with every record
FILTERS_EACH = 16


class ColdThread:
    """One thread that reads the log, started on demand. It calls `wake` when an answer is ready."""

    def __init__(self, wake: Callable[[], object], faults: Faults) -> None:
        self._wake = wake
        self._faults = faults
        self._thread: ThreadPoolExecutor | None = None
        self._answers: deque[Callable[[], None]] = deque()

    def read(
        self,
        source: RingSource,
        epoch: int,
        offset: int,
        limit_bytes: int,
        count: int | None,
        take: Callable[[Found | OSError | None], None],
    ) -> None:
        """Read records of the log. run() calls `take` with the result of Source.read_cold()."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-consumers-cold")
        future = self._thread.submit(source.read_cold, epoch, offset, limit_bytes, count)
        future.add_done_callback(partial(self._answer, take))

    def run(self) -> None:
        """Deliver the answers that are ready."""
        while self._answers:
            with self._faults.guard("records of the log", lambda _: None):
                self._answers.popleft()()

    def close(self) -> None:
        """Wait for the read that is under way, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def _answer(self, take: Callable[[Found | OSError | None], None], future: Future[Found | None]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._answers.append(partial(take, future.result()))
        elif isinstance(error, OSError):
            self._answers.append(partial(take, error))
        else:  # a defect, which must not count as "no records": nothing is skipped because of it
            log.error("records of the log cannot be handed out", exc_info=error)
            self._answers.append(partial(take, OSError(errno.EIO, repr(error))))
        self._wake()


@dataclass(slots=True)
class Taken:
    """Batches for one answer."""

    facts: list[BatchFacts]
    frames: list[bytes]
    bytes_left: int
    look_left: int  # bytes
    more: bool = False  # True if there may be records that were not examined yet

    def add(self, facts: BatchFacts, data: bytes) -> None:
        """Add a batch."""
        self.facts.append(facts)
        self.frames.append(data)
        self.bytes_left -= len(data)


class _Over(Enum):
    """The log has no records from there on."""

    NOTHING = 0


NOTHING: Final = _Over.NOTHING


class Delivery:
    """Selects records for members."""

    def __init__(self, ledger: Ledger, cold: ColdThread, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._cold = cold
        self._clock = clock
        self._may_log = LogThrottle(clock)
        self._scratch = Scratch()
        self._held: dict[Holding, None] = {}  # those with an answer of the log, the oldest first

    def take(self, group: ConsumerGroup, member: str, max_bytes: int, now_s: float) -> Taken:
        """Give about `max_bytes` to `member`; empty if there are no records yet."""
        look_bytes = LOOK_MAX_BYTES // (1 + group.selection.count // FILTERS_EACH)
        taken = Taken([], [], max_bytes, look_bytes)
        for holding in group.open_to(member):
            if holding.reading or holding.retry_s > now_s:
                continue
            for _ in range(STEPS_MAX):
                if taken.bytes_left <= 0 or taken.look_left <= 0 or len(taken.facts) >= BATCHES_MAX:
                    taken.more = True
                    return taken
                if not self._step(group, holding, member, taken, now_s):
                    break
            else:
                taken.more = True
        return taken

    def _step(self, group: ConsumerGroup, holding: Holding, member: str, taken: Taken, now_s: float) -> bool:
        """Handle one batch, or one gap, of a holding. False: no more for now."""
        window = holding.window
        offer = window.offer(now_s)
        if offer is None or (holding.idle and offer.end is None):
            return False
        found = self._look(holding, offer, taken.bytes_left)
        if found is None:
            return False
        if found is NOTHING:
            return self._over(group, holding, offer)
        if isinstance(found, Gone):
            window.skip(offer.first, min(found.nearest, offer.end or found.nearest))
            return True
        if found.offset > offer.first:
            self._hold(holding, ColdAnswer(found.epoch, found.offset, found))
            window.skip(offer.first, min(found.offset, offer.end or found.offset))
            return True
        taken.look_left -= len(found.data)
        if group.selection.everything and offer.end is None:
            window.deliver(found.offset, found.end, member, now_s)
            facts = BatchFacts(holding.ring, found.epoch, found.offset, found.count)
            taken.add(facts, found.data)
        else:
            self._give_selected(group, holding, member, taken, offer, found)
        return True

    def _give_selected(
        self, group: ConsumerGroup, holding: Holding, member: str, taken: Taken, offer: Offer, found: Found
    ) -> None:
        """Deliver the records of `found` that match and are not done; pass over the others."""
        window, again = holding.window, offer.end is not None
        done = window.done_of(found.offset, found.end) if again else None
        selected = group.selection.of(found, done, self._scratch)
        if selected.end == found.offset:
            if self._may_log():
                where = pairs(group=group.name, ring=holding.ring, epoch=found.epoch, offset=found.offset)
                log.error("record does not verify, a consumer group skipped it %s", where)
            window.skip(found.offset, found.offset + 1)
            return
        window.deliver(found.offset, selected.end, member, self._clock(), selected.passed)
        if selected.data:
            count = selected.end - found.offset
            facts = BatchFacts(holding.ring, found.epoch, found.offset, count, offer.tries, again=again)
            taken.add(facts, selected.data)

    def _over(self, group: ConsumerGroup, holding: Holding, offer: Offer) -> bool:
        """Act on an epoch without further records."""
        if offer.end is not None:
            holding.window.skip(offer.first, offer.end)
            return True
        # spans of this epoch come first
        return not holding.window.spans and self._ledger.next_epoch(group, holding)

    def _look(
        self, holding: Holding, offer: Offer, limit_bytes: int
    ) -> Found | Gone | Literal[_Over.NOTHING] | None:
        """Records of an offer that exist now. None: not yet."""
        source = self._ledger.rings[holding.ring].source
        if holding.epoch != source.epoch:
            return self._look_in_log(holding, source, offer, limit_bytes)
        found = source.read(offer.first, limit_bytes, offer.limit)
        if found is None:
            holding.idle = offer.end is None
        if not isinstance(found, Gone):
            return found
        cold = self._look_in_log(holding, source, offer, limit_bytes)
        if cold is None or (cold is not NOTHING and cold.offset < found.nearest):
            return cold
        return found

    def _look_in_log(
        self, holding: Holding, source: RingSource, offer: Offer, limit_bytes: int
    ) -> Found | Literal[_Over.NOTHING] | None:
        """Records that the log has for the offer. None: the read is under way."""
        if source.cold is None:
            return NOTHING
        answer = self._release(holding)
        if answer is not None and (answer.epoch, answer.offset) == (holding.epoch, offer.first):
            if answer.found is None:
                return NOTHING
            if answer.found.count <= offer.limit:
                return answer.found
        holding.reading = True
        take = partial(self._read, holding, holding.epoch, offer.first)
        limit_bytes = min(limit_bytes, COLD_MAX_BYTES)
        self._cold.read(source, holding.epoch, offer.first, limit_bytes, offer.limit, take)
        return None

    def _read(self, holding: Holding, epoch: int, offset: int, found: Found | OSError | None) -> None:
        """Handle the answer of the log."""
        holding.reading = False
        if isinstance(found, OSError):
            reason = found.strerror
            log.warning(
                "the log cannot be read, a consumer waits %s", pairs(ring=holding.ring, reason=reason)
            )
            holding.retry_s = self._clock() + RETRY_S
        else:
            self._hold(holding, ColdAnswer(epoch, offset, found))

    def _hold(self, holding: Holding, answer: ColdAnswer) -> None:
        """Keep an answer of the log for the next fetch; above COLD_HELD_MAX the oldest is read again."""
        holding.cold = answer
        self._held[holding] = None
        if len(self._held) > COLD_HELD_MAX:
            self._release(next(iter(self._held)))

    def _release(self, holding: Holding) -> ColdAnswer | None:
        self._held.pop(holding, None)
        answer, holding.cold = holding.cold, None
        return answer
