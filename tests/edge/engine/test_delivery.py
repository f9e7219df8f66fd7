"""Deliveries to a subscriber: properties, expiry, aliases, sizes, options, identifiers; for both versions."""

from typing import Any

import pytest
from msgspec.structs import replace

from edge.engine.engine import EngineLimits
from edge.engine.subscription_options import options_of
from edge.mqtt import (
    ConnAck,
    Connect,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Version,
    encode,
)
from edge.mqtt.properties import NO_PROPERTIES
from tests.support.mqtt_bench import BEGIN_NS, Bench, Wire

DAY_S, SINCE_1970_S = 86_400, BEGIN_NS // 1_000_000_000

EVERYTHING = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answer/here",
    correlation_data=b"\x00\x01",
    user=(("a", "1"), ("b", "2"), ("a", "1")),
)


def v5(bench: Bench, client_id: str = "s", *, wants: Properties = NO_PROPERTIES, **fields: Any) -> Wire:
    """A client that speaks MQTT 5; with clean_start=False its session outlives its connection."""
    if not fields.get("clean_start", True):
        wants = replace(wants, session_expiry_interval_s=3600)
    return bench.client(client_id, version=Version.V5, properties=wants, **fields)


def subscribe(wire: Wire, *subscriptions: Subscription, identifier: int = 0) -> None:
    """SUBSCRIBE, and a SUBACK that grants all; what else comes is thrown away."""
    identifiers = (identifier,) if identifier else ()
    wire.send(Subscribe(9, subscriptions, Properties(subscription_identifiers=identifiers)))
    (answer,) = wire.received()[:1]
    assert isinstance(answer, SubAck)
    assert all(code < 0x80 for code in answer.reason_codes), answer


def got(wire: Wire) -> list[Publish]:
    """Every PUBLISH there is for it now; nothing else may be there."""
    found = []
    for packet in wire.received():
        assert isinstance(packet, Publish), packet
        found.append(packet)
    return found


# ---- properties ----


def test_properties_reach_mqtt_5_subscribers_verbatim_and_older_ones_not_at_all() -> None:
    with Bench() as bench:
        new, old, publisher = v5(bench), bench.client("old"), v5(bench, "p")
        subscribe(new, Subscription("t", 1))
        old.subscribe("t")
        publisher.send(Publish("t", b"x", 1, packet_id=1, properties=EVERYTHING))
        assert got(new) == [Publish("t", b"x", 1, packet_id=1, properties=EVERYTHING)]
        assert got(old) == [Publish("t", b"x")]


def test_a_message_of_an_old_client_has_no_properties_for_a_new_one() -> None:
    with Bench() as bench:
        new, publisher = v5(bench), bench.client("p")
        subscribe(new, Subscription("t"))
        publisher.send(Publish("t", b"x"))
        assert new.bytes_received() == b"\x30\x05\x00\x01t\x00x"


def test_long_properties_have_a_long_length() -> None:
    many = Properties(user=tuple((f"name {i}", "v" * 200) for i in range(100)))
    with Bench() as bench:
        new, publisher = v5(bench), v5(bench, "p")
        subscribe(new, Subscription("t"))
        publisher.send(Publish("t", b"x", properties=many))
        assert got(new) == [Publish("t", b"x", properties=many)]


def test_retained_messages_keep_their_properties() -> None:
    with Bench() as bench:
        publisher, late = v5(bench, "p"), v5(bench)
        publisher.send(Publish("t", b"x", retain=True, properties=EVERYTHING))
        late.send(Subscribe(1, (Subscription("#"),)))
        assert late.received()[1:] == [Publish("t", b"x", retain=True, properties=EVERYTHING)]


# ---- expiry ----


def expiring(seconds: int, topic: str = "t", **fields: Any) -> Publish:
    """A message that lives so long, with properties before and behind."""
    wanted = Properties(message_expiry_interval_s=seconds, content_type="c", user=(("k", "v"),))
    return Publish(topic, b"x", properties=wanted, **fields)


