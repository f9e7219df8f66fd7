"""Session journal: records changes of sessions as they happen, and writes checkpoints.

Owns the journal ring and the checkpoint file while the broker runs, and decides which sessions are kept:
those that outlast their connection. The engine writes its own entries (ringbuf/c/mqtt/journal.c). This module
writes the decisions of Python: sessions that begin, continue and end, subscriptions, wills. Never reads the
journal back: restoring.py does.

    change -> note in the journal -> answer to the client

If a note does not fit, or the journal is full, a checkpoint replaces it, because that contains everything;
until then no answers are sent. A snapshot is taken on the broker's thread (snapshot.py), and encoded and
written on another. A failed checkpoint is repeated every RETRY_S; meanwhile a full journal holds back
publishers.

With a log, the journal is not full until the log has `in_log_bytes` of it that no checkpoint contains: a
restart reads there what the ring has overwritten.

Before begin() nothing is kept, and every method only tests one flag.

Invariants: a client gets no answer before its change is noted, and at `disk` synced (ringbuf/c/mqtt/vows.c).
What the journal overwrites is in a checkpoint.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from edge.access import ClientFacts
from edge.engine import Engine
from edge.logs import pairs
from edge.mqtt import Will
from edge.state.checkpoint import Origin, write_checkpoint
from edge.state.notes import (
    Came,
    Closed,
    GroupOpened,
    Left,
    Note,
    Opened,
    Sources,
    Subscribed,
    Unsubscribed,
    WillDone,
    note_bytes,
)
from edge.state.reserve import Reserve
from edge.state.snapshot import KeptSession, KeptWill, Snapshot, will_note

if TYPE_CHECKING:
    from edge.clients import Client, Clients
    from edge.router import Router
    from edge.sessions import Session, Sessions
    from edge.wills import Wills
    from ringbuf import Ring, Writer

__all__ = ["Keeper", "Kept", "Place"]

log = logging.getLogger(__name__)

SECTION_BYTES = 1 << 20  # approximate; entries in one frame of a checkpoint
DUE_SHARE = 8  # of the journal: the least part between two checkpoints
RETRY_S = 1.0
# of the journal: mq_journal_note() takes half of the longest record, which is a quarter of the ring
NOTE_SHARE = 8
NOTE_HEAD_BYTES = 64

Call = Callable[[Callable[[], object]], None]


class Place(NamedTuple):
    """The journal's ring and writer, and the checkpoint files, each with True if it is synced.

    `vows`: a log syncs the journal, and answers wait for that. `in_log_bytes`: so much of the journal behind
    a checkpoint may be only in that log; 0: there is no log.
    """

    ring: Ring
    writer: Writer
    files: tuple[tuple[Path, bool], ...]
    vows: bool = False
    in_log_bytes: int = 0
    reserve: Reserve | None = None  # space for a checkpoint in a full file system


class Kept(NamedTuple):
    """The parts of the broker whose state is kept."""

    sessions: Sessions
    router: Router
    wills: Wills
    clients: Clients


class Keeper:
    """Journal of sessions. All methods run on the broker's thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.held = 0  # sessions and wills in the last checkpoint
        self.checkpoints = 0
        self.checkpoint_bytes = 0  # size of the last checkpoint
        self.failure = ""  # reason why the last checkpoint failed; "" if it did not, or none was tried
        # reason why answers wait without end: the journal's log does not work; otherwise ""
        self.trouble = ""
        # Called with the offset before which the journal is no longer needed.
        self.on_checkpoint: Callable[[int], object] = lambda offset: None
        self.sources: dict[int, tuple[str, int]] = {}  # every ring of the engine: name and epoch
        self._unnamed: list[int] = []  # sources that no note describes yet
        self._anybody = False  # True if some session is kept, or was
        self._engine = engine
        self._clock = clock
        self._wall_ns = wall_ns
        self._place: Place | None = None
        self._kept: Kept | None = None
        self._call: Call | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._writing = False
        self._again = False  # True if another checkpoint must follow the current one
        self._round = 0  # number of the checkpoint; the result of an overtaken one is ignored
        self._retry_s = float("inf")

    @property
    def is_open(self) -> bool:
        """True if state is kept."""
        return self._place is not None

    @property
    def writing(self) -> bool:
        """True while the thread writes a checkpoint."""
        return self._writing

    # ---- begin and end ----

    def begin(self, place: Place, kept: Kept, call: Call | None = None) -> None:
        """Keep the existing state and all changes from now on.

        `call` runs a function on the broker's thread, from any other; without it checkpoints are written at
        once. Raises OSError if the checkpoint cannot be written.
        """
        self._kept, self._place = kept, place
        for session in kept.sessions:
            session.kept = session.expiry_s > 0
            self._anybody |= session.kept
            self._engine.session_keep(session.handle, session.kept)
        for handle, _ in kept.router.groups_of_kept():
            self._engine.session_keep(handle, True)
        try:
            self._write(place.ring.extremes().end_position, self._snapshot())
        except OSError:
            self._place = None
            raise
        end = place.ring.extremes().end_position
        self._engine.journal_open(place.writer, end, place.vows, place.in_log_bytes)
        self._engine.journal_checkpointed(end, self._due_bytes())
        self._call = call

    def stop(self) -> None:
        """Write a last checkpoint, and keep nothing after that. May be called twice."""
        if self._place is not None:
            self.checkpoint(at_once=True)
            self._engine.journal_close()
            self._place = None
        self._engine.spill_close()

    @property
    def next_s(self) -> float:
        """Time at which tick() has work."""
        return self._retry_s

    def tick(self, now_s: float) -> None:
        """Repeat a failed checkpoint."""
        if now_s >= self._retry_s:
            self.checkpoint()

    # ---- sessions ----

    def opened(self, session: Session) -> None:
        """Record a new session."""
        if self._place is None or session.expiry_s == 0:
            return
        session.kept = self._anybody = True
        self._name_sources()
        self._note(Opened(_number(session.handle), session.facts, session.expiry_s))
        self._engine.session_keep(session.handle, True)

    def came(self, session: Session) -> None:
        """Record that the client of a session is connected, perhaps with another expiry."""
        if self._place is None:
            return
        if session.kept and session.expiry_s == 0:
            self.closed(session)
        elif session.kept:
            self._note(Came(_number(session.handle), session.facts, session.expiry_s))

    def left(self, session: Session) -> None:
        """Record that the client of a session is away."""
        session.left_ns = self._wall_ns()
        if session.kept:
            self._note(Left(_number(session.handle), session.expiry_s, session.left_ns))

    def closed(self, session: Session) -> None:
        """Record that a session ends, or is no longer kept. Must be called before the engine closes it."""
        if not session.kept:
            return
        session.kept = False
        self._engine.session_keep(session.handle, False)
        self._note(Closed(_number(session.handle)))

    def subscribed(self, session: Session, topic_filter: str) -> None:
        """Record a subscription, with the terms that the session has for it."""
        if session.kept:
            terms = session.subscriptions[topic_filter]
            self._note(Subscribed(_number(session.handle), topic_filter, terms))

    def unsubscribed(self, session: Session, topic_filters: Iterable[str]) -> None:
        """Record that subscriptions were removed."""
        if session.kept and (gone := list(topic_filters)):
            self._note(Unsubscribed(_number(session.handle), gone))

    def group(self, handle: int, shared_filter: str, *, kept: bool) -> None:
        """Record that the members of a group have changed. `kept`: True if one of them is kept."""
        if self._place is None:
            return
        if kept:
            self._note(GroupOpened(_number(handle), shared_filter))
        self._engine.session_keep(handle, kept)

    def rules_changed(self) -> None:
        """Write a checkpoint: purged queue entries are not in the journal."""
        self._again = self._writing
        self.checkpoint()

    # ---- rings and wills ----

    def source(self, source: int, name: str, epoch: int) -> None:
        """Record the number that the engine uses for this ring."""
        self._engine.source_named(source, name.encode(), epoch)
        self.sources[source] = name, epoch
        self._unnamed.append(source)
        if self._place is not None and self._anybody:
            self._name_sources()

    def _name_sources(self) -> None:
        """Note the ring numbers of entries, as soon as there are sessions with entries."""
        named = {source: self.sources[source] for source in self._unnamed if source in self.sources}
        self._unnamed.clear()
        if named:
            self._note(self._sources_note(named))

    def _sources_note(self, named: dict[int, tuple[str, int]]) -> Sources:
        return Sources(
            {
                source: (name, epoch, self._engine.source_position(source))
                for source, (name, epoch) in named.items()
            }
        )

    def marks(self) -> dict[str, tuple[int, int]]:
        """For each ring: its epoch, and the position below which all records were routed."""
        found: dict[str, tuple[int, int]] = {}
        for source, (name, epoch) in self.sources.items():
            if epoch >= found.get(name, (0, 0))[0] and (position := self._engine.source_position(source)):
                found[name] = epoch, position
        return found

    def source_gone(self, source: int) -> None:
        """Forget a ring that the engine has removed."""
        self.sources.pop(source, None)

    def will(self, facts: ClientFacts, will: Will, due_s: float) -> None:
        """Record a will that is published at `due_s`."""
        if self._place is not None:
            self._note(will_note(KeptWill(facts, will, self._wall_ns_of(due_s))))

    def will_of(self, client: Client) -> None:
        """Record the will of a connected client.

        It is published if the broker dies before the client disconnects, even if its session is not kept: a
        crash closes the connection [MQTT-3.1.2-8], and the restart is the first that can publish [3.1.2.5].
        """
        if self._place is not None and client.will is not None:
            self._note(will_note(KeptWill(client.facts, client.will, 0, client.session.kept)))

    def will_done(self, client_id: str) -> None:
        """Record that a client has no will any more."""
        if self._place is not None:
            self._note(WillDone(client_id))

    def _wall_ns_of(self, due_s: float) -> int:
        return self._wall_ns() + int((due_s - self._clock()) * 1e9)

    # ---- writing ----

    def fits(self, facts: ClientFacts, will: Will | None) -> bool:
        """False if notes of this client would be too long for the journal: each would cost a checkpoint."""
        if self._place is None:
            return True
        most = self._place.ring.capacity_bytes // NOTE_SHARE - NOTE_HEAD_BYTES
        # the identity that authentication may add
        proven = msgspec.structs.replace(facts, identity=facts.username)
        if len(note_bytes(Opened(0, proven, 0))) > most:
            return False
        return will is None or len(note_bytes(will_note(KeptWill(proven, will, 0)))) <= most

    def _note(self, note: Note) -> None:
        if self._place is not None and not self._engine.journal_note(note_bytes(note)):
            self.checkpoint()

    def checkpoint(self, *, at_once: bool = False) -> None:
        """Write the whole state: on a thread, or before anything else happens if `at_once`.

        While one checkpoint is being written the next must wait: the engine requests another for the rest.
        """
        if self._place is None or (self._writing and not at_once):
            return
        self._retry_s, self._again = float("inf"), False
        if (position := self._engine.journal_end(at_once)) is None:
            return
        offset = self._place.ring.extremes().end_offset
        self._round += 1
        snapshot = self._snapshot()
        if self._call is None or at_once:
            if self._thread is not None:  # an older checkpoint of the thread must not be written last
                self._thread.shutdown()
                self._thread = None
            self._finish(self._round, position, offset, self._tried(position, snapshot))
            return
        self._writing = True
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-state")
        self._thread.submit(self._write_apart, self._call, self._round, position, offset, snapshot)

    def _write_apart(self, call: Call, number: int, position: int, offset: int, snapshot: Snapshot) -> None:
        """Write on the thread, and report to the broker's thread."""
        failed = self._tried(position, snapshot)
        call(partial(self._finish, number, position, offset, failed))

    def _finish(self, number: int, position: int, offset: int, failed: Exception | None) -> None:
        if self._place is None or number != self._round:
            return
        self._writing = False
        self.failure = "" if failed is None else str(failed) or type(failed).__name__
        if failed is not None:
            bug = None if isinstance(failed, OSError) else failed
            facts = pairs(reason=self.failure, again_in_s=RETRY_S)
            log.error("session checkpoint failed %s", facts, exc_info=bug)
            self._retry_s = self._clock() + RETRY_S
            return
        self._engine.journal_checkpointed(position, self._due_bytes())
        self.on_checkpoint(offset)
        if self._again:
            self.checkpoint()

    def _due_bytes(self) -> int:
        assert self._place is not None
        return max(self._place.ring.capacity_bytes // DUE_SHARE, self.checkpoint_bytes)

    def _tried(self, position: int, snapshot: Snapshot) -> Exception | None:
        """Write the checkpoint; return its exception: one left on the thread would end all checkpoints."""
        try:
            self._write(position, snapshot)
        except Exception as error:  # noqa: BLE001
            return error
        return None

    def _write(self, position: int, snapshot: Snapshot) -> None:
        assert self._place is not None
        for path, sync in self._place.files:
            origin = Origin(self._place.ring.epoch, position, self._wall_ns())
            self.checkpoint_bytes = self._written(path, origin, snapshot, sync=sync)
        self.checkpoints += 1

    def _written(self, path: Path, origin: Origin, snapshot: Snapshot, *, sync: bool) -> int:
        """Write one checkpoint file and return its size. Raises OSError, also if the reserve has no space."""
        assert self._place is not None
        reserve = self._place.reserve
        try:
            size = write_checkpoint(path, origin, snapshot.frames(), sync=sync, reserve=reserve)
        except OSError as error:
            if reserve is None or error.errno != errno.ENOSPC:
                raise
            frames = snapshot.frames()
            size = write_checkpoint(path, origin, frames, sync=sync, reserve=reserve, uses_reserve=True)
        if reserve is not None:
            reserve.keep(size)
        return size

    def _snapshot(self) -> Snapshot:
        """Snapshot of all kept state."""
        assert self._kept is not None
        sessions, router, wills, clients = self._kept
        self._unnamed.clear()
        kept = [_kept_session(session) for session in sessions if session.kept]
        waiting = [KeptWill(facts, will, self._wall_ns_of(due_s)) for facts, will, due_s in wills.waiting()]
        connected = [KeptWill(it.facts, it.will, 0, it.session.kept) for it in clients if it.will is not None]
        groups = [
            GroupOpened(_number(handle), shared_filter) for handle, shared_filter in router.groups_of_kept()
        ]
        self.held = len(kept) + len(waiting)
        return Snapshot(
            self._sources_note(self.sources), kept, groups, connected + waiting, list(self._sections())
        )

    def _sections(self) -> Iterator[bytes]:
        first: int | None = 0
        while first is not None:
            entries, first = self._engine.journal_sections(first, SECTION_BYTES)
            if entries:
                yield entries


def _kept_session(session: Session) -> KeptSession:
    left_ns = None if session.connection else session.left_ns
    number, subscriptions = _number(session.handle), session.subscriptions.copy()
    return KeptSession(number, session.facts, session.expiry_s, subscriptions, left_ns)


def _number(handle: int) -> int:
    """Number of a session in entries and notes."""
    return handle & 0xFFFF_FFFF
