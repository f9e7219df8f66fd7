"""Retained store: a file of the retained messages that rings may have overwritten and the log removed.

Owns `retained.state` in the state directory, a file that grows and is rewritten when most of it is old.
Before a ring overwrites retained records of the time since the last save, and at a stop, the topics whose
retained message has changed are appended. A topic that was published a thousand times meanwhile is written
once.

    frames of persistence/durable_file.py, with the seed 0; little-endian
    kind "r": records (ringbuf/c/base/record.h), padded to 32; one without a payload: nothing is retained
    kind "a": authors (edge/broker/retained_authors.py) of records of the frame before, in their order: for
              each author u32 length of the topic, u32 length of the author, topic, author; a record without
              one has no known author. Version 1 of this format had no such frames, and is read
    kind "m": msgpack {ring: [epoch, position]}: the frames before include all that was published up to there

A start takes the last record of each topic, then later records from the rings, or from the log if the rings
have overwritten them, of all rings in the order of time, also of rings whose stream was removed. For a ring
that the file does not know, the log is read from its beginning; that happens once. Marks stay while their
ring has no stream. A damaged file is truncated at the damage. A file with a frame of an unknown kind is of a
later version, and the start is refused.

Files are written on a separate thread. After a disk error the next save rewrites the whole file.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from heapq import merge
from itertools import chain, repeat
from operator import attrgetter
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from edge.broker.retained_delivery import RetainedRecord, owner_of_author
from edge.engine.engine import counters_of
from edge.errors import NewerState
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.recovery.read_journal import NEVER_ENDS, RANGE_BYTES, PastLog
from persistence.durable_file import NewFile, frames_of_file, is_unreadable, pack_frame, write_all
from persistence.files import Files, OsFiles
from persistence.free_disk_space import require_room
from ringbuf import FLAG_PROPERTIES, FLAG_RETAIN, Range, Ring

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker

log = logging.getLogger(__name__)

MARKS_MAX = 1024  # in the file; rings that are used now come first
CHANGES_BYTES = 1 << 18  # approximate; collected at a time
REWRITE_FACTOR = 2  # the file may be this many times as long as its valid content
REWRITE_MIN_BYTES = 1 << 20
FILE_MODE = 0o600  # payloads of clients

_AUTHOR = struct.Struct("<II")
_RECORD = struct.Struct("<I12xQ4xHH")  # of ringbuf/c/base/record.h: length, time, key length, flags

Marks = Mapping[str, tuple[int, int]]


def in_order(records: Iterable[Iterable[RetainedRecord]]) -> Iterator[RetainedRecord]:
    """Records of several rings, each in its order, oldest first. `records`: by ring, in the order of streams.

    A topic has records in several rings if its stream was added or removed. Of two records with the same
    time, that of the later stream is older: an added stream takes topics only from later streams.
    """
    return merge(*list(records)[::-1], key=attrgetter("timestamp_ns"))


def last_of_each_topic(records: Iterable[RetainedRecord]) -> Collection[RetainedRecord]:
    """The last record of each topic, in the order of `records`; also one without a payload."""
    latest: dict[bytes, RetainedRecord] = {}
    for record in records:
        latest.pop(record.key, None)
        latest[record.key] = record
    return latest.values()


def records_in(data: memoryview) -> Iterator[RetainedRecord]:
    """Each whole record in `data` with the RETAIN flag."""
    at = 0
    while at + _RECORD.size <= len(data):
        length, timestamp_ns, key_length, flags = _RECORD.unpack_from(data, at)
        if not _RECORD.size + key_length <= length <= len(data) - at:
            return
        if flags & FLAG_RETAIN:
            yield _record(data[at : at + length], key_length, flags, timestamp_ns)
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


class _SavedPieces:
    """Content of a file: iterate once over its records, with their authors. Then the attributes are complete.

    It is in memory piece by piece: a start needs no more memory than the run before it.
    """

    def __init__(self, path: Path, files: Files, *, renames: bool = True) -> None:
        """`renames`: a file that cannot be read to its end is renamed."""
        self.marks: dict[str, tuple[int, int]] = {}  # of each ring, up to which the file is complete
        self.good_bytes = 0
        self.is_lost = False  # True if the file could not be read to its end, and was renamed
        self._path, self._files, self._renames = path, files, renames

    def __iter__(self) -> Iterator[tuple[memoryview, memoryview]]:
        """Raises NewerState, OSError."""
        records: memoryview | None = None
        for kind, body in self._frames():
            if kind == b"m":
                self.marks = msgspec.msgpack.decode(body, type=dict[str, tuple[int, int]])
                continue
            if kind not in (b"a", b"r"):  # intact, by its checksum
                raise NewerState(self._path, f"a frame of the kind {kind!r}", "a, m and r")
            if records is not None:
                yield records, body if kind == b"a" else memoryview(b"")
            records = body if kind == b"r" else None
        if records is not None:
            yield records, memoryview(b"")

    def _frames(self) -> Iterator[tuple[bytes, memoryview]]:
        handle = -1
        try:
            handle = self._files.open(str(self._path))
            size = self._files.size(handle)
            for kind, body, end in frames_of_file(self._files, handle, size):
                self.good_bytes = end
                yield kind, body
        except FileNotFoundError:
            return
        except OSError as error:
            if not is_unreadable(error):
                raise
            if self._renames:
                self._rename(error)
            return
        finally:
            if handle >= 0:
                self._files.close(handle)
        if self.good_bytes < size:
            facts = pairs(file=self._path, at=self.good_bytes, bytes=size)
            log.warning("retained file damaged, truncated %s", facts)

    def _rename(self, error: OSError) -> None:
        kept = self._path.with_name(f"{self._path.name}.bad")
        self._files.rename(str(self._path), str(kept))
        facts = pairs(file=self._path, reason=error.strerror, kept=kept)
        log.error("retained file unreadable, renamed %s", facts)
        self.good_bytes, self.is_lost = 0, True


def _restore(broker: Broker, pieces: Iterable[tuple[memoryview, memoryview]]) -> None:
    """Restore the records of a file in order. C stops at a record that Python must decide about."""
    owners: dict[bytes, bytes] = {}
    for records, authors in pieces:
        at = authors_at = 0
        while True:
            at, authors_at = broker.engine.restore_retained(records, authors, owners, at, authors_at)
            record = next(records_in(records[at:]), None)
            if record is None:
                break
            key, author, end = next(_authors_in(authors, authors_at), (b"", b"", authors_at))
            if record.payload and key == record.key:
                record, authors_at = record._replace(author=author), end
                if (owner := owner_of_author(author)) is not None:
                    owners[author] = owner
            broker.retained.restore([record])
            at += _RECORD.unpack_from(records, at)[0] + 31 & ~31


def _authors_in(data: memoryview, at: int) -> Iterator[tuple[bytes, bytes, int]]:
    """Topic, author, and end of its entry, of each entry from `at` on."""
    while at + _AUTHOR.size <= len(data):
        key_bytes, author_bytes = _AUTHOR.unpack_from(data, at)
        begin = at + _AUTHOR.size
        at = begin + key_bytes + author_bytes
        if at > len(data):
            return
        yield bytes(data[begin : begin + key_bytes]), bytes(data[begin + key_bytes : at]), at


def marks_in(path: Path) -> dict[str, tuple[int, int]]:
    """(epoch, position) of each ring up to which the file is complete."""
    saved = _SavedPieces(path, OsFiles(), renames=False)
    for _ in saved:
        pass
    return saved.marks


def retained_in(ring: Ring, position: int = 0) -> Iterator[RetainedRecord]:
    """Retained records that the ring still holds from `position` on."""
    with ring.reader(name="retained", local=True, start="oldest", overrun="count") as reader:
        while runs := reader.ranges(RANGE_BYTES):
            yield from _since(runs, position)


def _logged(
    past: PastLog, name: str, epoch: int, position: int, end: int = NEVER_ENDS
) -> Iterator[RetainedRecord]:
    while position < end and (runs := past.read_at(name, epoch, position, RANGE_BYTES)):
        yield from _since(runs, position)
        position = runs[-1].position + len(runs[-1].view)


def _logged_since(
    past: PastLog, name: str, epoch: int, position: int, end_epoch: int
) -> Iterator[RetainedRecord]:
    """Retained records of the log from that place on, of all epochs before `end_epoch`."""
    for known in past.epochs(name):
        if epoch <= known.epoch < end_epoch:
            yield from _logged(past, name, known.epoch, position if known.epoch == epoch else 0)


def _published_since(ring: Ring, past: PastLog | None, epoch: int, position: int) -> Iterator[RetainedRecord]:
    """Retained records from that place on, or from the oldest that is left, in order."""
    begin = position if epoch == ring.epoch else 0
    if past is not None:
        yield from _logged_since(past, ring.name, epoch, position, ring.epoch)
        yield from _logged(past, ring.name, ring.epoch, begin, ring.extremes().oldest_position)
    yield from retained_in(ring, begin)


def _since(runs: Sequence[Range], position: int) -> Iterator[RetainedRecord]:
    for run in runs:
        yield from records_in(run.view[max(position - run.position, 0) :])


def _with_earlier(earlier: Marks, marks: Marks) -> Marks:
    """`marks`, and the earlier marks of rings that have no stream, or no message since the start.

    Without its mark a later start would read a ring from its beginning, and its records would replace newer
    ones that a topic has in another ring.
    """
    others = [(name, mark) for name, mark in earlier.items() if name not in marks]
    return dict([*others, *marks.items()][-MARKS_MAX:])


class RetainedStore:
    """The retained store: restore(), save() whenever it is due, stop().

    On the broker's thread, or while that does not run. A save continues piece by piece, each after the one
    before has been written, and the next save begins after it. So no publisher waits for it, and at most one
    piece waits for the disk.
    """

    def __init__(self, path: Path, *, sync: bool) -> None:
        """Create the store. `sync`: each save is synced, so that it survives a power cut."""
        self._files = OsFiles()
        self._broker: Broker | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._earlier: Marks = {}  # at the start; some of these rings may have no stream now
        self._marks: Marks | None = None  # of the running save, while it has more pieces
        self._ending: Future[None] | None = None  # result of the running save after its last piece
        self._due = False  # True if another save must follow
        self._written = _Written(path, self._files, sync=sync)

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._written.path

    def restore(
        self,
        broker: Broker,
        rings: Iterable[Ring],
        past: PastLog | None,
        logged: Mapping[str, int] = MappingProxyType({}),
        absent: Iterable[Ring] = (),
    ) -> int:
        """Restore retained messages from the file, the rings and the log. Returns their number.

        `logged`: last epoch of each ring that the log has; some have no ring, because their stream was
        removed and the memory was lost. `absent`: rings of removed streams, each open until the next one is
        requested. From now on changes are written, and first those that were found outside of the file.
        """
        saved = _SavedPieces(self.path, self._files)
        _restore(broker, saved)
        marks = saved.marks
        self._written.size_bytes, self._written.needs_rewrite = saved.good_bytes, saved.is_lost
        broker.engine.begin_retained_save(False)
        self._broker = broker
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-retained")
        self._thread.submit(int)  # starts the thread: later there may be no memory for it
        broker.on_retained_due = self.save
        published: list[Iterable[RetainedRecord]] = []
        read_now = {}
        for ring, is_absent in chain(zip(rings, repeat(False)), zip(absent, repeat(True))):
            since = _published_since(ring, past, *marks.get(ring.name, (0, 0)))
            published.append(last_of_each_topic(since) if is_absent else since)
            read_now[ring.name] = (ring.epoch, ring.extremes().end_position)
        ends = {
            name: epoch + 1
            for name, epoch in logged.items()
            if name not in read_now or epoch > read_now[name][0]
        }
        if past is not None:
            published += [_logged_since(past, name, *marks.get(name, (0, 0)), ends[name]) for name in ends]
        broker.retained.restore(in_order(published))
        self._earlier = {**marks, **read_now, **{name: (epoch, 0) for name, epoch in ends.items()}}
        return int(counters_of(broker.engine).retained)

    @property
    def is_saving(self) -> bool:
        """True while a save runs."""
        return self._marks is not None or self._ending is not None

    def save(self) -> None:
        """Write the changes since the last save: now, or after the running save."""
        if self._broker is None or self._thread is None:
            return
        self._due = self.is_saving
        if self._due:
            return
        self._marks = _with_earlier(self._earlier, self._broker.journal.marks())
        replaces = self._written.needs_rewrite
        self._broker.engine.begin_retained_save(replaces)
        self._thread.submit(self._written.begin, replaces)
        self._continue()

    def stop(self) -> None:
        """Write all changes, and end. May be called twice."""
        self._finish()
        self.save()
        self._finish()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _continue(self) -> None:
        """Write one piece of the save."""
        if self._marks is None or self._broker is None or self._thread is None:
            return
        changes, authors, more = self._broker.engine.retained_changes(CHANGES_BYTES)
        written = self._thread.submit(self._written.add, changes, authors)
        if more:
            self._then(written, self._continue)
            return
        live_bytes = int(counters_of(self._broker.engine).retained_bytes)
        self._ending = self._thread.submit(self._written.end, self._marks, live_bytes)
        self._marks = None
        self._then(self._ending, self._ended)

    def _then(self, done: Future[None], then: Callable[[], None]) -> None:
        """Call `then` on the broker's thread. Without `call` nothing happens: stop() continues the save."""
        if self._broker is not None and (call := self._broker.call) is not None:
            done.add_done_callback(lambda _: call(then))

    def _ended(self) -> None:
        self._ending = None
        if self._due:
            self.save()

    def _finish(self) -> None:
        """Run the current save to its end."""
        while self._marks is not None:
            self._continue()
        if self._ending is not None:
            self._ending.result()
            self._ending = None


