"""Campaigns (./dev simulate) as processes: a signal ends them with all that they have started."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.project import ROOT
from tests.support.waiting import wait_until


def children_of(pid: int) -> set[int]:
    """The processes that `pid` has started, and those of them."""
    found: set[int] = set()
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            for child in map(int, listing.read_text().split()):
                found |= {child} | children_of(child)
    return found


def is_python_worker(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def test_a_signal_ends_a_campaign_with_its_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.campaigns", "kill", "--processes", "2", "--count", "1000000"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True) as campaign,
    ):
        wait_until(lambda: sum(map(is_python_worker, children_of(campaign.pid))) == 2)
        wait_until(lambda: len(children_of(campaign.pid)) > 3)  # a worker has begun
        started = children_of(campaign.pid)
        campaign.send_signal(signal.SIGTERM)
        assert campaign.wait(60) == 130, (tmp_path / "log").read_text()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
