"""Faults: unexpected exceptions of one request, fetch or partition, and refusals because of the share of an
owner: counted, rarely logged.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from edge.consumers.protocol import RequestMessage
from edge.consumers.quota import OverShare
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

# context that answers a request of a peer with an error if its block raises
Contained = Callable[[bytes, RequestMessage], AbstractContextManager[None]]


class Faults:
    """Counters in `counts`: `errors`, exceptions, and `over_share`. Logs at most one of each in 10 s."""

    def __init__(self, counts: Counter[str], clock: Callable[[], float]) -> None:
        self._counts = counts
        self._may_log = LogThrottle(clock)
        self._may_warn = LogThrottle(clock)

    @contextmanager
    def contained(self, action: str, then: Callable[[Exception], object]) -> Iterator[None]:
        """Catch an exception of the block and pass it to `then`. Everything else continues."""
        try:
            yield
        except Exception as error:
            self._counts["errors"] += 1
            if self._may_log():
                text = "consumer endpoint failed at one step, and continued with the others %s"
                log.exception(text, pairs(step=action, errors=self._counts["errors"]))
            then(error)

    def over_share(self, error: OverShare) -> None:
        """Report a refusal because of the share of an owner."""
        self._counts["over_share"] += 1
        if self._may_warn():
            details = pairs(owner=error.owner, reason=error, refused=self._counts["over_share"])
            log.warning("consumer refused: its user, address or key has its share %s", details)
