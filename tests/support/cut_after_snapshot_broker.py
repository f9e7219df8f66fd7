"""A broker whose streams get no further into their log, once the file that HOLD names exists.

If the file exists at the start, the log continues when the start looks whether it lacks records.  The start
ends as by a power cut, after its snapshot of the sessions.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from edge.broker.dispatcher import Broker
from edge.cli import main
from edge.log import log_set
from edge.recovery.state_files import SESSIONS_RING
from edge.server import mqtt_startup
from edge.session_store.journal_writer import JournalTarget
from persistence.files import Buffer
from ringbuf import Ring
from tests.support.called_disk import CalledFiles

HOLD = Path(os.environ.get("HOLD", ""))
IS_CUT = HOLD.is_file()

recovered, awaited = threading.Event(), threading.Event()
start, lags, keep = log_set.LogSet.start, mqtt_startup._lags, Broker.keep


class Files(CalledFiles):
    """Files of one log."""

    directory = Path()

    def makedirs(self, path: str) -> None:
        """The first call of a log."""
        self.directory = Path(path)
        super().makedirs(path)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """Write when the start waits for it, if the log is held."""
        if self.directory.name != SESSIONS_RING and recovered.is_set() and HOLD.is_file():
            awaited.wait()
        return super().pwritev(handle, buffers, position)


def start_held(self: log_set.LogSet, *arguments: object) -> None:
    """Start the logs, which have written to their files before, to recover them."""
    recovered.set()
    start(self, *arguments)  # type: ignore[arg-type]


def look(ring: Ring) -> bool:
    """Let the log continue if the start may wait for it."""
    awaited.set()
    return lags(ring)


def keep_and_cut(self: Broker, place: JournalTarget) -> None:
    """Write the snapshot; then end the process."""
    keep(self, place)
    if IS_CUT:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    vars(log_set)["OsFiles"] = Files
    log_set.LogSet.start = start_held  # type: ignore[method-assign, assignment]
    vars(mqtt_startup)["_lags"] = look
    Broker.keep = keep_and_cut  # type: ignore[method-assign]
    sys.exit(main())
