"""What each control packet does, told to the engine and the broker without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from edge.access import ClientFacts, Verdict
from edge.broker import BrokerLimits
from edge.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    Will,
    encode,
)
from edge.router import TopicLimits
from edge.sessions import SessionLimits
from tests.support.mqtt_bench import Bench, Wire


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


def subscribe(wire: Wire, *filters: str, qos: int = 0) -> None:
    wire.send(Subscribe(7, tuple(Subscription(topic_filter, qos) for topic_filter in filters)))
    (answer,) = wire.received()[:1]
    assert answer == SubAck(7, (ReasonCode(qos),) * len(filters))


# ---- CONNECT ----


def test_a_client_connects_and_is_answered(bench: Bench) -> None:
    wire = bench.wire()
    wire.send(Connect("c"))
    assert wire.received() == [ConnAck()]
    wire.send(PingReq())
    assert wire.received() == [PingResp()]


def test_mqtt_3_1_is_spoken_too(bench: Bench) -> None:
    client = bench.client("c", version=Version.V31, clean_start=False)
    client.drop()
    bench.client("c", version=Version.V31, clean_start=False, present=False)  # it has no such flag


def test_a_version_that_is_not_spoken_is_refused_by_its_return_code(bench: Bench) -> None:
    wire = bench.wire()
    wire.raw(b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x3c\x00\x01c")
    assert wire.bytes_received() == b"\x20\x02\x00\x01"
    assert not wire.is_open
    newer = bench.wire(Version.V5)
    newer.send(Connect("c", version=Version.V5))
    assert newer.received() == [ConnAck(False, ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)]
    assert not newer.is_open


def test_a_client_without_an_identifier_gets_one_if_its_session_is_clean(bench: Bench) -> None:
    first, second = bench.client(""), bench.client("")
    assert first.is_open
    assert second.is_open
    wire = bench.wire()
    wire.raw(
        encode(Connect("x", clean_start=False))
        .replace(b"\x00\x01x", b"\x00\x00")
        .replace(b"\x10\x0d", b"\x10\x0c")
    )
    assert wire.received() == [ConnAck(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)]
    assert not wire.is_open


def test_what_is_not_connect_comes_to_nothing_before_it(bench: Bench) -> None:
    for packet in (Publish("a", b"x"), PingReq(), Subscribe(1, (Subscription("a"),)), Disconnect()):
        wire = bench.wire()
        wire.send(packet)
        assert not wire.is_open
        assert wire.bytes_received() == b""
    assert bench.records() == []


def test_a_second_connect_ends_the_connection(bench: Bench) -> None:
    client = bench.client()
    client.send(Connect("c"))
    assert not client.is_open


def test_silence_before_connect_ends_after_the_connect_timeout_however_bytes_trickle(bench: Bench) -> None:
    silent, trickling = bench.wire(), bench.wire()
    for byte in encode(Connect("c"))[:5]:
        bench.settle(900)
        trickling.raw(bytes([byte]))
    assert silent.is_open
    assert trickling.is_open
    bench.settle(600)
    assert not silent.is_open
    assert not trickling.is_open
    assert bench.stats.closed()["connect timeout"] == 2


def test_a_packet_that_claims_too_much_is_refused_at_its_header() -> None:
    limits = EngineLimits(connect_max_bytes=1000, packet_max_bytes=2000)
    with Bench(engine=limits) as bench:
        stranger = bench.wire()
        stranger.raw(b"\x10\xe8\x07")  # 1000 and its header
        assert not stranger.is_open
        client = bench.client()
        client.send(Publish("a", bytes(1990)))
        assert client.is_open
        client.raw(b"\x30\xd0\x0f")
        assert not client.is_open
        assert bench.stats.closed()["too large"] == 2


# ---- authentication and rules ----


class Passwords:
    """Knows one user; answers at once, or by a Future."""

    def __init__(self) -> None:
        self.later: Future[bool] | None = None

    def authenticate(self, client: ClientFacts, password: bytes | None) -> Verdict:
        return self.later or (client.username == "ann" and password == b"secret")


class Rules:
    """Ann may publish to ann/..., and subscribe to ann/..."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def may_publish(self, client: ClientFacts, topic: str) -> bool:
        self.asked.append(topic)
        return topic.startswith(f"{client.identity}/")

    def may_subscribe(self, client: ClientFacts, topic_filter: str) -> bool:
        return topic_filter.startswith(f"{client.identity}/")


