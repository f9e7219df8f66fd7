"""Durable answers: answers to changes of groups, which wait until the journal of offsets has the changes.

Owns those answers, and the times at which the journal is written and synced: all changes of a turn in one
append, synced before an answer if a ring of them has the durability "disk" or is not known, otherwise after
its interval.
While the journal cannot be written, each answer is an error, and a new attempt is made after FLUSH_RETRY_S.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable

from edge.config.schema import Durability
from edge.consumers.protocol import Answer, Failed
from edge.consumers.registry import GroupRegistry, RingEntry

FLUSH_RETRY_S = 1.0


class DurableAnswers:
    """Answers of all clients. One thread; `answer` sends an answer."""

    def __init__(
        self, registry: GroupRegistry, counts: Counter[str], answer: Callable[[bytes, Answer], None]
    ) -> None:
        self.trouble = ""  # reason why changes would not be durable; they are refused then
        self._registry = registry
        self._counts = counts
        self._answer = answer
        self._waiting: list[tuple[bytes, Answer]] = []  # with their peers
        self._sync_s = math.inf  # time of the next sync
        self._flush_retry_s = 0.0

    def append(self, peer: bytes, answer: Answer) -> None:
        """Send an answer after the next write of the journal."""
        self._waiting.append((peer, answer))

    def until_s(self) -> float:
        """Time at which the journal must be synced, or may be written again."""
        if self._registry.store.broken:
            return max(self._sync_s, self._flush_retry_s)
        return self._sync_s

    def flush(self, now_s: float) -> None:
        """Write the changes, and send the answers that waited for that, or errors."""
        self._registry.collect()
        trouble = self.trouble or self._write(now_s)
        text = f"changes of the group may be lost if the broker ends now: {trouble}"
        hint = "see the broker's log; repeat the request later"
        answers, self._waiting = self._waiting, []
        for peer, answer in answers:
            self._answer(peer, Failed(answer.id, text, "full", hint) if trouble else answer)

    def _write(self, now_s: float) -> str:
        """Write the changes, and sync them if that is due. Returns the reason if the disk refuses, or ""."""
        store, rings = self._registry.store, self._registry.rings
        if store.broken and now_s < self._flush_retry_s:
            return "its journal cannot be written"
        entries = [rings[ring] for ring in store.moved if ring in rings]
        is_unknown = len(entries) < len(store.moved)  # a ring of a removed stream may have been at `disk`
        is_disk = any(entry.durability is Durability.DISK for entry in entries)
        now_synced = is_unknown or is_disk or now_s >= self._sync_s
        try:
            store.flush(sync=now_synced)
        except OSError as error:
            self._counts["journal_errors"] += 1
            self._flush_retry_s = now_s + FLUSH_RETRY_S
            return f"its journal cannot be written: {error.strerror}"
        self._sync_s = min(self._sync_s, self._soonest_s(entries, now_s)) if store.unsynced else math.inf
        return ""

    @staticmethod
    def _soonest_s(entries: Iterable[RingEntry], now_s: float) -> float:
        """Time at which changes of these rings must be synced."""
        logged = (entry for entry in entries if entry.durability.is_logged)
        return min((now_s + entry.sync_interval_ms / 1000 for entry in logged), default=math.inf)
