"""Keeper: writes down what a restart must know of sessions, as it happens, and checkpoints now and then.

Owns the journal ring and the checkpoint file of sessions while the broker runs, and which sessions are kept:
those that outlast their connection.  The hot path writes its entries by itself (ringbuf/c/mqtt/journal.c);
here is what Python decides: sessions that come, go and end, subscriptions, wills.  Reading back is
restoring.py's.

    something happens -> noted in the journal -> the client is told

A note that does not fit, or a journal that is full, is answered with a checkpoint, since that says
everything; nobody is told anything meanwhile.  A snapshot is taken on the broker's thread (snapshot.py), and
encoded and written on another.  One that cannot be written is tried again, each RETRY_S; until it can, a
journal that is full holds publishers up.

A journal that has a log is not full before that has `in_log_bytes` of it that no checkpoint says: what its
ring has no longer, a restart reads there.

Before begin() nothing is kept, and every method is a look at one flag.

Invariants: a client is told of nothing that is not noted, and at `disk` not synced (ringbuf/c/mqtt/vows.c);
what the journal overwrites is in a checkpoint.
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

SECTION_BYTES = 1 << 20  # of entries in one frame of a checkpoint, about
DUE_SHARE = 8  # of the journal: a checkpoint is due no earlier than after so much of it
RETRY_S = 1.0
NOTE_SHARE = 8  # of the journal: mq_journal_note() takes half of the longest record, which is a quarter
NOTE_HEAD_BYTES = 64

Call = Callable[[Callable[[], object]], None]


class Place(NamedTuple):
    """Where it is written: the journal's ring, and the files, each with whether it is synced.

    `vows`: a log syncs the journal, and clients are told of nothing that it has not synced.  `in_log_bytes`:
    so much of what is behind a checkpoint may be in that log alone; 0: there is none.
    """

    ring: Ring
    writer: Writer
    files: tuple[tuple[Path, bool], ...]
    vows: bool = False
    in_log_bytes: int = 0
    reserve: Reserve | None = None  # room for a checkpoint in a file system that is full


class Kept(NamedTuple):
    """Whose state it is."""

    sessions: Sessions
    router: Router
    wills: Wills
    clients: Clients


class Keeper:
    """All methods on the broker's thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.held = 0  # sessions and wills in the last checkpoint
        self.checkpoints = 0
        self.checkpoint_bytes = 0  # of the last
        self.failure = ""  # why the last checkpoint could not be written; "": it was, or none was tried
        self.trouble = ""  # why what clients are told waits without end: the journal's log does not work
        # Called with the offset before which the journal is needed no longer.
        self.on_checkpoint: Callable[[int], object] = lambda offset: None
        self.sources: dict[int, tuple[str, int]] = {}  # every ring the engine knows: name and epoch
        self._unnamed: list[int] = []  # of the sources, those that no note has
        self._anybody = False  # some session is kept, or was
        self._engine = engine
        self._clock = clock
        self._wall_ns = wall_ns
        self._place: Place | None = None
        self._kept: Kept | None = None
        self._call: Call | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._writing = False
        self._again = False  # when it is written, another one
        self._round = 0  # of checkpoints: a thread's that was overtaken counts for nothing
        self._retry_s = float("inf")

    @property
    def is_open(self) -> bool:
        """Whether anything is kept."""
        return self._place is not None

    @property
    def writing(self) -> bool:
        """Whether a checkpoint is on its way, on the thread."""
        return self._writing

    # ---- beginning and ending ----

    def begin(self, place: Place, kept: Kept, call: Call | None = None) -> None:
        """Keeps what there is from now on.  `call` runs a function on the broker's thread, from any other;
        without it checkpoints are written at once.  Raises OSError: there is nowhere to write.
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
        """Writes a last checkpoint, and keeps nothing any more.  May be called twice."""
        if self._place is not None:
            self.checkpoint(at_once=True)
            self._engine.journal_close()
            self._place = None
        self._engine.spill_close()

    @property
    def next_s(self) -> float:
        """When tick() has something to do."""
        return self._retry_s

    def tick(self, now_s: float) -> None:
        """Tries again what has failed."""
        if now_s >= self._retry_s:
            self.checkpoint()

    # ---- sessions ----

    def opened(self, session: Session) -> None:
        """There is a new one."""
        if self._place is None or session.expiry_s == 0:
            return
        session.kept = self._anybody = True
        self._name_sources()
        self._note(Opened(_number(session.handle), session.facts, session.expiry_s))
        self._engine.session_keep(session.handle, True)

    def came(self, session: Session) -> None:
        """Its client is connected, perhaps on other terms."""
        if self._place is None:
            return
        if session.kept and session.expiry_s == 0:
            self.closed(session)
        elif session.kept:
            self._note(Came(_number(session.handle), session.facts, session.expiry_s))

    def left(self, session: Session) -> None:
        """Its client is away."""
        session.left_ns = self._wall_ns()
        if session.kept:
            self._note(Left(_number(session.handle), session.expiry_s, session.left_ns))

    def closed(self, session: Session) -> None:
        """It ends, or is not kept any longer.  Before the engine forgets it."""
        if not session.kept:
            return
        session.kept = False
        self._engine.session_keep(session.handle, False)
        self._note(Closed(_number(session.handle)))

    def subscribed(self, session: Session, topic_filter: str) -> None:
        """A subscription is there, on the terms that the session has for it."""
        if session.kept:
            terms = session.subscriptions[topic_filter]
            self._note(Subscribed(_number(session.handle), topic_filter, terms))

    def unsubscribed(self, session: Session, topic_filters: Iterable[str]) -> None:
        """These are not any more."""
        if session.kept and (gone := list(topic_filters)):
            self._note(Unsubscribed(_number(session.handle), gone))

    def group(self, handle: int, shared_filter: str, *, kept: bool) -> None:
        """A group has got, or lost, a member: whether one of them is kept."""
        if self._place is None:
            return
        if kept:
            self._note(GroupOpened(_number(handle), shared_filter))
        self._engine.session_keep(handle, kept)

    def rules_changed(self) -> None:
        """What waited may have been taken back, which no entry says."""
        self._again = self._writing
        self.checkpoint()

    # ---- rings and wills ----

    def source(self, source: int, name: str, epoch: int) -> None:
        """The engine has this ring under that number."""
        self._engine.source_named(source, name.encode(), epoch)
        self.sources[source] = name, epoch
        self._unnamed.append(source)
        if self._place is not None and self._anybody:
            self._name_sources()

    def _name_sources(self) -> None:
        """What entries call rings: noted when there are sessions whose entries could."""
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
        """For each ring: its epoch, and the position below which all was routed."""
        found: dict[str, tuple[int, int]] = {}
        for source, (name, epoch) in self.sources.items():
            if epoch >= found.get(name, (0, 0))[0] and (position := self._engine.source_position(source)):
                found[name] = epoch, position
        return found

    def source_gone(self, source: int) -> None:
        """It has it no longer."""
        self.sources.pop(source, None)

    def will(self, facts: ClientFacts, will: Will, due_s: float) -> None:
        """It is published at `due_s`."""
        if self._place is not None:
            self._note(will_note(KeptWill(facts, will, self._wall_ns_of(due_s))))

    def will_of(self, client: Client) -> None:
        """It is published if the broker dies before the client is gone, whether its session is kept or not:
        a crash closes its connection [MQTT-3.1.2-8], and the restart is the first that can [3.1.2.5].
        """
        if self._place is not None and client.will is not None:
            self._note(will_note(KeptWill(client.facts, client.will, 0, client.session.kept)))

    def will_done(self, client_id: str) -> None:
        """There is none of that client any more."""
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
        proven = msgspec.structs.replace(facts, identity=facts.username)  # as it is after authentication
        if len(note_bytes(Opened(0, proven, 0))) > most:
            return False
        return will is None or len(note_bytes(will_note(KeptWill(proven, will, 0)))) <= most

    def _note(self, note: Note) -> None:
        if self._place is not None and not self._engine.journal_note(note_bytes(note)):
            self.checkpoint()

    def checkpoint(self, *, at_once: bool = False) -> None:
        """Write down everything; on a thread, unless it has to be there before anything else happens.

        While one is being written the next must wait: the engine requests another for the rest.
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
            if self._thread is not None:  # what it writes is older, and must not come last
                self._thread.shutdown()
                self._thread = None
            self._finish(self._round, position, offset, self._tried(position, snapshot))
            return
        self._writing = True
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-state")
        self._thread.submit(self._write_apart, self._call, self._round, position, offset, snapshot)

    def _write_apart(self, call: Call, number: int, position: int, offset: int, snapshot: Snapshot) -> None:
        """On the thread."""
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
        """Write the checkpoint; return the error: one that stayed on the thread would end all of them."""
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
        """The size of a checkpoint.  Raises OSError: there is no room, and none in reserve."""
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
        """All that is kept."""
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
    """What entries call a session."""
    return handle & 0xFFFF_FFFF