def test_anonymous_clients_are_for_listeners_that_allow_them(bench: Bench) -> None:
    for listener, code in (
        (0, ReasonCode.SUCCESS),
        (1, ReasonCode.NOT_AUTHORIZED),
        (2, ReasonCode.NOT_AUTHORIZED),
    ):
        wire = bench.wire(listener=listener)
        wire.send(Connect(f"c{listener}"))
        assert wire.received() == [ConnAck(False, code)]
        assert wire.is_open == (code is ReasonCode.SUCCESS)


def test_a_wrong_password_is_refused_and_touches_no_session() -> None:
    with Bench(authenticator=Passwords()) as bench:
        ann = bench.client("a", username="ann", password=b"secret", clean_start=False, listener=1)
        subscribe(ann, "t", qos=1)
        thief = bench.wire(listener=1)
        thief.send(Connect("a", username="ann", password=b"guess"))
        assert thief.received() == [ConnAck(False, ReasonCode.BAD_USER_NAME_OR_PASSWORD)]
        assert ann.is_open
        ann.drop()
        bench.client("a", username="ann", password=b"secret", clean_start=False, listener=1, present=True)


def test_a_session_is_taken_over_only_by_who_opened_it() -> None:
    class Anybody(Passwords):
        def authenticate(self, client: ClientFacts, password: bytes | None) -> bool:
            return True

    with Bench(authenticator=Anybody()) as bench:
        ann = bench.client("a", username="ann", clean_start=False)
        bob = bench.wire()
        bob.send(Connect("a", username="bob"))
        assert bob.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]
        assert ann.is_open


@pytest.mark.parametrize("allowed", [True, False])
def test_an_authenticator_may_take_its_time(allowed: bool) -> None:
    passwords = Passwords()
    passwords.later = Future()
    with Bench(authenticator=passwords) as bench:
        wire = bench.wire()
        wire.send(Connect("a", username="ann"), Publish("t", b"early"))
        assert wire.received() == []
        passwords.later.set_result(allowed)
        bench.settle()
        code = ReasonCode.SUCCESS if allowed else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert wire.received() == [ConnAck(False, code)]
        assert bench.records() == ([("t", b"early")] if allowed else [])


def test_an_authenticator_that_fails_refuses_and_one_that_is_too_slow_is_not_waited_for() -> None:
    passwords = Passwords()
    with Bench(authenticator=passwords) as bench:
        passwords.later = Future()
        wire = bench.wire()
        wire.send(Connect("a", username="ann"))
        passwords.later.set_exception(OSError("no directory server"))
        bench.settle()
        assert wire.received() == [ConnAck(False, ReasonCode.BAD_USER_NAME_OR_PASSWORD)]
        passwords.later = Future()
        slow = bench.wire()
        slow.send(Connect("b", username="ann"))
        bench.settle(6_000)
        assert not slow.is_open
        passwords.later.set_result(True)
        bench.settle()
        assert bench.broker.sessions.get("b") is None


def test_rules_are_asked_once_for_a_client_and_topic_and_again_when_they_change() -> None:
    rules = Rules()
    with Bench(authenticator=Passwords(), access=rules) as bench:
        ann = bench.client("a", username="ann", password=b"secret")
        for _ in range(3):
            ann.send(*(Publish(topic, b"x") for topic in ("ann/1", "ann/2", "bob/1")))
        assert sorted(rules.asked) == ["ann/1", "ann/2", "bob/1"]
        assert bench.records() == [("ann/1", b"x"), ("ann/2", b"x")] * 3
        assert bench.stats.dropped()["denied"] == 3
        bench.broker.rules_changed(rules)
        ann.send(Publish("ann/1", b"y"))
        assert rules.asked.count("ann/1") == 2
        ann.send(Publish("bob/1", b"y", 1, packet_id=5))  # [MQTT-3.3.5-2]: acknowledged, and not stored
        assert ann.received() == [PubAck(5)]
        assert [topic for topic, _ in bench.records()].count("bob/1") == 0


