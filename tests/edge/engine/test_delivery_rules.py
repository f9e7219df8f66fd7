"""Rules applied to deliveries: routes, retained messages, shared subscriptions, queued records."""

from collections import Counter
from dataclasses import dataclass, field

from edge.auth.interfaces import ClientInfo
from edge.engine.engine import EngineLimits
from edge.mqtt import Connect, PubAck, Publish, SubAck, Subscribe, Subscription, Unsubscribe
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import AnyTopic


@dataclass
class Rules(AnyTopic):
    """Clients may do everything but receive what is listed."""

    denied: set[tuple[str, str]] = field(default_factory=set)
    asked: Counter[tuple[str, str]] = field(default_factory=Counter)

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        self.asked[client.client_id, topic] += 1
        return (client.client_id, topic) not in self.denied


def subscribed(wire: Wire, topic_filter: str, qos: int = 1) -> list[bytes]:
    """Payloads of what comes behind the SUBACK."""
    wire.send(Subscribe(5, (Subscription(topic_filter, qos),)))
    answer, *rest = wire.received()
    assert isinstance(answer, SubAck)
    return [bytes(packet.payload) for packet in rest if isinstance(packet, Publish)]


def payloads(wire: Wire) -> list[bytes]:
    return [payload for _, payload, _ in wire.publishes()]


def publish(bench: Bench, *messages: tuple[str, bytes], retain: bool = False) -> None:
    publisher = bench.client("p")
    publisher.send(*(Publish(topic, payload, 1, retain=retain, packet_id=1) for topic, payload in messages))


def test_messages_go_only_to_who_may_receive_them_and_each_topic_is_asked_about_once() -> None:
    rules = Rules({("a", "t/2")})
    with Bench(access=rules) as bench:
        one, other = bench.client("a"), bench.client("b")
        publish(bench, ("t/1", b""))  # known before they subscribe; the other one after
        for wire in (one, other):
            assert subscribed(wire, "#") == []
            assert subscribed(wire, "t/2") == []
        rules.asked.clear()
        for payload in (b"1", b"2"):
            publish(bench, ("t/1", payload), ("t/2", payload))
        assert payloads(one) == [b"1", b"2"]
        assert payloads(other) == [b"1", b"1", b"2", b"2"]
        assert rules.asked == {("a", "t/2"): 1, ("b", "t/2"): 1}


def test_a_denied_topic_stays_denied_whatever_is_subscribed_and_unsubscribed() -> None:
    with Bench(access=Rules({("a", "t")})) as bench:
        wire = bench.client("a")
        publish(bench, ("t", b""), ("u", b""))
        for topic_filter in ("#", "t", "+", "t/#"):
            subscribed(wire, topic_filter)
        wire.send(Unsubscribe(1, ("#", "t/#")))
        wire.received()
        publish(bench, ("t", b"no"), ("u", b"yes"))
        assert payloads(wire) == [b"yes"]


def test_retained_messages_are_judged_too() -> None:
    with Bench(access=Rules({("a", "t/2")})) as bench:
        publish(bench, *((f"t/{i}", b"%d" % i) for i in range(4)), retain=True)
        assert sorted(subscribed(bench.client("a"), "#")) == [b"0", b"1", b"3"]
        assert subscribed(bench.client("a"), "t/2") == []
        assert sorted(subscribed(bench.client("b"), "#")) == [b"0", b"1", b"2", b"3"]


def test_new_rules_hold_at_once_for_routes_and_for_what_waits_of_clients_that_are_away() -> None:
    rules = Rules()
    with Bench(access=rules) as bench:
        here, away = bench.client("here"), bench.client("away", clean_start=False)
        for wire in (here, away):
            subscribed(wire, "#")
        away.drop()
        publish(bench, ("t/1", b"1"), ("t/2", b"2"), ("t/1", b"3"))
        assert payloads(here) == [b"1", b"2", b"3"]
        rules.denied |= {("away", "t/1"), ("here", "t/2")}
        bench.broker.acl_changed(rules)
        assert bench.stats.dropped()["denied"] == 2
        publish(bench, ("t/1", b"4"), ("t/2", b"5"))
        assert payloads(here) == [b"4"]
        away = bench.wire()
        away.send(Connect("away", clean_start=False))
        assert [packet.payload for packet in away.received() if isinstance(packet, Publish)] == [b"2", b"5"]
        rules.denied.clear()
        bench.broker.acl_changed(rules)
        publish(bench, ("t/1", b"6"))
        assert payloads(here) == payloads(away) == [b"6"]
        rows = {row.client_id: row for row in bench.stats.clients(bench.broker.sessions)}
        assert rows["away"].dropped == {"denied": 2}


