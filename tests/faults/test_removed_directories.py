"""Directories of a running broker that are removed, moved or replaced: noticed, refused, reported."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brim import consumer
from edge.mqtt import Connect, PubAck, Publish, Version
from edge.mqtt.reason_codes import ReasonCode
from edge.observe.directory_watch import DirectoryWatch
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import RawClient
from tests.support.ports import free_port
from tests.support.project import ROOT
from tests.support.status_report import report_of
from tests.support.waiting import PATIENCE_S, wait_until

STORED = {ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS}
LEVELS = ("process", "interval", "disk")


class Site:
    """A broker with a stream of each durability; the log where `log_dir` says."""

    def __init__(self, runtime_dir: Path, directory: Path, log_dir: Path | None = None) -> None:
        self.runtime_dir, self.directory = runtime_dir, directory
        self.state_dir = directory / "state"
        self.log_dir = log_dir or self.state_dir / "log"
        self.port, self.metrics = free_port(), free_port()
        lines = [
            f"runtime_dir = {json.dumps(str(runtime_dir))}",
            f"state_dir = {json.dumps(str(self.state_dir))}",
        ]
        for level in LEVELS:
            lines += ["[[stream]]", f'name = "{level}"', f'topics = ["{level}/#"]', f'durability = "{level}"']
            lines += ["ring_bytes = 1048576", "queue_timeout_ms = 50", "sync_interval_ms = 20"]
        lines += ["[[stream]]", 'name = "default"', 'topics = ["#"]', "ring_bytes = 1048576"]
        lines += ["[log]", f"directory = {json.dumps(str(self.log_dir))}", "segment_bytes = 1048576"]
        lines += ["[limits]", "packet_max_bytes = 65536", "topic_max_bytes = 256"]
        lines += ["[metrics]", f'listen = "127.0.0.1:{self.metrics}"', "[[listener]]", f"port = {self.port}"]
        self.config = directory / "brim.toml"
        self.config.write_text("\n".join(lines))

    @contextmanager
    def broker(self) -> Iterator[ModuleChild]:
        with ModuleChild("edge", "run", "--config", self.config) as child:
            child.lines_until("brim status")
            yield child

    def status(self) -> dict[str, Any]:
        return report_of(self.runtime_dir)

    def publish(self, level: str, payload: bytes = b"x", *, retain: bool = False) -> ReasonCode:
        """The reason code of its PUBACK."""
        client = RawClient(self.port, Version.V5)
        client.send(Connect("p", version=Version.V5))
        assert client.packet() is not None
        client.send(Publish(f"{level}/1", payload, 1, retain, packet_id=1))
        answer = client.packet()
        client.close()
        assert isinstance(answer, PubAck), answer
        return answer.reason_code

    def shown(self) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "edge", "status", "--runtime-dir", str(self.runtime_dir)]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    def missing(self) -> int:
        """As the metrics have it."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=PATIENCE_S) as answer:
            lines = answer.read().decode().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("brim_missing_files "))


@pytest.fixture
def site(runtime_directory: Path, tmp_path: Path) -> Site:
    return Site(runtime_directory, tmp_path)


