"""Offset journal of consumer groups: a file of records, only appended to, and rewritten when it has grown.

    byte  size
       0     8  magic "BRIMCONS"
       8     4  version, 1
      12     4  zeros
      16        records, each at a multiple of 8:
                   0  4  length of the body, 1 .. 64 MiB
                   4  4  crc32c of those four bytes and the body
                   8     body, then zeros up to a multiple of 8

Little-endian. offset_store.py defines the bodies. A body replaces earlier bodies of its key, so a lost body
costs only its own content.

Appended bytes survive the end of the process at once, and a power cut after sync() has returned. After a disk
error `broken` is set, and the file is not written again: rewrite() replaces it (persistence/durable_file.py).
If rewrite() fails before the rename, the old file stays in use if it is intact, and rewrite() is due again
when it has grown further.

Recovery accepts valid records. An invalid tail is cut and reported. Invalid bytes in the middle are skipped
and counted. A damaged header is repaired. A file without the header and without a valid record is renamed to
NAME.damaged.

Rule for change: another layout raises the version, and the version seeds the checksum of records, so that no
reader accepts records of another version. A start is refused by a file of a later version; a new version must
read and rewrite the old files first.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from edge.errors import NewerState
from edge.logging_setup import pairs
from persistence.durable_file import NewFile, UnreadableFile, read_file, write_all
from persistence.files import Files, OsFiles
from persistence.free_disk_space import require_room
from ringbuf import crc32c

log = logging.getLogger(__name__)

MAGIC, VERSION = b"BRIMCONS", 1
BODY_MAX_BYTES = 64 << 20
ALIGN_BYTES = 8
COMPACT_MIN_BYTES = 1 << 20  # below it a rewrite is not worth a sync
# times the size after the last rewrite: so a rewrite costs a third of a byte per appended byte
COMPACT_FACTOR = 4
_HEADER = struct.Struct("<8sI4x")
_RECORD = struct.Struct("<II")
_LENGTH = struct.Struct("<I")


def pack_header() -> bytes:
    """Header of the file."""
    return _HEADER.pack(MAGIC, VERSION)


def pack_record(body: bytes) -> bytes:
    """A record, with its padding."""
    crc = crc32c(body, crc32c(_LENGTH.pack(len(body))))
    record = _RECORD.pack(len(body), crc) + body
    return record + bytes(-len(record) % ALIGN_BYTES)


def needs_recovery(path: Path) -> bool:
    """True unless there is no file, or a valid header only. Raises OSError, but not FileNotFoundError."""
    try:
        return read_file(OsFiles(), str(path), _HEADER.size + 1) != pack_header()
    except FileNotFoundError:
        return False
    except UnreadableFile:
        return True


class Journal:
    """The journal `name` in an existing `directory`. One thread uses it; one process writes it."""

    def __init__(self, files: Files, directory: str, name: str) -> None:
        self.damaged = 0  # places skipped in recovery
        self.broken = False  # a write has failed: rewrite() is due
        self.unsynced = False
        self._files = files
        self._directory = directory
        self._name = os.path.join(directory, name)
        self._handle: int | None = None
        self._end = 0
        self._compact_bytes = COMPACT_MIN_BYTES

    def recover(self) -> list[bytes]:
        """Read all bodies, in order; append() works after that. Raises OSError, NewerState."""
        files = self._files
        try:
            data = read_file(files, self._name)
        except FileNotFoundError:
            self.rewrite(())
            return []
        except UnreadableFile as error:
            self._begin_again(str(error))
            return []
        bodies, end = self._parsed(data)
        is_whole = data[: _HEADER.size] == pack_header()
        if not is_whole and not bodies:
            self._refuse_newer(data)
            self._begin_again(f"no valid record in {len(data)} bytes")
            return []
        self._handle = files.open(self._name, create=True)
        self._end = end
        self._compact_bytes = COMPACT_MIN_BYTES  # how many of the bodies are outdated is unknown
        if not is_whole:
            self.damaged += 1
            log.warning("offset journal header repaired file=%s", self._name)
            write_all(files, self._handle, [pack_header()], 0)
        if end < len(data):
            log.warning("offset journal tail cut file=%s place=%d bytes=%d", self._name, end, len(data) - end)
            files.ftruncate(self._handle, end)
        files.fdatasync(self._handle)  # the bodies are used from now on, so they must not vanish
        return bodies

    def _refuse_newer(self, data: bytes) -> None:
        """Raise NewerState if the file has records, and the header of a later version."""
        if len(data) <= _HEADER.size:
            return
        magic, version = _HEADER.unpack_from(data)
        if magic == MAGIC and version > VERSION and data[: _HEADER.size] == _HEADER.pack(magic, version):
            raise NewerState(self._name, f"version {version}", str(VERSION))

    def _begin_again(self, reason: str) -> None:
        """Rename the file, and write an empty one."""
        kept = f"{self._name}.damaged"
        log.warning("offset journal renamed %s", pairs(file=self._name, kept=kept, reason=reason))
        self._files.rename(self._name, kept)
        self.damaged += 1
        self.rewrite(())

    def append(self, bodies: Sequence[bytes]) -> None:
        """Append bodies in one write. Raises OSError; then the journal is broken."""
        assert self._handle is not None
        assert not self.broken
        try:
            self._end = write_all(self._files, self._handle, map(pack_record, bodies), self._end)
        except OSError:
            self.broken = True
            raise
        self.unsynced = True

    def sync(self) -> None:
        """Return when all appended bytes survive a power cut. Raises OSError; then the journal is broken."""
        if not self.unsynced:
            return
        assert self._handle is not None
        try:
            self._files.fdatasync(self._handle)
        except OSError:
            self.broken = True
            raise
        self.unsynced = False

    @property
    def needs_rewrite(self) -> bool:
        """True if the file has grown enough, or is unusable."""
        return self.broken or self._end > self._compact_bytes

    def rewrite(self, bodies: Iterable[bytes]) -> None:
        """Replace the file by a new one with only these bodies, synced.

        Raises OSError: the old file is unchanged, but `broken` if the name may belong to the new one.
        """
        try:
            new = NewFile(self._files, self._name)
        except OSError:
            self._postpone()
            raise
        with new:
            try:
                parts = [pack_header(), *map(pack_record, bodies)]
                require_room(self._files, self._directory, sum(map(len, parts)))
                new.write(*parts)
                new.publish()
            except OSError:
                self.broken |= new.may_be_named
                self._postpone()
                raise
            self.close()
            self._handle, self._end, self.broken, self.unsynced = new.detach(), new.size, False, False
        self._compact_bytes = max(COMPACT_MIN_BYTES, COMPACT_FACTOR * self._end)

    def _postpone(self) -> None:
        """Try the next rewrite when the file has grown."""
        self._compact_bytes = self._end + COMPACT_MIN_BYTES

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._handle is not None:
            self._files.close(self._handle)
            self._handle = None

    def _parsed(self, data: bytes) -> tuple[list[bytes], int]:
        """The bodies, and the end of the last one."""
        bodies, end = [], _HEADER.size
        for at, body in _records(memoryview(data)):
            if at != end:
                self.damaged += 1
                log.warning("offset journal damaged, bytes skipped place=%d bytes=%d", end, at - end)
            bodies.append(body)
            end = at + _span(len(body))
        return bodies, end  # behind the file's end, if the padding of the last record is missing


def bodies_in(path: Path) -> list[bytes]:
    """Bodies of a journal that no process has opened yet; none if the file is unreadable."""
    try:
        return [body for _, body in _records(memoryview(read_file(OsFiles(), str(path))))]
    except OSError:
        return []


def _span(body_bytes: int) -> int:
    return -(-(_RECORD.size + body_bytes) // ALIGN_BYTES) * ALIGN_BYTES


def _records(data: memoryview) -> Iterator[tuple[int, bytes]]:
    """(place, body) of each valid record, in order."""
    at = _HEADER.size
    while at + _RECORD.size < len(data):
        length, crc = _RECORD.unpack_from(data, at)
        body = data[at + _RECORD.size : at + _RECORD.size + length]
        good = 0 < length <= BODY_MAX_BYTES and len(body) == length
        if good and crc32c(body, crc32c(_LENGTH.pack(length))) == crc:
            yield at, bytes(body)
            at += _span(length)
        else:
            at += ALIGN_BYTES
