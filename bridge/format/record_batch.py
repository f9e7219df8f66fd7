"""Records that a drain has read: contiguous offsets of one partition and epoch, where they are in memory.

sink_batch.py has the form that a sink for single records gets.
"""

from __future__ import annotations

from dataclasses import dataclass

from bridge.format.lake_epoch import ring_epoch
from ringbuf import FLAG_UNCHECKED
from ringbuf.record import RecordHeader


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
