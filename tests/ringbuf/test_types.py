"""The C types under calls that come back into Python: filters, sequences, buffers, finalizers.

Whatever such a call does with its object, the process continues, and nothing leaks.  Several tests
run in a process of their own whose freed memory is overwritten, so that a use of it ends that process.
"""

import gc
import mmap
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from ringbuf import Batch, KeyFilter, Reader, Ring, crc32c, errors
from ringbuf.constants import CURSORS_BYTES, HEADER_BYTES
from ringbuf.native import CReader, Record, Writer
from tests.support.children import Child
from tests.support.colliding import colliding_topics
from tests.support.leaks import Holdings
from tests.support.rings import CAPACITY_BYTES, drained, fill, new_ring, payload_of

DEBUG = {"PYTHONMALLOC": "debug"}  # freed memory is filled with 0xdd
BEGIN = """
import sys
from ringbuf import KeyFilter, Ring, errors
ring = Ring.create(sys.argv[1], capacity_bytes=65536, epoch=1)
writer, reader = ring.writer(), ring.reader(local=True, blocks_writer=True)
for i in range(10):
    writer.publish(b"x", key=f"{i}")
"""


def survives(directory: Path, code: str) -> str:
    """The standard output of `code`, which begins with a ring of ten records and must end well."""
    with Child(BEGIN + code, directory / "own", environment=DEBUG) as child:
        status, out, error = child.wait()
    assert status == 0, f"ended with {status}: {error}"
    return out


# ---- filters ----


def test_a_filter_may_be_taken_away_while_it_judges(runtime_directory: Path) -> None:
    code = """
def judge(key):
    reader.match = None
    return True
reader.match = KeyFilter(judge)
print(reader.poll().key, len(reader.read_many()))
"""
    assert survives(runtime_directory, code) == "b'0' 9\n"


def test_a_filter_may_be_replaced_and_cleared_while_it_judges(runtime_directory: Path) -> None:
    code = """
def judge(key):
    reader.match.clear()
    reader.match = KeyFilter(judge)
    return True
reader.match = KeyFilter(judge)
print(len(reader.read_many()))
"""
    assert survives(runtime_directory, code) == "10\n"


def test_a_reader_may_be_closed_and_dropped_by_its_filter(runtime_directory: Path) -> None:
    code = """
def judge(key):
    global reader
    reader.close()
    reader.match = None
    del reader
    return True
reader.match = KeyFilter(judge)
try:
    reader.read_many()
except errors.RingClosed as error:
    print(error)
print(ring.slots())
"""
    assert survives(runtime_directory, code) == "reader is closed\n[]\n"


@pytest.mark.parametrize(
    "use",
    [
        Reader.poll, Reader.read_many, next, Reader.seek_oldest, Reader.seek_latest,
        lambda reader: reader.seek(0), lambda reader: reader.seek_time(0), lambda reader: reader.ranges(1),
        lambda reader: reader.wait(0),
    ],
)  # fmt: skip
def test_a_reader_is_not_used_by_its_own_filter(ring: Ring, use: Callable[[Reader], object]) -> None:
    """Each poll of a blocking reader needs one place for a lease, which was made before the filter ran."""
    writer, reader = ring.writer(), ring.reader(local=True, blocks_writer=True)
    caught: list[errors.ReaderBusy] = []

    def judge(_: bytes) -> bool:
        try:
            use(reader)
        except errors.ReaderBusy as error:
            caught.append(error)
        return True

    reader.match = KeyFilter(judge)
    writer.publish_many([b""] * 200, key="a")
    held = [reader.poll() for _ in range(200)]
    assert [record.offset for record in held if record is not None] == list(range(200))
    assert len(caught) == 1, "the answer for the one key is remembered"
    assert "a reader serves one call at a time" in str(caught[0])
    del held
    assert reader.poll() is None
    assert reader.released == reader.cursor, "each lease was found again"


