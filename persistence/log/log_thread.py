"""Log thread: runs a LogWriter that sleeps on all rings at once, and a second thread for deferred log work.

Owns both threads, and the scheduling of the first.  The log thread runs ahead of others while a publisher
waits for its syncs.  Otherwise it runs as a normal thread, so that it takes no processor from publishers.
Only the log thread uses the writer and the log's queue; calls of other threads are executed there (add,
remove).
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import TypeVar

from persistence.errors import LogClosed
from persistence.log.log import Log
from persistence.log.log_writer import LoggedRing, LogWriter
from ringbuf import Ring
from ringbuf.native import lib

log = logging.getLogger(__name__)

Result = TypeVar("Result")

RETRY_PAUSE_S = 5.0  # after a failure
FIFO_PRIORITY = 10  # of 1..99: above threads without one, below drivers of hardware
CALL_PATIENCE_S = 0.1  # interval of checks that the called thread still runs


class LogThread:
    """Runs a LogWriter in one thread, and Log.run_maintenance() in another.

    `logged_rings`: LoggedRing, or plain tuples of the same fields; rings of durability "process" are skipped.
    `on_durable`: called on the log thread; it must not block.  `wake_descriptor`: an eventfd, written instead
    if no Python is needed.  `writer`: replaces the usual writer of that log; its thread is not run ahead of
    others.  The caller recovers the log before and closes it after.
    """

    def __init__(
        self,
        log: Log,
        logged_rings: Sequence[tuple[Ring, str, int, int] | LoggedRing],
        on_durable: Callable[[], object] | None = None,
        wake_descriptor: int = -1,
        writer: LogWriter | None = None,
    ) -> None:
        self.writer = writer or LogWriter(log, on_durable, wake_descriptor=wake_descriptor)
        self._may_hurry = writer is None
        self._hurries = False
        self._logged_rings = [
            logged_ring for item in logged_rings if (logged_ring := _logged_ring_of(item)) is not None
        ]
        self._calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._finished = True
        self.scheduling = "normal"  # of its thread: "fifo" if required, or the cause for not having it
        self._maintenance_due = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Join the rings, copy their records after the log's end to the log, and start the threads.

        Raises the errors of LogWriter.add(), and RuntimeError: no more threads may be started. Then no thread
        runs.
        """
        maintenance = threading.Thread(target=self._run_maintenance, name="brim-log-maint", daemon=True)
        try:
            for logged_ring in self._logged_rings:
                self.writer.add(logged_ring)
            for thread in (maintenance, threading.Thread(target=self._run, name="brim-log")):
                thread.start()
                self._threads.insert(0, thread)
        except BaseException:
            self.stop()
            self.writer.close()
            raise

    def stop(self) -> bool:
        """Sync the records of the rings, end the threads and release the rings.

        False if the disk failed, or the log thread ended before.
        """
        self._stopping.set()
        self.writer.call()
        self._maintenance_due.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        return self._finished

    def add(self, logged_ring: LoggedRing) -> None:
        """See LogWriter.add(); from any thread, while this runs."""
        self._call(lambda: self.writer.add(logged_ring))

    def remove(self, name: str) -> bool:
        """See LogWriter.remove(); from any thread, while this runs."""
        return self._call(lambda: self.writer.remove(name))

    def roll(self) -> None:
        """See LogWriter.roll(); from any thread, while this runs.  Raises OSError."""
        self._call(self.writer.roll)

    def block(self, reason: str) -> None:
        """Set LogWriter.blocked; "" unblocks.  From any thread."""
        self.writer.blocked = reason
        self.writer.call()

    def set_removed(self, reason: str) -> None:
        """Set LogWriter.removed; "" if all files are back.  From any thread."""
        if self.writer.removed != reason:
            self.writer.removed = reason
            self.writer.call()

    def status(self) -> dict[str, object]:
        """Status for `brim status`; from any thread."""
        return {**self.writer.status(), "scheduling": self.scheduling}

    def _call(self, call: Callable[[], Result]) -> Result:
        """Run `call` on the log thread.  Returns its result, or raises its exception."""
        done: Future[Result] = Future()

        def run() -> None:
            try:
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001
                done.set_exception(error)

        threads = self._threads  # which stop() replaces
        if threads:
            self._calls.put(run)
            self.writer.call()
        while threads and threads[0].is_alive() and not done.done():
            wait([done], CALL_PATIENCE_S)
        if not done.done():
            raise LogClosed(f"the log thread of {self.writer.log.directory} does not run")
        return done.result()

    def _run(self) -> None:
        try:
            self._rounds()
        except Exception as mistake:
            # Rounds are not continued after an error in the middle: a restart takes over the rings' records.
            self._finished = False
            log.exception(
                "log thread ended by a defect; restart the broker directory=%s", self.writer.log.directory
            )
            self.writer.state.failed(f"its thread has ended: {mistake!r}; restart the broker", read_only=True)

    def _rounds(self) -> None:
        writer = self.writer
        while True:
            writer.called()  # before calls and _stopping are read: run() notices calls after this
            if self._stopping.is_set():
                break
            self._serve()
            self._hurry(writer.is_waited_for)
            writer.run()
            if writer.log.needs_maintenance and not writer.state.failures:
                self._maintenance_due.set()
        self._finished = writer.finish()
        self._serve()
        writer.close()

    def _serve(self) -> None:
        while not self._calls.empty():
            self._calls.get()()

    def _hurry(self, is_hurried: bool) -> None:
        if is_hurried != self._hurries and self._may_hurry:
            self._hurries = is_hurried
            self.scheduling = _ahead_of_others() if is_hurried else _among_others()

    def _run_maintenance(self) -> None:
        lib.rb_disk_yields()
        pause_s: float | None = None
        while True:
            self._maintenance_due.wait(pause_s)
            self._maintenance_due.clear()
            if self._stopping.is_set():
                return
            try:
                pause_s = self.writer.log.run_maintenance(self._stopping.is_set, paced=True)
            except OSError as error:
                log.warning("next segment not prepared reason=%s", error.strerror)
                self._stopping.wait(RETRY_PAUSE_S)
            except Exception:  # segments are then created on demand: no reason to stop
                log.exception("log preparation failed directory=%s", self.writer.log.directory)
                self._stopping.wait(RETRY_PAUSE_S)


def _ahead_of_others() -> str:
    """Run the calling thread ahead of normal threads, if permitted.  Returns the resulting scheduling.

    The thread works for microseconds and then sleeps or waits for the disk.  Next to two busy processes on
    two cores, a sync of 0.1 ms takes 4 ms without this, for any nice value.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(FIFO_PRIORITY))
    except OSError as error:
        return f"normal ({errno.errorcode.get(error.errno or 0, error.errno)})"
    return "fifo"


def _among_others() -> str:
    """Run the calling thread as a normal thread.

    Its wake-up then uses an idle processor if one exists.  A thread with priority stays on its processor and
    interrupts the thread there.
    """
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    return "normal"


def _logged_ring_of(item: tuple[Ring, str, int, int] | LoggedRing) -> LoggedRing | None:
    ring, durability, *options = item
    if durability == "disk":
        return LoggedRing(ring, "disk", *options)
    if durability == "interval":
        return LoggedRing(ring, "interval", *options)
    return None
