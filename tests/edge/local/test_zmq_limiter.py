"""The limiter before ZeroMQ sockets: peers that never end a message, never read, or come in crowds."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.local import zmq_limiter
from edge.local.zmq_limiter import PeerLimits, ZmqLimiter
from edge.local.zmq_listener import ZmqListener
from edge.local.zmq_server_socket import ZmqServer
from tests.support.children import Child
from tests.support.other_user import USER, as_other_user, other_user_or_skip
from tests.support.waiting import PATIENCE_S, wait_until

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
PART = b"\1\1x"  # of a message that continues
LIMITS = PeerLimits(parts_max=4, message_max_bytes=1 << 16)


def frame(body: bytes, *, more: bool = False, command: bool = False, long: bool = False) -> bytes:
    flags = more | 4 * command
    if long or len(body) > 255:
        return bytes((flags | 2,)) + len(body).to_bytes(8) + body
    return bytes((flags, len(body))) + body


def ready(kind: bytes) -> bytes:
    return frame(b"\x05READY" + prop(b"Socket-Type", kind), command=True)


def prop(name: bytes, value: bytes) -> bytes:
    return bytes((len(name),)) + name + len(value).to_bytes(4) + value


def passed(data: bytes, kind: bytes = b"SUB") -> bytes:
    """The bytes of a peer of this user as they leave the limiter."""
    body = b"\x05READY" + prop(b"User-Id", b"") + prop(b"Socket-Type", kind)
    return data.replace(ready(kind), frame(body, command=True, long=True), 1)


SPOKEN = GREETING + ready(b"SUB") + frame(b"\1")
SILENT = GREETING + ready(b"SUB") + frame(b"\x04PING\0\x0a", command=True) * 3


def dial(path: Path, data: bytes = b"") -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE_S)
    client.connect(str(path))
    if data:
        client.sendall(data)
    return client


def is_closed(client: socket.socket) -> bool:
    """True when the limiter has ended the connection; what came before is dropped."""
    try:
        while client.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


@contextmanager
def limiter(directory: Path, limits: PeerLimits = LIMITS) -> Iterator[tuple[ZmqLimiter, Path, socket.socket]]:
    """A limiter before a listening socket of the test."""
    path = directory / "limiter.sock"
    with closing(ZmqListener("zmq", f"ipc://{path}")) as listener, socket.socket(socket.AF_UNIX) as inner:
        made = ZmqLimiter(listener, limits)
        inner.bind(f"\0{made.inner}")
        inner.listen(64)
        inner.settimeout(PATIENCE_S)
        made.open()
        try:
            yield made, path, inner
        finally:
            made.close()
    assert not path.exists()


@contextmanager
def served(kind: int, endpoint: str, limits: PeerLimits = LIMITS) -> Iterator[ZmqServer]:
    """A socket of libzmq behind a limiter."""
    with (
        closing(ZmqListener("zmq", endpoint)) as listener,
        closing(ZmqServer(kind, listener, limits)) as made,
    ):
        made.bind()
        yield made


Linked = tuple[ZmqLimiter, socket.socket, socket.socket]


@contextmanager
def linked(directory: Path, limits: PeerLimits = LIMITS) -> Iterator[Linked]:
    """A limiter, a peer, and the end of the peer's link that libzmq would have."""
    with (
        limiter(directory, limits) as (made, path, inner),
        closing(dial(path)) as peer,
        closing(inner.accept()[0]) as behind,
    ):
        behind.settimeout(PATIENCE_S)
        yield made, peer, behind


