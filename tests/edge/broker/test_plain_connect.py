"""Plain CONNECT in one step: the same answer and the same state as by all steps."""

from contextlib import ExitStack
from typing import Any

import pytest
from msgspec.structs import asdict, replace

from edge.auth.acl import Access, AccessRule, AccessRules
from edge.auth.interfaces import ListenerPolicy
from edge.broker.broker_limits import BrokerLimits
from edge.broker.plain_connect import CLIENT_ID_MAX
from edge.engine.engine import EngineLimits, Table, counters_of
from edge.mqtt import ConnAck, Connect, Disconnect, Properties, Publish, ReasonCode, Version, Will
from tests.support.mqtt_bench import Bench, Wire
from tests.support.mqtt_served import served
from tests.support.mqtt_socket import RawClient

OPEN = AccessRules([AccessRule(Access.READWRITE, "#")])
ROOMS = AccessRules([AccessRule(Access.READWRITE, "room/#")])
PLAIN = [
    Connect("c"),
    Connect("c", keep_alive_s=0),
    Connect("c", keep_alive_s=65_535),
    Connect("ü" * CLIENT_ID_MAX),
    Connect("c", version=Version.V5),
    Connect("c", version=Version.V5, keep_alive_s=0),
]
OTHERS = [
    Connect("x" * (CLIENT_ID_MAX + 1)),
    Connect(""),
    Connect("c", clean_start=False),
    Connect("c", version=Version.V31),
    Connect("c", username="ann"),
    Connect("c", username="ann", password=b"p"),
    Connect("c", will=Will("t", b"gone")),
    Connect("c", version=Version.V5, properties=Properties(maximum_packet_size_bytes=100)),
    Connect("c", version=Version.V5, properties=Properties(session_expiry_interval_s=10)),
]
SILENCES_MS = (37_000, 9_000, 30_000, 16_000, 100_000_000)  # around 1.5 times 30 and 60 s
LIMITS = [BrokerLimits(), BrokerLimits(keep_alive_max_s=30, client_id_max_bytes=100)]


def taken_in_one_step(monkeypatch: pytest.MonkeyPatch, bench: Bench, *, never: bool = False) -> list[bool]:
    """Results of all plain steps from now on; `never`: ConnectHandler decides about each client."""
    plain = bench.broker._connecting._plain
    accept, results = plain.accept, []

    def noted(*arguments: Any) -> bool:
        results.append(not never and accept(*arguments))
        return results[-1]

    monkeypatch.setattr(plain, "accept", noted)
    return results


def silent_for(bench: Bench, wire: Wire, ms: int) -> bool:
    """True if a client may be silent for so much longer."""
    bench.settle(ms)
    return wire.is_open


def state_of(bench: Bench, wire: Wire) -> dict[str, Any]:
    """The answer, and what broker and engine know of the client."""
    answer = wire.bytes_received()
    client = bench.broker.clients.get(wire.handle)
    counters = counters_of(bench.engine)
    found: dict[str, Any] = {
        "answer": answer,
        "open": wire.is_open,
        "counters": (counters.sessions, counters.sessions_kept, list(counters.quota_refused)),
        "owners": [bench.engine.owners_top(table, 9) for table in Table],
        "refused": bench.broker.refused,
    }
    if client is None:
        return found
    fields = {name: value for name, value in asdict(client).items() if name != "since_ns"}
    session = fields.pop("session")
    return {
        **found,
        "client": fields,
        "session": {name: value for name, value in asdict(session).items() if name != "subscriptions"},
        "stats": bench.engine.session_stats(session.handle),
    }


