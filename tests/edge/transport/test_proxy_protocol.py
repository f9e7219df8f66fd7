"""PROXY protocol version 2: who is really there, and what becomes of those who lie or stammer."""

import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.auth.interfaces import ClientInfo
from edge.engine.engine import EngineLimits
from edge.mqtt import ConnAck, Connect, PingReq, PingResp, encode
from edge.transport.errors import HandshakeError
from edge.transport.proxy_protocol import ProxiedAddress, source_in
from ringbuf import crc32c
from tests.support.mqtt_transports import PROXY_HEADER, Transports, transports
from tests.support.recording_authenticator import RecordingAuthenticator
from tests.support.waiting import wait_until

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
V4 = bytes([192, 0, 2, 7, 127, 0, 0, 1]) + struct.pack(">HH", 4711, 1883)
V6 = ipaddress.ip_address("2001:db8::7").packed + bytes(16) + struct.pack(">HH", 4711, 1883)
MAPPED = ipaddress.ip_address("::ffff:192.0.2.7").packed + V6[16:]
UNIX = b"/run/proxy".ljust(108, b"\0") * 2


def header(command: int, family: int, body: bytes, *, length: int | None = None) -> bytes:
    return SIGNATURE + struct.pack(">BBH", command, family, len(body) if length is None else length) + body


def tlv(kind: int, value: bytes) -> bytes:
    return struct.pack(">BH", kind, len(value)) + value


def ssl_part(name: bytes, *, client: int = 7, verify: int = 0) -> bytes:
    return tlv(0x20, struct.pack(">BI", client, verify) + tlv(0x21, b"TLSv1.3") + tlv(0x22, name))


def with_checksum(wrong: int = 0) -> bytes:
    """Between two other parts, so that what follows counts as well."""
    body = V4 + tlv(4, b"x") + tlv(3, bytes(4)) + ssl_part(b"press-7")
    blank = header(0x21, 0x11, body)
    crc = crc32c(blank) ^ wrong
    return blank.replace(tlv(3, bytes(4)), tlv(3, crc.to_bytes(4)))


@pytest.mark.parametrize(
    ("data", "source"),
    [
        (header(0x21, 0x11, V4), ProxiedAddress(socket.AF_INET, bytes([192, 0, 2, 7]), 4711)),
        (header(0x21, 0x21, V6), ProxiedAddress(socket.AF_INET6, V6[:16], 4711)),
        (header(0x21, 0x21, MAPPED), ProxiedAddress(socket.AF_INET, V4[:4], 4711)),
        (header(0x21, 0x31, UNIX), ProxiedAddress(socket.AF_UNIX)),
        (header(0x21, 0x00, b""), ProxiedAddress()),  # the proxy does not know either
        (header(0x20, 0x00, b""), ProxiedAddress()),  # LOCAL: the proxy itself
        (header(0x20, 0x11, V4), ProxiedAddress()),
        (header(0x20, 0x7F, b"whatever"), ProxiedAddress()),
        (header(0x21, 0x11, V4 + tlv(4, bytes(100))), ProxiedAddress(socket.AF_INET, V4[:4], 4711)),
        (
            header(0x21, 0x11, V4 + ssl_part(b"press-7")),
            ProxiedAddress(socket.AF_INET, V4[:4], 4711, "press-7"),
        ),
        (with_checksum(), ProxiedAddress(socket.AF_INET, V4[:4], 4711, "press-7")),
        (header(0x21, 0x11, V4 + ssl_part(b"x", verify=1)), ProxiedAddress(socket.AF_INET, V4[:4], 4711)),
        (header(0x21, 0x11, V4 + ssl_part(b"x", client=1)), ProxiedAddress(socket.AF_INET, V4[:4], 4711)),
    ],
)
def test_a_header_says_who_is_there(data: bytes, source: ProxiedAddress) -> None:
    assert source_in(data) == source


