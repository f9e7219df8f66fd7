"""Account of drained records: by partition and epoch, the offsets that are present, missing, lost, skipped or
doubled.

Plain arithmetic on names and footers: no record is read, and Spark is not needed.

An epoch is expected from its first offset, which every footer has. It is expected up to the last offset that
is present, or to the offset at which the next epoch states that draining ended. An expected offset that is
not present, and that no footer declares, is a gap. A missing newest file cannot be detected here: no other
file mentions it yet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bridge.format.drained_file import FileFooter
from bridge.rangeset import Ranges, count, overlap, subtract, union
from bridge.spark.landing_zone import StoredFile


class EpochKey(NamedTuple):
    """Range of validity of offsets: one epoch of one partition of one edge."""

    edge: str
    stream: str
    partition: int
    epoch: int


class FileInfo(NamedTuple):
    """One file: its name, and its footer or the reason why that cannot be read."""

    file: StoredFile
    footer: FileFooter | None
    error: str = ""

    @property
    def epoch(self) -> EpochKey:
        """The epoch of its records, by its name."""
        name = self.file.name
        return EpochKey(name.edge, name.stream, name.partition, name.epoch)

    @property
    def records(self) -> int:
        """Number of its records, by its name."""
        return self.file.name.last_offset - self.file.name.first_offset + 1


@dataclass
class EpochAccount:
    """One epoch of one partition."""

    epoch: EpochKey
    files: int
    expected: Ranges
    present: Ranges
    lost: Ranges  # declared: overwritten or removed before they were drained, and in no file
    skipped: Ranges  # declared: passed over on purpose, and in no file
    missing: Ranges  # the gaps
    doubled: Ranges  # in more than one file; readers take them once

    @property
    def records(self) -> int:
        """Number of different offsets that are present."""
        return count(self.present)


@dataclass
class EdgeAccount:
    """Numbers of one edge's files."""

    edge: str
    first: int
    last: int
    missing: Ranges
    doubled: list[int]


class RecordCounts(NamedTuple):
    """Numbers of records of all epochs; `records` are different offsets that are present."""

    records: int
    missing: int
    lost: int
    skipped: int
    doubled: int


@dataclass
class Account:
    """Account of all files."""

    epochs: list[EpochAccount] = field(default_factory=list)
    edges: list[EdgeAccount] = field(default_factory=list)
    unreadable: list[FileInfo] = field(default_factory=list)

    @property
    def has_missing(self) -> bool:
        """True if records or files are missing without a declaration, numbers are used twice, or a file
        is unreadable.
        """
        files_missing = any(edge.missing or edge.doubled for edge in self.edges)
        return files_missing or any(epoch.missing for epoch in self.epochs) or bool(self.unreadable)

    @property
    def totals(self) -> RecordCounts:
        """Sums over the epochs."""
        return RecordCounts(
            records=sum(epoch.records for epoch in self.epochs),
            missing=sum(count(epoch.missing) for epoch in self.epochs),
            lost=sum(count(epoch.lost) for epoch in self.epochs),
            skipped=sum(count(epoch.skipped) for epoch in self.epochs),
            doubled=sum(count(epoch.doubled) for epoch in self.epochs),
        )


def account(files: Sequence[FileInfo], *, retained: bool = False) -> Account:
    """The account of these files.

    `retained`: old files were removed on purpose. An epoch is then expected from the first offset that is
    present. An edge is always expected from its first number.
    """
    drained_to = _drained_ends(file.footer for file in files)
    epochs: dict[EpochKey, list[FileInfo]] = defaultdict(list)
    for info in files:
        epochs[info.epoch].append(info)
    later = _declared_later(file.footer for file in files)
    for epoch in (*drained_to, *later):
        epochs.setdefault(epoch, [])
    accounts = [
        _epoch(epoch, files_of_epoch, drained_to.get(epoch), later.get(epoch, _Declared([], [])), retained)
        for epoch, files_of_epoch in sorted(epochs.items())
    ]
    return Account(
        [epoch_account for epoch_account in accounts if epoch_account is not None],
        _edges(files),
        [file for file in files if file.footer is None],
    )


def _drained_ends(footers: Iterable[FileFooter | None]) -> dict[EpochKey, int]:
    """The next offset of each epoch that a later epoch names as the one before."""
    return {
        EpochKey(footer.edge, footer.stream, footer.partition, footer.previous[0]): footer.previous[1]
        for footer in footers
        if footer is not None and footer.previous is not None
    }


class _Declared(NamedTuple):
    """Ranges that footers declare, in any order."""

    lost: Ranges
    skipped: Ranges


def _declared_later(footers: Iterable[FileFooter | None]) -> dict[EpochKey, _Declared]:
    """Ranges that later files declare lost or skipped for epochs that had ended."""
    declared: dict[EpochKey, _Declared] = defaultdict(lambda: _Declared([], []))
    for footer in filter(None, footers):
        for kind, ranges in enumerate((footer.earlier_lost, footer.earlier_skipped)):
            for epoch, first, last in ranges:
                key = EpochKey(footer.edge, footer.stream, footer.partition, epoch)
                declared[key][kind].append((first, last))
    return declared


def _declared(footers: Sequence[FileFooter], later: _Declared, present: Ranges) -> _Declared:
    """Ranges lost and skipped, without those that are present. A range that is both counts as lost."""
    lost = union([*(pair for footer in footers for pair in footer.lost), *later.lost])
    skipped = union([*(pair for footer in footers for pair in footer.skipped), *later.skipped])
    return _Declared(subtract(lost, present), subtract(skipped, union([*present, *lost])))


def _epoch(
    epoch: EpochKey, files: list[FileInfo], drained_to: int | None, later: _Declared, retained: bool
) -> EpochAccount | None:
    footers = [file.footer for file in files if file.footer is not None]
    ranges = [(info.file.name.first_offset, info.file.name.last_offset) for info in files]
    present = union(ranges)
    declared = _declared(footers, later, present)
    firsts = [footer.epoch_first_offset for footer in footers] or [first for first, _ in ranges]
    if retained:
        firsts = [present[0][0]] if present else []
    explained = union([*present, *declared.lost, *declared.skipped])
    ends = [last for _, last in explained] + ([drained_to - 1] if drained_to else [])
    if not ends or (not firsts and retained):
        return None  # the epoch had no record, or none is left
    # An epoch without a file, whose end no file states, is from the time before the edge had this name.
    begin = 0 if drained_to is not None else explained[0][0]
    first, last = min(firsts, default=begin), max(ends)
    expected = [(first, last)] if last >= first else []
    missing = subtract(expected, explained)
    return EpochAccount(epoch, len(files), expected, present, *declared, missing, overlap(ranges))


def _edges(files: Sequence[FileInfo]) -> list[EdgeAccount]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for info in files:
        numbers[info.file.name.edge].append(info.file.name.drain_seq)
    accounts = []
    for edge, files_of_edge in sorted(numbers.items()):
        there = union((number, number) for number in files_of_edge)
        doubled = (
            sorted({number for number in files_of_edge if files_of_edge.count(number) > 1})
            if len(set(files_of_edge)) < len(files_of_edge)
            else []
        )
        missing = subtract([(min(files_of_edge), max(files_of_edge))], there)
        accounts.append(EdgeAccount(edge, min(files_of_edge), max(files_of_edge), missing, doubled))
    return accounts
