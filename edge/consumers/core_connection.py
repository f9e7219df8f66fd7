"""Connection of a core: a ZeroMQ socket around a state machine that creates requests and processes answers.

Owns the socket. The core decides; this module sends its requests, passes it the answers, and returns its
batches. client.py and reader.py use the blocking form, client_asyncio.py and reader_asyncio.py the other one
(core_connection_asyncio.py).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from typing import Generic, Protocol, Self, TypeVar

import zmq

from edge.consumers.client_socket import ClientSocket
from edge.consumers.protocol import FILTERS_MAX, Answer, RequestMessage
from edge.errors import InvalidArgument, NotOpen, Refused, check_seconds, opened_before_fork
from edge.local.curve_keys import Curve
from edge.local.filters import checked_filters

SLICE_S = 0.1  # the longest sleep: then the connection is looked at
LEAVE_MS = 500  # for the answer to the last request

B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


def check_argument(
    name: str, value: float, least: float, most: float, hint: str = "choose a value within the limits"
) -> None:
    """Raise InvalidArgument unless least <= value <= most."""
    if not least <= value <= most:
        raise InvalidArgument(f"invalid {name} {value} (allowed: {least} to {most})", hint=hint)


def check_filters(filters: str | Iterable[str]) -> tuple[str, ...]:
    """Return the filters as a tuple. Raises InvalidArgument for an invalid one, none, or too many."""
    names = checked_filters(filters)
    if len(names) > FILTERS_MAX:
        hint = "name fewer, with wildcards"
        raise InvalidArgument(f"{len(names)} topic filters (allowed: {FILTERS_MAX})", hint=hint)
    return names


class Core(Protocol[B_co]):
    """State machine without sockets. Times are of time.monotonic()."""

    refusal: Refused | None  # of the first request: a repetition would be refused too

    @property
    def joined(self) -> bool:
        """True if the broker has accepted the first request."""

    def requests(self, now_s: float, *, connected: bool) -> list[RequestMessage]:
        """Requests to send now. Those that cannot be sent go to unsent()."""

    def unsent(self, request: RequestMessage) -> None:
        """Take a request back that could not be sent."""

    def due_s(self, now_s: float) -> float:
        """Time at which requests() or next_batch() may have something, if no answer comes."""

    def take(self, answer: Answer, frames: list[bytes], now_s: float) -> None:
        """Process an answer."""

    def next_batch(self, now_s: float) -> B_co | None:
        """Remove and return the next batch; None if there is none now."""

    def leave(self) -> RequestMessage | None:
        """The last request; None if none is necessary."""


class CoreConnection(Generic[B]):
    """Socket and core. Opens the socket and never waits."""

    _noun = "consumer"

    def __init__(self, core: Core[B], endpoint: str, curve: Curve | None, connect_timeout_s: float) -> None:
        check_seconds("connect_timeout_s", connect_timeout_s)
        self._core = core
        self._endpoint = endpoint
        self._curve = curve
        self._connect_timeout_s = connect_timeout_s
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._client_socket: ClientSocket | None = None
        self._is_closed = False
        self._pid = 0  # of the process that has opened the socket

    def _opened(self) -> ClientSocket:
        if self._client_socket is None or self._is_closed:
            raise self._not_open()
        if self._is_forked():
            raise opened_before_fork(self._noun)
        return self._client_socket

    def _is_forked(self) -> bool:
        """True in a forked child: the parent has the threads of the socket, and closes it."""
        return self._pid != os.getpid()

    def _not_open(self) -> NotOpen:
        state = "closed" if self._is_closed else "not open"
        return NotOpen(f"the {self._noun} is {state}", hint="use it inside `with` or `async with`")

    def _exchange(self) -> float:
        """Send waiting requests, and receive answers. Returns the seconds until the next call is due."""
        socket, core = self._opened(), self._core
        now_s = time.monotonic()
        while (received := socket.receive()) is not None:
            core.take(*received, now_s)
        if not (connected := socket.connected):
            socket.check()
        for request in core.requests(now_s, connected=connected):
            if not socket.send(request):
                core.unsent(request)
        return min(max(core.due_s(now_s) - now_s, 0.0), SLICE_S)

    def _open(self) -> None:
        self._is_closed = False
        self._pid = os.getpid()
        self._context = zmq.Context()
        self._client_socket = ClientSocket(self._context, self._endpoint, self._curve)

    def _send_leave(self) -> bool:
        leave = self._core.leave()
        return leave is not None and self._client_socket is not None and self._client_socket.send(leave)

    def _close(self) -> None:
        if self._client_socket is not None and self._context is not None:
            self._client_socket.close()
            self._context.term()
            self._client_socket = self._context = None

    def _raise_refusal(self) -> None:
        if self._core.refusal is not None:
            raise self._core.refusal


class BlockingConnection(CoreConnection[B]):
    """Form without asyncio: one thread, no event loop. Another thread may call close(), and nothing else."""

    _using: threading.RLock  # held while the socket is used

    def __enter__(self) -> Self:
        self._using = threading.RLock()
        self._open()
        deadline = time.monotonic() + self._connect_timeout_s
        try:
            while not self._core.joined:
                self._raise_refusal()
                if time.monotonic() >= deadline:
                    raise self._opened().unreachable()
                self._step(SLICE_S)
        except BaseException:
            with self._using:
                self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the broker. Records in hand come to other members of a group. May be called twice.

        From any thread: a method that waits in another one raises NotOpen.
        """
        if self._client_socket is None or self._is_forked():
            return
        self._is_closed = True
        with self._using:
            if self._send_leave() and self._client_socket is not None:
                self._client_socket.socket.poll(LEAVE_MS)
            self._close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> B:
        while (batch := self.read(SLICE_S)) is None:
            pass
        return batch

    def read(self, timeout_s: float = 0.0) -> B | None:
        """The next batch; None if there is none within `timeout_s`."""
        check_seconds("timeout_s", timeout_s)
        deadline = time.monotonic() + timeout_s
        self._step(0.0)
        while (batch := self._core.next_batch(time.monotonic())) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            self._step(min(left_s, SLICE_S))
        self._step(0.0)  # requests the next one
        return batch

    def _step(self, timeout_s: float) -> None:
        """Send, wait at most so long for an answer, and take what has come."""
        self._opened()
        with self._using:
            pause_s = self._exchange()
            if timeout_s > 0 and self._poll(min(pause_s, timeout_s)):
                self._exchange()

    def _poll(self, timeout_s: float) -> bool:
        """True if an answer comes. Raises NotOpen, also if a signal handler closes the connection."""
        try:
            return bool(self._opened().socket.poll(int(timeout_s * 1000) + 1))
        except zmq.ZMQError:
            self._opened()
            raise
