"""Merger: replaces the small files of closed days by large ones. Readers of the lake see no difference.

A day is closed `merge_after_s` after its end (UTC). Files of one stream, partition, epoch and form that
follow each other, in numbers and in offsets, become a merged file (bridge/format/merged_file.py). Readers
list it as the files that it replaces, so drain_seqs, progress, gaps and verdicts stay as they are.

    native     put NAME ──── merge_keep_s ────▶ remove the replaced files
    Parquet    put _merged/NAME.new ─ merge_keep_s ─▶ link NAME, remove the replaced files
                                                      ─ merge_keep_s ─▶ remove _merged/NAME.new

Readers of Brim use a merged file, staged or not, as soon as it is there. The files that a query has planned
stay for merge_keep_s. Other readers of Parquet pass over the staged file. They see the replaced files until
the link, and the merged file after it; between the link and the last removal they may see both.

The state of each file follows from the names in the store: a kill at any instruction leaves a state from
which the next pass continues. Names and bytes follow from the replaced files, so a repeated put stores
nothing twice. Replaced files are removed only after the merged file was read back and verified.

Only files with a lower drain_seq than all files in flight are merged: these may be put once more. All
requests that change something need the lease of the edge, so only the bridge that drains an edge merges its
files.

Owns the order of these steps, and the thread. Bounded: one merged file of merge_bytes in memory with one of
its sources, NAMES_MAX names, and merge_rate_bytes_s to and from the store.
"""

from __future__ import annotations

import heapq
import logging
import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol, TypeAlias

from bridge.drain.clock import SYSTEM, DrainClock
from bridge.drain.settings import BridgeSettings
from bridge.errors import BridgeError, DrainedFileError
from bridge.format.drained_file import FOOTER_MAX_BYTES, FileFooter, parse_footer
from bridge.format.file_builder import DrainedFile
from bridge.format.file_name import FileName, as_drained, is_parquet, is_staged, published
from bridge.format.merged_file import NativeMerge, replaced_names, verified
from bridge.rangeset import union
from bridge.sinks.interface import MergingStore, Sink, StoredEntry
from bridge.sinks.parquet import ParquetSink, parquet_footer_in

__all__ = ["MergeTotals", "Merger", "merging_store", "names_replaced_by"]

log = logging.getLogger(__name__)

PASS_S = 300.0  # time between two passes over the closed days
NAMES_MAX = 100_000  # small files of a day that one pass considers
DUE_MAX = 16  # merged files whose replaced files one pass over a day removes
SMALL_SHARE = 2  # a file above this part of merge_bytes stays

_Lane: TypeAlias = tuple[str, int, int, bool, bool]  # files that may be in one merged file


@dataclass(slots=True)
class MergeTotals:
    """Totals of this merger since it began."""

    merged_files: int = 0  # files that were merged into others
    written_files: int = 0  # merged files
    removed_files: int = 0
    failed: bool = False  # the last pass has failed
    error: str = ""  # its error and remedy


class FileMerge(Protocol):
    """A merged file that is built (bridge/format/merged_file.py, bridge/sinks/merged_parquet.py)."""

    def add(self, name: FileName, data: bytes) -> bool:
        """Add a file; False: it does not fit. Raises DrainedFileError: it is damaged."""

    def finish(self) -> DrainedFile | None:
        """The merged file; None: fewer than two files were added."""


class _Stored(NamedTuple):
    name: FileName
    entry: StoredEntry

    @property
    def lane(self) -> _Lane:
        name = self.name
        return name.stream, name.partition, name.epoch, name.compressed, is_parquet(self.entry.path)


