"""Construction of drained files: records and a write intent become the parts of a file.

Never reads a ring, a log or a clock.

Invariant: the parts are a function of intent and records only. So a file that is built again after a crash is
equal, byte for byte, to the one that the sink may already have.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from bridge.format.drained_file import (
    HEADER_BYTES,
    NARROW_VERSION,
    RING_ID,
    VERSION,
    EarlierRanges,
    FileFooter,
    FileHeader,
    Ranges,
    footer_and_trailer,
    skipped_frame_head,
)
from bridge.format.file_name import FileName
from bridge.format.lake_epoch import EPOCH_BITS, ring_epoch
from bridge.format.zstd import compress_parts
from persistence.segment.format import pack_extent
from ringbuf import FLAG_UNCHECKED, crc32
from ringbuf.record import RecordHeader

__all__ = ["DrainedFile", "RecordBatch", "RecordRun", "WriteIntent", "build", "compressed"]


@dataclass(frozen=True, slots=True)
class RecordRun:
    """Whole records, contiguous in memory: all verified by checksums, or one that is not verified."""

    records: memoryview
    unchecked: bool

    @property
    def first_offset(self) -> int:
        """Offset of its first record, at its place in RecordHeader."""
        return RecordHeader.of(self.records).offset

    @classmethod
    def of(cls, records: memoryview) -> RecordRun:
        """The run in `records`, a range of a ring or log."""
        return cls(records, bool(RecordHeader.of(records).flags & FLAG_UNCHECKED))


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """Records of one epoch of the lake, with all offsets from first_offset to last_offset.

    Two verified runs never follow each other: they would be one. Runs point into memory that stays unchanged
    until the next batch is read, unless a source states otherwise.
    """

    epoch: int
    first_offset: int
    last_offset: int
    first_timestamp_ns: int
    last_timestamp_ns: int
    runs: tuple[RecordRun, ...]
    # Memory in which the runs are placed as in the file: from HEADER_BYTES on, with EXTENT_HEADER_BYTES in
    # front of each. The file is built there in one piece. None: the runs are in other memory.
    room: memoryview | None = None

    @property
    def ring_epoch(self) -> int:
        """The epoch with which the records' checksums begin."""
        return ring_epoch(self.epoch)

    @property
    def count(self) -> int:
        """Number of records."""
        return self.last_offset - self.first_offset + 1

    @property
    def length(self) -> int:
        """Bytes of the records."""
        return sum(len(run.records) for run in self.runs)


@dataclass(frozen=True, slots=True)
class WriteIntent:
    """Write intent: a drained file that was decided on, complete but for its records.

    Fields as in drained_file.FileFooter.
    """

    drain_seq: int
    created_ns: int
    stream: str
    partition: int
    epoch: int
    epoch_first_offset: int
    previous: tuple[int, int] | None
    first_offset: int
    last_offset: int
    lost: Ranges
    skipped: Ranges
    compressed: bool = False  # True if its file is compressed: a part of its name
    earlier_lost: EarlierRanges = ()
    earlier_skipped: EarlierRanges = ()
    # Cause of lost records, which no footer has: these did not verify in the ring. The log had the others.
    damaged: EarlierRanges = ()
    logged: bool = False
    installation: str = ""  # the installation that gives this epoch

    @property
    def header(self) -> FileHeader:
        """Header of its file."""
        version = VERSION if self.epoch >> EPOCH_BITS else NARROW_VERSION
        return FileHeader(self.drain_seq, ring_epoch(self.epoch), self.partition, self.created_ns, version)

    def name(self, edge: str) -> FileName:
        """Name of its file."""
        day = self.header.day
        ends = self.first_offset, self.last_offset
        return FileName(
            edge, self.drain_seq, self.stream, self.partition, self.epoch, *ends, day, self.compressed
        )


@dataclass(frozen=True, slots=True)
class DrainedFile:
    """One drained file for a sink, in parts. Memory is valid until put() has returned."""

    name: str  # relative to the root of the sink: the path of a file_name.FileName
    parts: tuple[bytes | memoryview, ...]  # in this order they are the file
    footer: FileFooter  # the footer, as it is in the file
    runs: tuple[RecordRun, ...]  # only the records, for a sink that sends them one by one

    @property
    def length(self) -> int:
        """Bytes of the file."""
        return sum(len(part) for part in self.parts)

    @property
    def tail(self) -> bytes | memoryview:
        """End of the file: its footer, with a checksum of the rest. Equal tails mean equal content."""
        return self.parts[-1]

    def is_held_by(self, length: int, read: Callable[[int, int], bytes]) -> bool:
        """True if a stored file of `length` bytes holds this one. read(begin, end) returns its bytes."""
        begin = max(length - len(self.tail), 0)
        return read(begin, length) == bytes(self.tail)


def build(edge: str, intent: WriteIntent, batch: RecordBatch) -> DrainedFile:
    """The file of `intent` with the records of `batch`, which must be exactly those of the intent."""
    expected = (intent.epoch, intent.first_offset, intent.last_offset)
    assert (batch.epoch, batch.first_offset, batch.last_offset) == expected
    assert all(one.unchecked or two.unchecked for one, two in itertools.pairwise(batch.runs))
    header = intent.header
    parts: list[bytes | memoryview] = [header.pack()]
    assert len(parts[0]) == HEADER_BYTES
    position = 0
    for run in batch.runs:
        parts += [pack_extent(header.seed, RING_ID, header.epoch, position, 0, run.records), run.records]
        position += len(run.records)
    if batch.room is not None:
        parts = [_completed(batch.room, parts)]
    footer = FileFooter(
        edge=edge,
        stream=intent.stream,
        partition=intent.partition,
        epoch=intent.epoch,
        epoch_first_offset=intent.epoch_first_offset,
        previous=intent.previous,
        first_offset=intent.first_offset,
        last_offset=intent.last_offset,
        count=batch.count,
        first_timestamp_ns=batch.first_timestamp_ns,
        last_timestamp_ns=batch.last_timestamp_ns,
        drain_seq=intent.drain_seq,
        lost=intent.lost,
        skipped=intent.skipped,
        body_crc32=_crc32(parts),
        earlier_lost=intent.earlier_lost,
        earlier_skipped=intent.earlier_skipped,
        installation=intent.installation,
    )
    parts.append(footer_and_trailer(footer))
    return DrainedFile(intent.name(edge).path, tuple(parts), footer, batch.runs)


def compressed(file: DrainedFile) -> DrainedFile:
    """The file with all but its footer as one zstd frame, and the footer as a frame that zstd skips."""
    body = file.parts[:-1]
    frame = compress_parts(body)
    length = sum(len(part) for part in body)
    return replace(file, parts=(frame, skipped_frame_head(length, len(file.tail)), file.tail))


def _completed(room: memoryview, parts: Sequence[bytes | memoryview]) -> memoryview:
    """The parts as one piece: `room`, with the headers written between the records that are there."""
    at = 0
    for part in parts:
        if isinstance(part, bytes):
            room[at : at + len(part)] = part
        at += len(part)
    return room[:at]


def _crc32(parts: Sequence[bytes | memoryview]) -> int:
    crc = 0
    for part in parts:
        crc = crc32(part, crc)
    return crc