NO_HEADERS = {
    "version 1": b"PROXY TCP4 192.0.2.7 127.0.0.1 4711 1883\r\n",
    "MQTT at once": encode(Connect("c")),
    "first byte": b"\x10",
    "wrong signature": b"\r\n\r\n\0\r\nQUIT\r" + header(0x21, 0x11, V4)[12:],
    "version 3": header(0x31, 0x11, V4),
    "huge": header(0x21, 0x11, V4, length=65_535),
    "one byte too long": header(0x21, 0x11, V4, length=4_097),
}
INVALID = {
    "command 2": header(0x22, 0x11, V4),
    "wrong checksum": with_checksum(wrong=1 << 31),
    "short checksum": header(0x21, 0x11, V4 + tlv(3, bytes(3))),
    "UDP": header(0x21, 0x12, V4),
    "unknown family": header(0x21, 0x41, V4),
    "too short for its family": header(0x21, 0x21, V4),
    "a part too long": header(0x21, 0x11, V4 + b"\x04\xff\xff"),
    "half a part": header(0x21, 0x11, V4 + b"\x04"),
    "TLS part too short": header(0x21, 0x11, V4 + tlv(0x20, b"1")),
    "name that is no text": header(0x21, 0x11, V4 + ssl_part(b"\xff")),
}


HOSTILE = {**NO_HEADERS, **INVALID}


@pytest.mark.parametrize("data", INVALID.values(), ids=INVALID)
def test_an_invalid_header_is_refused(data: bytes) -> None:
    with pytest.raises(HandshakeError):
        source_in(data)


@given(st.binary(min_size=4, max_size=300), st.binary(max_size=60))
def test_no_header_does_harm(noise: bytes, body: bytes) -> None:
    for data in (SIGNATURE + noise, header(0x21, 0x11, V4 + body), header(0x21, 0x21, body)):
        with suppress(HandshakeError):
            source_in(data)


# ---- on a port ----


CLERK = RecordingAuthenticator()


@pytest.fixture(scope="module")
def there() -> Iterator[Transports]:
    with transports("proxy", authenticator=CLERK) as there:
        yield there


def facts_after(there: Transports, head: bytes) -> ClientInfo:
    with closing(there.dial("proxy")) as client:
        client.sendall(head + encode(Connect("c", username="u")) + encode(PingReq()))  # in one piece
        answer = encode(ConnAck()) + encode(PingResp())
        with client.makefile("rb") as stream:  # the two answers may come one by one
            assert stream.read(len(answer)) == answer
        return CLERK.seen[-1]


def test_the_broker_sees_the_address_of_the_header(there: Transports) -> None:
    assert facts_after(there, header(0x21, 0x11, V4)).address == "192.0.2.7:4711"
    assert facts_after(there, header(0x21, 0x21, V6)).address == "[2001:db8::7]:4711"


def test_a_proxy_that_speaks_for_itself_has_its_own_address(there: Transports) -> None:
    assert facts_after(there, header(0x20, 0, b"")).address.startswith("127.0.0.1:")


def test_a_name_in_the_header_is_not_believed_unless_the_listener_says_so(there: Transports) -> None:
    head = header(0x21, 0x11, V4 + ssl_part(b"press-7"))
    assert facts_after(there, head).certificate is None
    with transports("proxy", listener={"certificate_is_user": True}) as trusting:
        with closing(trusting.dial("proxy")) as client:
            client.sendall(head + encode(Connect("c")))
            assert client.recv(100) == encode(ConnAck())
        with closing(trusting.dial("proxy")) as nobody:
            nobody.sendall(header(0x21, 0x11, V4) + encode(Connect("d")))
            assert nobody.recv(100)[3] == 5  # not authorized: it has no name


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_who_sends_no_header_is_closed(there: Transports, data: bytes) -> None:
    before = there.there.stats.closed()["protocol"]
    with closing(there.dial("proxy")) as client:
        client.sendall(data)
        with suppress(ConnectionResetError):
            assert client.recv(1) == b""
    wait_until(lambda: there.there.stats.closed()["protocol"] == before + 1)


def test_a_header_may_come_byte_by_byte(there: Transports) -> None:
    with closing(there.dial("proxy")) as client:
        for byte in PROXY_HEADER + encode(Connect("c")):
            client.send(bytes([byte]))
        assert client.recv(100) == encode(ConnAck())


def test_a_header_that_never_ends_is_not_waited_for() -> None:
    with transports("proxy", engine=EngineLimits(connect_timeout_ms=300)) as there:
        for cut in (0, 5, 16, 20):
            with closing(there.dial("proxy")) as client:
                client.sendall(PROXY_HEADER[:cut])
                assert client.recv(1) == b""
        with closing(there.dial("proxy")) as client:
            client.sendall(PROXY_HEADER)  # and then nothing
            assert client.recv(1) == b""
        assert there.there.stats.closed()["connect timeout"] == 5
