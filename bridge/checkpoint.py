"""How far a sink has got: the file that a drain owns, and all that it owns.

One file for each sink of an edge, written whole: to NAME.tmp, synced, renamed over NAME, and the directory
synced.  NAME.lock, an flock, keeps two drains from working with it at once.  Little-endian:

    byte  size  field
       0     8  magic            "BRIMCKPT"
       8     4  version          VERSION
      12     4  length           of the body
      16     4  crc32            zlib's, of bytes 0 .. 16 and the body
      20    12  zeros
      32        body             msgpack map:
                  edge, sink     whose it is
                  drain_seq      of the last unit that the sink has
                  day            YYYY-MM-DD, the dt in its name; "" before the first
                  cursors        [[stream, partition, epoch, epoch_first_offset, accounted_offset,
                                 next_offset, previous], ...]: how far each partition has been drained.
                                 Offsets from accounted_offset up to next_offset are passed over by intention
                  intent         the unit under way, as a map of its fields, or nil

Order of things, which makes at-least-once puts exactly-once files:

    begin(intent)   saved before the sink hears of the unit.  A crash from here on finds the intent, builds
                    the same unit again, and puts it under the same name
    finish()        saved after the sink has it: drain_seq and cursor move, the intent is gone

A damaged file is put aside as NAME.damaged and taken for none: what the sink holds says how far it has got.

Rule for change: keys may be added; any other change raises VERSION, and the version before is still read.
"""

from __future__ import annotations

import dataclasses
import logging
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack

from bridge.errors import CheckpointBusy, CheckpointError, CheckpointForeign
from bridge.unit import Intent
from persistence.files import Files, OsFiles

__all__ = ["Checkpoint", "Cursor"]

log = logging.getLogger(__name__)

MAGIC = b"BRIMCKPT"
VERSION = 1
MAX_BYTES = 16 << 20  # 100 bytes a partition: far above what one edge has

