"""Control packets that are long or full: what they may hold, and which answer a client gets above that."""

from __future__ import annotations

import pytest

from edge.engine import EngineLimits
from edge.limits import BrokerLimits, PacketLimits
from edge.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    Will,
)
from edge.mqtt.codec import encode_variable_integer
from tests.support.mqtt_bench import Bench

V5 = Version.V5
FEW = BrokerLimits(packets=PacketLimits(user_properties_max=3, filters_max=4))
USER = Properties(user=(("k", "v"),) * 4)


def filters(count: int) -> tuple[str, ...]:
    return tuple(f"f/{number}" for number in range(count))


def subscriptions(count: int) -> tuple[Subscription, ...]:
    return tuple(Subscription(name) for name in filters(count))


@pytest.mark.parametrize(
    "connect",
    [
        Connect("c", version=V5, properties=USER),
        Connect("c", version=V5, will=Will("w", b"", properties=USER)),
    ],
)
def test_a_connect_of_too_many_user_properties_is_refused_with_quota_exceeded(connect: Connect) -> None:
    with Bench(limits=FEW) as bench:
        wire = bench.wire(V5)
        wire.send(connect)
        assert wire.answer() == ConnAck(False, ReasonCode.QUOTA_EXCEEDED)
        assert not wire.is_open


@pytest.mark.parametrize(
    "packet",
    [
        Subscribe(1, (Subscription("t"),), USER),
        Unsubscribe(1, ("t",), USER),
        Disconnect(properties=USER),
        Auth(properties=Properties(authentication_method="m", user=USER.user)),
        Subscribe(1, subscriptions(5)),
        Unsubscribe(1, filters(5)),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_a_packet_above_a_count_ends_its_connection_with_quota_exceeded(packet: Packet) -> None:
    with Bench(limits=FEW) as bench:
        client = bench.client5("c", wants=Properties(request_problem_information=1))
        client.send(packet)
        answer = client.answer()
        assert isinstance(answer, Disconnect)
        assert answer.reason_code is ReasonCode.QUOTA_EXCEEDED
        assert "raise limits." in str(answer.properties.reason_string)
        assert not client.is_open


def test_an_older_client_above_a_count_is_disconnected_without_an_answer() -> None:
    with Bench(limits=FEW) as bench:
        client = bench.client()
        client.send(Subscribe(1, subscriptions(5)))
        assert client.received() == []
        assert not client.is_open


def test_packets_at_their_limits_are_served() -> None:
    three = Properties(user=USER.user[:3])
    with Bench(limits=FEW) as bench:
        client = bench.client5("c", wants=three)
        granted = (ReasonCode.SUCCESS,) * 4
        client.send(Subscribe(1, subscriptions(4), three), Unsubscribe(2, filters(4), three))
        assert client.received() == [SubAck(1, granted), UnsubAck(2, granted)]


def test_messages_have_no_limit_of_user_properties() -> None:
    with Bench(limits=FEW) as bench:
        client = bench.client5("c")
        client.send(Publish("t", b"x", 1, packet_id=1, properties=Properties(user=USER.user * 100)))
        assert client.answer() == PubAck(1, ReasonCode.NO_MATCHING_SUBSCRIBERS)


@pytest.mark.parametrize(("version", "said"), [(Version.V311, []), (V5, [ReasonCode.PACKET_TOO_LARGE])])
def test_a_control_packet_longer_than_its_limit_is_refused_by_its_header(
    version: Version, said: list[ReasonCode]
) -> None:
    with Bench(engine=EngineLimits(control_max_bytes=1_000)) as bench:
        client = bench.client("c", version=version)
        client.send(PingReq(), Publish("t", bytes(2_000)))
        assert client.received() == [PingResp()]
        client.raw(b"\x82" + encode_variable_integer(998, version))
        assert not client.is_open
        assert [packet.reason_code for packet in client.received() if isinstance(packet, Disconnect)] == said
