"""Batches over bytes that came from somewhere else: the same records, every one checked."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringbuf import FLAG_PROPERTIES, FLAG_QOS, Batch, KeyFilter, Ring, bytes_of_records
from ringbuf.errors import Corrupt, RingClosed
from ringbuf.record import encode

RECORDS = st.lists(
    st.tuples(st.binary(max_size=40), st.binary(max_size=90), st.sampled_from([b"", b"\x02\x01\x01"])),
    max_size=9,
)


def run(records: list[tuple[bytes, bytes, bytes]], first: int = 5, epoch: int = 3) -> bytes:
    return b"".join(
        encode(
            first + i, payload, epoch=epoch, key=key, timestamp_ns=7 + i, flags=i & 3, properties=properties
        )
        for i, (key, payload, properties) in enumerate(records)
    )


@given(RECORDS)
def test_the_records_are_those_that_were_encoded(records):
    batch = Batch.of(run(records), 3, 5, None)
    found = [(it.offset, it.timestamp_ns, it.key, bytes(it), it.properties, it.flags & 3) for it in batch]
    assert found == [
        (5 + i, 7 + i, key, payload, wire, i & 3) for i, (key, payload, wire) in enumerate(records)
    ]
    assert list(batch.offsets) == [it.offset for it in batch]
    assert bool(batch.any_flags & FLAG_PROPERTIES) == any(wire for _, _, wire in records)


@given(RECORDS.filter(len), st.data())
def test_bytes_that_were_changed_or_cut_are_refused(records, data):
    good = run(records)
    at = data.draw(st.integers(0, len(good) * 8 - 1))
    bad = bytearray(good)
    bad[at // 8] ^= 1 << at % 8
    try:
        found = [(it.key, bytes(it), it.properties) for it in Batch.of(bytes(bad), 3, 5, None)]
    except Corrupt:
        pass
    else:  # it hit what fills a record up to 32 bytes
        assert found == records
    with pytest.raises(Corrupt):
        Batch.of(good[: data.draw(st.integers(1, len(good) - 1)) // 32 * 32 + 1], 3, 5, None)


def test_epoch_and_first_offset_must_be_those_of_the_run():
    data = run([(b"a", b"1", b"")])
    for epoch, first in ((4, 5), (3, 4)):
        with pytest.raises(Corrupt):
            Batch.of(data, epoch, first, None)


def test_a_filter_leaves_out_what_it_does_not_take():
    data = run([(b"a", b"1", b""), (b"b", b"2", b""), (b"a", b"3", b"")])
    batch = Batch.of(data, 3, 5, KeyFilter(lambda key: key == b"a"))
    assert [it.offset for it in batch] == [5, 7]


def test_what_a_filter_raises_comes_through():
    def judge(key: bytes) -> bool:
        raise LookupError(key)

    with pytest.raises(LookupError):
        Batch.of(run([(b"a", b"1", b"")]), 3, 5, KeyFilter(judge))


def test_a_record_keeps_the_bytes_that_it_is_in():
    record = Batch.of(run([(b"a", b"12345678" * 4, b"")]), 3, 5, None)[0]
    gc.collect()
    assert memoryview(record) == b"12345678" * 4
    assert record.valid()


@pytest.mark.parametrize(
    "arguments", [(), (b"", 1, 0), (b"", 1, 0, 5), (b"", -1, 0, None), ("x", 1, 0, None)]
)
def test_arguments_that_are_none_are_refused(arguments):
    with pytest.raises((TypeError, OverflowError)):
        Batch.of(*arguments)


def test_so_many_records_take_so_many_bytes():
    data = run([(b"a", b"x" * i, b"") for i in range(9)])
    assert bytes_of_records(data, 3, 5, 0) == 0
    for count in range(1, 10):
        assert len(Batch.of(data[: bytes_of_records(data, 3, 5, count)], 3, 5, None)) == count
    assert bytes_of_records(data, 3, 5, 99) == len(data)
    with pytest.raises(Corrupt, match="offset 6"):
        bytes_of_records(data[:64] + b"\xff" + data[65:], 3, 5, 3)


def test_a_reader_without_a_slot_takes_none_and_reads_all_the_same(runtime_directory):
    with Ring.create(runtime_directory / "r-0", capacity_bytes=1 << 16, epoch=1) as ring:
        writer = ring.writer()
        readers = [ring.reader(with_slot=False, local=True) for _ in range(100)]
        writer.publish(b"1", key=b"k", flags=FLAG_QOS)
        assert {bytes(it.read_many()[0]) for it in readers} == {b"1"}
        assert ring.slots() == []
        assert readers[0].slot == -1
        readers[0].close()
        with pytest.raises(RingClosed):
            readers[0].poll()
