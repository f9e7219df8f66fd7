"""Tenants: clients of one see its names only, keep their quotas, and never reach another.

tests/models/test_tenants.py tries ways across at random; these tests have the rules one by one.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from edge.auth.access_rule import Access, AccessRule
from edge.auth.acl import AccessRules
from edge.auth.interfaces import ClientCertificate, ClientInfo, ListenerPolicy
from edge.auth.tenant_names import MARK, full_filter, is_reserved, prefix_in, prefix_of
from edge.auth.tenants import Tenants
from edge.broker.dispatcher import BrokerLimits
from edge.broker.quotas import key_of, owner_text
from edge.broker.router import TopicLimits
from edge.config.quota import TenantQuota
from edge.config.tenant import TENANTS_MAX, Tenant
from edge.engine.codes import TABLES
from edge.engine.engine import EngineLimits, Table
from edge.mqtt import (
    ConnAck,
    Connect,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    Will,
)
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench
from tests.support.rules import Anybody, AnyTopic
from tests.support.tenant_bench import (
    DENIED,
    QUOTA,
    A,
    B,
    bench_of,
    code_of,
    codes,
    row_of,
    with_listeners,
)

# ---- names ----


def test_the_ring_has_the_full_name_and_the_client_the_visible_one() -> None:
    with bench_of() as bench:
        client = bench.client(listener=A)
        client.subscribe("pump/+")
        client.send(Publish("pump/1", b"on"), Publish("pump/1", b"off"), Publish("pump/1", b"on"))
        assert bench.records()[0] == ("$tenant/a/pump/1", b"on")
        assert client.publishes() == [("pump/1", b"on", 0), ("pump/1", b"off", 0), ("pump/1", b"on", 0)]


@pytest.mark.parametrize("topic", ["$tenant/b/x", "$tenant/a/x", "$SYS/x", "$x", "$tenant", "$delayed/1/x"])
def test_a_client_of_a_tenant_publishes_to_no_topic_that_begins_with_a_dollar(topic: str) -> None:
    with bench_of() as bench:
        client = bench.client5(listener=A)
        client.send(Publish(topic, b"x", 1, packet_id=1), Publish(topic, b"x", 1, packet_id=2))
        assert codes(client) == [DENIED, DENIED]
        assert bench.records() == []


@pytest.mark.parametrize("trusted", [True, False])
def test_a_client_without_a_tenant_cannot_publish_to_a_topic_that_a_tenant_uses(trusted: bool) -> None:
    access = None if trusted else AccessRules([AccessRule(Access.WRITE | Access.READ, "#", is_pattern=True)])
    with bench_of(access=access) as bench:
        reader = bench.client("r", listener=A)
        reader.subscribe("x")
        reader.send(Publish("x", b"own"))  # the engine knows $tenant/a/x from now on
        outside = bench.client5("o")
        outside.send(*(Publish("$tenant/a/x", b"bad", 1, packet_id=n) for n in (1, 2)))
        assert codes(outside) == [DENIED, DENIED]
        assert reader.publishes() == [("x", b"own", 0)]


@pytest.mark.parametrize("alias_only", [True, False])
def test_a_topic_alias_stands_for_the_visible_name(alias_only: bool) -> None:
    with bench_of() as bench:
        client, other = bench.client5("c", listener=A), bench.client("o", listener=B)
        other.subscribe("#")
        client.subscribe("#")
        alias = Properties(topic_alias=1)
        client.send(Publish("x", b"1", properties=alias))
        client.send(Publish("" if alias_only else "y", b"2", properties=alias))
        assert client.publishes() == [("x", b"1", 0), ("x" if alias_only else "y", b"2", 0)]
        assert other.publishes() == []


def test_aliases_towards_a_client_stand_for_visible_names() -> None:
    with bench_of() as bench:
        client = bench.client5("c", listener=A, wants=Properties(topic_alias_maximum=2))
        client.subscribe("#")
        client.send(Publish("x", b"1"), Publish("x", b"2"))
        topics = [packet.topic for packet in client.received() if isinstance(packet, Publish)]
        assert topics == ["x", ""]


def test_the_prefix_counts_for_the_longest_topic_and_for_its_levels() -> None:
    limits = BrokerLimits(topics=TopicLimits(topic_max_bytes=20, topic_levels_max=5))
    with bench_of(limits=limits) as bench:
        client = bench.client5(listener=A)
        long = "x" * (20 - len("$tenant/a/"))
        client.send(*(Publish(name, b"", 1, packet_id=1) for name in (long, long + "x", "1/2/3", "1/2/3/4")))
        invalid, unheard = ReasonCode.TOPIC_NAME_INVALID, ReasonCode.NO_MATCHING_SUBSCRIBERS
        assert codes(client) == [unheard, invalid, unheard, invalid]
        for filters in ((long, "1/2/3"), (long + "x",), ("1/2/3/4",), ("+/+/+/+",)):
            client.send(Subscribe(1, tuple(map(Subscription, filters))))
            (answer,) = client.received()
            assert isinstance(answer, SubAck)
            assert {code.failed for code in answer.reason_codes} == {filters != (long, "1/2/3")}


def test_a_topic_that_is_too_long_with_its_prefix_closes_only_its_connection() -> None:
    with bench_of(capacity_bytes=1 << 22) as bench:
        client, other = bench.client5("c", listener=A), bench.client5("o", listener=A)
        client.send(Publish("x" * 65_530, b""))
        assert not client.is_open
        assert other.is_open


def test_a_response_topic_stays_as_the_client_wrote_it() -> None:
    with bench_of() as bench:
        asks, answers = bench.client5("q", listener=A), bench.client5("r", listener=A)
        outside = bench.client("o", listener=B)
        for wire in (asks, outside):
            wire.subscribe("reply/#")
        answers.subscribe("ask")
        asks.send(Publish("ask", b"?", properties=Properties(response_topic="reply/q")))
        (question,) = answers.received()
        assert isinstance(question, Publish)
        assert question.properties.response_topic == "reply/q"
        answers.send(Publish("reply/q", b"!"))
        assert asks.publishes() == [("reply/q", b"!", 0)]
        assert outside.publishes() == []


def test_filters_that_begin_with_a_dollar_are_refused_in_a_tenant() -> None:
    with bench_of() as bench:
        client = bench.client5(listener=A)
        filters = (
            "$SYS/#",
            "$tenant/b/#",
            "$share/g/$SYS/#",
            "$share/g/$tenant/b/#",
            "$delayed/#",
            "$share/g/x",
        )
        client.send(Subscribe(1, tuple(map(Subscription, filters))))
        (answer,) = client.received()
        assert isinstance(answer, SubAck)
        assert answer.reason_codes == (DENIED,) * 5 + (ReasonCode.SUCCESS,)


def test_a_filter_for_delayed_messages_sees_none_of_a_tenant() -> None:
    with bench_of() as bench:
        bench.broker.router.delay_max_s = 60
        outside, inside = bench.client("o"), bench.client("i", listener=A)
        outside.subscribe("$delayed/#")
        inside.send(Publish("$delayed/5/x", b"secret"), Publish("$delayed/5/x", b"secret"))
        outside.send(Publish("$delayed/5/x", b"own"))
        assert outside.publishes() == [("$delayed/5/x", b"own", 0)]
        assert bench.records()[0] == ("$delayed/5/$tenant/a/x", b"secret")
        assert bench.stats.dropped() == dict.fromkeys(bench.stats.dropped(), 0)


@pytest.mark.parametrize("topic_filter", ["#", "+/a/#", "+/+/x", "$share/g/#", "$share/g/+/a/x"])
def test_no_wildcard_of_a_client_without_a_tenant_matches_topics_of_tenants(topic_filter: str) -> None:
    with bench_of() as bench:
        outside = bench.client("o")
        outside.subscribe(topic_filter)
        bench.client("i", listener=A).send(Publish("x", b"secret", retain=True))
        outside.subscribe(topic_filter)
        assert outside.publishes() == []


# ---- sessions ----


def test_equal_client_identifiers_of_two_tenants_are_two_sessions() -> None:
    with bench_of() as bench:
        kept = {"clean_start": False, "present": False}
        a, b, none = (bench.client("dev", listener=listener, **kept) for listener in (A, B, 0))
        for wire, name in ((a, "of/a"), (b, "of/b"), (none, "of/none")):
            wire.subscribe(name)
        assert a.is_open
        assert b.is_open
        assert none.is_open
        b.drop()
        again = bench.client("dev", listener=B, clean_start=False, present=True)
        again.send(Publish("of/a", b""), Publish("of/b", b""))
        assert again.publishes() == [("of/b", b"", 0)]
        assert a.publishes() == []


@pytest.mark.parametrize("listener", [0, A])
def test_a_client_identifier_of_the_form_of_a_full_name_is_refused(listener: int) -> None:
    with bench_of() as bench:
        assert code_of(bench, listener, "$tenant/a/dev") == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID


def test_an_assigned_client_identifier_has_no_prefix_and_works_again() -> None:
    with bench_of() as bench:
        wire = bench.wire(Version.V5, A)
        expiry = Properties(session_expiry_interval_s=60)
        wire.send(Connect("", version=Version.V5, properties=expiry))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        client_id = answer.properties.assigned_client_identifier
        assert client_id is not None
        assert not client_id.startswith(MARK)
        wire.drop()
        bench.client5(client_id, listener=A, expiry_s=60, clean_start=False, present=True)


def test_a_will_goes_to_its_tenant() -> None:
    with bench_of() as bench:
        a, b = bench.client("ra", listener=A), bench.client("rb", listener=B)
        for wire in (a, b):
            wire.subscribe("gone")
        bench.client("w", listener=A, will=Will("gone", b"w")).drop()
        assert a.publishes() == [("gone", b"w", 0)]
        assert b.publishes() == []
        assert code_of(bench, A, will=Will("$tenant/b/gone", b"w")) == DENIED


def test_sessions_wills_and_queues_of_tenants_survive_a_kill() -> None:
    tenants = Tenants([Tenant("a", quota=TenantQuota(sessions_max=2)), Tenant("b")])
    with Lives(tenants=tenants) as lives:
        bench = with_listeners(lives.start())
        for listener in (A, B):
            wire = bench.client("dev", listener=listener, clean_start=False)
            wire.subscribe("x", qos=1)
            wire.drop()
        bench.client5("w", listener=A, expiry_s=60, will=Will("x", b"w", 1))
        bench.client("p", listener=A).send(Publish("x", b"1", 1, packet_id=1))
        bench = with_listeners(lives.restart())
        assert row_of(bench)["sessions"] == 2
        assert code_of(bench, A, "third", properties=Properties(session_expiry_interval_s=9)) == QUOTA
        bench.settle(61_000)
        a = bench.wire(Version.V311, A)
        a.send(Connect("dev", clean_start=False))
        connack, *rest = a.received()
        assert isinstance(connack, ConnAck)
        assert connack.session_present
        assert [(it.topic, bytes(it.payload)) for it in rest if isinstance(it, Publish)] == [
            ("x", b"1"),
            ("x", b"w"),
        ]
        b = bench.client("dev", listener=B, clean_start=False, present=True)
        assert b.publishes() == []


# ---- the tenant of a client ----


def test_an_access_list_sees_a_session_as_the_client_of_its_latest_connection() -> None:
    seen = []

    class Recording(AnyTopic):
        """Notes clients."""

        def may_receive(self, client: ClientInfo, topic: str) -> bool:
            seen.append((client.client_id, client.username))
            return True

    with bench_of(access=Recording()) as bench:
        publisher = bench.client("p", listener=A)
        for number, name in enumerate(("ann", "bob")):
            reader = bench.wire(Version.V5, A)
            kept = Properties(session_expiry_interval_s=60)
            reader.send(Connect("r", False, username=name, version=Version.V5, properties=kept))
            reader.received()
            reader.subscribe("#")
            publisher.send(Publish(f"t/{number}", b""))
    assert set(seen) == {("r", "ann"), ("r", "bob")}


def test_only_a_verified_user_decides_its_tenant() -> None:
    tenants = Tenants([Tenant("a", users=("ann", "press-*")), Tenant("b", users=("bob",))])
    for authenticator, expected in ((Anybody(), "$tenant/a/"), (None, "")):
        with Bench(tenants=tenants, authenticator=authenticator) as bench:
            bench.client("c", username="press-7")
            assert [session.client_info.prefix for session in bench.broker.sessions] == [expected]


def test_a_user_of_another_tenant_is_refused_by_a_listener_and_counted() -> None:
    tenants = Tenants([Tenant("a", users=("ann",)), Tenant("b", users=("bob",))])
    with with_listeners(Bench(tenants=tenants, authenticator=Anybody())) as bench:
        assert code_of(bench, A, username="ann") == ReasonCode.SUCCESS
        assert code_of(bench, A, "x", username="bob") == DENIED
        assert (
            code_of(bench, A, "y", username="joe") == ReasonCode.SUCCESS
        )  # of no tenant: the listener decides
        assert sum(row["refused"]["other tenant"] for row in bench.broker.tenants.rows()) == 1
        assert bench.broker.refused[DENIED.words] == 1


def test_the_name_in_a_certificate_decides_the_tenant() -> None:
    tenants = Tenants([Tenant("a", certificates=("pump-*",)), Tenant("b", certificates=("press-*",))])
    with with_listeners(Bench(tenants=tenants)) as bench:
        bench.broker.policies[4] = ListenerPolicy(allow_anonymous=True, has_certificates=True)
        bench.broker.policies[5] = ListenerPolicy(True, has_certificates=True, tenant="a")
        bench.broker.certificate_of = lambda connection: ClientCertificate("press-7")
        assert code_of(bench, 4) == ReasonCode.SUCCESS
        assert [session.client_info.prefix for session in bench.broker.sessions] == ["$tenant/b/"]
        assert code_of(bench, 5) == DENIED


# ---- rules ----


def test_access_rules_decide_about_visible_names() -> None:
    rules = [
        AccessRule(Access.WRITE | Access.READ, "in/%c/#", is_pattern=True),
        AccessRule(Access.READ, "all/#", is_pattern=True),
    ]
    with bench_of(access=AccessRules(rules)) as bench:
        client, other = bench.client5("dev", listener=A), bench.client5("dev", listener=B)
        for wire in (client, other):
            wire.subscribe("#")
        client.send(
            *(Publish(name, b"x", 1, packet_id=1) for name in ("in/dev/1", "in/other/1", "all/1", "in/dev/1"))
        )
        answers = [it for it in client.received() if isinstance(it, PubAck | Publish)]
        assert [it.reason_code for it in answers if isinstance(it, PubAck)] == [0, DENIED, DENIED, 0]
        assert [it.topic for it in answers if isinstance(it, Publish)] == ["in/dev/1", "in/dev/1"]
        assert other.publishes() == []


def test_the_rules_of_the_engine_decide_about_visible_names() -> None:
    """Without a subscriber the engine makes the topics, without a request to Python."""
    rules = AccessRules([AccessRule(Access.WRITE, "in/%c/#", is_pattern=True)])
    with bench_of(access=rules) as bench:
        client = bench.client5("dev", listener=A)
        names = ("in/dev/1", "in/dev/2", "in/other/1")
        client.send(*(Publish(name, b"", 1, packet_id=1) for name in names))
        assert codes(client) == [ReasonCode.NO_MATCHING_SUBSCRIBERS] * 2 + [DENIED]


class Recorder(Anybody):
    """An access list that allows all and records each request."""

    def __init__(self) -> None:
        self.asked: set[tuple[str, str]] = set()

    def may_publish(self, client: ClientInfo, topic: str) -> bool:
        self.asked.add((client.client_id, topic))
        return True

    may_subscribe = may_receive = may_publish


def test_plug_ins_see_visible_names() -> None:
    recorder = Recorder()
    with bench_of(access=recorder, authenticator=recorder) as bench:
        client = bench.client("dev", listener=A, will=Will("w", b""))
        client.subscribe("x/#", "$share/g/y")
        client.send(Publish("x/1", b"", retain=True), Publish("y", b""))
        bench.broker.acl_changed(recorder)
        names = {"w", "x/#", "y", "x/1"}
        assert recorder.asked == {("dev", name) for name in names}


def test_a_retained_message_of_a_tenant_is_withheld_when_its_author_loses_the_right() -> None:
    allow, deny = (
        AccessRules([AccessRule(access, "#", is_pattern=True)])
        for access in (Access.WRITE | Access.READ, Access.READ)
    )
    with bench_of(access=allow) as bench:
        bench.client("c", listener=A).send(Publish("x", b"1", retain=True))
        for access, expected in ((allow, 1), (deny, 0)):
            bench.broker.acl_changed(access)
            bench.settle()
            reader = bench.client("r", listener=A)
            reader.send(Subscribe(1, (Subscription("x"),)))
            assert sum(isinstance(packet, Publish) for packet in reader.received()) == expected


# ---- quotas ----


def test_connections_of_a_tenant_are_limited_and_those_of_others_are_not() -> None:
    with bench_of(Tenant("a", quota=TenantQuota(connections_max=2))) as bench:
        first = bench.client("1", listener=A)
        bench.client("2", listener=A)
        assert code_of(bench, A, "3") == QUOTA
        bench.client("3", listener=B)
        bench.client("1", listener=A)  # takes over its own connection
        assert not first.is_open
        assert row_of(bench)["refused"]["connections"] == 1
        assert row_of(bench, "b")["refused"]["connections"] == 0


def test_all_users_of_a_tenant_share_its_quota() -> None:
    a = Tenant("a", quota=TenantQuota(sessions_max=2))
    with bench_of(a, authenticator=Anybody()) as bench:
        wants = Properties(session_expiry_interval_s=60)
        answers = [code_of(bench, A, f"c{n}", username=f"user{n}", properties=wants) for n in range(3)]
        assert answers == [ReasonCode.SUCCESS, ReasonCode.SUCCESS, QUOTA]
        assert code_of(bench, B, username="user3", properties=wants) == ReasonCode.SUCCESS
        owners = {owner_text(key) for key, _ in bench.engine.owners_top(Table.SESSIONS, 9)}
        assert owners == {"tenant a, user user0", "tenant a, user user1", "tenant b, user user3"}


def test_retained_messages_of_a_tenant_are_limited_by_number_and_bytes() -> None:
    with bench_of(Tenant("a", quota=TenantQuota(retained_max=3, retained_max_bytes=1_000))) as bench:
        client, other = bench.client5("c", listener=A), bench.client5("c", listener=B)
        for wire in (client, other):
            wire.send(*(Publish(f"t/{n}", b"x", 1, retain=True, packet_id=1) for n in range(4)))
        assert codes(client)[2:] == [ReasonCode.NO_MATCHING_SUBSCRIBERS, QUOTA]
        assert QUOTA not in codes(other)
        client.send(Publish("t/0", bytes(2_000), 1, retain=True, packet_id=1))
        assert codes(client) == [QUOTA]
        client.send(*(Publish(f"t/{n}", b"", retain=True) for n in range(4)))
        assert (row_of(bench)["retained"], row_of(bench)["retained_bytes"]) == (0, 0)


def test_retained_messages_without_an_author_count_for_the_tenant() -> None:
    """Such as delayed messages."""
    with bench_of(Tenant("a", quota=TenantQuota(retained_max=2))) as bench:
        for n in range(4):
            bench.broker.own_messages.offer(f"$tenant/a/{n}", b"x", 4, b"")
        assert row_of(bench)["retained"] == 2
        reader = bench.client("r", listener=A)
        reader.send(Subscribe(1, (Subscription("#"),)))
        assert sum(isinstance(packet, Publish) for packet in reader.received()) == 2


def test_topics_of_a_tenant_are_limited() -> None:
    with bench_of(Tenant("a", quota=TenantQuota(topics_max=2))) as bench:
        client = bench.client5("c", listener=A)
        client.send(*(Publish(f"t/{n}", b"", 1, packet_id=1) for n in range(3)))
        assert codes(client)[2] == QUOTA


def test_clients_of_a_tenant_share_its_rate_and_lose_nothing() -> None:
    with bench_of(Tenant("a", publish_rate_max=10)) as bench:
        one, two = bench.client("1", listener=A), bench.client("2", listener=A)
        other = bench.client("1", listener=B)
        for wire in (one, two, other):
            wire.send(*(Publish("t", b"%d" % n) for n in range(15)))
        assert sum(topic == "$tenant/a/t" for topic, _ in bench.records()) == 10
        assert sum(topic == "$tenant/b/t" for topic, _ in bench.records()) == 15
        for _ in range(40):
            bench.settle(100)
        assert sum(topic == "$tenant/a/t" for topic, _ in bench.records()) == 30
        assert row_of(bench)["published"] == 30
        assert row_of(bench)["rate_waits"] > 0
        assert row_of(bench, "b")["rate_waits"] == 0


def test_a_client_that_floods_its_tenant_does_not_keep_the_others_from_publishing() -> None:
    with bench_of(Tenant("a", publish_rate_max=100)) as bench:
        flood, quiet = bench.client("f", listener=A), bench.client("q", listener=A)
        flood.send(*(Publish("flood", b"x") for _ in range(1_000)))
        for number in range(3):
            quiet.send(Publish("quiet", b"x"))
            bench.settle(100)
            bench.settle(100)
            topics = [topic for topic, _ in bench.records()]
            assert topics.count("$tenant/a/quiet") == number + 1
            assert topics.count("$tenant/a/flood") < 200


def test_nothing_is_counted_any_more_when_all_clients_have_left() -> None:
    with bench_of(engine=EngineLimits(topics_max=100)) as bench:
        wire = bench.client5("c", listener=A, expiry_s=5)
        wire.subscribe("x/#", "$share/g/y", qos=1)
        wire.send(Publish("x/1", b"x", 1, packet_id=1, retain=True))
        wire.received()
        wire.send(Publish("x/1", b"", retain=True))
        wire.drop()
        bench.settle(6_000)
        bench.engine.topics_recycle(100)
        row = row_of(bench)
        tables = set(Table) - {Table.OPENING, Table.CONNECTIONS}  # a bench has no sockets to close
        used = {table.name.lower(): row[table.name.lower()] for table in tables}
        assert used == dict.fromkeys(used, 0)


# ---- the engine ----


def test_the_engine_has_254_tenants_with_names_of_24_bytes_at_most() -> None:
    with Bench() as bench:
        limits = (0,) * TABLES
        for name in (b"", b"x" * 25):
            with pytest.raises(ValueError, match="tenant"):
                bench.engine.tenant_set(name, limits, 0)
        numbers = [bench.engine.tenant_set(b"%024d" % n, limits, 0) for n in range(TENANTS_MAX)]
        assert numbers == list(range(1, TENANTS_MAX + 1))
        assert bench.engine.tenant_set(b"%024d" % 7, limits, 5) == 8  # a known one is changed
        with pytest.raises(ValueError, match="more than 254"):
            bench.engine.tenant_set(b"one-more", limits, 0)
        for number in (0, TENANTS_MAX + 1):
            with pytest.raises(ValueError, match="no tenant"):
                bench.engine.tenant_stats(number)


def test_topics_of_a_tenant_that_is_not_configured_any_more_are_closed() -> None:
    with bench_of() as bench:
        assert bench.broker.own_messages.publish("$tenant/gone/x", b"")  # as a delayed message would be
        outside = bench.client5("o")
        outside.send(Publish("$tenant/gone/x", b"", 1, packet_id=1))
        assert codes(outside) == [DENIED]


def test_full_names_have_one_form() -> None:
    assert prefix_of("") == ""
    assert prefix_in(prefix_of("a") + "x/y") == "$tenant/a/"
    assert [prefix_in(name) for name in ("x", "$tenant", "$tenant/", "$tenant/a", "$tenant//x")] == [""] * 5
    assert not any(map(is_reserved, ("x", "$tenant/a/x")))
    assert all(
        map(is_reserved, ("", "$x", "$tenant/x", "$tenant/a/", "$tenant/a/$x", "$tenant/a/$tenant/b/x"))
    )
    assert full_filter("$tenant/a/", "$share/g/x/#") == "$share/g/$tenant/a/x/#"
    known = ClientInfo("$tenant/a/c", None, "10.0.0.7:5", 0)
    assert owner_text(key_of(known)) == "tenant a, address 10.0.0.7"
    assert known.visible.client_id == "c"


@pytest.mark.parametrize("table", ["sessions_max", "connections_max"])
def test_a_client_takes_its_session_along_to_another_address_at_the_quota(table: str) -> None:
    with bench_of(Tenant("a", quota=TenantQuota(**{table: 1}))) as bench:
        addresses = iter(["10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1"])
        connecting = bench.broker._connecting
        client_info_of = connecting.client_info_of
        connecting.client_info_of = lambda *given: replace(  # type: ignore[method-assign]
            client_info_of(*given), address=next(addresses)
        )
        kept: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval_s=99)}
        assert code_of(bench, A, "dev", **kept) == ReasonCode.SUCCESS
        assert code_of(bench, A, "dev", **kept) == ReasonCode.SUCCESS
        assert code_of(bench, A, "other", **kept) == QUOTA
