"""Topics of users, as the status counts them: those of $SYS are the broker's own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edge.client
from edge.cli import main
from tests.support.brim_process import BrimProcess
from tests.support.status_report import report_of
from tests.support.waiting import until


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, "[sys]\ninterval_s = 1\n", bridge=False) as brim:
        yield brim


def mqtt(broker: BrimProcess) -> dict[str, Any]:
    found: dict[str, Any] = report_of(broker.runtime_dir)["mqtt"]
    return found


async def test_the_status_counts_the_topics_of_users_and_not_those_of_sys(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    await until(lambda: mqtt(broker)["sys_topics"] > 20)
    assert (mqtt(broker)["topics"], mqtt(broker)["retained"]) == (0, 0)
    async with edge.client.connect(f"mqtt://127.0.0.1:{broker.port}") as client:
        for number in range(3):
            await client.publish(f"plant/{number}", b"x", qos=1, retain=number == 0)
        await until(lambda: mqtt(broker)["topics"] == 3)
        assert mqtt(broker)["retained"] == 1
        assert main(["status", "--runtime-dir", str(broker.runtime_dir)]) == 0
    assert "3 topics, 1 retained" in capsys.readouterr().out
