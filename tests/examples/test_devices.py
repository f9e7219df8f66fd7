"""Publishers and subscribers of the demo, while the broker is killed with -9: what they know is true."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim import subscribe as subscribe_shm
from examples.demo.device import Payload
from examples.demo.journal import JournalFile
from examples.demo.tally import Tally
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild

STREAMS = """
[[stream]]
name = "vitals"
topics = ["host/#", "replay/#"]
durability = "disk"
"""


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, STREAMS) as running:
        yield running


def status_with(child: ModuleChild, **wanted: int) -> dict[str, Any]:
    """The first status line in which each of these facts is as large."""
    while True:
        facts: dict[str, Any] = json.loads(child.line())
        if all(facts[name] >= value for name, value in wanted.items()):
            return facts


def in_the_ring(broker: BrimProcess) -> Tally:
    """Every message that is in memory."""
    import msgspec

    tally = Tally()
    with subscribe_shm("#", runtime_dir=broker.runtime_dir, start="oldest") as subscription:
        for batch in iter(subscription.read, None):
            for record in batch:
                tally.add(record.key.decode(), msgspec.json.decode(bytes(record), type=Payload).n)
    return tally


@pytest.mark.parametrize(
    ("module", "kinds"),
    [("device_amqtt", ["cpu", "load", "memory"]), ("device_paho", ["disk", "net", "process"]), ("burst", [])],
)
def test_a_publisher_whose_broker_was_killed_knows_exactly_what_was_acknowledged(
    module: str, kinds: list[str], broker: BrimProcess, tmp_path: Path
) -> None:
    journal = tmp_path / "journal.json"
    arguments = ["--port", broker.port, "--rate", 400, "--journal", journal, "--name", "me"]
    arguments += ["--kinds", *kinds] if kinds else []
    with ModuleChild(f"examples.demo.{module}", *arguments) as device:
        status_with(device, acked_count=100)
        broker.kill()
        away = status_with(device, connected=0)
        while away["connected"]:
            away = status_with(device)
        broker.start()
        status_with(device, acked_count=away["acked_count"] + 100, reconnects=1)
        status, _, log = device.stop(signal.SIGTERM)
    assert status == 0, log
    found = JournalFile.load(journal)
    published = Tally()
    for name, count in found.counts.items():
        published.expect(name, count)
    assert list(found.acked.missing(published)) == []
    ring = in_the_ring(broker)
    assert list(ring.missing(found.acked)) == []
    assert list(published.missing(ring)) == []


def test_both_subscribers_have_every_record_though_the_broker_was_killed(
    broker: BrimProcess, tmp_path: Path
) -> None:
    reports = {way: tmp_path / f"{way}.json" for way in ("shm", "zmq")}
    children = {
        way: ModuleChild(
            "examples.demo.subscribers", way, "--runtime-dir", broker.runtime_dir, "--report", report
        )
        for way, report in reports.items()
    }
    arguments = ["--port", broker.port, "--rate", 500, "--journal", tmp_path / "j.json", "--name", "me"]
    with children["shm"], children["zmq"]:
        for child in children.values():
            status_with(child)
        with ModuleChild("examples.demo.device_paho", *arguments, "--kinds", "net", "disk") as device:
            status_with(device, acked_count=200)
            broker.kill()
            broker.start()
            status_with(device, acked_count=1_000)
            assert device.stop(signal.SIGTERM)[0] == 0
        for child in children.values():
            status, _, log = child.stop(signal.SIGTERM)
            assert status == 0, log
    stored = in_the_ring(broker)
    for way, report in reports.items():
        facts = json.loads(report.read_text())
        assert (way, facts["gaps"], facts["twice"], facts["records"]) == (way, 0, 0, stored.total())
        assert list(Tally.load(report.with_suffix(".tally")).missing(stored)) == []
