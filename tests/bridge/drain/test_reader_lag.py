"""The reader of a bridge, as `brim status` and the metrics show it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edge.client
from tests.support.brim_process import BrimProcess
from tests.support.status_report import report_of
from tests.support.waiting import until

RECORDS = 40  # far less than a chunk of the ring


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    settings = "linger_ms = 0\n[[stream]]\nname = 'few'\ntopics = ['few/#']\npartitions = 2\n"
    with BrimProcess(runtime_directory, tmp_path, settings) as brim:
        yield brim


def report(broker: BrimProcess) -> dict[str, Any]:
    return report_of(broker.runtime_dir)


def lags(status: dict[str, Any]) -> dict[str, int]:
    """Of the readers of bridges, by ring."""
    return {
        ring["name"]: reader["lag"]
        for ring in status["rings"]
        for reader in ring["readers"]
        if reader["name"] == "bridge"
    }


async def test_the_reader_of_a_bridge_that_has_drained_all_is_not_behind(broker: BrimProcess) -> None:
    async with edge.client.connect(f"mqtt://127.0.0.1:{broker.port}") as client:
        for turn in range(3):
            for number in range(RECORDS):
                topic = "few/1" if number % 2 else "other"
                await client.publish(topic, f"{turn} {number}", qos=1)

            def drained(turn: int = turn) -> bool:
                (bridge,) = report(broker)["bridges"]
                return bool(
                    bridge["lag_records"] == 0
                    and bridge["totals"]["records"] >= (turn + 1) * RECORDS
                    and bridge["condition"] == "idle"
                )

            await until(drained)
            found = lags(report(broker))
            assert len(found) == 3
            assert set(found.values()) == {0}, found
