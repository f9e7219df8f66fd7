"""Python workers of Spark that end without a traceback when Spark closes their socket.

limit(), show() and take() need few rows: Spark closes the socket of a worker that is still writing.  When a
session stops, Spark closes the sockets of idle workers.  In both cases the worker ends, as it should, and
PySpark's daemon (the process that forks the workers) prints a traceback of a broken pipe.

    python -m bridge.spark.quiet_workers
        that daemon without this traceback, for the workers of tasks: session.py sets
        spark.python.daemon.module = bridge.spark.quiet_workers
    quiet_this_worker()
        the same for a worker of PySpark's own daemon, from its next task on: Spark starts the workers that
        plan a query under no other daemon

Only the last flush of a worker fails in this way.  The error of a task is caught earlier and sent to Spark,
which reports it.  All other errors of a worker are printed as before.

Imports nothing at first: no thread may run in a daemon, which forks.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import TypeAlias

Worker: TypeAlias = Callable[[socket.socket, bool], int]

PYSPARK = "pyspark.daemon"
ENDED = 1  # With any status but 0 a worker takes no further task.


def main() -> None:
    """Run the daemon until Spark closes its standard input."""
    from pyspark import daemon

    daemon.worker = _quiet(daemon.worker)  # type: ignore[assignment]
    daemon.manager()


def quiet_this_worker() -> None:
    """Let this process, if it is a worker of PySpark's own daemon, end without a traceback."""
    running = sys.modules["__main__"]
    if getattr(running.__spec__, "name", "") == PYSPARK:
        running.worker = _quiet(running.worker)  # type: ignore[attr-defined]


def _quiet(run: Worker) -> Worker:
    def worker(connection: socket.socket, authenticated: bool) -> int:
        try:
            return run(connection, authenticated)
        except (BrokenPipeError, ConnectionResetError):
            # from Python 3.13 on, the file that was not flushed reports that again when it is freed
            sys.unraisablehook = lambda _: None
            return ENDED

    return worker


if __name__ == "__main__":
    main()
