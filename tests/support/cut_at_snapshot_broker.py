"""A broker that kills itself before the first snapshot of its start, once its log has sealed a segment."""

import os
import signal
import sys
import threading

from edge.broker.dispatcher import Broker
from edge.cli import main
from edge.recovery.state_files import StateFiles
from edge.session_store.journal_writer import JournalTarget
from persistence import Log

PATIENCE_S = 30

sealed = threading.Event()
trim = StateFiles.trim


def trim_and_report(self: StateFiles, journal_log: Log) -> None:
    """Trim as before; then report that a segment was sealed and the trimming of that segment is done."""
    trim(self, journal_log)
    journal_log.on_sealed.append(lambda _: sealed.set())


def killed(self: Broker, place: JournalTarget) -> None:
    """End the process as a power cut does, in place of the snapshot."""
    del self, place
    if not sealed.wait(PATIENCE_S):
        sys.exit("no segment of the session journal was sealed")
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    StateFiles.trim = trim_and_report  # type: ignore[method-assign]
    Broker.keep = killed  # type: ignore[method-assign]
    sys.exit(main())
