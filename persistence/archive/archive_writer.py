"""From a sealed segment to its archive, in steps that a crash may end anywhere.

    write BASE.parquet.PID.tmp -> fdatasync -> read it back, group by group, and compare with the segment
    -> rename to BASE.parquet -> dirsync

The segment is never touched: the owner of the log removes it after this has returned.  So there is a whole
archive or none, and the segment is there until the archive is known to be right and its name is on the disk.
A file that was not finished when a process died ends in ".tmp". Its parent (background_process.py) or
recovery removes it.

Memory: a few row groups, whatever the segment's size.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from persistence.archive.archive_file import ArchiveFile
from persistence.archive.layout import (
    CRC_TEXT,
    GROUP_BYTES,
    JSON_TEXT,
    NO_CRC,
    TOPICS_TEXT,
    Catalogue,
    RowGroup,
    archive_name,
    packed_filters,
    sealed_footer,
)
from persistence.archive.library import load
from persistence.archive.records import Run
from persistence.archive.sealed_segment import GroupRecords, GroupSource, SegmentSource
from persistence.durable_file import TEMPORARY_SUFFIX, write_all
from persistence.errors import FormatError, NotArchived, Stopped
from persistence.files import Files, size_of
from persistence.segment.format import segment_name
from ringbuf import crc32c

if TYPE_CHECKING:
    from persistence.archive.columns import Split


class Archived(NamedTuple):
    """The result for a segment."""

    base: int
    records: int
    segment_bytes: int  # of its log: the room behind it in the file is not counted
    archive_bytes: int


def archive_segment(
    files: Files,
    directory: str,
    base: int,
    ends_at: int,
    *,
    group_bytes: int = GROUP_BYTES,
    stopped: Callable[[], bool] = lambda: False,
) -> Archived:
    """Make the archive of the sealed segment at `base` of the log in `directory`, which ends at that place.

    The archive is whole, durable and proven when this returns; one that exists already is verified again.
    Raises NotArchived: the segment is damaged; Stopped: `stopped` returned true; FormatError;
    ArchiveUnavailable; OSError.
    """
    load()
    segment = os.path.join(directory, segment_name(base))
    target = os.path.join(directory, archive_name(base))
    with SegmentSource.opened(files, segment, base, ends_at, group_bytes) as source:
        if not _is_there(files, target, source, stopped):
            temporary = temporary_name(target, os.getpid())
            try:
                proofs = write_archive(files, temporary, source, stopped)
                if not _is_right(files, temporary, source, proofs, stopped):
                    raise NotArchived(f"{source.name}: the archive reads differently from the segment")
                files.rename(temporary, target)
            except BaseException:
                with suppress(OSError):
                    files.unlink(temporary)
                raise
        files.dirsync(directory)
        records = sum(group.records for group in ArchiveFile.at(files, target).catalogue.groups)
        return Archived(base, records, source.end, size_of(files, target))


def temporary_name(target: str, pid: int) -> str:
    """Name under which that process writes the archive `target`."""
    return f"{target}.{pid}{TEMPORARY_SUFFIX}"


def _is_there(files: Files, target: str, source: SegmentSource, stopped: Callable[[], bool]) -> bool:
    """True if a right archive is there.  A wrong one is replaced by the rename that follows."""
    if size_of(files, target) == 0:
        return False
    try:
        return _is_right(
            files, target, source, [_proof(source.read(group)) for group in source.groups], stopped
        )
    except (FileNotFoundError, FormatError):
        return False


# ---- writing ----


class Proof(NamedTuple):
    """Checksum and runs that the records of a row group must come back with."""

    crc32c: int
    runs: list[Run]


def _proof(records: GroupRecords) -> Proof:
    return Proof(crc32c(records.data), records.runs)


def write_archive(
    files: Files, path: str, source: SegmentSource, stopped: Callable[[], bool] = lambda: False
) -> list[Proof]:
    """Write the archive of a segment, up to its last byte on the disk; a proof for each row group.

    Raises NotArchived, Stopped, ArchiveUnavailable, OSError.
    """
    catalogue = Catalogue(source.header, source.end, source.opening, source.closing)
    output, proofs, filters = load().ParquetOutput(), [], []
    handle = files.open(path, create=True)
    try:
        place = write_all(files, handle, [output.begin()], 0)
        for group in source.groups:
            _check(stopped)
            records = source.read(group)
            proofs.append(_proof(records))
            split, data = output.row_group(records.data, records.runs, group.ring, group.epoch)
            filters.append(split.topics)
            catalogue.groups.append(_entry(group, proofs[-1], split, place, data))
            place = write_all(files, handle, [data], place)
        texts = {JSON_TEXT: catalogue.pack(), TOPICS_TEXT: packed_filters(filters), CRC_TEXT: NO_CRC.decode()}
        place = write_all(files, handle, [sealed_footer(output.footer(texts))], place)
        files.ftruncate(handle, place)  # a file of that name may have been longer
        files.fdatasync(handle)
    finally:
        files.close(handle)
    return proofs


def _entry(group: GroupSource, proof: Proof, split: Split, place: int, data: bytes) -> RowGroup:
    first, last = proof.runs[0], proof.runs[-1]
    return RowGroup(
        ring=group.ring,
        epoch=group.epoch,
        first_offset=first.first_offset,
        end_offset=last.first_offset + last.records,
        records=sum(run.records for run in proof.runs),
        position=first.position,
        end_position=last.position + last.length,
        bytes=group.length,
        records_crc32c=proof.crc32c,
        first_timestamp_ns=split.first_timestamp_ns,
        last_timestamp_ns=split.last_timestamp_ns,
        verbatim=split.verbatim,
        place=place,
        length=len(data),
        file_crc32c=crc32c(data),
    )


def _check(stopped: Callable[[], bool]) -> None:
    if stopped():
        raise Stopped("asked to stop")


# ---- proving ----


def _is_right(
    files: Files, path: str, source: SegmentSource, proofs: list[Proof], stopped: Callable[[], bool]
) -> bool:
    """True if the archive at `path`, read from its file, gives back every record of the segment bit for bit,
    and its catalogues.

    Raises FormatError: the archive is damaged; Stopped; ArchiveUnavailable; OSError.
    """
    archive = ArchiveFile.at(files, path)
    catalogue, groups = archive.catalogue, archive.catalogue.groups
    written = (catalogue.header, catalogue.end, catalogue.opening, catalogue.closing)
    if written != (source.header, source.end, source.opening, source.closing):
        return False
    if [(group.ring, group.epoch) for group in groups] != [
        (group.ring, group.epoch) for group in source.groups
    ]:
        return False
    with archive.opened() as handle:
        for index, proof in enumerate(proofs):
            _check(stopped)
            records = archive.records(handle, index)
            proven = Proof(groups[index].records_crc32c, [] if records is None else records.runs())
            if proven != proof:
                return False
    return True
