"""A Bench with the tenants a and b: a listener for each of them, and answers of the broker in short form."""

from typing import Any

from edge.auth.interfaces import ListenerPolicy
from edge.auth.tenants import Tenants
from edge.config.tenant import Tenant
from edge.mqtt import ConnAck, Connect, PubAck, ReasonCode, Version
from tests.support.mqtt_bench import Bench, Wire

A, B = 2, 3  # listeners of the tenants a and b; 0 is of none
QUOTA, DENIED = ReasonCode.QUOTA_EXCEEDED, ReasonCode.NOT_AUTHORIZED


def with_listeners(bench: Bench) -> Bench:
    for number, tenant in ((A, "a"), (B, "b")):
        bench.broker.policies[number] = ListenerPolicy(allow_anonymous=True, tenant=tenant)
    return bench


def bench_of(a: Tenant | None = None, **options: Any) -> Bench:
    return with_listeners(Bench(tenants=Tenants([a or Tenant("a"), Tenant("b")]), **options))


def code_of(bench: Bench, listener: int, client_id: str = "c", **fields: Any) -> ReasonCode:
    """Reason code of the answer to a CONNECT of MQTT 5."""
    wire = bench.wire(Version.V5, listener)
    wire.send(Connect(client_id, version=Version.V5, **fields))
    answer = wire.received()[0]
    assert isinstance(answer, ConnAck)
    return answer.reason_code


def row_of(bench: Bench, tenant: str = "a") -> dict[str, Any]:
    return next(row for row in bench.broker.tenants.rows() if row["name"] == tenant)


def codes(wire: Wire) -> list[ReasonCode]:
    return [packet.reason_code for packet in wire.received() if isinstance(packet, PubAck)]


def change_to(bench: Bench, *tenants: Tenant) -> None:
    """Reload the configuration with these tenants."""
    bench.broker.apply_tenants(bench.broker.tenants.configured.with_settings(tenants))
    bench.settle()
