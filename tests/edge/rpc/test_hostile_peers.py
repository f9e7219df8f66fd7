"""Hostile peers, at each socket that takes requests: they are bounded, and others are served."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from bridge.drain.bridge import Bridge
from bridge.drain.control_socket import CONNECTIONS_MAX, State, state_of
from bridge.drain.control_socket import PROTOCOL as OF_BRIDGE
from edge.consumers import protocol as messages
from edge.consumers.client_socket import RequestClient
from edge.consumers.protocol import GroupList, Groups
from edge.local import protocol as control
from edge.local.protocol import Connection, Report, Status
from edge.rpc import server
from edge.rpc.protocol import Protocol, encode
from ringbuf import Ring
from tests.support.bridges import commanded, settings
from tests.support.consumer_desk import endpoint_over
from tests.support.local_broker import LocalBroker, small_config
from tests.support.waiting import PATIENCE_S, wait_until


class Socket:
    """One of the three: its protocol, a good request, and a request of an honest client."""

    def __init__(
        self,
        path: Path,
        protocol: Protocol,
        request: Any,
        ask: Callable[[], object],
        counts: Callable[[str], int],
        garbage: str,
    ) -> None:
        self.path = path
        self.protocol = protocol
        self.request = encode(request)
        self.ask = ask
        self.counts = counts
        self.garbage = garbage  # the counter
        self.is_zmq = "consumers" in path.name
        self._context = zmq.Context() if self.is_zmq else None

    @contextmanager
    def stranger(self) -> Iterator[Stranger]:
        if self._context is None:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as plain:
                plain.settimeout(PATIENCE_S)
                plain.connect(str(self.path))
                yield Stranger(plain.send, lambda: plain.recv(1 << 20))
            return
        with self._context.socket(zmq.DEALER) as dealer:
            dealer.set(zmq.LINGER, 0)
            dealer.set(zmq.RCVTIMEO, 20_000)
            dealer.connect(f"ipc://{self.path}")
            yield Stranger(dealer.send, dealer.recv)

    @contextmanager
    def connection(self) -> Iterator[socket.socket]:
        """A bare connection that sends nothing."""
        kind = socket.SOCK_STREAM if self.is_zmq else socket.SOCK_SEQPACKET
        with socket.socket(socket.AF_UNIX, kind) as bare:
            bare.connect(str(self.path))  # waits, while the queue of the listening socket is full
            bare.settimeout(PATIENCE_S)
            yield bare

    def close(self) -> None:
        if self._context is not None:
            self._context.term()


class Stranger:
    """A connection that sends any bytes."""

    def __init__(self, send: Callable[[bytes], object], receive: Callable[[], bytes]) -> None:
        self.send, self.receive = send, receive


@contextmanager
def broker_socket(runtime: Path, root: Path) -> Iterator[Socket]:
    config = small_config(runtime, root)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def made() -> LocalBroker:
        return LocalBroker(config)

    broker = asyncio.run_coroutine_threadsafe(made(), loop).result(PATIENCE_S)
    asyncio.run_coroutine_threadsafe(broker.__aenter__(), loop).result(PATIENCE_S)

    def ask() -> None:
        with Connection(runtime) as connection:
            connection.request(Status(), Report)

    try:
        counts = broker.local.counts.__getitem__
        yield Socket(runtime / "control.sock", control.PROTOCOL, Status(), ask, counts, "cut_garbage")
    finally:
        asyncio.run_coroutine_threadsafe(broker.__aexit__(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def bridge_socket(runtime: Path, root: Path) -> Iterator[Socket]:
    bridge = Bridge(settings(runtime, root))
    bridge.start()
    try:
        with commanded(bridge) as served:
            path = runtime / "bridge-lake.sock"
            ask = lambda: state_of(runtime, "lake")  # noqa: E731
            yield Socket(path, OF_BRIDGE, State(), ask, served.counts.__getitem__, "cut_garbage")
    finally:
        assert bridge.stop(20)


@contextmanager
def consumers_socket(runtime: Path, root: Path) -> Iterator[Socket]:
    path = runtime / "consumers.sock"
    with (
        Ring.create(runtime / "some-0", capacity_bytes=1 << 16, epoch=1) as ring,
        endpoint_over(ring, root, f"ipc://{path}") as endpoint,
    ):

        def ask() -> dict[str, int]:
            with RequestClient(endpoint=endpoint.endpoint) as asker:
                return asker.request(Groups(asker.number(), messages.VERSION), GroupList)[0].counts

        request = Groups(1, messages.VERSION)
        counts = lambda name: ask().get(name, 0)  # noqa: E731
        yield Socket(path, messages.PROTOCOL, request, ask, counts, "malformed")


USES = {"broker": broker_socket, "bridge": bridge_socket, "consumers": consumers_socket}


@pytest.fixture(params=list(USES))
def served(request: pytest.FixtureRequest, runtime_directory: Path, tmp_path: Path) -> Iterator[Socket]:
    with USES[request.param](runtime_directory, tmp_path) as found:
        yield found
        found.ask()
        found.close()


def garbage(protocol: Protocol) -> list[bytes]:
    version, seed = protocol.version, random.Random(7)
    maps = [
        {"op": "status"},
        {"op": "shutdown", "version": version},
        {"op": "state", "version": [version]},
        {"op": 3, "version": version},
        {"op": "admit", "version": version, "ring": 3, "slot": "x"},
        {"op": "skip", "version": version, "partition": -1},
        {"op": "groups", "version": version, "id": -1},
        {"version": version},
        [1, 2],
    ]
    return [
        *(b"\x00", b"\xc1", b"\x80", b"\xff" * 100, b"GET / HTTP/1.0\r\n\r\n", b"\xdf\xff\xff\xff\xff"),
        *(b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\x91" * 8_000, b"\x81\xa1a" * 4_000 + b"\xc0"),
        *(seed.randbytes(seed.randrange(1, 60)) for _ in range(20)),
        *map(msgspec.msgpack.encode, maps),
    ]


def test_garbage_is_answered_with_the_reason_and_others_are_served(
    served: Socket, caplog: pytest.LogCaptureFixture
) -> None:
    sent = [*garbage(served.protocol), served.request[:-1], served.request[: len(served.request) // 2]]
    for data in sent:
        with served.stranger() as stranger:
            stranger.send(data)
            answer = msgspec.msgpack.decode(stranger.receive())
        assert answer["op"] == "failed", data
        assert len(answer["error"]) < 300
    wait_until(lambda: served.counts(served.garbage) == len(sent))
    assert len(caplog.records) <= 1, "the log is not the peer's to fill"


def test_another_version_is_refused_with_both_versions(served: Socket) -> None:
    for version in (served.protocol.version + 1, 0, -1, (1 << 64) - 1):
        with served.stranger() as stranger:
            stranger.send(msgspec.msgpack.encode({"op": "status", "id": 7, "version": version}))
            answer = msgspec.msgpack.decode(stranger.receive())
        side = f"this {served.protocol.server} has {served.protocol.version}"
        assert answer["error"] == f"protocol version {version}; {side}"
        assert answer.get("id", 7) == 7
        assert "the same version of Brim" in answer["hint"]


def test_a_request_above_the_limit_is_not_decoded(served: Socket, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(20):
        with served.stranger() as stranger:
            stranger.send(served.request + bytes(served.protocol.request_max_bytes))
            answer = stranger.receive()
            assert not answer or "malformed" in msgspec.msgpack.decode(answer)["code"]
        served.ask()
    assert len(caplog.records) <= 1


def test_hundreds_of_silent_connections_delay_no_other(served: Socket) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ExitStack() as down:
        for _ in range(300):
            down.enter_context(served.connection())
        for _ in range(3):
            served.ask()
        if not served.is_zmq:  # the gate has a limit of its own: test_zmq_limiter.py
            held = len(os.listdir("/proc/self/fd")) - before
            assert held <= 300 + max(CONNECTIONS_MAX, 128) + 8 + 4
    served.ask()


def test_a_connection_that_stops_in_the_middle_delays_no_other(served: Socket) -> None:
    """A datagram has no middle: half a message is a message that cannot be decoded."""
    with ExitStack() as down:
        for size in range(1, 40):
            bare = down.enter_context(served.connection())
            bare.send(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f"[:size] + bytes(max(0, size - 10)))
        served.ask()


@pytest.mark.parametrize("served", ["broker", "bridge"], indirect=True)  # consumers: test_hostile_requests.py
def test_a_peer_that_reads_no_answer_is_bounded_and_others_are_served(served: Socket) -> None:
    with served.connection() as deaf:
        deaf.setblocking(False)
        while not served.counts("cut_unread"):
            try:
                deaf.send(served.request)
            except BlockingIOError:
                served.ask()
            except OSError:
                break
        wait_until(lambda: served.counts("cut_unread") == 1)
    served.ask()


@pytest.mark.parametrize("served", ["broker", "bridge"], indirect=True)  # consumers may be silent
def test_a_connection_without_a_request_ends_at_its_deadline(
    served: Socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 0.05)
    with served.connection() as silent:
        assert silent.recv(1) == b""
    assert served.counts("cut_silent") == 1
