"""Watchdog: detects, reports and ends a state in which clients wait and none is served.

Owns one thread, which checks once a second (ringbuf/c/mqtt/watchdog.c, without the GIL), and its results
since the start. Touches no socket and nothing of the hot path.

    stuck      the MQTT thread is in one round, in C or in Python, for Ticks.report. All stacks go to the log;
               after Ticks.exit the process ends with EXIT_STALLED. If the thread continues before, that is
               logged.
    unserved   clients wait, nothing is read or sent for Ticks.serve, and only the broker can end that. The
               state of engine and snapshot goes to the log, and a snapshot is started. If that does not
               help for Ticks.exit, the process ends, too.

Such an end is like kill -9: rings keep acknowledged records, the service manager restarts the broker, and the
next start finds them. A failing disk, which is reported, or a slow one is no reason to end: the next start
would find the same disk.

Time is counted in turns of the watchdog's thread: see watchdog.c for stopped or overloaded machines.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from edge.logging_setup import pairs
from ringbuf.native import ffi, lib

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker
    from edge.engine.engine import Engine
    from edge.transport.listener import Listener

log = logging.getLogger(__name__)

EXIT_STALLED = 4  # exit status of the process
STATE_S = 2.0  # time for the MQTT thread to report its state
FLUSH_S = 0.5  # time for the last lines of the log
JOIN_S = 5.0


class Ticks(Struct, frozen=True):
    """Time limits, in ticks of `tick_ms`."""

    tick_ms: int = 1_000
    serve: int = 5
    report: int = 10
    exit: int = 60


class Watchdog:
    """Call start() after the MQTT thread has started, and stop() before it stops."""

    def __init__(self, engine: Engine, listener: Listener) -> None:
        self.stalls = 0  # since the start of the broker
        self.last = ""  # reason of the last stall
        self.last_s = 0.0  # time of the last stall, wall clock, s since 1970
        self._engine, self._listener = engine, listener
        self._broker: Broker = listener.broker
        self._ticks = ticks = Ticks()
        self._reports = 0  # in the current stall
        self._thread: threading.Thread | None = None
        self._over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._stacks = os.memfd_create("stacks")
        fcntl.fcntl(self._stacks, fcntl.F_SETFL, os.O_APPEND)
        limits = {"serve_ticks": ticks.serve, "report_ticks": ticks.report, "exit_ticks": ticks.exit}
        process = {"signal": int(signal.SIGUSR2), "status": EXIT_STALLED}
        files = {"over_fd": self._over, "stacks_fd": self._stacks}
        self._dog: Any = ffi.new("mq_watchdog *", {"tick_ms": ticks.tick_ms, **limits, **process, **files})

    def start(self) -> None:
        """Start the watching thread."""
        faulthandler.register(signal.SIGUSR2, file=self._stacks, all_threads=True)
        thread = threading.Thread(target=self._run, name="brim-watchdog", daemon=True)
        thread.start()
        self._thread = thread

    def stop(self) -> None:
        """Stop watching. May be called twice."""
        if self._over < 0:
            return
        os.eventfd_write(self._over, 1)
        if self._thread is not None:
            self._thread.join(JOIN_S)
            faulthandler.unregister(signal.SIGUSR2)
        os.close(self._over)
        os.close(self._stacks)
        self._over = -1

    @property
    def stalled_s(self) -> float:
        """Seconds for which no client was served; 0 while clients are served, and for faults of the disk."""
        dog, tick_s = self._dog, self._ticks.tick_ms / 1000
        stuck = dog.stuck_ticks if dog.stuck_ticks >= self._ticks.report else 0
        unserved = 0 if self._excuse() else dog.unserved_since_ticks
        return float(max(stuck, unserved) * tick_s)

    def status(self) -> dict[str, Any]:
        """Values for `brim status` and the metrics."""
        return {
            "stalls": self.stalls,
            "stalled_s": self.stalled_s,
            "last": self.last,
            "last_ago_s": round(time.time() - self.last_s, 1) if self.last_s else None,
        }

    # ---- on the thread ----

    def _run(self) -> None:
        address = ffi.cast("mq_engine *", self._engine.address)
        acts: dict[int, Callable[[], None]] = {
            lib.MQ_WATCH_STUCK: self._was_stuck,
            lib.MQ_WATCH_UNSERVED: self._unserved,
            lib.MQ_WATCH_SERVED: self._served,
        }
        while (seen := lib.mq_watchdog_watch(address, self._dog)) != lib.MQ_WATCH_OVER:
            acts[seen]()

    def _count(self, reason: str) -> None:
        self.stalls += 1
        self.last, self.last_s = reason, time.time()

    def _seconds(self, ticks: int) -> float:
        return ticks * self._ticks.tick_ms / 1000

    def _was_stuck(self) -> None:
        waited_s = self._seconds(self._dog.was_stuck_ticks)
        self._count(f"the MQTT thread was stuck for {waited_s:.0f} s")
        log.error("MQTT thread continued %s", pairs(stuck_s=waited_s))

    def _served(self) -> None:
        if self._reports:
            log.warning("clients served again")
        self._reports = 0

    def _excuse(self) -> str:
        """Reason that excludes a stall: a fault of the disk, which was reported; "" if there is none."""
        return self._broker.journal.ack_failure or self._broker.journal.failure

    def _unserved(self) -> None:
        if self._excuse():
            return
        waited_s = self._seconds(self._dog.unserved_since_ticks)
        writing = self._broker.journal.writing
        self._reports += 1
        if self._reports == 1:
            self._count("a session snapshot takes long" if writing else "clients were not served")
        if self._reports & (self._reports - 1) == 0:  # the first, second, fourth ... report
            self._report(waited_s)
        self._listener.call(self._broker.journal.save_snapshot)
        if self._dog.unserved_since_ticks >= self._ticks.exit and not writing:
            self._end(waited_s)

    def _report(self, waited_s: float) -> None:
        """Log the state and the stacks of all threads."""
        state: dict[str, object] = {"engine": "no answer"}
        with suppress(CancelledError, TimeoutError):
            state = self._listener.submit(self._state).result(STATE_S)
        log.error("clients not served, session snapshot started %s", pairs(waited_s=waited_s, **state))
        faulthandler.dump_traceback(self._stacks, all_threads=True)
        lib.mq_watchdog_show_stacks(self._dog)

    def _state(self) -> dict[str, object]:
        """State of engine and snapshot. On the MQTT thread."""
        journal = self._broker.journal
        return {
            **self._engine.state(),
            "snapshot_written": journal.writing,
            "snapshots": journal.snapshots,
        }

    def _end(self, waited_s: float) -> None:
        details = pairs(waited_s=waited_s, status=EXIT_STALLED)
        log.critical("clients not served, process ends; the next start continues %s", details)
        time.sleep(FLUSH_S)
        sys.stderr.flush()
        os._exit(EXIT_STALLED)
