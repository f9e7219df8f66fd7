"""Quotas: no user and no address takes a table that all share away from others, and nothing is evicted."""

import logging
import select
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from edge.auth.interfaces import ClientInfo
from edge.broker.dispatcher import BrokerLimits
from edge.broker.quotas import key_of, owner_max, owner_text
from edge.broker.session_admin import SessionAdmin
from edge.broker.sessions import SessionLimits
from edge.broker.wills import WillLimits
from edge.config.listener import Listener as Settings
from edge.config.loader import parse
from edge.config.schema import Durability
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
    Unsubscribe,
    Version,
    Will,
    encode,
)
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.mqtt_served import served
from tests.support.rules import Anybody
from tests.support.waiting import wait_until

V5 = Version.V5
QUOTA = ReasonCode.QUOTA_EXCEEDED
KEPT = {Version.V311: Properties(), V5: Properties(session_expiry_interval_s=60)}
UNHEARD = ReasonCode.NO_MATCHING_SUBSCRIBERS


def bench_of(**limits: Any) -> Bench:
    """A broker in which one user alone may have three quarters of each table."""
    return Bench(engine=EngineLimits(**{"share_percent": 75, **limits}), authenticator=Anybody())


def code_of(
    bench: Bench, user: str, client_id: str, version: Version = Version.V311, *, kept: bool = True
) -> ReasonCode:
    """The answer to CONNECT; a client that was accepted is away again if its session is `kept`."""
    wire = bench.wire(version)
    wire.send(Connect(client_id, username=user, clean_start=not kept, version=version))
    answer = wire.received()[0]
    assert isinstance(answer, ConnAck)
    if kept and not answer.reason_code.failed:
        wire.drop()
    return answer.reason_code


def limits_of_user(table: Table, most: int) -> dict[str, Any]:
    """EngineLimits in which a user may have `most` of a table, whatever is free."""
    row = [0] * TABLES
    row[table] = most
    return {"owner_max": (tuple(row), (0,) * TABLES)}


# ---- the owner of a client ----


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"verified": True, "identity": "ann", "address": "10.0.0.7:5"}, "user ann"),
        ({"verified": True, "certificate": "press-7", "address": "10.0.0.7:5"}, "certificate press-7"),
        ({"username": "ann", "address": "10.0.0.7:5"}, "address 10.0.0.7"),  # which it only claims
        ({"certificate": "press-7", "address": "10.0.0.7:5"}, "address 10.0.0.7"),
        ({"address": "[::ffff:10.0.0.7]:5"}, "address 10.0.0.7"),
        ({"address": "[2001:db8:1:2:3:4:5:6]:5"}, "address 2001:db8:1:2::/64"),
        ({"address": "", "transport": "unix"}, "unix sockets"),
    ],
)
def test_a_client_counts_for_its_user_or_else_for_its_address(facts: dict[str, Any], words: str) -> None:
    known = {"client_id": "c", "username": None, "listener": 0, **facts}
    assert owner_text(key_of(ClientInfo(**known))) == words


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "::"])
def test_a_connection_counts_for_its_address_before_connect_and_behind_it(host: str) -> None:
    words = "address ::/64" if host == "::1" else "address 127.0.0.1"  # which an IPv4 client of "::" is, too
    with served(listeners=[Settings(host=host, port=0, allow_anonymous=True)]) as there:
        port = there.listener.addresses[-1].port

        def counted(table: Table) -> list[tuple[str, int]]:
            rows = there.ask(lambda: there.engine.owners_top(table, 9))
            return [(owner_text(key), has) for key, has in rows]

        with socket.create_connection(("::1" if host == "::1" else "127.0.0.1", port)) as client:
            wait_until(lambda: counted(Table.OPENING) == [(words, 1)])
            client.sendall(encode(Connect("c")))
            assert client.recv(4) == encode(ConnAck())
            assert counted(Table.OPENING) == []
            assert counted(Table.CONNECTIONS) == [(words, 1)]
        wait_until(lambda: counted(Table.CONNECTIONS) == [])


