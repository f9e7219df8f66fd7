"""Ctrl-C and SIGTERM of a campaign: a result of what was done, and no process and no file is left."""

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.children import ModuleChild
from tests.support.directories import SHARED_MEMORY
from tests.support.waiting import wait_until


def descendants(pid: int) -> Iterator[int]:
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            for child in map(int, listing.read_text().split()):
                yield child
                yield from descendants(child)


def command_of(pid: int) -> bytes:
    """Its command; b"": it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def has_broker(campaign: ModuleChild) -> None:
    wait_until(lambda: any(b"\0edge\0run\0" in command_of(it) for it in descendants(campaign.pid)))


def has_counts(campaign: ModuleChild) -> None:
    campaign.lines_until("damages")


@pytest.mark.parametrize(
    ("name", "processes", "begins", "number"),
    [
        ("spill", 1, has_broker, signal.SIGINT),
        ("spill", 1, has_broker, signal.SIGTERM),
        ("flips", 2, has_counts, signal.SIGINT),
        ("kill", 2, has_broker, signal.SIGTERM),
    ],
)
def test_an_interrupted_campaign_shows_its_counts_and_leaves_no_process(
    name: str, processes: int, begins: Callable[[ModuleChild], None], number: int
) -> None:
    arguments = (name, "--count", 1 << 30, "--seed", 1, "--processes", processes)
    with ModuleChild("tests.campaigns", *arguments) as campaign:
        begins(campaign)
        left = [campaign.pid, *descendants(campaign.pid)]
        assert len(left) > processes
        status, out, log = campaign.stop(number)
    assert (status, log) == (130, "")
    counts = json.loads(out.splitlines()[-1])
    assert (counts["campaign"], counts["wrong"], counts["interrupted"]) == (name, 0, 1)
    wait_until(lambda: not any(map(command_of, left)))  # Python's resource tracker ends after its parent
    assert [it for pid in left for it in SHARED_MEMORY.glob(f"brim-test-{pid}-*")] == []
