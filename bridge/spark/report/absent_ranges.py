"""Absent ranges: offsets that are missing, lost or skipped, and the files with the records next to them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from bridge.spark.completeness import Account, EpochKey, FileInfo
from bridge.spark.report.stream_checks import CheckState

KINDS = ((CheckState.MISSING, "missing"), (CheckState.LOST, "lost"), (CheckState.SKIPPED, "skipped"))


@dataclass(frozen=True, slots=True)
class AbsentRange:
    """Offsets first .. last of an epoch."""

    state: CheckState
    epoch: EpochKey
    first: int
    last: int
    before: FileInfo | None  # the file that ends before it
    after: FileInfo | None

    @property
    def records(self) -> int:
        """Number of records that are not there."""
        return self.last - self.first + 1


def number_of_ranges(checked: Account) -> int:
    """Number of all absent ranges."""
    return sum(len(getattr(epoch, kind)) for epoch in checked.epochs for _, kind in KINDS)


def absent_ranges(files: Sequence[FileInfo], checked: Account, ranges_max: int) -> list[AbsentRange]:
    """The first ranges; missing before lost, lost before skipped, then by edge, stream and offset."""
    chosen = islice(
        (
            (state, epoch.epoch, first, last)
            for state, kind in KINDS
            for epoch in checked.epochs
            for first, last in getattr(epoch, kind)
        ),
        ranges_max,
    )
    by_epoch: dict[EpochKey, list[FileInfo]] = defaultdict(list)
    for info in files:
        by_epoch[info.epoch].append(info)
    for neighbours in by_epoch.values():
        neighbours.sort(key=lambda info: info.file.name.first_offset)
    return [
        AbsentRange(state, epoch, first, last, *_neighbours(by_epoch[epoch], first, last))
        for state, epoch, first, last in chosen
    ]


def _neighbours(files: Sequence[FileInfo], first: int, last: int) -> tuple[FileInfo | None, FileInfo | None]:
    """The file before the range and the file after it, of files in the order of their offsets."""
    before = bisect_left(files, first, key=lambda info: info.file.name.first_offset)
    after = bisect_right(files, last, key=lambda info: info.file.name.first_offset)
    return files[before - 1] if before else None, files[after] if after < len(files) else None


def link_to(root: str, info: FileInfo) -> str:
    """URL that a browser opens; empty for a file of an object store."""
    is_local = "://" not in root or root.startswith("file://")
    return Path(info.file.path).absolute().as_uri() if is_local else ""
