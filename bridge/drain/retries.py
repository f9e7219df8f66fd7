"""Retries of a bridge whose sink, checkpoint or source has failed: their pauses, and what is logged.

A failed step is tried again after a random time of up to 0.5 s, 1 s, 2 s, ... 60 s, without end. With full
jitter, bridges that lost the same sink do not come back in step. One success resets the time. A sink that
blocks the bridge is not tried again before an operator resumes it. Owns no thread: bridge.py waits.
restarts.py has the errors of no known class.

One kind of failure is logged once until a success, and not more than once a minute: a store that refuses some
requests fails many times a minute.
"""

from __future__ import annotations

import logging
import math
import re
import time

from bridge.backoff import Backoff
from bridge.errors import BridgeError

log = logging.getLogger(__name__)

LOGGED_AGAIN_S, LOGGED_MAX = 60.0, 32  # for each kind of failure; kinds
KIND_MAX = 1000  # characters of an error that are compared


class Retries:
    """Retries of the bridge `name`."""

    def __init__(self, name: str, backoff: Backoff) -> None:
        self._name = name
        self._backoff = backoff
        self._logged: dict[str, float] = {}  # kind of failure: time of the log line
        self._logged_kind = ""  # kind of the failure that was logged since the last success

    @property
    def failures(self) -> int:
        """Number of failures in a row."""
        return self._backoff.failures

    def failed(self, error: BridgeError) -> float:
        """Record a failure. Returns the seconds until the next try."""
        wait_s = self._backoff.next_s()
        kind, now = _kind_of(error), time.monotonic()
        if now - self._logged.get(kind, -math.inf) >= LOGGED_AGAIN_S:
            self._log("retrying", error, kind, now)
        log.debug("bridge retry scheduled name=%s in_s=%.1f failures=%d", self._name, wait_s, self.failures)
        return wait_s

    def blocked(self, error: BridgeError) -> None:
        """Record a failure after which only an operator continues the bridge."""
        self._log("blocked", error, _kind_of(error), time.monotonic())

    def succeeded(self) -> None:
        """Record a success."""
        if self._logged_kind:
            log.info("bridge continued name=%s failures=%d", self._name, self.failures)
        self._logged_kind = ""
        self._backoff.reset()

    def resumed(self) -> None:
        """Begin with the shortest pause again: an operator has resumed the bridge."""
        self._backoff.reset()

    def _log(self, condition: str, error: BridgeError, kind: str, now: float) -> None:
        if kind == self._logged_kind:
            return
        if len(self._logged) >= LOGGED_MAX:
            self._logged.clear()
        self._logged[kind] = now
        reason = f"{error}; {error.hint}" if error.hint else str(error)
        log.warning("bridge %s name=%s reason=%s", condition, self._name, reason)
        self._logged_kind = kind


def _kind_of(error: BridgeError) -> str:
    """The error without times, names of files and long numbers: tries with one cause have one text."""
    text = str(error)[:KIND_MAX]  # the expression takes quadratic time
    return re.sub(r"[\d.]+ ?[mµn]?s\b|\S+\.(?:brim|parquet)\S*|\d{6,}", "", text)
