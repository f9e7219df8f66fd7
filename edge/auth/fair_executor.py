"""Fair executor: a few threads for work of many addresses, which take turns.

Owns the threads, and a bounded queue for each address that waits. Knows nothing of passwords.

Invariants: at most `waiting_max` pieces of work exist, those under way included. Each address in turn gets
its oldest piece done. When all is full, a new piece replaces the newest piece of the address that has most of
them. It is refused only if that address has no more than its own.
"""

from __future__ import annotations

import ipaddress
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

NETWORK_BITS = 64  # of IPv6: one machine has all addresses of such a network


def origin(address: str) -> str:
    """The unit that takes turns: the host in `192.0.2.7:50123`, the network in `[2001:db8::7]:50123`.

    All loopback addresses are one: any process of this machine has all of them.
    """
    host = address.rpartition(":")[0]
    if not host.startswith("["):
        return "127.0.0.0/8" if host.startswith("127.") else host
    return str(ipaddress.IPv6Network((host[1:-1], NETWORK_BITS), strict=False))


class _Work:
    """One piece of work, and the Future of its result."""

    __slots__ = ("do", "result")

    def __init__(self, do: Callable[[], bool]) -> None:
        self.do = do
        self.result: Future[bool] = Future()

    def run(self) -> None:
        if not self.result.set_running_or_notify_cancel():
            return
        try:
            self.result.set_result(self.do())
        except BaseException as error:  # noqa: BLE001 - reported through the Future
            self.result.set_exception(error)


class FairExecutor:
    """Executor. Any thread may call submit(); close() on one thread only. Threads are started on demand."""

    def __init__(self, threads: int, waiting_max: int, name: str) -> None:
        self._threads_max = threads
        self._waiting_max = waiting_max
        self._name = name
        self._changed = threading.Condition()
        self._queues: dict[str, deque[_Work]] = {}  # without empty queues; the first has the next turn
        self._waiting = 0
        self._idle = 0
        self._is_closed = False
        self._threads: list[threading.Thread] = []

    def submit(self, source: str, do: Callable[[], bool]) -> tuple[Future[bool] | None, str | None]:
        """Queue `do`. Returns the Future of its result, or None if `source` has too much work waiting.

        The second value is the address that was refused for it: `source`, another one whose newest piece was
        dropped (its Future is False), or None.
        """
        work = _Work(do)
        given_up: _Work | None = None
        refused: str | None = None
        with self._changed:
            if self._is_closed:
                return None, source
            if self._waiting >= self._waiting_max:
                refused = self._most_waiting()
                if len(self._queues.get(refused, ())) <= len(self._queues.get(source, ())) + 1:
                    return None, source
                given_up = self._queues[refused].pop()
                self._waiting -= 1
            self._waiting += 1
            self._queues.setdefault(source, deque()).append(work)
            if self._idle:
                self._changed.notify()
            elif len(self._threads) < self._threads_max:
                self._start()
        if given_up is not None and given_up.result.set_running_or_notify_cancel():
            given_up.result.set_result(False)
        return work.result, refused

    def close(self) -> None:
        """Drop waiting work, and end the threads after their current piece."""
        with self._changed:
            self._is_closed = True
            left = [work for queue in self._queues.values() for work in queue]
            self._queues.clear()
            self._changed.notify_all()
        for work in left:
            work.result.cancel()
        for thread in self._threads:
            thread.join()

    def _most_waiting(self) -> str:
        return max(self._queues, key=lambda source: len(self._queues[source]), default="")

    def _start(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        # daemon: a forgotten executor does not delay the exit
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        with suppress(RuntimeError):  # no memory for the thread; the next submit() tries again
            thread.start()
            self._threads.append(thread)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            work.run()
            with self._changed:
                self._waiting -= 1

    def _next(self) -> _Work | None:
        with self._changed:
            while not self._queues:
                if self._is_closed:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            source = next(iter(self._queues))
            queue = self._queues.pop(source)
            work = queue.popleft()
            if queue:
                self._queues[source] = queue  # behind all others
            return work
