"""TLS records as clients send them: cut anywhere, very short, wrong, or without an end."""

import select
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial

import pytest

from edge.engine.engine import EngineLimits
from edge.logging_setup import AUDIT
from edge.mqtt import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    Subscribe,
    Subscription,
    Will,
    encode,
)
from tests.support.mqtt_transports import PROXY_HEADER, Transports, authority, transports
from tests.support.waiting import PATIENCE_S, wait_until

READ_BYTES = 65_536


class Records:
    """A TLS client whose records a test sends itself."""

    def __init__(self, client: socket.socket, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> None:
        self.socket = client
        context = authority().context()
        context.maximum_version = version
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")

    def flight(self) -> bytes:
        """The next bytes of the handshake; b"": it is over."""
        with suppress(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()

    def shake_hands(self, piece: int = READ_BYTES) -> None:
        """Send the handshake in pieces."""
        while flight := self.flight():
            for at in range(0, len(flight), piece):
                self.socket.sendall(flight[at : at + piece])
            if self._tls.version() is not None and self._is_over():
                return
            self._in.write(self.socket.recv(READ_BYTES))

    def _is_over(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def record(self, data: bytes) -> bytes:
        """A record with these bytes."""
        self._tls.write(data)
        return self._out.read()

    def close_notify(self) -> bytes:
        """The record that ends the stream."""
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        return self._out.read()

    def recv(self, length: int) -> bytes:
        """So many bytes. Raises ssl.SSLEOFError if the stream is cut before."""
        found = b""
        while len(found) < length:
            try:
                part = self._tls.read(length - len(found))
            except ssl.SSLWantReadError:
                data = self.socket.recv(READ_BYTES)
                self._in.write(data) if data else self._in.write_eof()
                continue
            except ssl.SSLZeroReturnError:  # close_notify
                break
            if not part:
                break
            found += part
        return found


@pytest.fixture(scope="module")
def there() -> Iterator[Transports]:
    with transports("tls", "mtls", "wss") as there:
        yield there


CONNECT, CONNACK = encode(Connect("c")), encode(ConnAck())


def closed(there: Transports, cause: str) -> int:
    return there.there.stats.closed()[cause]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_handshake_may_come_byte_by_byte(there: Transports, version: ssl.TLSVersion) -> None:
    with closing(there.dial("tls")) as client:
        records = Records(client, version)
        records.shake_hands(piece=1)
        client.sendall(records.record(CONNECT))
        assert records.recv(len(CONNACK)) == CONNACK


def test_a_record_may_be_cut_at_every_byte(there: Transports) -> None:
    publish, answer = encode(Publish("t", b"hello", 1, packet_id=7)), encode(PubAck(7))
    length = len(publish) + 22  # head, kind of content, tag
    for cut in range(1, length):
        with closing(there.dial("tls")) as client:
            records = Records(client)
            records.shake_hands()
            client.sendall(records.record(CONNECT))
            record = records.record(publish)
            assert len(record) == length
            client.sendall(record[:cut])
            assert records.recv(len(CONNACK)) == CONNACK
            client.sendall(record[cut:])
            assert records.recv(len(answer)) == answer


def test_many_small_records_in_one_piece_are_all_read(there: Transports) -> None:
    with closing(there.dial("tls")) as client, there.there.client("r") as reader:
        reader.send(Subscribe(1, (Subscription("small"),)))
        reader.packet()
        records = Records(client)
        records.shake_hands()
        data = records.record(CONNECT)
        publish = encode(Publish("small", b"x"))
        for _ in range(3_000):
            for byte in (publish[:2], publish[2:]):
                data += records.record(byte)
        data += records.record(encode(PingReq()))
        client.sendall(data)
        expected = CONNACK + encode(PingResp())
        assert records.recv(len(expected)) == expected
        assert [reader.publish().payload for _ in range(3_000)] == [b"x"] * 3_000


def test_a_goodbye_of_tls_is_answered(there: Transports) -> None:
    before = closed(there, "peer")
    with closing(there.dial("tls")) as client:
        records = Records(client)
        records.shake_hands()
        client.sendall(records.record(CONNECT) + records.close_notify())
        assert records.recv(100) == CONNACK  # and close_notify, otherwise an error
    wait_until(lambda: closed(there, "peer") == before + 1)


def test_the_broker_says_goodbye(there: Transports) -> None:
    with closing(there.dial("tls")) as client:
        records = Records(client)
        records.shake_hands()
        client.sendall(records.record(CONNECT + b"\xe0\0"))  # DISCONNECT
        assert records.recv(100) == CONNACK


def test_a_stream_that_is_cut_is_a_lost_connection(there: Transports) -> None:
    before = closed(there, "reset")
    with there.there.client("watcher") as watcher:
        watcher.send(Subscribe(1, (Subscription("gone/cut"),)))
        watcher.packet()
        with closing(there.dial("tls")) as client:
            records = Records(client)
            records.shake_hands()
            client.sendall(records.record(encode(Connect("c", will=Will("gone/cut", b"bye")))))
            assert records.recv(len(CONNACK)) == CONNACK
            client.sendall(records.record(b"\xe0\0")[:-1])  # a DISCONNECT that does not arrive
        assert watcher.publish().payload == b"bye"
    assert closed(there, "reset") == before + 1


@pytest.mark.parametrize("place", [0, 3, 5, -1])
def test_a_changed_byte_ends_the_connection(there: Transports, place: int) -> None:
    before = closed(there, "protocol")
    with closing(there.dial("tls")) as client:
        records = Records(client)
        records.shake_hands()
        client.sendall(records.record(CONNECT))
        assert records.recv(len(CONNACK)) == CONNACK
        record = bytearray(records.record(encode(Publish("t", bytes(300)))))
        record[place] ^= 0x40
        client.sendall(record)
        with suppress(ConnectionResetError):
            while client.recv(READ_BYTES):
                pass
    wait_until(lambda: closed(there, "protocol") == before + 1)


@pytest.mark.parametrize("kind", ["tls", "wss"])
@pytest.mark.parametrize(
    "data", [CONNECT, b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff" * 50, bytes(100)]
)
def test_plain_bytes_are_refused_and_counted(there: Transports, kind: str, data: bytes) -> None:
    before = closed(there, "protocol")
    with closing(there.dial(kind)) as client:
        client.sendall(data)
        with suppress(ConnectionResetError):
            while part := client.recv(READ_BYTES):
                assert part[0] == 21  # an alert
    wait_until(lambda: closed(there, "protocol") == before + 1)


def test_a_client_that_connects_and_leaves_is_no_violation(there: Transports) -> None:
    before = closed(there, "reset"), closed(there, "protocol")
    there.dial("tls").close()
    wait_until(lambda: closed(there, "reset") == before[0] + 1)
    assert closed(there, "protocol") == before[1]


def test_a_handshake_that_stands_still_is_not_waited_for() -> None:
    with transports("tls", "proxy-tls", engine=EngineLimits(connect_timeout_ms=500)) as there:
        clients = []
        for kind in ("tls", "proxy-tls"):
            for cut in (0, 1, 5, 200, None):
                client = there.dial(kind)
                head = PROXY_HEADER if kind == "proxy-tls" else b""
                client.sendall(head + Records(client).flight()[:cut])
                clients.append(client)
        for client in clients:
            while client.recv(READ_BYTES):
                pass
            client.close()
        assert there.there.stats.closed()["connect timeout"] == len(clients)


def test_handshakes_are_limited_by_address_also_behind_a_proxy() -> None:
    with transports("proxy-tls", engine=EngineLimits(connections_max=8, share_percent=25)) as there:
        waiting = [there.dial("proxy-tls") for _ in range(2)]
        for client in waiting:
            client.sendall(PROXY_HEADER)
            client.sendall(Records(client).flight())
            assert client.recv(1)  # the answer to its first flight
        with closing(there.dial("proxy-tls")) as third:
            third.sendall(PROXY_HEADER)
            assert third.recv(1) == b""
        assert there.there.stats.closed()["limit"] == 1
        other = PROXY_HEADER.replace(bytes([192, 0, 2, 7]), bytes([192, 0, 2, 8]))
        with closing(there.dial("proxy-tls")) as client:
            client.sendall(other)
            client.sendall(Records(client).flight())
            assert client.recv(1)
        for client in waiting:
            client.close()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
def test_renegotiation_is_refused(there: Transports) -> None:
    port = str(there.port("tls"))
    command = ["openssl", "s_client", "-connect", f"127.0.0.1:{port}", "-tls1_2", "-quiet", "-no_ign_eof"]
    done = subprocess.run(command, input=b"R\n", capture_output=True, timeout=60, check=False)
    assert b"no renegotiation" in done.stderr.replace(b"_", b" "), done.stderr


@pytest.mark.parametrize("kind", ["tls", "mtls"])
def test_a_session_is_resumed_until_the_certificates_are_read_again(kind: str) -> None:
    with transports(kind) as there:
        context = authority().context(certificate=kind == "mtls")
        connected = partial(context.wrap_socket, server_hostname="127.0.0.1")
        ticket = None
        for reused in (False, True, True):
            with connected(there.dial(kind), session=ticket) as client:
                client.sendall(CONNECT)
                assert client.recv(100) == CONNACK
                assert client.session_reused is reused
                ticket = client.session
        there.reload_certificates()
        with connected(there.dial(kind), session=ticket) as client:
            client.sendall(CONNECT)
            assert client.recv(100) == CONNACK
            assert not client.session_reused


def test_reasons_of_refusals_are_logged_once_for_many(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", AUDIT)
    with transports("tls") as there:
        for _ in range(20):
            with closing(there.dial("tls")) as client:
                client.sendall(b"GET / HTTP/1.1\r\n\r\n")
                with suppress(ConnectionResetError):
                    while client.recv(READ_BYTES):
                        pass
        wait_until(lambda: closed(there, "protocol") == 20)
        there.there.ask(lambda: None)
        wait_until(lambda: "reason=http request" in caplog.text.replace('"', ""))
    lines = [it for it in caplog.records if it.name == AUDIT]
    assert len(lines) == 1


def test_input_of_others_is_answered_before_a_step_of_a_handshake() -> None:
    """All is sent while the broker's thread is busy, the first flights of the handshakes first."""
    with transports("tcp", "tls") as there, there.client("tcp") as other, ExitStack() as stack:
        shaking = [Records(stack.enter_context(closing(there.dial("tls")))) for _ in range(4)]
        other.send(PingReq())
        assert isinstance(other.packet(), PingResp)  # so the others have been accepted
        answered = stack.enter_context(select.epoll())
        for end in (*(client.socket for client in shaking), other.socket):
            answered.register(end, select.EPOLLIN)

        def send() -> None:
            for client in shaking:
                client.socket.sendall(client.flight())
            other.send(PingReq())

        there.there.ask(send)
        first, _ = answered.poll(PATIENCE_S, 1)[0]  # in the order in which they became readable
        assert first == other.socket.fileno()
        for client in shaking:
            client.shake_hands()
