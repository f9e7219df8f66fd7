"""Kills reading processes while they hold leases, again and again: no other process may stall.

    python -m tests.simulation.kill_reader --count 1000 [--seed N]

Each reader attaches, gates, takes some records in hand, and is killed with SIGKILL.  The writer's queue
timeout is an hour, so a dead reader that is not found by its lock would stop everything; and a reader that
lives must see every record all the while.
"""

import argparse
import os
import random
import signal
import tempfile
from pathlib import Path

from ringbuf import Ring
from tests.support.rings import payload_of

CAPACITY_BYTES = 1 << 16


def hold_until_killed(path: Path, count: int, ready: int) -> None:
    """In the child: takes `count` records in hand, then waits for its end, or for more."""
    with Ring.attach(path) as ring:
        reader = ring.reader(blocks_writer=True, start="oldest")
        held = [reader.poll() for _ in range(count)]
        os.write(ready, b".")
        while held:
            reader.wait()


def run(directory: Path, count: int, seed: int) -> int:
    """Records published and seen.  Raises AssertionError at the first thing that is not so."""
    dice = random.Random(seed)
    with Ring.create(directory / "ring", capacity_bytes=CAPACITY_BYTES, epoch=seed) as ring:
        writer = ring.writer(when_full="block", queue_timeout_ms=3_600_000)
        honest = ring.reader(local=True, blocks_writer=True)
        ready, tell = os.pipe()
        for _ in range(count):
            for _ in range(20):
                assert writer.publish(payload_of(writer.end_offset)) is not None
            child = os.fork()
            if child == 0:
                try:
                    hold_until_killed(ring.path, dice.randrange(20), tell)
                finally:
                    os._exit(1)
            os.read(ready, 1)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            dice.random()
            for _ in range(CAPACITY_BYTES // 200 + 50):
                assert writer.publish(payload_of(writer.end_offset)) is not None, "stalled"
                for record in honest.read_many():
                    assert record.bytes() == payload_of(record.offset)
            assert [slot.local for slot in ring.slots()] == [True], "the dead still have a slot"
        assert honest.offset == writer.end_offset
        os.close(ready)
        os.close(tell)
        return writer.end_offset


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Kill a ring's readers while they hold leases.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(
        prefix="brim-kill-", dir=os.environ.get("RUNTIME_DIRECTORY", "/dev/shm")
    ) as it:
        records = run(Path(it), options.count, options.seed)
    print(f"{options.count} readers killed, {records} records written and seen meanwhile")


if __name__ == "__main__":
    main()
