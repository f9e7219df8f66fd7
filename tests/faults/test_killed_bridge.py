"""kill -9, wherever it hits: in the files every record is there exactly once, or declared lost exactly once.

The ledger is kept here, outside: what was published, against what the files hold.
"""

import os
import random
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from bridge.format.file_parser import parse, verify
from ringbuf import Ring
from tests.support.bridges import EPOCH, drain, publish, ring, run_dry, settings
from tests.support.children import Child, ModuleChild
from tests.support.drained_files import offsets_drained

FILE_BYTES = 4096


def settle_accounts(root: Path, published: dict[tuple[str, int], int]) -> int:
    """Compare files with what was published.  Records declared lost."""
    there = {key: Counter(offsets) for key, offsets in offsets_drained(root / "lake").items()}
    sequence = []
    lost = 0
    for path in (root / "lake").rglob("[0-9]*.brim"):
        file = parse(path.read_bytes(), path.name)
        verify(file, path.name)
        footer = file.footer
        sequence.append(footer.drain_seq)
        for first, last in footer.lost:
            there[footer.stream, footer.partition, footer.epoch].update(range(first, last + 1))
            lost += last - first + 1
    assert sorted(sequence) == list(range(1, len(sequence) + 1))
    assert there == {(*key, EPOCH): Counter(range(count)) for key, count in published.items()}
    return lost


def killed_often(
    rings: dict[tuple[str, int], Ring], runtime: Path, root: Path, cycles: int, burst: int, window: int = 1
) -> int:
    """Publish, let a drain be killed at some line, and so on; then drain the rest.  How many were killed."""
    seed = int(os.environ.get("BRIM_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"BRIM_SEED={seed}")
    chosen = random.Random(seed)
    killed = 0
    with ModuleChild("tests.support.killed_drain", runtime, root, FILE_BYTES, window) as server:
        whole = 0
        for cycle in range(cycles):
            for made in rings.values():
                publish(made, chosen.randrange(burst))
            if cycle % 20 == 0:  # one may go to its end; it says how long that is
                server.say("0")
                whole = int(server.line().removeprefix("done "))
            else:
                server.say(str(chosen.randrange(1, 2 * whole)))
                killed += server.line() == "killed"
        server.say("0")
        assert server.line().startswith("done")
    return killed


# A run of pytest is ended after ten minutes of one test: many short campaigns, not one that is long.
CAMPAIGN = [
    pytest.param(600, id=f"campaign-{number}", marks=[pytest.mark.campaign, pytest.mark.timeout(580)])
    for number in range(5)
]


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("cycles", [50, *CAMPAIGN])
def test_killed_at_any_line_the_drain_neither_loses_nor_doubles(
    runtime_directory: Path, tmp_path: Path, cycles: int, window: int
) -> None:
    with ExitStack() as stack:
        rings = {
            ("default", number): stack.enter_context(
                ring(runtime_directory, f"default-{number}", capacity_bytes=1 << 22)
            )
            for number in range(2)
        }
        killed = killed_often(rings, runtime_directory, tmp_path, cycles, burst=100, window=window)
        assert cycles / 4 < killed < cycles
        published = {key: made.extremes().end_offset for key, made in rings.items()}
        assert settle_accounts(tmp_path, published) == 0


def test_killed_and_lapped_together_every_record_is_there_or_declared_lost(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with ring(runtime_directory) as made:
        killed_often({("default", 0): made}, runtime_directory, tmp_path, cycles=60, burst=3000, window=3)
        lost = settle_accounts(tmp_path, {("default", 0): made.extremes().end_offset})
    assert lost > 0


RUN_A_BRIDGE = """
import sys
from pathlib import Path
from bridge.drain.bridge import Bridge
from tests.support.bridges import settings
print("ready")
Bridge(settings(Path(sys.argv[1]), Path(sys.argv[2]), file_bytes=4096, linger_ms=1, window=4)).run()
"""


def test_a_bridge_of_its_own_process_is_killed_while_the_broker_publishes(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Real time, real concurrency: the writer never waits for the bridge."""
    chosen = random.Random(7)
    stopping = threading.Event()
    with ring(runtime_directory, capacity_bytes=1 << 25) as made:  # the children start slowly
        made.writer()

        def publish_on() -> None:
            while not stopping.wait(0.0005):
                publish(made, 5)

        writer = threading.Thread(target=publish_on)
        writer.start()
        try:
            for _ in range(12):
                with Child(RUN_A_BRIDGE, runtime_directory, tmp_path) as child:
                    child.line()
                    stopping.wait(chosen.uniform(0, 0.06))
                    os.kill(child.pid, signal.SIGKILL)
        finally:
            stopping.set()
            writer.join()
        with drain(settings(runtime_directory, tmp_path)) as drained:
            run_dry(drained)
        assert settle_accounts(tmp_path, {("default", 0): made.extremes().end_offset}) == 0