def test_new_rules_hold_for_who_was_trusted_before() -> None:
    with Bench() as bench:
        client = bench.client()
        client.send(Publish("t", b"1"))
        bench.broker.rules_changed(Rules())
        client.send(Publish("t", b"2"))
        assert bench.records() == [("t", b"1")]


def test_rules_hold_for_subscriptions_and_wills() -> None:
    with Bench(authenticator=Passwords(), access=Rules()) as bench:
        ann = bench.client("a", username="ann", password=b"secret")
        ann.send(Subscribe(1, (Subscription("ann/#"), Subscription("bob/#"))))
        assert ann.received() == [SubAck(1, (ReasonCode.SUCCESS, ReasonCode.UNSPECIFIED_ERROR))]
        wire = bench.wire()
        wire.send(Connect("b", username="ann", password=b"secret", will=Will("bob/gone")))
        assert wire.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]


def test_topics_that_begin_with_a_dollar_are_the_servers(bench: Bench) -> None:
    client = bench.client()
    assert bench.broker.publish("$SYS/uptime", b"1")
    client.send(Publish("$SYS/uptime", b"forged"), Publish("$other", b"forged", 1, packet_id=2))
    assert client.received() == [PubAck(2)]
    assert bench.records() == [("$SYS/uptime", b"1")]
    assert bench.stats.dropped()["denied"] == 2
    wire = bench.wire()
    wire.send(Connect("w", will=Will("$SYS/uptime", b"forged")))
    assert wire.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]


# ---- PUBLISH and delivery ----


def test_a_message_becomes_a_record_and_reaches_who_subscribed(bench: Bench) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    subscribe(reader, "plant/+/temp")
    writer.send(Publish("plant/1/temp", b"21"), Publish("plant/1/hum", b"40"), Publish("plant/2/temp", b"22"))
    assert bench.records() == [("plant/1/temp", b"21"), ("plant/1/hum", b"40"), ("plant/2/temp", b"22")]
    assert reader.publishes() == [("plant/1/temp", b"21", 0), ("plant/2/temp", b"22", 0)]


@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_a_message_is_delivered_at_the_lower_qos(bench: Bench, published: int, granted: int) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    subscribe(reader, "t", qos=granted)
    writer.send(Publish("t", b"x", published, packet_id=9 if published else 0))
    assert reader.publishes() == [("t", b"x", min(published, granted))]


def test_overlapping_filters_deliver_once_at_the_highest_qos(bench: Bench) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    writer.send(Publish("a/b", b"known before"))
    subscribe(reader, "a/#")
    subscribe(reader, "a/+", qos=2)
    subscribe(reader, "a/b", qos=1)
    writer.send(Publish("a/b", b"1", 2, packet_id=1), Publish("a/c", b"2", 2, packet_id=2))
    assert reader.publishes() == [("a/b", b"1", 2), ("a/c", b"2", 2)]
    reader.send(Unsubscribe(1, ("a/+",)))
    assert reader.received() == [UnsubAck(1)]
    writer.send(
        PubRel(1), PubRel(2), Publish("a/b", b"3", 2, packet_id=1), Publish("a/c", b"4", 2, packet_id=2)
    )
    assert reader.publishes() == [("a/b", b"3", 1), ("a/c", b"4", 0)]
    reader.send(Subscribe(2, (Subscription("a/b", 0),)), Unsubscribe(3, ("a/#", "a/b")))
    assert len(reader.received()) == 2
    writer.send(Publish("a/b", b"5"))
    assert reader.publishes() == []


def test_a_subscription_that_is_replaced_has_its_new_qos_also_when_it_is_lower(bench: Bench) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    subscribe(reader, "t", qos=2)
    writer.send(Publish("t", b"1", 1, packet_id=1))
    assert reader.publishes() == [("t", b"1", 1)]
    subscribe(reader, "t", qos=0)
    writer.send(Publish("t", b"2", 1, packet_id=2))
    assert reader.publishes() == [("t", b"2", 0)]


