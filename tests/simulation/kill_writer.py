"""Kills a writing process at random moments, again and again, and holds what readers saw against what may be.

    python -m tests.simulation.kill_writer --count 1000 [--seed N]

Each writer takes over the ring of the one before it (Ring.reattach), publishes in every way there is until
it is killed with SIGKILL.  A blocking reader that lives through all of it must see every offset once, in
order, with the payload that belongs to it; a plain one may lose some, but counts them.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from ringbuf import Reader, Ring, Writer
from ringbuf.errors import WriterAlive
from tests.support.rings import payload_of

CAPACITY_BYTES = 1 << 17
LONGEST_LIFE_S = 0.01


def length_of(offset: int) -> int:
    """Of the payload: mostly small, sometimes many chunks."""
    return offset * 7919 % 97 if offset % 50 else offset * 31 % 9000


def write_until_killed(path: Path, seed: int) -> None:
    """In the child."""
    dice = random.Random(seed)
    with Ring.reattach(path) as ring:
        writer = ring.writer(when_full="block", queue_timeout_ms=3_600_000)
        while True:
            publish_somehow(writer, dice.randrange(4))


def publish_somehow(writer: Writer, way: int) -> None:
    """One of the four ways in which records come into a ring."""
    offset = writer.end_offset
    payload = payload_of(offset, length_of(offset))
    if way == 0:
        writer.publish(payload, key=f"device/{offset % 7}")
    elif way == 1:
        offsets = range(offset, offset + 20)
        writer.publish_many([payload_of(i, length_of(i)) for i in offsets], key="many")
    elif claim := writer.claim(len(payload) + 100, key="claimed"):
        memoryview(claim)[: len(payload)] = payload
        if way == 2:
            claim.commit(len(payload))
        else:
            claim.abort()


class Witness:
    """A reader that checks what it reads."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.next = reader.offset
        self.seen = 0

    def read(self) -> bool:
        """Some of what is there; whether there was any."""
        batch = self.reader.read_many(200)
        for record in batch:
            assert record.offset >= self.next, f"{record.offset} after {self.next - 1}"
            self.next = record.offset + 1
            assert record.bytes() == payload_of(record.offset, length_of(record.offset)), record.offset
            self.seen += 1
        return len(batch) > 0

    def read_all(self) -> None:
        """Read up to the end, while no writer runs."""
        while self.read():
            pass


def run(directory: Path, count: int, seed: int) -> tuple[int, int]:
    """(records, writers killed).  Raises AssertionError at the first thing that is not so."""
    dice = random.Random(seed)
    path = directory / "ring"
    Ring.create(path, capacity_bytes=CAPACITY_BYTES, epoch=seed).close()
    with Ring.attach(path) as ring:
        sure = Witness(ring.reader(blocks_writer=True, verify=True))
        loose = Witness(ring.reader(verify=True, overrun="count"))
        for _ in range(count):
            child = os.fork()
            if child == 0:
                try:
                    write_until_killed(path, dice.randrange(1 << 30))
                finally:
                    os._exit(1)
            end = time.monotonic() + dice.uniform(0.002, LONGEST_LIFE_S)
            while time.monotonic() < end:
                sure.read()
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status), "the writer ended by itself"
            dice.random()
            sure.read_all()
            loose.read_all()
            assert sure.seen == sure.next, f"{sure.next} offsets, but {sure.seen} records"
        assert loose.next == sure.next
        assert loose.seen + loose.reader.lost == sure.seen
        with Ring.reattach(path) as again:
            assert again.writer().end_offset == sure.next, "the next writer goes on elsewhere"
            try:
                Ring.reattach(path)
                raise AssertionError("two writers")
            except WriterAlive:
                pass
        return sure.seen, count


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Kill a ring's writer at random moments.")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(
        prefix="brim-kill-", dir=os.environ.get("RUNTIME_DIRECTORY", "/dev/shm")
    ) as it:
        records, killed = run(Path(it), options.count, options.seed)
    print(f"{killed} writers killed, {records} records seen, each once and whole")


if __name__ == "__main__":
    main()
