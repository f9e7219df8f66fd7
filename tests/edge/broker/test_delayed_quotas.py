"""Delayed messages count for their tenant, from their arrival until the store has removed them."""

from typing import Any

import pytest

from edge.broker.quotas import owner_text
from edge.config.quota import TenantQuota
from edge.config.tenant import Tenant
from edge.delayed.store import OVERHEAD_BYTES, DelayedMessage
from edge.engine.engine import DropCause, Table
from edge.mqtt import Properties, PubAck, Publish, PubRec, PubRel, ReasonCode, Version
from edge.mqtt.properties import record_properties
from ringbuf.native import lib
from tests.support.mqtt_bench import Bench
from tests.support.tenant_bench import QUOTA, A, B, bench_of, change_to, codes, row_of

UNHEARD = ReasonCode.NO_MATCHING_SUBSCRIBERS
A_GONE = {("a", "messages"): -1, ("a", "bytes"): -len("$tenant/a/t") - 1 - OVERHEAD_BYTES}


def quota_of(**limits: Any) -> Tenant:
    return Tenant("a", quota=TenantQuota(**limits))


def delaying(a: Tenant, counted: bool = True) -> Bench:
    bench = bench_of(a)
    bench.broker.router.delay_max_s = 3_600
    if counted:
        bench.broker.tenants.delayed({})
    return bench


def publishes(count: int, qos: int = 1, topic: str = "$delayed/9/t", first: int = 1) -> list[Publish]:
    return [Publish(topic, b"x", qos, packet_id=n if qos else 0) for n in range(first, first + count)]


def use_of(bench: Bench, tenant: str = "a") -> tuple[int, int]:
    row = row_of(bench, tenant)
    return row["delayed"], row["delayed_bytes"]


def test_a_delayed_message_beyond_the_number_is_refused_and_other_clients_are_not() -> None:
    with delaying(quota_of(delayed_max=2)) as bench:
        client = bench.client5("c", listener=A)
        client.send(*publishes(3), Publish("t", b"now", 1, packet_id=4))
        assert codes(client) == [UNHEARD, UNHEARD, QUOTA, UNHEARD]
        for other in (bench.client5("c", listener=B), bench.client5("o")):
            other.send(*publishes(3))
            assert codes(other) == [UNHEARD] * 3
        assert [use_of(bench, name)[0] for name in "ab"] == [2, 3]
        assert row_of(bench)["refused"]["delayed"] == 1
        assert bench.stats.dropped()[DropCause.DELAYED_FULL.words] == 1
        owner, has = bench.engine.owner_refused(Table.DELAYED) or (b"", 0)
        assert (owner_text(owner).partition(",")[0], has) == ("tenant a", 2)
        assert len([name for name, _ in bench.records() if name.startswith("$delayed/")]) == 8


def test_bytes_are_those_of_the_store() -> None:
    properties = Properties(user=(("unit", "mm"),), content_type="text")
    stored = DelayedMessage(0, "$tenant/a/\u00e4/1", 1, record_properties(properties), b"payload")
    assert lib.MQ_DELAYED_OVERHEAD_BYTES == OVERHEAD_BYTES
    for room, expected in ((stored.size, UNHEARD), (stored.size - 1, QUOTA)):
        with delaying(quota_of(delayed_max_bytes=room)) as bench:
            client = bench.client5("c", listener=A)
            packet = Publish("$delayed/0009/\u00e4/1", stored.payload, 1, packet_id=1, properties=properties)
            client.send(packet)
            assert codes(client) == [expected]
            assert use_of(bench) == ((1, stored.size) if expected == UNHEARD else (0, 0))
            assert row_of(bench)["refused"]["delayed bytes"] == (expected == QUOTA)


