"""A broker with default limits in a control group: full tables, and starts after kills, fit its memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.cli import main
from edge.local.protocol import Connection, SettingList, Settings
from edge.mqtt import Connect, Properties, PubAck, Publish, ReasonCode, Version, Will
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.memory_group import MemoryGroup, memory_group
from tests.support.mqtt_socket import RawClient, SocketClient

MIB = 1 << 20
LASTING = Properties(session_expiry_interval_s=86_400)
WINDOW = 500
BROKER = "tests.support.grouped_broker"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryGroup]:
    """Of the brokers and commands of a test."""
    with memory_group(128 * MIB) as made:
        monkeypatch.setenv("CONTROL_GROUP", str(made.directory))
        yield made


def fill_queues(port: int) -> None:
    """1,200,000 positions for sessions that are away: 18 MiB, and six times that with their snapshots."""
    for number in range(60):
        with SocketClient(port, f"away-{number}", clean_start=False, properties=LASTING) as client:
            client.subscribe("queued", qos=1)
    with SocketClient(port, "publisher") as client:
        for _ in range(20_000 // WINDOW):
            client.send(*(Publish("queued", b"x", qos=1, packet_id=1 + number) for number in range(WINDOW)))
            assert all(isinstance(client.packet(), PubAck) for _ in range(WINDOW))


def fill_retained(port: int) -> None:
    """100 MiB of retained messages; MQTT 3.1.1 gets no refusal."""
    with SocketClient(port, "sensor", Version.V311) as client:
        for number in range(50_000):
            client.send(Publish(f"retained/{number}", bytes(2_000), retain=True))
        client.ping()


def fill_wills(port: int) -> list[RawClient]:
    """Up to 12 MiB of wills, until the broker refuses a client."""
    clients = []
    for number in range(200):
        client = RawClient(port, Version.V5)
        clients.append(client)
        will = Will(f"will/{number}", bytes(60_000))
        client.send(Connect(f"will-{number}", version=Version.V5, will=will))
        answer = client.packet()
        if getattr(answer, "reason_code", None) is not ReasonCode.SUCCESS:
            break
    return clients


def test_full_tables_and_starts_after_kills_fit_the_memory(
    group: MemoryGroup, runtime_directory: Path, tmp_path: Path
) -> None:
    with BrimProcess(runtime_directory / "brim", tmp_path, bridge=False, module=BROKER) as brim:
        fill_queues(brim.port)
        fill_retained(brim.port)
        clients = fill_wills(brim.port)
        for _ in range(2):
            brim.kill()
            brim.start()
        for client in clients:
            client.close()
        with SocketClient(brim.port, "away-1", clean_start=False, properties=LASTING) as client:
            assert client.session_present
            assert isinstance(client.packet(), Publish)
        brim.stop()
    assert group.kills() == 0


def test_lowered_limits_are_no_changes_of_the_configuration(
    group: MemoryGroup, runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = runtime_directory / "brim"
    with BrimProcess(place, tmp_path, bridge=False, module=BROKER) as brim:
        with Connection(place) as connection:
            before = connection.request(Settings(), SettingList)
        assert {"limits.queues_max_bytes", "stream.default.ring_bytes"} <= set(before.lowered)
        assert main(["config", "diff", str(brim.config), "--runtime-dir", str(place)]) == 0
        brim.config.write_text(brim.config.read_text() + "\n[limits]\nqueued_records_max = 500\n")
        assert main(["reload", "--json", "--config", str(brim.config), "--runtime-dir", str(place)]) == 0
        result = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert result == {"applied": ["limits.queued_records_max"], "failed": [], "needs_restart": []}
        with Connection(place) as connection:
            after = connection.request(Settings(), SettingList)
        assert after.lowered == before.lowered
        assert after.settings["limits"] == before.settings["limits"] | {"queued_records_max": 500}
    assert group.kills() == 0


@pytest.mark.usefixtures("group")
def test_a_configured_limit_stays_and_is_reported(runtime_directory: Path, tmp_path: Path) -> None:
    settings = '[limits]\nqueues_max_bytes = "256 MiB"\n'
    with BrimProcess(runtime_directory / "brim", tmp_path, settings, bridge=False, module=BROKER) as brim:
        log = brim.log_until("memory too small")
    assert "limits.queues_max_bytes 1664 MiB" in log
    assert "limits lowered to fit the memory memory_bytes=134217728" in log
    with ModuleChild(BROKER, "check", brim.config, "--json") as child:
        status, out, _ = child.wait()
    verdict = json.loads(out)
    assert status == 0
    assert verdict["warnings"][0].startswith("rings and full tables need ")
    assert any(line.startswith("limits    lowered to fit the memory") for line in verdict["effect"])
