"""Directory watch: notices files of the broker that somebody removes, moves or replaces while it runs.

What is written into a removed file is gone at the next start, although every write and every sync succeeds.
So each file and directory that the broker relies on is looked at by its name, LOOK_S apart, and compared
with what had that name at the start (device and inode).  A thread of its own does it: a look may wait for the
disk.

    state_dir, log              streams of durability "interval" and "disk" refuse publishers; consumers'
                                acknowledgements are refused
    runtime_dir, a ring in it   reported: records in memory would not survive the broker, and programs of this
                                machine cannot attach

The same file back under its name ends the trouble: nothing was lost.  Another file does not: the broker
must be restarted, and begins there with what the rings still hold.

Owns no file.  Never repairs anything.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from edge.logs import pairs
from persistence.log import Log

__all__ = ["DirectoryWatch", "Missing"]

log = logging.getLogger(__name__)

LOOK_S = 0.5
RESTART = "put it back, or restart the broker"

Identity = tuple[int, int]  # device, inode


class Missing(NamedTuple):
    """Something that is no longer there.  `key`: state_dir, runtime_dir, a ring's name, or log."""

    key: str
    path: str
    remedy: str = RESTART


class DirectoryWatch:
    """Use: watch(), start(), ..., stop().  `missing` is for any thread."""

    def __init__(self, logs: Callable[[], list[Log]] = list) -> None:
        """`logs`: those that are written now; each is watched from when it is seen first."""
        self.missing: tuple[Missing, ...] = ()
        self.on_change: list[Callable[[], object]] = []  # on the watch's thread, when `missing` has changed
        self._logs = logs
        self._known: dict[tuple[str, str], Identity] = {}  # (key, path)
        self._known_log: dict[str, Identity] = {}  # by path
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brim-directories", daemon=True)

    def watch(self, key: str, path: Path) -> None:
        """Look at that file or directory, too.  Before start().  Raises OSError: it is not there."""
        self._known[key, str(path)] = _identity(path)

    def start(self) -> None:
        """Begin."""
        self.look()
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def look(self) -> None:
        """Compare once."""
        missing = [Missing(*it) for it, known in list(self._known.items()) if _is_gone(it[1], known)]
        missing += [it for each in self._logs() if (it := self._missing_of(each)) is not None]
        before, self.missing = self.missing, tuple(missing)
        if before == self.missing:
            return
        for it in set(self.missing) - set(before):
            log.error("file or directory of the broker removed %s", pairs(**it._asdict()))
        for it in set(before) - set(self.missing):
            log.warning("file or directory of the broker is back %s", pairs(key=it.key, path=it.path))
        for changed in self.on_change:
            changed()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_S):
            self.look()

    def _missing_of(self, each: Log) -> Missing | None:
        """The directory of a log, its lock file, or the segment that is written."""
        for path in (each.directory, os.path.join(each.directory, "LOCK")):
            known = self._known_log.get(path)
            if known is None:
                try:
                    self._known_log[path] = _identity(Path(path))
                except OSError:
                    return Missing("log", path)
            elif _is_gone(path, known):
                return Missing("log", path)
        active = each.active_path
        if active and not os.path.lexists(active) and each.active_path == active:  # not sealed meanwhile
            return Missing("log", active)
        return None


def _identity(path: Path) -> Identity:
    found = path.stat()
    return found.st_dev, found.st_ino


def _is_gone(path: str, known: Identity) -> bool:
    """True if the name stands for nothing, or for something else.  A disk that does not answer is another
    trouble.
    """
    try:
        return _identity(Path(path)) != known
    except OSError as error:
        return error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}