@pytest.mark.parametrize("limits", LIMITS, ids=["default", "strict"])
@pytest.mark.parametrize("access", [None, OPEN, ROOMS], ids=["none", "open", "rooms"])
@pytest.mark.parametrize("connect", PLAIN + OTHERS, ids=str)
def test_one_step_and_all_steps_lead_to_the_same_state(
    connect: Connect, access: AccessRules | None, limits: BrokerLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    states: list[Any] = []
    for never in (False, True):
        with Bench(access=access, limits=limits) as bench:
            monkeypatch.setattr("os.urandom", bytes)  # of an identifier that the broker chooses
            results = taken_in_one_step(monkeypatch, bench, never=never)
            wire = bench.wire(connect.version)
            wire.send(connect)
            states.append(state_of(bench, wire))
            is_short = len(connect.client_id.encode()) * 2 <= limits.client_id_max_bytes
            if not never and connect in PLAIN and access is not ROOMS and is_short:
                assert results == [True]
            elif never:
                assert not any(results)
            wire.send(Publish("room/1", b"a"), Publish("hall/1", b"b"))
            states[-1]["records"] = bench.records()
            states[-1]["open later"] = [silent_for(bench, wire, ms) for ms in SILENCES_MS]
    assert states[0] == states[1]


def test_a_client_in_one_step_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench() as bench:
        results = taken_in_one_step(monkeypatch, bench)
        for end in (lambda wire: wire.drop(), lambda wire: wire.send(Disconnect())):
            end(bench.client())
            assert (len(bench.broker.clients), len(bench.broker.sessions)) == (0, 0)
            assert counters_of(bench.engine).sessions == 0
            assert bench.engine.owners_top(Table.CONNECTIONS, 9) == []
        assert results == [True, True]


def test_a_known_identifier_is_taken_over_by_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench() as bench:
        first = bench.client()
        results = taken_in_one_step(monkeypatch, bench)
        bench.client()
        assert not first.is_open
        assert results == [False]
        assert len(bench.broker.sessions) == 1


@pytest.mark.parametrize(
    "policy",
    [
        {"allow_anonymous": False},
        {"redirect_to": "other:1883"},
        {"certificate_is_user": True},
        {"has_certificates": True},
        {"transport": "unix"},
    ],
    ids=str,
)
def test_a_listener_with_a_rule_for_clients_decides_by_all_steps(
    policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Bench() as bench:
        bench.broker.policies[0] = replace(ListenerPolicy(allow_anonymous=True), **policy)
        results = taken_in_one_step(monkeypatch, bench)
        wire = bench.wire()
        wire.send(Connect("c"))
        wire.received()
        assert results == [False]
        accepted = policy.keys() & {"has_certificates", "transport"}
        assert wire.is_open is bool(accepted)


def test_rules_that_change_apply_to_the_next_plain_client(monkeypatch: pytest.MonkeyPatch) -> None:
    with Bench() as bench:
        results = taken_in_one_step(monkeypatch, bench)
        bench.client("a")
        bench.broker.acl_changed(ROOMS)
        denied = bench.client("b")
        denied.send(Publish("hall/1", b"x"))
        bench.broker.acl_changed(OPEN)
        bench.client("d").send(Publish("hall/2", b"y"))
        assert results == [True, False, True]
        assert [topic for topic, _ in bench.records()] == ["hall/2"]


def test_a_plain_client_beyond_the_quota_of_its_address_is_refused_and_counted_once() -> None:
    quota = [0] * len(Table)
    quota[Table.CONNECTIONS] = 2
    limits = EngineLimits(owner_max=((0,) * len(Table), tuple(quota)))
    with served(engine=limits) as there, ExitStack() as down:
        for number in range(2):
            down.enter_context(there.client(f"c{number}", version=Version.V5))
        refused = down.enter_context(RawClient(there.port, Version.V5))
        refused.send(Connect("c2", version=Version.V5))
        answer = refused.packet()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code is ReasonCode.QUOTA_EXCEEDED
        assert there.ask(lambda: counters_of(there.engine).quota_refused[Table.CONNECTIONS]) == 1
        assert there.ask(lambda: len(there.listener.broker.sessions)) == 2
