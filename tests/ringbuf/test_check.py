"""The check of a ring that is taken over: every record is true, or declared lost, and the ring continues."""

import random
import struct
from dataclasses import dataclass
from pathlib import Path

import pytest

from ringbuf import Ring, crc32c
from ringbuf.check import Check, Damage
from ringbuf.constants import HEADER_BYTES
from ringbuf.errors import OffsetGone, Overrun
from ringbuf.ring import ring_file
from tests.support.rings import CAPACITY_BYTES, new_ring

CASES = 400  # of each kind of damage
EPOCH = 7  # of new_ring()
GAP = struct.Struct("<IIQQQ")  # gap marker of c/base/record.h: length, checksum, offset, count, zeros
EXTENT = {"bit": 1, "byte": 1, "zeros": 600, "garbage": 512, "sector": 512}


@dataclass
class Written:
    """A ring as its writer left it."""

    path: Path
    image: bytes
    payloads: dict[int, bytes]  # of all records that a reader finds, by offset
    places: dict[int, tuple[int, int]]  # of their bytes in the file: begin and end
    end: int

    def hit(self, begin: int, end: int) -> set[int]:
        """The records that have bytes in that part of the file."""
        return {it for it, (first, last) in self.places.items() if first < end and begin < last}


def written(directory: Path, laps: float, seed: int, largest: int = 3000) -> Written:
    """A ring with records of many lengths, whose writer has gone without a word."""
    rng = random.Random(seed)
    with new_ring(directory) as ring:
        writer = ring.writer()
        while writer.end_position < CAPACITY_BYTES * laps:
            length = rng.choice((0, 8, 40, 200, rng.randrange(largest)))
            writer.publish(rng.randbytes(length), key=f"k/{writer.end_offset % 7}")
        end = writer.end_offset
    return seen(ring.path, end)


def seen(path: Path, end: int) -> Written:
    """Records that readers find in the ring at `path`."""
    payloads, places = {}, {}
    with Ring.reattach(path) as ring, ring.reader(start="oldest") as reader:
        while (record := reader.poll()) is not None:
            payloads[record.offset] = record.bytes()
            begin = HEADER_BYTES + record.position % CAPACITY_BYTES
            places[record.offset] = (begin, HEADER_BYTES + (reader.cursor - 1) % CAPACITY_BYTES + 1)
    return Written(path, ring_file(path).read_bytes(), payloads, places, end)


def damaged(image: bytes, kind: str, rng: random.Random, first: int = 0) -> tuple[bytes, int, int]:
    """The image with damage, and the part of it that was hit."""
    begin = rng.randrange(first, len(image))
    if kind == "sector":
        begin -= begin % EXTENT[kind]
    end = min(begin + EXTENT[kind], len(image))
    part = bytearray(image[begin:end])
    if kind in ("bit", "byte"):
        part[0] ^= 1 << rng.randrange(8) if kind == "bit" else rng.randrange(1, 256)
    else:
        part = bytearray(len(part)) if kind == "zeros" else bytearray(rng.randbytes(len(part)))
    return image[:begin] + bytes(part) + image[end:], begin, end


def found_in(ring: Ring) -> dict[int, bytes]:
    """Records that a reader finds, from the oldest one on."""
    found = {}
    with ring.reader(start="oldest", overrun="count") as reader:
        while (record := reader.poll()) is not None:
            found[record.offset] = record.bytes()
    return found


def lost_by(check: Check) -> set[int]:
    """The records that a check declares lost."""
    return {offset for it in check.lost for offset in range(it.offset, it.end_offset)}


@pytest.mark.parametrize("laps", [0.02, 0.5, 1.0, 3.3])
def test_a_ring_without_damage_loses_nothing(runtime_directory: Path, laps: float) -> None:
    for seed in range(40):
        left = written(runtime_directory, laps, seed)
        with Ring.reattach(left.path) as ring:
            assert ring.check is not None
            assert (ring.check.lost, ring.check.restored, ring.check.rebuilt) == ([], [], ())
            assert found_in(ring) == left.payloads
            assert ring.writer().end_offset == left.end
            ring.unlink()


@pytest.mark.parametrize("kind", EXTENT)
@pytest.mark.parametrize("laps", [0.02, 0.7, 3.3])
def test_damage_costs_at_most_the_records_that_it_hits(
    runtime_directory: Path, laps: float, kind: str
) -> None:
    left = written(runtime_directory, laps, seed=round(laps * 10))
    for case in range(CASES):
        rng = random.Random(f"{kind} {case}")
        image, begin, end = damaged(left.image, kind, rng, HEADER_BYTES * (case % 3 > 0))
        where = f"{kind} {case}: bytes {begin} to {end}"
        ring_file(left.path).write_bytes(image)
        with Ring.reattach(left.path) as ring:
            found, check = found_in(ring), ring.check
            assert check is not None
            assert ring.writer().publish(b"after", key="k") == left.end, where
            assert found == {it: left.payloads[it] for it in found}, where
            gone = left.payloads.keys() - found.keys()
            assert gone <= left.hit(begin, end), where
            assert gone <= lost_by(check), where


@pytest.mark.parametrize("length", [0, 100, HEADER_BYTES - 1, HEADER_BYTES + 40_000])
def test_of_a_ring_that_was_cut_the_rest_is_kept(runtime_directory: Path, length: int) -> None:
    left = written(runtime_directory, 3.3, seed=5)
    ring_file(left.path).write_bytes(left.image[:length])
    if length < HEADER_BYTES:
        with pytest.raises(Exception, match="ring"):
            Ring.reattach(left.path)
        return
    with Ring.reattach(left.path) as ring:
        assert ring.check is not None
        assert ring.check.rebuilt == ("size",)
        found = found_in(ring)
        assert found == {it: left.payloads[it] for it in found}
        assert left.payloads.keys() - found.keys() == left.hit(length, len(left.image)) == lost_by(ring.check)
        assert ring.writer().publish(b"after") == left.end


