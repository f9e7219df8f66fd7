"""Merged file: several drained files of one edge, day, stream, partition and epoch in one file.

It has the format of a drained file, or of its Parquet file, and the footer key `merged` (drained_file.py).
Its records are those of the files that it replaces, in the order of offsets, without a gap. Only the first of
these files may declare ranges or an earlier epoch, so these declarations are in the footer of the merged
file.

Readers see the files that it replaces: each has its name and its footer here, and its records are the range
of its offsets. So the progress of a stream, which is a drain_seq, may be in the middle of a merged file.

Owns footers and the form of native merged files; bridge/sinks/merged_parquet.py has that of Parquet. Never
decides what is merged (bridge/drain/merger.py).

Invariant: part_of() returns the footer of the replaced file, key by key.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from bridge.errors import DrainedFileError
from bridge.format.drained_file import FileFooter, MergedEntry, footer_and_trailer
from bridge.format.file_builder import DrainedFile, build, compressed
from bridge.format.file_name import FileName, check_name
from bridge.format.file_parser import ParsedFile, parse, verify
from bridge.format.record_batch import RecordBatch, RecordRun
from bridge.format.write_intent import WriteIntent

FILES_MAX = 4096  # of one merged file: its footer has about 50 bytes for each, 100 in Parquet


def merged_footer(footers: Sequence[FileFooter]) -> FileFooter:
    """The footer of the merged file for these, in the order of offsets.

    Its body_crc32 is that of theirs; a native file has the checksum of its own body instead.
    """
    first, last = footers[0], footers[-1]
    entries = tuple(map(_entry, footers))
    return replace(
        first,
        last_offset=last.last_offset,
        count=sum(footer.count for footer in footers),
        last_timestamp_ns=last.last_timestamp_ns,
        drain_seq=max(footer.drain_seq for footer in footers),
        body_crc32=zlib.crc32(b"".join(footer.body_crc32.to_bytes(8, "little") for footer in footers)),
        merged=entries,
    )


def _entry(footer: FileFooter) -> MergedEntry:
    ends = footer.first_offset, footer.last_offset
    stamps = footer.first_timestamp_ns, footer.last_timestamp_ns
    return (footer.drain_seq, *ends, *stamps, footer.body_crc32)


def part_of(footer: FileFooter, name: FileName) -> FileFooter:
    """The footer of the replaced file `name` of a merged file. Raises DrainedFileError: it replaces no such
    file.
    """
    at = bisect_right(footer.merged, name.first_offset, key=lambda entry: entry[1]) - 1
    drain_seq, first, last, first_ns, last_ns, crc = footer.merged[max(at, 0)]
    if (drain_seq, first, last) != (name.drain_seq, name.first_offset, name.last_offset):
        raise DrainedFileError(f"the merged file {footer.drain_seq} does not replace {name.path}")
    part = footer
    if at > 0:
        part = replace(footer, lost=(), skipped=(), previous=None, earlier_lost=(), earlier_skipped=())
    return replace(
        part,
        drain_seq=drain_seq,
        first_offset=first,
        last_offset=last,
        count=last - first + 1,
        first_timestamp_ns=first_ns,
        last_timestamp_ns=last_ns,
        body_crc32=crc,
        merged=(),
    )


def check_merged(name: FileName, footer: FileFooter) -> None:
    """Raise DrainedFileError if the footer is not that of the merged file `name`."""
    check_name(replace(footer.name(name.day), compressed=name.compressed), name)


def replaced_names(name: FileName, footer: FileFooter) -> Iterator[FileName]:
    """Names of the files that the merged file `name` replaces. Raises as check_merged()."""
    check_merged(name, footer)
    for drain_seq, first, last, *_ in footer.merged:
        yield FileName(
            name.edge,
            drain_seq,
            name.stream,
            name.partition,
            name.epoch,
            first,
            last,
            name.day,
            name.compressed,
        )


class Sources:
    """The files of a merged file that is built, in the order of offsets."""

    def __init__(self, bytes_max: int) -> None:
        self.footers: list[FileFooter] = []
        self._bytes_max, self._bytes = bytes_max, 0

    def add(self, footer: FileFooter, length: int) -> bool:
        """Add a file of `length` bytes; False: it does not fit. A single file may have any length."""
        if self.footers and not (self._has_room(length) and self._may_continue(footer)):
            return False
        self.footers.append(footer)
        self._bytes += length
        return True

    def _has_room(self, length: int) -> bool:
        return len(self.footers) < FILES_MAX and self._bytes + length <= self._bytes_max

    def _may_continue(self, footer: FileFooter) -> bool:
        same = (
            (one.edge, one.stream, one.partition, one.epoch, one.epoch_first_offset, one.installation)
            for one in (self.footers[0], footer)
        )
        is_next = footer.first_offset == self.footers[-1].last_offset + 1
        return len(set(same)) == 1 and is_next and not _declares(footer)


class NativeMerge:
    """A native merged file that is built from files in the order of offsets."""

    def __init__(self, bytes_max: int) -> None:
        self._sources = Sources(bytes_max)  # with bytes before compression: these are in memory
        self._files: list[ParsedFile] = []

    def add(self, name: FileName, data: bytes) -> bool:
        """Add the file `name`; False: it does not fit. Raises DrainedFileError: it is damaged."""
        file = verified(name, data, name.path)
        if not self._sources.add(file.footer, len(file.body)):
            return False
        self._files.append(file)
        return True

    def finish(self) -> DrainedFile | None:
        """The merged file; None: fewer than two files were added."""
        return _merged_file(self._files) if len(self._files) > 1 else None


def verified(name: FileName, data: bytes, path: str) -> ParsedFile:
    """The native file `name`, all of which is verified. Raises DrainedFileError."""
    file = parse(data, path)
    verify(file, path)
    check_name(file.name, name, path)
    return file


def _declares(footer: FileFooter) -> bool:
    return bool(
        footer.lost or footer.skipped or footer.previous or footer.earlier_lost or footer.earlier_skipped
    )


def _merged_file(files: Sequence[ParsedFile]) -> DrainedFile:
    """The native merged file for these, compressed if they are."""
    footer = merged_footer([file.footer for file in files])
    intent = WriteIntent(
        drain_seq=footer.drain_seq,
        created_ns=files[0].header.created_ns,
        stream=footer.stream,
        partition=footer.partition,
        epoch=footer.epoch,
        epoch_first_offset=footer.epoch_first_offset,
        previous=footer.previous,
        first_offset=footer.first_offset,
        last_offset=footer.last_offset,
        lost=footer.lost,
        skipped=footer.skipped,
        earlier_lost=footer.earlier_lost,
        earlier_skipped=footer.earlier_skipped,
        installation=footer.installation,
    )
    ends = footer.first_offset, footer.last_offset
    stamps = footer.first_timestamp_ns, footer.last_timestamp_ns
    file = build(footer.edge, intent, RecordBatch(footer.epoch, *ends, *stamps, tuple(_runs(files))))
    footer = replace(file.footer, merged=footer.merged)
    name = replace(footer.name(intent.header.day), compressed=files[0].compressed)
    file = replace(
        file, name=name.path, footer=footer, parts=(*file.parts[:-1], footer_and_trailer(footer)), runs=()
    )
    return compressed(file) if files[0].compressed else file


def _runs(files: Sequence[ParsedFile]) -> Iterator[RecordRun]:
    """The records of the files; verified ones that follow each other are one run."""
    extents = (extent for file in files for extent in file.extents)
    for unchecked, neighbours in groupby(extents, key=lambda extent: extent.unchecked):
        bodies = [extent.body for extent in neighbours]
        if unchecked:
            yield from (RecordRun(body, True) for body in bodies)
        else:
            yield RecordRun(memoryview(b"".join(bodies)) if len(bodies) > 1 else bodies[0], False)
