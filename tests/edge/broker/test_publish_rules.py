"""Rights of publishers to topics, decided in C by packed rules as the access list in Python decides."""

from array import array

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge.auth import packed_rules
from edge.auth.access_rule import Access, AccessRule
from edge.auth.acl import AccessRules
from edge.auth.interfaces import ClientInfo
from edge.auth.tenants import Tenants
from edge.config.tenant import Tenant
from edge.engine.engine import NO_TOPIC, DropCause, EventKind, counters_of
from edge.mqtt import Publish, Version, encode
from edge.mqtt.properties import Properties
from tests.edge.auth.test_acl import TOPICS, some_rules
from tests.support.mqtt_bench import Bench, Wire

ORDINARY = [topic for topic in TOPICS if topic[0] != "$"]
PLACE = "devices/%c/#"


def allowed(wire: Wire, topics: list[str], *, stops: bool = False) -> list[str]:
    """Topics to which the client may publish: those that are stored. The parser stops or not, as given."""
    bench = wire.bench
    before = len(bench.records())
    for topic in topics:
        bench.engine.feed(wire.handle, encode(Publish(topic, b""), wire.version))
        events = bench.engine.events()
        assert [kind for kind, *_ in events] == [EventKind.TOPIC] * stops, topic
        bench.broker.handle(events)
        bench.settle()
    return [topic for topic, _ in bench.records()[before:]]


def bench_of(rules: AccessRules) -> Bench:
    bench = Bench(access=rules)
    assert bench.broker.router.topic_of("begin") is not None
    return bench


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=150)
@example([AccessRule(Access.READWRITE, "+/%c", is_pattern=True)], "+")
@example([AccessRule(Access.WRITE, "#"), AccessRule(Access.DENY, "a/%c", is_pattern=True)], "#")
@example([AccessRule(Access.WRITE, "#"), AccessRule(Access.DENY, "%u/#", is_pattern=True)], "a")
@given(some_rules(), st.sampled_from(["a", "b", "+", "a/b", "$s"]))
def test_what_may_be_published_is_decided_as_in_python(rules: list[AccessRule], client_id: str) -> None:
    compiled = AccessRules(rules)
    who = ClientInfo(client_id, None, "", 0)
    with bench_of(compiled) as bench:
        client = bench.client(client_id)
        expected = [topic for topic in ORDINARY if compiled.may_publish(who, topic)]
        assert allowed(client, ORDINARY) == expected
        assert allowed(client, ORDINARY) == expected  # the cached answers
        denied = 2 * (len(ORDINARY) - len(expected))
        assert counters_of(bench.engine).dropped[DropCause.DENIED] == denied


@given(some_rules(), st.sampled_from(["a", "b", "+"]), st.sampled_from([None, "a", "b/c"]))
def test_packed_rules_are_those_of_the_client(
    rules: list[AccessRule], client_id: str, user: str | None
) -> None:
    compiled, who = AccessRules(rules), ClientInfo(client_id, user, "", 0, identity=user)
    packed = compiled.publish_rules(who)
    assert packed is not None
    with Bench() as bench:
        client = bench.client("w")
        bench.engine.clear_acl_cache()  # the client of a broker without rules was allowed everything
        assert bench.broker.router.topic_of("begin") is not None
        assert bench.engine.publish_rules(client.handle, packed)
        assert allowed(client, ORDINARY) == [it for it in ORDINARY if compiled.may_publish(who, it)]


@example([AccessRule(Access.READ, "$tenant/#")], "a", "")
@given(some_rules(), st.sampled_from(["a", "b", "+"]), st.sampled_from(["", "$tenant/a/", "$tenant/b/"]))
def test_waiting_topics_are_denied_as_in_python(rules: list[AccessRule], client_id: str, prefix: str) -> None:
    compiled = AccessRules(rules)
    with Bench(access=compiled, tenants=Tenants([Tenant("a"), Tenant("b")])) as bench:
        session = bench.broker.sessions.open(ClientInfo(prefix + client_id, None, "", 0), 999)
        ring = bench.broker.router.rings.number_of(bench.partition)
        names = [*TOPICS, *(f"$tenant/a/{name}" for name in TOPICS), "$tenant/a/"]
        topics = array("I", (bench.engine.topic_add(name.encode(), ring, False, 0, b"") for name in names))
        topics.append(NO_TOPIC)
        packed = bench.broker.router.receive_rules(session)
        assert packed is not None
        denied = array("I", bench.engine.topics_denied(topics.tobytes(), *packed))
        may_receive = bench.broker.router.may_receive
        assert may_receive is not None
        expected = [it for it, name in zip(topics, names, strict=False) if not may_receive(session, name)]
        assert denied.tolist() == [*expected, NO_TOPIC]


