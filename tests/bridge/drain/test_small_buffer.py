"""A buffer too small on purpose: every report about a bridge shows "lost", with the ranges of a ledger.

The ledger has the acknowledged numbers, and is compared with the payloads in the drained files.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

import edge.client
from edge.cli import main
from edge.cli.exit_status import Exit
from tests.support.brim_process import BrimProcess
from tests.support.drained_files import payloads_drained
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

RECORDS = 600
BODY_BYTES = 10_000
CAUSES = {"hot": "overwritten", "kept": "retention"}  # by stream
SETTINGS = """
linger_ms = 0
[log]
segment_bytes = 1048576
[[stream]]
name = "hot"
topics = ["hot"]
ring_bytes = 1048576
[[stream]]
name = "kept"
topics = ["kept"]
ring_bytes = 1048576
durability = "interval"
queue_timeout_ms = 60000
retain_bytes = 1048576
hold_bytes = 0
[metrics]
listen = "127.0.0.1:%d"
"""
GAPS_LOST, GAPS_MISSING = 4, 1  # exit statuses

Ledger = dict[str, set[int]]  # numbers that a PUBACK has promised, by stream
Ranges = list[list[int]]  # both ends included


@pytest.fixture
def place(runtime_directory: Path, tmp_path: Path) -> Iterator[tuple[BrimProcess, int]]:
    metrics = free_port()
    with BrimProcess(runtime_directory, tmp_path, SETTINGS % metrics) as broker:
        yield broker, metrics


async def publish(broker: BrimProcess, ledger: Ledger, first: int, count: int) -> None:
    async with edge.client.connect(f"mqtt://127.0.0.1:{broker.port}") as client:
        for number in range(first, first + count):
            for stream, promised in ledger.items():
                payload = f"{stream} {number} ".encode().ljust(BODY_BYTES, b".")
                await client.publish(stream, payload, qos=1)
                promised.add(number)


def lost_of(broker: BrimProcess, ledger: Ledger) -> dict[str, Ranges]:
    """Ranges that were promised and are in no file, by stream: the ledger's numbers are the offsets."""
    there: Ledger = {stream: set() for stream in ledger}
    for payload in payloads_drained(broker.sink):
        stream, number, _ = payload.decode().split(" ", 2)
        assert int(number) not in there[stream], "drained twice"
        there[stream].add(int(number))
    return {stream: ranges_of(ledger[stream] - there[stream]) for stream in ledger}