def test_wildcards_do_not_match_dollar_topics_at_the_first_level(bench: Bench) -> None:
    reader = bench.client("r")
    bench.broker.publish("$SYS/a", b"known before")
    subscribe(reader, "#", "+/a", "+/b")
    bench.broker.publish("$SYS/a", b"1")
    bench.broker.publish("$SYS/b", b"2")
    assert reader.publishes() == []
    subscribe(reader, "$SYS/#")
    bench.broker.publish("$SYS/a", b"3")
    bench.broker.publish("$SYS/b", b"4")
    assert reader.publishes() == [("$SYS/a", b"3", 0), ("$SYS/b", b"4", 0)]


def test_qos_1_is_acknowledged_when_it_is_in_the_ring(bench: Bench) -> None:
    writer = bench.client()
    writer.send(Publish("t", b"1", 1, packet_id=40), Publish("t", b"2", 1, packet_id=41))
    assert writer.received() == [PubAck(40), PubAck(41)]
    assert bench.records() == [("t", b"1"), ("t", b"2")]


def test_qos_2_stores_a_message_once_however_often_it_is_sent(bench: Bench) -> None:
    writer = bench.client("w", clean_start=False)
    writer.send(Publish("t", b"1", 2, packet_id=9))
    assert writer.received() == [PubRec(9)]
    writer.drop()
    writer = bench.client("w", clean_start=False, present=True)
    writer.send(Publish("t", b"1", 2, dup=True, packet_id=9), PubRel(9), PubRel(9))
    assert writer.received() == [PubRec(9), PubComp(9), PubComp(9)]
    writer.send(Publish("t", b"2", 2, packet_id=9))
    assert writer.received() == [PubRec(9)]
    assert bench.records() == [("t", b"1"), ("t", b"2")]


def test_order_of_one_connection_is_kept_around_what_python_handles(bench: Bench) -> None:
    client = bench.client()
    client.send(
        Publish("a", b"before"),
        Subscribe(1, (Subscription("a"),)),
        Publish("a", b"1"),
        Publish("new topic", b"x"),
        Publish("a", b"2"),
        Unsubscribe(2, ("a",)),
        Publish("a", b"after"),
    )
    answers = client.received()
    client.send(Disconnect(), Publish("a", b"nothing counts any more"))
    assert SubAck(1, (ReasonCode.SUCCESS,)) in answers
    assert UnsubAck(2) in answers
    assert [packet.payload for packet in answers if isinstance(packet, Publish)] == [b"1", b"2"]
    assert [payload for _, payload in bench.records()] == [b"before", b"1", b"x", b"2", b"after"]
    assert not client.is_open


@pytest.mark.parametrize(
    "data",
    [
        b"\x36\x05\x00\x01t\x00\x01",  # QoS 3 [MQTT-3.3.1-4]
        b"\x38\x03\x00\x01t",  # DUP at QoS 0 [MQTT-3.3.1-2]
        b"\x32\x05\x00\x01t\x00\x00",  # packet identifier 0 [MQTT-2.3.1-1]
        b"\x32\x03\x00\x01t",  # no packet identifier
        b"\x30\x02\x00\x00",  # empty topic [MQTT-4.7.3-1]
        b"\x30\x03\x00\x02t",  # topic longer than the packet
        b"\x30\x01\x00",
        b"\x30\x00",
        b"\x30\x04\x00\x02\xc3\x28",  # no UTF-8 [MQTT-1.5.3-1]
        b"\x30\x03\x00\x01+",  # wildcard [MQTT-3.3.2-2]
        b"\x30\x05\x00\x03a/#",
        b"\x30\x03\x00\x01\x00",  # NUL [MQTT-1.5.3-2]
        b"\x40\x03\x00\x01\x00",  # PUBACK with a byte too many
        b"\x41\x02\x00\x01",  # PUBACK with flags
        b"\x60\x02\x00\x01",  # PUBREL without its flag [MQTT-3.6.1-1]
        b"\x40\x02\x00\x00",
        b"\xc1\x00",  # PINGREQ with flags
        b"\xc0\x01\x00",
        b"\x80\x06\x00\x01\x00\x01t\x00",  # SUBSCRIBE without its flag [MQTT-3.8.1-1]
        b"\x82\x02\x00\x01",  # SUBSCRIBE for nothing [MQTT-3.8.3-3]
        b"\x82\x06\x00\x01\x00\x01t\x03",  # QoS 3
        b"\x82\x07\x00\x01\x00\x02a#\x00",
        b"\xa2\x02\x00\x01",
        b"\xe1\x00",
        b"\x20\x02\x00\x00",  # CONNACK: the server's
        b"\xd0\x00",
        b"\x00\x00",
        b"\xf0\x00",
        b"\x30\xff\xff\xff\xff\x01",  # a length of five bytes
    ],
)
def test_a_malformed_packet_ends_its_connection_and_no_other(bench: Bench, data: bytes) -> None:
    good, bad = bench.client("good"), bench.client("bad")
    subscribe(good, "t")
    bad.raw(data)
    assert not bad.is_open
    assert bad.bytes_received() == b""
    good.send(Publish("t", b"still here"))
    assert good.publishes() == [("t", b"still here", 0)]
    assert bench.broker.sessions.get("bad") is None


