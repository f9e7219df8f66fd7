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

Owns the order of these steps, and the thread; closed_day.py lists the files. Bounded: one merged file at a
time, with about three times merge_bytes in memory, and merge_rate_bytes_s to and from the store.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from bridge.drain.clock import SYSTEM, DrainClock
from bridge.drain.closed_day import ClosedDay, Merged, Stored, groups
from bridge.drain.settings import BridgeSettings
from bridge.errors import BridgeError, DrainedFileError
from bridge.format.drained_file import FileFooter
from bridge.format.file_builder import DrainedFile
from bridge.format.merged_file import replaced_names
from bridge.rangeset import union
from bridge.sinks.interface import MergingStore, StoredEntry
from bridge.sinks.merging import merge_of, verified_footer

log = logging.getLogger(__name__)

PASS_S = 300.0  # time between two passes over the closed days
SMALL_SHARE = 2  # a file above this part of merge_bytes stays


@dataclass(slots=True)
class MergeTotals:
    """Totals of this merger since it began."""

    merged_files: int = 0  # files that were merged into others
    written_files: int = 0  # merged files
    removed_files: int = 0
    failed: bool = False  # the last pass has failed
    error: str = ""  # its error and remedy


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
        settings = self._settings
        closed = ClosedDay(self._store, settings.edge_id, day, now_s, settings.merge_keep_s)
        small = closed.small(settings.merge_bytes // SMALL_SHARE, self._drained_to(), self._refused)
        progress = False
        for one in closed.merged:
            if one.is_due and (one.replaced or not one.waits) and not self._stopping.is_set():
                progress |= self._settle(one, closed, now_s)
        for group in groups(small):
            progress |= self._merge(group)
        if progress:
            return 0.0
        ages_s = [one.entry.age_s(now_s) for one in closed.merged if one.waits or one.staged]
        return min((max(settings.merge_keep_s - age_s, PASS_S) for age_s in ages_s), default=math.inf)

    # ---- files that are merged ----

    def _merge(self, group: Sequence[Stored]) -> bool:
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

    def _built(self, group: Sequence[Stored]) -> tuple[DrainedFile | None, int]:
        """The merged file of the first files of a group, and the number of files that are done."""
        merge = merge_of(group[0].entry.path, self._settings.merge_bytes)
        taken = 0
        for stored in group:
            if self._stopping.is_set():
                return None, len(group)
            try:
                data = self._store.read(stored.entry.path)
                self._pace(len(data))
                if not merge.add(stored.name, data):
                    break
            except DrainedFileError as error:
                log.error("damaged file not merged path=%s reason=%s", stored.entry.path, error)
                self._refused.add(stored.entry.path)
                return (self._built(group[:taken])[0] if taken > 1 else None), taken + 1
            taken += 1
        return merge.finish(), taken

    # ---- files that are replaced ----

    def _settle(self, merged: Merged, day: ClosedDay, now_s: float) -> bool:
        """Publish a merged file, and remove what it replaces. True if a name was changed."""
        if merged.final is None and day.has_twin(merged):
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
        if merged.staged is not None and merged.final.age_s(now_s) >= self._settings.merge_keep_s:
            return self._remove(merged.staged)
        return False

    def _verified(self, merged: Merged) -> FileFooter | None:
        """The footer of a merged file that is intact; None: it is not, and the replaced files stay."""
        path = merged.entry.path
        try:
            data = self._store.read(path)
            self._pace(len(data))
            return verified_footer(merged.name, path, data)
        except DrainedFileError as error:
            log.error("damaged merged file path=%s reason=%s", path, error)
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
