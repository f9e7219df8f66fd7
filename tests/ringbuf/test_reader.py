"""Plain readers: order, views without a copy, seeks, and the count of lost records."""

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ringbuf import FLAG_UNCHECKED, KeyFilter, Reader, Ring, crc32c, scan_records
from ringbuf.errors import Corrupt, OffsetGone, Overrun, RingClosed
from ringbuf.record import decode
from tests.support.rings import drained, new_ring, overwrite, payload_of, publish_to_lap


def test_an_empty_ring_polls_as_none(ring: Ring) -> None:
    reader = ring.reader()
    assert reader.poll() is None
    assert len(reader.read_many()) == 0
    assert reader.ranges(1 << 20) == []
    assert (reader.offset, reader.cursor, reader.lag, reader.lost) == (0, 0, 0, 0)


def test_records_come_in_order(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    for i in range(100):
        writer.publish(payload_of(i, i))
    assert reader.lag == 100
    for i in range(100):
        record = reader.poll()
        assert record is not None
        assert (record.offset, record.bytes()) == (i, payload_of(i, i))
        assert reader.offset == i + 1
    assert reader.poll() is None
    assert reader.lag == 0


def test_a_view_is_the_rings_own_memory(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    writer.publish(b"before")
    record = reader.poll()
    assert record is not None
    view = memoryview(record)
    position = 16384 + record.position + 32
    overwrite(ring.path, position, b"behind")
    assert bytes(view) == b"behind"


def test_a_payload_is_an_array_without_a_copy(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    writer.publish(memoryview(np.arange(100.0).tobytes()), key="odd")
    record = reader.poll()
    assert record is not None
    array = np.frombuffer(memoryview(record), dtype=np.float64)
    assert (array == np.arange(100.0)).all()
    assert array.ctypes.data % 8 == 0
    assert not array.flags.owndata
    assert not array.flags.writeable


def test_a_payload_is_an_arrow_buffer_without_a_copy(ring: Ring) -> None:
    arrow = pytest.importorskip("pyarrow")
    reader, writer = ring.reader(), ring.writer()
    writer.publish(np.arange(1000, dtype=np.int64).tobytes())
    record = reader.poll()
    assert record is not None
    buffer = arrow.py_buffer(record)
    assert buffer.address == np.frombuffer(memoryview(record), dtype=np.uint8).ctypes.data
    array = arrow.Array.from_buffers(arrow.int64(), 1000, [None, buffer])
    assert array.to_pylist() == list(range(1000))


def test_a_batch_has_columns_and_records(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    for i in range(50):
        writer.publish(payload_of(i, i), key=f"k{i % 3}", flags=i % 3, properties=b"\x01x" if i % 2 else None)
    batch = reader.read_many(30)
    assert len(batch) == 30
    assert np.frombuffer(batch.offsets, np.uint64).tolist() == list(range(30))
    assert np.frombuffer(batch.payload_lengths, np.uint32).tolist() == list(range(30))
    assert [flags & 3 for flags in batch.flags] == [i % 3 for i in range(30)]
    assert list(batch.key_hashes) == [crc32c(f"k{i % 3}".encode()) for i in range(30)]
    assert set(batch.key_lengths) == {2}
    assert sorted(batch.timestamps_ns) == list(batch.timestamps_ns)
    assert batch.offsets.format == "Q"
    for i, record in enumerate(batch):
        assert record.bytes() == payload_of(i, i)
        assert (record.offset, record.key, record.position) == (i, f"k{i % 3}".encode(), batch.positions[i])
        assert record.properties == (b"\x01x" if i % 2 else b"")
        assert (record.timestamp_ns, record.flags) == (batch.timestamps_ns[i], batch.flags[i])
    assert batch[29].offset == 29
    with pytest.raises(IndexError, match="record 30 of a batch of 30"):
        batch[30]
    assert len(reader.read_many(30)) == 20


def test_columns_find_payloads_in_one_array_without_a_copy(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    for i in range(10):
        writer.publish(payload_of(i, 8), key="k")
    batch = reader.read_many()
    (run,) = _ranges_again(ring)
    memory = np.frombuffer(run.view, np.uint8)
    starts = (
        np.frombuffer(batch.positions, np.uint64)
        - run.position
        + np.frombuffer(batch.payload_positions, np.uint32)
    )
    found = memory[starts.astype(np.int64)[:, None] + np.arange(8)].view(np.uint64).ravel()
    assert found.tolist() == list(range(10))


def _ranges_again(ring: Ring):
    return ring.reader(start="oldest").ranges(1 << 20)


@pytest.mark.parametrize("limit", [0, -1, (1 << 20) + 1])
def test_a_limit_that_makes_no_sense_is_refused(ring: Ring, limit: int) -> None:
    with pytest.raises(ValueError, match="1 to 1048576"):
        ring.reader().read_many(limit)


def test_records_and_batches_outlive_their_reader_and_ring(runtime_directory: Path) -> None:
    with Ring.create(runtime_directory / "r", capacity_bytes=1 << 16, epoch=1) as ring:
        reader, writer = ring.reader(), ring.writer()
        for i in range(3):
            writer.publish(payload_of(i), key="k")
        record, batch = reader.poll(), reader.read_many()
        assert record is not None
        view = memoryview(batch[0])
        run = ring.reader(start="oldest").ranges(1 << 20)[0]
    ring.unlink()
    del reader, writer, ring
    assert (record.bytes(), record.key, record.valid()) == (payload_of(0), b"k", True)
    assert batch[1].bytes() == payload_of(2)
    assert bytes(view) == payload_of(1)
    assert decode(bytes(run.view), 1)[0].payload == payload_of(0)


def test_a_closed_reader_says_so(ring: Ring) -> None:
    reader = ring.reader()
    reader.close()
    reader.close()
    assert not reader.open
    uses: list[Callable[[], object]] = [
        reader.poll,
        reader.read_many,
        reader.wait,
        reader.seek_oldest,
        reader.seek_latest,
        lambda: reader.ranges(1),
        lambda: reader.seek(0),
        lambda: reader.seek_time(0),
        lambda: next(reader),
        lambda: reader.release(0),
        lambda: reader.lag,
    ]
    for use in uses:
        with pytest.raises(RingClosed, match="reader is closed"):
            use()


# ---- overruns ----


def test_a_lapped_reader_learns_how_many_it_lost(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    publish_to_lap(writer, 3)
    with pytest.raises(Overrun) as caught:
        reader.poll()
    lost = caught.value.lost
    assert lost == reader.lost == reader.offset > 0
    found = drained(reader)
    assert found == [payload_of(i) for i in range(lost, writer.end_offset)]
    assert len(found) * 256 > ring.capacity_bytes * 0.8


def test_a_batch_and_ranges_tell_of_an_overrun_too(ring: Ring) -> None:
    one, two, writer = ring.reader(), ring.reader(), ring.writer()
    publish_to_lap(writer, 2)
    with pytest.raises(Overrun) as first:
        one.read_many()
    with pytest.raises(Overrun) as second:
        two.ranges(1 << 20)
    assert first.value.lost == second.value.lost
    assert one.read_many(1).offsets[0] == two.ranges(1)[0].offset == first.value.lost


def test_a_reader_may_count_what_it_lost_and_go_on(ring: Ring) -> None:
    reader, writer = ring.reader(overrun="count"), ring.writer()
    publish_to_lap(writer, 3)
    record = reader.poll()
    assert record is not None
    assert record.offset == reader.lost
    publish_to_lap(writer, 3)
    batch = reader.read_many(10)
    assert batch.offsets[0] == reader.lost + 1


def test_a_record_knows_when_it_is_overwritten(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    writer.publish(payload_of(0), key="k", properties=b"\x01x")
    record = reader.poll()
    assert record is not None
    assert record.valid()
    publish_to_lap(writer, 1.1)
    assert not record.valid()
    assert not reader.holds(record.position)
    for use in (record.bytes, lambda: bytes(record), lambda: record.key, lambda: record.properties):
        with pytest.raises(Overrun):
            use()
    assert (record.offset, len(record)) == (0, 200)


def test_a_batch_knows_when_its_oldest_record_is_overwritten(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    for i in range(200):
        writer.publish(payload_of(i))
    batch = reader.read_many()
    assert batch.valid()
    publish_to_lap(writer, 0.5)
    assert not batch.valid()
    assert batch[199].bytes() == payload_of(199)


def test_a_slow_reader_never_sees_what_is_not_so(ring: Ring) -> None:
    """Read one, write many: each record that validates is right, whatever was lost between."""
    reader, writer = ring.reader(overrun="count"), ring.writer()
    last = -1
    for round_number in range(500):
        for _ in range(round_number % 300):
            writer.publish(payload_of(writer.end_offset, writer.end_offset % 300))
        record = reader.poll()
        if record is not None:
            assert record.offset > last
            assert record.bytes() == payload_of(record.offset, record.offset % 300)
            last = record.offset
    assert reader.lost > 1000


# ---- seeks ----


def test_readers_start_where_they_are_told(ring: Ring) -> None:
    writer = ring.writer()
    for i in range(10):
        writer.publish(payload_of(i))
    assert drained(ring.reader()) == []
    assert drained(ring.reader(start="oldest")) == [payload_of(i) for i in range(10)]
    assert drained(ring.reader(start=7)) == [payload_of(i) for i in range(7, 10)]
    assert drained(ring.reader(start=10)) == []


def test_every_offset_in_the_ring_can_be_sought(ring: Ring) -> None:
    writer = ring.writer()
    for i in range(1500):
        writer.publish(payload_of(i, i % 700))
    reader = ring.reader(start="oldest")
    oldest = reader.offset
    assert oldest > 0
    for offset in range(oldest, 1500):
        reader.seek(offset)
        record = reader.poll()
        assert record is not None
        assert (record.offset, record.bytes()) == (offset, payload_of(offset, offset % 700))


def test_an_offset_that_is_gone_or_not_yet_there_names_the_nearest(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    publish_to_lap(writer, 2)
    with pytest.raises(OffsetGone) as caught:
        reader.seek(0)
    assert caught.value.nearest == reader.offset > 0
    record = reader.poll()
    assert record is not None
    assert record.offset == caught.value.nearest
    with pytest.raises(OffsetGone) as caught:
        reader.seek(writer.end_offset + 1)
    assert caught.value.nearest == reader.offset == writer.end_offset
    with pytest.raises(OffsetGone):
        ring.reader(start=0)
    assert len(ring.slots()) == 1, "the reader that could not start is gone"


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_an_offset_or_a_time_outside_of_64_bits_is_named_with_the_limits(ring: Ring, value: int) -> None:
    reader = ring.reader()
    with pytest.raises(ValueError, match=rf"invalid offset {value} \(allowed: 0 to {(1 << 64) - 1}\)"):
        reader.seek(value)
    with pytest.raises(ValueError, match=rf"invalid timestamp_ns {value} \(allowed: 0 to"):
        reader.seek_time(value)
    with pytest.raises(TypeError):
        reader.seek("1")  # type: ignore[arg-type]


def test_a_reader_finds_a_moment(ring: Ring) -> None:
    writer = ring.writer()
    for i in range(150):
        writer.publish(payload_of(i))
    reader = ring.reader(start="oldest")
    times = list(reader.read_many().timestamps_ns)
    for i in (0, 1, 75, 149):
        reader.seek_time(times[i])
        record = reader.poll()
        assert record is not None
        assert record.offset == times.index(times[i])
    reader.seek_time(0)
    assert reader.offset == 0
    reader.seek_time(time.time_ns() + 10**12)
    assert (reader.offset, reader.poll()) == (150, None)


def test_a_moment_that_has_been_overwritten_is_the_oldest_record(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    before = time.time_ns()
    publish_to_lap(writer, 3)
    reader.seek_time(before)
    oldest = ring.reader(start="oldest").offset
    assert reader.offset == oldest > 0


def test_records_larger_than_a_chunk_are_found(ring: Ring) -> None:
    writer = ring.writer()
    for i in range(40):
        writer.publish(payload_of(i, 16000))
    reader = ring.reader(start="oldest")
    oldest = reader.offset
    assert 40 - oldest in (3, 4)
    for offset in range(oldest, 40):
        reader.seek(offset)
        assert drained(reader)[0] == payload_of(offset, 16000)


def test_extremes_say_where_a_ring_begins_and_ends(ring: Ring) -> None:
    writer = ring.writer()
    publish_to_lap(writer, 2)
    extremes = ring.extremes()
    assert (extremes.end_position, extremes.end_offset) == (writer.end_position, writer.end_offset)
    oldest = ring.reader(start="oldest")
    assert (extremes.oldest_position, extremes.oldest_offset) == (oldest.cursor, oldest.offset)
    assert (
        extremes.end_position <= extremes.reserve_position <= extremes.oldest_position + ring.capacity_bytes
    )


# ---- ranges ----


def test_ranges_are_records_without_padding(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    sent = 0
    for _ in range(50):
        for i in range(10):
            assert writer.publish(payload_of(sent + i, 777), key="k") == sent + i
        ranges = reader.ranges(1 << 20)
        assert [run.offset for run in ranges] == [sent, *(sent + ranges[0].count for _ in ranges[1:])]
        for run in ranges:
            scan = scan_records(run.view, ring.epoch)
            assert (scan.count, scan.good_bytes) == (run.count, len(run.view))
            assert (scan.first_offset, scan.first_timestamp_ns) == (run.offset, run.first_timestamp_ns)
            assert scan.last_timestamp_ns == run.last_timestamp_ns
            assert run.epoch == ring.epoch
        sent += 10
        assert sum(run.count for run in ranges) == 10
        assert reader.offset == sent
        reader.release(ranges[-1].position + len(ranges[-1].view))


def test_an_unchecked_record_is_a_range_of_its_own(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    for length in (10, 5000, 5000, 10, 10, 5000):
        claim = writer.claim(length)
        assert claim
        claim.commit()
    counts = [
        (run.count, decode(bytes(run.view), ring.epoch)[0].flags & FLAG_UNCHECKED)
        for run in reader.ranges(1 << 20)
    ]
    assert counts == [(1, 0), (1, 32), (1, 32), (2, 0), (1, 32)]


def test_ranges_keep_to_their_limits(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    for i in range(100):
        writer.publish(payload_of(i, 224))
    assert [run.count for run in reader.ranges(1)] == [1]
    assert [run.count for run in reader.ranges(256 * 10)] == [10]
    assert reader.ranges(1 << 20, 0) == []
    assert reader.offset == 11
    assert [run.count for run in reader.ranges(1 << 20, 1)] == [89]


# ---- what cannot be ----


def test_a_damaged_record_is_corrupt_and_the_reader_can_go_elsewhere(ring: Ring) -> None:
    writer = ring.writer()
    for i in range(3):
        writer.publish(payload_of(i))
    overwrite(ring.path, 16384 + 256 + 100, b"\xff")
    reader = ring.reader(start="oldest", verify=True)
    assert reader.poll() is not None
    for use in (reader.poll, reader.read_many, lambda: reader.ranges(1)):
        with pytest.raises(Corrupt, match="checksum"):
            use()
    reader.seek_latest()
    writer.publish(b"x")
    assert drained(reader) == [b"x"]
    assert len(drained(ring.reader(start="oldest"))) == 4, "unless asked, nobody checks every byte"


@pytest.mark.parametrize("length", [1, 31, 0x7FFFFFFF, 0x80000000, 0x80000020, 0xFFFFFFFF])
def test_a_length_that_cannot_be_is_corrupt(ring: Ring, length: int) -> None:
    ring.writer().publish(b"x")
    overwrite(ring.path, 16384, length.to_bytes(4, "little"))
    with pytest.raises(Corrupt):
        ring.reader(start="oldest").poll()


def test_a_number_out_of_line_is_corrupt(ring: Ring) -> None:
    ring.writer().publish(b"x")
    overwrite(ring.path, 16384 + 8, b"\x07")
    with pytest.raises(Corrupt):
        ring.reader(start="oldest").poll()


def test_a_byte_of_a_record_can_be_looked_at_without_a_view(ring: Ring) -> None:
    reader = ring.reader()
    ring.writer().publish(bytes(range(200)), key="k")
    record = reader.poll()
    assert record is not None
    assert (record[0], record[77], record[-1]) == (0, 77, 199)
    assert list(record) == list(range(200))  # type: ignore[call-overload]
    for beyond in (200, -201):
        with pytest.raises(IndexError):
            record[beyond]


def test_a_record_is_small(ring: Ring) -> None:
    """Millions are made a second: a record is one allocation, without a dictionary."""
    reader = ring.reader()
    ring.writer().publish(b"x")
    record = reader.poll()
    assert sys.getsizeof(record) <= 144
    assert not hasattr(record, "__dict__")
    assert "offset=0 length=1" in repr(record)


@pytest.mark.parametrize("limit", [15, 16, 17, 40, 99, 100, 101])
def test_a_batch_grows_to_its_limit_with_all_columns(ring: Ring, limit: int) -> None:
    reader, writer = ring.reader(blocks_writer=True), ring.writer()
    for i in range(100):
        writer.publish(payload_of(i, i), key=f"k{i % 3}", flags=i % 3, properties=b"\x01x" if i % 2 else None)
    expected = min(limit, 100)
    batch = reader.read_many(limit)
    assert list(batch.offsets) == list(range(expected))
    assert list(batch.payload_lengths) == list(range(expected))
    assert [flags & 3 for flags in batch.flags] == [i % 3 for i in range(expected)]
    assert set(batch.key_lengths) == {2}
    for i, record in enumerate(batch):
        assert (record.bytes(), record.key) == (payload_of(i, i), f"k{i % 3}".encode())
        assert (record.position, record.key_hash) == (batch.positions[i], batch.key_hashes[i])
        assert (record.timestamp_ns, record.offset) == (batch.timestamps_ns[i], i)
        assert record.properties == (b"\x01x" if i % 2 else b"")
    assert reader.offset == expected
    assert len(reader.read_many()) == 100 - expected


def test_a_batch_ends_at_the_rings_end_if_a_writer_publishes_many(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    counts: list[int] = []

    class Payloads(list[bytes]):  # read by index while publish_many() writes; the end follows at its end
        def __getitem__(self, i: Any) -> Any:
            if i == 20:
                counts.extend(len(reader.read_many()) for _ in range(3))
            return b"x"

    payloads = Payloads([b"x"] * 40)
    writer.publish_many(payloads)
    assert counts == [20, 0, 0]
    assert len(reader.read_many()) == 20
    writer.publish_many(payloads)
    assert counts[3:] == [1, 1, 1]
    assert list(reader.read_many().offsets) == list(range(43, 80))
    for _ in range(40):
        reader.read_many()
    writer.publish_many(payloads)
    assert counts[6:] == [20, 0, 0]


def test_a_batch_has_all_records_of_a_filter_in_one_read(ring: Ring) -> None:
    reader, writer = ring.reader(), ring.writer()
    reader.match = KeyFilter(lambda key: key == b"odd")
    for i in range(200):
        writer.publish(payload_of(i, 8), key="odd" if i % 2 else "even")
    assert list(reader.read_many().offsets) == list(range(1, 200, 2))
    assert reader.offset == 200


def test_the_first_due_reader_is_found_in_turn(runtime_directory: Path) -> None:
    with ExitStack() as stack:
        rings = [stack.enter_context(new_ring(runtime_directory, name=f"ring-{i}")) for i in range(5)]
        readers = [ring.reader() for ring in rings]
        assert [Reader.first_due(readers, turn) for turn in range(6)] == [-1] * 6
        for i in (1, 3):
            rings[i].writer().publish(b"x")
        assert [Reader.first_due(readers, turn) for turn in range(6)] == [1, 1, 3, 3, 1, 1]
        assert [reader.offset for reader in readers] == [0] * 5
        readers[1].poll()
        assert Reader.first_due(readers, 0) == 3
        readers[3].poll()
        assert Reader.first_due(readers, 0) == -1
        readers[4].close()  # its next read raises
        assert Reader.first_due(readers, 0) == 4
        assert Reader.first_due([], 0) == -1


@pytest.mark.parametrize(
    ("readers", "begin", "error"),
    [
        ((), 0, ValueError),
        ([], 1, ValueError),
        ([], -1, ValueError),
        ([None], 0, TypeError),
        ([], "0", TypeError),
    ],
)
def test_first_due_refuses_other_arguments(readers: Any, begin: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        Reader.first_due(readers, begin)
