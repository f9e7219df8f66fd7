"""Log backfill: reads records that sessions still wait for and that only the log has.

Owns the reading thread, which starts on demand, and the set of sessions that wait for it. The engine reports
that the next record of a session is only in the log (EventKind.BACKFILL), and pauses its delivery. This
module reads one run of records on its thread and returns it with Engine.restore_records(). The engine copies
as many records as may be in flight at once. Delivery then continues up to the next such record.

    BACKFILL -> next_log_position() -> [thread: log.read_at()] -> restore_records() for each run
         -> purge() -> resume_delivery()

Records that the log no longer has are given up, and counted as overrun. After a read error the read is
repeated every RETRY_S while the session waits: its order holds, and other sessions continue.

Invariant: each session has at most one read under way.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from edge.broker.deferred import Call
from edge.broker.sessions import Session
from edge.engine.engine import Engine
from edge.logging_setup import pairs
from ringbuf import Range

log = logging.getLogger(__name__)

READ_BYTES = 256 << 10  # approximate; an extent of the log is read as a whole
RETRY_S = 1.0
BEHIND_ALL = 1 << 56  # a position that no ring reaches


class ReadAt(Protocol):
    """The type of LogReader.read_at() of persistence."""

    def __call__(self, ring_name: str, epoch: int, position: int, limit_bytes: int, /) -> Sequence[Range]:
        """Runs of records from a ring position on."""


class LogBackfill:
    """Handler of BACKFILL events. Methods run on the broker's thread."""

    def __init__(
        self,
        engine: Engine,
        ring_of: Callable[[int], tuple[str, int]],
        purge: Callable[[Session], object],
    ) -> None:
        """Create the handler. `ring_of` returns the name and epoch of a ring, by its number in the engine.

        `purge` removes restored records that a session may not receive.
        """
        # None: there is no log, and records that the rings have overwritten are lost
        self.read_at: ReadAt | None = None
        self._engine = engine
        self._ring_of = ring_of
        self._purge = purge
        self._reading: set[int] = set()  # handles of sessions
        self._thread: ThreadPoolExecutor | None = None
        self._stopping = threading.Event()
        # used by the thread only: an extent is larger than one read
        self._last: tuple[str, int, Sequence[Range]] = ("", 0, ())

    def read_from(self, read_at: ReadAt) -> None:
        """Read by `read_at` from now on. Starts the thread: later there may be no memory for it."""
        self.read_at = read_at
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-backfill")
        self._thread.submit(int)

    def start_read(self, session: Session, call: Call | None) -> None:
        """Read the records that the held delivery of `session` needs.

        `call` runs a function on this thread. Without it nothing can be read, and the records are given up.
        """
        if session.handle in self._reading or self._stopping.is_set():
            return
        front = self._engine.next_log_position(session.handle)
        if front is None:
            self._engine.resume_delivery(session.handle)
        elif self.read_at is None or call is None:
            ring_number, position = front
            self._return_records(session, ring_number, position, ())
        else:
            ring_number, position = front
            self._reading.add(session.handle)
            assert self._thread is not None  # with `read_at`
            self._thread.submit(self._read, self.read_at, call, session, ring_number, position)

    @property
    def reading(self) -> int:
        """Number of sessions that wait for the log."""
        return len(self._reading)

    def stop(self) -> None:
        """End the thread. Sessions that wait continue to wait. May be called twice."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def _return_records(
        self, session: Session, ring_number: int, position: int, runs: Sequence[Range]
    ) -> None:
        handle, next_position = session.handle, position
        for run in runs:
            self._engine.restore_records(handle, ring_number, next_position, run.position, run.view)
            next_position = run.position + len(run.view)
        if not runs:
            self._engine.restore_records(handle, ring_number, next_position, BEHIND_ALL, b"")
        self._purge(session)
        self._engine.resume_delivery(handle)

    def _answer(
        self, call: Call, session: Session, ring_number: int, position: int, runs: Sequence[Range] | None
    ) -> None:
        self._reading.discard(session.handle)
        if runs is None:
            self.start_read(session, call)  # unless the session needs nothing any more
        else:
            self._return_records(session, ring_number, position, runs)

    # ---- on the thread ----

    def _read(self, read_at: ReadAt, call: Call, session: Session, ring_number: int, at: int) -> None:
        name, epoch = self._ring_of(ring_number)
        runs: Sequence[Range] | None
        try:
            runs = self._known(name, epoch, at) or read_at(name, epoch, at, READ_BYTES)
            self._last = (name, epoch, runs)
        except OSError as error:
            log.warning("log read failed, delivery to a client waits %s", pairs(ring=name, reason=error))
            self._stopping.wait(RETRY_S)
            runs = None
        except Exception:
            log.exception("log read failed, records of a client given up %s", pairs(ring=name))
            runs = ()
        call(partial(self._answer, call, session, ring_number, at, runs))

    def _known(self, name: str, epoch: int, at: int) -> Sequence[Range]:
        """Runs of the last read, from the run with position `at` on; empty if no run has that position."""
        last_name, last_epoch, runs = self._last
        if (last_name, last_epoch) != (name, epoch):
            return ()
        for index, run in enumerate(runs):
            if run.position <= at < run.position + len(run.view):
                return runs[index:]
        return ()
