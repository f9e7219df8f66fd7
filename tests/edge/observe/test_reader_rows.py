"""Readers in the status report of a broker that runs: the log without lag, and a tap without losses."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from edge.local.protocol import Connection, Overview, Report
from edge.local.shm_subscription import ShmSubscription
from edge.mqtt import Publish
from edge.observe.rates import sample
from ringbuf import WakeupThread
from ringbuf.constants import CURSORS_BYTES
from tests.edge.cli.test_topics import publish
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.directories import memory_directory
from tests.support.waiting import wait_until

SLOTS_AT = 4096  # in a cursor file

SETTINGS = """
[[stream]]
name = "logged"
topics = ["logged/#"]
durability = "disk"
[[stream]]
name = "fast"
topics = ["fast/#"]
ring_bytes = 1048576
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrimProcess]:
    with (
        memory_directory() as runtime,
        BrimProcess(runtime, tmp_path_factory.mktemp("rows"), SETTINGS, bridge=False) as broker,
    ):
        yield broker


def report_of(broker: BrimProcess) -> dict[str, Any]:
    with Connection(broker.runtime_dir) as connection:
        return connection.request(Overview(), Report).report


def reader_of(report: dict[str, Any], ring: str, name: str) -> dict[str, Any]:
    (row,) = [row for row in report["rings"] if row["name"] == ring]
    return next((reader for reader in row["readers"] if reader["name"] == name), {"lost": 0})


def test_the_log_has_no_lag_once_all_is_synced(broker: BrimProcess) -> None:
    publish(broker, *(Publish("logged/x", b"x" * 50) for _ in range(200)))
    report = report_of(broker)  # each PUBACK has waited for the sync
    assert reader_of(report, "logged-0", "log")["lag"] == 0
    assert max(ring["lag"] for ring in sample(report, report, 1.0)["rings"]) == 0


def test_messages_that_a_tap_skips_are_no_loss_of_the_broker(broker: BrimProcess) -> None:
    with (
        ModuleChild("edge", "tap", "fast/#", "--runtime-dir", broker.runtime_dir) as tap,
        ShmSubscription(["fast/#"], runtime_dir=broker.runtime_dir, name="app") as app,
    ):
        wait_until(lambda: "pid" in reader_of(report_of(broker), "fast-0", "brim tap"))
        os.kill(tap.pid, signal.SIGSTOP)
        publish(broker, *(Publish("fast/x", b"x" * 4_000) for _ in range(400)))
        os.kill(tap.pid, signal.SIGCONT)
        wait_until(lambda: reader_of(report_of(broker), "fast-0", "brim tap")["lost"] > 0)
        while app.read(0.1) is not None:
            continue
        wait_until(lambda: reader_of(report_of(broker), "fast-0", "app")["lost"] > 0)
        report = report_of(broker)
        tap.kill()
    WakeupThread.of_process().close()  # of the subscription
    (cause,) = report["lost"]
    assert cause.startswith("fast-0: overrun of app")
    (fast,) = [ring for ring in sample(report, report, 1.0)["rings"] if ring["ring"] == "fast-0"]
    assert fast["lost"] == reader_of(report, "fast-0", "app")["lost"]


@pytest.mark.parametrize("filler", [b"\x7f", b"\xff"])
def test_impossible_numbers_of_readers_are_reported_as_0(broker: BrimProcess, filler: bytes) -> None:
    """Readers of other users may write the cursor file. Sums of such numbers had more than 64 bits."""
    with (broker.runtime_dir / "fast-0.cursors").open("r+b") as file:
        file.seek(SLOTS_AT)
        file.write(filler * (CURSORS_BYTES - SLOTS_AT))
    (row,) = [row for row in report_of(broker)["rings"] if row["name"] == "fast-0"]
    assert row["readers"]
    assert {(reader["lag"], reader["lost"]) for reader in row["readers"]} == {(0, 0)}
