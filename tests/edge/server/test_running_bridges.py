"""Bridges in the broker's process, at the stop of the broker."""

import subprocess
import sys
from pathlib import Path

from edge.mqtt import Publish
from tests.support.brim_process import BrimProcess
from tests.support.drained_files import payloads_drained
from tests.support.mqtt_socket import SocketClient
from tests.support.project import ROOT

LINGERING = "linger_ms = 3600000\n"


def publish(broker: BrimProcess, payload: bytes) -> None:
    with SocketClient(broker.port, "device") as client:
        client.send(Publish("plant/1", payload, 1, packet_id=1))
        client.receive()


def test_a_clean_stop_drains_the_records_that_linger(runtime_directory: Path, tmp_path: Path) -> None:
    with BrimProcess(runtime_directory, tmp_path, LINGERING) as broker:  # behind the keys of the bridge
        publish(broker, b"last")
        assert list(payloads_drained(broker.sink)) == []
    assert list(payloads_drained(broker.sink)) == [b"last"]


def test_a_paused_bridge_drains_nothing_at_the_stop(runtime_directory: Path, tmp_path: Path) -> None:
    with BrimProcess(runtime_directory, tmp_path) as broker:
        words = ("bridge", "pause", "lake", "--runtime-dir", str(runtime_directory))
        subprocess.run([sys.executable, "-m", "edge", *words], cwd=ROOT, check=True, capture_output=True)
        publish(broker, b"waits")
    assert list(payloads_drained(broker.sink)) == []