@pytest.mark.parametrize("blocks_writer", [True, False])
def test_a_filter_that_raises_loses_the_one_record_that_it_was_asked_about(
    ring: Ring, blocks_writer: bool
) -> None:
    writer, reader = ring.writer(), ring.reader(local=True, blocks_writer=blocks_writer)
    interrupts = [KeyboardInterrupt()]

    def judge(key: bytes) -> bool:
        if key == b"4":
            raise ValueError("four")
        if key == b"6" and interrupts:
            raise interrupts.pop()
        return True

    reader.match = KeyFilter(judge)
    for i in range(9):
        writer.publish(payload_of(i), key=f"{i}")
    batch = reader.read_many()
    assert [record.bytes() for record in batch] == [payload_of(i) for i in range(4)]
    with pytest.raises(ValueError, match="four"):
        reader.read_many()
    with pytest.raises(KeyboardInterrupt):
        reader.read_many()
    batch = reader.read_many()
    assert [record.offset for record in batch] == [5, 6, 7, 8]


def test_a_filter_refuses_a_key_that_no_record_has() -> None:
    taken = KeyFilter(lambda _: True)
    assert taken.accepts(bytes(65535))
    with pytest.raises(errors.KeyTooLong):
        taken.accepts(bytes(65536))


def test_a_filter_remembers_so_many_bytes_and_no_more() -> None:
    asked: list[bytes] = []

    def judge(key: bytes) -> bool:
        asked.append(key)
        return True

    long = KeyFilter(judge, capacity=16)
    for _ in range(2):
        for i in range(16):
            assert long.accepts(i.to_bytes(2, "little") * 32_000)
    assert long.count + long.unremembered // 2 == 16
    assert 0 < long.count < 16
    assert len(asked) == 16 + long.unremembered // 2


def test_topics_that_collide_cost_a_filter_nothing() -> None:
    """20,000 with the checksum that records carry as a hash.  Three filters, as one may have bad luck."""
    topics = colliding_topics(20_000)
    assert len(set(topics)) == 20_000
    assert len({crc32c(topic) for topic in topics}) == 1
    longest = []
    for _ in range(3):
        match = KeyFilter(lambda key: key[0] == ord("b"))
        assert [match.accepts(topic) for topic in topics] == [topic[0] == ord("b") for topic in topics]
        assert match.count == 20_000
        longest.append(match._longest)
    assert min(longest) < 200


# ---- writers ----


def test_a_writer_may_be_closed_by_who_makes_room(ring: Ring) -> None:
    """In the callback, and by another thread while it waits."""
    policies: tuple[Literal["reject", "block"], ...] = ("reject", "block")
    for when in policies:
        with new_ring(ring.path.parent, name=when) as full:
            reader = full.reader(local=True, blocks_writer=True)
            swept: list[int] = []

            def close(of: Ring = full, seen: list[int] = swept) -> int:
                seen.append(1)
                of.close()
                gc.collect()
                return 0

            full.sweep = close  # type: ignore[method-assign]
            writer = full.writer(when_full=when, queue_timeout_ms=60_000)
            with pytest.raises(errors.RingClosed, match="writer"):
                fill(writer)
            assert swept == [1]
            assert not reader.open


class Sequence:
    """Payloads of which each runs `act` when it is taken."""

    def __init__(self, count: int, act: Callable[[int], object]) -> None:
        self.count, self.act = count, act

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, i: int) -> bytes:
        self.act(i)
        return b"payload"


def test_a_sequence_that_forks_leaves_the_ring_to_the_parent(ring: Ring) -> None:
    writer, reader = ring.writer(), ring.reader()
    child = []

    def fork(i: int) -> None:
        if i == 2:
            child.append(os.fork())

    try:
        done = writer.publish_many(Sequence(4, fork))  # type: ignore[arg-type]
    except errors.UsedAfterFork:
        os._exit(7)
    if child == [0]:
        os._exit(8)
    assert done == 4
    assert os.waitstatus_to_exitcode(os.waitpid(child[0], 0)[1]) == 7
    assert len(drained(reader)) == 4


def test_flags_whose_number_closes_the_writer_publish_nothing(ring: Ring) -> None:
    class Flags:
        def __index__(self) -> int:
            ring.close()
            return 0

    writer = ring.writer()
    with pytest.raises(errors.RingClosed, match="writer"):
        writer.publish(b"x", key=b"k", flags=Flags())  # type: ignore[arg-type]
    with Ring.attach(ring.path) as again:
        assert again.extremes().end_offset == 0


