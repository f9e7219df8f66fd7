"""Ctrl-C and SIGTERM of a campaign: a result of what was done, and no process is left."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.children import ModuleChild
from tests.support.waiting import wait_until


def descendants(pid: int) -> Iterator[int]:
    for listing in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            pids = [int(text) for text in listing.read_text().split()]
        except OSError:  # The thread has ended.
            continue
        for child in pids:
            yield child
            yield from descendants(child)


def brokers_of(pid: int) -> list[int]:
    return [it for it in descendants(pid) if b"\0edge\0run\0" in command_of(it)]


def command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_campaign_shows_its_counts_and_leaves_no_process(number: int) -> None:
    with ModuleChild("tests.campaigns", "spill", "--count", 100, "--seed", 1, "--processes", 1) as campaign:
        wait_until(lambda: brokers_of(campaign.pid))
        left = list(descendants(campaign.pid))
        status, out, log = campaign.stop(number)
    assert (status, log) == (130, "")
    counts = json.loads(out.splitlines()[-1])
    assert (counts["campaign"], counts["wrong"], counts["interrupted"]) == ("spill", 0, 1)
    assert not any(b"edge" in command_of(pid) for pid in left)
