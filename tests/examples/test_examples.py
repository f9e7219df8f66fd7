"""Each example runs as it stands, against a broker that runs as it stands."""

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import paho.mqtt.client as mqtt
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.status_report import report_of
from tests.support.waiting import wait_until


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path) as running:
        yield running


def publish(broker: BrimProcess, topic: str, *payloads: bytes) -> None:
    """By paho, and acknowledged."""
    client = mqtt.Client(CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", broker.port)
    client.loop_start()
    for payload in payloads:
        client.publish(topic, payload, qos=1).wait_for_publish(20)
    client.disconnect()
    client.loop_stop()


def test_the_camera_publishes_frames_that_are_read_where_they_were_drawn(broker: BrimProcess) -> None:
    frames = ModuleChild(
        "examples.camera", "--frames", 5, "--per-second", 200, "--runtime-dir", broker.runtime_dir
    )
    with frames:
        status, out, log = frames.wait()
    assert (status, out) == (0, "published 5 frames of 640 x 480\n"), log
    from brim import subscribe as subscribe_shm

    with subscribe_shm("frames/#", runtime_dir=broker.runtime_dir, start="oldest") as subscription:
        seen = [bytes(record) for batch in iter(subscription.read, None) for record in batch]
    assert [len(frame) for frame in seen] == [640 * 480] * 5
    assert [frame.index(255) for frame in seen] == [0, 8, 16, 24, 32]


def test_arrays_are_viewed_in_shared_memory(broker: BrimProcess) -> None:
    publish(broker, "plant/press/7/vibration", struct.pack("<4d", 1, 2, 3, 4), struct.pack("<2d", -1, 5))
    publish(broker, "plant/press/7/temp", b"21.5", b"", struct.pack("<d", 7))
    arguments = ("plant/#", "--oldest", "--count", 3, "--runtime-dir", broker.runtime_dir)
    with ModuleChild("examples.shm_numpy", *arguments) as child:
        status, out, log = child.wait()
    assert status == 0, log
    assert out.splitlines() == [
        "subscribed",
        "plant/press/7/vibration offset=0 n=4 mean=2.500 greatest=4.000",
        "plant/press/7/vibration offset=1 n=2 mean=2.000 greatest=5.000",
        "plant/press/7/temp offset=2: 4 bytes are no doubles",
        "plant/press/7/temp offset=3: 0 bytes are no doubles",
        "plant/press/7/temp offset=4 n=1 mean=7.000 greatest=7.000",
    ]


def test_a_zeromq_subscriber_gets_the_topics_of_its_filter(broker: BrimProcess) -> None:
    arguments = ("plant/+/temp", "--count", 2, "--runtime-dir", broker.runtime_dir)
    with ModuleChild("examples.zmq_subscriber", *arguments) as child:
        assert child.line() == "subscribed"
        heard = False
        for number in range(1_000):  # ZeroMQ does not say when a subscription has arrived
            publish(broker, "plant/press/temp", f"{number}".encode())
            publish(broker, "plant/press/load", b"not for it")
            heard = child.process.poll() is not None
            if heard:
                break
        status, out, log = child.wait()
    assert (status, heard) == (0, True), log
    *messages, gaps = out.splitlines()
    assert gaps == "gaps: 0"
    assert [line.split()[0] for line in messages] == ["plant/press/temp"] * 2
    first, second = (int(line.split()[3]) for line in messages)
    assert second == first + 1


def test_members_of_a_group_go_on_where_the_last_one_ended(broker: BrimProcess) -> None:
    for name, readings in (("ann", (b"21.5", b"22.5")), ("bob", (b"23.5",))):
        publish(broker, "plant/1/temp", *readings)
        publish(broker, "plant/1/load", b"not for them")
        arguments = (name, "--count", len(readings), "--runtime-dir", broker.runtime_dir)
        with ModuleChild("examples.consumer_group", *arguments) as child:
            status, out, log = child.wait()
        assert status == 0, log
        assert out.splitlines() == [f"{name}: plant/1/temp {it.decode()}" for it in readings]


def test_offsets_in_the_users_transaction_give_each_reading_once_after_any_kill(
    broker: BrimProcess, tmp_path: Path
) -> None:
    """The program and the broker are killed with -9, again and again, while readings come."""
    database, random = tmp_path / "readings.db", Random(16)
    command = ("examples.own_offsets", database, "--runtime-dir", broker.runtime_dir)
    number = 0
    for life in range(8):
        with ModuleChild(*command) as child:
            for _ in range(random.randrange(1, 6)):
                publish(broker, "plant/1/temp", *(b"%d" % (number + i) for i in range(20)))
                publish(broker, "plant/1/load", b"not for it")
                number += 20
                child.line()
            if life % 3 == 2:
                broker.kill()
                broker.start()
            child.kill()
    publish(broker, "plant/1/temp", b"%d" % number)
    with ModuleChild(*command, "--until", number + 1) as child:
        status, _, log = child.wait()
    assert status == 0, log
    with closing(sqlite3.connect(database)) as opened:
        values = [int(value) for (value,) in opened.execute("SELECT value FROM readings ORDER BY rowid")]
    assert values == list(range(number + 1))


def test_drained_files_are_an_arrow_table(broker: BrimProcess, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow, which the spark extra brings")
    publish(broker, "plant/press/temp", b"21.5", b"22.5")
    publish(broker, "plant/press/load", b"7")
    wait_until(lambda: sum(1 for _ in broker.sink.rglob("*.brim")) > 0)
    publish(broker, "plant/press/load", b"8")
    wait_until(lambda: sum(1 for _ in broker.sink.rglob("*.brim")) > 1)
    wait_until(lambda: report_of(broker.runtime_dir)["bridges"][0]["totals"]["records"] == 4)
    with ModuleChild("examples.read_drained", broker.sink) as child:
        status, out, log = child.wait()
    assert status == 0, log
    lines = [line.split() for line in out.splitlines()]
    assert [line[1:] for line in lines[:4]] == [
        ["default-0", "0", "plant/press/temp", "21.5"],
        ["default-0", "1", "plant/press/temp", "22.5"],
        ["default-0", "2", "plant/press/load", "7"],
        ["default-0", "3", "plant/press/load", "8"],
    ]
    assert lines[4][:2] == ["4", "records,"]
    assert lines[5:] == [["2", "plant/press/load"], ["2", "plant/press/temp"]]
    (tmp_path / "empty").mkdir()
    for absent in (tmp_path / "empty", tmp_path / "absent.brim"):
        with ModuleChild("examples.read_drained", absent) as child:
            status, out, log = child.wait()
        assert (status, f"no *.brim in {absent}" in log) == (2, True), log


def test_a_lake_to_try_spark_on_has_something_to_find(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs pyarrow, which the spark extra brings")
    from bridge.payloads.schema import Payloads
    from bridge.spark.jobs.gaps import landing_account

    lake = tmp_path / "lake"
    with ModuleChild("examples.sample_lake", lake, "--seconds", "1") as child:
        status, out, log = child.wait()
    assert status == 0, log
    assert out.splitlines()[-1] == f"  python -m examples.first_look {lake} --field temp"
    (epoch,) = landing_account(str(lake)).epochs
    assert (epoch.records, epoch.lost, epoch.skipped, epoch.missing) == (40, [], [(20, 59)], [])
    assert [rule.format for rule in Payloads.read(str(lake / "payloads.toml")).rules] == ["json"]
    with ModuleChild("examples.sample_lake", lake) as child:
        status, out, log = child.wait()
    assert (status, out) == (2, "")
    assert "is there already" in log