_HEADER = struct.Struct("<8sII")
_CRC = struct.Struct("<I12x")


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where one partition stands.  `previous`: see drained.Footer; it is waiting for the next unit."""

    stream: str
    partition: int
    epoch: int
    epoch_first_offset: int
    accounted_offset: int  # everything below is in files, or declared lost or skipped in one
    next_offset: int  # the first that is still wanted
    previous: tuple[int, int] | None = None


@dataclass
class Checkpoint:
    """The state in memory.  Made by open(); belongs to one thread."""

    path: Path
    edge: str
    sink: str
    files: Files
    drain_seq: int = 0
    day: str = ""
    cursors: dict[tuple[str, int], Cursor] = field(default_factory=dict)
    intent: Intent | None = None
    fresh: bool = True  # nothing has been saved yet: the sink may know better
    _lock: int = -1

    @classmethod
    def open(cls, path: Path, edge: str, sink: str, files: Files | None = None) -> Checkpoint:
        """The checkpoint at `path`, locked until close(); a new one if there is none.

        Raises CheckpointBusy, CheckpointForeign, CheckpointError (its directory cannot be used).
        """
        files = files or OsFiles()
        checkpoint = cls(path, edge, sink, files)
        try:
            files.makedirs(str(path.parent))
            checkpoint._lock = files.lock(f"{path}.lock")
        except BlockingIOError as error:
            raise CheckpointBusy(
                f"{path}: another drain works with it", hint="stop that one, or give this bridge its own name"
            ) from error
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            checkpoint._load()
        except BaseException:
            checkpoint.close()
            raise
        return checkpoint

    def close(self) -> None:
        """Give the lock back.  May be called twice."""
        if self._lock >= 0:
            self.files.close(self._lock)
            self._lock = -1

    def begin(self, intent: Intent) -> None:
        """Save that this unit is under way.  Raises CheckpointError."""
        assert self.intent is None
        assert intent.drain_seq == self.drain_seq + 1
        self._save(lambda: setattr(self, "intent", intent))

    def finish(self) -> None:
        """Save that the sink has the unit under way.  Raises CheckpointError: then it is under way still."""
        intent = self.intent
        assert intent is not None

        def apply() -> None:
            key = intent.stream, intent.partition
            end = intent.last_offset + 1
            self.cursors[key] = Cursor(*key, intent.epoch, intent.epoch_first_offset, end, end)
            self.drain_seq, self.day, self.intent = intent.drain_seq, intent.name(self.edge).day, None

        self._save(apply)

    def give_up(self) -> None:
        """Save that the unit under way will never be: its records are gone, and the sink has not got it."""
        self._save(lambda: setattr(self, "intent", None))

    def move(self, cursor: Cursor) -> None:
        """Set where a partition stands.  Kept with the next save: what it says can be found out again."""
        self.cursors[cursor.stream, cursor.partition] = cursor

    def _save(self, change: Callable[[], None]) -> None:
        """Make a change and put it on the disk; if that fails, take it back."""
        before = self.drain_seq, self.day, dict(self.cursors), self.intent
        change()
        try:
            self._write(self._pack())
        except OSError as error:
            self.drain_seq, self.day, self.cursors, self.intent = before
            raise _unusable(self.path, error) from error
        self.fresh = False

    def _write(self, data: bytes) -> None:
        """Replace the file.  A second name, because a rename shows all of it or nothing."""
        temporary = f"{self.path}.tmp"
        handle = self.files.open(temporary, create=True)
        try:
            self.files.ftruncate(handle, 0)
            at = 0
            while at < len(data):
                at += self.files.pwritev(handle, [data[at:]], at)
            self.files.fdatasync(handle)
        finally:
            self.files.close(handle)
        self.files.rename(temporary, str(self.path))
        self.files.dirsync(str(self.path.parent))

    def _pack(self) -> bytes:
        body: bytes = msgpack.packb(
            {
                "edge": self.edge,
                "sink": self.sink,
                "drain_seq": self.drain_seq,
                "day": self.day,
                "cursors": [dataclasses.astuple(cursor) for cursor in self.cursors.values()],
                "intent": dataclasses.asdict(self.intent) if self.intent else None,
            }
        )
        head = _HEADER.pack(MAGIC, VERSION, len(body))
        return head + _CRC.pack(zlib.crc32(body, zlib.crc32(head))) + body

    def _load(self) -> None:
        try:
            data = self._read()
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unusable(self.path, error) from error
        try:
            found = _unpack(data)
            cursors = [Cursor(*fields) for fields in found["cursors"]]
            intent = Intent(**found["intent"]) if found["intent"] else None
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            log.error("checkpoint damaged, put aside path=%s.damaged reason=%r", self.path, error)
            self.files.rename(str(self.path), f"{self.path}.damaged")
            return
        if (found["edge"], found["sink"]) != (self.edge, self.sink):
            raise CheckpointForeign(
                f"{self.path}: it is of edge {found['edge']!r} and sink {found['sink']}, "
                f"not of {self.edge!r} and {self.sink}",
                hint="to drain to another place from the start, give the bridge another name; to forget how "
                "far it was, remove this file",
            )
        self.drain_seq, self.day, self.intent, self.fresh = found["drain_seq"], found["day"], intent, False
        self.cursors = {(cursor.stream, cursor.partition): cursor for cursor in cursors}

    def _read(self) -> bytes:
        handle = self.files.open(str(self.path))
        try:
            return self.files.read(handle, min(self.files.size(handle), MAX_BYTES), 0)
        finally:
            self.files.close(handle)


def cursors_in(path: Path, files: Files | None = None) -> list[Cursor] | None:
    """How far each partition has been drained, by a checkpoint that somebody else may be working with.

    None: there is none, or none that can be read.
    """
    checkpoint = Checkpoint(path, "", "", files or OsFiles())
    try:
        return [Cursor(*fields) for fields in _unpack(checkpoint._read())["cursors"]]
    except (OSError, ValueError, TypeError, KeyError, msgpack.UnpackException):
        return None


def _unpack(data: bytes) -> dict[str, Any]:
    """The body.  Raises ValueError: damage."""
    body = data[_HEADER.size + _CRC.size :]
    if len(data) < _HEADER.size + _CRC.size:
        raise ValueError(f"{len(data)} bytes")
    magic, version, length = _HEADER.unpack_from(data)
    if (magic, version, length) != (MAGIC, VERSION, len(body)):
        raise ValueError(f"magic {magic!r}, version {version}, {length} of {len(body)} bytes")
    if _CRC.unpack_from(data, _HEADER.size)[0] != zlib.crc32(body, zlib.crc32(data[: _HEADER.size])):
        raise ValueError("the checksum does not hold")
    found = msgpack.unpackb(body, use_list=False)
    if not isinstance(found, dict):
        raise TypeError(f"a body of {type(found).__name__}")
    return found


def _unusable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{error.filename or path}: {error.strerror}",
        hint="make room on that disk, and let the user that runs the bridge write there",
    )
