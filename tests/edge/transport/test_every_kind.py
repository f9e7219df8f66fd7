"""Every kind of listener: each one has the same broker behind it."""

from collections.abc import Iterator

import pytest

from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    ReasonCode,
    Will,
    encode,
)
from tests.support.mqtt_socket import RawClient
from tests.support.mqtt_transports import KINDS, Transports, transports

MEGABYTE = bytes(range(256)) * 4_000


@pytest.fixture(scope="module")
def there() -> Iterator[Transports]:
    with transports(capacity_bytes=1 << 24) as there:
        yield there


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_message_goes_in_and_comes_out(there: Transports, kind: str) -> None:
    with there.client(kind, "r") as reader, there.client(kind, "w") as writer:
        reader.subscribe(f"{kind}/#", 1)
        writer.send(Publish(f"{kind}/1", b"hello", 1, packet_id=3))
        assert writer.packet() == PubAck(3)
        found = reader.publish()
        assert (found.topic, found.payload, found.qos) == (f"{kind}/1", b"hello", 1)


def test_a_megabyte_passes_in_both_directions(there: Transports, kind: str) -> None:
    with there.client(kind, "r") as reader, there.client(kind, "w") as writer:
        reader.subscribe("big", 1)
        for i in range(1, 4):
            writer.send(Publish("big", MEGABYTE, 1, packet_id=i))
            assert writer.packet() == PubAck(i)
            packet = reader.publish()
            assert packet.payload == MEGABYTE
            reader.send(PubAck(packet.packet_id))


def test_a_stream_means_the_same_however_it_is_cut(there: Transports, kind: str) -> None:
    data = encode(Connect("c")) + encode(Publish("cut/1", b"12", 1, packet_id=3)) + encode(PingReq())
    expected = encode(ConnAck()) + encode(PubAck(3)) + encode(PingResp())
    for cut in range(len(data)):
        with there.connected(kind) as stream:
            for part in filter(None, (data[:cut], data[cut:])):
                stream.send(part)
            answer = b""
            while len(answer) < len(expected):
                answer += stream.recv(65_536)
            assert answer == expected


def test_a_refusal_arrives_before_the_end(there: Transports, kind: str) -> None:
    with there.connected(kind) as stream:
        client = RawClient(0, stream=stream)
        client.send(Connect("c", will=Will("$SYS/mine", b"x")), Publish("t", bytes(30_000)))
        assert client.packet() == ConnAck(False, ReasonCode.NOT_AUTHORIZED)
        assert client.packet() is None


@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_is_lost_leaves_its_will(there: Transports, kind: str, how: str) -> None:
    with there.client("tcp", "watcher") as watcher:
        watcher.subscribe(f"gone/{kind}")
        client = there.client(kind, "c", will=Will(f"gone/{kind}", b"bye"))
        assert client.stream is not None
        getattr(client.stream, how)()
        assert watcher.publish().payload == b"bye"


def test_what_was_said_before_the_end_counts(there: Transports, kind: str) -> None:
    """Both of them: the message, and the goodbye, which takes the will back."""
    with there.client("tcp", "watcher") as watcher:
        watcher.subscribe("#")
        client = there.client(kind, "c", will=Will("gone", b"bye"))
        client.send(Publish("last", bytes(100_000)), Disconnect())
        assert client.stream is not None
        client.stream.close()
        assert watcher.publish().topic == "last"
        watcher.send(PingReq())
        while (packet := watcher.packet()) != PingResp():
            assert not isinstance(packet, Publish)


def test_the_broker_closes_and_the_client_sees_it(there: Transports, kind: str) -> None:
    with there.client(kind, "c") as client:
        client.send(Disconnect())
        assert client.packet() is None


def test_what_python_is_asked_about_is_heard_after_its_client_has_gone(there: Transports, kind: str) -> None:
    with there.client("tcp", f"hears-{kind}") as hears:
        hears.subscribe(f"asked/{kind}/#")
        for turn in range(5):
            topics = [f"asked/{kind}/{turn}/{n}" for n in range(200)]  # each is new
            will = Will(f"asked/{kind}/will", b"lost")
            with there.client(kind, f"asks-{kind}", will=will) as asks:
                asks.send(*(Publish(topic, b"said") for topic in topics), Disconnect())
            assert [hears.publish().topic for _ in topics] == topics
        hears.send(PingReq())
        assert hears.packet() == PingResp()


def test_who_is_paused_may_go_and_what_it_said_counts() -> None:
    """On a Unix socket, where the end is seen before what was sent is read."""
    with transports("unix", listener={"publish_rate_max": 200}) as there, there.there.client("w") as watcher:
        watcher.subscribe("t")
        with there.client("unix", "c", will=Will("t", b"lost")) as client:
            client.send(*(Publish("t", b"%d" % n) for n in range(250)), Disconnect())
        assert [bytes(watcher.publish().payload) for _ in range(250)] == [b"%d" % n for n in range(250)]
        watcher.send(PingReq())
        assert watcher.packet() == PingResp()
