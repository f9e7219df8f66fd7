"""The bytes of a segment: what is written is what always was, and what always was can be read."""

import struct
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from persistence.errors import FormatError
from persistence.segment.extent_table import Row
from persistence.segment.format import (
    CATALOGUE_RING_ID,
    EXTENT_HEADER_BYTES,
    HEADER_PAGE_BYTES,
    CatalogueEntry,
    SegmentHeader,
    base_of_name,
    extent_checks,
    pack_catalogue,
    pack_extent,
    ring_id_of,
    segment_name,
    unpack_catalogue,
    unpack_extent,
)
from persistence.segment.scan import read_table
from ringbuf import FLAG_UNCHECKED, crc32c, scan_records
from ringbuf.record import encode
from tests.support.simfiles import SimFiles

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "persistence" / "segment-v1.log"

HEADER = SegmentHeader(3, 8192, 5, 0x5A17, 1_700_000_000 * 10**9)
RINGS = {
    ring_id_of("a-0", {}): CatalogueEntry("a-0", 1_700_000_000, 41),
    ring_id_of("b-0", {}): CatalogueEntry("b-0", 1_700_000_007, 0),
}
CAMERA = {ring_id_of("video@cam", {}): CatalogueEntry("video@cam", 9, 2**40)}
A, B = RINGS


def record(offset: int, payload: bytes, ring: int, **options) -> bytes:
    stamp = 1_700_000_001 * 10**9 + offset
    return encode(offset, payload, epoch=RINGS[ring].epoch, timestamp_ns=stamp, **options)


PROPERTIES = bytes([3, 0x01, 0x01, 0x00])
RUN_OF_A = (
    record(41, b"21.5", A, key=b"plant/1/temp", flags=1)
    + record(42, b"", A, key=b"plant/1/temp")
    + record(43, b"on", A, key=b"plant/1/pump", flags=4, properties=PROPERTIES)
)
RUN_OF_B = record(0, bytes(range(64)), B, key=b"x")
IN_PLACE = record(44, bytes(range(256)) * 16 + bytes(104), A, key=b"cam/0", flags=FLAG_UNCHECKED)


def golden_parts() -> list[bytes]:
    """The segment, part by part."""
    parts = [HEADER.pack()]

    def add(ring_id: int, epoch: int, ring_position: int, durable: int, body: bytes) -> None:
        parts.extend((pack_extent(HEADER.seed, ring_id, epoch, ring_position, durable, body), body))

    add(CATALOGUE_RING_ID, 0, 0, 8192, pack_catalogue(RINGS))
    add(A, RINGS[A].epoch, 1 << 33, 8192, RUN_OF_A)
    add(B, RINGS[B].epoch, 0, 8192, RUN_OF_B)
    add(A, RINGS[A].epoch, (1 << 33) + len(RUN_OF_A), 8192 + sum(map(len, parts)), IN_PLACE)
    end = 8192 + sum(map(len, parts))
    add(CATALOGUE_RING_ID, 0, 0, end, pack_catalogue(CAMERA))
    last = RINGS | CAMERA | {A: RINGS[A]._replace(next_offset=45), B: RINGS[B]._replace(next_offset=1)}
    end = 8192 + sum(map(len, parts))
    add(CATALOGUE_RING_ID, 0, 0, end, pack_catalogue(last, 512))
    add(CATALOGUE_RING_ID, 0, 0, end, pack_catalogue({}))
    return parts


def test_a_segment_is_written_as_it_always_was() -> None:
    assert b"".join(golden_parts()) == GOLDEN.read_bytes()


def test_a_segment_is_read_as_it_always_was() -> None:
    files = SimFiles(Random(0))
    handle = files.open("/log/x", create=True)
    files.pwritev(handle, [GOLDEN.read_bytes()], 0)
    table = read_table(files, handle, "x")
    assert table.header == HEADER
    assert table.opening == RINGS
    assert table.damage == []
    assert table.end == len(GOLDEN.read_bytes())
    rows = table.rings[A, RINGS[A].epoch]
    place = HEADER_PAGE_BYTES + 2 * EXTENT_HEADER_BYTES + len(pack_catalogue(RINGS))
    assert rows[0] == Row(41, 3, place, len(RUN_OF_A), 1 << 33, whole=True)
    assert rows[1].first_offset == 44
    assert table.rings[B, RINGS[B].epoch][0].count == 1
    assert {it.name: it.next_offset for it in table.catalogue.values()} == {
        "a-0": 45,
        "b-0": 1,
        "video@cam": 2**40,
    }


def test_the_c_core_reads_the_records_of_a_golden_segment() -> None:
    data = GOLDEN.read_bytes()
    at = data.index(RUN_OF_A)
    found = scan_records(data[at : at + len(RUN_OF_A)], RINGS[A].epoch)
    assert (found.count, found.first_offset, found.last_offset, found.good_bytes) == (
        3,
        41,
        43,
        len(RUN_OF_A),
    )
    assert found.last_timestamp_ns - found.first_timestamp_ns == 2
    assert scan_records(data[at : at + len(RUN_OF_A)], RINGS[B].epoch).count == 0


