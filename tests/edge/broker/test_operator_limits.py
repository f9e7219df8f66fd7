"""Options of operators: highest QoS, largest payload, bytes in flight, clients without an identifier."""

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.config.loader import parse
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    Will,
)
from tests.support.mqtt_bench import Bench

V311, V5 = Version.V311, Version.V5
QUOTA = ReasonCode.QUOTA_EXCEEDED
UNHEARD = ReasonCode.NO_MATCHING_SUBSCRIBERS


# ---- the highest QoS ----


@pytest.mark.parametrize("most", [0, 1])
def test_a_client_of_mqtt_5_is_told_the_highest_qos_and_disconnected_above_it(most: int) -> None:
    with Bench(engine=EngineLimits(qos_max=most)) as bench:
        wire = bench.wire(V5)
        wire.send(Connect("c", version=V5))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.properties.maximum_qos == most
        wire.send(Publish("t", b"allowed", most, packet_id=1 if most else 0))
        assert wire.received() == ([PubAck(1, UNHEARD)] if most else [])
        wire.send(Publish("t", b"x", most + 1, packet_id=2))
        assert wire.received() == [Disconnect(ReasonCode.QOS_NOT_SUPPORTED)]
        assert not wire.is_open
        assert bench.records() == [("t", b"allowed")]
        assert bench.stats.closed()["qos"] == 1


def test_where_every_qos_is_served_connack_has_no_word_of_it() -> None:
    with Bench() as bench:
        wire = bench.wire(V5)
        wire.send(Connect("c", version=V5))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.properties.maximum_qos is None


def test_a_client_of_mqtt_3_that_publishes_above_the_highest_qos_is_disconnected() -> None:
    with Bench(engine=EngineLimits(qos_max=0)) as bench:
        client = bench.client("c")
        client.send(Publish("t", b"x", 1, packet_id=1))
        assert client.received() == []
        assert not client.is_open
        assert bench.records() == []


@pytest.mark.parametrize("version", [V311, V5])
def test_a_subscription_is_granted_the_highest_qos_at_most(version: Version) -> None:
    with Bench(engine=EngineLimits(qos_max=1)) as bench:
        client = bench.client("c", version=version)
        client.send(Subscribe(1, tuple(Subscription(f"t/{qos}", qos) for qos in (0, 1, 2))))
        assert client.received() == [SubAck(1, (ReasonCode(0), ReasonCode(1), ReasonCode(1)))]
        topic = bench.broker.own_messages
        topic.publish("t/2", b"x", 2)
        bench.settle()
        assert client.publishes() == [("t/2", b"x", 1)]


def test_a_will_above_the_highest_qos_is_refused_or_published_at_it() -> None:
    with Bench(engine=EngineLimits(qos_max=1)) as bench:
        will = Will("gone", b"x", 2)
        wire = bench.wire(V5)
        wire.send(Connect("c", version=V5, will=will))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code is ReasonCode.QOS_NOT_SUPPORTED
        heard = bench.client("h")
        heard.subscribe("gone", qos=1)
        bench.client("d", will=will).drop()
        assert heard.publishes() == [("gone", b"x", 1)]


# ---- the largest payload ----


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5])
def test_a_payload_above_the_limit_is_not_stored_and_the_client_stays(version: Version, qos: int) -> None:
    """MQTT 3.1.1 has no way to refuse it: it is acknowledged, or the client would send it for ever."""
    with Bench(engine=EngineLimits(payload_max_bytes=100)) as bench:
        client = bench.client("c", version=version)
        client.send(Publish("t", bytes(101), qos, packet_id=1 if qos else 0))
        code = QUOTA if version is V5 else ReasonCode.SUCCESS
        assert client.received() == [[], [PubAck(1, code)], [PubRec(1, code)]][qos]
        client.send(Publish("t", bytes(100), qos, packet_id=2 if qos else 0))
        assert [type(it) for it in client.received()] == [[], [PubAck], [PubRec]][qos]
        assert bench.records() == [("t", bytes(100))]
        assert bench.stats.dropped()["too large"] == 1
        assert client.is_open


def test_qos_2_that_was_stored_is_acknowledged_again_though_it_is_too_large_now() -> None:
    with Bench(engine=EngineLimits(payload_max_bytes=100)) as bench:
        client = bench.client5("c")
        client.send(Publish("t", bytes(100), 2, packet_id=1))
        client.send(Publish("t", bytes(101), 2, dup=True, packet_id=1))
        codes = [it.reason_code for it in client.received() if isinstance(it, PubRec)]
        assert codes == [ReasonCode.SUCCESS] * 2
        client.send(PubRel(1))
        assert client.received() == [PubComp(1)]


