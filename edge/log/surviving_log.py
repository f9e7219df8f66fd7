"""Log for a start and for clients: reads past unreadable parts of the disk, at once or after some time.

A start cannot wait: one bad block would otherwise prevent it, or cost all records of the ring. Clients wait
PATIENCE_S, because an error of the disk may pass, and then get the records behind it. A bridge does not use
this class: it waits until the disk reads again, or an operator removes the file.

Owns the files that failed lately. Never hides an error of another kind, such as a lack of descriptors.
Threads: any.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from persistence import Epoch
from persistence.durable_file import is_unreadable, problem_of
from persistence.read.merged_reader import MergedReader
from ringbuf import Range

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 30.0
FILES_MAX = 256  # that are remembered
REMEDY = "copy the log to another disk, and run `brim segments verify` there"


class SurvivingLog:
    """Reads by `past`; by `salvaging` if a file could not be read for `patience_s`."""

    def __init__(
        self,
        past: MergedReader,
        salvaging: MergedReader,
        patience_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._past, self._salvaging = past, salvaging
        self._patience_s = patience_s
        self._clock = clock
        self._failed: dict[str, tuple[float, float]] = {}  # times of the first and last error, by file
        self._may_log = LogThrottle()

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> Sequence[Range]:
        """Runs of records from a ring position on."""
        return self._result(ring_name, lambda log: log.read_at(ring_name, epoch, position, limit_bytes))

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """Runs of records from an offset on."""
        return self._result(ring_name, lambda log: log.read(ring_name, epoch, offset, limit_bytes))

    def epochs(self, ring_name: str) -> list[Epoch]:
        """Epochs of a ring that the log has."""
        return self._result(ring_name, lambda log: log.epochs(ring_name))

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        """Offset of the first record of that time or later."""
        return self._result(ring_name, lambda log: log.seek_time(ring_name, epoch, timestamp_ns))

    def _result(self, ring_name: str, read: Callable[[MergedReader], T]) -> T:
        try:
            return read(self._past)
        except OSError as error:
            if not is_unreadable(error) or self._waits(str(error.filename)):
                raise
            if self._may_log():
                details = pairs(ring=ring_name, reason=problem_of(error), remedy=REMEDY)
                log.error("log unreadable, its records are left out %s", details)
        return read(self._salvaging)

    def _waits(self, file: str) -> bool:
        """True if the errors of the file began less than `patience_s` ago."""
        now = self._clock()
        first, last = self._failed.pop(file, (now, now))
        if now - last > self._patience_s:
            first = now  # the disk has read it meanwhile, or had no cause to
        self._failed[file] = first, now
        while len(self._failed) > FILES_MAX:
            del self._failed[next(iter(self._failed))]
        return now - first < self._patience_s
