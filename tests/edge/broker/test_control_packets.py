"""Control packets that are long or full: what they may hold, and which answer a client gets above that."""

from array import array
from collections.abc import Iterator
from itertools import count

import pytest

from edge.auth.interfaces import ClientInfo
from edge.broker import session_routes, subscribe, subscription_tree
from edge.broker.broker_limits import BrokerLimits
from edge.engine.engine import EngineLimits
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
    encode,
)
from edge.mqtt.primitives import PacketLimits, encode_variable_integer
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import AnyTopic

V5 = Version.V5
OK = ReasonCode.SUCCESS
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


# ---- long packets ----


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A bench on which each slice of work is over after one step, and a step takes one topic."""
    for limit in ("ROUTED_TOPICS_MAX", "PYTHON_TOPICS_MAX"):
        monkeypatch.setattr(session_routes, limit, 1)
    for limit in ("WALK_MAX", "PYTHON_WALK_MAX"):
        monkeypatch.setattr(session_routes, limit, 0)
    monkeypatch.setattr(subscription_tree, "STEP_MAX", 1)
    monkeypatch.setattr(subscribe, "PLAIN_BODY_MAX_BYTES", 0)
    with Bench(by_rules=False) as bench:
        bench.broker._pending._clock = map(float, count()).__next__
        yield bench


def begin(bench: Bench, wire: Wire, *packets: Packet) -> None:
    """Send packets, and let the broker poll once."""
    bench.engine.feed(wire.handle, b"".join(encode(packet, wire.version) for packet in packets))
    poll(bench)


def poll(bench: Bench) -> None:
    """One turn of the MQTT thread."""
    bench.broker.handle(bench.engine.events())
    for _ in range(len(bench.calls)):
        bench.calls.popleft()()
    bench.engine.step(bench.now_ms, bench.now_ns)


def topics(bench: Bench, *names: str) -> None:
    """Make topics known."""
    bench.client("maker").send(*(Publish(name, b"") for name in names))


def test_others_are_served_while_a_long_subscribe_is_worked_on(slow: Bench) -> None:
    greedy, other = slow.client("greedy"), slow.client("other")
    begin(slow, greedy, Subscribe(1, subscriptions(500)), Publish("f/1", b"later"), PingReq())
    begin(slow, other, PingReq())
    for _ in range(5):
        poll(slow)
    assert slow.engine.pull(other.handle) == encode(PingResp())
    assert slow.engine.pull(greedy.handle) == b""
    other.send(Subscribe(1, (Subscription("o"),)))
    assert other.received() == [SubAck(1, (OK,))]
    assert greedy.received() == [SubAck(1, (OK,) * 500), Publish("f/1", b"later"), PingResp()]


@pytest.mark.parametrize("identifiers", [(), (7,)])
def test_packets_behind_a_long_unsubscribe_wait_for_it(slow: Bench, identifiers: tuple[int, ...]) -> None:
    topics(slow, *filters(50))
    client = slow.client5("c")
    client.send(
        Subscribe(1, (Subscription("f/#"),), Properties(subscription_identifiers=identifiers)),
        Unsubscribe(2, ("f/#", "f/#")),
        Publish("f/1", b"", 1, packet_id=3),
        Subscribe(4, (Subscription("f/+"),)),
        Publish("f/2", b""),
    )
    gone = UnsubAck(2, (OK, ReasonCode.NO_SUBSCRIPTION_EXISTED))
    nobody = PubAck(3, ReasonCode.NO_MATCHING_SUBSCRIBERS)
    assert client.received() == [SubAck(1, (OK,)), gone, nobody, SubAck(4, (OK,)), Publish("f/2", b"")]


def test_equal_filters_of_a_packet_are_one_subscription_with_the_options_of_the_last(
    slow: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = slow.client5("c")
    noted: list[str] = []
    monkeypatch.setattr(slow.broker.journal, "subscribed", lambda session, name: noted.append(name))
    same = tuple(Subscription("t", qos) for qos in (2, 0, 1))
    client.send(Subscribe(1, same), Publish("t", b"x", 2, packet_id=1))
    codes = tuple(ReasonCode(its.qos) for its in same)
    assert SubAck(1, codes) in (received := client.received())
    assert [packet.qos for packet in received if isinstance(packet, Publish)] == [1]
    assert noted == ["t"]


def test_retained_messages_follow_a_packet_of_equal_filters_as_they_would_one_by_one(slow: Bench) -> None:
    slow.client("w").send(Publish("t", b"kept", retain=True))
    for handling, expected in (((0, 2), 1), ((2, 0), 1), ((1, 2), 1), ((2, 2), 0), ((2, 1), 0)):
        client = slow.client5(f"c{handling}")
        client.send(Subscribe(1, tuple(Subscription("t", retain_handling=it) for it in handling)))
        assert len(client.received()) == 1 + expected, handling


def test_a_session_keeps_whole_subscriptions_of_a_subscribe_that_was_cut_off(slow: Bench) -> None:
    topics(slow, *(f"t/{number}" for number in range(20)))
    client = slow.client("c", clean_start=False)
    begin(slow, client, Subscribe(1, (Subscription("t/#", 1), Subscription("t/+", 1), Subscription("u", 1))))
    for _ in range(8):
        poll(slow)
    slow.lose(client)
    held = slow.broker.sessions.get("c")
    assert held is not None
    assert set(held.subscriptions) == {"t/#"}
    slow.client("w").send(*(Publish(f"t/{number}", b"", 1, packet_id=number + 1) for number in range(20)))
    again = slow.wire()
    again.send(Connect("c", clean_start=False))
    assert sorted(packet.topic for packet in again.received() if isinstance(packet, Publish)) == sorted(
        f"t/{number}" for number in range(20)
    )


def test_a_client_that_reconnects_and_unsubscribes_meanwhile_gets_nothing(slow: Bench) -> None:
    topics(slow, *(f"t/{number}" for number in range(20)))
    client = slow.client("c", clean_start=False)
    begin(slow, client, Subscribe(1, (Subscription("t/#", 1),)))
    again = slow.wire()
    begin(slow, again, Connect("c", clean_start=False))
    begin(slow, again, Unsubscribe(2, ("t/#",)))
    slow.settle()
    assert again.received()[-1] == UnsubAck(2)
    slow.client("w").send(*(Publish(f"t/{number}", b"", 1, packet_id=number + 1) for number in range(20)))
    assert again.received() == []


def test_a_session_that_ends_meanwhile_leaves_no_filter_behind(slow: Bench) -> None:
    topics(slow, *(f"t/{number}" for number in range(20)))
    client = slow.client("c")
    begin(
        slow, client, Subscribe(1, (Subscription("t/#"), Subscription("t/+"), Subscription("$share/g/t/#")))
    )
    for _ in range(30):
        poll(slow)
    slow.lose(client)
    assert slow.broker.sessions.get("c") is None
    match = slow.engine.match_begin(b"t/1", 0)
    assert slow.engine.match_step(match, 1_000)
    assert not slow.engine.match_sessions(match)
    assert slow.broker.router.shared_count == 0
    assert not slow.broker._pending._queues


def test_rules_that_change_meanwhile_hold_for_every_topic(slow: Bench) -> None:
    class OnlyTwo(AnyTopic):
        def may_receive(self, client: ClientInfo, topic: str) -> bool:
            return topic == "t/2"

    topics(slow, *(f"t/{number}" for number in range(20)))
    client = slow.client("c")
    begin(slow, client, Subscribe(1, (Subscription("t/#"),)))
    for _ in range(8):
        poll(slow)
    slow.broker.acl_changed(OnlyTwo())
    slow.settle()
    assert client.received() == [SubAck(1, (OK,))]
    slow.client("w").send(*(Publish(f"t/{number}", b"") for number in range(20)))
    assert client.publishes() == [("t/2", b"", 0)]


BOMB = tuple("/".join("+x"[n >> bit & 1] for bit in range(6)) for n in range(64))


def test_others_are_served_while_a_topic_is_matched_with_very_many_filters(slow: Bench) -> None:
    reader, writer, other = slow.client("reader"), slow.client("writer"), slow.client("other")
    reader.subscribe(*BOMB)
    begin(slow, writer, Publish("x/x/x/x/x/x", b"1", 1, packet_id=1))
    other.subscribe("x/x/x/x/x/#")
    assert slow.engine.pull(writer.handle) != b""
    begin(slow, writer, Publish("x/x/x/x/x/y", b"2", 1, packet_id=2))
    begin(slow, other, PingReq())
    poll(slow)
    assert slow.engine.pull(other.handle).endswith(encode(PingResp()))
    assert slow.engine.pull(writer.handle) == b""
    slow.settle()
    assert writer.received() == [PubAck(2)]
    assert reader.publishes() == [("x/x/x/x/x/x", b"1", 0), ("x/x/x/x/x/y", b"2", 0)]


def test_a_subscription_that_is_made_while_a_topic_is_matched_gets_its_message(slow: Bench) -> None:
    reader, writer, late, gone = (slow.client(name) for name in ("reader", "writer", "late", "gone"))
    reader.subscribe(*BOMB)
    gone.subscribe("x/#")
    begin(slow, writer, Publish("x/x/x/x/x/x", b"1", 1, packet_id=1))
    begin(slow, late, Subscribe(1, (Subscription("x/#"),)))
    begin(slow, gone, Unsubscribe(2, ("x/#",)))
    poll(slow)
    assert slow.engine.pull(writer.handle) == b""
    slow.settle()
    assert writer.received() == [PubAck(1)]
    assert late.received() == [SubAck(1, (OK,)), Publish("x/x/x/x/x/x", b"1")]
    assert gone.received() == [UnsubAck(2)]
    assert len(reader.publishes()) == 1


def test_two_clients_may_make_the_same_topic_known(slow: Bench) -> None:
    reader, one, two = slow.client("reader"), slow.client("one"), slow.client("two")
    reader.subscribe(*BOMB)
    for wire in (one, two):
        begin(slow, wire, Publish("x/x/x/x/x/x", b"1", 1, packet_id=1))
    slow.settle()
    assert one.received() == two.received() == [PubAck(1)]
    assert len(reader.publishes()) == 2
    assert len(array("I", slow.engine.topics())) == 1


def test_an_unsubscribe_of_many_filters_compares_none_of_them_with_each_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = bench.client("c")
    client.send(Subscribe(1, subscriptions(500)))
    monkeypatch.delattr(session_routes, "overlap")
    client.send(Unsubscribe(2, filters(500)))
    assert client.received() == [SubAck(1, (OK,) * 500), UnsubAck(2)]


@pytest.mark.parametrize("first", [0x20, 0x90, 0xB0, 0xD0])
def test_packets_of_servers_are_refused_without_being_decoded(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """A SUBACK of a megabyte took 0.8 s to decode."""
    client = bench.client5("c")
    monkeypatch.setattr("edge.broker.dispatcher.decode_packet", None)
    client.raw(bytes((first,)) + encode_variable_integer(5_000, V5) + bytes(5_000))
    assert client.received() == [Disconnect(ReasonCode.PROTOCOL_ERROR)]
