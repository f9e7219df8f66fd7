"""Delayed messages of a real broker: published in time, kept over kill -9, cancelled, refused."""

import json
import sqlite3
import time
from pathlib import Path

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from brim import producer
from edge.mqtt import Version
from tests.support.brim_process import BrimProcess
from tests.support.delayed_broker import brim, broker_of, listed, reason_of
from tests.support.paho_client import Paho
from tests.support.waiting import wait_until


@pytest.mark.parametrize("durability", ["process", "interval", "disk"])
def test_messages_come_once_after_kill_9_and_none_early(
    durability: str, runtime_directory: Path, tmp_path: Path
) -> None:
    with broker_of(runtime_directory, tmp_path, durability) as broker:
        Paho(broker.port, "r", topic="t/#", qos=2, clean=False).stop()
        publisher = Paho(broker.port, "p")
        sent: dict[bytes, float] = {}
        for number in range(300):
            payload = b"%d" % number
            sent[payload] = time.monotonic() + number % 3 + 2
            publisher.publish(f"$delayed/{number % 3 + 2}/t/{number % 7}", payload, qos=number % 2 + 1)
        publisher.stop()
        broker.kill()
        broker.start()
        reader = Paho(broker.port, "r", clean=False)
        received = {}
        for _ in sent:
            message = reader.message()
            assert bytes(message.payload) not in received
            received[bytes(message.payload)] = time.monotonic()
            assert message.topic == f"t/{int(message.payload) % 7}"
            assert message.qos == int(message.payload) % 2 + 1
        assert all(received[payload] >= due for payload, due in sent.items())
        reader.stop()


def test_qos_retain_and_properties_arrive_with_the_message(runtime_directory: Path, tmp_path: Path) -> None:
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = ("unit", "mm")
    properties.MessageExpiryInterval = 100
    properties.ContentType = "text"
    with broker_of(runtime_directory, tmp_path) as broker:
        client = Paho(broker.port, "c", version=Version.V5, topic="plant/#", qos=2)
        client.publish("$delayed/1/plant/a", b"once", qos=2, retain=True, properties=properties)
        message = client.message()
        assert (message.topic, message.payload, message.qos) == ("plant/a", b"once", 2)
        assert message.properties.UserProperty == [("unit", "mm")]
        assert message.properties.ContentType == "text"
        assert 98 <= message.properties.MessageExpiryInterval <= 100
        later = Paho(broker.port, "l", version=Version.V5, topic="plant/#")
        assert later.next() == ("plant/a", b"once", 1, True)
        store = Paho(broker.port, "s", version=Version.V5, topic="$delayed/#")
        client.publish("$delayed/60/plant/b", b"next")
        assert store.next()[1] == b"next"  # the message before is not retained under its delayed name
        for one in (client, later, store):
            one.stop()


@pytest.mark.parametrize(
    "topic",
    ["$delayed/t", "$delayed/x/t", "$delayed/-1/t", "$delayed/1/", "$delayed/1/$SYS/a", "$delayed/61/t",
     "$delayed/1.5/t", "$delayed//t", "$delayed/99999999999/t", "$delayed/\u0661/t"],
)  # fmt: skip
def test_invalid_names_are_refused(topic: str, runtime_directory: Path, tmp_path: Path) -> None:
    with broker_of(runtime_directory, tmp_path, more="delay_max_s = 60") as broker:
        client = Paho(broker.port, "c", version=Version.V5)
        assert reason_of(client, topic) == 0x90
        assert reason_of(client, "$delayed/60/t") in (0, 0x10)
        assert [row["topic"] for row in listed(broker)] == ["t"]
        client.stop()
        report = json.loads(brim(broker, "status", "--json").stdout)
        assert report["mqtt"]["dropped"]["topic name"] == 1 or 1 in report["mqtt"]["dropped"].values()


def test_a_broker_without_delayed_messages_refuses_them(runtime_directory: Path, tmp_path: Path) -> None:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        client = Paho(broker.port, "c", version=Version.V5)
        assert reason_of(client, "$delayed/1/t") == 0x87
        client.stop()
        assert "enabled = true" in brim(broker, "delayed").stderr


def test_the_right_to_delay_is_the_right_to_publish(runtime_directory: Path, tmp_path: Path) -> None:
    acl = tmp_path / "acl"
    acl.write_text(
        "topic write plant/%c/#\ntopic write $delayed/#\n".replace(
            "topic write plant/%c", "pattern write plant/%c"
        )
    )
    settings = f"delay_max_s = 60\n[auth]\nacl_file = {json.dumps(str(acl))}"
    with broker_of(runtime_directory, tmp_path, more=settings) as broker:
        client, other = Paho(broker.port, "a", version=Version.V5), Paho(broker.port, "b", version=Version.V5)
        for _ in range(2):  # a new topic, and a known one
            assert reason_of(client, "$delayed/60/plant/a/t") in (0, 0x10)
            assert reason_of(other, "$delayed/60/plant/a/t") == 0x87
            assert reason_of(client, "$delayed/60/plant/b/t") == 0x87
        client.stop()
        other.stop()