def test_an_address_that_opens_connections_and_is_silent_leaves_some_to_others() -> None:
    limits = EngineLimits(share_percent=75, connections_max=40)
    with served(engine=limits) as there, ExitStack() as down:
        silent = [down.enter_context(socket.create_connection(("127.0.0.1", there.port))) for _ in range(35)]
        wait_until(lambda: there.stats.closed()["limit"] == 5)
        assert sum(bool(select.select([it], [], [], 0)[0]) for it in silent) == 5
        assert there.stats.gauges()["connections"] == 30


def test_the_configuration_says_what_a_user_and_an_address_may_have() -> None:
    user_text = "[quota.user]\nsessions_max = 5\n"
    quota = parse(
        f"[quota]\nshare_percent = 60\n{user_text}[quota.address]\nretained_max_bytes = '1 MiB'"
    ).quota
    user, address = owner_max(quota)
    assert quota.share_percent == 60
    assert {table: most for table, most in zip(Table, user, strict=True) if most} == {Table.SESSIONS: 5}
    assert [most for most in address if most] == [address[Table.RETAINED_BYTES]] == [1 << 20]


# ---- sessions and connections ----


@pytest.mark.parametrize("version", [Version.V311, V5])
def test_the_newest_session_of_a_user_over_its_share_is_refused_and_no_other_ends(version: Version) -> None:
    sent = ReasonCode.SERVER_UNAVAILABLE if version is Version.V311 else QUOTA
    with bench_of(sessions_max=100) as bench:
        plc = bench.client("plc-1", username="plc", clean_start=False)
        plc.subscribe("work", qos=1)
        plc.drop()
        bench.client("sender").send(Publish("work", b"acknowledged", 1, packet_id=1))
        codes = [code_of(bench, "mallory", f"m{n}") for n in range(74)]
        assert set(codes) == {ReasonCode.SUCCESS}
        wire = bench.wire(version)
        options: dict[str, Any] = {"clean_start": False, "version": version, "properties": KEPT[version]}
        wire.send(Connect("one-more", username="mallory", **options))
        (answer,) = wire.received()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code is sent
        assert code_of(bench, "mallory", "m0") is ReasonCode.SUCCESS  # which it has already
        assert code_of(bench, "mallory", "passing", kept=False) is ReasonCode.SUCCESS
        assert [code_of(bench, "bob", f"b{n}") for n in range(10)] == [ReasonCode.SUCCESS] * 10
        back = bench.wire()
        back.send(Connect("plc-1", username="plc", clean_start=False))
        assert [it.payload for it in back.received() if isinstance(it, Publish)] == [b"acknowledged"]


def test_when_some_users_have_filled_the_table_another_one_has_room() -> None:
    with bench_of(sessions_max=1_000) as bench:
        for user in range(3):
            for n in range(1_000):
                if code_of(bench, f"mallory-{user}", f"m{user}-{n}").failed:
                    break
        held = bench.stats.gauges()["sessions_kept"]
        assert 980 < held < 990
        assert [code_of(bench, "bob", f"b{n}") for n in range(5)] == [ReasonCode.SUCCESS] * 5


def test_one_user_alone_has_three_quarters_of_a_table_for_its_devices() -> None:
    with bench_of(connections_max=400) as bench:
        codes = [code_of(bench, "gateway", f"d{n}", kept=False) for n in range(301)]
        assert codes.count(ReasonCode.SUCCESS) == 300
        assert code_of(bench, "gateway", "d7", kept=False) is ReasonCode.SUCCESS  # takes over its own


def test_numbers_of_the_configuration_bind_though_the_table_is_empty() -> None:
    with bench_of(**limits_of_user(Table.CONNECTIONS, 2)) as bench:
        codes = [code_of(bench, "ann", f"c{n}", V5, kept=False) for n in range(3)]
        assert codes == [ReasonCode.SUCCESS, ReasonCode.SUCCESS, QUOTA]
        assert code_of(bench, "bob", "b", kept=False) is ReasonCode.SUCCESS


