"""The drained file: golden bytes both ways, and what damage does."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.errors import DrainedFileError
from bridge.format import drained_file, file_parser
from bridge.format.drained_file import FileFooter, FileHeader
from bridge.format.file_builder import DrainedFile, build, compressed
from bridge.format.file_name import FileName
from bridge.format.file_parser import parse, verify
from bridge.format.write_intent import WriteIntent
from persistence.segment.format import pack_extent, unpack_extent
from ringbuf import FLAG_UNCHECKED
from tests.support.drained_files import (
    CREATED_NS,
    EPOCH,
    GOLDEN,
    batch_of,
    drained_file_of,
    golden_file,
    record,
)

NUMBER, INSTALLATION = (1 << 30) + 5, "0123456789abcdef" * 2


def content(file: DrainedFile) -> bytes:
    return b"".join(file.parts)


def test_a_file_is_written_as_the_golden_bytes() -> None:
    assert content(golden_file()) == (GOLDEN / "drained-v1.brim").read_bytes()
    assert golden_file().name == (GOLDEN / "drained-v1.name").read_text().strip()


def wide_file() -> DrainedFile:
    """The same with an epoch that only one installation gives."""
    file = golden_file()
    records = [record(100 + number, b"payload %d" % number) for number in range(5)]
    batch = dataclasses.replace(batch_of(records), epoch=NUMBER << 32 | EPOCH)
    intent = WriteIntent(
        7, CREATED_NS, "default", 3, NUMBER << 32 | EPOCH, 90, (file.footer.epoch - 1, 55), 100, 104,
        ((95, 99),), ((90, 94),), installation=INSTALLATION,
    )  # fmt: skip
    return build("edge-1", intent, batch)


def test_a_file_of_version_2_is_written_as_the_golden_bytes_and_read_from_them() -> None:
    data = (GOLDEN / "drained-v2.brim").read_bytes()
    assert content(wide_file()) == data
    assert wide_file().name == (GOLDEN / "drained-v2.name").read_text().strip()
    file = parse(data)
    verify(file)
    assert file.header == FileHeader(7, EPOCH, 3, CREATED_NS, 2)
    assert (file.footer.epoch, file.footer.installation) == (NUMBER << 32 | EPOCH, INSTALLATION)
    assert FileName.parse(file.name.path) == file.name == FileName.parse(wide_file().name)


def test_the_golden_bytes_are_read_as_the_file_they_were() -> None:
    file = parse((GOLDEN / "drained-v1.brim").read_bytes())
    verify(file)
    assert file.header == FileHeader(7, EPOCH, 3, CREATED_NS, 1)
    assert dataclasses.replace(file.footer, body_crc32=0) == FileFooter(
        edge="edge-1",
        stream="default",
        partition=3,
        epoch=EPOCH,
        epoch_first_offset=90,
        previous=(EPOCH - 1, 55),
        first_offset=100,
        last_offset=104,
        count=5,
        first_timestamp_ns=1_700_000_000_100_000_000,
        last_timestamp_ns=1_700_000_000_104_000_000,
        drain_seq=7,
        lost=((95, 99),),
        skipped=((90, 94),),
        body_crc32=0,
    )
    assert [extent.unchecked for extent in file.extents] == [False, True, False]
    assert file.name.path == (GOLDEN / "drained-v1.name").read_text().strip()


def test_the_compressed_golden_bytes_are_the_same_file_and_cut_ones_are_none() -> None:
    """Which bytes zstd makes is its own affair; what they hold is not."""
    data = (GOLDEN / "drained-v1.brim.zst").read_bytes()
    file = parse(data)
    verify(file)
    assert file.compressed
    assert file.body == b"".join(golden_file().parts[:-1])
    assert file.name.path == (GOLDEN / "drained-v1.name").read_text().strip() + ".zst"
    assert parse(content(compressed(golden_file()))).footer == file.footer
    tail = data[-len(golden_file().tail) :]
    for cut in range(1, len(data) - len(tail)):
        with pytest.raises(DrainedFileError):
            parse(data[:cut] + tail)


def test_an_extent_is_that_of_the_log() -> None:
    built = golden_file()
    data = content(built)
    file = parse(data)
    position = 0
    for extent, run in zip(file.extents, built.runs, strict=True):
        head = unpack_extent(data, extent.at)
        packed = pack_extent(file.header.seed, 1, EPOCH, position, 0, run.records)
        assert data[extent.at : extent.at + 32] == packed
        assert (head.length, head.ring_epoch, head.ring_position) == (len(run.records), EPOCH, position)
        position += head.length
    assert file_parser.FLAG_UNCHECKED == FLAG_UNCHECKED


def test_a_name_says_what_is_in_the_file_and_sorts_in_the_order_of_draining() -> None:
    name = parse(content(golden_file())).name
    assert FileName.parse("s3/prefix/" + name.path) == name
    later = dataclasses.replace(name, drain_seq=1_000_000, first_offset=1, last_offset=2)
    assert sorted([later, name]) == [name, later]
    assert sorted([later.path, name.path]) == [name.path, later.path]


def test_every_cut_of_a_file_is_refused() -> None:
    data = content(drained_file_of(0, 3))
    for length in range(len(data)):
        with pytest.raises(DrainedFileError):
            verify(parse(data[:length]))


def test_every_flipped_bit_is_found() -> None:
    data = bytearray(content(golden_file()))
    for byte in range(len(data)):
        data[byte] ^= 1 << byte % 8
        with pytest.raises(DrainedFileError):
            verify(parse(data))
        data[byte] ^= 1 << byte % 8
    verify(parse(data))


@given(st.binary(max_size=200), st.integers(0, 400))
def test_bytes_from_elsewhere_are_an_error_and_nothing_else(noise: bytes, at: int) -> None:
    data = content(drained_file_of(0, 1))
    at = min(at, len(data))
    for hostile in (noise, data[:at] + noise + data[at + len(noise) :]):
        try:
            verify(parse(hostile))
        except DrainedFileError:
            continue
        assert hostile == data


def test_a_file_of_a_newer_version_says_so() -> None:
    data = bytearray(content(drained_file_of(0, 1)))
    data[8] = 3
    with pytest.raises(DrainedFileError, match="version 3, this build reads 1 and 2"):
        parse(data)


def test_a_file_is_the_same_however_its_records_were_cut_into_ranges() -> None:
    """Once from the ring, once from the log: the ranges differ, the file may not."""
    import itertools

    from bridge.source.partition_source import RecordBuffer
    from ringbuf import Range

    records = [record(offset, b"x" * (offset % 50)) for offset in range(40)]
    records[17] = record(17, b"y" * 99, flags=FLAG_UNCHECKED)
    intent = WriteIntent(1, CREATED_NS, "default", 0, EPOCH, 0, None, 0, 39, (), ())
    files = set()
    for cuts in ([17, 18], [5, 17, 18, 30], [1, 2, 3, 17, 18, 19, 39]):
        bounds = itertools.pairwise([0, *cuts, 40])
        ranges = [Range(0, EPOCH, a, b - a, 0, 0, memoryview(b"".join(records[a:b]))) for a, b in bounds]
        buffer = RecordBuffer()
        runs = buffer.take(ranges)
        elsewhere = dataclasses.replace(batch_of(records), runs=runs)
        files.add(content(build("edge-1", intent, elsewhere)))
        in_place = build("edge-1", intent, dataclasses.replace(elsewhere, room=buffer.memory))
        assert len(in_place.parts) == 2, "the footer, and the rest in one piece"
        files.add(content(in_place))
    assert len(files) == 1


def test_a_footer_that_promises_more_records_than_the_file_can_hold_is_refused() -> None:
    """Any program can make a valid checksum; its length must not cause an allocation."""
    data = content(drained_file_of(0, 3))
    footer = parse(data).footer
    forged = dataclasses.replace(footer, last_offset=2**40, count=2**40 + 1)
    body = data[: len(data) - len(drained_file.footer_and_trailer(footer))]
    with pytest.raises(DrainedFileError, match="cannot hold 1099511627777 records"):
        parse(body + drained_file.footer_and_trailer(forged))
