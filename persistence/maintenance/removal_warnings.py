"""Warnings of a log's maintenance: records removed unread or against the rules, and tasks that failed.

One line for each cause in 10 s: a full log may remove a segment many times a second, each with unread records
of the same consumers. Owns the sums since the last lines; the counters of the status report are those of
Maintenance.
"""

from __future__ import annotations

import logging

from persistence.maintenance.retention_rules import Removal

log = logging.getLogger(__name__)

PERIOD_S = 10.0
FAILURES_MAX = 8  # different ones in a period


class RemovalWarnings:
    """The warnings of one log. The first one is written at once; call write() often."""

    def __init__(self) -> None:
        self._by_consumer: dict[str, list[int]] = {}  # records and removals
        self._by_stream: dict[str, list[int]] = {}
        self._failures: dict[str, None] = {}  # texts
        self._next_s = 0.0

    def failed(self, directory: str, error: Exception) -> None:
        """Enter a task that failed, and is repeated."""
        if len(self._failures) < FAILURES_MAX:
            self._failures[f"log maintenance failed directory={directory} reason={error}"] = None

    def add(self, removal: Removal) -> None:
        """Enter the removal of a segment."""
        unread: dict[str, int] = {}
        for loss in removal.losses:  # one for each ring
            unread[loss.consumer] = unread.get(loss.consumer, 0) + loss.records
        for sums, counts in (self._by_consumer, unread), (self._by_stream, removal.forced_records):
            for name, records in counts.items():
                total = sums.setdefault(name, [0, 0])
                total[0] += records
                total[1] += 1

    def write(self, now_s: float) -> None:
        """Write the sums, if the last lines are 10 s old."""
        if now_s < self._next_s or not (self._by_consumer or self._by_stream or self._failures):
            return
        self._next_s = now_s + PERIOD_S
        self.end()

    def end(self) -> None:
        """Write the sums now."""
        for text in self._failures:
            log.warning("%s", text)
        for consumer, (records, segments) in self._by_consumer.items():
            log.warning(
                "records removed unread consumer=%s records=%d segments=%d", consumer, records, segments
            )
        for stream, (records, segments) in self._by_stream.items():
            log.warning(
                "records removed against the rules stream=%s records=%d segments=%d",
                stream,
                records,
                segments,
            )
        self._failures.clear()
        self._by_consumer.clear()
        self._by_stream.clear()
