"""Deferred decisions and steps: pauses the connections that wait, and resumes them.

Owns the paused connections. A paused connection is not read, so that packets after the one in question are
handled after it. Decides nothing.

Steps (edge.broker.sliced_work) run in slices: up to SLICE_S for all clients together, each time the broker's
thread has polled. Clients with unfinished steps take turns of TURN_S each. While the journal of sessions is
half full no step runs, not even for new topics: the rest of the journal is for messages of known topics.

Invariants: a connection is paused once, however many answers it waits for, and resumes after the last of
them. Answers are used on the broker's thread only. An answer that fails is a refusal. Steps of one owner
run in their order and to their end, even if its connection ends.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TypeVar, cast

from edge.broker.sliced_work import Steps, at_once
from edge.engine.engine import Engine

log = logging.getLogger(__name__)

T = TypeVar("T")
Call = Callable[[Callable[[], object]], None]  # runs a function on the broker's thread, from any other thread
SLICE_S = 0.001
TURN_S = 0.000_25
ROOM_S = 0.002  # between two checks of the journal, while steps wait for room in it
# runs a function for a connection; an exception ends that connection
RunGuarded = Callable[[int, Callable[[], None]], None]


class DeferredDecisions:
    """Waits for answers, and runs steps, without blocking the broker's thread."""

    def __init__(
        self,
        engine: Engine,
        call: Call | None,
        run_guarded: RunGuarded,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create an empty table. `clock` counts seconds of slices. Without `call` steps run at once."""
        self.call = call
        self._clock = clock
        self._slice_ends_s = clock()
        self._queues: dict[Hashable, deque[tuple[int, Steps[None]]]] = {}  # owner -> (connection, steps)
        self._turns: deque[Hashable] = deque()  # owners with unfinished steps
        self._called = False  # True if _run_turns() is scheduled
        self._waits = False  # True while steps wait for room in the journal
        self._engine = engine
        self._run_guarded = run_guarded
        self._paused: dict[int, int] = {}  # connection -> number of answers that it waits for

    def then(
        self,
        connection: int,
        answers: Sequence[T | Future[T]],
        refusal: T,
        then: Callable[[list[T]], None],
        *,
        pause: bool = True,
    ) -> None:
        """Call `then` with the answers: now if all are there, otherwise after the last has arrived.

        `refusal` replaces an answer that fails. `connection` 0 means that no connection waits; otherwise
        `then` is not called after the connection has ended. With `pause` False the connection is read
        meanwhile.
        """
        for answer in answers:
            if isinstance(answer, Future):
                self._wait(connection, answers, refusal, then, pause=pause and connection != 0)
                return
        then(cast(list[T], list(answers)))

    def _wait(
        self,
        connection: int,
        answers: Sequence[T | Future[T]],
        refusal: T,
        then: Callable[[list[T]], None],
        *,
        pause: bool,
    ) -> None:
        futures = [answer for answer in answers if isinstance(answer, Future)]
        call = self.call
        assert call is not None, "an answer that is a Future needs Broker(call=...)"
        if pause:
            self._pause(connection)
        missing = [len(futures)]  # changed on the broker's thread only

        def arrived() -> None:
            missing[0] -= 1
            if missing[0] == 0:
                self._arrived(connection, partial(_then, answers, refusal, then), pause)

        for future in futures:
            future.add_done_callback(lambda _: call(arrived))

    def forget(self, connection: int) -> None:
        """Drop the counts of a connection that has ended."""
        self._paused.pop(connection, None)

    # ---- steps ----

    def begin_slice(self) -> None:
        """Begin a slice of time for steps: the broker's thread has polled."""
        self._slice_ends_s = self._clock() + SLICE_S

    def work(self, connection: int, owner: Hashable, steps: Steps[None]) -> None:
        """Run `steps`: now if they fit into the slice, otherwise in turns, while `connection` (0: none) is
        paused.

        Steps of one `owner` run in their order.
        """
        queue = self._queues.get(owner)
        may_begin = queue is None and self._clock() < self._slice_ends_s
        if may_begin and not self._must_wait() and self._has_ended(connection, steps):
            return
        if connection:
            self._pause(connection)
        if queue is not None:
            queue.append((connection, steps))
            return
        self._queues[owner] = deque(((connection, steps),))
        self._turns.append(owner)
        if len(self._turns) == 1:
            self._call_again()

    def _has_ended(self, connection: int, steps: Steps[None]) -> bool:
        """Run steps for one turn. True if they have ended, also by an exception."""
        if self.call is None:
            self._run_guarded(connection, partial(at_once, steps))
            return True
        until_s, has_ended = self._clock() + TURN_S, True

        def run_turn() -> None:
            nonlocal has_ended
            while next(steps, self) is not self:
                if self._clock() >= until_s:
                    has_ended = False
                    return

        self._run_guarded(connection, run_turn)
        return has_ended

    def _call_again(self) -> None:
        """Schedule the next slice. There is one slice for each poll, however often this method is called."""
        assert self.call is not None
        if not self._called:
            self._called = True
            self.call(self._run_turns)

    def tick(self) -> float:
        """Continue the steps if the journal has room again. Returns the seconds until the next check."""
        if self._waits and not self._engine.journal_is_short():
            self._waits = False
            self._call_again()
        return ROOM_S if self._waits else float("inf")

    def _must_wait(self) -> bool:
        """True if steps must wait for the journal, which they fill fastest: a full one stops all reading."""
        return self.call is not None and self._engine.journal_is_short()

    def _run_turns(self) -> None:
        self._called = False
        slice_ends_s = self._clock() + SLICE_S
        while self._turns and not self._must_wait():
            owner = self._turns.popleft()
            queue = self._queues[owner]
            connection, steps = queue[0]
            if self._has_ended(connection, steps):
                queue.popleft()
                self._count_answer(connection)
            if queue:
                self._turns.append(owner)
            else:
                del self._queues[owner]
            if self._clock() >= slice_ends_s:
                break
        self._waits = bool(self._turns) and self._must_wait()
        if self._turns and not self._waits:
            self._call_again()

    def _count_answer(self, connection: int) -> None:
        """Count one answer less for a connection; after the last it is resumed."""
        if connection not in self._paused:
            return
        self._paused[connection] -= 1
        if self._paused[connection] == 0:
            del self._paused[connection]
            self._engine.resume(connection)

    def _pause(self, connection: int) -> None:
        if connection not in self._paused:
            self._engine.pause(connection)
        self._paused[connection] = self._paused.get(connection, 0) + 1

    def _arrived(self, connection: int, then: Callable[[], None], pause: bool) -> None:
        if connection and not self._engine.is_open(connection):
            return
        self._run_guarded(connection, then)
        if pause:
            self._count_answer(connection)


def _then(answers: Sequence[T | Future[T]], refusal: T, then: Callable[[list[T]], None]) -> None:
    then([_result(answer, refusal) if isinstance(answer, Future) else answer for answer in answers])


def _result(future: Future[T], refusal: T) -> T:
    try:
        return future.result(timeout=0)
    except (Exception, CancelledError):
        log.exception("authenticator or access list failed, request refused")
        return refusal
