"""Log retention of a real broker, as clients and `brim status` see it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bridge.drain.checkpoint import Checkpoint
from bridge.format.cursor import Cursor
from edge.config.loader import parse
from edge.config.schema import Config
from edge.errors import ConfigError
from edge.log.log_set import LogSet, Placing
from edge.log.maintenance import LogMaintenance
from edge.mqtt import PubAck, Publish, ReasonCode
from edge.server.retention_holds import BridgeHolds, ConsumerHolds
from persistence import LogReader, OsFiles
from persistence.maintenance.retention_rules import Floor
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port
from tests.support.rings import new_ring, publish_to_lap
from tests.support.status_report import report_of
from tests.support.waiting import wait_until

BODY = json.dumps({"temperature": 21.5, "status": "ok", "firmware": "1.4.2"}).encode() * 100
DEFAULT = '[[stream]]\nname = "default"\ntopics = ["#"]\nring_bytes = 1048576\n'
LIMITS = "[limits]\npacket_max_bytes = 131072\ntopic_max_bytes = 1024\n"


class Broker:
    """`brim run` on a configuration with a stream `t` and a log of small segments."""

    def __init__(self, runtime_dir: Path, directory: Path, stream: str, log: str) -> None:
        self.runtime_dir, self.log_dir = runtime_dir, directory / "log"
        self.port = free_port()
        names = {"edge_id": "here", "runtime_dir": str(runtime_dir), "state_dir": str(directory / "state")}
        lines = [f"{key} = {json.dumps(value)}" for key, value in names.items()]
        lines += [LIMITS, '[[stream]]\nname = "t"\ntopics = ["t/#"]\ndurability = "disk"', stream]
        lines += ["ring_bytes = 1048576\nsync_bytes = 262144", DEFAULT]
        lines += [f"[log]\ndirectory = {json.dumps(str(self.log_dir))}\nsegment_bytes = 1048576", log]
        lines += [f"[[listener]]\nport = {self.port}"]
        self.config = directory / "brim.toml"
        self.config.write_text("\n".join(lines))

    @contextmanager
    def running(self) -> Iterator[SocketClient]:
        with ModuleChild("edge", "run", "--config", self.config) as child:
            child.lines_until("ready")
            with SocketClient(self.port, "c") as client:
                yield client
            status, _, log = child.stop()
            assert status == 0, log

    def maintenance(self) -> dict[str, Any]:
        report = report_of(self.runtime_dir)
        maintenance: dict[str, Any] = report["log"]["maintenance"]
        return maintenance


def publish(client: SocketClient, count: int, body: bytes = BODY) -> set[ReasonCode]:
    """QoS 1, one after the other; reason codes."""
    reasons = set()
    for number in range(1, count + 1):
        client.send(Publish(f"t/{number % 7}", body, 1, packet_id=number))
        answer = client.receive()
        assert isinstance(answer, PubAck)
        assert answer.packet_id == number
        reasons.add(answer.reason_code)
    return reasons


def test_segments_are_archived_beside_the_traffic_and_read_after_a_restart(
    runtime_directory: Path, tmp_path: Path
) -> None:
    broker = Broker(runtime_directory, tmp_path, "", "archive = true")
    with broker.running() as client:
        assert publish(client, 450) == {ReasonCode.NO_MATCHING_SUBSCRIBERS}
        wait_until(lambda: broker.maintenance()["archive"]["segments"] >= 2)
        maintenance = broker.maintenance()
        assert maintenance["archive"]["ratio"] > 10
        assert 0 < maintenance["bytes_by_state"]["archived"] < maintenance["bytes_by_state"]["active"]
        assert maintenance["trouble"] == ""
    with broker.running() as client:
        assert publish(client, 1) == {ReasonCode.NO_MATCHING_SUBSCRIBERS}
    reader = LogReader(OsFiles(), str(broker.log_dir))
    reader.refresh()
    ((epoch, first, end),) = reader.epochs("t-0")
    assert (first, end) == (0, 451)
    offset = 0
    while ranges := reader.read("t-0", epoch, offset, 1 << 20):
        assert ranges[0].offset == offset
        offset = ranges[-1].offset + ranges[-1].count
    assert offset == 451
    assert reader.archive.reads > 0


def test_a_stream_that_discards_the_new_refuses_publishers(runtime_directory: Path, tmp_path: Path) -> None:
    broker = Broker(runtime_directory, tmp_path, 'retain_bytes = 3000000\ndiscard = "new"', "")
    with broker.running() as client:
        reasons: set[ReasonCode] = set()
        for _ in range(200):
            reasons |= publish(client, 50)
            if ReasonCode.QUOTA_EXCEEDED in reasons:
                break
        assert reasons == {ReasonCode.NO_MATCHING_SUBSCRIBERS, ReasonCode.QUOTA_EXCEEDED}
        wait_until(lambda: broker.maintenance()["full_streams"] == ["t"])


# ---- parts ----


def test_a_bridge_holds_what_its_checkpoint_lacks(tmp_path: Path) -> None:
    config = parse(
        f"state_dir = {json.dumps(str(tmp_path))}\n"
        '[[stream]]\nname = "t"\ntopics = ["t/#"]\n'
        '[[bridge]]\nname = "lake"\nto = "file:///lake"\n'
        '[[bridge]]\nname = "new"\nto = "file:///new"\nstart = "latest"\nstreams = ["t"]\n'
        '[[bridge]]\nname = "other"\nto = "file:///other"\nstreams = ["default"]\n'
    )
    holds = BridgeHolds(config)
    assert list(holds("t-0")) == [Floor("bridge lake", 0, 0)]
    assert list(holds("default-0")) == [Floor("bridge lake", 0, 0), Floor("bridge other", 0, 0)]
    checkpoint = Checkpoint.open(tmp_path / "bridge" / "lake.checkpoint", "here", "file:///lake")
    for offset in (10, 250):
        checkpoint.move(Cursor("t", 0, 7, 0, offset))
        checkpoint.save()
        assert list(holds("t-0")) == [Floor("bridge lake", 7, offset)]
    assert list(holds("t-1")) == [Floor("bridge lake", 0, 0)]
    checkpoint.path.write_bytes(b"damaged")
    assert list(holds("t-0")) == [Floor("bridge lake", 0, 0)]
    checkpoint.close()
    for name in ("new.checkpoint", "new.checkpoint.damaged"):
        (tmp_path / "bridge" / name).write_bytes(b"damaged")
        assert Floor("bridge new", 0, 0) in list(holds("t-0"))
        (tmp_path / "bridge" / name).unlink()
    assert Floor("bridge new", 0, 0) not in list(holds("t-0"))


def test_named_consumers_hold_what_is_not_done() -> None:
    places = [{"ring": "t-0", "epoch": 7, "floor": 40}, {"ring": "t-1", "epoch": 7, "floor": 2}]
    groups = [{"name": "g", "places": places}, {"name": "h", "places": places[:1]}]
    holds = ConsumerHolds()
    assert list(holds("t-2")) == [Floor("consumers", 0, 0)]
    holds.groups = lambda: groups
    assert list(holds("t-0")) == [Floor("consumers g", 7, 40), Floor("consumers h", 7, 40)]
    assert list(holds("t-2")) == []


def test_the_log_of_the_sessions_is_left_alone(tmp_path: Path) -> None:
    logs = LogSet(tmp_path, Placing(1, 1 << 20, 0))
    logs.open({"t-0": False, "sessions": True})
    maintenance = LogMaintenance(logs, Config(), without=[tmp_path / "sessions"])
    assert [it.log.directory for it in maintenance._maintained] == [str(tmp_path)]
    maintenance.start()
    maintenance.stop()
    assert maintenance.status()["disk_step"] in {"ok", "warn", "delete", "read_only"}
    logs.close()


def test_holds_tell_what_the_rings_still_have(runtime_directory: Path, tmp_path: Path) -> None:
    logs = LogSet(tmp_path, Placing(1, 1 << 20, 0))
    with new_ring(runtime_directory, name="t-0") as ring:
        publish_to_lap(ring.writer(), 2)
        maintenance = LogMaintenance(logs, Config(), rings=lambda: [ring])
        maintenance.holds.append(lambda _: [Floor("bridge lake", 7, 3)])
        oldest = ring.extremes().oldest_offset
        assert maintenance._floors("t-0") == [Floor("bridge lake", 7, 3, (7, oldest))]
        assert maintenance._floors("t-1") == [Floor("bridge lake", 7, 3)]
    assert oldest > 0
    assert maintenance._floors("t-0") == [Floor("bridge lake", 7, 3)], "the ring is closed"


@pytest.mark.parametrize(
    ("text", "blamed"),
    [
        ('[[stream]]\nname = "t"\ntopics = ["t"]\ndurability = "disk"\ndiscard = "new"', "retain_bytes"),
        ('[[stream]]\nname = "t"\ntopics = ["t"]\nretain_bytes = 9\ndiscard = "new"', "needs a log"),
        ("[log]\ndisk_warn_percent = 90", "disk_delete_percent"),
        ("[log]\ndisk_read_only_percent = 80", "must not fall"),
    ],
)
def test_rules_that_contradict_each_other_are_refused(text: str, blamed: str) -> None:
    with pytest.raises(ConfigError, match=blamed):
        parse(text)