@dataclass(slots=True)
class _Merged:
    """A merged file that is in the store, under one of its names or both."""

    name: FileName
    path: str  # the final one
    staged: StoredEntry | None = None
    final: StoredEntry | None = None
    replaced: list[_Stored] = field(default_factory=list)  # files that it replaces, and that are still there
    waits: bool = False  # such files were seen
    is_due: bool = False  # its replaced files may be removed

    def covers(self, name: FileName) -> bool:
        """True if it has the offsets of a file."""
        return self.name.first_offset <= name.first_offset and name.last_offset <= self.name.last_offset

    def set_due(self, now_s: float, keep_s: int) -> None:
        """Set is_due. A file with both names has waited before it was published."""
        entry = self.final or self.staged
        assert entry is not None
        self.is_due = bool(self.staged and self.final) or now_s - entry.modified_s >= keep_s


def merging_store(sink: Sink) -> MergingStore | None:
    """The store in which the files of a sink can be merged; None: the sink has none."""
    store = sink.inner if isinstance(sink, ParquetSink) else sink
    return store if isinstance(store, MergingStore) else None


def _verified_footer(name: FileName, path: str, data: bytes) -> FileFooter:
    """The footer of a merged file, all of which is verified. Raises DrainedFileError."""
    if is_parquet(path):
        from bridge.sinks.merged_parquet import check_parquet

        return check_parquet(name, data)
    return verified(name, data, path).footer


def names_replaced_by(store: MergingStore, name: FileName, path: str) -> list[FileName]:
    """Names of the files that a merged file replaces. Raises DrainedFileError: its footer cannot be read."""
    tail = store.read(path, FOOTER_MAX_BYTES)
    return list(replaced_names(name, parquet_footer_in(tail) if is_parquet(path) else parse_footer(tail)))