def test_a_removed_state_directory_refuses_what_needs_it_and_says_so(site: Site) -> None:
    with site.broker() as broker:
        assert {site.publish(level) for level in LEVELS} <= STORED
        assert site.missing() == 0
        with consumer("g", "disk/#", start="oldest", runtime_dir=site.runtime_dir) as records:
            batch = records.read(20.0)
            assert batch is not None
            shutil.rmtree(site.state_dir)
            wait_until(lambda: site.status()["missing"])
            wait_until(lambda: site.publish("disk") is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
            wait_until(lambda: site.publish("interval") is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
            assert site.publish("process") in STORED
            assert records.ack(batch).accepted == 0, "acknowledged, and forgotten by the next start"
        shown = site.shown()
        assert shown.returncode == 1
        assert f"{site.state_dir} was removed or replaced; put it back, or restart the broker" in shown.stdout
        assert site.missing() > 0
        site.state_dir.mkdir()  # another directory of that name mends nothing
        wait_until(lambda: site.publish("disk") is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        status, _, log = broker.stop()
        assert status == 0
        assert log.count("file or directory of the broker removed key=state_dir") <= 2  # and its offsets
    with site.broker() as broker:
        assert {site.publish(level) for level in LEVELS} <= STORED
        assert not site.status()["missing"]
        assert broker.stop()[0] == 0


def test_a_directory_that_is_put_back_is_used_again(site: Site) -> None:
    aside = site.directory / "aside"
    with site.broker() as broker:
        assert site.publish("disk", b"1") in STORED
        site.state_dir.rename(aside)
        wait_until(lambda: site.publish("disk", b"2") is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        aside.rename(site.state_dir)
        wait_until(lambda: not site.status()["missing"])
        wait_until(lambda: site.publish("disk", b"3") in STORED)
        assert not site.status()["log"]["read_only"]
        assert broker.stop()[0] == 0


@pytest.mark.parametrize("what", ["directory", "segments", "lock"])
def test_a_log_elsewhere_whose_files_are_removed_takes_no_records(
    runtime_directory: Path, tmp_path: Path, what: str
) -> None:
    site = Site(runtime_directory, tmp_path, tmp_path / "elsewhere")
    with site.broker() as broker:
        assert {site.publish(level) for level in LEVELS} <= STORED
        if what == "directory":
            shutil.rmtree(site.log_dir)
        for file in () if what == "directory" else [*site.log_dir.iterdir()]:
            if file.is_file() and (file.name == "LOCK") == (what == "lock"):
                file.unlink()
        wait_until(lambda: any(it["key"] == "log" for it in site.status()["missing"]))
        wait_until(lambda: site.publish("disk") is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        wait_until(lambda: site.publish("interval") is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        assert site.publish("process") in STORED
        assert site.shown().returncode == 1
        broker.stop()


@pytest.mark.parametrize(
    "put", [Path.mkdir, lambda path: path.write_bytes(b"x"), lambda path: path.symlink_to(path)]
)
def test_an_active_segment_that_is_replaced_takes_no_records(
    site: Site, put: Callable[[Path], object]
) -> None:
    """Not even of a file with the same bytes: those that follow would be in a file without a name."""
    with site.broker() as broker:
        assert site.publish("disk") in STORED
        assert site.status()["missing"] == []
        active = max(site.log_dir.glob("*.log"))
        aside = active.rename(site.directory / "aside")
        put(active)
        wait_until(lambda: [it["path"] for it in site.status()["missing"]] == [str(active)])
        wait_until(lambda: site.publish("disk") is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        assert site.publish("process") in STORED
        if active.is_dir():
            active.rmdir()
        aside.rename(active)
        wait_until(lambda: site.publish("disk") in STORED)
        assert broker.stop()[0] == 0


def test_a_removed_log_of_one_ring_refuses_only_its_stream(site: Site) -> None:
    site.config.write_text(
        site.config.read_text().replace('durability = "disk"', 'durability = "disk"\nisolated = true')
    )
    with site.broker() as broker:
        assert {site.publish(level) for level in LEVELS} <= STORED
        shutil.rmtree(site.log_dir / "disk-0")
        wait_until(lambda: site.publish("disk") is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        assert site.publish("interval") in STORED
        _, _, log = broker.stop()
        assert log.count("log stopped: it accepts no records") == 1


def test_a_removed_runtime_directory_is_reported_and_clients_are_served(tmp_path: Path) -> None:
    """Its control socket is gone with it: the log and the metrics tell."""
    runtime_dir = Path("/dev/shm") / f"brim-test-{os.getpid()}-removed"
    runtime_dir.mkdir(mode=0o750)
    try:
        site = Site(runtime_dir, tmp_path)
        with site.broker() as broker:
            shutil.rmtree(runtime_dir)
            wait_until(lambda: site.missing() >= 4)  # it, and its rings
            assert {site.publish(level) for level in LEVELS} <= STORED
            log = broker.stop()[2]
            assert "removed key=runtime_dir" in log
            assert "removed key=ring" in log
            assert "restart the broker" in log
    finally:
        shutil.rmtree(runtime_dir, ignore_errors=True)


@pytest.mark.parametrize(
    ("name", "text"), [("zmq", "no further subscriber can connect"), ("consumers", "no further consumer")]
)
def test_a_removed_socket_of_zeromq_is_reported_and_clients_are_served(
    site: Site, name: str, text: str
) -> None:
    with site.broker() as broker:
        assert site.status()["missing"] == []
        (site.runtime_dir / f"{name}.sock").unlink()
        wait_until(lambda: [it["key"] for it in site.status()["missing"]] == [name])
        assert text in site.shown().stdout
        assert {site.publish(level) for level in LEVELS} <= STORED
        assert f"removed key={name}" in broker.stop()[2]


def test_a_segment_that_retention_removes_is_not_missed(site: Site) -> None:
    """Nor are those that are sealed: only the one that is written is looked for."""
    site.config.write_text(site.config.read_text().replace("[log]", "[log]\nretain_bytes = 3145728"))
    with site.broker() as broker:
        for number in range(300):
            assert site.publish("disk", bytes(60_000)) in STORED, number
        assert site.status()["missing"] == []
        assert "removed key=" not in broker.stop()[2]


def test_a_name_that_stands_for_another_file_is_missing(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    watch = DirectoryWatch()
    watch.watch("a", tmp_path / "a")
    changes: list[tuple[Any, ...]] = []
    watch.on_change.append(lambda: changes.append(watch.missing))
    watch.check()
    assert changes == []
    (tmp_path / "a").rename(tmp_path / "b")
    watch.check()
    watch.check()
    (tmp_path / "a").mkdir()
    watch.check()
    assert [len(it) for it in changes] == [1]
    (tmp_path / "a").rmdir()
    (tmp_path / "b").rename(tmp_path / "a")
    watch.check()
    assert [len(it) for it in changes] == [1, 0]
    watch.stop()
