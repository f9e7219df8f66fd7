"""`brim sub` on the machine of the broker: the same messages over MQTT, shared memory and ZeroMQ."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from zmq import auth

from edge.local.arrivals import messages_of_batch
from edge.local.protocol import RingInfo
from edge.local.shm_subscription import RingBatch
from ringbuf.errors import Overrun
from tests.support.brim_process import BrimProcess
from tests.support.project import ROOT

TIMEOUT_S = 30
BRIM = (sys.executable, "-m", "edge")


class Broker:
    """`brim run`, ready."""

    def __init__(self, runtime_dir: Path, state_dir: Path) -> None:
        self.directory = ("--runtime-dir", runtime_dir)
        where = (*self.directory, "--state-dir", state_dir, "--port", 0)
        line = [*BRIM, "run", *map(str, where)]
        self.process = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
        )
        assert self.process.stdout is not None
        for line_out in self.process.stdout:
            ready = re.search(r"is ready .* mqtt 127\.0\.0\.1:(\d+)", line_out)
            if ready:
                self.port = int(ready[1])
                return
        raise AssertionError("the broker ended before it was ready")

    @contextmanager
    def publishing(self, *arguments: object) -> Iterator[None]:
        """Publish again and again, so that each subscriber gets some, at whatever time it subscribes."""
        line = [*BRIM, "pub", *arguments, "--repeat", 0, "--rate", 50, "--port", self.port]
        with subprocess.Popen(list(map(str, line)), cwd=ROOT) as publisher:
            try:
                yield
            finally:
                publisher.kill()

    def subscribed(self, *arguments: object) -> subprocess.CompletedProcess[bytes]:
        line = [*BRIM, "sub", *arguments]
        return subprocess.run(
            list(map(str, line)), capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=False
        )


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[Broker]:
    started = Broker(runtime_directory, tmp_path)
    try:
        yield started
    finally:
        started.process.terminate()
        started.process.communicate(timeout=TIMEOUT_S)


def test_every_way_shows_the_same(broker: Broker) -> None:
    common: tuple[object, ...] = ("plant/+/temp", "--json", "-C", 5, "-W", 20)
    ways = {
        "mqtt": (*common, "-q", 1, "--port", broker.port),
        "shm": (*common, "--shm", *broker.directory),
        "zmq": (*common, "--zmq", *broker.directory),
    }
    with broker.publishing("plant/1/temp", "grün", "-q", 1), broker.publishing("elsewhere", "not asked for"):
        shown = {way: broker.subscribed(*arguments) for way, arguments in ways.items()}
    lines: dict[str, list[dict[str, Any]]] = {}
    for way, done in shown.items():
        assert (done.returncode, done.stderr) == (0, b""), way
        lines[way] = [json.loads(line) for line in done.stdout.splitlines()]
        assert [(line["topic"], line["payload"], line["qos"]) for line in lines[way]] == [
            ("plant/1/temp", "grün", 1)
        ] * 5
    for way in ("shm", "zmq"):
        offsets = [line["offset"] for line in lines[way]]
        assert offsets == sorted(set(offsets))
        assert {line["ring"] for line in lines[way]} == {"default-0"}


def test_rates_are_counted_in_memory_too(broker: Broker) -> None:
    with broker.publishing("plant/1/temp", "12345678"):
        done = broker.subscribed("#", "--shm", "--rate", "--json", "-C", 20, *broker.directory)
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == 0
    assert last["messages_per_s"] > 0
    assert last["bytes_per_s"] == pytest.approx(8 * last["messages_per_s"], abs=1)


@pytest.mark.parametrize("way", ["--shm", "--zmq"])
def test_without_a_broker_an_error_names_the_remedy(runtime_directory: Path, way: str) -> None:
    line = [*BRIM, "sub", "#", way, "--runtime-dir", str(runtime_directory)]
    done = subprocess.run(line, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith(b"brim sub: ")
    assert b"start one with `brim run`" in done.stderr


def test_messages_in_memory_are_shown_from_a_place_on(broker: Broker) -> None:
    for number in range(6):
        line = [
            *BRIM,
            "pub",
            "a/1" if number < 5 else "other",
            str(number),
            "-q",
            "1",
            "--port",
            str(broker.port),
        ]
        assert subprocess.run(line, cwd=ROOT, timeout=TIMEOUT_S, check=False).returncode == 0

    def shown(*words: object) -> tuple[int, list[bytes]]:
        done = broker.subscribed("a/#", "--shm", *words, *broker.directory)
        return done.returncode, done.stdout.split()

    assert shown("--from", "oldest", "-C", 5) == (0, [b"0", b"1", b"2", b"3", b"4"])
    assert shown("--from", "-1h", "-C", 5) == (0, [b"0", b"1", b"2", b"3", b"4"])
    assert shown("--from", 3, "-C", 2) == (0, [b"3", b"4"])
    assert shown("--last", 2, "-C", 2) == (0, [b"3", b"4"])  # the last record of the ring is of another topic
    assert shown("--from", 1, "--last", 9, "-C", 4) == (0, [b"1", b"2", b"3", b"4"])
    with broker.publishing("a/1", "new"):
        assert shown("--last", 1, "-C", 3)[1][1:] == [b"new", b"new"]
    done = broker.subscribed("a/#", "--last", 2, "--port", broker.port)
    assert (done.returncode, b"add --shm" in done.stderr) == (2, True)


class OvertakenRecord:
    """A record that the writer reaches after its payload was copied."""

    flags, offset, timestamp_ns, properties = 0, 7, 1, b""

    def __bytes__(self) -> bytes:
        return b"copied"

    @property
    def key(self) -> bytes:
        raise Overrun(1)


def test_a_record_that_is_overwritten_while_it_is_read_is_left_out() -> None:
    info = RingInfo("r", "/r", 1, "default", "partition", "overwrite", 0)
    records: Any = [OvertakenRecord()]
    assert list(messages_of_batch(RingBatch(info, records, 0))) == []


def test_a_broker_that_requires_keys_for_zeromq_is_an_error(runtime_directory: Path, tmp_path: Path) -> None:
    auth.create_certificates(tmp_path, "broker")
    settings = f'[zmq]\nsecret_key_file = "{tmp_path}/broker.key_secret"\nclient_keys_dir = "{tmp_path}"\n'
    with BrimProcess(runtime_directory, tmp_path, settings, bridge=False):
        line = [*BRIM, "sub", "#", "--zmq", "--runtime-dir", str(runtime_directory)]
        done = subprocess.run(line, capture_output=True, cwd=ROOT, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 2
    assert b"requires keys" in done.stderr
