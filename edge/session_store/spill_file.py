"""Spill file: copies of records that rings have overwritten and kept sessions still wait for.

    runtime_dir/sessions.spill    format: ringbuf/c/mqtt/out/spill_file.h; 0600, only the broker reads it

Owns the name of the file, from start to stop, and the log lines about it. The engine writes the file. It is
reused after kill -9 and after a clean stop, if it belongs to the journal of sessions that was found. It is
removed when no session needs it. A file of another broker or version is renamed to sessions.spill.bad.

Without a file (no descriptor, no inode) sessions work as before, and copies end with the broker; a log line
reports that.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from edge.engine.spill_calls import SpillEngine
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

SPILL_NAME = "sessions.spill"
AGAIN_S = 10.0


class SpillFile:
    """The spill file of one runtime directory, which must be locked. Methods run on the engine's thread."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / SPILL_NAME
        self._engine: SpillEngine | None = None

    def open(self, engine: SpillEngine, epochs: tuple[int, ...], *, fresh: bool) -> None:
        """Let `engine` use the file, before sessions are restored.

        `epochs`: of journals that the file may belong to, the current one first. `fresh`: no session was
        found that could need its content.
        """
        try:
            if fresh:
                self.remove()
            copies = self._opened(engine, epochs)
            if copies is None:
                bad = self.path.with_name(f"{SPILL_NAME}.bad")
                self.path.replace(bad)
                log.error("spill file not usable, renamed %s", pairs(file=self.path, kept=bad))
                copies = self._opened(engine, epochs)
        except OSError as error:
            log.error(
                "spill file not opened; overwritten records of absent sessions end with the broker %s",
                pairs(file=self.path, error=error),
            )
            return
        self._engine = engine
        if copies:
            log.info("spill file re-attached %s", pairs(file=self.path, copies=copies))

    def _opened(self, engine: SpillEngine, epochs: tuple[int, ...]) -> int | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        copies = None
        try:
            copies = engine.spill_open(descriptor, epochs)
        finally:
            if copies is None:
                os.close(descriptor)
        return copies

    def close(self) -> None:
        """Keep the file for the next start, if a session needs it. May be called twice."""
        engine, self._engine = self._engine, None
        if engine is None:
            return
        if needed_bytes := engine.spill_close():
            log.info("spill file kept for the next start %s", pairs(file=self.path, bytes=needed_bytes))
        else:
            self.remove()

    def remove(self) -> None:
        """Remove the file. Raises OSError."""
        self.path.unlink(missing_ok=True)


class SpillReport:
    """Log lines about the spill file, from the engine's counters. Any thread, one at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_full = False
        self._over = 0  # number of records in the last report
        self._full_s = self._over_s = -AGAIN_S  # times of the last reports

    def log_changes(self, counters: Mapping[str, int], spill_max_bytes: int) -> None:
        """Log changes since the last call, each kind at most once in AGAIN_S."""
        now_s = self._clock()
        is_full = counters["spill_errno"] != 0
        if is_full and not self._is_full and now_s >= self._full_s + AGAIN_S:
            self._is_full, self._full_s = True, now_s
            log.warning(
                "spill file cannot grow: publishers are refused where a ring would overwrite what absent "
                "sessions wait for; give the file system of runtime_dir more room, or lower "
                "limits.spill_max_bytes %s",
                pairs(error=os.strerror(counters["spill_errno"]), bytes=counters["spill_file_bytes"]),
            )
        if self._is_full and not is_full:
            self._is_full = False
            log.info("spill file grows again %s", pairs(refused=counters["spill_refused"]))
        over = counters["spill_over"]
        if over > self._over and now_s >= self._over_s + AGAIN_S:
            self._over_s = now_s
            log.warning(
                "records of absent sessions not kept: raise limits.spill_max_bytes %s",
                pairs(records=over - self._over, spill_max_bytes=spill_max_bytes),
            )
            self._over = over
