"""A line to an HTTP server that can be cut, in the ways in which lines and servers fail: a TCP proxy.

    refused      no listener: each connection is refused, and those that were there are reset
    half-open    connections are made, some bytes more go through, and then nothing does, either way, for ever
    slow         a few kilobytes a second
    credentials  the server answers, and denies: 403
    full         the server answers, and has no room: 507 to every PUT

Runs on a thread of its own.  A connection that was cut half-open stays so, as real ones do: a client gets no
answer on it.  The port stays the same.
"""

import asyncio
import socket
import threading
from collections.abc import Coroutine
from contextlib import suppress
from random import Random
from typing import Any, Literal, Self, get_args

from tests.support.waiting import PATIENCE_S

Kind = Literal["refused", "half-open", "slow", "credentials", "full"]
KINDS: tuple[Kind, ...] = get_args(Kind)

CHUNK_BYTES = 1 << 14
SLOW_BYTES_S = 30_000
STEP_S = 0.01
ANSWERS = {
    "credentials": ("403 Forbidden", "InvalidAccessKeyId", "The key that you gave is not known here."),
    "full": ("507 Insufficient Storage", "XMinioStorageFull", "There is no room on the drives."),
}


class CutLine:
    """From `port` of this machine to `upstream`.  A context manager."""

    def __init__(self, upstream: int, seed: int = 0) -> None:
        self._upstream = upstream
        self._random = Random(seed)
        self._kind: Kind | None = None
        self._passes = 0  # bytes that a line that is half open lets through
        self._connections: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self._mute: set[asyncio.Task[None]] = set()
        self._place = _bound(0)  # never listens: the port stays ours, and refuses
        self.port: int = self._place.getsockname()[1]
        self._server: asyncio.Server | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cut-line")

    def __enter__(self) -> Self:
        self._thread.start()
        self.mend()
        return self

    def __exit__(self, *_: object) -> None:
        self._await(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._place.close()

    def cut(self, kind: Kind) -> None:
        """From now on, until mend()."""
        self._await(self._cut(kind))

    def mend(self) -> None:
        """Forward all bytes from now on."""
        self._await(self._mend())

    def reset(self) -> None:
        """Every connection there is ends at both of its ends, and bytes in flight are lost."""
        self._await(self._reset())

    def _await(self, doing: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(doing, self._loop).result(PATIENCE_S)

    # ---- on the thread ----

    async def _cut(self, kind: Kind) -> None:
        self._kind = kind
        self._passes = self._random.choice([0, self._random.randrange(1 << 20)])
        if kind == "refused":
            await self._stop_listening()
        if kind not in {"slow", "half-open"}:
            await self._reset()

    async def _mend(self) -> None:
        self._kind = None
        if self._server is None:
            listening = _bound(self.port)
            self._server = await asyncio.start_server(self._serve, sock=listening, limit=CHUNK_BYTES)

    async def _reset(self) -> None:
        """Also what has just been accepted, and is not known here yet."""
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in self._connections:
                task.cancel()
            await asyncio.wait(others, timeout=STEP_S)

    async def _stop_listening(self) -> None:
        """A server that closes forgets what it has accepted and not begun to serve, and leaves it open: so
        nothing more is accepted before that, and what just was gets its turn.
        """
        if (server := self._server) is None:
            return
        self._server = None
        for listening in server.sockets:
            self._loop.remove_reader(listening.fileno())
        await asyncio.sleep(0)
        server.close()

    async def _close(self) -> None:
        await self._stop_listening()
        await self._reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends = self._connections[task] = [writer]
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                if self._kind in ANSWERS:
                    await self._answer(self._kind, reader, ends)
                else:
                    await self._join(reader, ends)
        except asyncio.CancelledError:
            pass
        finally:
            for end in ends:
                _abort(end)
            self._mute.discard(task)
            del self._connections[task]

    async def _join(
        self, reader: asyncio.StreamReader, ends: list[asyncio.StreamWriter], first: bytes = b""
    ) -> None:
        """Until one of both ends it."""
        answers, writer = await asyncio.open_connection("127.0.0.1", self._upstream, limit=CHUNK_BYTES)
        ends.append(writer)
        writer.write(first)
        task = asyncio.current_task()
        assert task is not None
        there = asyncio.create_task(self._pump(task, reader, writer))
        back = asyncio.create_task(self._pump(task, answers, ends[0]))
        try:
            await asyncio.wait([there, back], return_when=asyncio.FIRST_COMPLETED)
            if back.done() and not there.done():  # its last words are to arrive
                ends[0].close()
                await ends[0].wait_closed()
        finally:
            for it in (there, back):
                it.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    async def _pump(
        self, connection: asyncio.Task[None], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while data := await reader.read(CHUNK_BYTES if self._kind is None else 1 << 11):
            if self._kind == "half-open":
                self._passes -= len(data)
                if self._passes < 0:
                    self._mute.add(connection)
            if connection in self._mute:
                continue
            if self._kind == "slow":
                await asyncio.sleep(len(data) / SLOW_BYTES_S)
            writer.write(data)
            await writer.drain()

    async def _answer(
        self, kind: str, reader: asyncio.StreamReader, ends: list[asyncio.StreamWriter]
    ) -> None:
        """One request, as a server would that is reached and will not."""
        head = await reader.readuntil(b"\r\n\r\n")
        if kind == "full" and not head.startswith(b"PUT "):
            last = head[:-2] + b"Connection: close\r\n\r\n"
            await self._join(reader, ends, last)
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        await reader.readexactly(int(fields.get(b"content-length", b"0")))
        status, code, text = ANSWERS[kind]
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{text}</Message></Error>'
        if head.startswith(b"HEAD "):
            body = ""
        about = f"Content-Type: application/xml\r\nContent-Length: {len(body)}\r\nConnection: close"
        ends[0].write(f"HTTP/1.1 {status}\r\n{about}\r\n\r\n{body}".encode())
        await ends[0].drain()
        ends[0].close()
        await ends[0].wait_closed()


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


def _abort(writer: asyncio.StreamWriter) -> None:
    """With a reset, and nothing of what is still to be sent."""
    if not writer.transport.is_closing():
        its = writer.get_extra_info("socket")
        its.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()