def test_a_ring_that_has_grown_is_cut_to_its_size(runtime_directory: Path) -> None:
    left = written(runtime_directory, 1.5, seed=6)
    ring_file(left.path).write_bytes(left.image + bytes(5000))
    with Ring.reattach(left.path) as ring:
        assert found_in(ring) == left.payloads
    assert ring_file(left.path).stat().st_size == len(left.image)


def test_a_copy_restores_what_was_damaged(runtime_directory: Path) -> None:
    left = written(runtime_directory, 3.3, seed=7)
    for case in range(50):
        image, _, _ = damaged(left.image, "sector", random.Random(case), HEADER_BYTES)
        ring_file(left.path).write_bytes(image)

        restored: list[Damage] = []

        def restore(damage: Damage, memory: memoryview, restored: list[Damage] = restored) -> bool:
            for at in range(damage.position, damage.end_position):
                place = at % CAPACITY_BYTES
                memory[place] = left.image[HEADER_BYTES + place]
            restored.append(damage)
            return True

        with Ring.reattach(left.path, restore) as ring:
            assert ring.check is not None
            assert (ring.check.restored, ring.check.lost) == (restored, [])
            assert found_in(ring) == left.payloads


@pytest.mark.parametrize("length", [HEADER_BYTES, HEADER_BYTES + 7_000, HEADER_BYTES + 100_000])
def test_a_copy_restores_a_ring_of_which_little_or_nothing_is_left(
    runtime_directory: Path, length: int
) -> None:
    left = written(runtime_directory, 3.3, seed=8)
    ring_file(left.path).write_bytes(left.image[:length])

    def restore(damage: Damage, memory: memoryview) -> bool:
        for at in range(damage.position, damage.end_position):
            memory[at % CAPACITY_BYTES] = left.image[HEADER_BYTES + at % CAPACITY_BYTES]
        return True

    with Ring.reattach(left.path, restore) as ring:
        assert ring.check is not None
        assert lost_by(ring.check) == set()
        assert found_in(ring) == left.payloads
        assert ring.writer().publish(b"after") == left.end


def test_a_reader_is_told_of_a_gap_and_passes_it(runtime_directory: Path) -> None:
    left = written(runtime_directory, 0.5, seed=8)
    first, last = 3, 5
    image = bytearray(left.image)
    image[left.places[first][0] + 8 : left.places[last][0] + 40] = bytes(
        left.places[last][0] + 32 - left.places[first][0]
    )
    ring_file(left.path).write_bytes(image)
    lost = last - first + 1
    with Ring.reattach(left.path) as ring:
        with ring.reader(start="oldest") as reader:
            assert [record.offset for record in reader.read_many(3)] == [0, 1, 2]
            with pytest.raises(Overrun) as caught:
                reader.poll()
            assert caught.value.lost == reader.lost == lost
            after = reader.poll()
            assert after is not None
            assert after.offset == last + 1
        with ring.reader(start="oldest") as reader:
            assert [it.offset + it.count for it in reader.ranges(1 << 20)] == [first]
            with pytest.raises(Overrun):
                reader.ranges(1 << 20)
            assert reader.ranges(1 << 20)[0].offset == last + 1
        with ring.reader(start="oldest") as reader:
            reader.seek(last + 1)
            with pytest.raises(OffsetGone) as gone:
                reader.seek(first + 1)
            assert gone.value.nearest == reader.offset == last + 1
            reader.seek_time(0)
            assert reader.offset == 0
    with Ring.reattach(left.path) as again:  # a gap stays one
        assert again.check is not None
        assert (again.check.lost, again.check.rebuilt) == ([], ())
        assert len(found_in(again)) == len(left.payloads) - lost


def test_every_place_of_a_gap_leads_to_its_end(runtime_directory: Path) -> None:
    """Positions of records are kept elsewhere, and may now lie in one."""
    left = written(runtime_directory, 3.3, seed=9)
    offset = sorted(left.places)[20]
    begin, end = left.places[offset]
    image = bytearray(left.image)
    image[begin + 4] ^= 1
    ring_file(left.path).write_bytes(image)
    with Ring.reattach(left.path):
        data = ring_file(left.path).read_bytes()
    end += -end % 32
    for at in range(begin, end, 32):
        length, crc, first, count, zeros = GAP.unpack_from(data, at)
        assert length == 0xC000_0000 | (end - at)
        assert (first, count, zeros) == ((offset, 1, 0) if at == begin else (offset + 1, 0, 0))
        assert crc == crc32c(data[at : at + 4], crc32c(data[at + 8 : at + 32], EPOCH))


def test_a_large_ring_is_checked_in_bounded_time(runtime_directory: Path) -> None:
    """Records in a payload that imitate those of the ring do not make a search quadratic."""
    image = None
    with new_ring(runtime_directory) as ring:
        writer = ring.writer()
        writer.publish(b"first")
        claimed = bytearray()
        for _ in range(CAPACITY_BYTES // 8 // 32):
            claimed += (12_000).to_bytes(4, "little") + bytes(4) + (1).to_bytes(8, "little") + bytes(16)
        writer.publish(bytes(claimed))
        writer.publish(b"last")
        image = ring_file(ring.path).read_bytes()
    data = bytearray(image)
    data[HEADER_BYTES + 64 + 4] ^= 1
    ring_file(ring.path).write_bytes(data)
    with Ring.reattach(ring.path) as again:
        assert again.check is not None
        assert [it.records for it in again.check.lost] == [1]
        assert found_in(again) == {0: b"first", 2: b"last"}
