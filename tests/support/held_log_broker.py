"""A broker whose logs get no further while the file that HOLD names exists, until the broker waits for them.

HELD names these logs.  The process ends as by a power cut while the file exists:

journal   the log of the session journal.  End: at a start, after the log of a stream has its records.
streams   the logs of the streams.  End: after a snapshot of the sessions, the first one or a later one.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge.cli import main
from edge.log import log_set
from edge.recovery.state_files import SESSIONS_RING
from edge.session_store import journal_writer, snapshot_file
from persistence import LogThread
from persistence.files import Buffer
from ringbuf import Ring
from tests.support.called_disk import CalledFiles
from tests.support.waiting import wait_until

HOLD, HELD = Path(os.environ.get("HOLD", "")), os.environ.get("HELD")
IS_CUT = HOLD.is_file()

recovered, held, awaited = threading.Event(), threading.Event(), threading.Event()
run, lags, write = log_set.LogSet._run, log_set._lags, snapshot_file.write_snapshot


def cut() -> None:
    """End the process as by a power cut, if a log was held; otherwise by a signal that no test expects."""
    os.kill(os.getpid(), signal.SIGKILL if held.is_set() else signal.SIGABRT)


def is_held(name: str) -> bool:
    """True if a log of this name, or the log of a ring of this name, is held now."""
    return HOLD.is_file() and (name == SESSIONS_RING) == (HELD == "journal")


class Files(CalledFiles):
    """Files of one log."""

    directory = Path()

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write when the broker waits for it, if the log is held."""
        if recovered.is_set() and is_held(self.directory.name):
            held.set()
            awaited.wait()
        return super().pwritev(handle, buffers, position)


def look(ring: Ring, end_position: int) -> bool:
    """Let the held logs continue, if the broker waits for them."""
    if is_held(ring.name):
        awaited.set()
    return lags(ring, end_position)


def run_and_cut(self: log_set.LogSet, directory: Path, thread: LogThread) -> None:
    """Start the thread of a log, which has written to its files before, to recover them."""
    vars(thread.writer.log.files)["directory"] = directory
    recovered.set()
    run(self, directory, thread)
    if HELD == "journal" and directory.name != SESSIONS_RING and IS_CUT:
        ends = [(each.ring, each.ring.extremes().end_position) for each in thread._logged_rings]
        wait_until(lambda: not any(lags(*end) for end in ends))
        cut()


def write_and_cut(*arguments: Any, **options: Any) -> int:
    """Write the snapshot; then end the process, if the streams are held."""
    size = write(*arguments, **options)
    if HELD == "streams" and HOLD.is_file():
        cut()
    return size


if __name__ == "__main__":
    vars(log_set)["OsFiles"] = Files
    log_set.LogSet._run = run_and_cut  # type: ignore[method-assign]
    vars(log_set)["_lags"] = look
    vars(journal_writer)["write_snapshot"] = write_and_cut
    sys.exit(main())