def test_a_local_producer_delays_nothing_and_its_record_is_counted(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with broker_of(runtime_directory, tmp_path) as broker:
        client = Paho(broker.port, "c", version=Version.V5, topic="$delayed/#")
        client.publish("$delayed/60/t", b"by a client")
        assert client.next()[1] == b"by a client"
        with producer("camera", runtime_dir=runtime_directory) as camera:
            for key in ("$delayed/60/t", "plain"):
                camera.publish(b"by a program", key=key)
            wait_until(lambda: dropped(broker)["denied"] == 1)
        client.publish("$delayed/60/t", b"again")
        assert client.next()[1] == b"again"
        assert [row["payload"] for row in listed(broker)] == ["by a client", "again"]
        client.stop()


def dropped(broker: BrimProcess) -> dict[str, int]:
    """Messages of MQTT and of local producers that were dropped, by cause."""
    causes: dict[str, int] = json.loads(brim(broker, "status", "--json").stdout)["mqtt"]["dropped"]
    return causes


def test_an_operator_lists_and_cancels(runtime_directory: Path, tmp_path: Path) -> None:
    with broker_of(runtime_directory, tmp_path) as broker:
        client = Paho(broker.port, "c", topic="t/#")
        for number in range(300):
            client.publish(f"$delayed/{3600 + number}/t/{number}", b"v")
        wait_until(lambda: len(listed(broker)) == 300)
        rows = listed(broker)
        assert [row["topic"] for row in rows] == [f"t/{number}" for number in range(300)]
        assert 3500 < rows[0]["due_unix_ns"] / 1e9 - time.time() <= 3600.1
        done = brim(broker, "delayed", "cancel", str(rows[7]["id"]), str(rows[8]["id"]), "999999")
        assert (done.returncode, "999999" in done.stdout) == (1, True)
        assert len(listed(broker)) == 298
        assert client.inbox.empty()
        client.stop()


def test_a_full_store_refuses_until_there_is_room(runtime_directory: Path, tmp_path: Path) -> None:
    more = 'messages_max = 5\n[[stream]]\nname = "s"\ntopics = ["s/#"]\nring_bytes = 1_048_576'
    with broker_of(runtime_directory, tmp_path, more=more) as broker:
        client = Paho(broker.port, "c", version=Version.V5, topic="other")
        for _ in range(5):
            client.publish("$delayed/3600/t", b"v")
        wait_until(lambda: reason_of(client, "$delayed/3600/t") == 0x97)
        client.publish("other", b"served")
        assert client.next()[1] == b"served"
        assert len(listed(broker)) == 5

        def has_room() -> bool:  # the ring has further messages, which take the first places
            brim(broker, "delayed", "cancel", *(str(row["id"]) for row in listed(broker)))
            return reason_of(client, "$delayed/3600/t") in (0, 0x10)

        wait_until(has_room)
        client.stop()


def test_a_damaged_file_is_renamed_and_the_broker_starts(runtime_directory: Path, tmp_path: Path) -> None:
    broker = broker_of(runtime_directory, tmp_path)
    with broker:
        client = Paho(broker.port, "c")
        client.publish("$delayed/3600/t", b"v")
        wait_until(lambda: len(listed(broker)) == 1)
        client.stop()
    (file,) = (tmp_path / "state").glob("delayed.sqlite")
    file.write_bytes(b"no database" * 1000)
    with broker:
        broker.log_until("delayed messages unreadable")
        client = Paho(broker.port, "c", topic="t")
        client.publish("$delayed/0/t", b"new")
        assert client.next()[1] == b"new"
        client.stop()
    assert (tmp_path / "state" / "delayed.sqlite.bad").exists()


@pytest.mark.parametrize("damage", ["payload = x'00'", "topic = CAST(x'74FF' AS TEXT)"])
def test_a_flipped_byte_drops_one_message(runtime_directory: Path, tmp_path: Path, damage: str) -> None:
    broker = broker_of(runtime_directory, tmp_path)
    with broker:
        client = Paho(broker.port, "c")
        client.publish("$delayed/3600/t", b"damaged")
        client.publish("$delayed/3600/t", b"intact")
        wait_until(lambda: len(listed(broker)) == 2)
        client.stop()
    with sqlite3.connect(tmp_path / "state" / "delayed.sqlite") as database:
        database.execute(f"UPDATE message SET {damage} WHERE payload = CAST('damaged' AS BLOB)")
        database.execute("UPDATE message SET due_ns = 0")
    database.close()
    with broker:
        client = Paho(broker.port, "c")
        wait_until(lambda: listed(broker) == [])
        report = json.loads(brim(broker, "status", "--json").stdout)["delayed"]
        assert (report["damaged"], report["delivered"], report["bytes"]) == (1, 1, 0)
        client.stop()
