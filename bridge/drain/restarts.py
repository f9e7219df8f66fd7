"""Restarts of a drain after an error of no known class: their number, their pauses, and what is logged.

Known errors (bridge/errors.py) are retried with the same drain (retries.py). After any other error the state
in memory may be half changed, so the drain is dropped as by a kill, and the next one begins from the
checkpoint. An error while one partition is read blocks only that partition (partitions.py). Owns no thread
and no drain.

Pauses grow with each failure, and are reset by a drain that ran for a minute. An error is logged with its
traceback once; the same error again only at level DEBUG.
"""

from __future__ import annotations

import logging
import time

from bridge.backoff import Backoff
from bridge.errors import BridgeError
from persistence.errors import is_thread_limit

log = logging.getLogger(__name__)

LIMITS_REMEDY = "raise TasksMax= of the service, `ulimit -u`, or a limit of memory (`ulimit -v`, MemoryMax=)"
STEADY_S = 60.0  # a drain that ran for so long has recovered from the last error


class Restarts:
    """Restarts of the drain of the bridge `name`."""

    def __init__(self, name: str, backoff: Backoff) -> None:
        self.count = 0
        self._name = name
        self._backoff = backoff
        self._logged = ""
        self._began_s = time.monotonic()

    @property
    def failures(self) -> int:
        """Number of failures in a row."""
        return self._backoff.failures

    def begin(self) -> None:
        """Record that a drain begins."""
        self._began_s = time.monotonic()

    def failed(self, error: BaseException) -> float:
        """Record that a drain failed. Returns the seconds until the next one."""
        if time.monotonic() - self._began_s >= STEADY_S:
            self._backoff.reset()
            self._logged = ""
        self.count += 1
        wait_s = self._backoff.next_s()
        text = words_of(error)
        repeated, self._logged = text == self._logged, text
        is_explained = isinstance(error, BridgeError) or lacks_threads_or_memory(error)
        log.log(
            logging.DEBUG if repeated else logging.ERROR,
            "bridge failed name=%s reason=%s restart_in_s=%.1f restarts=%d; %s",
            self._name,
            text,
            wait_s,
            self.count,
            remedy_of(error, self._name),
            exc_info=None if repeated or is_explained else error,
        )
        return wait_s


def lacks_threads_or_memory(error: BaseException) -> bool:
    """True if the process may start no more threads, or gets no memory. A skip of records does not help."""
    return isinstance(error, MemoryError) or is_thread_limit(error)


def words_of(error: BaseException) -> str:
    """The error for people: its sentence, or its class and arguments if it has none."""
    return str(error) if isinstance(error, BridgeError) else repr(error)


def remedy_of(error: BaseException, name: str) -> str:
    """The remedy for an error of the bridge `name`."""
    if isinstance(error, BridgeError):
        return error.hint
    if lacks_threads_or_memory(error):
        return f"{LIMITS_REMEDY}: the bridge starts again from its checkpoint"
    return f"a mistake in the program: the bridge starts again from its checkpoint; {skip_hint(name)}"


def skip_hint(arguments: str) -> str:
    """The remedy for a mistake in the program; `arguments` of `brim bridge skip`."""
    command = f"brim bridge skip {arguments}"
    return f"report the traceback in the log; `{command}` passes over the records that wait"
