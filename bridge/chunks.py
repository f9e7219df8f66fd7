"""Chunks: a unit in pieces that fit into the messages of a queue, each readable alone.

A chunk is a compressed drained file (bridge/drained.py) of a part of the unit's records, and read by the same
drained.parse().  It has the unit's drain_seq; what the unit declares lost or skipped is in the first one.
Records are bit for bit those of the ring.

Invariant: chunks are a function of the unit alone, so that one that is sent again is the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bridge.unit import Batch, Intent, Run, Unit, build, compressed
from ringbuf import bytes_of_records, scan_records

__all__ = ["Chunk", "chunks_of"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records first_offset .. last_offset of a unit."""

    first_offset: int
    last_offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Piece:
    """Whole records of one run."""

    run: Run
    first_offset: int
    count: int
    first_timestamp_ns: int
    last_timestamp_ns: int


def chunks_of(unit: Unit, chunk_bytes: int) -> Iterator[Chunk]:
    """The unit as chunks of about `chunk_bytes` of records, before compression; one record may be more."""
    gathered: list[_Piece] = []
    length = 0
    for piece in _pieces(unit, chunk_bytes):
        if gathered and length + len(piece.run.records) > chunk_bytes:
            yield _chunk(unit, gathered)
            gathered, length = [], 0
        gathered.append(piece)
        length += len(piece.run.records)
    if gathered:
        yield _chunk(unit, gathered)


def _pieces(unit: Unit, chunk_bytes: int) -> Iterator[_Piece]:
    """The runs of the unit, cut where they are longer than a chunk.  Raises Corrupt: one does not verify."""
    for run in unit.runs:
        begin = 0
        while begin < len(run.records):
            rest = run.records[begin:]
            scan = scan_records(rest[:chunk_bytes], unit.footer.ring_epoch)
            if scan.count == 0:  # the first is longer than a chunk
                offset = Run.of(rest).first_offset
                length = bytes_of_records(rest, unit.footer.ring_epoch, offset, 1)
                scan = scan_records(rest[:length], unit.footer.ring_epoch)
            stamps = scan.first_timestamp_ns, scan.last_timestamp_ns
            yield _Piece(Run(rest[: scan.good_bytes], run.unchecked), scan.first_offset, scan.count, *stamps)
            begin += scan.good_bytes


def _chunk(unit: Unit, pieces: list[_Piece]) -> Chunk:
    whole, first, last = unit.footer, pieces[0], pieces[-1]
    first_offset, last_offset = first.first_offset, last.first_offset + last.count - 1
    opens = first_offset == whole.first_offset
    stamps = first.first_timestamp_ns, last.last_timestamp_ns
    intent = Intent(
        drain_seq=whole.drain_seq,
        created_ns=whole.last_timestamp_ns,
        stream=whole.stream,
        partition=whole.partition,
        epoch=whole.epoch,
        epoch_first_offset=whole.epoch_first_offset,
        previous=whole.previous,
        first_offset=first_offset,
        last_offset=last_offset,
        lost=whole.lost if opens else (),
        skipped=whole.skipped if opens else (),
        earlier_lost=whole.earlier_lost if opens else (),
        earlier_skipped=whole.earlier_skipped if opens else (),
        installation=whole.installation,
    )
    batch = Batch(whole.epoch, first_offset, last_offset, *stamps, tuple(piece.run for piece in pieces))
    return Chunk(first_offset, last_offset, b"".join(compressed(build(whole.edge, intent, batch)).parts))
