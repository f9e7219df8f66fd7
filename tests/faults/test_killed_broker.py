"""Real brokers, killed with -9 under load: by an outside ledger nothing is lost, and QoS 2 comes once."""

from collections import Counter
from pathlib import Path

import pytest

from edge.mqtt import Version
from ringbuf import Ring
from tests.support.brim_process import BrimProcess
from tests.support.paho_client import Paho
from tests.support.waiting import wait_until

INTERVAL = """
[[stream]]
name = "safe"
topics = ["t", "t/#"]
durability = "interval"
sync_interval_ms = 100
"""
MESSAGES = 600
KILLS = 2


def is_synced(runtime_directory: Path) -> bool:
    """True if the log has all records."""
    for name in ("safe-0", "sessions"):
        with Ring.attach(runtime_directory / name) as ring:
            extremes = ring.extremes()
            if extremes.durable_position < extremes.end_position:
                return False
    return True


def persistent(broker: BrimProcess, client_id: str, topic: str = "") -> Paho:
    """A client that keeps its side of its session, and comes back by itself."""
    client = Paho(broker.port, client_id, clean=False, qos=2, topic=topic)
    client.client.reconnect_delay_set(1, 1)
    return client


@pytest.mark.parametrize(("qos", "settings"), [(1, INTERVAL), (2, "")], ids=["interval", "process"])
def test_nothing_is_lost_and_qos_2_comes_once(
    qos: int, settings: str, runtime_directory: Path, tmp_path: Path
) -> None:
    with BrimProcess(runtime_directory, tmp_path, settings) as broker:
        subscriber = persistent(broker, "reader", topic="t/#")
        publisher = persistent(broker, "writer")
        received: Counter[bytes] = Counter()
        for number in range(MESSAGES):
            publisher.client.publish(
                f"t/{number % 7}", b"%d" % number, qos
            )  # again, until it is acknowledged
            if number % (MESSAGES // KILLS) == MESSAGES // KILLS // 2:
                received[subscriber.next()[1]] += 1  # deliveries are under way
                broker.kill()
                broker.start()
        while len(received) < MESSAGES:
            received[subscriber.next()[1]] += 1
        publisher.stop()
        subscriber.stop()
        while not subscriber.inbox.empty():
            received[subscriber.next()[1]] += 1
        assert set(received) == {b"%d" % number for number in range(MESSAGES)}
        if qos == 2:
            assert set(received.values()) == {1}


def test_a_client_of_mqtt_5_finds_its_session(runtime_directory: Path, tmp_path: Path) -> None:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 600
    with BrimProcess(runtime_directory, tmp_path) as broker:
        Paho(broker.port, "c", topic="a", version=Version.V5, clean=False, properties=properties).stop()
        publisher = Paho(broker.port, "p")
        publisher.publish("a", b"1")
        publisher.stop()
        broker.kill()
        broker.start()
        client = Paho(broker.port, "c", version=Version.V5, clean=False, properties=properties)
        assert client.session_present
        assert client.next() == ("a", b"1", 1, False)
        client.stop()


def test_at_interval_sessions_outlive_the_memory_of_the_machine(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """A power cut leaves only the state directory; here the runtime directory is removed after a kill."""
    with BrimProcess(runtime_directory, tmp_path, INTERVAL) as broker:
        reader = persistent(broker, "reader", topic="t/#")
        publisher = Paho(broker.port, "p")
        publisher.publish("t", b"1", 2)
        assert reader.next()[1] == b"1"
        reader.stop()
        for number in range(2, 200):
            publisher.publish("t", b"%d" % number, 2)
        publisher.stop()
        wait_until(lambda: is_synced(runtime_directory))
        broker.kill()
        for file in runtime_directory.iterdir():
            file.unlink()
        broker.start()
        reader = persistent(broker, "reader")
        assert reader.session_present
        assert [reader.next()[1] for _ in range(198)] == [b"%d" % number for number in range(2, 200)]
        reader.stop()
