"""One archive: its catalogue in memory, and its records by offset, ring position or topic.

Owns the reading of one file.  Decoded row groups are in a Cache of the caller (archive_reader.py).  Never
writes.

Invariant: every byte is checked against its checksum before it is used.  A damaged row group costs its
records; the others are served, and `damage` names the range.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from persistence.archive.cache import Cache
from persistence.archive.layout import (
    JSON_TEXT,
    MAGIC,
    TAIL_BYTES,
    Catalogue,
    RowGroup,
    archive_name,
    footer_length,
    footer_text,
    may_have_topic,
    sealed_footer,
)
from persistence.archive.library import check_available, load
from persistence.errors import FormatError
from persistence.files import Files, opened
from ringbuf import Range, crc32c

if TYPE_CHECKING:
    from persistence.archive.records import Records


class ArchiveFile:
    """The archive of the segment at `base`, whose footer has been read."""

    def __init__(self, files: Files, path: str, size: int, footer: bytes) -> None:
        """Raises FormatError."""
        _verify(footer)
        begin, end = footer_text(footer, JSON_TEXT)
        self.path = path
        self.size = size
        self.catalogue = Catalogue.unpack(footer[begin:end])
        end = max((group.place + group.length for group in self.catalogue.groups), default=0)
        if end > size - len(footer):
            raise FormatError(f"row group that ends at byte {end}, outside an archive of {size} bytes")
        self.damage: dict[str, str] = {}  # reason for each damaged part, by its name
        self._files = files
        self._footer_length = len(footer)
        self._open_footer: bytes | None = None  # kept only while the file is open, because it is large
        self._metadata: Any = None  # the footer decoded by pyarrow; kept only while the file is open
        self._groups: dict[tuple[str, int], list[int]] = {}  # indexes of row groups, by ring and epoch
        for index, group in enumerate(self.catalogue.groups):
            self._groups.setdefault((group.ring, group.epoch), []).append(index)

    @classmethod
    def open(cls, files: Files, directory: str, base: int) -> ArchiveFile:
        """Read the footer.  Raises FormatError, ArchiveUnavailable, FileNotFoundError, OSError."""
        check_available()
        archive = cls.at(files, os.path.join(directory, archive_name(base)))
        if archive.base != base:
            raise FormatError(f"the archive is of the segment at {archive.base}, not {base}")
        return archive

    @classmethod
    def at(cls, files: Files, path: str) -> ArchiveFile:
        """Read the footer of the archive of that path.  Raises FormatError, FileNotFoundError, OSError."""
        with opened(files, path) as handle:
            size = files.size(handle)
            tail = files.read(handle, TAIL_BYTES, max(size - TAIL_BYTES, 0))
            length = footer_length(tail, size)
            return cls(files, path, size, files.read(handle, length, size - length))

    @contextmanager
    def opened(self) -> Iterator[int]:
        """A handle to read from."""
        with opened(self._files, self.path) as handle:
            try:
                yield handle
            finally:
                self._open_footer = self._metadata = None

    # ---- catalogue ----

    @property
    def base(self) -> int:
        """The log position of the segment."""
        return self.catalogue.header.base_position

    def rings(self) -> list[tuple[str, int]]:
        """Name and epoch of each ring that has records here."""
        return list(self._groups)

    def groups(self, ring: str, epoch: int) -> list[RowGroup]:
        """The row groups of a ring and epoch, in the order of their offsets."""
        return [self.catalogue.groups[index] for index in self._groups.get((ring, epoch), ())]

    # ---- records ----

    def read(
        self, handle: int, cache: Cache, ring: str, epoch: int, offset: int, limit_bytes: int,
        topic: bytes | None = None,
    ) -> list[Range]:  # fmt: skip
        """Records from `offset` on, or from the next one there is, about `limit_bytes`, at least one; in
        order; only those of `topic`, if it is given.  Empty: there is none.
        """
        answer: list[Range] = []
        for index in self._groups.get((ring, epoch), ()):
            if self.catalogue.groups[index].end_offset <= offset:
                continue
            records = self._undamaged(handle, cache, index, topic)
            if records is None:
                continue
            ranges = records.ranges(offset, limit_bytes)
            if answer and ranges and len(ranges[0].view) > limit_bytes:
                break
            answer += ranges
            limit_bytes -= sum(len(range_read.view) for range_read in ranges)
            if limit_bytes <= 0 or (ranges and not records.ends_with(ranges[-1])):
                break
        return answer

    def offset_at(self, handle: int, cache: Cache, ring: str, epoch: int, position: int) -> int | None:
        """Offset of the record that holds the ring position, or of the next one; None: all lie before.  Of a
        damaged row group its first offset: a read from there on returns the next records there are.
        """
        for index in self._groups.get((ring, epoch), ()):
            group = self.catalogue.groups[index]
            if group.end_position <= position:
                continue
            records = self._undamaged(handle, cache, index)
            offset = group.first_offset if records is None else records.offset_at(position)
            if offset is not None:
                return offset
        return None

    def check(self, handle: int, index: int) -> int:
        """Build all records of a row group; bytes that were read.  Damage is in `damage` afterwards."""
        self._undamaged(handle, Cache(0), index)
        return self.catalogue.groups[index].length

    def check_begin(self, handle: int) -> None:
        """Look at the magic in front of the first row group.  Damage is in `damage` afterwards."""
        if self._files.read(handle, len(MAGIC), 0) != MAGIC:
            self.damage["magic"] = (
                "the file does not begin as a Parquet file; this program reads it all the same"
            )

    def is_intact(self, handle: int) -> bool:
        """True if every row group matches the checksum of its bytes."""
        groups = self.catalogue.groups
        return all(
            crc32c(self._files.read(handle, group.length, group.place)) == group.file_crc32c
            for group in groups
        )

    def may_have_topic(self, handle: int, topic: bytes) -> bool:
        """False if no record has the topic. Raises FormatError."""
        footer = self._footer(handle)
        return any(may_have_topic(footer, index, topic) for index in range(len(self.catalogue.groups)))

    def records(self, handle: int, index: int, topic: bytes | None = None) -> Records | None:
        """All records of a row group, or those of a topic; None: it has none of that topic.

        Raises FormatError: it is damaged; ArchiveUnavailable; OSError.
        """
        group = self.catalogue.groups[index]
        if topic is not None and not may_have_topic(self._footer(handle), index, topic):
            return None
        if self._metadata is None:
            self._metadata = load().metadata_of(self._footer(handle))
        data = self._files.read(handle, group.length, group.place)
        if len(data) != group.length or crc32c(data) != group.file_crc32c:
            raise FormatError(f"the {group.length} bytes at {group.place} do not match their checksum")
        records: Records | None = load().records_in(self._metadata, index, group, data, self.size, topic)
        expected = (group.bytes, group.records_crc32c)
        if topic is None and records and (len(records.view), crc32c(records.view)) != expected:
            raise FormatError(f"the {group.bytes} bytes of records do not come back as they were")
        return records

    # ---- inside ----

    def _footer(self, handle: int) -> bytes:
        if self._open_footer is None:
            footer = self._files.read(handle, self._footer_length, self.size - self._footer_length)
            _verify(footer)
            self._open_footer = footer
        return self._open_footer

    def _undamaged(self, handle: int, cache: Cache, index: int, topic: bytes | None = None) -> Records | None:
        """Records of a row group; None: it is damaged, which is reported, or has none of the topic."""
        key = self.base, index, topic
        records = cache.get(key)
        if records is not None:
            return records
        try:
            records = self.records(handle, index, topic)
        except FormatError as error:
            self.damage[f"row group {index} ({self.catalogue.groups[index]})"] = str(error)
            return None
        if records is not None:
            cache.put(key, records)
        return records


def _verify(footer: bytes) -> None:
    """Raises FormatError if the footer does not match its checksum."""
    if sealed_footer(footer) != footer:
        raise FormatError("the footer of the archive does not match its checksum")