def test_an_exception_while_a_packet_is_handled_ends_that_connection_only(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = bench.client("good"), bench.client("bad", will=Will("gone", b"bad"))
    subscribe(good, "gone")

    def broken(topic: str) -> None:
        raise RuntimeError("planted")

    bench.partition_of, keep = broken, bench.partition_of  # type: ignore[assignment]
    bad.send(Publish("first seen", b"x"))
    bench.partition_of = keep
    assert not bad.is_open
    assert "planted" in caplog.text
    caplog.clear()  # its traceback would keep the broker, and with it the ring
    good.send(Publish("first seen", b"y"))
    assert good.is_open
    assert ("first seen", b"y") in bench.records()


# ---- limits ----


def test_topics_and_filters_have_bounds() -> None:
    limits = BrokerLimits(topics=TopicLimits(topic_max_bytes=10, topic_levels_max=3), subscriptions_max=2)
    with Bench(limits=limits) as bench:
        for topic in ("12345678901", "a/b/c/d"):
            client = bench.client()
            client.send(Publish(topic, b"x"))
            assert not client.is_open
        client = bench.client()
        client.send(
            Subscribe(1, tuple(Subscription(name) for name in ("12345678901", "a/b/c/d", "1", "2", "3", "1")))
        )
        failed, granted = ReasonCode.UNSPECIFIED_ERROR, ReasonCode.SUCCESS
        assert client.received() == [SubAck(1, (failed, failed, granted, granted, failed, granted))]
        assert bench.records() == []


def test_client_identifiers_have_a_bound() -> None:
    with Bench(limits=BrokerLimits(client_id_max_bytes=30)) as bench:
        wire = bench.wire()
        wire.send(Connect("x" * 31))
        assert wire.received() == [ConnAck(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)]


def test_a_full_topic_table_forgets_what_is_not_used_and_never_what_is_retained() -> None:
    with Bench(engine=EngineLimits(topics_max=64)) as bench:
        client, reader = bench.client(), bench.client("r")
        client.send(Publish("kept", b"r", retain=True))
        for i in range(500):
            client.send(Publish(f"t/{i}", b"%d" % i))
        assert len(bench.records()) == 501
        assert bench.stats.now()["topics"] <= 64
        assert len(bench.broker.router.names) == bench.stats.now()["topics"]
        subscribe(reader, "#")
        client.send(Publish("t/3", b"again"), Publish("t/499", b"again"))
        assert reader.publishes() == [("t/3", b"again", 0), ("t/499", b"again", 0)]


def test_a_topic_table_full_of_retained_topics_drops_new_ones_and_counts_them() -> None:
    with Bench(engine=EngineLimits(topics_max=4)) as bench:
        client = bench.client()
        for i in range(6):
            client.send(Publish(f"t/{i}", b"x", 1, retain=True, packet_id=i + 1))
        assert client.received() == [PubAck(i + 1) for i in range(6)]
        assert [topic for topic, _ in bench.records()] == ["t/0", "t/1", "t/2", "t/3"]
        assert bench.stats.dropped()["topics"] == 2


# ---- retained messages ----


def test_a_retained_message_is_for_who_comes_later_and_live_for_who_is_there(bench: Bench) -> None:
    early, writer = bench.client("e"), bench.client("w")
    subscribe(early, "t/#")
    writer.send(Publish("t/1", b"old", retain=True), Publish("t/1", b"new", 1, retain=True, packet_id=1))
    live = early.received()
    assert [packet.retain for packet in live if isinstance(packet, Publish)] == [
        False,
        False,
    ]  # [MQTT-3.3.1-9]
    late = bench.client("l")
    late.send(Subscribe(1, (Subscription("t/+", 1),)))
    assert late.received() == [
        SubAck(1, (ReasonCode.GRANTED_QOS_1,)),
        Publish("t/1", b"new", 1, retain=True, packet_id=1),
    ]


def test_an_empty_retained_message_clears(bench: Bench) -> None:
    writer, reader = bench.client("w"), bench.client("r")
    writer.send(Publish("t", b"x", retain=True), Publish("t", b"", retain=True))
    reader.send(Subscribe(1, (Subscription("t"),)))
    assert reader.received() == [SubAck(1, (ReasonCode.SUCCESS,))]
    assert bench.stats.now()["retained"] == 0
    assert bench.stats.now()["retained_bytes"] == 0


def test_each_new_subscription_gets_the_retained_messages_again(bench: Bench) -> None:
    writer, reader = bench.client("w"), bench.client("r")
    writer.send(Publish("a/b", b"x", retain=True))
    for topic_filter in ("a/b", "a/b", "#"):
        reader.send(Subscribe(1, (Subscription(topic_filter),)))
        assert reader.received()[1:] == [Publish("a/b", b"x", retain=True)]
    reader.send(Subscribe(1, (Subscription("$SYS/#"), Subscription("a/+/c"))))
    assert len(reader.received()) == 1


def test_a_retained_message_outlives_its_ring_and_its_replacement(bench: Bench) -> None:
    writer, reader = bench.client("w"), bench.client("r", clean_start=False)
    writer.send(Publish("t", b"kept", 1, retain=True, packet_id=1))
    subscribe(reader, "t", qos=1)
    reader.drop()
    for _ in range(600):  # laps the ring
        writer.send(Publish("noise", bytes(4000)))
    writer.send(Publish("t", b"newer", 1, retain=True, packet_id=2))
    late = bench.client("l")
    late.send(Subscribe(1, (Subscription("t"),)))
    assert late.received()[1:] == [Publish("t", b"newer", retain=True)]


def test_the_retained_store_has_bounds_and_counts_what_it_refuses() -> None:
    with Bench(engine=EngineLimits(retained_max=2, retained_max_bytes=1000)) as bench:
        writer = bench.client("w")
        writer.send(*(Publish(f"t/{i}", b"x", retain=True) for i in range(3)))
        writer.send(Publish("t/0", bytes(2000), retain=True))
        assert bench.stats.now()["retained"] == 1
        assert bench.stats.totals()["retained_refused"] == 2
        assert len(bench.records()) == 4


def test_retained_messages_come_back_from_the_ring_after_a_restart(bench: Bench) -> None:
    writer = bench.client("w")
    writer.send(
        Publish("t/1", b"old", retain=True),
        Publish("t/2", b"cleared", retain=True),
        Publish("t/1", b"new", 1, retain=True, packet_id=1),
        Publish("t/2", b"", retain=True),
        Publish("t/3", b"not retained"),
    )
    with Bench() as restarted:
        reader = bench.partition.ring.reader(start="oldest")
        records = []
        while (record := reader.poll()) is not None:
            records.append(record)
        assert restarted.broker.retained.restore(records) == 1
        late = restarted.client("l")
        late.send(Subscribe(1, (Subscription("#", 1),)))
        assert late.received()[1:] == [Publish("t/1", b"new", 1, retain=True, packet_id=1)]
        records.clear()
        reader.close()


# ---- wills ----


@pytest.mark.parametrize("how", ["drop", "malformed", "keep alive", "take-over"])
def test_a_will_is_published_when_a_client_goes_without_a_word(bench: Bench, how: str) -> None:
    watcher = bench.client("watcher", keep_alive_s=0)
    subscribe(watcher, "gone/#", qos=1)
    client = bench.client("c", will=Will("gone/c", b"bye", 1, retain=True), keep_alive_s=10)
    if how == "drop":
        client.drop()
    elif how == "malformed":
        client.raw(b"\x30\x00")
    elif how == "keep alive":
        bench.settle(14_000)
        assert client.is_open
        bench.settle(1_500)
    else:
        bench.client("c")
    assert not client.is_open
    assert watcher.publishes() == [("gone/c", b"bye", 1)]
    late = bench.client("late")
    late.send(Subscribe(1, (Subscription("gone/#"),)))
    assert late.received()[1:] == [Publish("gone/c", b"bye", retain=True)]


def test_a_disconnect_discards_the_will(bench: Bench) -> None:
    client = bench.client("c", will=Will("gone", b"bye"))
    client.send(Disconnect())
    assert not client.is_open
    assert bench.records() == []


def test_a_stop_publishes_the_wills(bench: Bench) -> None:
    bench.client("c", will=Will("gone", b"bye"))
    bench.broker.stop()
    assert bench.records() == [("gone", b"bye")]


# ---- sessions ----


def test_a_persistent_session_gets_what_was_published_meanwhile(bench: Bench) -> None:
    reader, writer = bench.client("r", clean_start=False), bench.client("w")
    subscribe(reader, "t/#", qos=1)
    reader.send(Disconnect())
    writer.send(
        Publish("t/1", b"a", 1, packet_id=1),
        Publish("t/2", b"QoS 0 is not kept"),
        Publish("t/3", b"b", 2, packet_id=2),
    )
    reader = bench.wire()
    reader.send(Connect("r", clean_start=False))
    assert reader.received() == [
        ConnAck(True),
        Publish("t/1", b"a", 1, packet_id=1),
        Publish("t/3", b"b", 1, packet_id=2),
    ]


def test_a_clean_session_leaves_nothing(bench: Bench) -> None:
    reader = bench.client("r", clean_start=False)
    subscribe(reader, "t", qos=1)
    reader.drop()
    assert bench.broker.sessions.away == 1
    bench.client("r").drop()
    assert len(bench.broker.sessions) == 0
    bench.client("r", clean_start=False, present=False)


def test_what_was_not_acknowledged_is_sent_again_in_order_with_dup(bench: Bench) -> None:
    reader, writer = bench.client("r", clean_start=False), bench.client("w")
    subscribe(reader, "t", qos=2)
    writer.send(*(Publish("t", b"%d" % i, 1 + i % 2, packet_id=i + 1) for i in range(6)))
    assert [payload for _, payload, _ in reader.publishes()] == [b"0", b"1", b"2", b"3", b"4", b"5"]
    reader.send(PubAck(3), PubRec(4), PubRec(2), PubComp(4))
    assert reader.received() == [PubRel(4), PubRel(2)]
    reader.drop()
    writer.send(Publish("t", b"later", 1, packet_id=10))
    reader = bench.wire()
    reader.send(Connect("r", clean_start=False))
    assert reader.received() == [
        ConnAck(True),
        Publish("t", b"0", 1, dup=True, packet_id=1),
        PubRel(2),
        Publish("t", b"4", 1, dup=True, packet_id=5),
        Publish("t", b"5", 2, dup=True, packet_id=6),
        Publish("t", b"later", 1, packet_id=7),
    ]
    assert bench.stats.totals()["redelivered"] == 3


def test_the_window_bounds_what_is_in_flight_and_opens_with_acknowledgements() -> None:
    with Bench(limits=BrokerLimits(sessions=SessionLimits(in_flight_max=3))) as bench:
        reader, writer = bench.client("r"), bench.client("w")
        subscribe(reader, "t", qos=1)
        writer.send(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(8)))
        assert [payload for _, payload, _ in reader.publishes()] == [b"0", b"1", b"2"]
        reader.send(PubAck(2))
        assert [payload for _, payload, _ in reader.publishes()] == [b"3"]
        reader.send(PubAck(1), PubAck(3), PubAck(3), PubAck(77))
        assert [payload for _, payload, _ in reader.publishes()] == [b"4", b"5"]