@pytest.mark.parametrize("what", ["ring", "cursors", "own"])
def test_a_writer_refuses_memory_that_is_too_short(what: str) -> None:
    parts = {"ring": pages(HEADER_BYTES + CAPACITY_BYTES), "cursors": pages(CURSORS_BYTES)}
    parts["own"] = pages(CURSORS_BYTES)
    parts[what] = parts[what][:-1]
    with pytest.raises((errors.Corrupt, ValueError)):
        Writer(parts["ring"], parts["cursors"], parts["own"], print, False, 0, False)


def test_a_reader_refuses_memory_that_is_too_short(ring: Ring) -> None:
    memory = pages(HEADER_BYTES + CAPACITY_BYTES)
    memory[:] = Path(f"{ring.path}.ring").read_bytes()
    with pytest.raises((errors.Corrupt, ValueError)):
        CReader(memory, pages(CURSORS_BYTES)[:-1], 63, True, False, False, False, 0)
    with pytest.raises((errors.Corrupt, ValueError)):
        CReader(memory[:-1], None, -1, False, False, False, False, 0)
    with pytest.raises(ValueError, match="spin_ns"):
        CReader(memory, None, -1, False, False, False, False, 2**63 - 1)


def pages(size: int) -> memoryview:
    """Memory that begins where a page does, as a ring's."""
    return memoryview(mmap.mmap(-1, size))


# ---- garbage ----


def maps_of(directory: Path) -> int:
    """Number of mappings of files in `directory` in this process."""
    return Path("/proc/self/maps").read_text().count(f"{directory}/")


def test_a_ring_that_is_dropped_gives_back_all_that_it_had(runtime_directory: Path) -> None:
    """Without close(): its descriptors, its memory, and the writer's lock."""
    before = Holdings.now()
    ring = new_ring(runtime_directory)
    ring.writer().publish(b"x", key="k")
    ring.reader(local=True, blocks_writer=True).poll()
    dead = weakref.ref(ring)
    del ring
    gc.collect()
    assert dead() is None
    assert not Holdings.now().descriptors - before.descriptors
    assert maps_of(runtime_directory) == 0
    with Ring.reattach(runtime_directory / "ring") as again:
        assert again.writer().publish(b"y") == 1


def test_a_writer_keeps_its_ring(runtime_directory: Path) -> None:
    """A ring that only the writer holds stays usable: the writer sweeps when it is full."""
    writer = new_ring(runtime_directory).writer()
    gc.collect()
    with Ring.attach(runtime_directory / "ring") as attached:
        reader = attached.reader(blocks_writer=True)
        assert fill(writer) > 10
        assert len(drained(reader)) > 10
    writer.close()


def held_by(reader: Reader, writer: Writer) -> Iterator[tuple[str, object]]:
    """One of each object that keeps a reader or writer."""
    writer.publish_many([b"x"] * 3, key="k")
    yield "record", reader.poll()
    batch = reader.read_many()
    yield "batch", batch
    yield "iterator", iter(batch)


def test_a_reader_that_is_closed_keeps_no_filter(ring: Ring) -> None:
    reader = ring.reader()
    reader.match = KeyFilter(lambda _: True)
    reader.close()
    assert reader.match is None


@pytest.mark.parametrize("kind", ["record", "batch", "iterator"])
def test_what_a_reader_hands_out_can_be_in_a_cycle_with_it(runtime_directory: Path, kind: str) -> None:
    """A subscriber whose filter is a method of its own, and which keeps the last record."""

    class Subscriber:
        def __init__(self) -> None:
            self.ring = new_ring(runtime_directory)
            self.reader, self.writer = self.ring.reader(), self.ring.writer()
            self.reader.match = KeyFilter(self.judge)
            self.last = dict(held_by(self.reader, self.writer))[kind]

        def judge(self, _: bytes) -> bool:
            return True

    before = Holdings.now()
    dead = weakref.ref(Subscriber())
    gc.collect()
    assert dead() is None
    assert not Holdings.now().descriptors - before.descriptors
    assert maps_of(runtime_directory) == 0


@pytest.mark.parametrize("kind", [Batch, CReader, KeyFilter, Record, Writer])
def test_the_collector_sees_what_a_type_owns(kind: type) -> None:
    assert kind.__flags__ & 1 << 14, "Py_TPFLAGS_HAVE_GC"


def test_a_batch_of_bytes_has_an_epoch_of_32_bits() -> None:
    for epoch in (-1, 1 << 32):
        with pytest.raises((OverflowError, ValueError)):
            Batch.of(b"", epoch, 0, None)
