"""Client socket: a DEALER socket to the consumers' endpoint, and blocking requests over it."""

from __future__ import annotations

import itertools
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self, TypeVar

import zmq

from edge.config.directories import StrPath, runtime_directory
from edge.consumers.protocol import PROTOCOL, Answer, Message, RequestMessage
from edge.errors import (
    BrokerUnreachable,
    ControlError,
    NoAnswer,
    check_seconds,
    invalid_endpoint,
)
from edge.local.curve_keys import Curve, encrypt
from edge.rpc import client as rpc
from edge.rpc.protocol import encode, expect

CONNECT_TIMEOUT_S = 5.0
REPLY_TIMEOUT_S = 10.0
RECONNECT_FIRST_MS, RECONNECT_MAX_MS = 50, 1_000
SEND_HIGH_WATER = 64
EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
MECHANISM_MISMATCH = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH  # keys on one side only
EVENT = struct.Struct("=HI")  # of a monitor: event, value

A = TypeVar("A", bound=Message)


def endpoint_of(runtime_dir: StrPath | None, endpoint: str) -> str:
    """Default endpoint of the broker's consumers, unless `endpoint` is set."""
    return endpoint or f"ipc://{runtime_directory(runtime_dir) / 'consumers.sock'}"


class ClientSocket:
    """A socket that reconnects by itself. It queues nothing while there is no broker.

    Raises InvalidArgument, ControlError, OSError and ValueError, and then ends `context`.

    ZeroMQ reconnects on its own thread. So a program that is busy while the broker starts again would not see
    that requests to the former broker are lost, and would wait for their answers.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str, curve: Curve | None) -> None:
        self.endpoint = endpoint
        self._curve = curve
        self._has_lost = False
        self._refused_by = 0  # event of a monitor
        self._last_success = 0  # CONNECTED or HANDSHAKE_SUCCEEDED
        self.socket: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        socket = self.socket
        socket.set(zmq.IMMEDIATE, 1)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.SNDHWM, SEND_HIGH_WATER)
        socket.set(zmq.RECONNECT_IVL, RECONNECT_FIRST_MS)
        socket.set(zmq.RECONNECT_IVL_MAX, RECONNECT_MAX_MS)
        self._monitor = socket.get_monitor_socket(EVENTS)
        try:
            if curve is not None:
                encrypt(socket, endpoint, curve)
            socket.connect(endpoint)
        except (zmq.ZMQError, OSError, ValueError, ControlError) as error:
            self.close()
            context.term()
            if isinstance(error, zmq.ZMQError):
                raise invalid_endpoint(endpoint, error.strerror) from error
            raise

    @property
    def connected(self) -> bool:
        """True if a broker is connected, and accepts requests. False once after a connection was lost."""
        self._take_events()
        has_lost, self._has_lost = self._has_lost, False
        return not has_lost and bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLOUT)

    def check(self) -> None:
        """Raise BrokerUnreachable if the broker refused the keys, or their absence: ZeroMQ gives up then."""
        self._take_events()
        if self._refused_by:
            raise _keys_refused(self.endpoint, self._curve, self._refused_by)

    def unreachable(self) -> BrokerUnreachable:
        """Error for a broker that does not answer. It drops a client with another server key silently."""
        if self._curve is None or self._last_success != zmq.EVENT_CONNECTED:
            return unreachable(self.endpoint)
        text = f"{self.endpoint} does not answer to the server key {self._curve.server_key_file}"
        hint = "name the public key (.key) that belongs to zmq.secret_key_file of the broker"
        return BrokerUnreachable(text, hint=hint)

    @property
    def readable(self) -> bool:
        """True if receive() has an answer."""
        return bool(int(self.socket.get(zmq.EVENTS)) & zmq.POLLIN)

    def send(self, request: RequestMessage, frames: Sequence[bytes] = ()) -> bool:
        """Send a request. False: no broker is there now, or it does not read."""
        try:
            self.socket.send_multipart([encode(request), *frames], zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def receive(self) -> tuple[Answer, list[bytes]] | None:
        """The next answer with its frames; None if there is none. Raises ControlError."""
        try:
            first, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return PROTOCOL.decode_answer(first), frames

    def close(self) -> None:
        """Close the socket. May be called twice."""
        if not self.socket.closed:
            self._take_events()  # ZeroMQ's thread may wait for room, with the lock of disable_monitor()
            self.socket.disable_monitor()
            self._monitor.close()
            self.socket.close()

    def _take_events(self) -> None:
        """Note lost connections and refused keys since the last call."""
        while int(self._monitor.get(zmq.EVENTS)) & zmq.POLLIN:
            event, value = EVENT.unpack(self._monitor.recv_multipart(zmq.NOBLOCK)[0])
            if event == zmq.EVENT_DISCONNECTED:
                self._has_lost = True
            elif event in {zmq.EVENT_CONNECTED, zmq.EVENT_HANDSHAKE_SUCCEEDED}:
                self._last_success = event
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH or value == MECHANISM_MISMATCH:
                self._refused_by = event


class RequestClient:
    """Sends one request at a time and waits for its answer. A context manager; blocks."""

    def __init__(
        self, runtime_dir: StrPath | None = None, *, endpoint: str = "", curve: Curve | None = None
    ) -> None:
        self._context = zmq.Context()
        self._client_socket = ClientSocket(self._context, endpoint_of(runtime_dir, endpoint), curve)
        self._numbers = itertools.count(1)

    def number(self) -> int:
        """Number for the next request."""
        return next(self._numbers)

    def request(
        self,
        request: RequestMessage,
        expected: type[A],
        frames: Sequence[bytes] = (),
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> tuple[A, list[bytes]]:
        """Send a request and return its answer and frames. Raises Refused, BrokerUnreachable."""
        check_seconds("timeout_s", timeout_s)
        deadline = time.monotonic() + CONNECT_TIMEOUT_S
        socket = self._client_socket.socket
        while not self._client_socket.send(request, frames):
            self._client_socket.check()
            if time.monotonic() >= deadline:
                raise self._client_socket.unreachable()
            socket.poll(100, zmq.POLLOUT)
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if not socket.poll(int(left_s * 1000) + 1):
                continue
            answer = self._client_socket.receive()
            if answer is not None and answer[0].id == request.id:
                return expect(answer[0], expected), answer[1]
        raise NoAnswer(f"no answer from {self._client_socket.endpoint} in {timeout_s} s")

    def close(self) -> None:
        """Close the socket. May be called twice."""
        self._client_socket.close()
        self._context.term()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def unreachable(endpoint: str) -> BrokerUnreachable:
    """Error for an endpoint that does not answer, with the cause if it is visible: ZeroMQ reports none."""
    path = Path(endpoint.removeprefix("ipc://"))
    if endpoint.startswith("ipc://") and _is_denied(path):
        return rpc.unreachable(path, PermissionError(), "broker")
    hint = "start one with `brim run`, or name its runtime directory"
    return BrokerUnreachable(f"no broker serves consumers at {endpoint}", hint=hint)


def _is_denied(path: Path) -> bool:
    """True if the user may not search the directory of the socket, or not connect to the socket."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, PermissionError)
    return not os.access(path, os.W_OK)


def _keys_refused(endpoint: str, curve: Curve | None, event: int) -> BrokerUnreachable:
    """Error for an endpoint that needs keys, takes none, or does not know those of `curve`."""
    if curve is None:
        text = f"{endpoint} requires CURVE keys, and none are given"
        hint = "give curve=, or --secret-key and --server-key of `brim consumers`"
    elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        text = f"{endpoint} does not accept the key {curve.secret_key_file}"
        hint = "copy its public key to zmq.client_keys_dir of the broker, and start the broker again"
    else:
        text = f"{endpoint} uses no CURVE keys, and {curve.secret_key_file} is given"
        hint = "remove the keys, or set secret_key_file and client_keys_dir in [zmq] of the broker"
    return BrokerUnreachable(text, hint=hint)