def received(end: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length and (more := end.recv(1 << 16)):
        data += more
    return data


FRAMES = st.lists(
    st.tuples(st.binary(max_size=400), st.booleans(), st.booleans(), st.integers(0, 2)), max_size=12
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(parts=FRAMES, cuts=st.lists(st.integers(1, 700), max_size=20))
def test_all_bytes_within_the_limits_pass_unchanged_but_for_the_owner(tmp_path_factory, parts, cuts):
    """Wherever the packets of the stream begin and end."""
    data, run = GREETING + ready(b"DEALER"), 0
    for body, command, long, more in parts:
        more_follow = bool(more) and run < 3 and not command
        run = run if command else (run + 1) * more_follow
        data += frame(body, more=more_follow, command=command, long=long)
    with linked(tmp_path_factory.mktemp("limiter")) as (made, peer, behind):
        rest = data
        for cut in cuts:
            peer.sendall(rest[:cut])
            rest = rest[cut:]
        peer.sendall(rest)
        expected = passed(data, b"DEALER")
        assert received(behind, len(expected)) == expected
        behind.sendall(data[::-1])
        assert received(peer, len(data)) == data[::-1]
        peer.close()
        assert behind.recv(1) == b""
        assert made.counts()["accepted"] == 1
        wait_until(lambda: made.counts()["open"] == 0)


@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (GREETING + frame(b"x", more=True) * 4, "too_long"),
        (GREETING + PART * 3 + frame(b"", command=True) + PART, "too_long"),
        (GREETING + b"\x02" + ((1 << 16) + 1).to_bytes(8), "too_long"),
        (GREETING + b"\x02" + b"\xff" * 8, "too_long"),
        (GREETING + b"\x06" + b"\xff" * 8, "too_long"),
        (GREETING + frame(bytes(40_000), more=True) + frame(bytes(40_000)), "too_long"),
        (GREETING + b"\x08\x01x", "malformed"),
        (GREETING + b"\x05\x01x", "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
        (b"\xff" + bytes(8) + b"\x7f\x01", "malformed"),
    ],
)  # fmt: skip
def test_a_peer_beyond_a_limit_is_disconnected_and_counted(tmp_path, data, cause):
    with linked(tmp_path) as (made, peer, behind):
        with suppress(ConnectionError):
            peer.sendall(data)
        assert is_closed(peer)
        assert is_closed(behind)
        assert made.counts()[cause] == 1


def test_of_unfinished_messages_that_are_too_long_together_the_oldest_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(zmq_limiter, "UNFINISHED_MAX_BYTES", 2 << 16)
    part = GREETING + frame(bytes(60_000), more=True)
    with limiter(tmp_path) as (made, path, inner):
        peers, ends = [], []
        for number in range(3):
            peers.append(dial(path))
            ends.append(inner.accept()[0])
            ends[-1].settimeout(PATIENCE_S)
            if number == 2:
                break
            peers[-1].sendall(part)
            assert len(received(ends[-1], len(part))) == len(part)
        peers[2].sendall(GREETING + frame(b"whole"))  # an honest one, which is served throughout
        peers.append(dial(path, part))
        assert is_closed(peers[0])
        peers[1].sendall(frame(b"end"))
        peers[2].sendall(frame(b"and again"))
        assert len(received(ends[2], 64 + 7 + 11)) == 64 + 7 + 11
        assert made.counts()["unfinished"] == 1
        for it in (*peers, *ends):
            it.close()


def test_a_message_that_takes_too_long_ends_its_connection(tmp_path, monkeypatch):
    monkeypatch.setattr(zmq_limiter, "UNFINISHED_MAX_MS", 1)
    with linked(tmp_path) as (made, peer, _):
        peer.sendall(GREETING + frame(b"x", more=True))
        assert is_closed(peer)
        assert made.counts()["unfinished"] == 1


def test_a_peer_that_reads_nothing_is_disconnected(tmp_path):
    with linked(tmp_path, PeerLimits(4, 1 << 20, unread_max_ms=1)) as (made, peer, behind):
        peer.sendall(GREETING)
        assert received(behind, 64) == GREETING
        with pytest.raises(OSError):  # broken pipe
            while True:
                behind.sendall(bytes(1 << 16))
        assert made.counts()["unread"] == 1


def test_the_peer_that_has_sent_most_is_disconnected_when_all_have_sent_too_much(tmp_path):
    limits = PeerLimits(4, 1 << 20, received_max_bytes=1000)
    with limiter(tmp_path, limits) as (made, path, inner):
        messages = [GREETING + frame(bytes(size)) for size in (98, 700)]
        peers = [dial(path, message) for message in messages]  # 100 and 709 bytes without the greeting
        behind = [inner.accept()[0] for _ in peers]
        for end, message in zip(behind, messages, strict=True):
            assert received(end, len(message)) == message
        ping = b"\x04\x07\x04PING\x00\x0a"
        peers[0].sendall(ping * 200)  # a peer may be connected for years
        assert received(behind[0], 1800) == ping * 200
        assert made.counts()["too_many_bytes"] == 0
        peers[0].sendall(frame(bytes(98)) * 2)
        assert is_closed(peers[1])
        assert made.counts()["too_many_bytes"] == 1
        for _ in range(6):  # what the other one had sent counts no longer
            peers[0].sendall(frame(bytes(98)))
        assert len(received(behind[0], 800)) == 800
        assert made.counts()["open"] == 1
        for client in (*peers, *behind):
            client.close()


def test_peers_wait_while_their_messages_are_not_taken(tmp_path):
    data = GREETING + frame(bytes(400_000)) * 20
    with linked(tmp_path, PeerLimits(4, 1 << 20, undrained_max_bytes=1 << 20)) as (made, peer, behind):
        peer.setblocking(False)
        behind.setblocking(False)
        rest, got, most = data, 0, 0

        def is_still() -> bool:
            """True if nothing moves: the limiter is paused, or all has come."""
            nonlocal rest, got
            before = (len(rest), got)
            with suppress(BlockingIOError):
                rest = rest[peer.send(rest) :] if rest else b""
            with suppress(BlockingIOError):
                more = behind.recv(1 << 20)
                assert more
                got += len(more)
            return before == (len(rest), got)

        while got < len(data):
            before = got
            made.drained()
            wait_until(lambda: is_still() and is_still())
            most = max(most, got - before)
    assert got == len(data)
    assert most < 4 << 20, "no more than the limit, one message, and what sockets hold"


def test_connections_beyond_the_limit_are_closed_and_free_places_are_used(tmp_path):
    with limiter(tmp_path, PeerLimits(4, 1 << 20, connections_max=3)) as (made, path, inner):
        first = [dial(path, SPOKEN) for _ in range(3)]
        ends = [inner.accept()[0] for _ in first]
        for end in ends:
            assert received(end, len(passed(SPOKEN))) == passed(SPOKEN)
        with closing(dial(path)) as late:
            assert late.recv(1) == b""
        assert made.counts()["refused"] == 1
        first.pop().close()
        wait_until(lambda: made.counts()["open"] == 2)
        with closing(dial(path, SPOKEN)), closing(inner.accept()[0]) as end:
            assert received(end, len(passed(SPOKEN))) == passed(SPOKEN)
        made.admit(2)  # descriptors: too few for one, which is served all the same
        wait_until(lambda: made.counts()["open"] == 2)
        with closing(dial(path)) as late:
            assert late.recv(1) == b""
        for it in (*first, *ends):
            it.close()


@pytest.mark.parametrize("sent", [b"", GREETING[:20], GREETING, GREETING + ready(b"SUB"), SILENT])
def test_peers_that_request_nothing_make_room_for_others(tmp_path, sent):
    with limiter(tmp_path, PeerLimits(4, 1 << 20, connections_max=3)) as (made, path, inner):
        silent = [dial(path, sent) for _ in range(3)]
        ends = [inner.accept()[0] for _ in silent]
        for end in ends:
            assert received(end, len(passed(sent))) == passed(sent)
        with closing(dial(path, SPOKEN)), closing(inner.accept()[0]) as end:
            assert received(end, len(passed(SPOKEN))) == passed(SPOKEN)
            assert is_closed(silent[0])
            assert made.counts()["open"] == 3
        for it in (*silent, *ends):
            it.close()


# Connects as another user, and sends, once for each line; prints if the connection is still open.
STRANGER = """
import socket, sys
held = []
for line in sys.stdin:
    it = socket.socket(socket.AF_UNIX)
    it.connect(line.split()[0])
    try:
        it.sendall(bytes.fromhex(line.split()[1]))
        it.settimeout(0.2)
        print("open" if it.recv(1) else "closed", flush=True)
    except TimeoutError:
        print("open", flush=True)
    except OSError:
        print("closed", flush=True)
    held.append(it)
"""


def test_one_user_cannot_take_all_places(runtime_directory):
    other_user_or_skip()
    runtime_directory.chmod(0o755)
    with (
        limiter(runtime_directory, PeerLimits(4, 1 << 20, connections_max=8)) as (made, path, _),
        Child(as_other_user(STRANGER)) as first,
        Child(as_other_user(STRANGER, USER + 2)) as second,
    ):
        path.chmod(0o666)

        def opens(child: Child) -> bool:
            child.say(f"{path} {SPOKEN.hex()}")
            return child.line() == "open"

        assert [opens(first) for _ in range(8)] == [True] * 6 + [False] * 2
        assert opens(second)  # its first one
        assert not opens(second)
        assert not opens(first)
        own = dial(path, SPOKEN)  # the limiter's own user may have the rest
        wait_until(lambda: made.counts()["open"] == 8)
        own.close()


def test_the_user_with_most_bytes_of_all_is_disconnected_not_the_longest_peer(runtime_directory):
    other_user_or_skip()
    runtime_directory.chmod(0o755)
    limits = PeerLimits(4, 1 << 20, received_max_bytes=1000)
    with (
        limiter(runtime_directory, limits) as (made, path, _),
        Child(as_other_user(STRANGER)) as stranger,
    ):
        path.chmod(0o666)
        own = dial(path, GREETING + frame(bytes(398)))  # 400 bytes, and 4 times 202 of the other user
        for _ in range(4):
            stranger.say(f"{path} {(GREETING + frame(bytes(200))).hex()}")
            stranger.line()
        assert made.counts()["too_many_bytes"] == 2
        own.settimeout(0.2)
        with pytest.raises(TimeoutError):
            own.recv(1)
        own.close()


def test_who_is_disconnected_is_logged_seldom(tmp_path, caplog):
    with limiter(tmp_path) as (made, path, _):
        for number in range(1, 21):
            with closing(dial(path, b"nonsense")) as peer:
                assert is_closed(peer)
            assert made.counts()["malformed"] == number
            made.log_refusals()
    assert len(caplog.records) == 1
    assert "malformed=1" in caplog.text


# ---- before libzmq ----


@pytest.mark.parametrize(("kind", "peer"), [(zmq.ROUTER, b"DEALER"), (zmq.XPUB, b"XSUB")])
@pytest.mark.parametrize("size", [1, 60_000])
def test_a_message_without_an_end_takes_no_memory(tmp_path, kind, peer, size):
    limits = PeerLimits(100, 1 << 20)
    with served(kind, f"ipc://{tmp_path}/s", limits) as server:
        sent = 0
        with closing(dial(tmp_path / "s", GREETING + ready(peer))) as client, pytest.raises(OSError):
            assert received(client, 90)[66:71] == b"\x05READY"[:5]  # ZMTP has peers wait for it
            while sent < 1 << 30:  # until the pipe is broken
                client.sendall(frame(b"\1" * size, more=True) * 16)
                sent += 16 * size
        assert sent < 3 << 20
        assert server.peers()["too_long"] == 1


def test_zeromq_behind_the_gate_is_open_to_this_process_only(tmp_path):
    """Its name in the abstract namespace is no secret."""
    with served(zmq.ROUTER, f"ipc://{tmp_path}/s") as server:
        assert server._limiter is not None
        code = (
            "import socket, sys\n"
            "with socket.socket(socket.AF_UNIX) as it:\n"
            "    it.connect('\\0' + sys.argv[1])\n"
            "    print('open' if it.recv(1) else 'closed', flush=True)\n"
        )
        with Child(code, server._limiter.inner) as stranger:
            assert stranger.line() == "closed"


def test_answers_that_are_queued_at_the_end_arrive(tmp_path):
    with (
        served(zmq.ROUTER, f"ipc://{tmp_path}/s") as server,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as client,
    ):
        client.set(zmq.LINGER, 0)
        client.connect(server.endpoint)
        client.send(b"question")
        peer, _ = server.socket.recv_multipart()
        body = secrets.token_bytes(8 << 20)
        server.socket.send_multipart([peer, body])
        server.close()
        assert client.poll(20_000)
        assert client.recv() == body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_gate_listens_on_loopback_too(tmp_path, host):
    with (
        served(zmq.ROUTER, f"tcp://{host}:*") as server,
        zmq.Context() as context,
        context.socket(zmq.DEALER) as client,
    ):
        client.set(zmq.LINGER, 0)
        client.set(zmq.IPV6, 1)
        client.connect(server.endpoint)
        client.send_multipart([b"a", b"b"])
        assert server.socket.poll(20_000)
        assert server.socket.recv_multipart()[1:] == [b"a", b"b"]