def test_reserved_topics_are_left_to_python() -> None:
    rules = AccessRules([AccessRule(Access.READWRITE, "$x/#", is_pattern=True)])
    with bench_of(rules) as bench:
        client = bench.client("w")
        assert allowed(client, ["$x/y"], stops=True) == []
        assert allowed(client, ["$x/y"]) == []


def test_rules_hold_until_they_change() -> None:
    own = AccessRules([AccessRule(Access.WRITE, PLACE, is_pattern=True)])
    with bench_of(own) as bench:
        client = bench.client("w")
        assert allowed(client, ["devices/w/a", "devices/x/a"]) == ["devices/w/a"]
        bench.broker.acl_changed(AccessRules([AccessRule(Access.WRITE, "devices/x/#")]))
        bench.settle()
        assert allowed(client, ["devices/w/a", "devices/x/a", "devices/w/b"]) == ["devices/x/a"]
        bench.broker.acl_changed(None)
        bench.settle()
        assert allowed(client, ["devices/w/a", "devices/w/c"], stops=True) == ["devices/w/a", "devices/w/c"]


def test_forgotten_answers_are_given_by_python_again() -> None:
    with bench_of(AccessRules([AccessRule(Access.WRITE, "+")])) as bench:
        denied = bench.client("denied")
        assert bench.engine.publish_rules(denied.handle, b"")
        assert allowed(denied, ["a"]) == []
        bench.engine.clear_acl_cache()
        assert allowed(denied, ["a", "b"], stops=True) == ["a", "b"]


def test_rules_hold_behind_a_topic_alias() -> None:
    with bench_of(AccessRules([AccessRule(Access.WRITE, PLACE, is_pattern=True)])) as bench:
        client = bench.client5("w")
        alias = Properties(topic_alias=1)
        for topic in ("devices/w/a", "devices/x/a"):
            client.send(Publish(topic, b"", properties=alias), Publish("", b"", properties=alias))
        assert [topic for topic, _ in bench.records()] == ["devices/w/a"] * 2


def test_more_answers_than_the_cache_takes_are_still_right() -> None:
    with bench_of(AccessRules([AccessRule(Access.WRITE, "a/#", is_pattern=True)])) as bench:
        client = bench.client("w", version=Version.V5)
        names = [f"{'ab'[number % 2]}/{number}" for number in range(5_000)]
        assert allowed(client, names) == names[::2]
        assert allowed(client, names[:10]) == names[:10:2]


@pytest.mark.parametrize(
    "rules",
    [
        [AccessRule(Access.WRITE, f"a/{n}") for n in range(packed_rules.RULES_MAX + 1)],
        [AccessRule(Access.WRITE, f"a/{n}/%c", is_pattern=True) for n in range(packed_rules.RULES_MAX + 1)],
        [
            AccessRule(Access.WRITE, "a/" + "x" * packed_rules.RULES_MAX_BYTES),
            AccessRule(Access.WRITE, "a/1"),
        ],
    ],
    ids=["rules", "patterns", "bytes"],
)
def test_too_many_rules_are_left_to_python(rules: list[AccessRule]) -> None:
    compiled = AccessRules([*rules, AccessRule(Access.WRITE, "a/1")])
    assert compiled.publish_rules(ClientInfo("c", None, "", 0)) is None
    with bench_of(compiled) as bench:
        assert allowed(bench.client("c"), ["a/1", "b"], stops=True) == ["a/1"]


def test_a_client_that_only_claims_a_name_has_no_rules_of_that_user() -> None:
    compiled = AccessRules([AccessRule(Access.READWRITE, "a/#", user="ann")])
    claimed = ClientInfo("c", "ann", "", 0)
    assert compiled.publish_rules(claimed) == compiled.receive_rules(claimed) == b""
    proven = ClientInfo("c", "ann", "", 0, identity="ann")
    assert compiled.publish_rules(proven) == compiled.receive_rules(proven) != b""


def test_names_that_exceed_a_filter_are_left_to_python() -> None:
    compiled = AccessRules([AccessRule(Access.WRITE, "%c%c", is_pattern=True)])
    assert compiled.publish_rules(ClientInfo("x" * 40_000, None, "", 0)) is None


@pytest.mark.parametrize("packed", [b"\1", b"\1\1\0", b"\1\1\0a\2", b"\2\xff\xffa"])
def test_malformed_rules_are_refused(packed: bytes) -> None:
    with Bench() as bench, pytest.raises(ValueError, match="malformed"):
        bench.engine.publish_rules(bench.client().handle, packed)