def test_sessions_and_what_they_have_count_for_their_user_after_a_restart() -> None:
    limits = EngineLimits(share_percent=75, sessions_max=8)
    with Lives(authenticator=Anybody(), engine=limits) as lives:
        bench = lives.start()
        reader = bench.client("r", username="ann", clean_start=False)
        reader.subscribe("t", qos=1)
        reader.subscribe("$share/g/t", qos=1)
        reader.drop()
        for n in range(5):
            assert code_of(bench, "ann", f"c{n}") is ReasonCode.SUCCESS
        bench.client("s").send(Publish("t", b"x", 1, packet_id=1))
        tables = Table.SESSIONS, Table.SUBSCRIPTION_BYTES, Table.QUEUE_BYTES
        before = [bench.engine.owners_top(table, 9) for table in tables]
        bench = lives.restart()
        assert [bench.engine.owners_top(table, 9) for table in tables] == before
        assert code_of(bench, "ann", "c9").failed
        assert code_of(bench, "bob", "b") is ReasonCode.SUCCESS


def test_a_session_counts_for_whom_has_it_now() -> None:
    with bench_of() as bench:
        for name in ("ann", "bob"):
            client = bench.client(f"c-{name}", username=name, clean_start=False)
            client.subscribe("t/#", qos=1)
            client.drop()
        bench.client("s", username="s").send(Publish("t/1", b"x", 1, packet_id=1))
        session = bench.broker.sessions.get("c-bob")
        assert session is not None
        bench.engine.session_client(session.handle, b"uann", b"", True)
        for table in (Table.SESSIONS, Table.SUBSCRIPTION_BYTES, Table.QUEUE_BYTES):
            ((owner, has),) = bench.engine.owners_top(table, 9)
            assert owner == b"uann"
            assert has % 2 == 0
        for client_id in ("c-ann", "c-bob", "s"):
            SessionAdmin(bench.broker, bench.stats).remove(client_id)
        bench.settle()
        assert all(
            bench.engine.owners_top(table, 9) == []
            for table in (Table.SESSIONS, Table.SUBSCRIPTION_BYTES, Table.QUEUE_BYTES)
        )


# ---- subscriptions and queues ----


def test_filters_of_one_user_leave_room_for_those_of_others() -> None:
    with bench_of(filters_max_bytes=100_000) as bench:
        greedy = [bench.client(f"g{n}", username="mallory") for n in range(4)]
        codes: list[ReasonCode] = []
        for n in range(400):
            greedy[n % 4].send(Subscribe(1, (Subscription(f"greedy/{n:03}/x/y/z"),)))
            (answer,) = greedy[n % 4].received()
            assert isinstance(answer, SubAck)
            codes += answer.reason_codes
        assert not codes[0].failed
        assert codes[-1].failed
        bench.client("b", username="bob").subscribe("mine/#")
        for client in greedy:
            client.drop()
        ((owner, _),) = bench.engine.owners_top(Table.SUBSCRIPTION_BYTES, 9)
        assert owner == b"ubob"


def test_clients_that_read_nothing_leave_room_for_the_queues_of_others() -> None:
    limits = BrokerLimits(sessions=SessionLimits(queued_records_max=100_000))
    engine = EngineLimits(share_percent=75, queues_max_bytes=400_000)
    with Bench(engine=engine, limits=limits, authenticator=Anybody(), capacity_bytes=1 << 24) as bench:
        for n in range(4):
            deaf = bench.client(f"deaf{n}", username="mallory", clean_start=False)
            deaf.subscribe("noise", qos=1)
            deaf.drop()
        writer = bench.client("w", username="w")
        for _ in range(20):
            writer.send(*(Publish("noise", b"", 1, packet_id=n + 1) for n in range(1_000)))
            writer.received()
        honest = bench.client("h", username="bob", clean_start=False)
        honest.subscribe("work", qos=1)
        honest.drop()
        writer.send(*(Publish("work", b"%d" % n, 1, packet_id=1) for n in range(200)))
        rows = {row.client_id: row for row in bench.stats.clients(bench.broker.sessions)}
        assert rows["h"].queued == 200
        assert rows["h"].dropped == {}
        assert rows["deaf0"].dropped["memory"] > 0


