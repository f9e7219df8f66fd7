"""Clean-shutdown marker: state of the log at close, so that the next start need not read the last segment.

Written to directory/checkpoint when a log is closed, after its last sync.  It saves time and is never
required.  It is valid only if all of this holds for its segment:

  - It is the last segment, in the same use of its file.
  - It ends at the recorded position with the recorded bytes, and has only a footer after them.
  - It begins with a whole catalogue.

Otherwise the marker is ignored, and the segment is read.  The same applies to a marker that is missing, torn,
damaged, of another version, or older than later writes.

    byte  size  field
       0     8  magic            "BRIMCKPT"
       8     4  version          MARKER_VERSION
      12     4  seed             of the segment: crc32c of its header
      16     8  base_position    of the segment
      24     8  end              of the log and of its file, a position: all before it is on the disk
      32     4  tail crc32c      of the last TAIL_BYTES before the end
      36     4  catalogue        bytes of the catalogue
      40    20  zeros
      60     4  crc32c           of bytes 0 .. 60, then of the catalogue
      64        catalogue        as it is at `end` (format.py)

Damage in that segment is found when it is read, as in older segments: by a reader of the records, or when its
footer is built.

Rule for changes: raise MARKER_VERSION and add golden bytes.  Older versions need not be read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from contextlib import suppress

from persistence.durable_file import read_file, replace_file
from persistence.errors import FormatError
from persistence.files import Files
from persistence.segment import footer
from persistence.segment.format import (
    CatalogueEntry,
    SegmentHeader,
    pack_catalogue,
    segment_name,
    unpack_catalogue,
)
from persistence.segment.scan import SegmentTable, open_table
from ringbuf import crc32c

MARKER_NAME = "checkpoint"
MARKER_VERSION = 1
MARKER_MAGIC = b"BRIMCKPT"
TAIL_BYTES = 4096
CATALOGUE_MAX_BYTES = 64 << 20

_HEADER = struct.Struct("<8sIIQQII20x")
_CRC = struct.Struct("<I")

assert _HEADER.size + _CRC.size == 64


def write_marker(
    files: Files, directory: str, header: SegmentHeader, end: int, catalogue: Mapping[int, CatalogueEntry]
) -> None:
    """Write the marker for the log in `directory`.

    Its last segment, with that header, is synced and ends at `end` with that catalogue.  Raises OSError.
    """
    tail = _tail(files, directory, header.base_position, end)
    packed = pack_catalogue(catalogue)
    fields = MARKER_MAGIC, MARKER_VERSION, header.seed, header.base_position, end
    head = _HEADER.pack(*fields, crc32c(tail), len(packed))
    checksum = _CRC.pack(crc32c(packed, crc32c(head)))
    path = os.path.join(directory, MARKER_NAME)
    replace_file(files, path, [head, checksum, packed], sync_name=False)  # it may be lost


def is_marker(data: bytes) -> bool:
    """True if `data` is a complete marker; a bridge's checkpoint has the same magic."""
    head, packed = data[: _HEADER.size], data[_HEADER.size + _CRC.size :]
    checked = data[_HEADER.size :][: _CRC.size] == _CRC.pack(crc32c(packed, crc32c(head)))
    return checked and head.startswith(MARKER_MAGIC)


def closed_table(files: Files, directory: str, base: int) -> SegmentTable | None:
    """Table of the last segment, without rows, if the log was closed cleanly and not written since."""
    with suppress(FormatError, OSError):
        return _closed_table(files, directory, base)
    return None


def _closed_table(files: Files, directory: str, base: int) -> SegmentTable | None:
    data = read_file(files, os.path.join(directory, MARKER_NAME), CATALOGUE_MAX_BYTES)
    if not is_marker(data):
        return None
    _, version, seed, its_base, end, tail, length = _HEADER.unpack_from(data)
    packed = data[_HEADER.size + _CRC.size :]
    if (version, its_base, length) != (MARKER_VERSION, base, len(packed)):
        return None
    name = segment_name(base)
    handle = files.open(os.path.join(directory, name))
    try:
        table = open_table(files, handle, name)
        if table.seed != seed or not table.first_is_whole:
            return None
        if files.size(handle) != end and footer.read(files, handle, table.header, end) is None:
            return None  # a start without writes may have added a footer
    finally:
        files.close(handle)
    if crc32c(_tail(files, directory, base, end)) != tail:
        return None
    table.catalogue = unpack_catalogue(packed)
    table.end, table.proven = end, base + end
    return table


def _tail(files: Files, directory: str, base: int, end: int) -> bytes:
    handle = files.open(os.path.join(directory, segment_name(base)))
    try:
        length = min(TAIL_BYTES, end)
        return files.read(handle, length, end - length)
    finally:
        files.close(handle)
