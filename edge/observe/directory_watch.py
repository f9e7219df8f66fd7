"""Directory watch: detects files of the broker that are removed, moved or replaced while it runs.

Bytes written to a removed file are lost at the next start, although every write and every sync succeeds. So
each file and directory that the broker relies on is checked by its name every LOOK_S, and compared with the
file of that name at the start (device and inode). A separate thread does it, because a check may wait for the
disk.

    state_dir, log              streams with a log refuse publishers; acknowledgements of consumers are
                                refused
    runtime_dir, a ring in it   reported: records in memory would not survive the broker, and programs of this
                                machine cannot attach
    sockets of ZeroMQ           reported: no further subscriber or consumer can connect

The same file back under its name ends the trouble: nothing was lost. Another file does not: the broker must
be restarted, and continues there with the records that the rings still hold.

Owns no file. Never repairs anything.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edge.logging_setup import pairs

if TYPE_CHECKING:
    from persistence.log.log import Log

log = logging.getLogger(__name__)

LOOK_S = 0.5
RESTART = "put it back, or restart the broker"

Identity = tuple[int, int]  # device, inode

_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.ELOOP}


class Missing(NamedTuple):
    """A missing file or directory. `key`: state_dir, runtime_dir, ring, log, zmq or consumers."""

    key: str
    path: str
    remedy: str = RESTART


class DirectoryWatch:
    """Use: watch(), start(), ..., stop(). `missing` is for any thread."""

    def __init__(self, logs: Callable[[], list[Log]] = list) -> None:
        """Create the watch. `logs` returns the logs in use; each is watched from its first appearance on."""
        self.missing: tuple[Missing, ...] = ()
        # called on the watch's thread after a change of `missing`
        self.on_change: list[Callable[[], object]] = []
        self._logs = logs
        self._known: dict[tuple[str, str], Identity] = {}  # (key, path)
        self._known_log: dict[str, Identity] = {}  # by path
        self._known_active: dict[str, tuple[tuple[str, int], Identity]] = {}  # by directory of the log
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brim-directories", daemon=True)

    def watch(self, key: str, path: Path) -> None:
        """Watch one more path. For any thread. Raises OSError if the path does not exist."""
        self._known[key, str(path)] = _identity(path)

    def start(self) -> None:
        """Check once, and start the thread."""
        self.check()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def check(self) -> None:
        """Check all files once."""
        missing = [
            Missing(*identity)
            for identity, known in list(self._known.items())
            if _is_gone(identity[1], known)
        ]
        missing += [entry for each in self._logs() if (entry := self._missing_of(each)) is not None]
        before, self.missing = self.missing, tuple(missing)
        if before == self.missing:
            return
        for entry in set(self.missing) - set(before):
            log.error("file or directory of the broker removed %s", pairs(**entry._asdict()))
        for entry in set(before) - set(self.missing):
            log.warning("file or directory of the broker restored %s", pairs(key=entry.key, path=entry.path))
        for changed in self.on_change:
            changed()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self.check()

    def _missing_of(self, each: Log) -> Missing | None:
        """The first missing one of a log's directory, its lock file and its active segment."""
        for path in (each.directory, os.path.join(each.directory, "LOCK")):
            known = self._known_log.get(path)
            if known is None:
                try:
                    self._known_log[path] = _identity(Path(path))
                except OSError:
                    return Missing("log", path)
            elif _is_gone(path, known):
                return Missing("log", path)
        active = each.active_file
        # unless the segment was sealed meanwhile
        if active[0] and self._is_replaced(each.directory, active) and each.active_file == active:
            return Missing("log", active[0])
        return None

    def _is_replaced(self, directory: str, active: tuple[str, int]) -> bool:
        """True if the active segment of a log is gone; at the first look its identity is noted."""
        known_file, known = self._known_active.get(directory, (("", 0), (0, 0)))
        if known_file == active:
            return _is_gone(active[0], known)
        try:
            self._known_active[directory] = active, _identity(Path(active[0]))
        except OSError as error:
            return error.errno in _GONE
        return False


def _identity(path: Path) -> Identity:
    status = path.stat()
    return status.st_dev, status.st_ino


def _is_gone(path: str, known: Identity) -> bool:
    """True if the name refers to no file, or to another one. Other disk errors do not count."""
    try:
        return _identity(Path(path)) != known
    except OSError as error:
        return error.errno in _GONE