def test_the_byte_table_is_what_the_docstring_says() -> None:
    page = HEADER.pack()
    assert len(page) == HEADER_PAGE_BYTES
    assert page[:64] == page[2048:2112]
    assert page[64:2048] == page[2112:] == bytes(1984)
    assert struct.unpack_from("<8sIIQIIQ", page) == (b"BRIMSEGM", 1, 3, 8192, 5, 0x5A17, HEADER.created_ns)
    assert struct.unpack_from("<I", page, 60)[0] == crc32c(page[:60]) == HEADER.seed
    body = bytes(32)
    packed = pack_extent(77, 1, 2, 3, 4, body)
    assert struct.unpack("<IIIIQQ", packed) == (32, crc32c(packed[8:] + body, 77), 1, 2, 3, 4)


def test_either_copy_of_the_header_will_do() -> None:
    page = bytearray(HEADER.pack())
    page[5] ^= 1
    assert SegmentHeader.unpack(bytes(page)) == HEADER
    page[2048 + 30] ^= 1
    with pytest.raises(FormatError, match="no header of magic"):
        SegmentHeader.unpack(bytes(page))


def test_another_magic_or_version_is_refused_by_name() -> None:
    with pytest.raises(FormatError, match="found magic b'BRIMDRAN'"):
        SegmentHeader.unpack(HEADER._replace(magic=b"BRIMDRAN").pack())
    newer = HEADER.pack()[:8] + struct.pack("<I", 2) + HEADER.pack()[12:60]
    page = newer + struct.pack("<I", crc32c(newer))
    with pytest.raises(FormatError, match="version 2"):
        SegmentHeader.unpack(page.ljust(HEADER_PAGE_BYTES, b"\0"))


@pytest.mark.parametrize("byte", range(EXTENT_HEADER_BYTES + 96))
def test_each_bit_of_an_extent_is_covered(byte: int) -> None:
    body = Random(3).randbytes(96)
    packed = memoryview(bytearray(pack_extent(1, 2, 3, 4, 5, body) + body))
    for bit in range(8):
        packed[byte] ^= 1 << bit
        header = unpack_extent(packed)
        there = packed[EXTENT_HEADER_BYTES : EXTENT_HEADER_BYTES + header.length]
        assert not extent_checks(1, header, there)
        packed[byte] ^= 1 << bit
    assert extent_checks(1, unpack_extent(packed), packed[EXTENT_HEADER_BYTES:])
    assert not extent_checks(2, unpack_extent(packed), packed[EXTENT_HEADER_BYTES:])


entries = st.builds(
    CatalogueEntry, st.text(max_size=20), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
)


@given(st.dictionaries(st.integers(0, 2**32 - 1), entries, max_size=20), st.sampled_from([0, 512, 4096]))
def test_a_catalogue_comes_back(catalogue: dict[int, CatalogueEntry], room_bytes: int) -> None:
    body = pack_catalogue(catalogue, room_bytes)
    assert len(body) % 32 == 0
    assert len(body) >= max(32, room_bytes - EXTENT_HEADER_BYTES)
    assert unpack_catalogue(body) == catalogue


@given(st.binary(max_size=200))
def test_bytes_that_are_no_catalogue_are_refused(body: bytes) -> None:
    try:
        found = unpack_catalogue(body)
    except FormatError:
        return
    assert all(isinstance(ring_id, int) for ring_id in found)


def test_a_ring_keeps_its_id_and_never_takes_another_ones() -> None:
    assert ring_id_of("a-0", {}) == crc32c(b"a-0")
    taken = {crc32c(b"a-0"): "other", crc32c(b"a-0") + 1: "another"}
    assert ring_id_of("a-0", taken) == crc32c(b"a-0") + 2
    assert ring_id_of("other", taken) not in taken
    assert ring_id_of("a-0", {crc32c(b"a-0"): "a-0"}) == crc32c(b"a-0")
    assert ring_id_of("x", {crc32c(b"x"): "y"} | {2**32 - 1: "z"}) != CATALOGUE_RING_ID


def test_a_name_says_the_base_position_and_nothing_else_is_a_segment() -> None:
    assert segment_name(8192) == "00000000000000008192.log"
    assert base_of_name(segment_name(2**63)) == 2**63
    for name in (
        "LOCK",
        "prepared.tmp",
        "8192.log",
        "0000000000000000819².log",
        "00000000000000008192.log.old",
    ):
        assert base_of_name(name) is None


if __name__ == "__main__" and not GOLDEN.exists():
    GOLDEN.write_bytes(b"".join(golden_parts()))
