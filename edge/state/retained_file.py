"""Retained store: a file of the retained messages that rings may have overwritten and the log removed.

Owns `retained.state` in the state directory, a file that grows and is rewritten when most of it is old.
Before a ring overwrites retained records of the time since the last sweep, and at a stop, the topics whose
retained message has changed are appended. A topic that was published a thousand times meanwhile is written
once.

    frame: u32 length, u32 crc32c of kind and body, u8 kind, body; little-endian
    kind "r": records (ringbuf/c/record.h), padded to 32; one without a payload: nothing is retained
    kind "a": authors (edge/authors.py) of records of the frame before: for each author u32 length of the
              topic, u32 length of the author, topic, author; a record without one has no known author.
              Version 1 of this format had no such frames, and is read
    kind "m": msgpack {ring: [epoch, position]}: the frames before include all that was published up to there

A start takes the last record of each topic, then later records from the rings, or from the log if the rings
have overwritten them. For a ring that the file does not know, the log is read from its beginning; that
happens once. A damaged file is truncated at the damage.

Files are written on a separate thread. After a disk error the next sweep rewrites the whole file.
"""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import msgspec

from edge.directories import sync_directory
from edge.engine import counters_of
from edge.logs import pairs
from edge.state.restoring import NEVER_ENDS, RANGE_BYTES, PastLog
from persistence.files import OsFiles
from persistence.free_room import require_room
from ringbuf import FLAG_PROPERTIES, FLAG_RETAIN, Range, Ring, crc32c

if TYPE_CHECKING:
    from edge.broker import Broker

__all__ = ["RetainedFile", "RetainedRecord", "marks_in", "records_in", "retained_in"]

log = logging.getLogger(__name__)

CHANGES_BYTES = 1 << 18  # approximate; collected at a time
ANEW_FACTOR = 2  # the file may be this many times as long as its valid content
ANEW_MIN_BYTES = 1 << 20

_FRAME = struct.Struct("<IIc")
_AUTHOR = struct.Struct("<II")
_RECORD = struct.Struct("<I12xQ4xHH")  # of ringbuf/c/record.h: length, time, key length, flags

Marks = Mapping[str, tuple[int, int]]


class RetainedRecord(NamedTuple):
    """A retained message in the form that Retained.restore() accepts."""

    key: bytes
    flags: int
    timestamp_ns: int
    properties: bytes
    payload: bytes
    author: bytes = b""

    def bytes(self) -> bytes:
        """Payload of the message."""
        return self.payload


def records_in(data: memoryview) -> Iterator[tuple[RetainedRecord, memoryview]]:
    """Each record in `data` with the RETAIN flag, with its bytes, padded to 32. Stops at an incomplete
    record.
    """
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
    """Value and length of a Variable Byte Integer; (0, 0) if it is incomplete."""
    value = 0
    for index, byte in enumerate(data):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, index + 1
    return 0, 0


class _Content(NamedTuple):
    """Content of a file, by topic, and the positions up to which it is complete."""

    latest: dict[bytes, bytes]  # key -> record, padded
    authors: dict[bytes, bytes]  # key -> author
    marks: dict[str, tuple[int, int]]
    good_bytes: int


def _read(path: Path) -> _Content:
    try:
        data = memoryview(path.read_bytes())
    except FileNotFoundError:
        data = memoryview(b"")
    latest: dict[bytes, bytes] = {}
    authors: dict[bytes, bytes] = {}
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
        elif kind == b"a":
            authors.update(_authors_in(body))
        else:
            for record, whole in records_in(body):
                latest[record.key] = bytes(whole)
                authors.pop(record.key, None)
        at += _FRAME.size + length
    return _Content({key: it for key, it in latest.items() if _says_something(it)}, authors, marks, at)


def _authors_in(body: memoryview) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at + _AUTHOR.size <= len(body):
        key_bytes, author_bytes = _AUTHOR.unpack_from(body, at)
        begin = at + _AUTHOR.size
        at = begin + key_bytes + author_bytes
        if at > len(body):
            return
        yield bytes(body[begin : begin + key_bytes]), bytes(body[begin + key_bytes : at])


def marks_in(path: Path) -> dict[str, tuple[int, int]]:
    """(epoch, position) of each ring up to which the file is complete."""
    return _read(path).marks


def _says_something(record: bytes) -> bool:
    return any(it.payload for it, _ in records_in(memoryview(record)))


