"""Log maintenance: removal by size and age, compression, and periodic verification.

    for each log, repeatedly:  end an old active segment -> check the disk -> remove the oldest segments
                               -> archive the next -> verify the next

Maintenance has no thread and no clock of its own: step() does a small part and returns the time of the next
call; MaintenanceThread runs it for all logs of a broker.  A Worker (background_process.py) does long work,
one job at a time for all logs.

Segments are removed from the oldest on, one per step.  The last segment stays: it has the end of the log.

States, all visible on the disk: active, the last segment; sealed, complete and synced; flushed, with its
footer; archived, with an archive but no segment; deleted, neither.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from persistence.archive import Archived
from persistence.archive import load as load_archives
from persistence.errors import ArchiveUnavailable, LogError, NoDiskRoom, is_process_limit
from persistence.free_disk_space import DiskRules, DiskStep, disk_step, floors
from persistence.log.log import Log
from persistence.maintenance.background_process import Job, TaskFailed, Worker
from persistence.maintenance.removal_warnings import RemovalWarnings
from persistence.maintenance.retention_rules import Floor, Removal, Retention, StreamRules
from persistence.maintenance.scrub import ScrubOrder, ScrubResult
from persistence.maintenance.segment_ages import DOUBTED_NS, SegmentAges
from persistence.segment.format import segment_name
from persistence.segment.segment_info import SegmentInfo

log = logging.getLogger(__name__)

LOOK_S = 5.0  # between two checks when idle
DELETE_PAUSE_S = 1.0  # between two removals, which keep the file system busy
FORCED_PAUSE_S = 0.05  # at the log's cap, or with a nearly full disk: faster than any disk writes
WORK_LOOK_S = 0.2  # between two checks of the worker
TRY_AGAIN_S = 60.0  # after a failed job
HELD_UP_S = 60.0  # longest time for which a job keeps a segment that the log's cap removes
RELEASE_BYTES = 4 << 20  # of log, per release of the page cache
CACHE_KEPT_S = 60.0  # of decompressed data after the last read


class MaintenanceRules(NamedTuple):
    """Rules for keeping and maintaining a log."""

    retain_bytes: int = 4 << 30  # total of all files; 0 keeps everything
    retain_s: int = 0  # for streams without rules of their own; 0: no limit
    segment_age_s: int = 0  # time after which a segment is ended; 0: only when it is full
    archive: bool = False
    disk: DiskRules = DiskRules()
    scrub_bytes_per_s: int = 8 << 20  # 0: never
    scrub_interval_s: int = 7 * 86_400


class Clock(Protocol):
    """Wall clock and monotonic clock."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970."""

    def monotonic_s(self) -> float:
        """Seconds since an unspecified start."""


class SystemClock:
    """The machine's clocks."""

    def wall_ns(self) -> int:
        """See Clock."""
        return time.time_ns()

    def monotonic_s(self) -> float:
        """See Clock."""
        return time.monotonic()


@dataclass
class MaintenanceStats:
    """Counters since the start."""

    archived: int = 0  # segments
    archived_from_bytes: int = 0
    archived_to_bytes: int = 0
    deleted: int = 0  # segments and archives, by rules or forced
    deleted_bytes: int = 0


def _no_floors(ring_name: str) -> Iterable[Floor]:
    del ring_name
    return ()


