"""LogSet: the logs of a broker, and which of them a ring's records go to.

Owns each Log of the log directory, its thread while the broker runs, and the one reader over all of them.
Streams that are `isolated` have a log for each ring; the other rings share [log] workers logs, by ring id
(persistence/placement.py has the names).

A start opens every log that is there, also those that no ring is written to any more: their records belong to
rings that were moved, and are read as before.  A log like that has no thread, and its segments stay.

Invariants: a ring goes on where the last of all logs says it ends; a log that cannot be opened keeps the
broker from starting, since offsets might be given twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from edge.config import Log as ConfigLog
from edge.config import Stream
from edge.errors import EdgeError
from edge.log_status import TOTALS, log_facts, sys_numbers, together
from edge.logs import pairs
from persistence import Log, LogError, LogReader, LogThread, RingEnd, Source
from persistence.files import OsFiles
from persistence.foreign import CopiedRing, ForeignWriter
from persistence.free_room import DiskRules, floors, segment_bytes_for
from persistence.merged import MergedReader
from persistence.placement import home, is_shared, logs_in
from ringbuf import Ring
from ringbuf.errors import RingError

__all__ = ["LogSet", "Placing", "disk_rules", "log_source"]

log = logging.getLogger(__name__)

Status = dict[str, Any]

FULL = "the stream is full: retain_bytes (EDQUOT)"


class Placing(NamedTuple):
    """How rings are spread over logs, and what each log keeps."""

    workers: int
    segment_bytes: int
    retain_bytes: int
    direct: bool = True
    disk: DiskRules = DiskRules(101, 101, 101)


class LogSet:
    """Use: open(), streams are opened by ends(), start(), ..., stop(), close().

    `rings`: the name of each ring that is logged, and whether it has a log of its own.
    """

    def __init__(self, directory: Path, placing: Placing) -> None:
        self.directory = directory
        self.placing = placing
        self.reader = MergedReader(self.readers_of)
        self.on_change: Callable[[], object] | None = None  # a log takes records no more, or again
        self._logs: dict[Path, Log] = {}
        self._threads: dict[Path, LogThread] = {}
        self._ends: dict[str, RingEnd] = {}
        self._homes: dict[str, Path] = {}
        self._wake = -1
        self.upkeep: Callable[[], Status] | None = None  # what status() says of it
        self.on_log: Callable[[Log], object] | None = None  # hears of logs that are opened later
        self._refused: Callable[[str], bool] = lambda _: False

    def open(self, rings: Mapping[str, bool]) -> None:
        """Recovers every log that is there or is needed.  Raises EdgeError."""
        for ring_name, isolated in rings.items():
            self._home(ring_name, isolated=isolated)
        for directory in dict.fromkeys([*logs_in(self.directory), *self._homes.values()]):
            if directory in self._homes.values() or directory.is_dir():
                self._open(directory)

    def ends(self) -> dict[str, RingEnd]:
        """For each ring of which there are records, where it goes on."""
        return dict(self._ends)

    def start(
        self,
        sources: Iterable[tuple[Source, bool]],
        on_durable: Callable[[], object],
        wake_descriptor: int = -1,
    ) -> None:
        """Logs these rings, each with whether it has a log of its own.  Raises EdgeError.

        `wake_descriptor`, an eventfd of which a copy is taken, is written instead of calling `on_durable`
        where that needs no Python.
        """
        self._wake = os.dup(wake_descriptor) if wake_descriptor >= 0 else -1
        by_home: dict[Path, list[Source]] = {}
        for source, isolated in sources:
            by_home.setdefault(self._home(source.ring.name, isolated=isolated), []).append(source)
        for directory, its in by_home.items():
            thread = LogThread(self._logs[directory], its, on_durable, self._wake)
            thread.writer.state.on_change = self._changed
            try:
                thread.start()
            except LogError as error:
                raise EdgeError(f"log {directory}: {error}") from error
            self._threads[directory] = thread

    def add_foreign(self, ring: Ring, stream: Stream) -> None:
        """Logs a ring that another process writes, of a stream that is logged.  Raises EdgeError.

        Its writer waits for the log where the stream promises every record; else it may lose some, which is
        counted.
        """
        directory = self._home(ring.name, isolated=stream.isolated)
        if directory not in self._logs:
            self._open(directory)
            if self.on_log is not None:
                self.on_log(self._logs[directory])
        source = CopiedRing(ring, gating=stream.when_full != "overwrite").source(log_source(ring, stream))
        try:
            thread = self._threads.get(directory)
            if thread is None:
                opened = self._logs[directory]
                thread = LogThread(opened, [source], writer=ForeignWriter(opened))
                thread.writer.state.on_change = self._changed
                thread.start()
                self._threads[directory] = thread
            else:
                thread.add(source)
        except (LogError, RingError) as error:
            raise EdgeError(f"log {directory}: {error}") from error

    def stop(self) -> None:
        """Syncs what the rings hold, and ends the threads.  May be called twice."""
        while self._threads:
            _, thread = self._threads.popitem()
            if not thread.stop():
                text = "the log could not be synced; the rings keep what it lacks %s"
                log.error(
                    text, pairs(directory=thread.writer.log.directory, reason=thread.writer.state.reason)
                )
        if self._wake >= 0:
            os.close(self._wake)
            self._wake = -1

    def close(self) -> None:
        """Closes the logs, after stop().  May be called twice."""
        while self._logs:
            self._logs.popitem()[1].close()

    # ---- by ring ----

    def log_of(self, ring_name: str) -> Log:
        """The log that the ring is written to.  Raises KeyError: it is not logged."""
        return self._logs[self._homes[ring_name]]

    def thread_of(self, ring_name: str) -> LogThread:
        """The thread that writes the ring, while it runs.  Raises KeyError: it is not logged."""
        return self._threads[self._homes[ring_name]]

    def readers_of(self, ring_name: str) -> list[LogReader]:
        """Of all logs that may hold records of the ring, the one that it is written to first."""
        found = [
            it.reader
            for directory, it in self._logs.items()
            if directory == self.directory or is_shared(directory) or directory.name == ring_name
        ]
        own = self._homes.get(ring_name)
        if own is not None:
            found.sort(key=lambda reader: reader is not self._logs[own].reader)
        return found

    def logs(self) -> list[Log]:
        """All of them."""
        return list(self._logs.values())

    def failure_of(self, ring_name: str) -> str:
        """Why the log of a ring takes no records now; "": it does, or the ring is not logged."""
        thread = self._threads.get(self._homes.get(ring_name, Path()))
        if thread is None:
            return ""
        if thread.writer.state.read_only:
            return thread.writer.state.reason
        if ring_name in thread.writer.broken:
            return f"the ring is damaged: {thread.writer.broken[ring_name]}"
        return FULL if self._refused(ring_name) else ""

    def refuse(self, refused: Callable[[str], bool]) -> None:
        """From now on the rings of which `refused` says so take no records; from any thread."""
        self._refused = refused
        self._changed()

    def lose(self, missing: Mapping[str, str]) -> None:
        """Why a log takes no records, by the directory of logs whose files were removed; from any thread."""
        for directory, thread in list(self._threads.items()):
            thread.lose(missing.get(str(directory), ""))

    def thread_in(self, directory: str) -> LogThread | None:
        """The thread of the log in that directory; None: it has none."""
        return self._threads.get(Path(directory))

    def state(self) -> str:
        """In words, for $SYS: the first log that takes no records, and why."""
        for directory, thread in self._threads.items():
            if thread.writer.state.read_only:
                return f"{directory} takes no records: {thread.writer.state.reason}"
        return "takes records"

    def status(self) -> Status:
        """For `brim status`: of all logs together, and each under `logs` where there are several.

        Looks at every file of the log directory: not for the event loop.
        """
        each = [
            {"directory": str(directory), **thread.status()} for directory, thread in self._threads.items()
        ]
        upkeep = self.upkeep() if self.upkeep is not None else None
        facts = log_facts(self.directory, [it.reader.stats for it in self.logs()])
        return {**together(each), **facts, "upkeep": upkeep}

    def numbers(self) -> dict[str, int]:
        """A few of them, for $SYS; no file is looked at."""
        return sys_numbers([thread.status() for thread in self._threads.values()])

    def totals(self) -> dict[str, int]:
        """What all logs together have written, and how often they have synced."""
        stats = [it.stats for it in self.logs()]
        return {name: sum(getattr(it, name) for it in stats) for name in TOTALS}

    # ---- inside ----

    def _home(self, ring_name: str, *, isolated: bool) -> Path:
        found = home(self.directory, ring_name, isolated=isolated, workers=self.placing.workers)
        return self._homes.setdefault(ring_name, found)

    def _open(self, directory: Path) -> None:
        try:
            opened = self._log_in(directory)
        except OSError as error:
            raise EdgeError(f"log {directory}: {error}", hint="see [log] directory") from error
        try:
            report = opened.recover()
        except (LogError, OSError) as error:
            opened.close()
            raise EdgeError(f"log {directory}: {error}", hint="see [log] directory") from error
        self._logs[directory] = opened
        facts = {"segments": report.segments, "rings": len(report.rings), "damaged": len(report.damage)}
        log.info("log recovered %s", pairs(**facts, directory=directory))
        for name, end in report.rings.items():
            self._ends[name] = max(end, self._ends.get(name, end))
        for it in self._logs.values():
            it.go_on_behind(self._ends)

    def _log_in(self, directory: Path) -> Log:
        """Raises OSError: the directory cannot be made."""
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


def disk_rules(log: ConfigLog) -> DiskRules:
    """What [log] says of the disk."""
    return DiskRules(log.disk_warn_percent, log.disk_delete_percent, log.disk_read_only_percent)


def log_source(ring: Ring, stream: Stream) -> Source:
    """A ring of `stream`, as the log takes it.

    What waits for `upstream` is logged as for `interval`: it is the sink that the publisher waits for.
    """
    level: Literal["interval", "disk"] = "disk" if stream.durability == "disk" else "interval"
    return Source(ring, level, stream.sync_interval_ms, stream.synced_after_bytes)