@pytest.mark.parametrize("version", [V311, V5])
def test_a_will_above_the_largest_payload_is_refused(version: Version) -> None:
    with Bench(engine=EngineLimits(payload_max_bytes=100)) as bench:
        wire = bench.wire(version)
        wire.send(Connect("c", version=version, will=Will("gone", bytes(101))))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        too_large = ReasonCode.PACKET_TOO_LARGE if version is V5 else ReasonCode.SERVER_UNAVAILABLE
        assert answer.reason_code is too_large


# ---- bytes in flight ----


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", [V311, V5])
def test_no_more_bytes_than_allowed_are_in_flight_to_a_client(version: Version, qos: int) -> None:
    with Bench(engine=EngineLimits(in_flight_max_bytes=2_500), capacity_bytes=1 << 22) as bench:
        reader, writer = bench.client("r", version=version), bench.client("w")
        reader.subscribe("t", qos=qos)
        writer.send(*(Publish("t", bytes(1_000), 2, packet_id=n + 1) for n in range(50)))
        got = 0
        for _ in range(60):
            first = [it for it in reader.received() if isinstance(it, Publish)]
            assert len(first) == min(3, 50 - got)  # the third began while there was room
            got += len(first)
            if got == 50:
                break
            for message in first:
                done = PubAck(message.packet_id) if qos == 1 else PubRec(message.packet_id)
                reader.send(done)
            if qos == 2:
                assert {type(it) for it in reader.received()} == {PubRel}
                reader.send(*(PubComp(message.packet_id) for message in first))
        assert got == 50


def test_qos_0_is_not_held_back_by_bytes_in_flight() -> None:
    with Bench(engine=EngineLimits(in_flight_max_bytes=100)) as bench:
        reader, writer = bench.client("r"), bench.client("w")
        reader.send(Subscribe(1, (Subscription("a", 1), Subscription("b", 0))))
        reader.received()
        writer.send(*(Publish("b", bytes(1_000)) for _ in range(5)))
        assert len(reader.publishes()) == 5
        writer.send(Publish("a", bytes(1_000), 1, packet_id=1))
        assert len(reader.publishes()) == 1  # one goes out, however large it is


def test_bytes_in_flight_are_counted_anew_behind_a_reconnect() -> None:
    with Bench(engine=EngineLimits(in_flight_max_bytes=2_500)) as bench:
        writer, reader = bench.client("w"), bench.client("r", clean_start=False)
        reader.subscribe("t", qos=1)
        writer.send(*(Publish("t", bytes(1_000), 1, packet_id=n + 1) for n in range(10)))
        assert len(reader.publishes()) == 3
        reader.drop()
        back = bench.wire()
        back.send(Connect("r", clean_start=False))
        again = [it for it in back.received() if isinstance(it, Publish)]
        assert [it.dup for it in again] == [True] * 3
        back.send(*(PubAck(it.packet_id) for it in again))
        assert len(back.publishes()) == 3


def test_retained_messages_wait_for_room_in_flight_too() -> None:
    with Bench(engine=EngineLimits(in_flight_max_bytes=2_500)) as bench:
        writer, reader = bench.client("w"), bench.client("r")
        writer.send(*(Publish(f"t/{n}", bytes(1_000), 1, retain=True, packet_id=n + 1) for n in range(10)))
        reader.send(Subscribe(1, (Subscription("t/#", 1),)))
        found: list[str] = []
        while more := [it for it in reader.received() if isinstance(it, Publish)]:
            assert len(more) <= 3
            found += [it.topic for it in more]
            reader.send(*(PubAck(it.packet_id) for it in more))
        assert sorted(found) == [f"t/{n}" for n in range(10)]


# ---- clients without an identifier ----


@pytest.mark.parametrize("version", [V311, V5])
def test_clients_without_an_identifier_may_be_refused(version: Version) -> None:
    with Bench(limits=BrokerLimits(empty_client_ids=False)) as bench:
        wire = bench.wire(version)
        wire.send(Connect("", version=version))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert not wire.is_open
        bench.client("named", version=version)


def test_the_configuration_has_them() -> None:
    limits = parse(
        "[limits]\nqos_max = 1\npayload_max_bytes = '1 KiB'\nin_flight_max_bytes = 10000\n"
        "allow_empty_client_id = false\n"
    ).limits
    assert (limits.qos_max, limits.payload_max_bytes, limits.in_flight_max_bytes) == (1, 1024, 10_000)
    assert limits.allow_empty_client_id is False
