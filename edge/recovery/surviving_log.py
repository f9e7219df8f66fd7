"""Log for a start: reads the records of the last lives, and leaves out what the disk cannot read.

Owns nothing. Never hides an error that passes, such as a lack of descriptors. Otherwise one bad block in a
segment would prevent the start. Readers of a running broker get the error, and try again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from edge.logging_setup import pairs
from persistence.durable_file import is_unreadable
from ringbuf import Range

if TYPE_CHECKING:
    from edge.recovery.read_journal import PastLog
    from persistence import Epoch

log = logging.getLogger(__name__)

T = TypeVar("T")


class SurvivingLog:
    """See PastLog."""

    def __init__(self, past: PastLog) -> None:
        self._past = past

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> Sequence[Range]:
        """Runs of records from a ring position on."""
        return _readable(ring_name, lambda: self._past.read_at(ring_name, epoch, position, limit_bytes))

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> Sequence[Range]:
        """Runs of records from an offset on."""
        return _readable(ring_name, lambda: self._past.read(ring_name, epoch, offset, limit_bytes))

    def epochs(self, ring_name: str) -> Sequence[Epoch]:
        """Epochs of a ring that the log has."""
        return _readable(ring_name, lambda: self._past.epochs(ring_name))


def _readable(ring_name: str, read: Callable[[], Sequence[T]]) -> Sequence[T]:
    try:
        return read()
    except OSError as error:
        if not is_unreadable(error):
            raise
        remedy = "copy the log to another disk, and run `brim segments verify` there"
        details = pairs(ring=ring_name, reason=error, remedy=remedy)
        log.error("log unreadable, its records are not restored %s", details)
        return []