def test_identifiers_go_round_and_skip_none_that_is_in_flight(bench: Bench) -> None:
    reader, writer = bench.client("r"), bench.client("w")
    subscribe(reader, "t", qos=1)
    expected = 0
    for _ in range(700):
        writer.send(*(Publish("t", b"x", 1, packet_id=i + 1) for i in range(100)))
        got = [packet.packet_id for packet in reader.received() if isinstance(packet, Publish)]
        assert got == [(expected + i) % 65_535 + 1 for i in range(100)]
        expected += 100
        reader.send(*(PubAck(identifier) for identifier in reversed(got)))
        writer.received()
    assert [row.in_flight for row in bench.stats.clients(bench.broker.sessions)] == [0, 0]


@pytest.mark.parametrize("newest", [False, True])
def test_a_full_queue_drops_by_its_policy_and_counts(newest: bool) -> None:
    limits = SessionLimits(queued_records_max=50, drop_newest=newest)
    with Bench(limits=BrokerLimits(sessions=limits)) as bench:
        reader, writer = bench.client("r", clean_start=False), bench.client("w")
        subscribe(reader, "t", qos=1)
        reader.drop()
        writer.send(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(80)))
        (row,) = [row for row in bench.stats.clients(bench.broker.sessions) if row.client_id == "r"]
        assert (row.queued, row.dropped) == (50, {"queue": 30})
        assert bench.stats.dropped()["queue"] == 30
        reader = bench.wire()
        reader.send(Connect("r", clean_start=False))
        payloads = [packet.payload for packet in reader.received() if isinstance(packet, Publish)]
        assert payloads == [b"%d" % i for i in (range(50) if newest else range(30, 80))]


