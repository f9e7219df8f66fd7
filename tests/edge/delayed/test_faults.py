"""Delayed messages with a full disk, a restored backup, a stream that syncs, and other clients' sessions."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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
    Will,
)
from tests.support.brim_process import BrimProcess
from tests.support.delayed_broker import SETTINGS, brim, broker_of, listed, reason_of
from tests.support.mqtt_socket import RawClient, SocketClient
from tests.support.outside_client import pump
from tests.support.outside_publisher import OutsidePublisher
from tests.support.paho_client import Paho
from tests.support.small_disk import fill, small_disk
from tests.support.waiting import PATIENCE_S, wait_until

MIB = 1 << 20


def test_a_full_disk_refuses_and_nothing_stored_is_lost(runtime_directory: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 32 * MIB) as disk:
        broker = broker_of(runtime_directory, disk, "disk")
        with broker:
            client = Paho(broker.port, "c", version=Version.V5, topic="t/#")
            for number in range(20):
                client.publish(f"$delayed/20/t/{number}", b"before")
            filler = fill(disk)
            waits = Paho(broker.port, "w")  # its acknowledgement waits until the message is stored
            message = waits.client.publish("$delayed/5/t/waits", bytes(200_000), 1)
            broker.log_until("delayed messages refused")
            probes: list[SocketClient] = []

            def is_refused() -> bool:  # what comes before the refusal waits, and all behind it
                probes.append(SocketClient(broker.port, f"p{len(probes)}"))
                probes[-1].send(Publish("$delayed/3600/t/late", qos=1, packet_id=1))
                return any(not probe.is_silent() for probe in probes)

            wait_until(is_refused)
            answers = [probe.packet() for probe in probes if not probe.is_silent()]
            assert {answer.reason_code for answer in answers if isinstance(answer, PubAck)} == {0x97}
            assert not message.is_published()
            client.publish("t/now", b"served")
            assert client.next()[0] == "t/now"
            filler.unlink()
            message.wait_for_publish(PATIENCE_S)
            wait_until(lambda: reason_of(client, "$delayed/3600/t/after") in (0, 0x10))
            came = {client.next()[0] for _ in range(21)}
            assert came == {f"t/{number}" for number in range(20)} | {"t/waits"}
            for probe in probes:
                probe.close()
            waits.stop()
            client.stop()


LOGGED = """
[[stream]]
name = "t"
topics = ["t/#"]
durability = "interval"
ring_bytes = 4194304
"""


def test_delayed_messages_leave_the_log_the_room_that_it_needs_to_take_them(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        broker = broker_of(runtime_directory, disk, "disk", LOGGED)
        with broker:
            client = Paho(broker.port, "c", version=Version.V5, topic="t/#")
            free = os.statvfs(disk)
            (disk / "others").write_bytes(bytes(free.f_bavail * free.f_frsize - 26 * MIB))
            assert not reason_of(client, "$delayed/3/t/due") & 0x80
            flood, count = SocketClient(broker.port, "flood"), 0
            while count < 150:
                flood.send(Publish("$delayed/3600/t/late", bytes(200_000), 1, packet_id=1))
                if flood.next(1.0) is None:  # it waits for room
                    break
                count += 1
            assert 10 < count < 100
            flood.close()
            assert reason_of(client, "$delayed/3600/t/later") == ReasonCode.QUOTA_EXCEEDED
            assert reason_of(client, "t/now") == 0
            assert {client.next()[0], client.next()[0]} == {"t/now", "t/due"}
            status = json.loads(brim(broker, "status", "--json").stdout)
            assert "kept for the log" in status["delayed"]["failure"]
            (disk / "others").unlink()
            wait_until(lambda: reason_of(client, "$delayed/3600/t/later") in (0, 0x10))
            client.stop()


def test_a_start_on_a_full_disk_serves_all_others_and_goes_on_by_itself(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "state", 32 * MIB) as disk:
        broker = broker_of(runtime_directory, tmp_path)
        with broker:  # a session waits for a record: the ring outlives the broker, and needs no new epoch
            kept = Properties(session_expiry_interval_s=3600)
            with SocketClient(broker.port, "kept", clean_start=False, properties=kept) as client:
                client.send(Subscribe(1, (Subscription("kept", 1),)))
                client.receive()
            with SocketClient(broker.port, "p") as client:
                client.send(Publish("kept", qos=1, packet_id=1))
                client.receive()
        (tmp_path / "state" / "reserve").unlink()  # as after an earlier start on a full disk
        filler = fill(disk)
        with broker:
            broker.log_until("delayed messages refused")
            paho = Paho(broker.port, "c", version=Version.V5, topic="t/#")
            paho.publish("t/now", b"served")
            assert paho.next()[0] == "t/now"
            filler.unlink()
            wait_until(lambda: reason_of(paho, "$delayed/3600/t/after") in (0, 0x10))
            wait_until(lambda: [row["topic"] for row in listed(broker)] == ["t/after"])
            paho.stop()


def test_a_backup_of_a_running_broker_has_the_messages(runtime_directory: Path, tmp_path: Path) -> None:
    broker = broker_of(runtime_directory, tmp_path)
    config = ["--config", str(broker.config)]
    with broker:
        client = Paho(broker.port, "c")
        for number in range(50):
            client.publish(f"$delayed/3600/t/{number}", b"v")
        wait_until(lambda: len(listed(broker)) == 50)
        client.stop()
        command = [sys.executable, "-m", "edge", "backup", str(tmp_path / "backup"), *config]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "delayed" not in done.stdout + done.stderr, done
        ids = [row["id"] for row in listed(broker)]
        broker.kill()
        shutil.rmtree(tmp_path / "state")
        for path in runtime_directory.iterdir():
            path.unlink()
        command[3:5] = ["restore", str(tmp_path / "backup")]
        assert subprocess.run(command, capture_output=True, check=False).returncode in (0, 1)
        broker.start()
        assert [row["id"] for row in listed(broker)] == ids
        client = Paho(broker.port, "c", topic="t")
        client.publish("$delayed/0/t", b"new")
        assert client.next()[1] == b"new"
        client.stop()


def test_a_delivery_to_a_synced_stream_is_counted_after_the_sync(
    runtime_directory: Path, tmp_path: Path
) -> None:
    more = '[[stream]]\nname = "safe"\ntopics = ["safe/#"]\ndurability = "disk"'
    with broker_of(runtime_directory, tmp_path, "disk", more) as broker:
        client = Paho(broker.port, "c", topic="safe/#", qos=2)
        for number in range(200):
            client.publish("$delayed/1/safe/a", b"%d" % number, qos=2)
        assert [client.next()[1] for _ in range(200)] == [b"%d" % number for number in range(200)]
        wait_until(lambda: listed(broker) == [])
        client.stop()


def test_a_kept_session_of_delayed_names_gets_them_over_kill_9(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with broker_of(runtime_directory, tmp_path) as broker:
        Paho(broker.port, "raw", topic="$delayed/#", clean=False).stop()
        client = Paho(broker.port, "c")
        client.publish("$delayed/5/t", b"v", retain=True)
        broker.kill()
        broker.start()
        raw = Paho(broker.port, "raw", clean=False)
        assert raw.next() == ("$delayed/5/t", b"v", 1, False)
        reader = Paho(broker.port, "r", topic="t")
        assert reader.next()[:2] == ("t", b"v")
        for one in (raw, reader, client):
            one.stop()


def test_a_shared_subscription_gets_each_delayed_message_once(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with broker_of(runtime_directory, tmp_path) as broker:
        members = [Paho(broker.port, f"m{n}", topic="$share/g/t", version=Version.V5) for n in range(2)]
        client = Paho(broker.port, "c")
        sent = [b"%d" % number for number in range(20)]
        for payload in sent:
            client.publish("$delayed/1/t", payload)
        wait_until(lambda: sum(member.inbox.qsize() for member in members) >= len(sent))
        wait_until(lambda: listed(broker) == [])
        received = [member.next()[1] for member in members for _ in range(member.inbox.qsize())]
        assert sorted(received) == sorted(sent)
        for one in (*members, client):
            one.stop()


def test_a_reload_that_adds_a_stream_leaves_delayed_messages_in_their_ring(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with broker_of(runtime_directory, tmp_path) as broker:
        client, reader = Paho(broker.port, "c"), Paho(broker.port, "r", topic="plant/#")
        client.publish("$delayed/2/plant/a", b"before")
        client.publish("plant/a", b"known topic, which moves")
        assert reader.next()[1] == b"known topic, which moves"
        text = broker.config.read_text()
        broker.config.write_text(f'{text}\n[[stream]]\nname = "plant"\ntopics = ["plant/#", "$delayed/#"]\n')
        done = brim(broker, "reload", "--json")
        assert json.loads(done.stdout)["failed"] == [], done.stdout
        client.publish("$delayed/2/plant/a", b"after")
        client.publish("$delayed/1/plant/b", b"new name")
        assert sorted(reader.next()[1] for _ in range(3)) == [b"after", b"before", b"new name"]
        for one in (reader, client):
            one.stop()


def test_messages_with_delays_turned_off_wait_until_they_are_turned_on(
    runtime_directory: Path, tmp_path: Path
) -> None:
    broker = broker_of(runtime_directory, tmp_path)
    with broker:
        client = Paho(broker.port, "c")
        client.publish("$delayed/3600/t", b"v")
        wait_until(lambda: len(listed(broker)) == 1)
        client.stop()
    settings = broker.config.read_text()
    broker.config.write_text(settings.replace("enabled = true", "enabled = false"))
    with broker:
        assert brim(broker, "delayed").returncode == 4
    broker.config.write_text(settings)
    with broker:
        assert len(listed(broker)) == 1


def test_a_client_with_a_delayed_will_is_refused(runtime_directory: Path, tmp_path: Path) -> None:
    with broker_of(runtime_directory, tmp_path) as broker:
        with RawClient(broker.port) as client:
            client.send(Connect("w", will=Will("$delayed/1/t", b"will")))
            answer = client.packet()
            assert isinstance(answer, ConnAck)
            assert answer.reason_code == ReasonCode.NOT_AUTHORIZED
        assert listed(broker) == []


def test_a_payload_as_large_as_a_packet_may_be_is_delayed(runtime_directory: Path, tmp_path: Path) -> None:
    with BrimProcess(runtime_directory, tmp_path, "[delayed]\nenabled = true", bridge=False) as broker:
        client = Paho(broker.port, "c", topic="t")
        body = bytes(15 * MIB)
        for _ in range(3):
            client.publish("$delayed/1/t", body)
        assert [client.next()[1] == body for _ in range(3)] == [True] * 3
        client.stop()


SMALL_RING = '[[stream]]\nname = "small"\ntopics = ["small/#"]\nring_bytes = "64 KiB"\n'


@pytest.mark.parametrize("stored", [0, 1, 40, 65, 700])
def test_a_full_ring_keeps_its_messages_over_kill_9(
    stored: int, runtime_directory: Path, tmp_path: Path
) -> None:
    """The disk of the store stalls in the middle of a chunk of the ring, which fills then."""
    broker = BrimProcess(
        runtime_directory,
        tmp_path,
        f"{SMALL_RING}{SETTINGS.format('interval', '')}",
        bridge=False,
        module="tests.support.full_store_broker",
    )
    stall = tmp_path / "stall"
    publisher = OutsidePublisher("$delayed/600/t", window=16)
    try:
        broker.start(STALL=str(stall))
        publisher.connect(broker.port)
        pump([publisher], lambda: len(publisher.acked) >= stored)
        wait_until(lambda: report_of(broker)["pending"] >= len(publisher.acked))
        stall.touch()
        pump([publisher], lambda: False)  # until the broker ends the connection: the ring is full
        acknowledged = len(publisher.acked)
        assert report_of(broker)["pending"] < acknowledged - 150
        broker.kill()
        stall.unlink()
        broker.start()
        wait_until(lambda: report_of(broker)["pending"] >= acknowledged)
        assert report_of(broker)["lost"] == 0
    finally:
        publisher.close()
        broker.kill()


@pytest.mark.parametrize("small", [0, 9, 12, 1_800])
def test_a_ring_whose_messages_are_stored_has_room_for_more_before_and_after_a_start(
    small: int, runtime_directory: Path, tmp_path: Path
) -> None:
    """The largest messages that the ring takes, with small ones between them."""
    settings = f"{SMALL_RING}{SETTINGS.format('interval', '')}"
    with BrimProcess(runtime_directory, tmp_path, settings, bridge=False) as broker:
        for _ in range(2):
            client = Paho(broker.port, "c", version=Version.V5)
            payloads = ([bytes(7_800)] * 6 + [b"small"] * small) * (1 if small > 100 else 8)
            assert all(reason_of(client, "$delayed/600/t", payload) in (0, 0x10) for payload in payloads)
            client.stop()
            broker.kill()
            broker.start()
        assert report_of(broker)["lost"] == 0


def report_of(broker: BrimProcess) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(brim(broker, "status", "--json").stdout)["delayed"]
    return report