@pytest.mark.parametrize(
    ("waited_ms", "left_s"), [(0, 10), (999, 10), (1_000, 9), (9_999, 1), (10_000, None)]
)
def test_a_message_that_waited_has_as_much_less_to_live_and_none_when_it_is_over(
    waited_ms: int, left_s: int | None
) -> None:
    with Bench() as bench:
        away = v5(bench, "away", clean_start=False)
        subscribe(away, Subscription("t", 1))
        away.drop()
        v5(bench, "p").send(expiring(10, qos=1, packet_id=1))
        bench.settle(waited_ms)
        away = bench.wire(Version.V5)
        away.send(Connect("away", clean_start=False, version=Version.V5))
        _, *publishes = away.received()
        expected = [] if left_s is None else [expiring(left_s, qos=1, packet_id=1)]
        assert publishes == expected
        assert bench.stats.dropped()["expired"] == (left_s is None)
        (row,) = (row for row in bench.stats.clients(bench.broker.sessions) if row.client_id == "away")
        assert row.dropped == ({"expired": 1} if left_s is None else {})
        assert row.in_flight == len(expected)


def test_an_expired_message_is_not_for_old_clients_either() -> None:
    with Bench() as bench:
        away = bench.client("away", clean_start=False)
        away.subscribe("t", qos=1)
        away.drop()
        v5(bench, "p").send(expiring(10, qos=1, packet_id=1), expiring(20, qos=1, packet_id=2))
        bench.settle(10_000)
        away = bench.wire()
        away.send(Connect("away", clean_start=False))
        assert away.received()[1:] == [Publish("t", b"x", 1, packet_id=1)]
        assert bench.stats.dropped()["expired"] == 1


def test_what_was_sent_once_is_sent_again_though_it_has_expired_since() -> None:
    with Bench() as bench:
        slow = v5(bench, clean_start=False)
        subscribe(slow, Subscription("t", 1))
        v5(bench, "p").send(expiring(10, qos=1, packet_id=1))
        assert got(slow) == [expiring(10, qos=1, packet_id=1)]
        slow.drop()
        bench.settle(60_000)
        slow = bench.wire(Version.V5)
        slow.send(Connect("s", clean_start=False, version=Version.V5))
        assert slow.received()[1:] == [expiring(0, qos=1, packet_id=1, dup=True)]


def test_a_wall_clock_that_is_set_back_lengthens_nothing() -> None:
    with Bench() as bench:
        away = v5(bench, "away", clean_start=False)
        subscribe(away, Subscription("t", 1))
        v5(bench, "p").send(expiring(10, qos=1, packet_id=1))
        bench.engine.step(bench.now_ms, 1)
        assert got(away) == [expiring(10, qos=1, packet_id=1)]


@pytest.mark.parametrize(
    "steps_s", [[DAY_S], [-DAY_S], [-SINCE_1970_S], [DAY_S, -DAY_S], [-DAY_S, 2 * DAY_S]]
)
def test_steps_of_the_wall_clock_change_no_interval(steps_s: list[int]) -> None:
    with Bench() as bench:
        away, publisher = v5(bench, "away", clean_start=False), v5(bench, "p")
        subscribe(away, Subscription("t", 1))
        away.drop()
        for number, step_s in enumerate((*steps_s, 0), 1):
            publisher.send(expiring(10, qos=1, packet_id=number), expiring(10, "kept", retain=True))
            bench.settle(2_000)
            bench.step_ns += step_s * 1_000_000_000
            bench.settle()
        intervals = [8 - 2 * number for number in range(len(steps_s), -1, -1)]
        away, late = bench.wire(Version.V5), v5(bench, "late")
        away.send(Connect("away", clean_start=False, version=Version.V5))
        connack, *waiting = away.received()
        assert isinstance(connack, ConnAck)
        assert waiting == [
            expiring(interval_s, qos=1, packet_id=number) for number, interval_s in enumerate(intervals, 1)
        ]
        late.send(Subscribe(1, (Subscription("kept"),)))
        assert late.received()[1:] == [expiring(8, "kept", retain=True)]
        bench.settle(8_000)
        late.send(Subscribe(1, (Subscription("kept"),)))
        assert late.received()[1:] == []


