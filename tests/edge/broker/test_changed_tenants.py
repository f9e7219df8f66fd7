"""Changes of tenants by a reload: limits, added and removed tenants, clients that another tenant gets."""

from concurrent.futures import Future

import pytest
from msgspec.structs import replace

from edge.auth.interfaces import ClientInfo, ListenerPolicy
from edge.auth.tenants import Tenants
from edge.config.quota import TenantQuota
from edge.config.tenant import TENANTS_MAX, Tenant
from edge.engine.engine import EngineLimits
from edge.mqtt import ConnAck, Connect, Disconnect, Properties, Publish, ReasonCode, Version, Will
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import Anybody, AnyTopic
from tests.support.tenant_bench import (
    DENIED,
    QUOTA,
    A,
    B,
    bench_of,
    change_to,
    code_of,
    codes,
    row_of,
    with_listeners,
)

EXPIRY = Properties(session_expiry_interval_s=60)


def ended_with(wire: Wire) -> ReasonCode | None:
    """Reason code of the DISCONNECT that a client got; None: it is connected."""
    codes_of_end = [packet.reason_code for packet in wire.received() if isinstance(packet, Disconnect)]
    return codes_of_end[0] if codes_of_end else None


def test_lower_quotas_end_nothing_and_refuse_what_is_new() -> None:
    with bench_of() as bench:
        clients = [bench.client5(f"c{n}", listener=A, expiry_s=60) for n in range(3)]
        clients[0].send(*(Publish(f"t/{n}", b"xx", 1, retain=True, packet_id=1) for n in range(3)))
        assert QUOTA not in codes(clients[0])
        change_to(
            bench,
            Tenant("a", quota=TenantQuota(connections_max=1, sessions_max=1, retained_max=1, topics_max=1)),
            Tenant("b"),
        )
        assert [ended_with(wire) for wire in clients] == [None] * 3
        row = row_of(bench)
        assert (row["connections"], row["sessions"], row["retained"]) == (3, 3, 3)
        assert code_of(bench, A, "c3", properties=EXPIRY) == QUOTA
        assert code_of(bench, A, "c3") == QUOTA
        assert code_of(bench, A, "c2", clean_start=False, properties=EXPIRY) == ReasonCode.SUCCESS  # its own
        assert code_of(bench, B, "c3", properties=EXPIRY) == ReasonCode.SUCCESS
        clients[0].send(
            Publish("t/0", b"y", 1, retain=True, packet_id=1),  # a retained message is replaced
            Publish("new", b"y", 1, packet_id=2),
        )
        assert codes(clients[0]) == [ReasonCode.NO_MATCHING_SUBSCRIBERS, QUOTA]
        change_to(bench, Tenant("a"), Tenant("b"))
        assert code_of(bench, A, "c3", properties=EXPIRY) == ReasonCode.SUCCESS
        assert row_of(bench)["refused"]["connections"] == 2  # the counters stay


def test_another_rate_applies_to_connected_clients() -> None:
    with bench_of() as bench:
        client = bench.client("c", listener=A)
        change_to(bench, Tenant("a", publish_rate_max=10), Tenant("b"))
        client.send(*(Publish("t", b"%d" % n) for n in range(15)))
        assert len(bench.records()) == 10
        change_to(bench, Tenant("a"), Tenant("b"))
        bench.settle(200)
        assert len(bench.records()) == 15


@pytest.mark.parametrize("first", [True, False])
def test_an_added_tenant_works_at_once_wherever_it_stands(first: bool) -> None:
    with bench_of() as bench:
        bench.broker.policies[4] = ListenerPolicy(allow_anonymous=True, tenant="c")
        one = bench.client("x", listener=A)
        assert code_of(bench, 4) == DENIED  # no client without its tenant
        added, old = Tenant("c", quota=TenantQuota(connections_max=1)), (Tenant("a"), Tenant("b"))
        change_to(bench, *((added, *old) if first else (*old, added)))
        three = bench.client("x", listener=4)
        for wire in (one, three):
            wire.subscribe("#")
        one.send(Publish("t", b"a"))
        three.send(Publish("t", b"c"))
        assert (one.publishes(), three.publishes()) == ([("t", b"a", 0)], [("t", b"c", 0)])
        assert [row_of(bench, name)["connections"] for name in "abc"] == [1, 0, 1]
        assert code_of(bench, 4, "y") == QUOTA
        assert code_of(bench, B, "y") == ReasonCode.SUCCESS


def test_a_removed_tenant_ends_its_clients_and_publishes_their_wills_in_its_name_space() -> None:
    with bench_of() as bench:
        wire = bench.client5("c", listener=A, expiry_s=60, will=Will("gone", b"w"))
        outside, other = bench.client("o"), bench.client("c", listener=B)
        for reader in (outside, other):
            reader.subscribe("#")
        change_to(bench, Tenant("b"))
        assert ended_with(wire) == DENIED
        assert code_of(bench, A) == DENIED
        assert ("$tenant/a/gone", b"w") in bench.records()
        assert outside.publishes() == other.publishes() == []
        outside.send(Publish("$tenant/a/gone", b"x"))
        assert bench.records()[-1] == ("$tenant/a/gone", b"w")
        assert [row["name"] for row in bench.broker.tenants.rows()] == ["b"]


