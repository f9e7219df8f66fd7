"""Session snapshot: one file with the whole state of sessions, and the journal position where it continues.

    byte  size  field
       0     8  magic      "BRIMSESS"
       8     4  version    STATE_VERSION of edge/session_store/journal_records.py
      12     4  epoch      of the ring that is the journal
      16     8  position   in that ring: later entries are newer than the snapshot
      24     8  created_ns wall clock, ns since 1970
      32     4  crc32c     of bytes 0 .. 32
      36        frames

    Frames (persistence/durable_file.py) are seeded with the crc32c of the header. Little-endian. Kinds: "n" a
    journal record, "h" entries of the engine, "." the end, without which the file is incomplete.

The file is replaced as a whole, and synced if it must survive a power cut.
A damaged file is renamed to NAME.bad; it never prevents a start.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from edge.errors import NewerState
from edge.logging_setup import pairs
from edge.session_store.journal_records import STATE_VERSION
from edge.session_store.reserve import Reserve
from persistence.durable_file import (
    BUFFER_BYTES,
    FRAME_BYTES,
    TEMPORARY_SUFFIX,
    NewFile,
    frames_in,
    pack_frame,
    read_file,
)
from persistence.files import Files, OsFiles
from persistence.free_disk_space import require_room
from ringbuf import crc32c

log = logging.getLogger(__name__)

MAGIC = b"BRIMSESS"
_VERSIONS = (1, STATE_VERSION)  # that are read
RECORD, ENTRIES, END = b"n", b"h", b"."

_HEADER = struct.Struct("<8sIIQQ")
_CRC = struct.Struct("<I")

Frame = tuple[bytes, bytes]  # kind, body


class Origin(NamedTuple):
    """The journal position where a snapshot ends, and its time."""

    epoch: int
    position: int
    created_ns: int


class SavedSnapshot(NamedTuple):
    """Content of a snapshot file."""

    origin: Origin
    frames: list[Frame]


def write_snapshot(
    path: Path,
    origin: Origin,
    frames: Iterable[Frame],
    *,
    sync: bool,
    reserve: Reserve | None = None,
    uses_reserve: bool = False,
    files: Files | None = None,
) -> int:
    """Replace the file at `path`. Returns its size in bytes.

    With `uses_reserve` the file of `reserve` is overwritten, and the replaced file becomes the next reserve;
    bytes after the end frame are ignored. Only without `sync`: after a sync that failed, the reserve would be
    the live file. Raises OSError; the old file is unchanged then.
    """
    if sync and uses_reserve:
        raise ValueError("a snapshot that is synced cannot use the reserve; use one of the two")
    files, name = files or OsFiles(), str(path)
    lends = reserve is not None and uses_reserve
    reserved_bytes = reserve.lend(Path(f"{name}{TEMPORARY_SUFFIX}")) if reserve is not None and lends else 0
    with NewFile(files, name, mode=0o600, overwrites=lends) as new:
        _write(files, new, origin, frames, reserved_bytes)
        new.flush()
        if reserve is not None:
            reserve.keep(new.size, Path(new.temporary))
            if uses_reserve:
                reserve.take(path)
        new.publish(sync=sync)
        return new.size


def _write(files: Files, new: NewFile, origin: Origin, frames: Iterable[Frame], reserved_bytes: int) -> None:
    """Write frames to a file of `reserved_bytes`, which may become longer if the disk has room."""
    header = _HEADER.pack(MAGIC, STATE_VERSION, *origin)
    seed = crc32c(header)
    directory = os.path.dirname(new.path)
    new.write(header, _CRC.pack(seed))
    for kind, body in (*frames, (END, b"")):
        if new.size + FRAME_BYTES + len(body) > reserved_bytes:
            require_room(files, directory, len(body) + new.size % BUFFER_BYTES)
        new.write(pack_frame(kind, body, seed), body)


def read_snapshot(
    path: Path, damaged: list[Path] | None = None, files: Files | None = None
) -> SavedSnapshot | None:
    """Read a snapshot; None if there is no valid one. A damaged file is renamed and added to `damaged`.

    Raises NewerState. Raises OSError if the file cannot be read for another cause, such as a lack of
    descriptors or of permission: without its sessions a start would replace it.
    """
    files = files or OsFiles()
    try:
        data = memoryview(read_file(files, str(path)))
        if (version := _version_of(data)) > STATE_VERSION:
            raise NewerState(path, f"version {version}", f"1 to {STATE_VERSION}")
        return parse_snapshot(data)
    except FileNotFoundError:
        return None
    except ValueError as error:  # also UnreadableFile
        aside = path.with_name(f"{path.name}.bad")
        files.rename(str(path), str(aside))
        log.warning("session snapshot damaged %s", pairs(file=path, reason=error, kept=aside))
        if damaged is not None:
            damaged.append(path)
        return None


def _version_of(data: memoryview) -> int:
    """Version in an intact header; 0: the header is damaged."""
    if len(data) < _HEADER.size + _CRC.size:
        return 0
    magic, version, *_ = _HEADER.unpack_from(data)
    (seed,) = _CRC.unpack_from(data, _HEADER.size)
    return int(version) if magic == MAGIC and seed == crc32c(data[: _HEADER.size]) else 0


def parse_snapshot(data: memoryview) -> SavedSnapshot:
    """Parse the bytes of a snapshot file. Raises ValueError if they are incomplete or damaged."""
    if len(data) < _HEADER.size + _CRC.size:
        raise ValueError(f"{len(data)} bytes have no header")
    magic, version, epoch, position, created_ns = _HEADER.unpack_from(data)
    (seed,) = _CRC.unpack_from(data, _HEADER.size)
    if magic != MAGIC or version not in _VERSIONS or seed != crc32c(data[: _HEADER.size]):
        raise ValueError(f"no header of {MAGIC!r}, version {_VERSIONS}: {magic!r}, version {version}")
    frames: list[Frame] = []
    for kind, body, _ in frames_in(data, _HEADER.size + _CRC.size, seed):
        if kind == END:
            return SavedSnapshot(Origin(epoch, position, created_ns), frames)
        frames.append((kind, bytes(body)))
    raise ValueError(f"{len(frames)} valid frames and no end in {len(data)} bytes")
