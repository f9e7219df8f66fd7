"""Delayed messages of tenants: their numbers are exact over cancels, deliveries, damage and kill -9."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge.delayed import delivery
from edge.delayed.ring import RING
from edge.delayed.store import DelayedStore
from edge.mqtt import PubAck, Publish, ReasonCode, Version
from ringbuf import Ring
from tests.edge.delayed.test_messages import started
from tests.support.brim_process import BrimProcess
from tests.support.delayed_broker import brim, listed
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_socket import SocketClient
from tests.support.tenant_bench import bench_of, row_of
from tests.support.tenant_settings import two_tenants
from tests.support.waiting import PATIENCE_S, wait_until

# ---- without sockets: the ring has records from before the start ----


@pytest.fixture
def ring(runtime_directory: Path) -> Iterator[Ring]:
    """A ring with 40 records of the tenants a and b, and 20 without a tenant."""
    with Ring.create(runtime_directory / RING, capacity_bytes=1 << 16, epoch=1) as ring:
        writer = ring.writer(when_full="block", blocking_readers="admitted")
        for number in range(60):
            prefix = ("$tenant/a/", "$tenant/b/", "")[number % 3]
            writer.publish(b"%d" % number, key=f"$delayed/3600/{prefix}t")
        yield ring


def numbers(bench: Bench) -> list[int]:
    return [row_of(bench, name)["delayed"] for name in "ab"]


def test_records_of_the_ring_count_at_the_start_and_only_once(ring: Ring, tmp_path: Path) -> None:
    with bench_of() as bench, started(ring, tmp_path, bench) as messages:
        assert numbers(bench) == [20, 20]
        wait_until(lambda: messages.status()["pending"] == 60)
        messages.stop()
        assert numbers(bench) == [20, 20]
    with bench_of() as bench, started(ring, tmp_path, bench):  # the store has all of them now
        assert numbers(bench) == [20, 20]


def test_a_cancelled_message_counts_no_longer(ring: Ring, tmp_path: Path) -> None:
    with bench_of() as bench, started(ring, tmp_path, bench) as messages:
        wait_until(lambda: messages.status()["pending"] == 60)
        before = row_of(bench)["delayed_bytes"]
        assert messages.cancel(1).result(PATIENCE_S)
        assert not messages.cancel(1).result(PATIENCE_S)
        assert numbers(bench) == [19, 20]
        assert before - row_of(bench)["delayed_bytes"] == len("$tenant/a/t0") + 64
    with bench_of() as bench, started(ring, tmp_path, bench):
        assert numbers(bench) == [19, 20]


def test_messages_of_a_damaged_file_count_no_longer(
    ring: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_S", 0.01)
    with bench_of() as bench, started(ring, tmp_path, bench) as messages:
        wait_until(lambda: messages.status()["pending"] == 60)

        def damaged(*_: object) -> None:
            monkeypatch.undo()
            raise sqlite3.DatabaseError("damaged")

        monkeypatch.setattr(DelayedStore, "find", damaged)
        assert not messages.cancel(1).result(PATIENCE_S)
        assert messages.status()["damaged"] == 60
        assert numbers(bench) == [0, 0]


# ---- a broker ----


def broker_of(runtime: Path, directory: Path, **quota: Any) -> tuple[BrimProcess, int, int]:
    """A broker whose tenant a has a quota, and the ports of the tenants a and b."""
    limits = "\n".join(f"{name} = {value}" for name, value in quota.items())
    settings, a, b = two_tenants(limits)
    return BrimProcess(runtime, directory, settings, bridge=False), a, b


def tenant_rows(broker: BrimProcess) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in json.loads(brim(broker, "status", "--json").stdout)["tenants"]}


def answers(client: SocketClient, *publishes: Publish) -> list[int]:
    """Reason codes of the acknowledgements."""
    client.send(*publishes)
    packets = [client.packet() for _ in publishes]
    return [packet.reason_code for packet in packets if isinstance(packet, PubAck)]


def delayed(count: int, seconds: int = 3_600) -> list[Publish]:
    return [Publish(f"$delayed/{seconds}/t", b"%d" % n, 1, packet_id=n) for n in range(1, count + 1)]


def test_a_quota_holds_over_kill_9_and_its_room_comes_back(runtime_directory: Path, tmp_path: Path) -> None:
    unheard, refused = ReasonCode.NO_MATCHING_SUBSCRIBERS, ReasonCode.QUOTA_EXCEEDED
    broker, a, b = broker_of(runtime_directory, tmp_path, delayed_max=50)
    with broker:
        with SocketClient(a, "p", version=Version.V5) as one, SocketClient(b, "p", version=Version.V5) as two:
            assert answers(one, *delayed(51)) == [unheard] * 50 + [refused]
            assert answers(two, *delayed(60)) == [unheard] * 60
        broker.kill()
        broker.start()
        with SocketClient(a, "p", version=Version.V5) as one:
            assert answers(one, *delayed(1)) == [refused]
            rows = tenant_rows(broker)
            assert (rows["a"]["delayed"], rows["b"]["delayed"]) == (50, 60)
            assert "50 delayed" in brim(broker, "status").stdout
            with closing(sqlite3.connect(tmp_path / "state" / "delayed.sqlite")) as db:
                found = db.execute("SELECT name, messages, bytes FROM tenant ORDER BY name").fetchall()
            assert found == [(name, row["delayed"], row["delayed_bytes"]) for name, row in rows.items()]
            ids = [str(row["id"]) for row in listed(broker) if row["topic"] == "$tenant/a/t"]
            assert brim(broker, "delayed", "cancel", *ids[:20]).returncode == 0
            assert answers(one, *delayed(21)) == [unheard] * 20 + [refused]
            assert brim(broker, "delayed", "cancel", *ids[20:30]).returncode == 0
            assert answers(one, *delayed(11, seconds=0))[:10] == [unheard] * 10
            wait_until(lambda: tenant_rows(broker)["a"]["delayed"] == 40)
