"""A broker whose session journal gets no further into its log, once the file that HOLD names exists.

If the file exists at the start, the log of the journal continues when the start looks whether it lacks
records.  The start ends as by a power cut, after the log of a stream has synced the records of its rings.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from edge.cli import main
from edge.log import log_set
from edge.recovery.state_files import SESSIONS_RING
from persistence import LogThread
from persistence.files import Buffer
from ringbuf import Ring
from tests.support.called_disk import CalledFiles
from tests.support.waiting import wait_until

HOLD = Path(os.environ.get("HOLD", ""))
IS_CUT = HOLD.is_file()

recovered, awaited = threading.Event(), threading.Event()
run, lags = log_set.LogSet._run, log_set._lags


class Files(CalledFiles):
    """Files of one log."""

    directory = Path()

    def makedirs(self, path: str) -> None:
        """The first call of a log."""
        self.directory = Path(path)
        super().makedirs(path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write when the start waits for it, if the journal is held."""
        if self.directory.name == SESSIONS_RING and recovered.is_set() and HOLD.is_file():
            awaited.wait()
        return super().pwritev(handle, buffers, position)


def look(ring: Ring, end_position: int) -> bool:
    """Let the log of the journal continue, if a start waits for it."""
    if IS_CUT and ring.name == SESSIONS_RING:
        awaited.set()
    return lags(ring, end_position)


def run_and_cut(self: log_set.LogSet, directory: Path, thread: LogThread) -> None:
    """Start the thread of a log; then end the process, if it is the log of a stream."""
    recovered.set()
    run(self, directory, thread)
    if directory.name != SESSIONS_RING and IS_CUT:
        ends = [(each.ring, each.ring.extremes().end_position) for each in thread._logged_rings]
        wait_until(lambda: not any(lags(*end) for end in ends))
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    vars(log_set)["OsFiles"] = Files
    log_set.LogSet._run = run_and_cut  # type: ignore[method-assign]
    vars(log_set)["_lags"] = look
    sys.exit(main())
