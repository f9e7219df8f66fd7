"""Session checkpoint: one file with the whole state of sessions, and the journal position where it continues.

    byte  size  field
       0     8  magic      "BRIMSESS"
       8     4  version    STATE_VERSION of edge/state/notes.py
      12     4  epoch      of the ring that is the journal
      16     8  position   in that ring: later entries are newer than the checkpoint
      24     8  created_ns wall clock, ns since 1970
      32     4  crc32c     of bytes 0 .. 32
      36        frames

    Frame: u32 length, u32 crc32c of kind and body, seeded with the header's; u8 kind; body. Little-endian.
    Kinds: "n" a note, "h" entries of the engine, "." the end, without which the file is incomplete.

A file is replaced as a whole: written under a temporary name, synced if it must survive a power cut, renamed.
A damaged file is renamed to NAME.bad; it never prevents a start.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from edge.directories import sync_directory
from edge.logs import pairs
from edge.state.notes import STATE_VERSION
from edge.state.reserve import Reserve
from persistence.files import OsFiles
from persistence.free_room import require_room
from ringbuf import crc32c

__all__ = [
    "ENTRIES",
    "NOTE",
    "Checkpoint",
    "Frame",
    "Origin",
    "parse_checkpoint",
    "read_checkpoint",
    "write_checkpoint",
]

log = logging.getLogger(__name__)

MAGIC = b"BRIMSESS"
BUFFER_BYTES = 1 << 20
NOTE, ENTRIES, END = b"n", b"h", b"."

_HEADER = struct.Struct("<8sIIQQ")
_CRC = struct.Struct("<I")
_FRAME = struct.Struct("<IIc")

Frame = tuple[bytes, bytes]  # kind, body


class Origin(NamedTuple):
    """The journal position where a checkpoint ends, and its time."""

    epoch: int
    position: int
    created_ns: int


class Checkpoint(NamedTuple):
    """Content of a checkpoint file."""

    origin: Origin
    frames: list[Frame]


def write_checkpoint(
    path: Path,
    origin: Origin,
    frames: Iterable[Frame],
    *,
    sync: bool,
    reserve: Reserve | None = None,
    uses_reserve: bool = False,
) -> int:
    """Replace the file at `path`. Returns its size in bytes.

    With `uses_reserve` the file of `reserve` is overwritten, and the replaced file becomes the next reserve.
    Raises OSError; the old file is unchanged then.
    """
    temporary = path.with_name(f"{path.name}.new")
    try:
        reserved_bytes = reserve.lend(temporary) if reserve is not None and uses_reserve else 0
        size = _write(temporary, origin, frames, reserved_bytes, sync=sync)
        if reserve is not None:
            reserve.keep(size, temporary)
            if uses_reserve:
                reserve.take(path)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if sync:
        sync_directory(path.parent)
    return size


def _write(path: Path, origin: Origin, frames: Iterable[Frame], reserved_bytes: int, *, sync: bool) -> int:
    """Write frames to a file of `reserved_bytes`, and return the size. Bytes after the end
    frame are ignored.
    """
    header = _HEADER.pack(MAGIC, STATE_VERSION, *origin)
    seed = crc32c(header)
    with path.open("r+b" if reserved_bytes else "wb", buffering=BUFFER_BYTES) as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(header + _CRC.pack(seed))
        for kind, body in (*frames, (END, b"")):
            if file.tell() + _FRAME.size + len(body) > reserved_bytes:
                require_room(OsFiles(), str(path.parent), len(body) + file.tell() % BUFFER_BYTES)
            file.write(_FRAME.pack(len(body), crc32c(body, crc32c(kind, seed)), kind))
            file.write(body)
        size = file.tell()
        file.flush()
        if sync:
            os.fsync(file.fileno())
    return size


def read_checkpoint(path: Path, damaged: list[Path] | None = None) -> Checkpoint | None:
    """Read a checkpoint; None if there is no valid one. A damaged file is renamed and added to `damaged`."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log.error("session checkpoint not readable %s", pairs(file=path, reason=error))
        return None
    try:
        return parse_checkpoint(memoryview(data))
    except ValueError as error:
        aside = path.with_name(f"{path.name}.bad")
        path.replace(aside)
        log.warning("session checkpoint damaged %s", pairs(file=path, reason=error, kept=aside))
        if damaged is not None:
            damaged.append(path)
        return None


def parse_checkpoint(data: memoryview) -> Checkpoint:
    """Parse the bytes of a checkpoint file. Raises ValueError if they are incomplete or damaged."""
    if len(data) < _HEADER.size + _CRC.size:
        raise ValueError(f"{len(data)} bytes have no header")
    magic, version, epoch, position, created_ns = _HEADER.unpack_from(data)
    (seed,) = _CRC.unpack_from(data, _HEADER.size)
    if magic != MAGIC or version != STATE_VERSION or seed != crc32c(data[: _HEADER.size]):
        raise ValueError(f"no header of {MAGIC!r}, version {STATE_VERSION}: {magic!r}, version {version}")
    frames: list[Frame] = []
    at = _HEADER.size + _CRC.size
    while at + _FRAME.size <= len(data):
        length, crc, kind = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        body = data[at : at + length]
        if len(body) < length or crc32c(body, crc32c(kind, seed)) != crc:
            raise ValueError(f"the frame at byte {at} is damaged")
        if kind == END:
            return Checkpoint(Origin(epoch, position, created_ns), frames)
        frames.append((kind, bytes(body)))
        at += length
    raise ValueError("it has no end")
