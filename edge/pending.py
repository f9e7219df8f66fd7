"""Answers that take time: who waits for them, and what happens then.

Owns which connections are held.  A held connection is not read any further, so that what its client sent
behind the packet in question is looked at after it.  Decides nothing.

Invariants: a connection is held once, however many answers it waits for, and goes on when the last is there;
what is done with an answer is done on the broker's thread; an answer that fails is a refusal.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TypeVar, cast

from edge.engine import Engine

__all__ = ["Call", "Guard", "Pending"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Call = Callable[[Callable[[], object]], None]  # runs a function on the broker's thread, from any other
Guard = Callable[[int, Callable[[], None]], None]  # runs one for a connection; what it raises ends that


class Pending:
    """Waits for answers without blocking."""

    def __init__(self, engine: Engine, call: Call | None, guard: Guard) -> None:
        self.call = call
        self._engine = engine
        self._guard = guard
        self._held: dict[int, int] = {}  # connection -> how many things it waits for

    def when(
        self,
        connection: int,
        answers: Sequence[T | Future[T]],
        refusal: T,
        then: Callable[[list[T]], None],
        *,
        hold: bool = True,
    ) -> None:
        """Calls `then` with the answers: now if all are there, else when they are.

        `refusal` stands for one that fails.  `connection` 0: nobody waits; else `then` is not called any
        more when the connection is gone.  `hold` False: it goes on meanwhile.
        """
        for answer in answers:
            if isinstance(answer, Future):
                self._wait(connection, answers, refusal, then, hold=hold and connection != 0)
                return
        then(cast(list[T], list(answers)))

    def _wait(
        self,
        connection: int,
        answers: Sequence[T | Future[T]],
        refusal: T,
        then: Callable[[list[T]], None],
        *,
        hold: bool,
    ) -> None:
        futures = [answer for answer in answers if isinstance(answer, Future)]
        call = self.call
        assert call is not None, "who answers with a Future needs Broker(call=...)"
        if hold:
            self._hold(connection)
        missing = [len(futures)]  # counted on the broker's thread

        def arrived() -> None:
            missing[0] -= 1
            if missing[0] == 0:
                self._arrived(connection, partial(_then, answers, refusal, then), hold)

        for future in futures:
            future.add_done_callback(lambda _: call(arrived))

    def forget(self, connection: int) -> None:
        """It is gone."""
        self._held.pop(connection, None)

    def _hold(self, connection: int) -> None:
        if connection not in self._held:
            self._engine.hold(connection)
        self._held[connection] = self._held.get(connection, 0) + 1

    def _arrived(self, connection: int, then: Callable[[], None], hold: bool) -> None:
        if connection and not self._engine.is_open(connection):
            return
        self._guard(connection, then)
        if not hold or connection not in self._held:
            return
        self._held[connection] -= 1
        if self._held[connection] == 0:
            del self._held[connection]
            self._engine.resume(connection)


def _then(answers: Sequence[T | Future[T]], refusal: T, then: Callable[[list[T]], None]) -> None:
    then([_result(it, refusal) if isinstance(it, Future) else it for it in answers])


def _result(future: Future[T], refusal: T) -> T:
    try:
        return future.result(timeout=0)
    except (Exception, CancelledError):
        log.exception("an authenticator or access list has failed, which counts as a refusal")
        return refusal