def test_an_expired_retained_message_is_gone() -> None:
    with Bench() as bench:
        publisher, late = v5(bench, "p"), v5(bench)
        publisher.send(expiring(10, "short", retain=True), expiring(99, "long", retain=True))
        bench.settle(10_000)
        assert bench.stats.gauges()["retained"] == 2
        late.send(Subscribe(1, (Subscription("#"),)))
        assert late.received()[1:] == [expiring(89, "long", retain=True)]
        assert bench.stats.gauges()["retained"] == 1
        assert bench.stats.dropped()["expired"] == 1


# ---- topic aliases ----


def alias(number: int) -> Properties:
    return Properties(topic_alias=number)


def test_the_first_publish_to_a_topic_names_its_alias_and_the_next_only_that() -> None:
    with Bench() as bench:
        client, publisher = v5(bench, wants=Properties(topic_alias_maximum=2)), bench.client("p")
        subscribe(client, Subscription("#", 1))
        publisher.send(Publish("a", b"1"), Publish("b", b"2"), Publish("a", b"3"), Publish("b", b"4"))
        one, two, *rest = got(client)
        assert [(one.topic, one.payload), (two.topic, two.payload)] == [("a", b"1"), ("b", b"2")]
        assert {one.properties.topic_alias, two.properties.topic_alias} == {1, 2}
        assert rest == [
            Publish("", b"3", properties=one.properties),
            Publish("", b"4", properties=two.properties),
        ]


