"""Outputs of services that nothing reads: a full pipe or disk for the log delays no start, client or end."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from edge.mqtt import PubAck, Publish
from edge.server.watchdog import EXIT_STALLED
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port
from tests.support.project import ROOT
from tests.support.status_report import report_of
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def full_pipe() -> Iterator[int]:
    """Write end of a pipe that takes no more bytes; it blocks its writer."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(writer, bytes(size))
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


class Place:
    """Configuration of a broker, with a bridge of its own process."""

    def __init__(self, runtime_dir: Path, directory: Path) -> None:
        self.port, self.runtime_dir = free_port(), runtime_dir / "run"
        self.config = directory / "brim.toml"
        names = {"edge_id": "here", "runtime_dir": self.runtime_dir, "state_dir": directory / "state"}
        lines = [f"{key} = {json.dumps(str(value))}" for key, value in names.items()]
        lines += [f"[[listener]]\nport = {self.port}", '[[bridge]]\nname = "lake"\nin_broker = false']
        lines += [f"to = {json.dumps((directory / 'lake').as_uri())}"]
        self.config.write_text("\n".join(lines))

    @contextmanager
    def running(self, output: int, *words: str, module: str = "edge", **variables: str) -> Iterator[int]:
        """`brim` with these words, and its process id. It ends with status 0 after SIGTERM."""
        command = [sys.executable, "-m", module, *words, "--config", str(self.config)]
        environment = {**os.environ, **variables}
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, env=environment)
        try:
            yield process.pid
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.wait()

    def is_ready(self) -> bool:
        try:
            return bool(report_of(self.runtime_dir))
        except (OSError, AssertionError):
            return False

    def publish(self) -> None:
        with SocketClient(self.port, "c") as client:
            client.send(Publish("t", b"x", 1, packet_id=1))
            assert isinstance(client.receive(), PubAck)


@pytest.fixture
def place(runtime_directory: Path, tmp_path: Path) -> Place:
    return Place(runtime_directory, tmp_path)


def test_a_broker_whose_log_nothing_reads_starts_serves_and_ends(place: Place, full_pipe: int) -> None:
    with place.running(full_pipe, "run", "--log-level", "debug"):
        wait_until(place.is_ready)
        place.publish()


def test_a_broker_whose_output_has_no_disk_space_starts_serves_and_ends(place: Place) -> None:
    with open("/dev/full", "wb") as output, place.running(output.fileno(), "run"):
        wait_until(place.is_ready)
        place.publish()


def test_a_bridge_whose_log_nothing_reads_drains_and_ends(place: Place, full_pipe: int) -> None:
    with place.running(full_pipe, "run"):
        wait_until(place.is_ready)
        with place.running(full_pipe, "bridge", "run", "--log-level", "debug"):
            place.publish()
            wait_until(lambda: any(place.config.parent.glob("lake/**/*.brim")))


def test_a_console_whose_log_nothing_reads_serves_and_ends(place: Place, full_pipe: int) -> None:
    port = free_port()
    with place.running(full_pipe, "web", "--listen", f"127.0.0.1:{port}", "--log-level", "debug"):
        wait_until(lambda: serves_pages(port))


def serves_pages(port: int) -> bool:
    try:
        with urlopen(f"http://localhost:{port}/style.css") as answer:
            return bool(answer.status == 200)
    except URLError:
        return False


def test_a_stuck_process_ends_also_if_nothing_reads_its_stacks(place: Place, full_pipe: int) -> None:
    words = [sys.executable, "-m", "tests.support.stalled_broker", "run", "--config", str(place.config)]
    environment = {**os.environ, "MISTAKE": "grasping", "STATE": str(place.config.parent)}
    with subprocess.Popen(words, cwd=ROOT, stdout=full_pipe, stderr=full_pipe, env=environment) as process:
        try:
            wait_until(place.is_ready)
            with SocketClient(place.port, "c") as client:
                client.send(Publish("$sleep/now", b"x", 1, packet_id=1))
            assert process.wait(PATIENCE_S) == EXIT_STALLED
        finally:
            process.kill()