def test_records_that_the_ring_gave_up_are_counted_as_overrun_not_delivered(bench: Bench) -> None:
    reader, writer = bench.client("r", clean_start=False), bench.client("w")
    subscribe(reader, "t", qos=1)
    writer.send(Publish("t", b"in flight", 1, packet_id=1))
    assert len(reader.received()) == 1
    reader.drop()
    writer.send(Publish("t", b"queued", 1, packet_id=2))
    writer.send(*(Publish("noise", bytes(4000)) for _ in range(600)))
    writer.send(Publish("t", b"there", 1, packet_id=3))
    reader = bench.wire()
    reader.send(Connect("r", clean_start=False))
    assert reader.received() == [ConnAck(True), Publish("t", b"there", 1, packet_id=2)]
    assert bench.stats.dropped()["overrun"] == 2


def test_sessions_of_clients_that_stay_away_expire_and_are_bounded() -> None:
    limits = BrokerLimits(sessions=SessionLimits(sessions_max=3, session_expiry_s=100))
    with Bench(limits=limits) as bench:
        for i in range(5):
            bench.client(f"c{i}", clean_start=False).drop()
            bench.settle(1_000)
        bench.settle(31_000)
        assert sorted(session.client_id for session in bench.broker.sessions) == ["c2", "c3", "c4"]
        bench.client("c3", clean_start=False, present=True, keep_alive_s=0)
        bench.settle(100_000)
        assert [session.client_id for session in bench.broker.sessions] == ["c3"]