def retained_in(ring: Ring, position: int = 0) -> Iterator[RetainedRecord]:
    """Retained records that the ring still holds from `position` on."""
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
    """Retained records from that place on, or from the oldest that is left, in order."""
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
    """The retained store: restore(), sweep() whenever it is due, stop().

    On the broker's thread, or while that does not run. A sweep continues piece by piece, each after the one
    before has been written, and the next sweep begins after it. So no publisher waits for it, and at most one
    piece waits for the disk.
    """

    def __init__(self, path: Path, *, sync: bool) -> None:
        """Create the store. `sync`: each sweep is synced, so that it survives a power cut."""
        self._broker: Broker | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._marks: Marks | None = None  # of the running sweep, while it has more pieces
        self._ending: Future[None] | None = None  # result of the running sweep after its last piece
        self._due = False  # True if another sweep must follow
        self._written = _Written(path, sync=sync)

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._written.path

    def read(self) -> tuple[list[RetainedRecord], dict[str, tuple[int, int]]]:
        """Retained messages of the file, and for each ring (epoch, position) up to which it is complete."""
        content = _read(self.path)
        self._written.size_bytes = content.good_bytes
        found = [
            record._replace(author=content.authors.get(record.key, b""))
            for it in content.latest.values()
            for record, _ in records_in(memoryview(it))
        ]
        return found, content.marks

    def restore(self, broker: Broker, rings: Iterable[Ring], past: PastLog | None) -> int:
        """Restore retained messages from the file, the rings and the log. Returns their number.

        From now on changes are written, and first those that were found outside of the file.
        """
        found, marks = self.read()
        broker.retained.restore(found)
        broker.engine.retained_sweep(False)
        self._broker = broker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-retained")
        broker.on_retained_due = self.sweep
        for ring in rings:
            broker.retained.restore(_published_since(ring, past, *marks.get(ring.name, (0, 0))))
        return int(counters_of(broker.engine).retained)

    @property
    def is_sweeping(self) -> bool:
        """True while a sweep runs."""
        return self._marks is not None or self._ending is not None

    def sweep(self) -> None:
        """Write the changes since the last sweep: now, or after the running sweep."""
        if self._broker is None or self._thread is None:
            return
        self._due = self.is_sweeping
        if self._due:
            return
        self._marks = dict(self._broker.keeper.marks())
        anew = self._written.wants_anew
        self._broker.engine.retained_sweep(anew)
        self._thread.submit(self._written.begin, anew)
        self._go_on()

    def stop(self) -> None:
        """Write all changes, and end. May be called twice."""
        self._finish()
        self.sweep()
        self._finish()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _go_on(self) -> None:
        """Write one piece of the sweep."""
        if self._marks is None or self._broker is None or self._thread is None:
            return
        changes, authors, more = self._broker.engine.retained_changes(CHANGES_BYTES)
        written = self._thread.submit(self._written.add, changes, authors)
        if more:
            self._when(written, self._go_on)
            return
        live_bytes = int(counters_of(self._broker.engine).retained_bytes)
        self._ending = self._thread.submit(self._written.end, self._marks, live_bytes)
        self._marks = None
        self._when(self._ending, self._ended)

    def _when(self, done: Future[None], then: Callable[[], None]) -> None:
        """Call `then` on the broker's thread. Without `call` nothing happens: stop() continues the sweep."""
        if self._broker is not None and (call := self._broker.call) is not None:
            done.add_done_callback(lambda _: call(then))

    def _ended(self) -> None:
        self._ending = None
        if self._due:
            self.sweep()

    def _finish(self) -> None:
        """Run the current sweep to its end."""
        while self._marks is not None:
            self._go_on()
        if self._ending is not None:
            self._ending.result()
            self._ending = None


class _Written:
    """The file on its writing thread: begin(), add() for each piece, end()."""

    def __init__(self, path: Path, *, sync: bool) -> None:
        self.path = path
        self.size_bytes = 0  # length of the valid part
        self.wants_anew = False  # True if the file is too long for its content, or a write has failed
        self._sync = sync
        self._file: BinaryIO | None = None  # None: a write of this sweep has failed
        self._anew = False
        self._anew_bytes = 0  # size of the file at its last rewrite
        self._made = False  # True while the directory entry is not synced

    def begin(self, anew: bool) -> None:
        """Begin a sweep. `anew`: the pieces are the whole content, and replace the file."""
        self._anew, self._file = anew, None
        try:
            if anew:
                self._file = self._temporary.open("wb")
            else:
                is_there = self.path.exists()
                if self.size_bytes and not is_there:
                    raise FileNotFoundError(f"{self.path} was removed")
                self._made |= not is_there
                self._file = self.path.open("r+b" if is_there else "xb")
                self._file.truncate(self.size_bytes)
                self._file.seek(self.size_bytes)
            os.fchmod(self._file.fileno(), 0o600)
        except Exception as error:  # noqa: BLE001 - after any error this sweep is not in the file
            self._failed(error)

    def add(self, records: bytes, authors: bytes) -> None:
        """Append one piece."""
        if self._file is None or not records:
            return
        try:
            require_room(OsFiles(), str(self.path.parent), len(records))
            self._put(self._file, b"r", records)
            if authors:
                self._put(self._file, b"a", authors)
        except Exception as error:  # noqa: BLE001 - after any error this sweep is not in the file
            self._failed(error)

    def end(self, marks: Marks, live_bytes: int) -> None:
        """End a sweep that is complete up to `marks`. `live_bytes`: approximate size of all retained
        messages.
        """
        file = self._file
        if file is None:
            return
        try:
            self._put(file, b"m", msgspec.msgpack.encode(marks))
            file.flush()
            if self._sync:
                os.fsync(file.fileno())
            self.size_bytes = file.tell()
            file.close()
            if self._anew:
                self._temporary.replace(self.path)
                self._made = True
            if self._made and self._sync:
                sync_directory(self.path.parent)
                self._made = False
        except Exception as error:  # noqa: BLE001 - after any error this sweep is not in the file
            self._failed(error)
            return
        self._file = None
        if self._anew:
            self._anew_bytes = self.size_bytes
        # Authors are in the file but not in `live_bytes`. A file of minimal length is not rewritten.
        live_bytes = max(live_bytes, self._anew_bytes)
        self.wants_anew = self.size_bytes > ANEW_FACTOR * live_bytes + ANEW_MIN_BYTES

    @property
    def _temporary(self) -> Path:
        return self.path.with_name(f"{self.path.name}.new")

    def _put(self, file: BinaryIO, kind: bytes, body: bytes) -> None:
        file.write(_FRAME.pack(len(body), crc32c(body, crc32c(kind)), kind))
        file.write(body)

    def _failed(self, error: Exception) -> None:
        """Drop this sweep. The next one writes everything to a new file."""
        log.error("retained messages cannot be written down %s", pairs(file=self.path, reason=error))
        self.wants_anew = True
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()
        with suppress(OSError):
            self._temporary.unlink(missing_ok=True)
