"""Retained messages in a file: those that the rings may have overwritten, and that the log may have let go.

Owns `retained.state` in the state directory, a file that grows and is written anew when most of it is old.
Before a ring has lost what was retained since the last time, and at a stop, the topics that retain something
else are written behind the file; a topic that was published a thousand times meanwhile is written once.

    frame: u32 length, u32 crc32c of kind and body, u8 kind, body; little-endian
    kind "r": records (ringbuf/c/record.h), padded to 32; one without a payload says that nothing is retained
    kind "m": msgpack {ring: [epoch, position]}: what was published up to there is in what stands before

A start takes the last record of each topic, then what was published since: from the rings, or from the log
where it has it and they have not.  Of a ring that the file does not know, the log is read from its beginning:
once, since the file knows it then.  A file that is damaged counts up to there: what follows is cut off.

Files are written on a thread of their own.  What cannot be written is written with the next: the changes are
kept until then.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from edge.engine import Engine, counters_of
from edge.logs import pairs
from edge.state.checkpoint import sync_directory
from edge.state.restoring import NEVER_ENDS, RANGE_BYTES, PastLog
from ringbuf import FLAG_PROPERTIES, FLAG_RETAIN, Range, Ring, crc32c

if TYPE_CHECKING:
    from edge.broker import Broker

__all__ = ["RetainedFile", "RetainedRecord", "records_in", "retained_in"]

log = logging.getLogger(__name__)

CHANGES_BYTES = 1 << 20  # collected at a time, about
ANEW_FACTOR = 2  # the file may be as much longer than what it says
ANEW_MIN_BYTES = 1 << 20

_FRAME = struct.Struct("<IIc")
_RECORD = struct.Struct("<I12xQ4xHH")  # of ringbuf/c/record.h: length, time, key length, flags

Marks = Mapping[str, tuple[int, int]]


class RetainedRecord(NamedTuple):
    """As Retained.restore() takes one."""

    key: bytes
    flags: int
    timestamp_ns: int
    properties: bytes
    payload: bytes

    def bytes(self) -> bytes:
        """Its payload."""
        return self.payload


def records_in(data: memoryview) -> Iterator[tuple[RetainedRecord, memoryview]]:
    """Each record in `data`, whole and padded to 32, that says what is retained; and its bytes."""
    at = 0
    while at + _RECORD.size <= len(data):
        length, timestamp_ns, key_length, flags = _RECORD.unpack_from(data, at)
        if not _RECORD.size + key_length <= length <= len(data) - at:
            return
        if flags & FLAG_RETAIN:
            whole = data[at : at + (length + 31 & ~31)]
            yield _record(whole[:length], key_length, flags, timestamp_ns), whole
        at += length + 31 & ~31


def _record(data: memoryview, key_length: int, flags: int, timestamp_ns: int) -> RetainedRecord:
    after_key = _RECORD.size + key_length
    end = after_key
    if flags & FLAG_PROPERTIES:
        length, size = _variable(data[after_key : after_key + 4])
        end += length + size
    payload = end + 7 & ~7
    key, properties = bytes(data[_RECORD.size : after_key]), bytes(data[after_key:end])
    return RetainedRecord(key, flags, timestamp_ns, properties, bytes(data[payload:]))


def _variable(data: memoryview) -> tuple[int, int]:
    """A Variable Byte Integer, and how long it is."""
    value = 0
    for index, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, index + 1
    return 0, 0


class _Content(NamedTuple):
    """What a file says: by topic, and up to where."""

    latest: dict[bytes, bytes]  # key -> record, padded
    marks: dict[str, tuple[int, int]]
    good_bytes: int


def _read(path: Path) -> _Content:
    try:
        data = memoryview(path.read_bytes())
    except FileNotFoundError:
        data = memoryview(b"")
    latest: dict[bytes, bytes] = {}
    marks: dict[str, tuple[int, int]] = {}
    at = 0
    while at + _FRAME.size <= len(data):
        length, crc, kind = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + length]
        if len(body) < length or crc32c(body, crc32c(kind)) != crc:
            log.warning("retained messages cut off %s", pairs(file=path, at=at, bytes=len(data)))
            break
        if kind == b"m":
            marks = msgspec.msgpack.decode(body, type=dict[str, tuple[int, int]])
        else:
            for record, whole in records_in(body):
                latest[record.key] = bytes(whole)
        at += _FRAME.size + length
    return _Content({key: it for key, it in latest.items() if _says_something(it)}, marks, at)


def _says_something(record: bytes) -> bool:
    return any(it.payload for it, _ in records_in(memoryview(record)))


def _frames(content: Mapping[bytes, bytes], marks: Marks) -> bytes:
    found = []
    for kind, body in ((b"r", b"".join(content.values())), (b"m", msgspec.msgpack.encode(marks))):
        if body:
            found.append(_FRAME.pack(len(body), crc32c(body, crc32c(kind)), kind) + body)
    return b"".join(found)


def retained_in(ring: Ring, position: int = 0) -> Iterator[RetainedRecord]:
    """What the ring still holds from `position` on that says what is retained."""
    with ring.reader(name="retained", own=True, start="oldest", overrun="count") as reader:
        while runs := reader.ranges(RANGE_BYTES):
            yield from _since(runs, position)


def _logged(
    past: PastLog, name: str, epoch: int, position: int, end: int = NEVER_ENDS
) -> Iterator[RetainedRecord]:
    while position < end and (runs := past.read_at(name, epoch, position, RANGE_BYTES)):
        yield from _since(runs, position)
        position = runs[-1].position + len(runs[-1].view)


def _published_since(ring: Ring, past: PastLog | None, epoch: int, position: int) -> Iterator[RetainedRecord]:
    """All that says what is retained from that place on, or from a later one that is left; in order."""
    begin = position if epoch == ring.epoch else 0
    if past is not None:
        for held in past.epochs(ring.name):
            if epoch <= held.epoch < ring.epoch:
                yield from _logged(past, ring.name, held.epoch, position if held.epoch == epoch else 0)
        yield from _logged(past, ring.name, ring.epoch, begin, ring.extremes().oldest_position)
    yield from retained_in(ring, begin)


def _since(runs: Sequence[Range], position: int) -> Iterator[RetainedRecord]:
    for run in runs:
        for record, _ in records_in(run.view[max(position - run.position, 0) :]):
            yield record


class RetainedFile:
    """restore(), sweep() whenever it is due, stop().  On the broker's thread, or while that does not run."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        """`sync`: what is written outlives a power cut when the next sweep is due."""
        self.path = path
        self._sync = sync
        self._engine: Engine | None = None
        self._marks: Callable[[], Marks] = dict
        self._thread: ThreadPoolExecutor | None = None
        # The thread's:
        self._waiting: dict[bytes, bytes] = {}
        self._size_bytes = 0
        self._live_bytes = 0

    def read(self) -> tuple[list[RetainedRecord], dict[str, tuple[int, int]]]:
        """What it says is retained, and for each ring (epoch, position) up to where it says so."""
        content = _read(self.path)
        self._size_bytes = content.good_bytes
        self._live_bytes = sum(map(len, content.latest.values()))
        found = [record for it in content.latest.values() for record, _ in records_in(memoryview(it))]
        return found, content.marks

    def restore(self, broker: Broker, rings: Iterable[Ring], past: PastLog | None) -> int:
        """Puts back what is retained, as far as the file, the rings and the log know; how many there are.

        From now on what changes is written, with what was found beside the file.
        """
        found, marks = self.read()
        broker.retained.restore(found)
        self._engine, self._marks = broker.engine, broker.keeper.marks
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-retained")
        broker.engine.retained_keep(True)
        broker.on_retained_due = self.sweep
        for ring in rings:
            broker.retained.restore(_published_since(ring, past, *marks.get(ring.name, (0, 0))))
        return int(counters_of(broker.engine).retained)

    def sweep(self) -> None:
        """Write what has changed since the last time."""
        if self._engine is None or self._thread is None:
            return
        marks = dict(self._marks())
        while changes := self._engine.retained_changes(CHANGES_BYTES):
            self._thread.submit(self._take, changes)
        self._thread.submit(self._write, marks)

    def stop(self) -> None:
        """Write all, and end.  May be called twice."""
        self.sweep()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    # ---- on the thread ----

    def _take(self, changes: bytes) -> None:
        for record, whole in records_in(memoryview(changes)):
            self._waiting[record.key] = bytes(whole)

    def _write(self, marks: Marks) -> None:
        try:
            if self._size_bytes > ANEW_FACTOR * self._live_bytes + ANEW_MIN_BYTES:
                self._write_anew(marks)
            else:
                self._append(marks)
            self._waiting.clear()
        except OSError as error:
            log.error("retained messages cannot be written down %s", pairs(file=self.path, reason=error))

    def _append(self, marks: Marks) -> None:
        data = _frames(self._waiting, marks)
        with self.path.open("r+b" if self.path.exists() else "xb") as file:
            file.truncate(self._size_bytes)
            file.seek(self._size_bytes)
            file.write(data)
            self._settle(file)
        self._size_bytes += len(data)

    def _write_anew(self, marks: Marks) -> None:
        latest = _read(self.path).latest | self._waiting
        kept = {key: it for key, it in latest.items() if _says_something(it)}
        temporary = self.path.with_name(f"{self.path.name}.new")
        data = _frames(kept, marks)
        with temporary.open("wb") as file:
            file.write(data)
            self._settle(file)
        temporary.replace(self.path)
        if self._sync:
            sync_directory(self.path.parent)
        self._size_bytes = len(data)
        self._live_bytes = sum(map(len, kept.values()))

    def _settle(self, file: BinaryIO) -> None:
        os.fchmod(file.fileno(), 0o600)
        file.flush()
        if self._sync:
            os.fsync(file.fileno())
