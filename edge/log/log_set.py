"""LogSet: the logs of a broker, and the log of each ring.

Owns each Log of the log directory, its thread while the broker runs, and the one reader over all of them.
`isolated` streams have a log for each ring; the other rings share [log] workers logs, by ring id
(persistence/read/directories.py has the names).

A start opens every existing log, also those without a current ring: they have records of rings that were
moved, and are read as before. Such a log has no thread, and its segments stay. If such a
log cannot be repaired, as on a read-only disk, it is only read.

Invariants: a ring continues after its last record in any log. A log that is needed and cannot be opened
prevents the start of the broker, because offsets could be given twice.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from edge.config.schema import Log as ConfigLog
from edge.config.schema import Stream
from edge.errors import EdgeError
from edge.log.log_status import TOTALS, read_status, sys_numbers, together
from edge.log.surviving_log import PATIENCE_S, SurvivingLog
from edge.logging_setup import pairs
from persistence import Log, LogError, LoggedRing, LogReader, LogThread, RingEnd
from persistence.durable_file import problem_of, remedy_of
from persistence.errors import is_process_limit
from persistence.files import OsFiles
from persistence.free_disk_space import DiskRules, floors, segment_bytes_for
from persistence.log.copied_rings import CopiedRing, CopiedRingsWriter
from persistence.log.recovery import recover
from persistence.read.directories import home, logs_in, may_have
from persistence.read.merged_reader import MergedReader
from persistence.segment.format import SEGMENT_SUFFIX
from ringbuf import Ring
from ringbuf.errors import RingError

log = logging.getLogger(__name__)

Status = dict[str, Any]

FULL = "the stream is full: retain_bytes (EDQUOT)"
WAIT_MAX_S, LOOK_S = 5.0, 0.001  # wait for synced records, at a start and before a session snapshot


class Placing(NamedTuple):
    """Distribution of rings over logs, and limits of each log."""

    workers: int
    segment_bytes: int
    retain_bytes: int
    direct: bool = True
    disk: DiskRules = DiskRules(101, 101, 101)


def has_segments(directory: Path) -> bool:
    """True if a log in the log directory has a segment."""
    return any(next(place.glob(f"*{SEGMENT_SUFFIX}"), None) for place in logs_in(directory))


class LogSet:
    """Use: open(), open the streams by ends(), start(), ..., stop(), close().

    `rings`: the name of each logged ring, and True if it has a separate log.
    """

    def __init__(self, directory: Path, placing: Placing) -> None:
        self.directory = directory
        self.placing = placing
        self.reader = MergedReader(self.readers_of)
        salvaging = MergedReader(lambda ring: [reader.salvaging() for reader in self.readers_of(ring)])
        self.at_start = SurvivingLog(self.reader, salvaging)
        self.for_clients = SurvivingLog(self.reader, salvaging, PATIENCE_S)
        # called when a log stops or resumes accepting records
        self.on_change: Callable[[], object] | None = None
        self._logs: dict[Path, Log] = {}
        self._only_read: dict[Path, LogReader] = {}  # logs without a ring, on a disk that takes no changes
        self._threads: dict[Path, LogThread] = {}
        self._ends: dict[str, RingEnd] = {}
        self._homes: dict[str, Path] = {}
        self._recovered: dict[Path, frozenset[str]] = {}  # rings that a start found in each log
        self._wake = -1
        self._adding, self._stopped = threading.Lock(), False
        self._blocking = threading.Lock()  # held while a thread gets its cause for blocking
        self._blocked: dict[Path, str] = {}
        self._on_durable: Callable[[], object] | None = None
        self.maintenance: Callable[[], Status] | None = None  # status of the maintenance, for status()
        self.on_log: Callable[[Log], object] | None = None  # called for logs that are opened later
        self._refused: Callable[[str], bool] = lambda _: False

    def open(self, rings: Mapping[str, bool]) -> None:
        """Recover every log that exists or is needed. Raises EdgeError."""
        for ring_name, isolated in rings.items():
            self._home(ring_name, isolated=isolated)
        for directory in dict.fromkeys([*logs_in(self.directory), *self._homes.values()]):
            if directory in self._homes.values() or directory.is_dir():
                self._open(directory)

    def ends(self) -> dict[str, RingEnd]:
        """End of each ring with logged records: the next record continues there."""
        return dict(self._ends)

    def end_of(self, ring_name: str) -> RingEnd | None:
        """End of one ring with logged records; None: the log has none of that ring."""
        return self._ends.get(ring_name)

    def start(
        self,
        sources: Iterable[tuple[LoggedRing, bool]],
        on_durable: Callable[[], object],
        wake_descriptor: int = -1,
        journal: LoggedRing | None = None,
    ) -> None:
        """Write these rings to their logs; each has True if it has a separate log. Raises EdgeError.

        `wake_descriptor`, an eventfd that is duplicated, is written instead of calling `on_durable` where
        Python is not needed. `journal`: the ring of the session journal, which has a separate log. The other
        logs begin when that log has the identifiers of the QoS 2 messages that the rings have from a killed
        broker: otherwise, after a power cut in between, a repetition would be stored as a new message.
        """
        self._wake = os.dup(wake_descriptor) if wake_descriptor >= 0 else -1
        self._on_durable = on_durable
        if journal is not None:
            self._start([(journal, True)], on_durable)
            end = journal.ring.extremes().end_position
            if journal.durability == "disk" and (lacking := self.wait({journal.ring: end})):
                text = "journal not synced, a power cut now may double QoS 2 messages; check the disk %s"
                log.warning(text, pairs(lacking=lacking))
        self._start(sources, on_durable)

    def _start(self, sources: Iterable[tuple[LoggedRing, bool]], on_durable: Callable[[], object]) -> None:
        by_home: dict[Path, list[LoggedRing]] = {}
        for source, isolated in sources:
            by_home.setdefault(self._home(source.ring.name, isolated=isolated), []).append(source)
        for directory, rings in by_home.items():
            try:
                self._run(directory, LogThread(self._logs[directory], rings, on_durable, self._wake))
            except LogError as error:
                raise EdgeError(f"log {directory}: {error}") from error

    def wait(self, ends: Mapping[Ring, int], look: Callable[[], object] = lambda: None) -> str:
        """Wait until the logs have the records below these positions. A failing disk ends the wait.

        Returns "", or the rings whose log lacks records and the reason. `look` is called before each look at
        the positions.
        """
        deadline_s = time.monotonic() + WAIT_MAX_S
        while True:
            look()
            left = [ring.name for ring, end in ends.items() if _lags(ring, end)]
            if not left:
                return ""
            reason = next(filter(None, map(self.failure_of, left)), "")
            if not reason and time.monotonic() > deadline_s:
                reason = f"not synced in {WAIT_MAX_S:.0f} s"
            if reason:
                return f"{', '.join(left)}: {reason}"
            time.sleep(LOOK_S)

    def add_ring(self, ring: Ring, stream: Stream) -> None:
        """Log a ring of an added stream. Must be called before its first record.

        For any thread. Raises EdgeError.
        """
        with self._adding:  # no thread may start after stop()
            if self._stopped:
                raise EdgeError("the logs are closed", hint="start the broker again")
            directory = self._opened(ring.name, isolated=stream.isolated)
            thread = self._threads.get(directory)
            try:
                if thread is None:
                    rings = [logged_ring(ring, stream)]
                    log_thread = LogThread(self._logs[directory], rings, self._on_durable, self._wake)
                    self._run(directory, log_thread)
                else:
                    thread.add(logged_ring(ring, stream))
            except (LogError, RingError) as error:
                raise EdgeError(f"log {directory}: {error}") from error

    def remove_ring(self, ring_name: str) -> None:
        """Undo add_ring() for a ring without records. Its log stays open. For any thread."""
        if (thread := self._threads.get(self._homes.pop(ring_name, Path()))) is not None:
            with suppress(LogError):  # the thread of the log has ended: it logs no ring
                thread.remove(ring_name)

    def add_producer_ring(self, ring: Ring, stream: Stream) -> None:
        """Log a ring of a logged stream that another process writes. Raises EdgeError.

        Its writer waits for the log if the stream promises every record; otherwise records may be lost, which
        is counted.
        """
        with self._adding:  # no thread may start after stop()
            if self._stopped:
                raise EdgeError("the logs are closed", hint="start the broker again")
            directory = self._opened(ring.name, isolated=stream.isolated)
            copied = CopiedRing(ring, blocks_writer=stream.when_full != "overwrite").logged(
                logged_ring(ring, stream)
            )
            try:
                thread = self._threads.get(directory)
                if thread is None:
                    opened = self._logs[directory]
                    self._run(directory, LogThread(opened, [copied], writer=CopiedRingsWriter(opened)))
                else:
                    thread.add(copied)
            except (LogError, RingError) as error:
                raise EdgeError(f"log {directory}: {error}") from error

    def stop(self) -> None:
        """Sync the records of the rings, and end the threads. May be called twice."""
        with self._adding:
            self._stopped = True
        while self._threads:
            *rest, (_, thread) = self._threads.items()
            self._threads = dict(rest)  # other threads may iterate over the table
            if not thread.stop():
                text = "the log could not be synced; the rings keep the missing records %s"
                log.error(
                    text, pairs(directory=thread.writer.log.directory, reason=thread.writer.state.reason)
                )
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def close(self) -> None:
        """Close the logs, after stop(). May be called twice."""
        while self._logs:
            *rest, (_, ring_log) = self._logs.items()
            self._logs = dict(rest)  # other threads may iterate over the table
            ring_log.close()

    # ---- by ring ----

    def log_of(self, ring_name: str) -> Log:
        """The log of a ring. Raises KeyError if the ring is not logged."""
        return self._logs[self._homes[ring_name]]

    def readers_of(self, ring_name: str) -> list[LogReader]:
        """Readers of all logs that may have records of the ring; the log it is written to first."""
        opened = {directory: ring_log.reader for directory, ring_log in self._logs.items()}
        readers = self._only_read | opened  # a reload may open a log for writing later
        directories = [
            reader
            for directory, reader in readers.items()
            if may_have(self.directory, directory, ring_name) or ring_name in self._recovered[directory]
        ]
        own = self._homes.get(ring_name)
        if own is not None:
            directories.sort(key=lambda reader: reader is not self._logs[own].reader)
        return directories

    def logs(self) -> list[Log]:
        """All logs."""
        return list(self._logs.values())

    def failure_of(self, ring_name: str) -> str:
        """Reason why the log of a ring accepts no records; "" if it does, or the ring is not logged."""
        thread = self._threads.get(self._homes.get(ring_name, Path()))
        if thread is None:
            return ""
        if thread.writer.state.read_only:
            return thread.writer.state.reason
        if ring_name in thread.writer.broken:
            return f"the ring is damaged: {thread.writer.broken[ring_name]}"
        return FULL if self._refused(ring_name) else ""

    def refuse(self, refused: Callable[[str], bool]) -> None:
        """Refuse records of the rings for which `refused` returns True, from now on; from any thread."""
        self._refused = refused
        self._changed()

    def set_removed(self, missing: Mapping[str, str]) -> None:
        """Set reasons for logs whose files were removed, by log directory; from any thread."""
        for directory, thread in list(self._threads.items()):
            thread.set_removed(missing.get(str(directory), ""))

    def block(self, directory: str, reason: str) -> None:
        """Set the cause for which a log takes no records, also one without a thread yet; "" unblocks.

        From any thread.
        """
        with self._blocking:
            self._blocked[Path(directory)] = reason
            if (thread := self.thread_in(directory)) is not None:
                thread.block(reason)

    def thread_in(self, directory: str) -> LogThread | None:
        """The thread of the log in that directory; None if it has none."""
        return self._threads.get(Path(directory))

    def state(self) -> str:
        """Text for $SYS: the first log that accepts no records, with the reason."""
        for directory, thread in self._threads.items():
            if thread.writer.state.read_only:
                return f"{directory} takes no records: {thread.writer.state.reason}"
        return "takes records"

    def status(self) -> Status:
        """For `brim status`: all logs together, and each under `logs` if there are several.

        Reads every file name of the log directory: not for the event loop.
        """
        each = [
            {"directory": str(directory), **thread.status()} for directory, thread in self._threads.items()
        ]
        maintenance = self.maintenance() if self.maintenance is not None else None
        status = read_status(self.directory, [ring_log.reader.stats for ring_log in self.logs()])
        return {**together(each), **status, "maintenance": maintenance}

    def numbers(self) -> dict[str, int]:
        """Some figures for $SYS, without file access."""
        return sys_numbers([thread.status() for thread in self._threads.values()])

    def totals(self) -> dict[str, int]:
        """Totals of all logs: written records and bytes, number of syncs."""
        stats = [ring_log.stats for ring_log in self.logs()]
        return {name: sum(getattr(one, name) for one in stats) for name in TOTALS}

    # ---- inside ----

    def _run(self, directory: Path, thread: LogThread) -> None:
        """Start the thread of a log. The table is replaced, because other threads may read it."""
        thread.writer.state.on_change = self._changed
        thread.start()
        with self._blocking:
            self._threads = {**self._threads, directory: thread}
            if reason := self._blocked.get(directory):
                thread.block(reason)

    def _opened(self, ring_name: str, *, isolated: bool) -> Path:
        """Directory of a ring's log. Opens the log if it is not open."""
        directory = self._home(ring_name, isolated=isolated)
        if directory not in self._logs:
            self._open(directory)
            if self.on_log is not None:
                self.on_log(self._logs[directory])
        return directory

    def _home(self, ring_name: str, *, isolated: bool) -> Path:
        directory = home(self.directory, ring_name, isolated=isolated, workers=self.placing.workers)
        return self._homes.setdefault(ring_name, directory)

    def _open(self, directory: Path) -> None:
        try:
            opened = self._log_in(directory)
        except OSError as error:
            raise _unusable(directory, error) from error
        try:
            report = opened.recover()
        except (LogError, OSError) as error:
            opened.close()
            if isinstance(error, OSError) and directory not in self._homes.values():
                self._open_only_read(directory, error)
                return
            raise _unusable(directory, error) from error
        self._recovered[directory] = frozenset(report.rings)
        self._logs = {**self._logs, directory: opened}  # other threads may read the table
        details = {"segments": report.segments, "rings": len(report.rings), "damaged": len(report.damage)}
        log.info("log recovered %s", pairs(**details, directory=directory))
        if foreign := sorted(name for name in report.rings if not may_have(self.directory, directory, name)):
            text = "log of one ring has records of others, which are read; check the mounts of its disk %s"
            log.warning(text, pairs(directory=directory, rings=",".join(foreign)))
        self._add_ends(report.rings)

    def _open_only_read(self, directory: Path, error: OSError) -> None:
        """Read the records of a log that cannot be recovered, and that no ring needs. Raises EdgeError."""
        try:
            recovered = recover(OsFiles(), str(directory), changes=False)
        except OSError as unreadable:
            raise _unusable(directory, unreadable) from unreadable
        ends = {entry.name: RingEnd(entry.epoch, entry.next_offset) for entry in recovered.catalogue.values()}
        self._recovered[directory] = frozenset(ends)
        self._only_read[directory] = recovered.reader
        details = {"rings": len(ends), "damaged": len(recovered.damage), "reason": problem_of(error)}
        text = "log without a stream is only read, because it cannot be repaired; check its disk %s"
        log.warning(text, pairs(directory=directory, **details))
        self._add_ends(ends)

    def _add_ends(self, ends: Mapping[str, RingEnd]) -> None:
        for name, end in ends.items():
            self._ends[name] = max(end, self._ends.get(name, end))
        for ring_log in self._logs.values():
            ring_log.set_other_ends(self._ends)

    def _log_in(self, directory: Path) -> Log:
        """Open one log. Raises OSError: the directory cannot be created."""
        files, placing = OsFiles(), self.placing
        files.makedirs(str(directory))
        segment_bytes = segment_bytes_for(files, str(directory), placing.segment_bytes)
        if segment_bytes < placing.segment_bytes:
            sizes = pairs(segment_bytes=segment_bytes, configured=placing.segment_bytes, directory=directory)
            log.info("segments are smaller on a small disk %s", sizes)
        opened = Log(
            directory,
            files,
            worker=len(self._logs),
            segment_bytes=segment_bytes,
            retain_bytes=placing.retain_bytes,
            direct=placing.direct,
        )
        opened.floor = lambda total_bytes: floors(placing.disk, total_bytes, segment_bytes).read_only
        return opened

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()


def _unusable(directory: Path, error: LogError | OSError) -> EdgeError:
    """Error for a log that cannot be opened."""
    if isinstance(error, OSError) and not is_process_limit(error):
        hint = f"{remedy_of(error)}, or set another [log] directory"
        return EdgeError(f"log {directory}: {problem_of(error)}", hint=hint)
    return EdgeError(f"log {directory}: {error}", hint="see [log] directory")


def disk_rules(log: ConfigLog) -> DiskRules:
    """Disk limits from [log]."""
    return DiskRules(log.disk_warn_percent, log.disk_delete_percent, log.disk_read_only_percent)


def logged_ring(ring: Ring, stream: Stream) -> LoggedRing:
    """A ring of `stream`, with its options for the log."""
    return LoggedRing(ring, stream.durability.sync_mode, stream.sync_interval_ms, stream.synced_after_bytes)


def _lags(ring: Ring, end_position: int) -> bool:
    """True if the log lacks records of the ring below this position."""
    return ring.extremes().durable_position < end_position
