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
    RING_ID,
    FileFooter,
    footer_and_trailer,
    skipped_frame_head,
)
from bridge.format.record_batch import RecordBatch, RecordRun
from bridge.format.write_intent import WriteIntent
from bridge.format.zstd import compress_parts
from persistence.segment.format import pack_extent
from ringbuf import crc32


@dataclass(frozen=True, slots=True)
class DrainedFile:
    """One drained file for a sink, in parts. Memory is valid until put() has returned."""

    name: str  # relative to the root of the sink: the path of a file_name.FileName
    parts: tuple[bytes | memoryview, ...]  # in this order they are the file
    footer: FileFooter  # the footer, as it is in the file
    runs: tuple[RecordRun, ...]  # only the records, for a sink that sends them one by one
    payloads: str = ""  # id of a payload schema, for a sink that decodes payloads

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
    return DrainedFile(intent.name(edge).path, tuple(parts), footer, batch.runs, intent.payloads)


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
