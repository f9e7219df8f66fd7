"""A broker whose session journal gets no further into its log, once the file that HOLD names exists.

If the file exists at the start, the start ends as by a power cut: before the log of the journal takes a
record, and after each log that was started before it has synced the records of its rings.
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

run = log_set.LogSet._run


class Files(CalledFiles):
    """Files of one log."""

    directory = Path()

    def makedirs(self, path: str) -> None:
        """The first call of a log."""
        self.directory = Path(path)
        super().makedirs(path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Never return if the journal is held."""
        if self.directory.name == SESSIONS_RING and HOLD.is_file() and not IS_CUT:
            threading.Event().wait()
        return super().pwritev(handle, buffers, position)


def run_or_cut(self: log_set.LogSet, directory: Path, thread: LogThread) -> None:
    """Start the thread of a log; or end the process instead, if it is the log of the journal."""
    if directory.name == SESSIONS_RING and IS_CUT:
        rings = [each.ring for started in self._threads.values() for each in started._logged_rings]
        wait_until(lambda: all(_is_durable(ring) for ring in rings))
        os.kill(os.getpid(), signal.SIGKILL)
    run(self, directory, thread)


def _is_durable(ring: Ring) -> bool:
    extremes = ring.extremes()
    return extremes.durable_position >= extremes.end_position


if __name__ == "__main__":
    vars(log_set)["OsFiles"] = Files
    log_set.LogSet._run = run_or_cut  # type: ignore[method-assign]
    sys.exit(main())