def test_a_tenant_that_comes_back_has_its_sessions_retained_messages_and_figures() -> None:
    with bench_of() as bench:
        wire = bench.client5("c", listener=A, expiry_s=60)
        wire.subscribe("t/#", qos=1)
        wire.send(Publish("t/1", b"kept", 1, retain=True, packet_id=1))
        change_to(bench, Tenant("b"))
        bench.broker.own_messages.publish("$tenant/a/t/2", b"meanwhile", 1)  # a delayed message, for instance
        change_to(bench, Tenant("b"), Tenant("a", quota=TenantQuota(sessions_max=1)))
        assert (row_of(bench)["sessions"], row_of(bench)["retained"]) == (1, 1)
        again = bench.wire(Version.V5, A)
        again.send(Connect("c", clean_start=False, version=Version.V5, properties=EXPIRY))
        connack, *messages = again.received()
        assert isinstance(connack, ConnAck)
        assert connack.session_present
        found = [(it.topic, bytes(it.payload)) for it in messages if isinstance(it, Publish)]
        assert found == [("t/1", b"kept"), ("t/2", b"meanwhile")]
        assert code_of(bench, A, "d", properties=EXPIRY) == QUOTA


def test_an_added_tenant_gets_what_an_earlier_life_of_the_broker_has_left_for_it() -> None:
    """Topics and owners that were restored without their tenant get it, with their use of each table."""
    with Lives(tenants=Tenants([Tenant("a"), Tenant("b")])) as lives:
        bench = with_listeners(lives.start())
        wire = bench.client("c", listener=A, clean_start=False)
        wire.subscribe("t/#", qos=1)
        wire.drop()
        bench.client("p", listener=A).send(Publish("t/1", b"1", 1, packet_id=1))
        lives._options["tenants"] = Tenants([Tenant("b")])
        bench = with_listeners(lives.restart())
        assert code_of(bench, A) == DENIED
        change_to(bench, Tenant("b"), Tenant("a", quota=TenantQuota(sessions_max=1)))
        assert row_of(bench)["sessions"] == 1
        assert row_of(bench)["subscription_bytes"] > 0
        again = bench.wire(Version.V311, A)
        again.send(Connect("c", clean_start=False))
        _, message = again.received()
        assert isinstance(message, Publish)
        assert (message.topic, bytes(message.payload)) == ("t/1", b"1")
        again.send(Publish("t/1", b"2"))  # the topic was restored before its tenant
        assert again.publishes() == [("t/1", b"2", 0)]
        assert code_of(bench, A, "d", properties=EXPIRY) == QUOTA


def test_a_client_whose_user_another_tenant_gets_is_disconnected_and_comes_back_there() -> None:
    tenants = Tenants([Tenant("a", users=("ann",)), Tenant("b", users=("bob",))])
    with Bench(tenants=tenants, authenticator=Anybody()) as bench:
        clients = {user: bench.client5(user, username=user) for user in ("ann", "bob", "cid")}
        change_to(bench, Tenant("a", users=("ann",)), Tenant("b", users=("cid",)))
        assert [ended_with(wire) for wire in clients.values()] == [None, DENIED, DENIED]
        for user, prefix in (("bob", ""), ("cid", "$tenant/b/")):
            bench.client5(user, username=user)
            assert bench.broker.sessions.get(f"{prefix}{user}") is not None


def test_a_client_that_is_moved_while_its_will_is_decided_is_refused() -> None:
    class Slow(AnyTopic):
        """Decides later."""

        def __init__(self) -> None:
            self.answer: Future[bool] = Future()

        def may_publish(self, client: ClientInfo, topic: str) -> Future[bool]:
            return self.answer

    access = Slow()
    with bench_of(access=access) as bench:
        wire = bench.wire(Version.V5, A)
        wire.send(Connect("c", version=Version.V5, will=Will("gone", b"w")))
        assert wire.received() == []
        change_to(bench, Tenant("b"))
        access.answer.set_result(True)
        bench.settle()
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code == DENIED


def test_a_name_keeps_its_number_and_numbers_end_at_254() -> None:
    tenants = Tenants([Tenant("a"), Tenant("b")])
    changed = tenants.with_settings([Tenant("c"), Tenant("b")])
    assert [changed.number(name) for name in "abc"] == [0, 2, 3]
    again = changed.with_settings([Tenant("a")])
    assert [again.number(name) for name in "abc"] == [1, 0, 0]
    full = [Tenant(f"t{n}") for n in range(TENANTS_MAX - 3)]
    assert again.with_settings(full).number("t0") == 4
    with pytest.raises(OverflowError, match="255 tenants, with those that were removed"):
        again.with_settings([*full, Tenant("more")])
    assert again.number("t0") == 0


def test_the_check_of_connected_clients_is_done_in_steps() -> None:
    with bench_of(engine=EngineLimits(connections_max=600)) as bench:
        wires = [bench.client(f"c{n}", listener=A) for n in range(500)]
        bench.broker.apply_tenants(bench.broker.tenants.configured.with_settings([Tenant("b")]))
        wires[-1].drop()  # its client has ended when its turn comes
        bench.settle()
        assert not any(wire.is_open for wire in wires)
        bench.broker.apply_tenants(bench.broker.tenants.configured.with_settings([replace(Tenant("a"))]))
        assert code_of(bench, A) == ReasonCode.SUCCESS
