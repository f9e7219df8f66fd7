"""SUBSCRIBE and UNSUBSCRIBE of plain filters are one call of the engine, with the result of steps."""

import itertools
from array import array
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.broker import subscribe
from edge.broker.dispatcher import BrokerLimits
from edge.broker.router import plain_bytes
from edge.broker.session_routes import Matching
from edge.broker.sessions import Session
from edge.broker.sliced_work import Steps
from edge.engine.engine import EngineLimits, Table, counters_of
from edge.mqtt import (
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    encode,
)
from tests.support.mqtt_bench import Bench

FILTERS = st.sampled_from(
    ["a", "a/b", "b", "/", "c/", "ä/ö", "a/#", "+", "$x", "$share/g/a", "x" * 70, "d/" * 9]
)
PACKETS = st.lists(
    st.tuples(
        st.booleans(), st.lists(st.tuples(FILTERS, st.integers(0, 2)), min_size=1, max_size=6, unique_by=None)
    ),
    min_size=1,
    max_size=6,
)
LIMITS = BrokerLimits(subscriptions_max=8, subscriptions_max_bytes=1_400)


def outcome(packets: list[tuple[bool, list[tuple[str, int]]]], version: Version, qos_max: int) -> list[Any]:
    """All that a client receives, its subscriptions, and the routes of all topics."""
    with Bench(limits=LIMITS, engine=EngineLimits(qos_max=qos_max)) as bench:
        writer, client = bench.client("w"), bench.client("c", version=version)
        writer.send(*(Publish(name, b"kept", retain=name < "b") for name in ("a", "a/b", "b", "/")))
        seen: list[Any] = []
        for number, (adds, wanted) in enumerate(packets, 1):
            if adds:
                client.send(Subscribe(number, tuple(Subscription(its, qos) for its, qos in wanted)))
            else:
                client.send(Unsubscribe(number, tuple(its for its, _ in wanted)))
            seen.append(client.received())
        session = bench.broker.sessions.get("c")
        assert session is not None
        topics = array("I", bench.engine.topics())
        routes = {bench.engine.topic_name(topic): bench.engine.routes_of(topic) for topic in topics}
        writer.send(*(Publish(name, b"new") for name in ("a", "a/b", "c/", "ä/ö")))
        seen.append(client.received())
        counts = session.filters_bytes, bench.broker.router.subscription_count
        return [seen, session.subscriptions, counts, routes]


@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=60)
@given(PACKETS, st.sampled_from([Version.V311, Version.V5]), st.integers(0, 2))
def test_a_plain_subscribe_has_the_result_of_any_other(
    packets: list[tuple[bool, list[tuple[str, int]]]], version: Version, qos_max: int
) -> None:
    quick = outcome(packets, version, qos_max)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subscribe, "PLAIN_BODY_MAX_BYTES", 0)
        assert outcome(packets, version, qos_max) == quick


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\1",
        b"\0\0\0\1a\0",
        b"\0\1\0\1a",
        b"\0\1\0\2a\0",
        b"\0\1\0\1a\3",
        b"\0\1\0\1a\4",
        b"\0\1\0\1+\0",
        b"\0\1\0\1$\0",
        b"\0\1\0\1\xff\0",
        b"\0\1\0\1\0\0",
        b"\0\1\0\0\0",
        b"\0\1\0\1a\0\0",
    ],
)
def test_other_packets_and_errors_are_left_to_python(body: bytes) -> None:
    with Bench() as bench:
        assert bench.engine.plain_subscribe(body, 4, 10) is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\1",
        b"\0\0\0\1a",
        b"\0\1\0\2a",
        b"\0\1\0\1+",
        b"\0\1\0\1$",
        b"\0\1\0\1\xff",
        b"\0\1\0\1\0",
        b"\0\1\0\0",
        b"\0\1\0\1a\0",
    ],
)
def test_other_unsubscribes_and_errors_are_left_to_python(body: bytes) -> None:
    with Bench() as bench:
        assert bench.engine.plain_unsubscribe(body, 4, 10) is None


