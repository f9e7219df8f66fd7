"""Client of a control socket: one request at a time, with or without an event loop, and notifications.

The end of a connection shows the server that a process has ended.  So a process keeps its connection while it
uses a resource that it was granted on it.
"""

from __future__ import annotations

import asyncio
import select
import socket
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from edge.errors import AccessDenied, BrokerUnreachable, ControlError, NoAnswer
from edge.rpc.protocol import Message, Protocol, encode, expect
from edge.user_names import user_name

REPLY_TIMEOUT_S: Final = 5.0  # the broker answers between two batches of work
CONNECT_MAX_MS = 1_000  # while the server's queue of connections is full; blocks an event loop, too

_CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid

M = TypeVar("M", bound=Message)


class RpcClient:
    """Connection to the server at `path`. Only request() blocks. `news` has messages of type `notification`.

    `uids`: accept only a server of one of these users; None: of any user. Raises BrokerUnreachable if no
    server listens there, or after it has ended.
    """

    def __init__(
        self,
        protocol: Protocol,
        path: Path,
        *,
        uids: frozenset[int] | None = None,
        notification: type[Message] | tuple[()] = (),
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> None:
        self.news: deque[Any] = deque()
        self._protocol = protocol
        self._notification = notification
        self._timeout_s = timeout_s
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connect_s = min(CONNECT_MAX_MS / 1_000, timeout_s)
            connect_us = max(int(connect_s * 1_000_000), 1)  # 0 would be no limit
            timeval = struct.pack("ll", *divmod(connect_us, 1_000_000))
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            self._socket.connect(str(path))
            self._socket.setblocking(False)
            self.pid, self.uid = credentials_of(self._socket)
        except OSError as error:
            self._socket.close()
            raise unreachable(path, error, protocol.server) from error
        if uids is not None and self.uid not in uids:
            self._socket.close()
            text = f"{path} is answered by a {protocol.server} of user {user_name(self.uid)}"
            raise BrokerUnreachable(text, hint="if you trust that user, name the runtime directory yourself")

    def request(self, request: Message, kind: type[M]) -> M:
        """Send a request and return its answer, within the timeout. Raises Refused if the server refuses."""
        self._send(request)
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        deadline = time.monotonic() + self._timeout_s
        while (answer := self.receive()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not readable.poll(left_s * 1000):
                raise self._silent()
        return expect(answer, kind)

    async def request_async(self, request: Message, kind: type[M]) -> M:
        """As request(), without blocking the event loop."""
        self._send(request)
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._socket, readable.set)
        try:
            async with asyncio.timeout(self._timeout_s):
                while (answer := self.receive()) is None:
                    await readable.wait()
                    readable.clear()
        except TimeoutError as error:
            raise self._silent() from error
        finally:
            loop.remove_reader(self._socket)
        return expect(answer, kind)

    def receive(self) -> Message | None:
        """The next answer, or None if there is none yet. Notifications go to `news`."""
        while True:
            try:
                data, _, flags, _ = self._socket.recvmsg(self._protocol.answer_max_bytes)
            except BlockingIOError:
                return None
            except OSError as error:
                raise self._gone() from error
            if not data:
                raise self._gone()
            if flags & socket.MSG_TRUNC:
                raise ControlError(f"an answer above {self._protocol.answer_max_bytes} bytes")
            answer: Message = self._protocol.decode_answer(data)
            if not isinstance(answer, self._notification):
                return answer
            self.news.append(answer)

    def fileno(self) -> int:
        """For selectors and event loops: readable when receive() has something, or the server has ended."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection. The server takes back everything that it granted on it."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, request: Message) -> None:
        data, limit = encode(request), self._protocol.request_max_bytes
        if len(data) > limit:
            text = f"a request of {len(data)} bytes is above the limit, {limit}"
            raise ControlError(text, hint="name fewer or shorter topic filters")
        try:
            self._socket.send(data)
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> BrokerUnreachable:
        return BrokerUnreachable(f"the {self._protocol.server} (pid {self.pid}) is gone")

    def _silent(self) -> NoAnswer:
        return NoAnswer(f"no answer from the {self._protocol.server} (pid {self.pid}) in {self._timeout_s} s")


def credentials_of(connected: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end, from the kernel. Raises OSError."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(credentials)
    return pid, uid


def unreachable(path: Path, error: OSError, server: str) -> BrokerUnreachable:
    """Error for a socket that cannot be connected to."""
    if isinstance(error, PermissionError):
        return AccessDenied(
            f"{path}: user {user_name()} may not talk to this {server}",
            hint=f"run as the {server}'s user, or join the group of {path.parent}",
        )
    if isinstance(error, BlockingIOError):
        return NoAnswer(f"{path}: the {server} accepts no connection now", hint="close some connections")
    return BrokerUnreachable(
        f"no {server} answers at {path}", hint="start one with `brim run`, or name its runtime directory"
    )
