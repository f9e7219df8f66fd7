"""A stream gets another name while records wait: they are drained under the old one, and nothing is lost.

The ledger has the acknowledged numbers, and is compared with the payloads in the drained files.
"""

import json
from pathlib import Path

import pytest

import edge.client
from edge.cli import main
from tests.support.brim_process import BrimProcess
from tests.support.drained_files import offsets_drained, payloads_drained
from tests.support.lake_copy import Kind, Lake, lake_of
from tests.support.waiting import until

COMPLETE = 0  # the exit status of `brim spark gaps`
STREAMS = """
[[stream]]
name = "%s"
topics = ["logged"]
ring_bytes = 1048576
durability = "interval"
[[stream]]
name = "%s"
topics = ["memory"]
ring_bytes = 1048576
[[stream]]
name = "other"
topics = ["other"]
ring_bytes = 1048576
"""
TOPICS = ("logged", "memory")

Ledger = dict[str, set[int]]  # numbers that a PUBACK has promised, by topic


def broker_of(runtime: Path, directory: Path, lake: Lake, logged: str, memory: str) -> BrimProcess:
    """A broker that drains the two streams of these names."""
    chosen = f"streams = {json.dumps([logged, memory])}"
    settings = lake.bridge(chosen) + STREAMS % (logged, memory)
    return BrimProcess(runtime, directory, settings, bridge=False)


async def publish(broker: BrimProcess, ledger: Ledger, first: int, count: int) -> None:
    async with edge.client.connect(f"mqtt://127.0.0.1:{broker.port}") as client:
        await client.publish("other", b"of no bridge", qos=1)
        for number in range(first, first + count):
            for topic, promised in ledger.items():
                await client.publish(topic, f"{topic} {number}".encode(), qos=1)
                promised.add(number)


def reboot(runtime: Path) -> None:
    """Empty the memory."""
    for path in runtime.glob("*.ring*"):
        path.unlink()


def tell(broker: BrimProcess, what: str) -> None:
    assert main(["bridge", what, "lake", "--runtime-dir", str(broker.runtime_dir)]) == 0


def drained(lake: Lake) -> Ledger:
    """The numbers in the files, by topic; each is there once."""
    found: Ledger = {topic: set() for topic in TOPICS}
    for payload in payloads_drained(lake.files()):
        topic, number = payload.decode().split()
        assert int(number) not in found[topic], f"{topic} {number} is there twice"
        found[topic].add(int(number))
    return found


def check(lake: Lake, ledger: Ledger, capsys: pytest.CaptureFixture[str], streams: set[str]) -> None:
    """Every promised record is there once, and the verdict is the ledger's."""
    assert drained(lake) == ledger
    assert {stream for stream, _, _ in offsets_drained(lake.files())} == streams
    capsys.readouterr()
    assert main(["spark", "gaps", str(lake.files()), "--json"]) == COMPLETE, capsys.readouterr().out
    assert json.loads(capsys.readouterr().out)["verdict"] == "complete"


@pytest.mark.parametrize("kind", ["directory", "s3"])
async def test_a_renamed_stream_is_drained_to_its_end_under_its_old_name(
    runtime_directory: Path, tmp_path: Path, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
    ledger: Ledger = {topic: set() for topic in TOPICS}
    with lake_of(kind, tmp_path / "lake") as lake:
        with broker_of(runtime_directory, tmp_path, lake, "old", "hot") as broker:
            await publish(broker, ledger, 0, 20)
            await until(lambda: drained(lake) == ledger)
            tell(broker, "pause")
            await publish(broker, ledger, 20, 100)
        with broker_of(runtime_directory, tmp_path, lake, "new", "warm") as broker:
            await publish(broker, ledger, 120, 20)
            tell(broker, "resume")
            await until(lambda: drained(lake) == ledger)
            assert main(["status", "--runtime-dir", str(broker.runtime_dir)]) == 0
        check(lake, ledger, capsys, {"old", "hot", "new", "warm"})


async def test_a_renamed_stream_of_which_only_the_log_is_left_is_drained_although_the_sink_was_never_there(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
    ledger: Ledger = {"logged": set()}
    root = tmp_path / "not mounted" / "lake"
    with lake_of("directory", root) as lake:
        with broker_of(runtime_directory, tmp_path, lake, "old", "hot") as broker:
            await publish(broker, ledger, 0, 50)
        reboot(runtime_directory)
        root.parent.mkdir()
        with broker_of(runtime_directory, tmp_path, lake, "new", "warm") as broker:
            await publish(broker, ledger, 50, 10)
            await until(lambda: drained(lake)["logged"] == ledger["logged"])
        check(lake, ledger | {"memory": set()}, capsys, {"old", "new"})


async def test_a_stream_that_is_only_taken_from_a_bridge_is_not_drained_any_more_and_the_log_says_so(
    runtime_directory: Path, tmp_path: Path
) -> None:
    ledger: Ledger = {"logged": set(), "memory": set()}
    with lake_of("directory", tmp_path / "lake") as lake:
        with broker_of(runtime_directory, tmp_path, lake, "old", "hot") as broker:
            await publish(broker, ledger, 0, 5)
            await until(lambda: drained(lake) == ledger)
        before = {topic: set(numbers) for topic, numbers in ledger.items()}
        settings = lake.bridge('streams = ["old"]') + STREAMS % ("old", "hot")
        with BrimProcess(runtime_directory, tmp_path, settings, bridge=False) as broker:
            await publish(broker, ledger, 5, 5)
            await until(lambda: drained(lake)["logged"] == ledger["logged"])
            assert drained(lake)["memory"] == before["memory"]
            said = broker.stop()
        assert "streams no longer drained name=lake streams=hot" in said