class Maintenance:
    """Maintenance of one log.

    `stream_of`: returns the rules of a ring's stream.  `floors`: returns the consumers that still need
    records of a ring.  Both are called often, on the thread of step().  `on_full`: called with the streams
    that accept no more records (discard = "new"), after each change.  `roll`: ends the active segment.
    `block`: sets the cause for blocking writes, "" for none.  Both run on the log's thread, or safely with it
    (LogThread).
    """

    def __init__(
        self,
        ring_log: Log,
        rules: MaintenanceRules,
        worker: Worker,
        *,
        stream_of: Callable[[str], StreamRules] = StreamRules,
        floors: Callable[[str], Iterable[Floor]] = _no_floors,
        on_full: Callable[[set[str]], object] = lambda _: None,
        roll: Callable[[], object] | None = None,
        block: Callable[[str], object] = lambda _: None,
        clock: Clock | None = None,
    ) -> None:
        self.log = ring_log
        self.rules = rules
        self.stats = MaintenanceStats()
        self.step_of_disk: DiskStep = "ok"
        self.full: set[str] = set()
        self.forced_records: Counter[str] = Counter()  # records removed against the rules, by stream
        self.lost: Counter[str] = Counter()  # records removed unread, by consumer
        self.refused: dict[int, str] = {}  # segments that cannot be archived, with the cause
        self._failed_bases: set[int] = set()  # segments that could not be archived: after the others
        self.trouble = ""  # cause of the last failed job
        self.turns = ScrubOrder(rules.scrub_interval_s)
        self._warnings = RemovalWarnings()
        self._worker = worker
        self._job: Job | None = None
        self._on_full = on_full
        self._roll = roll or ring_log.roll
        self._block = block
        self._clock = clock or SystemClock()
        self._infos: dict[int, SegmentInfo] = {}  # of segments that do not change
        self._indexed: queue.SimpleQueue[int] = queue.SimpleQueue()  # these have changed: they got footers
        ring_log.on_indexed.append(self._indexed.put)
        self._released_position = ring_log.durable_position  # up to here the page cache was released
        self._seen: list[SegmentInfo] = []
        self._ages = SegmentAges()
        self._warned_of_clock = False
        self._retention = Retention(
            rules.retain_bytes, rules.retain_s, ring_log.segment_bytes, stream_of, floors
        )
        self._not_before_s = 0.0  # earliest time of the next job
        self._began_s = 0.0  # time at which the current job began
        self._reads, self._read_at_s = 0, 0.0
        self._passed = 0.0, 0  # time at which the next pass is due, segments at the last one
        self._bytes: dict[str, int] = {}
        self._pass_ended_ns: int | None = None  # wall-clock time
        self._archives = rules.archive
        if rules.archive or ring_log.reader.archive.bases():
            try:
                load_archives()  # now: later it would hold up the threads of a broker under load
            except ArchiveUnavailable as error:
                log.error("archives unavailable directory=%s reason=%s", ring_log.directory, error)
                self._archives, self.trouble = False, str(error)

    @property
    def busy(self) -> bool:
        """True if the worker has a job of this log."""
        return self._job is not None

    def step(self, *, may_begin: bool = True) -> float:
        """Do a small part of each task.  Returns the seconds until the next call.

        `may_begin`: True if the worker is free.  Raises OSError: a segment could not be removed.
        """
        now_s = self._clock.monotonic_s()
        for task in (self._look_at_disk, self._roll_old_segment, self._release_cache):
            self._attempt(task)
        if self._waits_for_worker(now_s):
            self._take_result(now_s)
            if self._job is not None:
                return WORK_LOOK_S
        segments = self.segments()
        pause_s = self._retain(segments)
        self._warnings.write(now_s)
        self._take_result(now_s)
        if may_begin and self._job is None and now_s >= self._not_before_s:
            self._begin(self.segments(), now_s)
        self._forget_decompressed(now_s)
        self._passed = now_s + pause_s, len(self.log.reader.bases())
        return min(pause_s, WORK_LOOK_S if self._job is not None else LOOK_S)

    def _waits_for_worker(self, now_s: float) -> bool:
        """True if only the worker needs a look: no pass over the segments is due, and none was sealed."""
        due_s, segments = self._passed
        if self._job is None or now_s >= due_s or self.full or self.step_of_disk in {"delete", "read_only"}:
            return False  # full streams wait for their consumers
        return len(self.log.reader.bases()) == segments

    def _attempt(self, task: Callable[[], object]) -> None:
        """Run a task whose failure must not stop the removal of segments."""
        try:
            task()
        except (LogError, OSError) as error:
            self._warnings.failed(self.log.directory, error)

    def segments(self) -> list[SegmentInfo]:
        """Archives and segments, rising, the active one last."""
        bases = set(self.log.reader.bases())
        archive = self.log.reader.archive
        while not self._indexed.empty():
            self._infos.pop(self._indexed.get(), None)
        segments: list[SegmentInfo] = []
        for base in sorted({*bases, *archive.bases()}):
            known = self._infos.get(base)
            if known is None or (known.state == "archived") != (base not in bases):
                known = self._read_info(base, is_archived=base not in bases)
            if known is None:
                reason = archive.unreadable.get(base, "it has been removed")
                known = SegmentInfo(base, 0, 0, "lost", 0, 0, (), (), reason=reason)
            elif known.state != "active":
                self._infos[base] = known
            segments.append(known)
        for base in set(self._infos) - {segment.base for segment in segments}:
            del self._infos[base]
        self._seen = segments
        return segments

    def _read_info(self, base: int, *, is_archived: bool) -> SegmentInfo | None:
        """Facts of an archive or a segment; "lost" while the disk does not return them."""
        reader = self.log.reader
        try:
            return reader.archive.info(base) if is_archived else reader.segment(base)
        except OSError as error:
            if is_process_limit(error):
                raise  # the segment may be intact, and a consumer may need it
            self._warnings.failed(self.log.directory, error)
            size = self.log.sealed().get(base, 0)
            return SegmentInfo(base, size, size, "lost", 0, 0, (), (), reason=str(error))

    def close(self) -> None:
        """Forget the current job; the worker stops it."""
        self._job = None
        self._warnings.end()

    # ---- the disk ----

    def _look_at_disk(self) -> None:
        free_bytes, total_bytes = self.log.files.disk(self.log.directory)
        step = disk_step(self.rules.disk, free_bytes, total_bytes, self.log.segment_bytes)
        before, self.step_of_disk = self.step_of_disk, step
        if self.step_of_disk == before:
            return
        if "read_only" in {before, self.step_of_disk}:
            full = self.step_of_disk == "read_only"
            floor = floors(self.rules.disk, total_bytes, self.log.segment_bytes).read_only
            self._block(str(NoDiskRoom(floor)) if full else "")
        log_line = log.info if self.step_of_disk == "ok" else log.warning
        log_line(
            "room on the disk directory=%s step=%s free_bytes=%d",
            self.log.directory,
            self.step_of_disk,
            free_bytes,
        )

    def _roll_old_segment(self) -> None:
        began_ns = self.log.active_since_ns
        if not self.rules.segment_age_s or began_ns is None:
            return
        # With abs(): a clock that was set back by more than that would keep the segment for as long.
        if abs(self._clock.wall_ns() - began_ns) >= self.rules.segment_age_s * 1_000_000_000:
            self._roll()

    def _release_cache(self) -> None:
        """Release the page cache of durable bytes.

        Late readers get them from the disk, and other programs need the memory.
        """
        position = self.log.durable_position
        bases = self.log.reader.bases()
        if position < self._released_position + RELEASE_BYTES or not bases:
            return
        news = [base for base, after in pairwise([*bases, position + 1]) if after > self._released_position]
        self._released_position = position
        for base in news:
            with suppress(OSError):
                handle = self.log.files.open(os.path.join(self.log.directory, segment_name(base)))
                try:
                    self.log.files.advise(handle, 0, 0, "done")
                finally:
                    self.log.files.close(handle)

    # ---- retention ----

    def _retain(self, segments: Sequence[SegmentInfo]) -> float:
        """Remove the oldest segment if permitted.  Returns the seconds until the next removal."""
        forced = self.step_of_disk in {"delete", "read_only"}
        wall_ns, monotonic_ns = self._clock.wall_ns(), int(self._clock.monotonic_s() * 1e9)
        dated = self._ages.dated(segments, wall_ns, monotonic_ns)
        removal = self._retention.next(dated, wall_ns, forced=forced)
        if removal is None and self._ages.ahead_ns:
            self._warn_of_clock(segments, wall_ns)
        if removal is not None and removal.forced and self._is_worked_on(removal.base):
            held_up_s = self._clock.monotonic_s() - self._began_s
            if forced or held_up_s > HELD_UP_S:
                self._give_up_work()
        if removal is not None and not self._is_worked_on(removal.base):
            self._remove(removal, segments[0].file_bytes)
            segments = segments[1:]
        full = self._retention.full(segments)
        self._bytes = dict(self._retention.bytes_of(segments))
        if full != self.full:
            self.full = full
            self._on_full(full)
        if removal is None:
            return LOOK_S
        return FORCED_PAUSE_S if removal.forced else DELETE_PAUSE_S

    def _warn_of_clock(self, segments: Sequence[SegmentInfo], wall_ns: int) -> None:
        """Report once that segments stay because the clock is doubted."""
        if self._warned_of_clock or self._retention.next(segments, wall_ns) is None:
            return
        self._warned_of_clock = True
        log.warning(
            "log too old for its retention at the start, removal by age begins in %d s; set the clock of the "
            "machine if it is ahead directory=%s newest_record_days=%d",
            DOUBTED_NS // 1_000_000_000,
            self.log.directory,
            self._ages.ahead_ns // (86_400 * 1_000_000_000),
        )

    def _is_worked_on(self, base: int) -> bool:
        return self._job is not None and self._job.base == base

    def _give_up_work(self) -> None:
        """Stop the job in progress: it may take very long, or its process may be stopped."""
        job, self._job = self._job, None
        self._worker.close()
        if job is not None and job.kind != "archive":
            self.turns.skip(job.base)

    def _remove(self, removal: Removal, file_bytes: int) -> None:
        # Also next to a segment: a job that was given up may have completed an archive that no reader knows.
        self.log.reader.archive.remove(removal.base)
        if removal.archived:
            self.log.files.dirsync(self.log.directory)
        else:
            self.log.remove(removal.base)
        self.stats.deleted += 1
        self.stats.deleted_bytes += file_bytes
        self.refused.pop(removal.base, None)
        for stream, records in removal.forced_records.items():
            self.forced_records[stream] += records
        for loss in removal.losses:
            self.lost[loss.consumer] += loss.records
        self._warnings.add(removal)

    # ---- archiving and scrubbing ----

    def _begin(self, segments: Sequence[SegmentInfo], now_s: float) -> None:
        job = self._archive_next(segments) or self._scrub_next(segments, now_s)
        if job is None:
            return
        try:
            self._worker.start(job)
        except OSError as error:
            self._failed(TaskFailed("later", str(error)), now_s)
        else:
            self._job, self._began_s = job, now_s

    def _archive_next(self, segments: Sequence[SegmentInfo]) -> Job | None:
        """Job for the oldest segment that can be archived, except the last one; or None.

        Segments that have failed come last: one that the disk cannot read must not stop the others.
        """
        if not self._archives or not self.log.has_room(self.log.segment_bytes):
            return None
        sealed = {
            segment.base: following.base
            for segment, following in pairwise(segments)
            if segment.state in {"sealed", "flushed"} and segment.base not in self.refused
        }
        if self._failed_bases.issuperset(sealed):
            self._failed_bases.clear()
        base = next((base for base in sealed if base not in self._failed_bases), None)
        return None if base is None else Job("archive", self.log.directory, base, sealed[base] - base)

    def _scrub_next(self, segments: Sequence[SegmentInfo], now_s: float) -> Job | None:
        if not self.rules.scrub_bytes_per_s:
            return None
        whole = {segment.base: (segment, after.base) for segment, after in pairwise(segments)}
        passes = self.turns.passes
        base = self.turns.next(sorted(whole), now_s)
        if self.turns.passes > passes:
            self._pass_ended_ns = self._clock.wall_ns()
        if base is None:
            return None
        segment, end = whole[base]
        rate = self.rules.scrub_bytes_per_s
        if segment.state == "archived":
            return Job("scrub_archive", self.log.directory, base, 0, rate)
        return Job("scrub_segment", self.log.directory, base, end - base, rate)

    def _take_result(self, now_s: float) -> None:
        if self._job is None or (result := self._worker.result()) is None:
            return
        job, self._job = self._job, None
        if isinstance(result, Archived):
            self._archived(result)
            return
        if self._is_gone(job):
            self.turns.skip(job.base)
            return
        if isinstance(result, ScrubResult):
            self._scrubbed(result)
            return
        if job.kind != "archive":
            self.turns.skip(job.base)
        elif result.kind == "never":
            self.refused[job.base] = result.reason
        else:
            self._failed_bases.add(job.base)
        self._failed(result, now_s)

    def _is_gone(self, job: Job) -> bool:
        """True if retention has removed the file of the job: it may be reused for another segment."""
        reader = self.log.reader
        return job.base not in (reader.archive.bases() if job.kind == "scrub_archive" else reader.bases())

    def _archived(self, result: Archived) -> None:
        """Remove the segment of a new archive that was verified."""
        self.log.reader.archive.add(result.base)
        if (
            result.base not in self.log.reader.archive.bases()
            or self.log.reader.archive.info(result.base) is None
        ):
            self._failed_bases.add(result.base)
            self._failed(
                TaskFailed("later", "an archive that was made cannot be read"), self._clock.monotonic_s()
            )
            return
        self.log.remove(result.base)
        self._infos.pop(result.base, None)
        self.stats.archived += 1
        self.stats.archived_from_bytes += result.segment_bytes
        self.stats.archived_to_bytes += result.archive_bytes
        self.trouble = ""

    def _scrubbed(self, result: ScrubResult) -> None:
        self.turns.done(result)
        if result.archived:
            self.log.reader.archive.add_damage(result.base, result.parts)
        else:
            self.log.reader.tables.add_damage(result.places)
        if result.places or result.parts:
            log.error(
                "log damage found directory=%s base=%d archived=%s places=%d",
                self.log.directory,
                result.base,
                result.archived,
                len(result.places) + len(result.parts),
            )

    def _failed(self, failure: TaskFailed, now_s: float) -> None:
        if failure.reason != self.trouble:
            log.warning("log maintenance failed directory=%s reason=%s", self.log.directory, failure.reason)
        self.trouble = failure.reason
        self._not_before_s = now_s + (0 if failure.kind == "never" else TRY_AGAIN_S)

    def _forget_decompressed(self, now_s: float) -> None:
        archive = self.log.reader.archive
        if archive.reads != self._reads:
            self._reads, self._read_at_s = archive.reads, now_s
        elif now_s - self._read_at_s > CACHE_KEPT_S:
            archive.forget()
            self._read_at_s = now_s

    # ---- status ----

    def status(self) -> dict[str, object]:
        """Status for `brim status`; from any thread."""
        segments = self._seen
        free_bytes = total_bytes = 0
        with suppress(OSError):  # the directory is missing, which the log itself reports
            free_bytes, total_bytes = self.log.files.disk(self.log.directory)
        stats, turns = self.stats, self.turns
        by_state: Counter[str] = Counter()
        for segment in segments:
            by_state[segment.state] += segment.file_bytes
        plain = sum(segment.bytes for segment in segments if segment.state == "archived")
        return {
            "disk": {"step": self.step_of_disk, "free_bytes": free_bytes, "total_bytes": total_bytes},
            "bytes_by_state": dict(by_state),
            "bytes_by_stream": dict(self._bytes),
            "archive": {
                "segments": stats.archived,
                "from_bytes": stats.archived_from_bytes,
                "to_bytes": stats.archived_to_bytes,
                "plain_bytes": plain,
                "ratio": round(plain / by_state["archived"], 2) if by_state["archived"] else 0.0,
                "refused": len(self.refused),
                "reads": self.log.reader.archive.reads,
                "damaged": self.log.reader.archive.damaged_places,
            },
            "scrub": {
                "passes": turns.passes,
                "last_pass_s": turns.last_pass_s,
                "ended_ns": self._pass_ended_ns,
                "under_way": turns.pass_began_s is not None,
                "read_bytes": turns.read_bytes,
                "damaged": turns.damaged,
            },
            "deleted": {"segments": stats.deleted, "bytes": stats.deleted_bytes},
            "forced_records": dict(self.forced_records),
            "unread_records": dict(self.lost),
            "full_streams": sorted(self.full),
            "trouble": self.trouble,
        }


class MaintenanceThread:
    """Thread for the maintenance of several logs, with one worker for all."""

    def __init__(self, maintenances: Sequence[Maintenance], worker: Worker | None = None) -> None:
        self._maintained = maintenances  # may grow
        self._worker = worker
        self._wake = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="brim-log-maintenance")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wake(self) -> None:
        """Run soon: a segment was sealed, or a consumer has advanced."""
        self._wake.set()

    def stop(self) -> None:
        """Stop the thread and the worker's job.  Before the logs are closed."""
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._worker is not None:
            self._worker.close()

    def _run(self) -> None:
        while True:
            self._wake.clear()
            if self._stopping:
                return
            pause_s = LOOK_S
            for maintenance in list(self._maintained):
                others = any(other.busy for other in self._maintained if other is not maintenance)
                try:
                    pause_s = min(pause_s, maintenance.step(may_begin=not others))
                except (LogError, OSError) as error:
                    log.warning(
                        "log maintenance failed directory=%s reason=%s", maintenance.log.directory, error
                    )
                except Exception:  # a bug must not stop the removal of segments
                    log.exception("log maintenance failed directory=%s", maintenance.log.directory)
            self._wake.wait(pause_s)
