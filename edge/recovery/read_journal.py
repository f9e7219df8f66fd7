"""Saved sessions, read back: the newest valid snapshot, and the session journal behind it.

Changes nothing. The journal is read from memory after a crash, from the log after a power cut. A damaged
entry costs the entries behind it in its run, and is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import Struct, field

from edge.logging_setup import pairs
from edge.session_store.journal_records import JournalRecord, Rings, decode_record
from edge.session_store.snapshot_file import RECORD, Frame, SavedSnapshot, read_snapshot
from ringbuf import RECORD_HEADER_BYTES, Range, Ring, scan_records
from ringbuf.record import RecordHeader, payload_position, span

if TYPE_CHECKING:
    from persistence import Epoch

log = logging.getLogger(__name__)

RANGE_BYTES = 1 << 20  # read at a time
NEVER_ENDS = 1 << 56  # a position that no ring reaches


class PastLog(Protocol):
    """The part of the log's reader of all rings that recovery uses."""

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int, /) -> Sequence[Range]:
        """Runs of records from a ring position on."""

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int, /) -> Sequence[Range]:
        """Runs of records from an offset on."""

    def epochs(self, ring_name: str, /) -> Sequence[Epoch]:
        """Epochs of a ring that the log has."""


class SavedState(Struct):
    """The saved state, oldest first."""

    frames: Iterable[Frame] = ()  # read again at each iteration, piece by piece
    alive_ns: int = 0  # time of the last journal entry
    journal_epoch: int = 0  # epoch of the journal that the snapshot belongs to
    # name and epoch of each ring that the state refers to
    rings: set[tuple[str, int]] = field(default_factory=set)


class _SavedFrames:
    """Frames of a snapshot, and of the journal behind it. Only the first iteration logs damage."""

    def __init__(self, snapshot: SavedSnapshot, ring: Ring, past: PastLog | None) -> None:
        self.alive_ns = snapshot.origin.created_ns  # complete after the first iteration
        self._snapshot, self._ring, self._past = snapshot, ring, past
        self._level = logging.ERROR

    def __iter__(self) -> Iterator[Frame]:
        yield from self._snapshot
        expected = self._snapshot.origin.position
        for run in self._runs():
            for position, timestamp_ns, kind, body in self._records(run):
                if position < expected:  # both the log and the ring have it
                    continue
                if position > expected + self._ring.capacity_bytes:
                    self._log("session journal incomplete", expected=expected, at=position)
                expected = position + 1
                self.alive_ns = max(self.alive_ns, timestamp_ns)
                yield kind, body
        self._level = logging.DEBUG

    def _runs(self) -> Iterator[Range]:
        """Runs of the journal, of which the log may have older parts."""
        ring, past, origin = self._ring, self._past, self._snapshot.origin
        if origin.epoch != ring.epoch:
            yield from _of_log(ring.name, origin.epoch, origin.position, NEVER_ENDS, past)
            return
        oldest = ring.extremes().oldest_position
        if past is None and oldest > origin.position:
            self._log("session journal incomplete", expected=origin.position, at=oldest)
        yield from _of_log(ring.name, ring.epoch, origin.position, oldest, past)
        yield from _of_ring(ring)

    def _records(self, run: Range) -> Iterator[tuple[int, int, bytes, bytes]]:
        """Position, time, kind and body of each journal record in `run`, up to a wrong checksum."""
        good = scan_records(run.view, run.epoch).good_bytes
        at = 0
        while at < good:
            head = RecordHeader.of(run.view, at)
            kind = bytes(run.view[at + RECORD_HEADER_BYTES :][: head.key_length])
            body = bytes(run.view[at + payload_position(head.key_length, 0) : at + head.length])
            yield run.position + at, head.timestamp_ns, kind, body
            at += span(head.length)
        if good < len(run.view):
            self._log("session journal record damaged", position=run.position + good)

    def _log(self, text: str, **facts: int) -> None:
        log.log(self._level, "%s %s", text, pairs(**facts))


def read_saved_state(places: Iterable[Iterable[Path]], ring: Ring, past: PastLog | None) -> SavedState:
    """Read the newest of the snapshot files, and the journal behind it.

    `places`: directories that may have a snapshot, each as the names of its copies. The journal is `ring`,
    if the snapshot belongs to its epoch, together with what only the log has of that epoch or of an earlier
    one. The files and the ring must not change while the frames are read again.
    """
    snapshots = [snapshot for files in places for snapshot in _copies(files)]
    if not snapshots:
        return SavedState()
    latest = max(
        snapshots,
        # not by time: the wall clock may have been set back
        key=lambda snapshot: (snapshot.origin.epoch == ring.epoch, *snapshot.origin),
    )
    frames = _SavedFrames(latest, ring, past)
    rings = {
        (name, epoch)
        for kind, body in frames
        if kind == RECORD and isinstance(record := read_record(body), Rings)
        for name, epoch, _ in record.rings.values()
    }
    return SavedState(frames, frames.alive_ns, latest.origin.epoch, rings)


def _copies(files: Iterable[Path]) -> list[SavedSnapshot]:
    """Valid snapshots among the files of one directory."""
    damaged: list[Path] = []
    snapshots = [
        snapshot for snapshot in (read_snapshot(file, damaged) for file in files) if snapshot is not None
    ]
    for file in damaged:
        if snapshots:
            log.warning("session snapshot damaged, its copy is used %s", pairs(file=file))
        else:
            log.error("session snapshot damaged, sessions are lost %s", pairs(file=file))
    return snapshots


def _of_ring(ring: Ring) -> Iterator[Range]:
    with ring.reader(name="sessions", local=True, start="oldest", overrun="count") as reader:
        while runs := reader.ranges(RANGE_BYTES):
            yield from runs


def _of_log(name: str, epoch: int, position: int, end: int, past: PastLog | None) -> Iterator[Range]:
    while past is not None and position < end and (runs := past.read_at(name, epoch, position, RANGE_BYTES)):
        yield from runs
        position = runs[-1].position + len(runs[-1].view)


def read_record(body: bytes) -> JournalRecord | None:
    """The record in the body of a journal entry; None, with a log line, if it is unreadable."""
    try:
        return decode_record(body)
    except msgspec.DecodeError as error:
        log.error("session journal record unreadable %s", pairs(reason=error))
        return None