class _Written:
    """The file on its writing thread: begin(), add() for each piece, end()."""

    def __init__(self, path: Path, files: Files, *, sync: bool) -> None:
        self.path = path
        self.size_bytes = 0  # length of the valid part
        self.needs_rewrite = False  # True if the file is too long for its content, or a write has failed
        self._files = files
        self._sync = sync
        self._handle = -1  # -1: a write of this save has failed
        self._new: NewFile | None = None  # the file of the handle, if it replaces the old one
        self._end = 0  # of the save in the file
        self._rewritten_bytes = 0  # size of the file at its last rewrite
        self._made = False  # True while the directory entry is not synced
        self._may_log = LogThrottle()

    def begin(self, replaces: bool) -> None:
        """Begin a save. `replaces`: the pieces are the whole content, and replace the file."""
        self._end = 0 if replaces else self.size_bytes
        try:
            if replaces:
                self._new = NewFile(self._files, str(self.path), mode=FILE_MODE)
                self._handle = self._new.handle
            else:
                self._handle = self._opened()
                self._files.ftruncate(self._handle, self.size_bytes)
        except Exception as error:  # noqa: BLE001 - after any error this save is not in the file
            self._failed(error)

    def _opened(self) -> int:
        """Handle of the file, to append to it."""
        name = str(self.path)
        try:
            self._files.close(self._files.open(name))
        except FileNotFoundError:
            if self.size_bytes:
                raise  # it was removed, with what it contained
            self._made = True
        return self._files.open(name, create=True, mode=FILE_MODE)

    def add(self, records: bytes, authors: bytes) -> None:
        """Append one piece."""
        if self._handle < 0 or not records:
            return
        try:
            require_room(self._files, str(self.path.parent), len(records))
            self._put(b"r", records)
            if authors:
                self._put(b"a", authors)
        except Exception as error:  # noqa: BLE001 - after any error this save is not in the file
            self._failed(error)

    def end(self, marks: Marks, live_bytes: int) -> None:
        """End a save, complete up to `marks`. `live_bytes`: about the size of all retained messages."""
        if self._handle < 0:
            return
        replaces = self._new is not None
        try:
            self._put(b"m", msgspec.msgpack.encode(marks))
            if self._new is not None:
                self._new.publish(sync=self._sync)
            elif self._sync:
                self._files.fdatasync(self._handle)
                if self._made:
                    self._files.dirsync(str(self.path.parent))
        except Exception as error:  # noqa: BLE001 - after any error this save is not in the file
            self._failed(error)
            return
        self._close()
        self._made = False
        self.size_bytes = self._end
        if replaces:
            self._rewritten_bytes = self.size_bytes
        # Authors are in the file but not in `live_bytes`. A file of minimal length is not rewritten.
        live_bytes = max(live_bytes, self._rewritten_bytes)
        self.needs_rewrite = self.size_bytes > REWRITE_FACTOR * live_bytes + REWRITE_MIN_BYTES

    def _put(self, kind: bytes, body: bytes) -> None:
        self._end = write_all(self._files, self._handle, [pack_frame(kind, body), body], self._end)

    def _failed(self, error: Exception) -> None:
        """Drop this save. The next one writes everything to a new file."""
        if self._may_log():  # a failed save is repeated each second
            log.error("retained file write failed %s", pairs(file=self.path, reason=error))
        self.needs_rewrite = True
        self._close()

    def _close(self) -> None:
        """Close the file of this save. A new file that has no name yet is removed."""
        handle, self._handle = self._handle, -1
        new, self._new = self._new, None
        if new is not None:
            new.close()
        elif handle >= 0:
            self._files.close(handle)
