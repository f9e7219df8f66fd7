"""Log read thread: reads the log for the coordinator, which never waits for a disk itself.

Owns one thread, started on demand, and the results that wait for the coordinator's thread.
"""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from edge.consumers.faults import Faults
from edge.consumers.protocol import NotDone

log = logging.getLogger(__name__)

T = TypeVar("T")


class LogReadThread:
    """One thread with `name`. It calls `wake` when a result is ready."""

    def __init__(self, name: str, wake: Callable[[], object], faults: Faults) -> None:
        self._name = name
        self._wake = wake
        self._faults = faults
        self._thread: ThreadPoolExecutor | None = None
        self._results: deque[Callable[[], None]] = deque()

    def submit(self, read: Callable[[], T], take: Callable[[T | OSError], None]) -> None:
        """Call `read` on the thread. run() calls `take` with its result, or the OSError that it raised.

        Also if the thread cannot be started: otherwise the partition would wait without end.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix=self._name)
        try:
            reading = self._thread.submit(read)
        except (RuntimeError, MemoryError) as error:
            self._thread.shutdown(wait=False, cancel_futures=True)
            self._thread = None
            reason = str(error) or os.strerror(errno.ENOMEM)
            self._results.append(partial(take, OSError(errno.ENOMEM, reason)))
            self._wake()
        else:
            reading.add_done_callback(partial(self._done, take))

    def run(self) -> None:
        """Deliver the results that are ready."""
        while self._results:
            with self._faults.contained("records of the log", lambda _: None):
                self._results.popleft()()

    def close(self) -> None:
        """Wait for the read that is under way, and end the thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None

    def _done(self, take: Callable[[T | OSError], None], future: Future[T]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self._results.append(partial(take, future.result()))
        elif isinstance(error, OSError):
            self._results.append(partial(take, error))
        else:  # a defect, which must not count as "no records": nothing is skipped because of it
            log.error("log records not delivered to consumers", exc_info=error)
            self._results.append(partial(take, OSError(errno.EIO, repr(error))))
        self._wake()


def unreadable(error: OSError) -> NotDone:
    """Error for a client whose request needs a file of the log that cannot be read."""
    hint = "see the broker's log; repeat the request later"
    return NotDone(f"the log cannot be read: {error.strerror}", "full", hint)
