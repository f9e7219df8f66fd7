"""An edge gets another id: check and status see the foreign checkpoint, and a verb renames it.

Nothing is sent again, nothing is lost, and no verdict says otherwise.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import edge.client
from bridge.drain.checkpoint import Checkpoint
from bridge.drain.rename import rename_edge
from bridge.drain.settings import BridgeSettings
from bridge.errors import CheckpointBusy, InvalidCommand, SinkUnavailable
from bridge.format.cursor import Cursor
from edge.cli import main
from tests.support.bridges import EPOCH, FailingSink, drain, publish, ring, run_dry, settings
from tests.support.brim_process import BrimProcess
from tests.support.drained_files import footers, payloads_drained
from tests.support.lake_copy import Kind, Lake, lake_of
from tests.support.waiting import until

COMPLETE, ATTENTION, UNUSABLE, LOST = 0, 1, 2, 4  # exit statuses
STREAM = """
[[stream]]
name = "logged"
topics = ["logged"]
ring_bytes = 1048576
durability = "interval"
"""


def edges(root: Path) -> set[str]:
    return {path.name.removeprefix("edge=") for path in root.glob("edge=*")}


def verdict(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
    capsys.readouterr()
    status = main(["spark", "gaps", str(root), "--json"])
    return status, json.loads(capsys.readouterr().out)


async def send(broker: BrimProcess, ledger: set[bytes], count: int) -> None:
    """Messages of which a PUBACK has come are in the ledger."""
    async with edge.client.connect(f"mqtt://127.0.0.1:{broker.port}") as client:
        for number in range(len(ledger), len(ledger) + count):
            payload = f"message {number}".encode()
            await client.publish("logged", payload, qos=1)
            ledger.add(payload)


def drained(lake: Lake) -> set[bytes]:
    """Payloads in the files; each is there once."""
    found = list(payloads_drained(lake.files()))
    assert len(found) == len(set(found))
    return set(found)


def state(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    capsys.readouterr()
    status = main(["status", "--json", "--runtime-dir", str(broker.runtime_dir)])
    (bridge,) = json.loads(capsys.readouterr().out)["bridges"]
    return status, bridge


def waiting(bridge: dict[str, Any]) -> int:
    """Records of the stream that status counts as not drained."""
    return sum(it["lag_records"] for it in bridge["partitions"] if it["stream"] == "logged")


@pytest.mark.parametrize("kind", ["directory", "s3"])
async def test_a_renamed_edge_is_seen_counted_and_goes_on_under_its_new_name(
    runtime_directory: Path, tmp_path: Path, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger: set[bytes] = set()
    config = str(tmp_path / "brim.toml")
    with lake_of(kind, tmp_path / "lake") as lake:
        settings = lake.bridge() + STREAM
        with BrimProcess(runtime_directory, tmp_path, settings, bridge=False) as broker:
            await send(broker, ledger, 50)
            await until(lambda: drained(lake) == ledger)
            await until(lambda: state(broker, capsys)[1]["verdict"] == "complete")  # no file is in flight
            assert main(["bridge", "pause", "--runtime-dir", str(runtime_directory)]) == 0
            await send(broker, ledger, 100)
            broker.kill()
            broker.start()
        before = drained(lake)
        with BrimProcess(runtime_directory, tmp_path, settings, bridge=False, edge="there") as broker:
            capsys.readouterr()
            assert main(["check", config]) == UNUSABLE
            assert "brim bridge rename-edge here there" in capsys.readouterr().err
            await send(broker, ledger, 10)
            await until(lambda: waiting(state(broker, capsys)[1]) == 110)
            status, bridge = state(broker, capsys)
            assert (status, bridge["condition"]) == (ATTENTION, "blocked")
            assert "brim bridge rename-edge here there" in bridge["remedy"]
            assert bridge["verdict"] != "complete"
            assert drained(lake) == before

            assert main(["bridge", "rename-edge", "here", "there", "--config", config]) == 0
            capsys.readouterr()
            again = ["bridge", "rename-edge", "here", "there", "--config", config, "--json"]
            assert main(again) == 0  # no harm
            assert json.loads(capsys.readouterr().out) == {"done": ["bridge lake: edge there already"]}
            await until(lambda: state(broker, capsys)[1]["condition"] == "paused")
            capsys.readouterr()
            assert main(["bridge", "resume", "--runtime-dir", str(runtime_directory), "--json"]) == 0
            assert json.loads(capsys.readouterr().out)["done"]
            await until(lambda: drained(lake) == ledger)
            await until(lambda: state(broker, capsys)[0] == 0)
            assert main(["check", config]) == 0
        assert edges(lake.files()) == {"here", "there"}
        status, found = verdict(lake.files(), capsys)
        assert (status, found["verdict"]) == (COMPLETE, "complete")


# ---- what is under way, passed over or lost when the edge is renamed ----


def rename(chosen: BridgeSettings, new: str = "edge-2") -> str:
    return rename_edge(chosen, chosen.edge_id, new)


def go_on(chosen: BridgeSettings, new: str = "edge-2") -> None:
    with drain(dataclasses.replace(chosen, edge_id=new)) as drained:
        run_dry(drained)


def test_what_was_under_way_is_settled_under_the_old_name(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        publish(made, 30)
        answer_lost = FailingSink(tmp_path / "lake")
        answer_lost.after = [SinkUnavailable("the answer was lost")]
        with drain(chosen, answer_lost) as drained, pytest.raises(SinkUnavailable):
            run_dry(drained)
        publish(made, 10)
        rename(chosen)
        go_on(chosen)
    payloads = list(payloads_drained(tmp_path / "lake"))
    assert [int(it.strip(b".")) for it in payloads] == list(range(40))
    assert verdict(tmp_path / "lake", capsys)[0] == COMPLETE
    assert edges(tmp_path / "lake") == {"edge-1", "edge-2"}


def test_what_was_lost_before_is_lost_once_after_the_edge_was_renamed(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        publish(made, 10)
        with drain(chosen) as drained:
            run_dry(drained)
        publish(made, 5000)
        oldest = made.extremes().oldest_offset
        rename(chosen)
        go_on(chosen)
    status, found = verdict(tmp_path / "lake", capsys)
    assert (status, found["lost"], found["missing"]) == (LOST, oldest - 10, 0)
    assert [it["lost"] for it in found["epochs"] if it["lost"]] == [[[10, oldest - 1]]]


def test_what_an_ended_epoch_still_owes_is_declared_under_the_new_name(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing waits, so no file of the old name can say it."""
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        publish(made, 10)
        with drain(chosen) as drained:
            run_dry(drained)
            cursor = drained.checkpoint.cursors["default", 0]
            drained.checkpoint.move(cursor.lost_until(15))  # a file was given up
            drained.checkpoint.move(drained.checkpoint.cursors["default", 0].next_epoch(EPOCH + 1, 0, 15))
            drained.checkpoint.save()
    (runtime_directory / "default-0.ring").unlink(missing_ok=True)
    rename(chosen)
    with ring(runtime_directory, epoch=EPOCH + 1) as made:
        publish(made, 5)
        go_on(chosen)
    status, found = verdict(tmp_path / "lake", capsys)
    assert (status, found["missing"]) == (LOST, 0)
    assert [it["lost"] for it in found["epochs"] if it["lost"]] == [[[10, 14]]]


