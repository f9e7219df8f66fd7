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
from collections.abc import Iterable, Iterator
from itertools import chain
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
    UnreadableFile,
    frames_of_file,
    is_unreadable,
    pack_frame,
)
from persistence.files import Files, OsFiles
from persistence.free_disk_space import require_room
from ringbuf import crc32c

log = logging.getLogger(__name__)

MAGIC = b"BRIMSESS"
RECORD, ENTRIES, END = b"n", b"h", b"."

_HEADER = struct.Struct("<8sIIQQ")
_CRC = struct.Struct("<I")
_HEADER_BYTES = _HEADER.size + _CRC.size

Frame = tuple[bytes, bytes]  # kind, body


class Origin(NamedTuple):
    """The journal position where a snapshot ends, and its time."""

    epoch: int
    position: int
    created_ns: int


class SavedSnapshot:
    """A valid snapshot file: its origin, and its frames, which are read again at each iteration.

    They are in memory piece by piece: a start needs no more memory than the run before it.
    """

    origin: Origin

    def __init__(self, path: Path, files: Files | None = None) -> None:
        """Check the whole file. Raises ValueError if it is incomplete or damaged; NewerState, OSError."""
        self._path, self._files = path, files or OsFiles()
        for _ in self:
            pass

    def __iter__(self) -> Iterator[Frame]:
        handle, count = -1, 0
        try:
            handle = self._files.open(str(self._path))
            size = self._files.size(handle)
            self.origin, seed = self._read_header(self._files.read(handle, min(size, _HEADER_BYTES), 0))
            for kind, body, _ in frames_of_file(self._files, handle, size, _HEADER_BYTES, seed):
                if kind == END:
                    return
                yield kind, bytes(body)
                count += 1
        except OSError as error:
            if is_unreadable(error):
                raise UnreadableFile(error.errno, error.strerror, str(self._path)) from error
            raise
        finally:
            if handle >= 0:
                self._files.close(handle)
        raise ValueError(f"{count} valid frames and no end in {size} bytes")

    def _read_header(self, data: bytes) -> tuple[Origin, int]:
        """Origin, and checksum of the header."""
        if len(data) < _HEADER_BYTES:
            raise ValueError(f"{len(data)} bytes have no header")
        magic, version, *origin = _HEADER.unpack_from(data)
        (seed,) = _CRC.unpack_from(data, _HEADER.size)
        if magic != MAGIC or seed != crc32c(data[: _HEADER.size]) or version < 1:
            raise ValueError(
                f"no header of {MAGIC!r}, version 1 to {STATE_VERSION}: {magic!r}, version {version}"
            )
        if version > STATE_VERSION:
            raise NewerState(self._path, f"version {version}", f"1 to {STATE_VERSION}")
        return Origin(*origin), seed


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
    for kind, body in chain(frames, [(END, b"")]):
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
        return SavedSnapshot(path, files)
    except FileNotFoundError:
        return None
    except ValueError as error:  # also UnreadableFile
        aside = path.with_name(f"{path.name}.bad")
        files.rename(str(path), str(aside))
        log.warning("session snapshot damaged %s", pairs(file=path, reason=error, kept=aside))
        if damaged is not None:
            damaged.append(path)
        return None
