"""MQTT in WebSocket: which frames carry it, and which end it."""

from collections.abc import Iterator
from contextlib import closing

import pytest
from websockets.frames import Opcode

from edge.engine.engine import EngineLimits
from edge.mqtt import ConnAck, Connect, PubAck, Publish, Subscribe, Subscription, Will, encode
from tests.support.mqtt_transports import Transports, WebSocketStream, transports
from tests.support.waiting import wait_until

HELLO = encode(Connect("c"))
REQUEST = (
    b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
)


@pytest.fixture(scope="module")
def there() -> Iterator[Transports]:
    with transports("ws") as there:
        yield there


def opened(there: Transports, **fields: str | None) -> WebSocketStream:
    return WebSocketStream(there.dial("ws"), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["/", "/mqtt", "/mqtt?token=1"])
@pytest.mark.parametrize("subprotocol", ["mqtt", "mqttv3.1"])
def test_mqtt_is_at_the_usual_places(there: Transports, path: str, subprotocol: str) -> None:
    with opened(there, path=path, subprotocol=subprotocol) as stream:
        assert (stream.status, stream.protocol.subprotocol) == (101, subprotocol)
        stream.send(HELLO)
        assert stream.recv(100) == encode(ConnAck())


@pytest.mark.parametrize(
    ("fields", "status"),
    [({"path": "/admin"}, 404), ({"subprotocol": "amqp"}, 400), ({"subprotocol": None}, 400)],
)
def test_what_is_not_for_mqtt_is_told_so(there: Transports, fields: dict[str, str], status: int) -> None:
    with opened(there, **fields) as stream:
        assert stream.status == status
        assert stream.recv(1) == b""


def test_a_request_that_is_too_long_is_closed(there: Transports) -> None:
    with closing(there.dial("ws")) as client:
        try:
            client.sendall(b"GET / HTTP/1.1\r\n" + b"X-Long: 1234567\r\n" * 5_000)
            assert client.recv(1) == b""
        except ConnectionError:
            pass


def test_headers_beyond_ascii_end_the_connection_without_a_traceback(there: Transports, caplog) -> None:
    for header in (b"Sec-WebSocket-Version: 1\xb9", b"Sec-WebSocket-Key: AAAAAAAAAAAAAA\xe1AAAAAAA=="):
        with closing(there.dial("ws")) as client:
            name = header.partition(b":")[0]
            lines = [header if it.startswith(name) else it for it in REQUEST.split(b"\r\n")]
            client.sendall(b"\r\n".join(lines))
            assert client.recv(1) in (b"", b"H")
    assert not [it for it in caplog.records if it.exc_info]


def test_pages_of_the_same_host_may_connect_and_others_not_unless_they_are_listed() -> None:
    pages = {
        "http://localhost": 101,
        "https://LOCALHOST:8080": 101,
        "http://evil.example": 403,
        "http://localhost.evil.example": 403,
        "http://[": 403,
        "null": 403,
        "": 101,
    }
    with transports("ws") as there:
        for origin, status in pages.items():
            with opened(there, origin=origin) as stream:
                assert stream.status == status, origin
    with transports("ws", listener={"origins": ("*",)}) as there:
        for origin in pages:
            with opened(there, origin=origin) as stream:
                assert stream.status == 101, origin


@pytest.mark.parametrize("port", ["", ":8083"])
def test_a_page_that_resolves_its_own_name_to_this_machine_stays_outside(port: str, caplog) -> None:
    """Its Origin and its Host are one name, which is not the listener's."""
    pages = {
        "evil.example": 421,
        "localhost.evil.example": 421,
        "192.0.2.7": 421,
        "localhost": 101,
        "127.0.0.1": 101,
        "[::1]": 101,
    }
    with transports("ws") as there:
        for _ in range(20):
            for host, status in pages.items():
                with opened(there, origin=f"http://{host}{port}", host=host + port) as stream:
                    assert stream.status == status, host
    refused = [it for it in caplog.records if "host_names" in it.getMessage()]
    assert len(refused) == 1, "the log is not the page's to fill"
    assert "evil.example" in refused[0].getMessage()
    with transports("ws", listener={"host_names": ("panel.plant.example",)}) as there:
        for host, status in (("panel.plant.example", 101), ("evil.example", 421), ("localhost", 101)):
            with opened(there, origin=f"http://{host}", host=host) as stream:
                assert stream.status == status, host


def test_programs_may_use_any_name_of_the_broker(there: Transports) -> None:
    """They send no Origin, and no page of another site makes them connect."""
    with opened(there, host="broker.plant.example") as stream:
        assert stream.status == 101


def test_pages_of_other_origins_stay_outside_and_programs_do_not() -> None:
    with transports("ws", listener={"origins": ("https://panel.example",)}) as there:
        for origin, status in (("https://panel.example", 101), ("https://evil.example", 403), ("", 101)):
            with opened(there, origin=origin) as stream:
                assert stream.status == status


def test_frames_that_come_with_the_request_are_heard(there: Transports) -> None:
    with closing(there.dial("ws")) as client:
        client.sendall(REQUEST + bytes([0x82, 0x80 | len(HELLO), 0, 0, 0, 0]) + HELLO)
        answer = b""
        while encode(ConnAck()) not in answer:
            found = client.recv(1_000)
            assert found
            answer += found


