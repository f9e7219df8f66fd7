"""Answers and work that take time: which connections wait for them, and what happens then.

Owns which connections are held.  A held connection is not read any further, so that what its client sent
behind the packet in question is looked at after it.  Decides nothing.

Work (edge.steps) is done in slices: up to SLICE_S of it, of all clients together, each time the broker's
thread has polled.  Clients whose work is not done have their turns one after the other, TURN_S each.  While
the journal of sessions is half full no work is done, that for new topics neither: what is left of it is for
messages of topics that are known.

Invariants: a connection is held once, however many answers it waits for, and goes on when the last is there;
what is done with an answer is done on the broker's thread; an answer that fails is a refusal; work of one
owner is done in the order in which it came, to its end, whether its connection lasts or not.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TypeVar, cast

from edge.engine import Engine
from edge.steps import Steps, at_once

__all__ = ["Call", "Guard", "Pending"]

log = logging.getLogger(__name__)

T = TypeVar("T")
Call = Callable[[Callable[[], object]], None]  # runs a function on the broker's thread, from any other
SLICE_S = 0.001
TURN_S = 0.000_25
ROOM_S = 0.002  # from one look at the journal to the next, while work waits for room in it
Guard = Callable[[int, Callable[[], None]], None]  # runs one for a connection; what it raises ends that


class Pending:
    """Waits for answers, and does work, without blocking."""

    def __init__(
        self,
        engine: Engine,
        call: Call | None,
        guard: Guard,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`clock`: seconds, for slices of work; without `call` work is done at once."""
        self.call = call
        self._clock = clock
        self._slice_ends_s = clock()
        self._lines: dict[Hashable, deque[tuple[int, Steps[None]]]] = {}  # owner -> connection, its work
        self._turns: deque[Hashable] = deque()  # owners whose work is not done
        self._called = False  # _work_in_turns() will run
        self._waits = False  # for room in the journal, while there is work
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

    # ---- work ----

    def begin_slice(self) -> None:
        """The broker's thread has polled: there is time for work again."""
        self._slice_ends_s = self._clock() + SLICE_S

    def work(self, connection: int, owner: Hashable, steps: Steps[None]) -> None:
        """Do `steps`: now if they fit into the slice, else in turns, while `connection` (0: none) is held.

        Work of one `owner` is done in its order.
        """
        line = self._lines.get(owner)
        may_begin = line is None and self._clock() < self._slice_ends_s
        if may_begin and not self._must_wait() and self._has_ended(connection, steps):
            return
        if connection:
            self._hold(connection)
        if line is not None:
            line.append((connection, steps))
            return
        self._lines[owner] = deque(((connection, steps),))
        self._turns.append(owner)
        if len(self._turns) == 1:
            self._call_again()

    def _has_ended(self, connection: int, steps: Steps[None]) -> bool:
        """Do one of them or more; True if there are no more, as also after a mistake."""
        if self.call is None:
            self._guard(connection, partial(at_once, steps))
            return True
        until_s, has_ended = self._clock() + TURN_S, True

        def go_on() -> None:
            nonlocal has_ended
            while next(steps, self) is not self:
                if self._clock() >= until_s:
                    has_ended = False
                    return

        self._guard(connection, go_on)
        return has_ended

    def _call_again(self) -> None:
        """Work begets work: there is one slice for each poll, however often this is called."""
        assert self.call is not None
        if not self._called:
            self._called = True
            self.call(self._work_in_turns)

    def tick(self) -> float:
        """Go on if there is room in the journal again; seconds until it is to be looked at."""
        if self._waits and not self._engine.journal_is_short():
            self._waits = False
            self._call_again()
        return ROOM_S if self._waits else float("inf")

    def _must_wait(self) -> bool:
        """Work fills the journal faster than anything else, and once it is full no client is read."""
        return self.call is not None and self._engine.journal_is_short()

    def _work_in_turns(self) -> None:
        self._called = False
        slice_ends_s = self._clock() + SLICE_S
        while self._turns and not self._must_wait():
            owner = self._turns.popleft()
            line = self._lines[owner]
            connection, steps = line[0]
            if self._has_ended(connection, steps):
                line.popleft()
                self._let_go(connection)
            if line:
                self._turns.append(owner)
            else:
                del self._lines[owner]
            if self._clock() >= slice_ends_s:
                break
        self._waits = bool(self._turns) and self._must_wait()
        if self._turns and not self._waits:
            self._call_again()

    def _let_go(self, connection: int) -> None:
        """It waits for one thing less; with the last it goes on."""
        if connection not in self._held:
            return
        self._held[connection] -= 1
        if self._held[connection] == 0:
            del self._held[connection]
            self._engine.resume(connection)

    def _hold(self, connection: int) -> None:
        if connection not in self._held:
            self._engine.hold(connection)
        self._held[connection] = self._held.get(connection, 0) + 1

    def _arrived(self, connection: int, then: Callable[[], None], hold: bool) -> None:
        if connection and not self._engine.is_open(connection):
            return
        self._guard(connection, then)
        if hold:
            self._let_go(connection)


def _then(answers: Sequence[T | Future[T]], refusal: T, then: Callable[[list[T]], None]) -> None:
    then([_result(it, refusal) if isinstance(it, Future) else it for it in answers])


def _result(future: Future[T], refusal: T) -> T:
    try:
        return future.result(timeout=0)
    except (Exception, CancelledError):
        log.exception("an authenticator or access list has failed, which counts as a refusal")
        return refusal
