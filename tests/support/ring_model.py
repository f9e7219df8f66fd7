"""A ring under a simulated log, and all that was ever published to it, through all of its lives.

The ring is a real one; what is simulated is that its memory is lost with the power.  Then a new ring of the
same name begins, in the next epoch, where the log ends.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from ringbuf import Ring

RING_BYTES = 65536
SIZES = {
    "mixed": lambda random: random.choice((0, 1, random.randrange(200), random.randrange(2000))),
    "equal": lambda random: 900,  # extents stand where those of an earlier life of the file stood
    "large": lambda random: random.randrange(4000, 14000),  # the ring comes round within some steps
}


@dataclass
class Life:
    """Records of one epoch of a ring: first_offset <= offset < end_offset."""

    epoch: int
    first_offset: int
    data: bytearray = field(default_factory=bytearray)  # records as they stand in the ring, without padding
    begins: list[int] = field(default_factory=list)  # of each record in `data`
    ends: list[int] = field(default_factory=list)  # ring position behind each record

    @property
    def end_offset(self) -> int:
        """The offset that comes next."""
        return self.first_offset + len(self.begins)

    def expected(self, first: int, end: int) -> bytes:
        """Records first <= offset < end."""
        if first == end:
            return b""
        begin, stop = first - self.first_offset, end - self.first_offset
        at = self.begins[stop] if stop < len(self.begins) else len(self.data)
        return bytes(self.data[self.begins[begin] : at])

    def cut(self, end: int) -> None:
        """Lose the records after the offset `end`."""
        self.data = bytearray(self.expected(self.first_offset, end))
        del self.begins[end - self.first_offset :]
        del self.ends[end - self.first_offset :]


class RingModel:
    """A ring that is published to, and its past."""

    def __init__(self, path: Path, epoch: int, durability: str, directory: str) -> None:
        self.path, self.name = path, path.name
        self.durability = durability
        self.directory = directory  # of its log
        self.past: list[Life] = []
        self._begin(epoch, 0)

    def _begin(self, epoch: int, first_offset: int) -> None:
        self.life = Life(epoch, first_offset)
        self.ring = Ring.create(
            self.path, capacity_bytes=RING_BYTES, epoch=epoch, first_offset=first_offset, populate=False
        )
        self.writer = self.ring.writer()
        self.tap = self.ring.reader(start="oldest")

    def publish(self, random: Random, kind: str) -> None:
        """One record, sometimes filled in place; none if the ring is full."""
        if kind == "mixed" and random.random() < 0.03:
            claim = self.writer.claim(random.randrange(4097, 6000), key=b"place")
            if not claim:
                return
            memoryview(claim)[:] = random.randbytes(len(memoryview(claim)))
            claim.commit()
        else:
            size = SIZES[kind](random)
            if self.writer.publish(random.randbytes(size), key=f"t/{size % 3}") is None:
                return
        self.life.ends.append(self.ring.extremes().end_position)
        for found in self.tap.ranges(1 << 20):
            self.life.begins.append(len(self.life.data))
            self.life.data += found.view

    def acknowledged(self) -> int:
        """The offset below which all has been said to be durable."""
        done = bisect_right(self.life.ends, self.ring.extremes().durable_position)
        return self.life.first_offset + done

    def lose_memory(self, end: int) -> None:
        """The power was cut, and the log ends at the offset `end`: there the next life begins."""
        self.close()
        self.life.cut(end)
        self.past.append(self.life)
        self._begin(self.life.epoch + 1, end)

    def close(self) -> None:
        """The ring is gone."""
        self.tap.close()
        self.ring.close()
        self.ring.unlink()
