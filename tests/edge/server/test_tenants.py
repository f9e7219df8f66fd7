"""Tenants of a broker process: ports, delayed messages, kills, reloads, local readers, commands, metrics."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import brim as brim_api
from edge.mqtt import (
    ConnAck,
    Connect,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    Subscribe,
    Subscription,
    Version,
)
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_socket import RawClient, SocketClient
from tests.support.ports import free_port
from tests.support.tenant_settings import two_tenants
from tests.support.waiting import wait_until

KEPT = Properties(session_expiry_interval_s=600)


def broker_of(runtime: Path, directory: Path) -> tuple[BrimProcess, int, int, int]:
    """A broker with the tenants a and b, and the ports of a, b and the metrics."""
    metrics = free_port()
    settings, a, b = two_tenants("connections_max = 2")
    settings += f'[metrics]\nlisten = "127.0.0.1:{metrics}"\n'
    return BrimProcess(runtime, directory, settings, bridge=False), a, b, metrics


def brim(broker: BrimProcess, *words: str) -> str:
    command = [sys.executable, "-m", "edge", *words, "--runtime-dir", str(broker.runtime_dir)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def rows(broker: BrimProcess, *words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in brim(broker, *words, "--json").splitlines()]


def test_delayed_messages_and_sessions_of_tenants_survive_a_kill(
    runtime_directory: Path, tmp_path: Path
) -> None:
    broker, a, b, _ = broker_of(runtime_directory, tmp_path)
    with broker:
        for port in (a, b, broker.port):
            with SocketClient(port, "dev", properties=KEPT) as client:
                client.send(Subscribe(1, (Subscription("#", 1),)))
                client.packet()
        with SocketClient(a, "p") as client:
            client.send(
                Publish("$delayed/1/x", b"late", 1, packet_id=1), Publish("x", b"now", 1, packet_id=2)
            )
            assert {type(client.packet()), type(client.packet())} == {PubAck}
        broker.kill()
    with broker:
        with SocketClient(a, "dev", properties=KEPT, clean_start=False) as client:
            assert client.session_present
            found = [client.publish() for _ in range(2)]
            assert [(it.topic, bytes(it.payload)) for it in found] == [("x", b"now"), ("x", b"late")]
        for port in (b, broker.port):
            with SocketClient(port, "dev", properties=KEPT, clean_start=False) as client:
                assert client.session_present
                client.send(Publish("end", b"", 1, packet_id=1))
                assert {type(packet) for packet in (client.packet(), client.packet())} == {Publish, PubAck}


def test_operators_and_local_programs_see_tenants(runtime_directory: Path, tmp_path: Path) -> None:
    broker, a, b, metrics = broker_of(runtime_directory, tmp_path)
    with broker, SocketClient(a, "one") as one, SocketClient(a, "two") as two, SocketClient(b, "one"):
        with brim_api.subscribe("$tenant/a/#", runtime_dir=broker.runtime_dir) as local:
            one.send(Publish("pump/1", b"on", 1, retain=True, packet_id=1))
            one.packet()
            found = [(bytes(record.key), record.bytes()) for record in next(iter(local))]
            assert found == [(b"$tenant/a/pump/1", b"on")]
        refused = RawClient(a, Version.V5)
        refused.send(Connect("three", version=Version.V5))
        answer = refused.packet()
        assert isinstance(answer, ConnAck)
        assert answer.reason_code == ReasonCode.QUOTA_EXCEEDED
        refused.close()
        listed = rows(broker, "clients", "ls", "--tenant", "a")
        assert sorted(row["client_id"] for row in listed) == ["$tenant/a/one", "$tenant/a/two"]
        with pytest.raises(subprocess.CalledProcessError) as failed:
            brim(broker, "clients", "ls", "--tenant", "c")
        assert "there is no tenant 'c'\n  choose one of: a, b" in failed.value.stderr
        assert brim(broker, "retained", "ls", "$tenant/a/#").count("pump/1") == 1
        status = brim(broker, "status")
        assert "tenant   a: 2 connected" in status
        assert "refused: 1 connections" in status
        page = urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics").read().decode()
        assert 'brim_tenant_connections{tenant="a"} 2' in page
        assert 'brim_tenant_refused_total{tenant="a",cause="connections"} 1' in page
        assert 'brim_tenant_connections{tenant="b"} 1' in page
        brim(broker, "clients", "kick", "$tenant/a/two")
        two.packet()
        wait_until(lambda: "tenant   a: 1 connected" in brim(broker, "status"))


def test_a_reload_applies_tenants_and_names_those_that_listeners_keep(
    runtime_directory: Path, tmp_path: Path
) -> None:
    broker, a, b, _ = broker_of(runtime_directory, tmp_path)
    config = tmp_path / "brim.toml"

    def reload(text: str) -> dict[str, Any]:
        config.write_text(text)
        (result,) = rows(broker, "reload")
        return result

    def connects(client_id: str) -> bool:
        client = RawClient(a, Version.V5)
        client.send(Connect(client_id, version=Version.V5))
        answer = client.packet()
        client.close()
        assert isinstance(answer, ConnAck)
        return answer.reason_code == ReasonCode.SUCCESS

    with broker, SocketClient(a, "one"), SocketClient(a, "two"), SocketClient(b, "one"):
        given = config.read_text()
        assert not connects("three")
        more = given.replace("connections_max = 2", "connections_max = 3")
        result = reload(more.replace('name = "b"', 'name = "b"\npublish_rate_max = 7'))
        assert result == {
            "applied": ["tenant.a.quota.connections_max", "tenant.b.publish_rate_max"],
            "failed": [],
            "needs_restart": [],
        }
        assert connects("three")
        added = more + '[[tenant]]\nname = "c"\nusers = ["x-*"]\n'
        result = reload(added)
        assert "tenant.c" in result["applied"]
        assert result["needs_restart"] == []
        assert "tenant   c: 0 connected" in brim(broker, "status")
        moved = added.replace('tenant = "b"', 'tenant = "c"').replace('name = "b"', 'name = "d"')
        result = reload(moved + "[limits]\nwill_max_bytes = 4096\n")
        assert result["applied"] == ["limits.will_max_bytes"]
        assert {"listener.2.tenant", "tenant.b", "tenant.d"} <= set(result["needs_restart"])
        assert "tenant   b: 1 connected" in brim(broker, "status")
        broker.kill()
        config.write_text(more)
    with broker:
        assert "tenant   a: 0 connected" in brim(broker, "status")


def test_a_record_that_dies_in_a_group_reaches_clients_of_its_tenant_and_no_others(
    runtime_directory: Path, tmp_path: Path
) -> None:
    broker, a, b, _ = broker_of(runtime_directory, tmp_path)
    with broker, SocketClient(a, "r") as reader, SocketClient(b, "r") as other:
        outside = SocketClient(broker.port, "r")
        for client in (reader, other, outside):
            client.send(Subscribe(1, (Subscription("dead/#", 1),)))
            client.packet()
        how: dict[str, Any] = {"mode": "queue", "tries_max": 1, "runtime_dir": runtime_directory}
        with (
            SocketClient(a, "p") as publisher,
            brim_api.consumer("work", "$tenant/a/pump/#", start="oldest", **how) as records,
        ):
            publisher.send(Publish("pump/1", b"bad", 1, packet_id=1))
            assert isinstance(publisher.packet(), PubAck)
            batch = records.read(20.0)
            assert batch is not None
            records.nack(batch, cause="no pump")
            found = reader.publish()
            cause = dict(found.properties.user)["brim-cause"]
            assert (found.topic, found.payload, cause) == ("dead/work/pump/1", b"bad", "no pump")
        for client in (other, outside):
            client.send(Publish("dead/end", b"", 1, packet_id=1))
            packets = client.packet(), client.packet()
            assert [packet.topic for packet in packets if isinstance(packet, Publish)] == ["dead/end"]
        outside.close()


def test_stored_bytes_of_a_tenant_with_a_log_of_its_own_are_shown(
    runtime_directory: Path, tmp_path: Path
) -> None:
    broker, a, _, metrics = broker_of(runtime_directory, tmp_path)
    config = tmp_path / "brim.toml"
    config.write_text(
        config.read_text()
        + """
[[stream]]
name = "of-a"
topics = ["$tenant/a/#"]
durability = "interval"
isolated = true
"""
    )
    with broker:
        with SocketClient(a, "p") as client:
            client.send(Publish("x", bytes(10_000), 1, packet_id=1))
            assert isinstance(client.packet(), PubAck)

        def stored() -> dict[str, int]:
            status = json.loads(brim(broker, "status", "--json"))
            return {row["name"]: row["stored_bytes"] for row in status["tenants"] if "stored_bytes" in row}

        wait_until(lambda: stored().get("a", 0) > 10_000)
        assert stored().keys() == {"a"}, "b has no log"
        page = urllib.request.urlopen(f"http://127.0.0.1:{metrics}/metrics").read().decode()
        assert f'brim_tenant_stored_bytes{{tenant="a"}} {stored()["a"]}' in page
        assert 'brim_tenant_stored_bytes{tenant="b"}' not in page
        assert " in the log, 1 published" in brim(broker, "status")
