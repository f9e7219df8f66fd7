"""Write intent: the content of a drained file, decided before the sink gets it (drain/checkpoint.py)."""

from __future__ import annotations

from dataclasses import dataclass

from bridge.format.drained_file import NARROW_VERSION, VERSION, EarlierRanges, FileHeader, Ranges
from bridge.format.file_name import FileName
from bridge.format.lake_epoch import EPOCH_BITS, ring_epoch


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
    payloads: str = ""  # id of the payload schema that decodes its payloads; "": none

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