class Merger:
    """Merger of the files of one edge.

    `drained_to`: the last drain_seq such that no file up to it is in flight; 0: nothing is to be merged now.
    """

    def __init__(
        self,
        settings: BridgeSettings,
        store: MergingStore,
        drained_to: Callable[[], int],
        clock: DrainClock = SYSTEM,
    ) -> None:
        self.totals = MergeTotals()
        self._settings, self._store, self._drained_to, self._clock = settings, store, drained_to, clock
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._look_at: dict[str, float] = {}  # monotonic time of the next look at a day
        self._looks_of = ""  # the day on which they were made
        self._refused: set[str] = set()  # paths of files that stay as they are, such as damaged ones

    def start(self) -> None:
        """Run in a new thread, with the priority of the calling one."""
        name = f"brim-merge-{self._settings.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End after the request that is under way."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.run_pass()
                self.totals.failed, self.totals.error = False, ""
            except BridgeError as error:
                reason = f"{error}; {error.hint}" if error.hint else str(error)
                if reason != self.totals.error:
                    log.warning("files not merged name=%s reason=%s", self._settings.name, reason)
                self.totals.failed, self.totals.error = True, reason
            except Exception as error:  # a mistake here must not end the thread, nor the drain
                log.exception("files not merged name=%s", self._settings.name)
                self.totals.failed, self.totals.error = True, repr(error)
            self._stopping.wait(PASS_S)

    def run_pass(self) -> None:
        """Do everything that is due now. Raises SinkUnavailable: call again."""
        edge, today = self._settings.edge_id, f"{self._now():%Y-%m-%d}"
        if self._looks_of != today:  # an edge whose clock was set back adds files to an earlier day
            self._look_at, self._looks_of = {}, today
        if not self._drained_to():
            return
        now = self._clock.monotonic()
        days = (day for day in self._store.days(edge) if self._look_at.get(day, 0.0) <= now)
        closed = sorted(day for day in days if self._is_closed(day))
        if not closed:
            return
        now_s = self._store.probe(edge)  # fails if the bridge may not remove files
        for day in closed:
            while (wait_s := self._merge_day(day, now_s)) <= 0 and not self._stopping.is_set():
                pass
            self._look_at[day] = now + wait_s

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.wall_ns() / 1e9, UTC)

    def _is_closed(self, day: str) -> bool:
        try:
            end = datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(days=1)
        except ValueError:
            return False
        return self._now() >= end + timedelta(seconds=self._settings.merge_after_s)

    # ---- one day ----

    def _merge_day(self, day: str, now_s: float) -> float:
        """Do what is due in the directory of a day, for a limited number of files.

        Returns the seconds until there is more to do; 0: now.
        """
        lanes = self._merged_files(day)
        every = [one for merged in lanes.values() for one in merged]
        for one in every:
            one.set_due(now_s, self._settings.merge_keep_s)
        small = self._small(day, lanes)
        progress = False
        for merged in lanes.values():
            for one in merged:
                if one.is_due and (one.replaced or not one.waits) and not self._stopping.is_set():
                    progress |= self._settle(one, merged, now_s)
        for group in _groups(small):
            progress |= self._merge(group)
        if progress:
            return 0.0
        waiting = [one.final or one.staged for one in every if one.waits or one.staged]
        ages_s = [now_s - entry.modified_s for entry in waiting if entry is not None]
        return min((max(self._settings.merge_keep_s - age_s, PASS_S) for age_s in ages_s), default=math.inf)

    def _listed(self, day: str) -> Iterator[_Stored]:
        for entry in self._store.entries(f"edge={self._settings.edge_id}/dt={day}/"):
            name = FileName.parse(as_drained(entry.path))
            if name is not None and (name.edge, name.day) == (self._settings.edge_id, day):
                yield _Stored(name, entry)

    def _merged_files(self, day: str) -> dict[_Lane, list[_Merged]]:
        """The merged files of a day by lane, in the order of drain_seqs."""
        found: dict[str, _Merged] = {}
        lanes: dict[_Lane, list[_Merged]] = defaultdict(list)
        for stored in (stored for stored in self._listed(day) if stored.name.merged):
            path = published(stored.entry.path)
            if path not in found:
                found[path] = _Merged(stored.name, path)
                lanes[stored.lane].append(found[path])
            if is_staged(stored.entry.path):
                found[path].staged = stored.entry
            else:
                found[path].final = stored.entry
        for merged in lanes.values():
            merged.sort(key=lambda one: (one.name.drain_seq, one.name.first_offset))
        return lanes

    def _small(self, day: str, lanes: dict[_Lane, list[_Merged]]) -> list[_Stored]:
        """The small files that no merged file covers, at most NAMES_MAX.

        The others are noted for the merged files that are due, at most DUE_MAX of these.
        """
        bytes_max, drained_to = self._settings.merge_bytes // SMALL_SHARE, self._drained_to()
        noted: set[str] = set()

        def free() -> Iterator[_Stored]:
            for stored in self._listed(day):
                is_free = stored.name.drain_seq <= drained_to and stored.entry.path not in self._refused
                if stored.name.merged or not is_free:
                    continue
                owner = _owner(lanes.get(stored.lane, ()), stored.name)
                if owner is not None:
                    owner.waits = True
                    if owner.is_due and (owner.path in noted or len(noted) < DUE_MAX):
                        noted.add(owner.path)
                        owner.replaced.append(stored)
                elif stored.entry.length <= bytes_max:
                    yield stored

        return heapq.nsmallest(NAMES_MAX, free(), key=lambda stored: stored.name.drain_seq)

    # ---- files that are merged ----

    def _merge(self, group: Sequence[_Stored]) -> bool:
        """Merge the files of a group. True if any were."""
        progress, at = False, 0
        while at < len(group) - 1 and not self._stopping.is_set():
            file, taken = self._built(group[at:])
            if file is not None:
                self._pace(file.length)
                self._store.put(file)
                count = len(file.footer.merged)
                self.totals.merged_files += count
                self.totals.written_files += 1
                log.info("files merged name=%s files=%d path=%s", self._settings.name, count, file.name)
                progress = True
            at += taken
        return progress

    def _built(self, group: Sequence[_Stored]) -> tuple[DrainedFile | None, int]:
        """The merged file of the first files of a group, and the number of files that are done."""
        merge = _builder(group[0], self._settings.merge_bytes)
        taken = 0
        for stored in group:
            if self._stopping.is_set():
                return None, len(group)
            data = self._store.read(stored.entry.path)
            self._pace(len(data))
            try:
                if not merge.add(stored.name, data):
                    break
            except DrainedFileError as error:
                log.error("damaged file not merged path=%s reason=%s", stored.entry.path, error)
                self._refused.add(stored.entry.path)
                return (self._built(group[:taken])[0] if taken > 1 else None), taken + 1
            taken += 1
        return merge.finish(), taken

    # ---- files that are replaced ----

    def _settle(self, merged: _Merged, others: Sequence[_Merged], now_s: float) -> bool:
        """Publish a merged file, and remove what it replaces. True if a name was changed."""
        if merged.final is None and self._is_redundant(merged, others):
            return self._remove(merged.staged)
        if merged.final is None or merged.replaced:
            footer = self._verified(merged)
            if footer is None:
                return False
            if merged.final is None and merged.staged is not None:
                self._store.publish(merged.staged.path, merged.path)
            names = set(replaced_names(merged.name, footer))
            # Others have some of its records again, for example after a `backfill`: they stay.
            self._refused.update(one.entry.path for one in merged.replaced if one.name not in names)
            removed = self._remove(*(one.entry for one in merged.replaced if one.name in names))
            return removed or merged.final is None
        if merged.staged is not None and now_s - merged.final.modified_s >= self._settings.merge_keep_s:
            return self._remove(merged.staged)
        return False

    def _is_redundant(self, merged: _Merged, others: Sequence[_Merged]) -> bool:
        """True if another merged file, of a second bridge of this edge, has all its records."""
        return any(
            other.covers(merged.name) and (other.final is not None or other.name > merged.name)
            for other in others
            if other is not merged
        )

    def _verified(self, merged: _Merged) -> FileFooter | None:
        """The footer of a merged file, all of which verifies; None: replaced files stay, for it does not."""
        entry = merged.final or merged.staged
        assert entry is not None
        data = self._store.read(entry.path)
        self._pace(len(data))
        try:
            return _verified_footer(merged.name, entry.path, data)
        except DrainedFileError as error:
            log.error("damaged merged file path=%s reason=%s", entry.path, error)
        ranges = union((one.name.first_offset, one.name.last_offset) for one in merged.replaced)
        if ranges == [(merged.name.first_offset, merged.name.last_offset)]:  # all files that it replaces
            self._remove(merged.staged, merged.final)
        return None

    def _remove(self, *entries: StoredEntry | None) -> bool:
        paths = [entry.path for entry in entries if entry is not None]
        self._store.remove(paths)
        self.totals.removed_files += len(paths)
        return bool(paths)

    def _pace(self, count: int) -> None:
        """Wait so long that `count` bytes stay within the rate."""
        self._stopping.wait(count / self._settings.merge_rate_bytes_s)


def _builder(stored: _Stored, bytes_max: int) -> FileMerge:
    if not is_parquet(stored.entry.path):
        return NativeMerge(bytes_max)
    from bridge.sinks.merged_parquet import ParquetMerge

    return ParquetMerge(bytes_max)


def _owner(merged: Sequence[_Merged], name: FileName) -> _Merged | None:
    """The merged file that replaces a file. `merged` is in the order of drain_seqs.

    A merged file has the highest drain_seq of the files that it replaces, and others of its lane have lower
    or higher ones. Offsets are not enough: after a `backfill` there are two files with the same.
    """
    at = bisect_left(merged, name.drain_seq, key=lambda one: one.name.drain_seq)
    return merged[at] if at < len(merged) and merged[at].covers(name) else None


def _groups(files: Iterable[_Stored]) -> Iterator[list[_Stored]]:
    """Files of one lane whose offsets follow each other in the order of drain_seqs."""
    group: list[_Stored] = []
    for stored in sorted(files, key=lambda stored: (stored.lane, stored.name.drain_seq)):
        follows = group and group[-1].name.last_offset + 1 == stored.name.first_offset
        if not follows or group[-1].lane != stored.lane:
            yield group
            group = []
        group.append(stored)
    yield group
