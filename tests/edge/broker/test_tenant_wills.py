"""Wills of tenants: bounded by number and bytes, counted by cause, never at the cost of another tenant."""

from typing import Any

from edge.auth.tenants import Tenants
from edge.broker.wills import will_bytes
from edge.config.quota import TenantQuota
from edge.config.tenant import Tenant
from edge.mqtt import Properties, ReasonCode, Will
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench
from tests.support.tenant_bench import (
    QUOTA,
    A,
    B,
    bench_of,
    change_to,
    code_of,
    row_of,
    with_listeners,
)

OK = ReasonCode.SUCCESS
SMALL, LARGE = Will("gone", b"w"), Will("gone", bytes(1_000))
LATE = Will("gone", b"w", properties=Properties(will_delay_interval_s=30))
KEPT: dict[str, Any] = {"clean_start": False, "properties": Properties(session_expiry_interval_s=60)}


def quota_of(**limits: int) -> Tenant:
    return Tenant("a", quota=TenantQuota(**limits))


def figures(bench: Bench) -> tuple[int, int]:
    row = row_of(bench)
    return row["wills"], row["wills_bytes"]


def test_wills_of_a_tenant_are_limited_by_number() -> None:
    with bench_of(quota_of(wills_max=2)) as bench:
        answers = [code_of(bench, A, f"c{n}", will=SMALL) for n in range(3)]
        assert answers == [OK, OK, QUOTA]
        assert code_of(bench, A, "c3") == OK  # without a will
        assert code_of(bench, A, "c1", will=SMALL) == OK  # in place of its own
        assert [code_of(bench, B, f"c{n}", will=SMALL) for n in range(3)] == [OK] * 3
        assert [code_of(bench, 0, f"c{n}", will=SMALL) for n in range(3)] == [OK] * 3
        assert figures(bench) == (2, 2 * will_bytes(SMALL) + 2 * len("$tenant/a/"))
        assert (row_of(bench)["refused"]["wills"], row_of(bench, "b")["refused"]["wills"]) == (1, 0)
        assert row_of(bench)["limits"]["wills"] == 2


def test_wills_of_a_tenant_are_limited_by_bytes() -> None:
    prefix_bytes = len("$tenant/a/")
    size = will_bytes(LARGE) + will_bytes(SMALL) + 2 * prefix_bytes
    with bench_of(quota_of(wills_max_bytes=size)) as bench:
        assert code_of(bench, A, "c0", will=LARGE) == OK
        assert code_of(bench, A, "c1", will=LARGE) == QUOTA
        assert code_of(bench, A, "c0", will=SMALL) == OK  # a smaller one in place of its own
        assert code_of(bench, A, "c1", will=LARGE) == OK
        assert code_of(bench, A, "c2", will=SMALL) == QUOTA
        assert code_of(bench, A, "c0", will=LARGE) == QUOTA
        assert figures(bench) == (2, size)
        assert row_of(bench)["refused"]["will bytes"] == 3
        assert code_of(bench, B, "c1", will=LARGE) == OK


def test_a_will_that_waits_counts_until_it_is_published_and_its_client_may_return() -> None:
    with bench_of(quota_of(wills_max=1)) as bench:
        wire = bench.client5("c0", listener=A, expiry_s=60, will=LATE)
        wire.drop()
        assert code_of(bench, A, "c1", will=SMALL) == QUOTA
        assert code_of(bench, A, "c0", will=LATE, **KEPT) == OK
        assert figures(bench)[0] == 1
        bench.broker.disconnect("$tenant/a/c0")
        bench.settle(31_000)
        assert figures(bench) == (0, 0)
        assert code_of(bench, A, "c1", will=SMALL) == OK


def test_a_lower_limit_ends_no_will_and_clients_may_replace_theirs() -> None:
    with bench_of() as bench:
        assert [code_of(bench, A, f"c{n}", will=LARGE) for n in range(3)] == [OK] * 3
        change_to(bench, quota_of(wills_max=1, wills_max_bytes=1_000), Tenant("b"))
        assert figures(bench)[0] == 3
        assert code_of(bench, A, "c2", will=LARGE) == OK
        assert code_of(bench, A, "c3", will=SMALL) == QUOTA
        change_to(bench, Tenant("a"), Tenant("b"))
        assert code_of(bench, A, "c3", will=SMALL) == OK


def test_waiting_wills_count_for_their_tenant_after_a_kill() -> None:
    with Lives(tenants=Tenants([quota_of(wills_max=1), Tenant("b")])) as lives:
        bench = with_listeners(lives.start())
        bench.client5("c0", listener=A, expiry_s=60, will=LATE)
        bench = with_listeners(lives.restart())
        assert figures(bench)[0] == 1
        assert code_of(bench, A, "c1", will=SMALL) == QUOTA
        bench.settle(31_000)
        assert figures(bench) == (0, 0)