def ranges_of(numbers: set[int]) -> Ranges:
    found: Ranges = []
    for number in sorted(numbers):
        if found and found[-1][1] == number - 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return found


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit status of a verb, and what it printed."""
    capsys.readouterr()
    status = main([str(word) for word in words])
    return status, capsys.readouterr().out


def state(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    status, out = printed(capsys, "bridge", "status", "--json", "--runtime-dir", broker.runtime_dir)
    (found,) = json.loads(out)
    return status, found


def oldest_of(broker: BrimProcess, capsys: pytest.CaptureFixture[str], ring: str) -> int:
    """Offset of the oldest record in a ring without a busy writer."""
    rings = json.loads(printed(capsys, "status", "--json", "--runtime-dir", broker.runtime_dir)[1])["rings"]
    return next(int(it["oldest_offset"]) for it in rings if it["name"] == ring)


def losses(found: dict[str, Any]) -> dict[str, Ranges]:
    """Ranges that a bridge reports as lost, by stream, without their epochs."""
    return {it["stream"]: [[first, last] for _, first, last in it["lost"]] for it in found["losses"]}


async def test_a_bridge_that_never_reached_its_sink_reports_what_the_buffer_has_lost(
    runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = BrimProcess(runtime_directory, tmp_path, SETTINGS % free_port())
    broker.sink.write_text("in the place of a directory")
    with broker:
        ledger: Ledger = {stream: set() for stream in CAUSES}
        await publish(broker, ledger, 0, RECORDS)
        await until(lambda: losses(state(broker, capsys)[1]).keys() == CAUSES.keys())
        hot = [[0, oldest_of(broker, capsys, "hot-0") - 1]]
        await until(lambda: losses(state(broker, capsys)[1])["hot"] == hot)
        _, away = state(broker, capsys)
        assert (away["verdict"], away["totals"]["records"]) == ("lost", 0)
        lost, waiting = away["lost_records"], away["lag_records"]
        assert lost + waiting == len(CAUSES) * RECORDS

        broker.sink.unlink()
        assert printed(capsys, "bridge", "resume", "lake", "--runtime-dir", broker.runtime_dir)[0] == 0
        await until(lambda: is_drained(state(broker, capsys)[1]))
        _, end = state(broker, capsys)
        assert losses(end) == lost_of(broker, ledger)
        assert end["totals"]["records"] + end["lost_records"] == len(CAUSES) * RECORDS
        assert end["lost_records"] >= lost  # retention may remove more meanwhile


def is_drained(found: dict[str, Any]) -> bool:
    return bool(found["totals"]["records"]) and found["lag_records"] == found["in_flight"] == 0


async def test_a_buffer_that_is_too_small_loses_records_and_all_that_reports_says_lost_with_the_same_ranges(
    place: tuple[BrimProcess, int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    broker, metrics = place
    ledger: Ledger = {stream: set() for stream in CAUSES}
    await publish(broker, ledger, 0, 5)
    await until(lambda: state(broker, capsys)[1]["totals"]["records"] == 10)
    assert state(broker, capsys)[0] == 0
    assert printed(capsys, "bridge", "pause", "lake", "--runtime-dir", broker.runtime_dir)[0] == 0
    await publish(broker, ledger, 5, RECORDS)
    await until(lambda: losses(state(broker, capsys)[1]).keys() == CAUSES.keys())
    hot = [[5, oldest_of(broker, capsys, "hot-0") - 1]]
    await until(lambda: losses(state(broker, capsys)[1])["hot"] == hot)  # looked for every two seconds
    status, paused = state(broker, capsys)
    assert (status, paused["verdict"]) == (Exit.LOST, "lost")
    assert {it for row in paused["losses"] for it in row["lost_by"]} == set(CAUSES.values())

    assert printed(capsys, "bridge", "resume", "lake", "--runtime-dir", broker.runtime_dir)[0] == 0
    await until(lambda: state(broker, capsys)[1]["lag_records"] == 0)
    await until(lambda: state(broker, capsys)[1]["in_flight"] == 0)
    expected = lost_of(broker, ledger)
    assert all(expected.values())
    assert hot == expected["hot"]  # it was certain while the bridge still paused
    check_status(broker, capsys, expected)
    check_metrics(metrics, expected)
    check_lake(broker, capsys, expected, tmp_path)

    broker.stop()
    broker.start()  # nothing is forgotten
    check_status(broker, capsys, expected)


def check_status(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str], expected: dict[str, Ranges]
) -> None:
    status, found = state(broker, capsys)
    assert (status, found["verdict"], found["skipped_records"]) == (Exit.LOST, "lost", 0)
    assert losses(found) == expected
    for row in found["losses"]:
        count = records_in(expected[row["stream"]])
        assert row["lost_by"] == {CAUSES[row["stream"]]: count}
        assert (row["lost_ranges"], row["undeclared_records"]) == (len(expected[row["stream"]]), 0)
    for words in (("status",), ("bridge", "status")):
        status, said = printed(capsys, *words, "--runtime-dir", broker.runtime_dir)
        assert status == Exit.LOST
        assert "lost     nothing" not in said
        for stream, ranges in expected.items():
            assert f"LOST     {stream}/0: {records_in(ranges)} records" in said
            assert f"offsets {ranges[-1][0]} to {ranges[-1][1]}" in said


def check_metrics(port: int, expected: dict[str, Ranges]) -> None:
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    for stream, ranges in expected.items():
        cause, count = CAUSES[stream], records_in(ranges)
        assert f'brim_bridge_never_drained_total{{bridge="lake",cause="{cause}"}} {count}' in lines
        place = f'bridge="lake",stream="{stream}",partition="0",cause="{cause}"'
        assert f"brim_bridge_partition_never_drained_total{{{place}}} {count}" in lines
    assert 'brim_bridge_never_drained_total{bridge="lake",cause="skipped"} 0' in lines


def check_lake(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str], expected: dict[str, Ranges], tmp_path: Path
) -> None:
    status, out = printed(capsys, "spark", "gaps", broker.sink, "--json")
    found = json.loads(out)
    assert (status, found["verdict"], found["missing"]) == (GAPS_LOST, "lost", 0)
    assert status != GAPS_MISSING
    assert {it["stream"]: it["lost"] for it in found["epochs"]} == expected
    page = tmp_path / "report.html"
    assert printed(capsys, "spark", "report", broker.sink, "--to", page)[0] == GAPS_LOST
    assert 'data-verdict="lost">LOST' in page.read_text()
    assert "complete</span>" not in page.read_text()


def records_in(ranges: Ranges) -> int:
    return sum(last - first + 1 for first, last in ranges)
