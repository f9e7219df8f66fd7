"""Verdict over a lake: complete, or the worst kind of absence.

    complete   every expected offset is present                                           exit status 0
    skipped    records were passed over by an operator or `start = "latest"`, and a file declares it   5
    lost       records were overwritten or removed before they were drained, and a file declares it    4
    missing    something is absent without a declaration, is in a table more than once, cannot be read, or
               two files of an edge have the same number                                  exit status 1

The verdict is the worst that applies: missing, then lost, then skipped. Exit status 2 is a mistake in the
arguments. 3 is reserved for commands that need a broker. 6: a limit of `brim spark report` is exceeded.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bridge.spark.completeness import Account


class LakeVerdict(Enum):
    """Verdict. The value is its word in JSON."""

    COMPLETE = "complete"
    SKIPPED = "skipped"
    LOST = "lost"
    MISSING = "missing"

    @property
    def status(self) -> int:
        """The exit status of a command that ends with this verdict."""
        return _STATUS[self]


_STATUS = {LakeVerdict.COMPLETE: 0, LakeVerdict.MISSING: 1, LakeVerdict.LOST: 4, LakeVerdict.SKIPPED: 5}


def verdict_of(files: Account, *, table_is_wrong: bool = False) -> LakeVerdict:
    """The verdict over these files. `table_is_wrong`: a table made of them lacks or doubles records."""
    if files.has_missing or table_is_wrong:
        return LakeVerdict.MISSING
    if any(epoch.lost for epoch in files.epochs):
        return LakeVerdict.LOST
    return LakeVerdict.SKIPPED if any(epoch.skipped for epoch in files.epochs) else LakeVerdict.COMPLETE


def sentence(files: Account, verdict: LakeVerdict) -> str:
    """The verdict as a sentence, with the numbers of records."""
    lost, skipped = files.totals.lost, files.totals.skipped
    sentences = {
        LakeVerdict.COMPLETE: "complete: nothing is missing, lost or skipped",
        LakeVerdict.SKIPPED: f"SKIPPED: {skipped:,} records were passed over on purpose, and never drained",
        LakeVerdict.LOST: f"LOST: {lost:,} records were overwritten or removed before they were drained",
        LakeVerdict.MISSING: "MISSING: something is not there or is there twice, and nothing declares it",
    }
    also = f"; {skipped:,} more were skipped" if verdict is LakeVerdict.LOST and skipped else ""
    return sentences[verdict] + also