def test_a_refused_message_of_qos_0_is_dropped_and_one_of_mqtt_3_is_not_acknowledged() -> None:
    with delaying(quota_of(delayed_max=1)) as bench:
        client = bench.client("c", listener=A)
        client.send(*publishes(2, qos=0), *publishes(1, topic="t"))
        assert client.is_open
        assert [packet.packet_id for packet in client.received() if isinstance(packet, PubAck)] == [1]
        client.send(*publishes(1))
        assert not client.is_open
        assert client.received() == []
        again = bench.client("c", listener=A)
        bench.broker.tenants.delayed(A_GONE)
        again.send(*publishes(1))
        assert [type(packet) for packet in again.received()] == [PubAck]
        assert row_of(bench)["refused"]["delayed"] == 2


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
def test_a_repeated_message_of_qos_2_is_acknowledged_at_the_limit(version: Version) -> None:
    with delaying(quota_of(delayed_max=1)) as bench:
        client = (bench.client if version is Version.V311 else bench.client5)("c", listener=A)
        first = Publish("$delayed/9/t", b"x", 2, packet_id=1)
        client.send(first, Publish("$delayed/9/t", b"x", 2, dup=True, packet_id=1))
        assert [packet.reason_code for packet in client.received() if isinstance(packet, PubRec)] == [0, 0]
        assert use_of(bench)[0] == 1
        if version is Version.V5:
            client.send(PubRel(1), *publishes(2, qos=2, first=2), Publish("t", b"", 2, packet_id=2))
            found = [packet.reason_code for packet in client.received() if isinstance(packet, PubRec)]
            assert found == [QUOTA, QUOTA, ReasonCode.SUCCESS]


def test_an_alias_and_the_last_topic_do_not_pass_the_quota() -> None:
    with delaying(quota_of(delayed_max=1)) as bench:
        client = bench.client5("c", listener=A)
        alias = Properties(topic_alias=1)
        client.send(Publish("$delayed/9/t", b"x", 1, packet_id=1, properties=alias))
        client.send(*(Publish("", b"x", 1, packet_id=1, properties=alias) for _ in range(2)))
        assert codes(client) == [UNHEARD, QUOTA, QUOTA]


def test_until_earlier_messages_are_counted_only_a_tenant_with_a_quota_waits() -> None:
    with delaying(quota_of(delayed_max=3), counted=False) as bench:
        client, other = bench.client5("c", listener=A), bench.client5("c", listener=B)
        for wire in (client, other):
            wire.send(*publishes(2))
        assert (codes(client), codes(other)) == ([], [UNHEARD] * 2)
        bench.broker.tenants.delayed({("a", "messages"): 2, ("a", "bytes"): 160})
        bench.settle()
        assert codes(client) == [UNHEARD, QUOTA]


def test_a_removed_message_leaves_room_for_exactly_one() -> None:
    with delaying(quota_of(delayed_max=2)) as bench:
        client = bench.client5("c", listener=A)
        client.send(*publishes(2))
        before = use_of(bench)
        for _ in range(3):
            bench.broker.tenants.delayed(A_GONE)
            client.send(*publishes(2))
        assert codes(client)[2:] == [UNHEARD, QUOTA] * 3
        assert use_of(bench) == before == (2, 2 * (len("$tenant/a/t") + 1 + OVERHEAD_BYTES))


def test_a_reload_changes_adds_and_removes_the_quota() -> None:
    with delaying(Tenant("a")) as bench:
        client = bench.client5("c", listener=A)
        client.send(*publishes(3))
        change_to(bench, quota_of(delayed_max=2), Tenant("b"))
        assert use_of(bench)[0] == 3  # these stay
        client.send(*publishes(1))
        change_to(bench, quota_of(delayed_max=4), Tenant("b"))
        client.send(*publishes(2))
        change_to(bench, Tenant("a"), Tenant("b"))
        client.send(*publishes(1))
        assert codes(client) == [UNHEARD] * 3 + [QUOTA, UNHEARD, QUOTA, UNHEARD]


def test_a_tenant_that_a_reload_adds_has_its_messages_from_before_the_start() -> None:
    with delaying(Tenant("a")) as bench:
        bench.broker.tenants.delayed({("c", "messages"): 5, ("c", "bytes"): 500, ("d", "messages"): 1})
        bench.broker.tenants.delayed({("c", "messages"): -2, ("c", "bytes"): -200, ("d", "messages"): -1})
        change_to(bench, Tenant("a"), Tenant("b"), Tenant("c"), Tenant("d"))
        assert (use_of(bench, "c"), use_of(bench, "d")) == ((3, 300), (0, 0))
        change_to(bench, Tenant("b"))
        bench.broker.tenants.delayed({("c", "messages"): -3, ("c", "bytes"): -300})
        change_to(bench, Tenant("b"), Tenant("c"))
        assert use_of(bench, "c") == (0, 0)
