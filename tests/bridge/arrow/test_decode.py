"""The decoder of drained files, in C, gives the rows that Python reads record by record."""
# ruff: noqa: E402

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.arrow.decode import decode_file, decode_records
from bridge.arrow.schema import TYPES, Constants, DecodedColumns, batch_of, corrupt_batch_of
from bridge.errors import DrainedFileError
from bridge.format import drained_file, file_parser
from bridge.format.file_builder import build
from bridge.format.file_parser import ParsedFile
from bridge.format.write_intent import WriteIntent
from ringbuf import FLAG_EXPIRY, FLAG_PROPERTIES, FLAG_QOS, FLAG_RETAIN, FLAG_UNCHECKED, errors
from ringbuf.native import ffi, lib
from ringbuf.record import decode as decode_record
from ringbuf.record import encode, span
from tests.support import drained_files
from tests.support.drained_files import CREATED_NS, EPOCH, T0_NS, drained_file_of

COLUMNS = ("offset", "timestamp", "topic", "qos", "retain", "properties", "payload")

Row = tuple[object, ...]


def mqtt_properties(length: int) -> bytes:
    """Some properties of that many bytes, their length in front as MQTT writes it; none for 0."""
    if length == 0:
        return b""
    front = bytes([length]) if length < 128 else bytes([0x80 | length & 0x7F, length >> 7])
    return front + bytes(range(256))[:length].ljust(length, b"p")


records_strategy = st.lists(
    st.tuples(
        st.one_of(st.text(max_size=40).map(str.encode), st.binary(max_size=20)),  # key
        st.one_of(st.just(0), st.integers(1, 300)),  # properties
        st.binary(max_size=200),
        st.sampled_from([0, 1, 2, FLAG_RETAIN, FLAG_RETAIN | 1, FLAG_EXPIRY, FLAG_UNCHECKED]),
        st.integers(0, 2**63),  # timestamp
    ),
    min_size=1,
    max_size=60,
)


def file_of(contents: list[tuple[bytes, int, bytes, int, int]], first: int = 1000) -> bytes:
    """A drained file of records with these contents."""
    encoded = [
        encode(
            first + number,
            payload,
            epoch=EPOCH,
            key=key,
            timestamp_ns=timestamp,
            flags=flags,
            properties=mqtt_properties(properties),
        )
        for number, (key, properties, payload, flags, timestamp) in enumerate(contents)
    ]
    batch = drained_files.batch_of(encoded)
    intent = WriteIntent(
        1, CREATED_NS, "default", 0, EPOCH, 0, None, batch.first_offset, batch.last_offset, (), ()
    )
    return b"".join(build("edge-1", intent, batch).parts)


def by_hand(file: ParsedFile) -> Iterator[Row]:
    """The oracle: ringbuf/record.py, one record after the other, of extents that hold."""
    for extent in file.extents:
        if extent.unchecked and not file_parser.extent_verifies(file, extent):
            continue
        at = 0
        while at < len(extent.body):
            length = span(int.from_bytes(extent.body[at : at + 4], "little"))
            try:
                record, _ = decode_record(bytes(extent.body[at : at + length]), EPOCH)
            except errors.Corrupt:
                if not 32 <= length <= len(extent.body) - at:
                    break
            else:
                yield (
                    record.offset,
                    record.timestamp_ns // 1000,
                    record.key.decode(errors="replace"),
                    record.flags & FLAG_QOS,
                    bool(record.flags & FLAG_RETAIN),
                    record.properties if record.flags & FLAG_PROPERTIES else None,
                    record.payload,
                )
            at += length


def rows(file: ParsedFile) -> list[Row]:
    """The rows that are decoded; every array is valid for Arrow, and offsets are those of the batch."""
    found: list[Row] = []
    for decoded in decode_file(file, COLUMNS):
        for name, array in decoded.columns.items():
            array.validate(full=True)
            assert array.type == TYPES[name]
            assert len(array) == decoded.rows
        table = [decoded.columns[name] for name in COLUMNS]
        table[1] = table[1].cast(pa.int64())
        made = list(zip(*(column.to_pylist() for column in table), strict=True))
        assert [row[0] for row in made] == list(
            range(decoded.first_offset, decoded.first_offset + decoded.rows)
        )
        found += made
    return found


