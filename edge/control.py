"""Control protocol: the messages of the control socket, and its client side.

control.sock in the runtime directory is a SOCK_SEQPACKET socket: one datagram is one message, a msgpack map
with "op". Each request of a connection gets one answer, in order. On a connection that follows, notifications
(`ring_added`) may come in between. The end of a connection shows the broker that a process has ended, so a
process must keep the connection while it uses what it was granted.

    request          answer
    status           report      the content of `brim status`
    rings            ring_list   the rings that may hold records for some topic filters
    gate             done        let this gating reader block the writer while the connection lasts
    produce          ring_list   one ring, for this process to write
    sessions         session_list  a page of the sessions of MQTT clients
    remove_session   done        end a session; only for the broker's own user, and root
    drained          done        a sink has records that publishers may wait for (durability = "upstream")

Any request may be answered by `failed`. Rule for change: further ops, and further keys with defaults, are
added freely. Anything else raises VERSION, which is in every request and which the broker checks.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

import msgspec

from edge.directories import StrPath, control_socket, runtime_directory
from edge.errors import AccessDenied, BrokerUnreachable, ControlError, NoAnswer, Refused

__all__ = [
    "ANSWER_MAX_BYTES",
    "REQUEST_MAX_BYTES",
    "VERSION",
    "Answer",
    "Connection",
    "Done",
    "Drained",
    "Failed",
    "Gate",
    "Message",
    "Produce",
    "RemoveSession",
    "Report",
    "Request",
    "RingAdded",
    "RingFacts",
    "RingList",
    "Rings",
    "SessionList",
    "Sessions",
    "Status",
    "decode_request",
    "encode",
]  # fmt: skip

VERSION: Final = 1
REQUEST_MAX_BYTES: Final = 16 << 10  # about a hundred long topic filters
ANSWER_MAX_BYTES: Final = 128 << 10  # below the 208 KiB that Linux allows a datagram in a socket's buffer
REPLY_TIMEOUT_S: Final = 5.0  # the broker answers between two batches of work

CREDENTIALS: Final = struct.Struct("iII")  # struct ucred: pid, uid, gid

A = TypeVar("A", bound="Message")


class Message(msgspec.Struct, tag_field="op", tag=str.lower, frozen=True):
    """Base of all messages of the control socket."""


class Status(Message, frozen=True):
    """Request the status report."""

    version: int = VERSION


class Rings(Message, frozen=True):
    """Request the rings that may hold records for `filters`; `follow`: and notifications about new ones."""

    filters: tuple[str, ...]
    follow: bool = False
    version: int = VERSION


class Gate(Message, frozen=True):
    """Request that the gating reader in `slot` of the cursor file of `ring` can block the writer."""

    ring: str
    slot: int
    version: int = VERSION


class Produce(Message, frozen=True):
    """Request the ring "{stream}@{producer}", to write."""

    producer: str
    stream: str
    version: int = VERSION


class RingFacts(msgspec.Struct, frozen=True):
    """A ring that processes of this machine may attach."""

    name: str
    path: str  # without suffix, as Ring.attach() requires
    epoch: int
    stream: str
    kind: Literal["partition", "producer"]
    when_full: Literal["overwrite", "block", "reject"]
    queue_timeout_ms: int


class RingList(Message, frozen=True, tag="ring_list"):
    """The requested rings."""

    rings: tuple[RingFacts, ...]


class RingAdded(Message, frozen=True, tag="ring_added"):
    """Notification: a new ring that may hold records for the filters of this connection."""

    ring: RingFacts


class Report(Message, frozen=True):
    """Status report of the broker."""

    report: dict[str, Any]


class Done(Message, frozen=True):
    """Success, without further data."""


class Failed(Message, frozen=True):
    """Failure, with its reason and a remedy."""

    error: str
    hint: str = ""


class Drained(Message, frozen=True):
    """Report the progress of the sink of `bridge`, which runs outside the broker, in a ring.

    `lost`: offsets below `offset` that the sink does not have.
    """

    bridge: str
    ring: str
    epoch: int
    offset: int
    lost: tuple[tuple[int, int], ...] = ()
    version: int = VERSION


class Sessions(Message, frozen=True):
    """Request a page of the sessions of MQTT clients, oldest first, from number `first` on."""

    first: int = 0
    version: int = VERSION


class SessionList(Message, frozen=True, tag="session_list"):
    """Sessions (edge.stats.ClientRow); `more`: True if further sessions follow."""

    sessions: tuple[dict[str, Any], ...]
    more: bool


class RemoveSession(Message, frozen=True, tag="remove_session"):
    """Request the end of the session of a client, and of its connection."""

    client_id: str
    version: int = VERSION


Request = Status | Rings | Gate | Produce | Drained | Sessions | RemoveSession
Answer = RingList | Report | SessionList | Done | Failed

encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(Request).decode
_decode_answer = msgspec.msgpack.Decoder(Answer | RingAdded).decode


class _Envelope(msgspec.Struct):
    version: int = 0


_decode_envelope = msgspec.msgpack.Decoder(_Envelope).decode


def decode_request(data: bytes) -> Request:
    """Decode a request. Raises ControlError, whose text may be sent to the peer."""
    try:
        version = _decode_envelope(data).version
        if version != VERSION:
            raise ControlError(
                f"control protocol version {version}; this broker speaks {VERSION}",
                hint="use a client and a broker of the same version of Brim",
            )
        request: Request = _decode_request(data)
    # the decoder raises all of these
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ControlError(f"no request: {error}") from error
    return request


class Connection:
    """Client side of the control socket. Only ask() blocks; `news` collects notifications.

    Without `runtime_dir` only a broker of this user or of root is accepted, not one of another user. Raises
    BrokerUnreachable if no broker listens there, or after the broker has ended.
    """

    def __init__(self, runtime_dir: StrPath | None = None) -> None:
        path = control_socket(runtime_directory(runtime_dir))
        self.news: deque[RingAdded] = deque()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(REPLY_TIMEOUT_S)
            self._socket.connect(str(path))
            self._socket.setblocking(False)
            credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
        except OSError as error:
            self._socket.close()
            raise _unreachable(path, error) from error
        self.broker_pid, self.broker_uid, _ = CREDENTIALS.unpack(credentials)
        if runtime_dir is None and self.broker_uid not in {os.geteuid(), 0}:
            self._socket.close()
            text = f"{path} is answered by a broker of user {self.broker_uid}"
            raise BrokerUnreachable(text, hint="if you trust that user, name the runtime directory yourself")

    def ask(self, request: Request, expected: type[A]) -> A:
        """Send a request and return its answer, within REPLY_TIMEOUT_S. Raises Refused if the
        broker refuses.
        """
        self._send(request)
        readable = select.poll()
        readable.register(self._socket, select.POLLIN)
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        while (answer := self.receive()) is None:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not readable.poll(left_s * 1000):
                raise self._silent()
        return _expected(answer, expected)

    async def ask_async(self, request: Request, expected: type[A]) -> A:
        """As ask(), without blocking the event loop."""
        self._send(request)
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._socket, readable.set)
        try:
            async with asyncio.timeout(REPLY_TIMEOUT_S):
                while (answer := self.receive()) is None:
                    await readable.wait()
                    readable.clear()
        except TimeoutError as error:
            raise self._silent() from error
        finally:
            loop.remove_reader(self._socket)
        return _expected(answer, expected)

    def receive(self) -> Answer | None:
        """The next answer, or None if there is none yet. Notifications go to `news`."""
        while True:
            try:
                data, _, flags, _ = self._socket.recvmsg(ANSWER_MAX_BYTES)
            except BlockingIOError:
                return None
            except OSError as error:
                raise self._gone() from error
            if not data:
                raise self._gone()
            if flags & socket.MSG_TRUNC:
                raise ControlError(f"an answer above {ANSWER_MAX_BYTES} bytes")
            try:
                message = _decode_answer(data)
            except msgspec.MsgspecError as error:
                raise ControlError(f"no answer: {error}; use one version of Brim on both sides") from error
            if not isinstance(message, RingAdded):
                answer: Answer = message
                return answer
            self.news.append(message)

    def fileno(self) -> int:
        """For selectors and event loops: readable when receive() has something, or the broker has ended."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection. The broker takes back everything that it granted on it."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, request: Request) -> None:
        data = encode(request)
        if len(data) > REQUEST_MAX_BYTES:
            text = f"a request of {len(data)} bytes is above the limit, {REQUEST_MAX_BYTES}"
            raise ControlError(text, hint="ask for fewer or shorter topic filters")
        try:
            self._socket.send(data)
        except OSError as error:
            raise self._gone() from error

    def _gone(self) -> BrokerUnreachable:
        return BrokerUnreachable(f"the broker (pid {self.broker_pid}) is gone")

    def _silent(self) -> NoAnswer:
        text = f"no answer from the broker (pid {self.broker_pid}) in {REPLY_TIMEOUT_S} s"
        return NoAnswer(text)


def _expected(answer: Answer, expected: type[A]) -> A:
    if isinstance(answer, Failed):
        raise Refused(answer.error, hint=answer.hint)
    if not isinstance(answer, expected):
        raise ControlError(f"{type(answer).__name__} in answer, where {expected.__name__} was asked for")
    return answer


def _unreachable(path: Path, error: OSError) -> BrokerUnreachable:
    if isinstance(error, PermissionError):
        return AccessDenied(
            f"{path}: user {os.geteuid()} may not talk to this broker",
            hint=f"run as the broker's user, or join the group of {path.parent}",
        )
    return BrokerUnreachable(
        f"no broker answers at {path}", hint="start one with `brim run`, or name its runtime directory"
    )