def test_what_was_skipped_is_declared_under_the_old_name(runtime_directory: Path, tmp_path: Path) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        publish(made, 10)
        with drain(chosen) as drained:
            run_dry(drained)
            publish(made, 10)
            drained.checkpoint.move(drained.checkpoint.cursors["default", 0].passed(20))
            drained.checkpoint.save()
        publish(made, 5)
        rename(chosen)
    found = Checkpoint.peek(chosen.checkpoint_path)
    assert found is not None
    assert (found.cursors["default", 0].next_offset, found.cursors["default", 0].skipped) == (25, ())
    assert [(footer.edge, footer.skipped) for footer in footers(tmp_path)] == [
        ("edge-1", ()),
        ("edge-1", ((10, 19),)),
    ]


def test_a_partition_that_was_drained_in_two_places_is_united_under_the_old_name(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        publish(made, 10)
        with drain(chosen) as drained:
            run_dry(drained)
            publish(made, 20)
            cursor: Cursor = drained.checkpoint.cursors["default", 0]
            drained.checkpoint.move(cursor.split(30))
            publish(made, 5)
            drained.partitions.flushing = True
            drained.next_files.scheduler._clocks[False] = 1e9  # what comes in goes first
            drained.answered.clear()
            drained.step()
            assert drained.checkpoint.cursors["default", 0].ahead == ((30, 35),)
            drained.checkpoint.save()
        publish(made, 5)
        rename(chosen)
        found = Checkpoint.peek(chosen.checkpoint_path)
        assert found is not None
        assert not found.cursors["default", 0].ahead
        go_on(chosen)
    payloads = [int(it.strip(b".")) for it in payloads_drained(tmp_path / "lake")]
    assert sorted(payloads) == list(range(40))
    assert verdict(tmp_path / "lake", capsys)[0] == COMPLETE


def test_a_name_that_has_files_already_a_bridge_that_runs_and_another_edge_are_refused(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        publish(made, 10)
        with drain(chosen) as drained:
            run_dry(drained)
            with pytest.raises(CheckpointBusy):
                rename(chosen)
        other = settings(runtime_directory, tmp_path, name="other", edge_id="edge-2")
        with drain(other) as drained:
            run_dry(drained)
    before = chosen.checkpoint_path.read_bytes()
    with pytest.raises(InvalidCommand, match="has files of edge edge-2 already"):
        rename(chosen)
    with pytest.raises(InvalidCommand, match="belongs to edge edge-1, not to edge-7"):
        rename_edge(chosen, "edge-7", "edge-8")
    assert chosen.checkpoint_path.read_bytes() == before