def test_packets_share_frames_and_span_them(there: Transports) -> None:
    data = (
        HELLO + encode(Publish("t", bytes(300), 1, packet_id=3)) + encode(Publish("t", b"", 1, packet_id=4))
    )
    expected = encode(ConnAck()) + encode(PubAck(3)) + encode(PubAck(4))
    for size in (1, 2, 7, 100, len(data)):
        with opened(there) as stream:
            for begin in range(0, len(data), size):
                stream.send(data[begin : begin + size])
            answer = b""
            while len(answer) < len(expected):
                answer += stream.recv(1_000)
            assert answer == expected


def test_a_message_in_fragments_is_one_stream(there: Transports) -> None:
    with opened(there) as stream:
        stream.send_frame(Opcode.BINARY, HELLO[:5], fin=False)
        stream.send_frame(Opcode.PING, b"between")
        stream.send_frame(Opcode.CONT, HELLO[5:], fin=True)
        assert stream.recv(100) == encode(ConnAck())


def test_a_text_frame_closes_and_the_will_is_published(there: Transports) -> None:
    with there.client("ws", "watcher") as watcher, opened(there) as stream:
        watcher.send(Subscribe(1, (Subscription("gone"),)))
        watcher.packet()
        stream.send(encode(Connect("c", will=Will("gone", b"bye"))))
        assert stream.recv(100) == encode(ConnAck())
        stream.send_frame(Opcode.TEXT, b"hello")
        assert stream.recv(1) == b""
        assert stream.code == 1003
        assert watcher.publish().payload == b"bye"


def test_a_frame_longer_than_a_packet_may_be_closes(there: Transports) -> None:
    with opened(there) as stream:
        stream.send_frame(Opcode.BINARY, HELLO + bytes(400_000))  # no client sends so much before CONNECT
        assert stream.recv(1) == b""
        assert stream.code == 1009
    limits = {"packet_max_bytes": 1_000}
    with transports("ws", listener=limits) as narrow, narrow.client("ws") as client:
        assert isinstance(client.stream, WebSocketStream)
        client.stream.send_frame(Opcode.BINARY, bytes(70_000))
        assert client.stream.recv(1) == b""
        assert client.stream.code == 1009


def test_the_broker_says_goodbye_in_both_languages(there: Transports) -> None:
    with opened(there) as stream:
        stream.send(HELLO + b"\xe0\x00")
        assert stream.recv(100) == encode(ConnAck())
        assert stream.recv(1) == b""
        assert stream.code == 1000


def test_input_after_the_close_frame_does_not_reset_the_connection() -> None:
    with transports("ws") as there:
        stream = opened(there)
        stream.send(HELLO)
        assert stream.recv(100) == encode(ConnAck())
        stream.send_frame(Opcode.TEXT, b"x")
        wait_until(lambda: there.there.stats.closed()["protocol"] == 1)
        stream.socket.sendall(bytes(100_000))
        answer = b""
        while data := stream.socket.recv(100):
            answer += data
        assert answer == b"\x88\x02" + (1003).to_bytes(2)
        assert there.limits("ws").connections == 1
        stream.close()
        wait_until(lambda: there.limits("ws").connections == 0)


@pytest.mark.parametrize("sends", [True, False])
def test_a_client_that_does_not_close_is_closed(sends: bool) -> None:
    with transports("ws") as there, opened(there) as stream:
        stream.send_frame(Opcode.TEXT, b"x")
        wait_until(lambda: there.there.stats.closed()["protocol"] == 1)
        if sends:
            with pytest.raises(ConnectionError):
                stream.socket.sendall(bytes(100_000_000))
        wait_until(lambda: there.limits("ws").connections == 0)


def test_a_client_that_pings_and_does_not_read_delays_no_other(there: Transports) -> None:
    with opened(there) as stream, there.client("ws", "other") as other:
        stream.send(HELLO)
        assert stream.recv(100) == encode(ConnAck())
        for number in range(100):
            stream.socket.sendall((b"\x89\xfd" + bytes(4) + bytes(125)) * 1_000)
            other.send(Publish("t", b"", 1, packet_id=number + 1))
            assert other.packet() == PubAck(number + 1)
        stream.send_frame(Opcode.PING, b"the last")
        answers = b""
        while not answers.endswith(b"\x8a\x08the last"):
            answers += stream.socket.recv(65_536)
        assert set(answers.split(b"\x8a\x7d" + bytes(125))) == {b"", b"\x8a\x08the last"}


def test_a_request_that_never_ends_is_not_waited_for() -> None:
    with transports("ws", engine=EngineLimits(connect_timeout_ms=300)) as there:
        for data in (b"GET /mqtt HTTP/1.1\r\n", HELLO + b"\n"):  # the second is no request
            with closing(there.dial("ws")) as client:
                client.sendall(data)
                assert client.recv(1) == b""
        with opened(there) as stream:  # shaken hands, and then silent
            assert stream.recv(1) == b""
        wait_until(lambda: there.there.stats.closed()["connect timeout"] == 3)