@pytest.mark.parametrize("leaves", [False, True], ids=["first member", "first member has left"])
def test_shared_subscriptions_of_one_user_leave_room_for_the_queues_of_others(leaves: bool) -> None:
    limits = BrokerLimits(sessions=SessionLimits(queued_records_max=100_000))
    engine = EngineLimits(share_percent=75, queues_max_bytes=400_000)
    with Bench(engine=engine, limits=limits, authenticator=Anybody(), capacity_bytes=1 << 24) as bench:
        first = bench.client("first", username="bob" if leaves else "mallory", clean_start=False)
        for n in range(20):
            first.subscribe(f"$share/g{n}/noise", qos=1)
        deaf = bench.client("deaf", username="mallory", clean_start=False)
        for n in range(20):
            deaf.subscribe(f"$share/g{n}/noise", qos=1)
        if leaves:
            for n in range(20):
                first.send(Unsubscribe(1, (f"$share/g{n}/noise",)))
        first.drop()
        deaf.drop()
        writer = bench.client("w", username="w")
        for _ in range(4):
            writer.send(*(Publish("noise", b"", 1, packet_id=n + 1) for n in range(1_000)))
            writer.received()
        honest = bench.client("h", username="bob", clean_start=False)
        honest.subscribe("work", qos=1)
        honest.drop()
        writer.send(*(Publish("work", b"%d" % n, 1, packet_id=1) for n in range(200)))
        rows = {row.client_id: row for row in bench.stats.clients(bench.broker.sessions)}
        assert rows["h"].queued == 200
        assert rows["h"].dropped == {}
        assert bench.engine.owners_top(Table.QUEUE_BYTES, 1)[0][0] == b"umallory"
        SessionAdmin(bench.broker, bench.stats).remove("deaf")
        SessionAdmin(bench.broker, bench.stats).remove("first")
        bench.settle()
        assert [key for key, _ in bench.engine.owners_top(Table.QUEUE_BYTES, 9)] == [b"ubob"]


# ---- wills ----


def test_wills_of_one_user_leave_room_for_those_of_others() -> None:
    def is_let_in(user: str, client_id: str, size: int = 100) -> bool:
        wire = bench.wire(V5)
        will = Will("t", bytes(size))
        wire.send(Connect(client_id, version=V5, username=user, will=will, keep_alive_s=0))
        answer = wire.answer()
        assert isinstance(answer, ConnAck)
        if answer.reason_code.failed:
            assert "user mallory has wills of" in (answer.properties.reason_string or "")
        return not answer.reason_code.failed

    limits = BrokerLimits(wills=WillLimits(wills_max_bytes=400_000, share_percent=75))
    with Bench(engine=EngineLimits(share_percent=100), limits=limits, authenticator=Anybody()) as bench:
        assert sum(is_let_in("mallory", f"m{n}") for n in range(600)) == 300_000 // 613
        assert is_let_in("mallory", "m0", 300)  # in place of the one before, and within the share
        assert not is_let_in("mallory", "m0", 600)
        assert is_let_in("bob", "b", 900)
        assert is_let_in("mallory", "m0")  # in place of the one before
        for client in bench.broker.clients:
            bench.broker.clients.end(client.connection, will=False)
        assert not bench.broker.wills._of_owners
        assert sum(is_let_in("mallory", f"m{n}") for n in range(600)) == 300_000 // 613


# ---- retained messages and topics ----


def hoard(bench: Bench, user: str, count: int, *, size: int = 1) -> list[ReasonCode]:
    """The answers to messages that are to be retained."""
    client = bench.client5(f"hoarder-{user}", username=user)
    client.send(*(Publish(f"{user}/{n}", bytes(size), 1, retain=True, packet_id=1) for n in range(count)))
    codes = [it.reason_code for it in client.received() if isinstance(it, PubAck)]
    client.drop()
    return codes


def test_retained_messages_of_one_user_leave_room_for_those_of_others() -> None:
    with bench_of(retained_max=100) as bench:
        codes = hoard(bench, "mallory", 200)
        assert codes == [UNHEARD] * 75 + [QUOTA] * 125
        assert hoard(bench, "bob", 5) == [UNHEARD] * 5
        assert hoard(bench, "mallory", 75) == [UNHEARD] * 75  # other values of its own topics
        assert bench.engine.owners_top(Table.RETAINED, 9) == [(b"umallory", 75), (b"ubob", 5)]


