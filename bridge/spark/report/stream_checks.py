"""Checks of a landing zone: for each edge and stream the measured value, its limit, and pass or fail.

The states of records are never mixed: missing, lost and skipped each have a check, and none of them passes
because another one does. Lag, silence and clock are measured in seconds; without a limit nothing is decided.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from bridge.rangeset import count
from bridge.spark.completeness import Account, EdgeAccount, EpochAccount, FileInfo
from bridge.spark.report.wording import seconds_in_words
from bridge.spark.verdict import LakeVerdict, verdict_of


class CheckState(Enum):
    """Result of a check. The value is its word on the page."""

    PASS = "pass"  # noqa: S105 - no password
    SKIPPED = "skipped"
    LOST = "lost"
    MISSING = "missing"
    FAIL = "fail"  # above the limit of the command line
    NO_LIMIT = "no limit"
    UNKNOWN = "unknown"  # cannot be measured: the store or a footer does not report it


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Highest values that pass, in seconds; None: no limit."""

    lag_s: float | None = None
    silent_s: float | None = None
    clock_s: float | None = None


@dataclass(frozen=True, slots=True)
class StreamCheck:
    """One check: the value that was measured, as text, and the limit."""

    name: str
    state: CheckState
    value: str
    limit: str  # empty: no limit

    @property
    def is_decided(self) -> bool:
        """True if the value was compared with a limit."""
        return self.state not in {CheckState.NO_LIMIT, CheckState.UNKNOWN}


@dataclass(slots=True)
class StreamRow:
    """One stream of one edge."""

    edge: str
    stream: str
    epochs: list[EpochAccount] = field(default_factory=list)
    files: list[FileInfo] = field(default_factory=list)
    checks: list[StreamCheck] = field(default_factory=list)

    @property
    def account(self) -> Account:
        """The account of this stream only; numbers of files are those of the edge."""
        return Account(self.epochs, [], [info for info in self.files if info.footer is None])

    @property
    def verdict(self) -> LakeVerdict:
        """The verdict over this stream only."""
        return verdict_of(self.account)

    @property
    def records(self) -> int:
        """Number of different offsets that are present."""
        return self.account.totals.records

    @property
    def length(self) -> int:
        """Bytes of the files."""
        return sum(info.file.length for info in self.files)

    @property
    def is_over_a_limit(self) -> bool:
        """True if a value is above its limit."""
        return any(check.state is CheckState.FAIL for check in self.checks)


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """One edge: numbers of its files, which are dense from the first to the last."""

    edge: str
    first: int
    last: int
    streams: int
    epochs: int
    newest_file_s: float  # 0 if the store does not report it
    files: StreamCheck


def lag_of(info: FileInfo) -> float | None:
    """Seconds from taking the oldest record to the arrival of its file; negative if a clock is wrong.

    None if the store or the footer does not report a time.
    """
    if info.footer is None or info.file.modified_s <= 0:
        return None
    return info.file.modified_s - info.footer.first_timestamp_ns / 1e9


def stream_rows(
    files: Sequence[FileInfo], checked: Account, limits: StreamLimits, now_s: float
) -> list[StreamRow]:
    """A row for each edge and stream; those with the worst verdict first."""
    rows: dict[tuple[str, str], StreamRow] = {}
    for epoch in checked.epochs:
        key = (epoch.epoch.edge, epoch.epoch.stream)
        rows.setdefault(key, StreamRow(*key)).epochs.append(epoch)
    for info in files:
        key = (info.file.name.edge, info.file.name.stream)
        rows.setdefault(key, StreamRow(*key)).files.append(info)
    for row in rows.values():
        row.checks = [*_record_checks(row), *_time_checks(row, limits, now_s)]
    order = list(LakeVerdict)[::-1]
    return sorted(
        rows.values(),
        key=lambda row: (order.index(row.verdict), not row.is_over_a_limit, row.edge, row.stream),
    )


def _record_checks(row: StreamRow) -> list[StreamCheck]:
    totals, unreadable = row.account.totals, len(row.account.unreadable)
    missing, lost, skipped = totals.missing, totals.lost, totals.skipped
    text = f"{missing:,}" + (f", {unreadable:,} files unreadable" if unreadable else "")
    return [
        StreamCheck("missing", CheckState.MISSING if missing or unreadable else CheckState.PASS, text, "0"),
        StreamCheck("lost", CheckState.LOST if lost else CheckState.PASS, f"{lost:,}", "0"),
        StreamCheck("skipped", CheckState.SKIPPED if skipped else CheckState.PASS, f"{skipped:,}", "0"),
    ]


def _time_checks(row: StreamRow, limits: StreamLimits, now_s: float) -> list[StreamCheck]:
    lags = [lag for lag in map(lag_of, row.files) if lag is not None]
    footers = [info.footer for info in row.files if info.footer is not None]
    newest_s = max((footer.last_timestamp_ns / 1e9 for footer in footers), default=None)
    ahead = [
        info.footer.last_timestamp_ns / 1e9 - info.file.modified_s
        for info in row.files
        if info.footer is not None and info.file.modified_s > 0
    ]
    return [
        _limited("lag", max(lags, default=None), limits.lag_s),
        _limited("silent", None if newest_s is None else now_s - newest_s, limits.silent_s),
        _limited("clock ahead", max(ahead, default=None), limits.clock_s),
    ]


def _limited(name: str, value_s: float | None, limit_s: float | None) -> StreamCheck:
    limit = "" if limit_s is None else seconds_in_words(limit_s)
    if value_s is None:
        return StreamCheck(name, CheckState.UNKNOWN, "not reported", limit)
    text = seconds_in_words(max(value_s, 0.0))
    if limit_s is None:
        return StreamCheck(name, CheckState.NO_LIMIT, text, limit)
    return StreamCheck(name, CheckState.PASS if value_s <= limit_s else CheckState.FAIL, text, limit)


def edge_rows(files: Sequence[FileInfo], checked: Account) -> list[EdgeRow]:
    """A row for each edge with a file; those with missing files first."""
    by_edge: dict[str, list[FileInfo]] = defaultdict(list)
    for info in files:
        by_edge[info.file.name.edge].append(info)
    rows = [_edge_row(edge, by_edge[edge.edge]) for edge in checked.edges]
    return sorted(rows, key=lambda row: (row.files.state is CheckState.PASS, row.edge))


def _edge_row(edge: EdgeAccount, files: Sequence[FileInfo]) -> EdgeRow:
    faults = [f"{count(edge.missing):,} missing"] if edge.missing else []
    faults += [f"{len(edge.doubled):,} numbers used twice"] if edge.doubled else []
    state = CheckState.MISSING if faults else CheckState.PASS
    names = [info.file.name for info in files]
    return EdgeRow(
        edge.edge,
        edge.first,
        edge.last,
        len({name.stream for name in names}),
        len({(name.stream, name.partition, name.epoch) for name in names}),
        max(info.file.modified_s for info in files),
        StreamCheck("file numbers", state, ", ".join(faults) or "0 missing", "0"),
    )