def test_a_plain_unsubscribe_is_decoded_as_python_does() -> None:
    with Bench() as bench:
        body = encode(Unsubscribe(7, ("a", "ä/b", "a")), Version.V5)[2:]
        assert bench.engine.plain_unsubscribe(body, 5, 3) == (7, ["a", "ä/b", "a"])
        assert bench.engine.plain_unsubscribe(body, 5, 2) is None
        assert bench.engine.plain_unsubscribe(body, 4, 3) is None


def test_filters_whose_topics_match_very_many_others_are_removed_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = ["/".join((*levels, "+")) for levels in itertools.product("a+", repeat=9)]
    exact = ["a/" * 9 + str(number) for number in range(100)]
    with Bench(limits=BrokerLimits(subscriptions_max=1_000)) as bench:
        writer, client = bench.client("w"), bench.client5("c")
        for number, some in enumerate((many[:256], many[256:], exact), 1):
            client.send(Subscribe(number, tuple(Subscription(its) for its in some)))
        writer.send(*(Publish(name, b"") for name in exact))
        client.received()
        session = bench.broker.sessions.get("c")
        assert session is not None
        taken: list[str] = []
        recompute = bench.broker.router.routes.recompute_routes

        def counted(session: Session, topic_filter: str, matching: Matching) -> Steps[None]:
            taken.append(topic_filter)
            return recompute(session, topic_filter, matching)

        monkeypatch.setattr(bench.broker.router.routes, "recompute_routes", counted)
        client.send(Unsubscribe(4, (*exact, exact[0])))
        gone = ReasonCode.NO_SUBSCRIPTION_EXISTED
        assert client.received() == [UnsubAck(4, (ReasonCode.SUCCESS,) * len(exact) + (gone,))]
        assert 0 < len(taken) < len(exact)
        assert set(session.subscriptions) == set(many)
        assert bench.broker.router.subscription_count == len(many)
        writer.send(*(Publish(name, b"x") for name in exact))
        assert client.publishes() == [(name, b"x", 0) for name in exact]


@pytest.mark.parametrize("filters", [("a", "b", "c"), ("a", "b/+", "c")], ids=["plain", "with a wildcard"])
def test_a_refused_filter_counts_once(filters: tuple[str, ...]) -> None:
    quota = [0] * len(Table)
    quota[Table.SUBSCRIPTION_BYTES] = plain_bytes(list(filters[:2]))
    with Bench(engine=EngineLimits(owner_max=(tuple(quota), tuple(quota)))) as bench:
        client = bench.client5("c")
        session = bench.broker.sessions.get("c")
        assert session is not None
        bench.engine.session_client(session.handle, b"uann", b"", False)
        client.send(Subscribe(1, tuple(map(Subscription, filters))))
        ok, over = ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED
        (answer,) = client.received()
        assert isinstance(answer, SubAck)
        assert answer.reason_codes == (ok, ok, over)
        assert counters_of(bench.engine).quota_refused[Table.SUBSCRIPTION_BYTES] == 1


def test_a_plain_subscribe_is_decoded_as_python_does() -> None:
    with Bench() as bench:
        packet = Subscribe(7, (Subscription("a", 1), Subscription("ä/b", 2)))
        body = encode(packet, Version.V5)[2:]
        assert bench.engine.plain_subscribe(body, 5, 2) == (7, ["a", "ä/b"], b"\1\2")
        assert bench.engine.plain_subscribe(body, 5, 1) is None
        assert bench.engine.plain_subscribe(body, 4, 2) is None


def test_a_retained_message_that_waits_is_not_sent_after_the_unsubscribe() -> None:
    with Bench() as bench:
        bench.client("w").send(Publish("a", b"kept", retain=True))
        client = bench.client("c")
        client.send(Subscribe(1, (Subscription("a"),)), Unsubscribe(2, ("a",)))
        assert client.received() == [SubAck(1, (ReasonCode.SUCCESS,)), UnsubAck(2)]