def test_bytes_of_retained_messages_are_shared_likewise() -> None:
    with bench_of(retained_max_bytes=100_000) as bench:
        assert hoard(bench, "mallory", 20, size=10_000).count(QUOTA) == 20 - 7
        assert hoard(bench, "bob", 1, size=10_000) == [UNHEARD]


def test_a_retained_will_counts_for_its_user() -> None:
    with bench_of(**limits_of_user(Table.RETAINED, 2)) as bench:
        for n in range(4):
            will = Will(f"gone/{n}", b"x", retain=True)
            bench.client(f"w{n}", username="mallory", will=will).drop()
        assert bench.engine.owners_top(Table.RETAINED, 9) == [(b"umallory", 2)]
        assert bench.stats.totals()["retained_refused"] == 2


def test_what_another_user_replaces_counts_for_that_user() -> None:
    with bench_of() as bench:
        hoard(bench, "ann", 3)
        bench.client("b", username="bob").send(Publish("ann/0", b"x", retain=True))
        assert dict(bench.engine.owners_top(Table.RETAINED, 9)) == {b"uann": 2, b"ubob": 1}


def test_topics_of_one_user_are_bounded_where_the_configuration_says_so() -> None:
    with bench_of(**limits_of_user(Table.TOPICS, 3)) as bench:
        client = bench.client5("c", username="ann")
        client.send(*(Publish(f"t/{n}", b"x", 1, packet_id=n + 1) for n in range(5)))
        answers = [it.reason_code for it in client.received() if isinstance(it, PubAck)]
        assert answers == [UNHEARD] * 3 + [QUOTA] * 2
        bench.client("b", username="bob").send(Publish("t/9", b"x"))
        assert bench.engine.owners_top(Table.TOPICS, 9) == [(b"uann", 3), (b"ubob", 1)]


def test_room_that_is_promised_counts_for_its_user_too() -> None:
    """Records are shown when they are durable; the client has disconnected meanwhile."""
    engine = EngineLimits(share_percent=75, retained_max=8)
    with Bench(engine=engine, durability=Durability.DISK, authenticator=Anybody()) as bench:
        bench.partition.ring.show_durable(True)
        client = bench.client("c", username="mallory")
        client.send(*(Publish(f"t/{n}", b"x", 1, retain=True, packet_id=n + 1) for n in range(8)))
        assert bench.engine.owners_top(Table.RETAINED, 9) == [(b"umallory", 6)]
        client.drop()
        bench.partition.ring.durable(bench.partition.writer.end_position)
        bench.settle()
        assert bench.stats.gauges()["retained"] == 6
        assert bench.engine.owners_top(Table.RETAINED, 9) == [(b"umallory", 6)]


# ---- telling ----


def test_the_log_names_the_owner_and_the_setting_and_not_each_time(caplog: pytest.LogCaptureFixture) -> None:
    with bench_of(sessions_max=8) as bench, caplog.at_level(logging.WARNING):
        for n in range(30):
            code_of(bench, "mallory", f"m{n}")
        (line,) = (it.getMessage() for it in caplog.records if it.name == "edge.broker.quotas")
        assert 'owner="user mallory"' in line
        assert "limits.sessions_max" in line
        assert "table=sessions" in line
        bench.settle(11_000)
        assert "times=23" in caplog.records[-1].getMessage()


def test_the_status_names_the_owners_that_have_most() -> None:
    with bench_of(retained_max=100) as bench:
        for user, count in (("ann", 3), ("bob", 7), ("eve", 1), ("joe", 2)):
            hoard(bench, user, count)
        found = bench.broker.owners.top()["retained"]
        assert found == {"room": 100, "owners": {"user bob": 7, "user ann": 3, "user joe": 2}}


def test_a_thousand_owners_come_and_go_and_nothing_of_them_stays() -> None:
    with bench_of(connections_max=5_000) as bench:
        wires: list[Wire] = []
        for n in range(1_000):
            wire = bench.wire()
            wire.send(Connect(f"c{n}", username=f"user-{n}"))
            wires.append(wire)
        assert len(bench.engine.owners_top(Table.CONNECTIONS, 64)) == 64
        for wire in wires:
            wire.drop()
            bench.engine.forget(wire.handle)
        assert all(bench.engine.owners_top(table, 64) == [] for table in Table)
