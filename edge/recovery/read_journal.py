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

    frames: list[Frame] = field(default_factory=list)
    alive_ns: int = 0  # time of the last journal entry
    journal_epoch: int = 0  # epoch of the journal that the snapshot belongs to
    # name and epoch of each ring that the state refers to
    rings: set[tuple[str, int]] = field(default_factory=set)


def read_saved_state(places: Iterable[Iterable[Path]], ring: Ring, past: PastLog | None) -> SavedState:
    """Read the newest of the snapshot files, and the journal behind it.

    `places`: directories that may have a snapshot, each as the names of its copies. The journal is `ring`,
    if the snapshot belongs to its epoch, together with what only the log has of that epoch or of an earlier
    one.
    """
    snapshots = [snapshot for files in places for snapshot in _copies(files)]
    if not snapshots:
        return SavedState()
    latest = max(
        snapshots,
        # not by time: the wall clock may have been set back
        key=lambda snapshot: (snapshot.origin.epoch == ring.epoch, *snapshot.origin),
    )
    state = SavedState(list(latest.frames), latest.origin.created_ns, latest.origin.epoch)
    expected = latest.origin.position
    for run in _journal(ring, latest, past):
        for position, timestamp_ns, kind, body in _records(run):
            if position < expected:  # both the log and the ring have it
                continue
            if position > expected + ring.capacity_bytes:
                log.error("session journal incomplete %s", pairs(expected=expected, at=position))
            expected = position + 1
            state.frames.append((kind, body))
            state.alive_ns = max(state.alive_ns, timestamp_ns)
    for kind, body in state.frames:
        if kind == RECORD and isinstance(record := read_record(body), Rings):
            state.rings.update((name, epoch) for name, epoch, _ in record.rings.values())
    return state


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


def _journal(ring: Ring, latest: SavedSnapshot, past: PastLog | None) -> Iterator[Range]:
    position = latest.origin.position
    if latest.origin.epoch != ring.epoch:
        yield from _of_log(ring.name, latest.origin.epoch, position, NEVER_ENDS, past)
        return
    oldest = ring.extremes().oldest_position
    if past is None and oldest > position:
        log.error("session journal incomplete %s", pairs(expected=position, at=oldest))
    yield from _of_log(ring.name, ring.epoch, position, oldest, past)
    yield from _of_ring(ring)


def _of_ring(ring: Ring) -> Iterator[Range]:
    with ring.reader(name="sessions", local=True, start="oldest", overrun="count") as reader:
        while runs := reader.ranges(RANGE_BYTES):
            yield from runs


def _of_log(name: str, epoch: int, position: int, end: int, past: PastLog | None) -> Iterator[Range]:
    while past is not None and position < end and (runs := past.read_at(name, epoch, position, RANGE_BYTES)):
        yield from runs
        position = runs[-1].position + len(runs[-1].view)


def _records(run: Range) -> Iterator[tuple[int, int, bytes, bytes]]:
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
        log.error("session journal record damaged %s", pairs(position=run.position + good))


def read_record(body: bytes) -> JournalRecord | None:
    """The record in the body of a journal entry; None, with a log line, if it is unreadable."""
    try:
        return decode_record(body)
    except msgspec.DecodeError as error:
        log.error("session journal record unreadable %s", pairs(reason=error))
        return None
