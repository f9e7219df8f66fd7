"""A power cut during a start loses no session and no message that was saved before."""

import shutil
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from edge.mqtt import PubAck, PubComp, Publish, PubRec, PubRel, Subscribe, Subscription, Version
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.delayed_broker import listed
from tests.support.mqtt_socket import SocketClient

STREAM = """
[[stream]]
name = "plant"
topics = ["#"]
durability = "disk"
ring_bytes = "1 MiB"
"""


HELD_BROKER = "tests.support.held_log_broker"


def away(port: int) -> SocketClient:
    """The client whose session is kept."""
    return SocketClient(port, "away", Version.V311, clean_start=False)


def sender(port: int) -> SocketClient:
    """A client that keeps its session, and publishes."""
    return SocketClient(port, "sender", Version.V311, clean_start=False)


def cut_power(broker: BrimProcess) -> None:
    """Kill the broker and remove its shared memory."""
    if broker.running:
        broker.kill()
    shutil.rmtree(broker.runtime_dir)


def test_a_power_cut_before_the_first_snapshot_of_a_start_loses_no_session(tmp_path: Path) -> None:
    broker = BrimProcess(tmp_path / "run", tmp_path, STREAM, bridge=False)
    broker.start()
    with away(broker.port) as client:
        client.send(Subscribe(1, (Subscription("plant/#", 1),)))
        client.receive()
    with SocketClient(broker.port, "device") as device:
        device.send(Publish("plant/1", b"kept", qos=1, packet_id=1))
        assert isinstance(device.receive(), PubAck)
    cut_power(broker)

    start = ModuleChild("tests.support.cut_at_snapshot_broker", "run", "--config", broker.config)
    with start:
        status, _, log = start.wait()
    assert status == -signal.SIGKILL, log
    cut_power(broker)

    with broker, away(broker.port) as client:
        assert client.session_present
        message = client.receive()
        assert isinstance(message, Publish)
        assert bytes(message.payload) == b"kept"


def publish_held(broker: BrimProcess, held: Path) -> Publish:
    """Publish a QoS 2 message, and another one whose record or entry is only in memory. Returns that one."""
    message = Publish("plant/1", b"once", qos=2, packet_id=1)
    with away(broker.port) as client:
        client.send(Subscribe(1, (Subscription("plant/#", 2),)))
        client.receive()
    with sender(broker.port) as client, SocketClient(broker.port, "observer") as observer:
        observer.subscribe("plant/#")
        client.send(Publish("plant/1", b"before", qos=2, packet_id=1))
        assert isinstance(client.receive(), PubRec)
        client.send(PubRel(1))
        assert isinstance(client.receive(), PubComp)
        held.touch()
        client.send(message)
        assert observer.publish().payload == b"before"
        assert observer.publish().payload == b"once"  # so it is in the ring
    return message


def payloads_after_repetition(broker: BrimProcess, message: Publish) -> list[bytes]:
    """Payloads that the kept session gets, after the sender has repeated the message and sent another one."""
    with broker, away(broker.port) as client, sender(broker.port) as repeating:
        assert client.session_present
        assert repeating.session_present
        repeating.send(replace(message, dup=True))
        assert isinstance(repeating.receive(), PubRec)
        repeating.send(PubRel(1), Publish("plant/1", b"end", qos=2, packet_id=2))
        received = [bytes(client.publish().payload)]
        while received[-1] != b"end":
            received.append(bytes(client.publish().payload))
    return received


@pytest.mark.parametrize("logs", ["journal", "streams"])
def test_a_power_cut_during_the_start_after_a_kill_neither_doubles_nor_loses_a_message_of_qos_2(
    tmp_path: Path, logs: str
) -> None:
    held = tmp_path / "held"
    environment = {"HOLD": str(held), "HELD": logs}
    broker = BrimProcess(tmp_path / "run", tmp_path, STREAM, bridge=False, module=HELD_BROKER)
    broker.start(**environment)
    message = publish_held(broker, held)
    broker.kill()
    with ModuleChild(HELD_BROKER, "run", "--config", broker.config, environment=environment) as start:
        status, _, log = start.wait()
    assert status == -signal.SIGKILL, log
    cut_power(broker)
    held.unlink()
    assert payloads_after_repetition(broker, message) == [b"before", b"once", b"end"]


def test_a_power_cut_after_a_later_snapshot_loses_no_message_of_qos_2(tmp_path: Path) -> None:
    """A backup lets the broker write a snapshot."""
    held = tmp_path / "held"
    broker = BrimProcess(tmp_path / "run", tmp_path, STREAM, bridge=False, module=HELD_BROKER)
    broker.start(HOLD=str(held), HELD="streams")
    message = publish_held(broker, held)
    with ModuleChild("edge", "backup", tmp_path / "backup", "--config", broker.config) as backup:
        backup.wait()
    cut_power(broker)
    held.unlink()
    assert payloads_after_repetition(broker, message) == [b"before", b"once", b"end"]


UPSTREAM = """
[sessions]
durability = "disk"
[[bridge]]
name = "unreachable"
to = "mqtt://127.0.0.1:1"
[[stream]]
name = "plant"
topics = ["#"]
durability = "upstream"
ring_bytes = "1 MiB"
"""


def test_a_power_cut_after_a_snapshot_loses_no_message_of_qos_2_that_waits_for_a_sink(tmp_path: Path) -> None:
    """The sink does not have it, so the sender has no PUBREC, and repeats the message."""
    held = tmp_path / "held"
    message = Publish("plant/1", b"once", qos=2, packet_id=1)
    broker = BrimProcess(tmp_path / "run", tmp_path, UPSTREAM, bridge=False, module=HELD_BROKER)
    broker.start(HOLD=str(held), HELD="streams")
    with away(broker.port) as client:
        client.send(Subscribe(1, (Subscription("plant/#", 2),)))
        client.receive()
    with sender(broker.port) as client, SocketClient(broker.port, "observer") as observer:
        observer.subscribe("plant/#")
        held.touch()
        client.send(message)
        assert observer.publish().payload == b"once"  # so it is in the ring
    with ModuleChild("edge", "backup", tmp_path / "backup", "--config", broker.config) as backup:
        backup.wait()
    cut_power(broker)
    held.unlink()
    with broker, away(broker.port) as client, sender(broker.port) as repeating:
        repeating.send(replace(message, dup=True), Publish("plant/1", b"end", qos=1, packet_id=2))
        assert [client.publish().payload, client.publish().payload] == [b"once", b"end"]


def test_a_power_cut_loses_no_delayed_message_of_qos_2_whose_identifier_was_in_a_snapshot(
    tmp_path: Path,
) -> None:
    """The store did not take it, so the sender has no PUBREC, and repeats the message."""
    held = tmp_path / "held"
    message = Publish("$delayed/3600/plant/1", b"once", qos=2, packet_id=1)
    settings = f'[delayed]\nenabled = true\ndurability = "disk"\n{STREAM}'
    module = "tests.support.full_store_broker"
    broker = BrimProcess(tmp_path / "run", tmp_path, settings, bridge=False, module=module)
    broker.start(HOLD=str(held))
    held.touch()
    with sender(broker.port) as client:
        client.send(message)
        broker.log_until("delayed messages not stored")
        with ModuleChild("edge", "backup", tmp_path / "backup", "--config", broker.config) as backup:
            backup.wait()
    cut_power(broker)
    held.unlink()
    with broker, sender(broker.port) as repeating:
        repeating.send(replace(message, dup=True))
        assert isinstance(repeating.receive(), PubRec)
        assert [row["topic"] for row in listed(broker)] == ["plant/1"]