class Aliases:
    """Topic aliases, resolved as a client resolves them."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.known: dict[int, str] = {}

    def topic_of(self, packet: Publish) -> str:
        number = packet.properties.topic_alias
        if number is None:
            return packet.topic
        assert 1 <= number <= self.most
        if packet.topic:
            self.known[number] = packet.topic
        return self.known[number]


@pytest.mark.parametrize("most", [1, 3, 8, 9, 30, 65_535])
def test_whatever_is_published_a_client_finds_the_topic_behind_each_alias(most: int) -> None:
    with Bench() as bench:
        wants = Properties(topic_alias_maximum=most)
        client, publisher = v5(bench, wants=wants), bench.client("p")
        subscribe(client, Subscription("#"))
        topics = [f"t/{i * i % 61}" for i in range(400)] + ["t/1"] * 50 + [f"t/{i}" for i in range(60)]
        publisher.send(*(Publish(topic) for topic in topics))
        aliases = Aliases(most)
        publishes = got(client)
        assert [aliases.topic_of(packet) for packet in publishes] == topics
        assert sum(not packet.topic for packet in publishes) >= 49
        client = bench.wire(Version.V5)
        client.send(Connect("s", version=Version.V5, properties=wants))
        client.received()
        subscribe(client, Subscription("#"))
        publisher.send(Publish("t/1"))
        assert [packet.topic for packet in got(client)] == ["t/1"]  # a new connection knows none


def test_an_alias_of_a_topic_that_was_forgotten_is_not_taken_for_the_one_that_has_its_place() -> None:
    with Bench(engine=EngineLimits(topics_max=4)) as bench:
        client, publisher = v5(bench, wants=Properties(topic_alias_maximum=8)), bench.client("p")
        subscribe(client, Subscription("#"))
        topics = [f"t/{i % 7}" for i in range(100)]
        publisher.send(*(Publish(topic) for topic in topics))
        aliases = Aliases(8)
        assert [aliases.topic_of(packet) for packet in got(client)] == topics
        assert bench.stats.totals()["topics_recycled"] > 0


def test_a_publish_that_was_too_large_has_defined_no_alias() -> None:
    with Bench() as bench:
        wants = Properties(topic_alias_maximum=8, maximum_packet_size_bytes=50)
        client, publisher = v5(bench, wants=wants), bench.client("p")
        subscribe(client, Subscription("#"))
        publisher.send(Publish("t", bytes(50)), Publish("t", b"small"))
        (packet,) = got(client)
        assert (packet.topic, packet.payload) == ("t", b"small")
        assert packet.properties.topic_alias


@pytest.mark.parametrize("known", [False, True])
def test_an_alias_never_makes_a_message_too_large(known: bool) -> None:
    longest = 50 - len(encode(Publish("t"), Version.V5))
    with Bench() as bench:
        wants = Properties(topic_alias_maximum=8, maximum_packet_size_bytes=50)
        client, publisher = v5(bench, wants=wants), bench.client("p")
        subscribe(client, Subscription("#"))
        if known:
            publisher.send(Publish("t"))
            assert got(client)[0].properties.topic_alias
        publisher.send(Publish("t", bytes(longest)), Publish("t", bytes(longest + 1)))
        assert got(client) == [Publish("t", bytes(longest))]
        assert bench.stats.dropped()["too large"] == 1


@pytest.mark.parametrize("known", [False, True])
def test_a_message_that_just_fits_with_its_alias_has_it(known: bool) -> None:
    longest = 50 - len(encode(Publish("t"), Version.V5))
    fits = longest - 3 + known  # a known alias stands for the topic of one byte
    with Bench() as bench:
        wants = Properties(topic_alias_maximum=8, maximum_packet_size_bytes=50)
        client, publisher = v5(bench, wants=wants), bench.client("p")
        subscribe(client, Subscription("#"))
        if known:
            publisher.send(Publish("t"))
            got(client)
        publisher.send(Publish("t", bytes(fits)), Publish("t", bytes(longest - 1)))
        assert [bool(packet.properties.topic_alias) for packet in got(client)] == [True, False]


# ---- the longest packet a client takes ----


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_what_is_too_large_for_a_client_counts_as_delivered(qos: int) -> None:
    frame_bytes = 2 + 2 + 1 + (2 if qos else 0) + 1 + 20
    with Bench() as bench:
        wants = Properties(maximum_packet_size_bytes=frame_bytes)
        client, publisher = v5(bench, wants=wants, clean_start=False), bench.client("p")
        subscribe(client, Subscription("t", qos))
        publisher.send(Publish("t", bytes(21), qos, packet_id=1 if qos else 0))
        publisher.send(Publish("t", bytes(20), qos, packet_id=2 if qos else 0))
        assert [bytes(packet.payload) for packet in got(client)] == [bytes(20)]
        assert bench.stats.dropped()["too large"] == 1
        assert bench.stats.clients(bench.broker.sessions)[0].in_flight == (1 if qos else 0)


def test_a_retained_message_that_is_too_large_is_not_sent() -> None:
    with Bench() as bench:
        client, publisher = v5(bench, wants=Properties(maximum_packet_size_bytes=30)), bench.client("p")
        publisher.send(Publish("a", bytes(40), retain=True), Publish("b", b"x", retain=True))
        client.send(Subscribe(1, (Subscription("#"),)))
        assert client.received()[1:] == [Publish("b", b"x", retain=True)]
        assert bench.stats.dropped()["too large"] == 1


def test_what_was_in_flight_and_has_become_too_large_for_the_next_connection_is_done_with() -> None:
    with Bench() as bench:
        client, publisher = v5(bench, clean_start=False), bench.client("p")
        subscribe(client, Subscription("t", 1))
        publisher.send(Publish("t", bytes(100), 1, packet_id=1))
        assert len(got(client)) == 1
        client.drop()
        client = bench.wire(Version.V5)
        wants = Properties(maximum_packet_size_bytes=60)
        client.send(Connect("s", clean_start=False, version=Version.V5, properties=wants))
        assert len(client.received()) == 1
        assert bench.stats.clients(bench.broker.sessions)[0].in_flight == 0


# ---- options ----


def test_no_local_is_for_what_the_client_itself_publishes() -> None:
    with Bench() as bench:
        client, other = v5(bench), v5(bench, "o")
        subscribe(client, Subscription("t", no_local=True))
        client.send(Publish("t", b"own"))
        other.send(Publish("t", b"other"))
        assert [packet.payload for packet in got(client)] == [b"other"]


def test_no_local_holds_for_what_is_retained_too() -> None:
    with Bench() as bench:
        client, other = v5(bench), v5(bench, "o")
        client.send(Publish("t/1", b"own", retain=True))
        other.send(Publish("t/2", b"other", retain=True))
        client.send(Subscribe(1, (Subscription("#", no_local=True),)))
        assert [packet.payload for packet in client.received()[1:] if isinstance(packet, Publish)] == [
            b"other"
        ]


def test_of_subscriptions_that_are_no_local_and_others_only_the_others_give_a_client_its_own() -> None:
    with Bench() as bench:
        client, other = v5(bench), bench.client("o")
        subscribe(client, Subscription("t", 2, no_local=True), identifier=1)
        subscribe(client, Subscription("#", 1), identifier=2)
        client.send(Publish("t", b"own", 2, packet_id=1))
        other.send(Publish("t", b"other", 2, packet_id=1))
        _, own, others = client.received()
        assert own == Publish("t", b"own", 1, packet_id=1, properties=ids(2))
        assert others == Publish("t", b"other", 2, packet_id=2, properties=ids(1, 2))
        client.send(Unsubscribe(2, ("#",)))
        client.received()
        client.send(Publish("t", b"own"))
        assert got(client) == []


@pytest.mark.parametrize(("as_published", "retain"), [(False, True), (True, True), (True, False)])
def test_retain_as_published_keeps_the_flag_that_it_was_published_with(
    as_published: bool, retain: bool
) -> None:
    with Bench() as bench:
        client, publisher = v5(bench), bench.client("p")
        subscribe(client, Subscription("t", retain_as_published=as_published))
        publisher.send(Publish("t", b"x", retain=retain))
        assert [packet.retain for packet in got(client)] == [as_published and retain]


def test_a_subscription_that_is_replaced_keeps_none_of_its_options() -> None:
    with Bench() as bench:
        client, publisher = v5(bench), v5(bench, "p")
        publisher.send(Publish("t", b"known before"))
        subscribe(client, Subscription("t", 1, retain_as_published=True))
        subscribe(client, Subscription("t", 1))
        publisher.send(Publish("t", b"1", retain=True))
        subscribe(client, Subscription("t", 2, no_local=True, retain_as_published=True, retain_handling=2))
        client.send(Publish("t", b"own"))
        subscribe(client, Subscription("t", 0, retain_handling=2))
        client.send(Publish("t", b"2", 1, packet_id=1))
        publishes = [packet for packet in client.received() if isinstance(packet, Publish)]
        assert [(packet.payload, packet.qos, packet.retain) for packet in publishes] == [(b"2", 0, False)]


# ---- subscription identifiers ----


def ids(*identifiers: int) -> Properties:
    return Properties(subscription_identifiers=identifiers)


def test_overlapping_subscriptions_give_one_delivery_with_all_identifiers_and_the_highest_qos() -> None:
    with Bench() as bench:
        client, publisher = v5(bench), bench.client("p")
        publisher.send(Publish("a/b", b"known before"))
        subscribe(client, Subscription("a/b", 0), identifier=268_435_455)
        subscribe(client, Subscription("a/+", 2), identifier=7)
        subscribe(client, Subscription("#", 1))
        subscribe(client, Subscription("+/b", 1), identifier=7)
        for payload in (b"1", b"2"):
            publisher.send(Publish("a/b", payload, 2, packet_id=1))
        for packet in got(client):
            assert packet.qos == 2
            assert sorted(packet.properties.subscription_identifiers) == [7, 7, 268_435_455]
        subscribe(client, Subscription("a/b", 0), identifier=3)  # replaces
        client.send(Unsubscribe(1, ("a/+", "+/b", "nothing")))
        client.received()
        publisher.send(Publish("a/b", b"3", 2, packet_id=9))
        (packet,) = got(client)
        assert (packet.qos, packet.properties.subscription_identifiers) == (1, (3,))


def test_a_retained_message_has_the_identifier_of_the_subscription_that_asked_for_it() -> None:
    with Bench() as bench:
        publisher, client = bench.client("p"), v5(bench)
        publisher.send(Publish("t", b"x", retain=True))
        subscribe(client, Subscription("t"), identifier=1)
        client.send(Subscribe(1, (Subscription("#"),), ids(2)))
        assert client.received()[1:] == [Publish("t", b"x", retain=True, properties=ids(2))]


def test_what_waits_keeps_the_identifiers_it_was_matched_by() -> None:
    with Bench() as bench:
        client, publisher = v5(bench, clean_start=False), bench.client("p")
        subscribe(client, Subscription("t", 1), identifier=5)
        client.drop()
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        client = v5(bench, clean_start=False, present=True)
        # The rest of what came behind the CONNACK was thrown away: it comes again.
        client.drop()
        client = bench.wire(Version.V5)
        client.send(Connect("s", clean_start=False, version=Version.V5))
        assert client.received()[1:] == [Publish("t", b"x", 1, dup=True, packet_id=1, properties=ids(5))]
        assert bench.engine.subscription_ids_count() == 1
        client.send(Unsubscribe(1, ("t",)))
        assert bench.engine.subscription_ids_count() == 1  # it is still in flight
        client.send(PubAck(1))
        assert bench.engine.subscription_ids_count() == 0


def test_ever_new_identifiers_leave_nothing_behind() -> None:
    with Bench() as bench:
        publisher = bench.client("p")
        publisher.send(*(Publish(f"t/{i}", b"x", retain=True) for i in range(20)))
        for i in range(300):
            client = v5(bench, "s")
            subscribe(client, Subscription("t/#"), identifier=1000 + i)
            subscribe(client, Subscription(f"t/{i % 20}", 1), identifier=2000 + i)
            subscribe(client, Subscription("t/+"), identifier=3000 + i)
            publisher.send(*(Publish(f"t/{i % 20}", b"y", 1, packet_id=1) for _ in range(3)))
            if i % 3 == 0:
                client.send(Unsubscribe(1, ("t/#", "t/+")))
            if i % 2:
                client.drop()
        assert bench.engine.subscription_ids_count() < 50
        for wire in (client, publisher):
            wire.drop()
        publisher = bench.client("p")
        publisher.send(*(Publish(f"t/{i}", b"x") for i in range(20)))
        assert bench.engine.subscription_ids_count() == 0


def test_subscribers_with_the_same_identifier_share_it() -> None:
    with Bench() as bench:
        bench.client("p").send(Publish("t", b"x"))
        for i in range(50):
            subscribe(v5(bench, f"s{i}"), Subscription("t"), identifier=1)
        assert bench.engine.subscription_ids_count() == 1


def test_an_exception_leaves_no_identifier_behind() -> None:
    with Bench() as bench:
        options = options_of(Subscription("t", no_local=True), 5), options_of(Subscription("t"), 6)
        with pytest.raises(ZeroDivisionError), bench.broker.router.routes.route_options_of(options) as words:
            assert (len(words), bench.engine.subscription_ids_count()) == (2, 2)
            raise ZeroDivisionError
        assert bench.engine.subscription_ids_count() == 0
