"""Writes random bytes over ring files, under a live reader and before one attaches: errors, never a crash.

    python -m tests.simulation.random_bytes --count 1000 [--seed N]

Every exception but RingError ends it, and so would a signal; it is meant to run as a process of its own.
"""

import argparse
import os
import random
import tempfile
from collections import Counter
from pathlib import Path

from ringbuf import Reader, Ring, RingError
from ringbuf.constants import HEADER_BYTES
from ringbuf.ring import ring_file
from tests.support.rings import payload_of

CAPACITY_BYTES = 1 << 16
PLACES = {  # of the file: see c/ring/layout.h
    "geometry": (0, 128),
    "end": (128, 256),
    "watermark": (256, 384),
    "slots": (1024, 2048),
    "index": (4096, 4096 + 16 * 32),
    "records": (HEADER_BYTES, HEADER_BYTES + CAPACITY_BYTES),
    "all": (0, HEADER_BYTES + CAPACITY_BYTES),
}


def nonsense(dice: random.Random, length: int) -> bytes:
    """Random bytes, or one word again and again: both kinds break things."""
    word = dice.choice([0, 1, 32, 0x80000000, 0x80000020, 0xFFFFFFFF, dice.getrandbits(32)]).to_bytes(
        4, "little"
    )
    return dice.randbytes(length) if dice.random() < 0.5 else word * (length // 4)


def damage(path: Path, dice: random.Random) -> str:
    """Overwrites a part of the ring file; its name."""
    name = dice.choice(list(PLACES))
    first, last = PLACES[name]
    begin = dice.randrange(first, last, 4)
    length = min(last - begin, 4 * dice.choice([1, 2, 8, 1000, 1 << 20]))
    descriptor = os.open(ring_file(path), os.O_WRONLY)
    try:
        os.pwrite(descriptor, nonsense(dice, length), begin)
    finally:
        os.close(descriptor)
    return name


def use(reader: Reader, dice: random.Random) -> None:
    """Everything that a reader does with what it finds."""
    way = dice.randrange(7)
    if way == 0:
        reader.seek_oldest()
    elif way == 1:
        reader.seek(dice.randrange(2000))
    elif way == 2:
        reader.seek_time(dice.getrandbits(63))
    elif way == 3:
        reader.seek_latest()
    for _ in range(50):
        if (record := reader.poll()) is None:
            break
        record.bytes(), record.key, record.properties, sum(memoryview(record)[:10]), record.valid()
    for record in reader.read_many(100):
        bytes(record)
    for run in reader.ranges(1 << 20):
        bytes(run.view)
    reader.wait(0)


def tried(seen: Counter[str], work: object) -> None:
    """Do it, and count what it raises; anything but a RingError goes through."""
    assert callable(work)
    try:
        work()
        seen["no error"] += 1
    except RingError as error:
        assert str(error)
        seen[type(error).__name__] += 1


def one_ring(directory: Path, dice: random.Random, seen: Counter[str]) -> None:
    """A ring with a live reader and a live writer, damaged some times, then attached and taken over."""
    path = directory / "ring"
    with Ring.create(path, capacity_bytes=CAPACITY_BYTES, epoch=dice.getrandbits(32)) as ring:
        writer = ring.writer(queue_timeout_ms=0)
        for i in range(dice.randrange(600)):
            writer.publish(payload_of(i, dice.randrange(300)), key="k" * dice.randrange(20))
        with Ring.attach(path) as attached:
            readers = [attached.reader(start="oldest", verify=dice.random() < 0.5) for _ in range(2)]
            readers.append(ring.reader(local=True, blocks_writer=True))
            for _ in range(5):
                damage(path, dice)
                for reader in readers:
                    tried(seen, lambda reader=reader: use(reader, dice))
                tried(seen, lambda: writer.publish(payload_of(0, dice.randrange(300))))
                tried(seen, attached.extremes)
                tried(seen, ring.slots)

    def attach() -> None:
        with Ring.attach(path) as again:
            use(again.reader(), dice)

    def take_over() -> None:
        with Ring.reattach(path) as again:
            again.writer().publish(b"x")
            use(again.reader(start="oldest"), dice)

    damage(path, dice)
    tried(seen, attach)
    tried(seen, take_over)
    ring.unlink()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Damage rings at random while they are used.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    seen: Counter[str] = Counter()
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory(
        prefix="brim-random-", dir=os.environ.get("RUNTIME_DIRECTORY", "/dev/shm")
    ) as it:
        for _ in range(options.count):
            one_ring(Path(it), dice, seen)
    print(
        f"{options.count} rings damaged: "
        + ", ".join(f"{name} {count}" for name, count in seen.most_common())
    )


if __name__ == "__main__":
    main()