@given(records_strategy)
def test_the_rows_are_those_of_the_records(contents: list[tuple[bytes, int, bytes, int, int]]) -> None:
    file = file_parser.parse(file_of(contents))
    expected = list(by_hand(file))
    assert len(expected) == len(contents)
    assert rows(file) == expected


@given(records_strategy, st.data())
def test_of_a_damaged_file_come_the_records_that_verify_and_no_others(
    contents: list[tuple[bytes, int, bytes, int, int]], data: st.DataObject
) -> None:
    whole = bytearray(file_of(contents))
    good = {row[0]: row for row in by_hand(file_parser.parse(bytes(whole)))}
    end = len(whole) - 16 - drained_file.footer_length(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(64, end - 1))
        whole[at] ^= data.draw(st.integers(1, 255))
    try:
        file = file_parser.parse(whole)
    except DrainedFileError:
        return
    found = rows(file)
    assert found == list(by_hand(file))
    assert all(good[row[0]] == row for row in found)
    offsets = [int(str(row[0])) for row in found]
    assert offsets == sorted(set(offsets))


@given(st.binary(min_size=32, max_size=640), st.integers(0, 5))
def test_noise_is_no_record(noise: bytes, first: int) -> None:
    records = memoryview(noise[: len(noise) // 32 * 32])
    assert list(decode_records(records, EPOCH, first, first + 100, COLUMNS)) == []


def test_one_bad_record_costs_that_record_alone() -> None:
    data = bytearray(b"".join(drained_file_of(0, 99).parts))
    at = data.index(b"plant/2/temp", 3000)  # somewhere in the middle, in a topic
    data[at] ^= 1
    file = file_parser.parse(data)
    offsets = [row[0] for row in rows(file)]
    (bad,) = set(range(100)) - set(offsets)
    assert bad % 4 == 2  # of topic plant/2/temp
    assert offsets == [offset for offset in range(100) if offset != bad]


def test_a_file_of_many_batches_has_all_its_records() -> None:
    """Records across the borders of batches, and one that is larger than a batch."""
    random.seed(3)
    contents = [
        (
            b"k" * random.randrange(30),
            random.choice([0, 0, 5]),
            b"." * random.choice([0, 9, 80, 3000]),
            1,
            T0_NS,
        )
        for _ in range(6000)
    ]
    contents[3000] = (b"large", 0, b"L" * 3_000_000, 0, T0_NS)
    file = file_parser.parse(file_of(contents))
    assert len(file.body) > 6 << 20
    found = rows(file)
    assert len(found) == 6000
    assert found == list(by_hand(file))


@pytest.mark.parametrize("wanted", [("offset",), ("payload", "topic"), ("retain", "properties"), ()])
def test_only_the_columns_that_are_wanted_are_made(wanted: tuple[str, ...]) -> None:
    file = file_parser.parse(b"".join(drained_file_of(0, 20).parts))
    for decoded in decode_file(file, wanted):
        assert set(decoded.columns) == set(wanted)
        assert decoded.rows == 21


def test_a_batch_has_the_columns_of_its_schema_in_that_order() -> None:
    file = file_parser.parse(b"".join(drained_file_of(5, 9).parts))
    schema = pa.schema([(name, TYPES[name]) for name in ("payload", "edge", "partition", "_corrupt_record")])
    constants = Constants("edge-1", "default", 0, EPOCH)
    (decoded,) = decode_file(file, schema.names)
    batch = batch_of(decoded, constants, schema)
    assert batch.schema.equals(schema)
    assert batch.to_pylist()[0] == {
        "payload": b"5",
        "edge": "edge-1",
        "partition": 0,
        "_corrupt_record": None,
    }
    part = decoded.part(7, 8)
    assert batch_of(part, constants, schema)["payload"].to_pylist() == [b"7", b"8"]
    schema = pa.schema([(name, TYPES[name]) for name in ("offset", "epoch", "payload", "_corrupt_record")])
    assert corrupt_batch_of(3, 4, "gone", constants, schema).to_pylist() == [
        {"offset": offset, "epoch": EPOCH, "payload": None, "_corrupt_record": "gone"} for offset in (3, 4)
    ]


def test_the_golden_file_is_decoded_as_it_was_written() -> None:
    path = Path(__file__).parents[2] / "golden" / "bridge" / "drained-v1.brim"
    file = file_parser.parse(path.read_bytes())
    found = rows(file)
    assert [row[0] for row in found] == [100, 101, 102, 103, 104]
    assert found[0][2:] == ("plant/0/temp", 1, True, None, b"payload 0")
    assert found[2][6] == b"in place" * 10


@pytest.mark.parametrize("part", ["key", "properties", "payload"])
def test_bytes_that_change_between_the_two_passes_are_refused(part: str) -> None:
    """As a mapped file may, that somebody still writes: columns were allocated for what was there before."""
    lengths = {"key": (40, 0, 40), "properties": (8, 40, 40), "payload": (8, 0, 100)}[part]
    small = encode(0, b"p" * 40, epoch=EPOCH, key=b"k" * 8, properties=mqtt_properties(0))
    large = encode(
        0, b"p" * lengths[2], epoch=EPOCH, key=b"k" * lengths[0], properties=mqtt_properties(lengths[1])
    )
    records = bytearray(small.ljust(len(large), b"\0"))
    data, sizes = ffi.from_buffer("uint8_t[]", records, require_writable=True), ffi.new("rb_decode_sizes *")
    lib.rb_decode_measure(data, len(records), EPOCH, 0, 1, 1 << 20, sizes)
    assert sizes.rows == 1
    sizes.consumed_bytes = len(records)  # as if a second record had been there
    out = ffi.new("rb_decode_columns *")
    room = {name: ffi.new("uint8_t[]", 256) for name in ("key", "properties", "payload")}
    ends = {name: ffi.new("int32_t[]", 2) for name in room}
    for name, memory in room.items():
        setattr(out, name, memory)
        setattr(out, f"{name}_ends", ends[name])
    assert lib.rb_decode_fill(data, sizes, out) == lib.RB_OK
    records[:] = large
    assert lib.rb_decode_fill(data, sizes, out) == lib.RB_CORRUPT
    measured = {"key": 8, "properties": 0, "payload": 40}
    assert bytes(room[part])[measured[part] :].strip(b"\0") == b""


def test_offsets_that_do_not_follow_are_taken_as_they_are_or_left_out() -> None:
    """Each record verifies; but rows are only what their offsets say, in rising order."""
    said = [0, 1, 5, 6, 3, 6, 7, 99]
    records = memoryview(b"".join(encode(offset, b"%d" % offset, epoch=EPOCH, key=b"k") for offset in said))
    found = []
    for decoded in decode_records(records, EPOCH, 0, 50, COLUMNS):
        payloads = [int(payload) for payload in decoded.columns["payload"].to_pylist()]
        assert payloads == list(range(decoded.first_offset, decoded.first_offset + decoded.rows))
        found += payloads
    assert found == [0, 1, 5, 6, 7]


def test_a_payload_that_only_its_extent_covers_is_not_believed_when_that_does_not_hold() -> None:
    contents = [(b"k", 0, b"%d" % number, FLAG_UNCHECKED if number == 3 else 0, T0_NS) for number in range(6)]
    data = bytearray(file_of(contents, first=0))
    (extent,) = [extent for extent in file_parser.parse(data).extents if extent.unchecked]
    data[extent.at + 32 + 40] ^= 1  # its payload: 32 bytes of header, a key, zeros up to 8
    file = file_parser.parse(data)
    assert [row[0] for row in rows(file)] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("rows", [0, 1, 7, 65_536, 65_537])
def test_what_all_records_of_a_file_have_in_common_is_in_each_row(rows: int) -> None:
    names = ("edge", "offset", "stream", "partition", "epoch", "_corrupt_record", "properties")
    schema = pa.schema([(name, TYPES[name]) for name in names])
    offsets = pa.array(range(rows), pa.int64())
    decoded = DecodedColumns(0, rows, {"offset": offsets})
    for constants in (Constants("kiln", "press@ü", 3, EPOCH), Constants("k", "", 0, 1 << 40)):
        batch = batch_of(decoded, constants, schema)
        batch.validate(full=True)
        edge, stream, partition, epoch = constants
        columns = ([edge] * rows, list(range(rows)), [stream] * rows, [partition] * rows, [epoch] * rows)
        nothing = [None] * rows
        assert [batch[name].to_pylist() for name in names] == [*columns, nothing, nothing]