def test_rules_that_are_given_up_bind_nobody() -> None:
    rules = Rules({("a", "t")})
    with Bench(access=rules) as bench:
        wire = bench.client("a")
        publish(bench, ("t", b""))
        subscribed(wire, "t")
        bench.broker.acl_changed(None)
        publish(bench, ("t", b"x"))
        assert payloads(wire) == [b"x"]


def test_what_waits_for_a_topic_that_was_forgotten_is_not_taken_for_that_of_another() -> None:
    rules = Rules()
    with Bench(access=rules, engine=EngineLimits(topics_max=4)) as bench:
        away = bench.client("away", clean_start=False)
        subscribed(away, "#")
        away.drop()
        publish(bench, ("secret", b"secret"))
        publish(bench, *((f"t/{i}", b"%d" % i) for i in range(23)))
        rules.denied.add(("away", "secret"))
        bench.broker.acl_changed(rules)
        away = bench.wire()
        away.send(Connect("away", clean_start=False))
        got = [packet.payload for packet in away.received() if isinstance(packet, Publish)]
        assert b"22" in got
        assert b"secret" not in got


# ---- shared subscriptions ----


def test_a_group_gets_what_each_of_its_members_may_have() -> None:
    rules = Rules({("b", "t/2")})
    with Bench(access=rules) as bench:
        one, other = bench.client("a"), bench.client("b")
        publish(bench, ("t/1", b""), ("t/2", b""))
        subscribed(one, "$share/g/t/+")
        publish(bench, ("t/2", b"alone"))
        assert payloads(one) == [b"alone"]
        subscribed(other, "$share/g/t/+")
        publish(bench, *((topic, b"%d" % i) for i in range(2) for topic in ("t/1", "t/2", "t/3")))
        assert len(payloads(one)) == len(payloads(other)) == 2
        other.drop()
        publish(bench, ("t/2", b"alone again"))
        assert payloads(one)[-1] == b"alone again"  # behind what the other had not acknowledged


def test_what_waits_for_a_group_is_taken_back_from_who_joins_without_the_right_to_it() -> None:
    rules = Rules({("b", "t/2")})
    with Bench(access=rules) as bench:
        one = bench.client("a", clean_start=False)
        subscribed(one, "$share/g/t/+")
        publish(bench, ("t/1", b"1"), ("t/2", b"2"))
        assert payloads(one) == [b"1", b"2"]
        one.drop()  # both are back with the group
        assert subscribed(bench.client("b"), "$share/g/t/+") == [b"1"]
        assert bench.stats.dropped()["denied"] == 1


# ---- retained messages, many ----


def test_rules_that_change_while_retained_messages_are_being_sent_hold_for_the_rest() -> None:
    rules = Rules()
    with Bench(access=rules) as bench:
        publish(bench, *((f"t/{i}", b"%d" % i) for i in range(300)), retain=True)
        wire = bench.client("a", clean_start=False)
        got = subscribed(wire, "#")
        assert len(got) == 100  # as many as are in flight to one client
        rules.denied |= {("a", f"t/{i}") for i in range(300) if b"%d" % i not in got and i % 2}
        bench.broker.acl_changed(rules)
        while acknowledged := len(got):
            for identifier in range(1, 301):
                wire.send(PubAck(identifier))
            got += payloads(wire)
            if len(got) == acknowledged:
                break
        assert len(set(got)) == len(got)
        assert {b"%d" % i for i in range(300)} - set(got) == {
            topic.removeprefix("t/").encode() for _, topic in rules.denied
        }
