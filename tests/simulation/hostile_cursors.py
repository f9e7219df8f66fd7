"""Writes nonsense into a ring's cursor file for as long as it takes, while its writer writes on.

    python -m tests.simulation.hostile_cursors --count 10000000 [--seed N]

The hostile process may do to the file what any reader may: every word of every slot but one, the sleepers and
the head.  The writer's own blocking reader must see every record, and so must the one foreign reader whose
slot is spared; the writer may be refused until its queue timeout is over, but must come on.
"""

import argparse
import os
import random
import tempfile
from pathlib import Path

import numpy as np

from ringbuf import Reader, Ring
from ringbuf.constants import CURSORS_BYTES, REMOTE_SLOTS
from ringbuf.ring import cursor_file
from tests.support.rings import payload_of

CAPACITY_BYTES = 1 << 16
SLOTS_AT, SLOT_BYTES = 4096, 128  # see c/ring/layout.h
BURST = 10_000
STATES = np.arange(5, dtype=np.uint32)
BOUNDARIES = np.array(
    [0, 1, 2, 3, 31, 32, (1 << 16) - 1, 1 << 16, (1 << 32) - 1, 1 << 63, (1 << 64) - 1], np.uint64
)


def scribble(path: Path, count: int, seed: int, spared: int) -> None:
    """In the child: `count` writes, half of them to the words that a writer reads."""
    dice = np.random.default_rng(seed)
    ring = Ring.attach(path)
    readers = [ring.reader() for _ in range(REMOTE_SLOTS - 1)]  # alive, so that no sweep helps
    memory = np.memmap(cursor_file(path), np.uint8, "r+", shape=(CURSORS_BYTES,))
    words, halves = memory.view(np.uint64), memory.view(np.uint32)
    first, last = (SLOTS_AT + SLOT_BYTES * spared) // 8, (SLOTS_AT + SLOT_BYTES * (spared + 1)) // 8
    slots = np.array([slot for slot in range(64) if slot != spared])
    for _ in range(count // (4 * BURST) + 1):
        # Where a reader could be: that is what holds a writer back.
        near = words[first + 1] - np.uint64(32) * dice.integers(0, CAPACITY_BYTES // 32 + 8, BURST, np.uint64)
        words[dice.choice(slots, BURST) * 16 + SLOTS_AT // 8 + 1] = near
        halves[dice.choice(slots, BURST) * 32 + SLOTS_AT // 4] = dice.choice(STATES, BURST)
        anywhere = dice.integers(0, CURSORS_BYTES // 8, BURST)
        values = np.where(
            dice.random(BURST) < 0.5,
            dice.choice(BOUNDARIES, BURST),
            dice.integers(0, 1 << 63, BURST, np.uint64),
        )
        words[np.where((first <= anywhere) & (anywhere < last), 0, anywhere)] = values
        assert all(reader.open for reader in readers)
        words[16] = dice.integers(0, 1 << 63, dtype=np.uint64)  # all kinds of sleepers


def check(reader: Reader) -> None:
    """All that is there is in order and whole."""
    expected = reader.offset
    for record in reader.read_many(500):
        assert record.offset == expected, f"{record.offset} instead of {expected}"
        assert record.bytes() == payload_of(expected)
        expected += 1


def run(directory: Path, count: int, seed: int) -> tuple[int, int]:
    """(records published while the other scribbled, publishes refused meanwhile)."""
    with Ring.create(directory / "ring", capacity_bytes=CAPACITY_BYTES, epoch=1) as ring:
        writer = ring.writer(queue_timeout_ms=1)
        own = ring.reader(local=True, blocks_writer=True, verify=True)
        with Ring.attach(ring.path) as attached:
            foreign = attached.reader(blocks_writer=True, verify=True)
            child = os.fork()
            if child == 0:
                try:
                    scribble(ring.path, count, seed, foreign.slot)
                    os._exit(0)
                finally:
                    os._exit(1)
            refused = 0
            while os.waitpid(child, os.WNOHANG) == (0, 0):
                for _ in range(50):
                    refused += writer.publish(payload_of(writer.end_offset)) is None
                check(own)
                check(foreign)
            published = writer.end_offset
            for _ in range(5):
                ring.sweep()
            for _ in range(1000):
                assert writer.publish(payload_of(writer.end_offset)) is not None, (
                    "still refused when all is quiet"
                )
                check(own)
                check(foreign)
            assert own.offset == foreign.offset == writer.end_offset
        return published, refused


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Scribble over a cursor file while its ring is written.")
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(
        prefix="brim-hostile-", dir=os.environ.get("RUNTIME_DIRECTORY", "/dev/shm")
    ) as it:
        published, refused = run(Path(it), options.count, options.seed)
    assert published > 1000, f"only {published} records came through"
    print(
        f"{options.count} hostile writes: {published} records came through whole, "
        f"{refused} were refused at first"
    )


if __name__ == "__main__":
    main()