def test_a_take_over_closes_the_old_connection_and_keeps_the_session(bench: Bench) -> None:
    old, writer = bench.client("r", clean_start=False), bench.client("w")
    subscribe(old, "t", qos=1)
    new = bench.client("r", clean_start=False, present=True)
    assert not old.is_open
    writer.send(Publish("t", b"x", 1, packet_id=1))
    assert new.publishes() == [("t", b"x", 1)]
    assert bench.stats.now()["sessions"] == 2


# ---- keep alive ----


def test_whoever_is_silent_for_one_and_a_half_keep_alives_is_closed(bench: Bench) -> None:
    silent, pinging, free = (bench.client(f"c{k}", keep_alive_s=k) for k in (10, 11, 0))
    for _ in range(10):
        bench.settle(7_000)
        pinging.send(PingReq())
    assert not silent.is_open
    assert pinging.is_open
    assert free.is_open
    assert bench.stats.closed()["keep alive"] == 1


def test_sending_anything_counts_as_a_sign_of_life_and_receiving_does_not(bench: Bench) -> None:
    talker, listener = bench.client("t", keep_alive_s=10), bench.client("l", keep_alive_s=10)
    subscribe(listener, "t")
    for i in range(4):
        bench.settle(6_000)
        talker.send(Publish("t", b"%d" % i))
        listener.bytes_received()
    assert talker.is_open
    assert not listener.is_open
