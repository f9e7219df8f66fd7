"""A broker whose streams get no further into their log, once the file that HOLD names exists.

The log continues when somebody looks whether it lacks records.  While the file exists, the process ends as by
a power cut after it has written a snapshot of the sessions: the first one, or a later one.
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
from persistence.files import Buffer
from ringbuf import Ring
from tests.support.called_disk import CalledFiles

HOLD = Path(os.environ.get("HOLD", ""))
recovered, awaited = threading.Event(), threading.Event()
start, lags, write = log_set.LogSet.start, log_set._lags, snapshot_file.write_snapshot


class Files(CalledFiles):
    """Files of one log."""

    directory = Path()

    def makedirs(self, path: str) -> None:
        """The first call of a log."""
        self.directory = Path(path)
        super().makedirs(path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write when the broker waits for it, if the log is held."""
        if self.directory.name != SESSIONS_RING and recovered.is_set() and HOLD.is_file():
            awaited.wait()
        return super().pwritev(handle, buffers, position)


def start_held(self: log_set.LogSet, *arguments: object) -> None:
    """Start the logs, which have written to their files before, to recover them."""
    recovered.set()
    start(self, *arguments)  # type: ignore[arg-type]


def look(ring: Ring, end_position: int) -> bool:
    """Let the logs of streams continue."""
    if ring.name != SESSIONS_RING:
        awaited.set()
    return lags(ring, end_position)


def write_and_cut(*arguments: Any, **options: Any) -> int:
    """Write the snapshot; then end the process."""
    size = write(*arguments, **options)
    if HOLD.is_file():
        os.kill(os.getpid(), signal.SIGKILL)
    return size


if __name__ == "__main__":
    vars(log_set)["OsFiles"] = Files
    log_set.LogSet.start = start_held  # type: ignore[method-assign, assignment]
    vars(log_set)["_lags"] = look
    vars(journal_writer)["write_snapshot"] = write_and_cut
    sys.exit(main())
