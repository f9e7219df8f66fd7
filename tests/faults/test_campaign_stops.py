"""Ctrl-C ends a campaign: its table is shown, and no process and no file of it is left."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.support.children import ModuleChild
from tests.support.directories import SHARED_MEMORY
from tests.support.waiting import wait_until


def children_of(pid: int) -> list[int]:
    return [
        int(it) for file in Path(f"/proc/{pid}/task").glob("*/children") for it in file.read_text().split()
    ]


def runs(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_campaign_that_is_interrupted_shows_its_table_and_leaves_no_process() -> None:
    campaign = ModuleChild("tests.campaigns", "flips", "--processes", 2, "--count", 1 << 30, "--seed", 0)
    campaign.lines_until("damages")
    workers = children_of(campaign.pid)
    assert len(workers) >= 2
    code, output, _ = campaign.stop(signal.SIGINT)
    assert code == 130
    facts = json.loads(output.splitlines()[-1])
    assert facts["interrupted"] == 1
    wait_until(lambda: not any(map(runs, workers)))  # Python's resource tracker ends after its parent
    assert [*SHARED_MEMORY.glob(f"brim-test-{campaign.pid}-*")] == []
