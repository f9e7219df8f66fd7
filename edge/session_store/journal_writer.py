"""Session journal: records changes of sessions as they happen, and writes snapshots.

Owns the journal ring and the snapshot file while the broker runs, and decides which sessions are kept:
those that outlast their connection. The engine writes its own entries (ringbuf/c/mqtt/durable/journal.c).
This module writes the decisions of Python: sessions that begin, continue and end, subscriptions, wills. Never
reads the journal back: edge/recovery/read_journal.py does.

    change -> record in the journal -> answer to the client

If the journal has no room for a record, a snapshot is written instead. It contains the whole state. No answer
is sent until it is written. A snapshot is taken on the broker's thread (snapshot.py), and encoded and
written on another. A failed snapshot is repeated every RETRY_S. Until one succeeds, a snapshot in the spare
files frees the journal. The spare files are in memory, so they survive the death of the broker, but not a
power cut. They are used only while the journal's ring is not in its log: a log must not continue a state that
only memory has. Without spare files publishers wait while the journal is full.

With a log, the journal is not full until the log has `in_log_bytes` of it that no snapshot contains: a
restart reads there what the ring has overwritten.

Before begin() nothing is kept, and every method only tests one flag.

Invariants: a client gets no answer before its change is written, and at `disk` synced
(ringbuf/c/mqtt/durable/output_barrier.c). What the journal overwrites is in a snapshot.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from edge.auth.interfaces import ClientInfo
from edge.engine.engine import Engine
from edge.engine.subscription_options import SENDS_RETAINED
from edge.log_throttle import LogThrottle
from edge.logging_setup import pairs
from edge.mqtt import Will
from edge.session_store.journal_records import (
    Connected,
    Disconnected,
    GroupOpened,
    JournalRecord,
    Rings,
    SessionClosed,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillDone,
    encode_record,
)
from edge.session_store.kept_sessions import KeptSessions, session_number
from edge.session_store.reserve import Reserve
from edge.session_store.snapshot import KeptWill, Snapshot, will_record
from edge.session_store.snapshot_file import Origin, write_snapshot
from edge.session_store.views import BrokerView, ClientView, SessionView
from persistence.durable_file import problem_of, remedy_of

if TYPE_CHECKING:
    from ringbuf import Ring, Writer

log = logging.getLogger(__name__)

SECTION_BYTES = 1 << 20  # approximate; entries in one frame of a snapshot
DUE_SHARE = 8  # of the journal: the least part between two snapshots
RETRY_S = 1.0
STEP_MIN_NS = 1_000_000_000  # a smaller step of the wall clock is ignored
# of the journal: mq_journal_append_record() takes half of the longest record, which is a quarter of the ring
RECORD_SHARE = 8
RECORD_HEAD_BYTES = 64
FACTS_HEAD_BYTES = 512  # of the encoded information about a client without its texts: keys, lengths, numbers

Call = Callable[[Callable[[], object]], None]


class JournalTarget(NamedTuple):
    """The journal's ring and writer, and the snapshot files, each with True if it is synced.

    `output_waits`: a log syncs the journal, and answers wait for that. `in_log_bytes`: so much of the journal
    behind a snapshot may be only in that log; 0: there is no log.
    """

    ring: Ring
    writer: Writer
    files: tuple[tuple[Path, bool], ...]
    output_waits: bool = False
    in_log_bytes: int = 0
    reserve: Reserve | None = None  # space for a snapshot in a full file system
    spare: tuple[Path, ...] = ()  # in memory, for snapshots that `files` do not take
    may_spare: Callable[[], bool] = lambda: False  # True while the ring is not in its log; for any thread


class _SnapshotResult(NamedTuple):
    """Result of a snapshot: its exception, and True if it is written, perhaps only in the spare files."""

    failed: Exception | None
    is_saved: bool


class SessionJournal:
    """Journal of sessions. All methods run on the broker's thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.sessions_saved = 0  # sessions and wills in the last snapshot
        self.snapshots = 0
        self.snapshot_bytes = 0  # size of the last snapshot
        self.failure = ""  # reason why the last snapshot failed; "" if it did not, or none was tried
        # reason why answers wait without end: the journal's log does not work; otherwise ""
        self.ack_failure = ""
        # Called with the offset before which the journal is no longer needed.
        self.on_snapshot: Callable[[int], object] = lambda offset: None
        # Called on the broker's thread for each snapshot. The result waits on any thread until the logs have
        # the records of the call, and calls its argument, if any, again and again. A snapshot has identifiers
        # of received QoS 2 messages without positions. If it were on the disk first, a power cut in between
        # would lose the messages: their repetitions are not stored.
        self.records_synced: Callable[[], Callable[..., object]] = lambda: lambda *_: None
        self.rings: dict[int, tuple[str, int]] = {}  # every ring of the engine: name and epoch
        self._unnamed: list[int] = []  # rings that no record describes yet
        self._has_kept = False  # True if some session is kept, or was
        self._engine = engine
        self._clock = clock
        self._wall_ns = wall_ns
        self._wall_ahead_ns = self._wall_ns_of(0)
        self._kept = KeptSessions()
        self._target: JournalTarget | None = None
        self._state: BrokerView | None = None
        self._call: Call | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._writing = False
        self._again = False  # True if another snapshot must follow the current one
        self._room_due = False  # True if the journal needs room, and the current snapshot may fail to make it
        self._failing = False  # True if the last snapshot failed
        self._round = 0  # number of the snapshot; the result of an overtaken one is ignored
        self.saved_round = 0  # number of the last snapshot that was written while clients are served
        self._due_round = 0  # number of the snapshot that has the records for which the journal had no room
        self._may_log = LogThrottle(clock)
        self._retry_s = float("inf")
        self._begin_again: Callable[[], None] | None = None  # set while begin() has failed

    @property
    def is_open(self) -> bool:
        """True if state is kept."""
        return self._target is not None

    @property
    def writing(self) -> bool:
        """True while the thread writes a snapshot."""
        return self._writing

    # ---- begin and end ----

    def begin(self, place: JournalTarget, view: BrokerView, call: Call | None = None) -> None:
        """Keep the existing state and all changes from now on.

        `call` runs a function on the broker's thread, from any other; without it snapshots are written at
        once. Raises OSError if the snapshot cannot be written; tick() then tries to begin again.
        """
        self._state, self._target = view, place
        self._begin_again, self._retry_s = None, float("inf")
        if call is not None and self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="brim-state")
            self._thread.submit(int)  # starts the thread: later there may be no memory for it
        for session in view.sessions:
            session.kept = session.expiry_s > 0
            self._has_kept |= session.kept
            self._kept.changed(session)
            self._engine.session_keep(session.handle, session.kept)
        for handle, _ in view.groups.groups_of_kept():
            self._engine.session_keep(handle, True)
        snapshot = self._snapshot(at_once=True)
        failed, is_saved = self._write(place.ring.extremes().end_position, snapshot, spare=True)
        self.failure = "" if failed is None else _reason_of(failed)
        if failed is not None:
            self._retry_s = self._clock() + RETRY_S
            if not is_saved:
                self._target = None
                self._begin_again = partial(self._begin_late, place, view, call)
                raise failed
            log.error("session snapshot failed, it is kept in memory %s", pairs(reason=self.failure))
        end = place.ring.extremes().end_position
        self._engine.journal_open(place.writer, end, place.output_waits, place.in_log_bytes)
        self._engine.journal_snapshot_saved(end, self._due_bytes())
        self._call = call

    def _begin_late(self, place: JournalTarget, view: BrokerView, call: Call | None) -> None:
        offset = place.ring.extremes().end_offset
        with suppress(OSError):
            self.begin(place, view, call)
            if not self.failure:
                self.on_snapshot(offset)
            log.warning("sessions kept again %s", pairs(sessions=self.sessions_saved))

    def stop(self) -> None:
        """Write a last snapshot, and keep nothing after that. May be called twice."""
        if self._begin_again is not None:
            self._begin_again()
        if self._target is not None:
            self.records_synced()(self._engine.unblock_logs)  # the engine has no round meanwhile
            self.save_snapshot(at_once=True)
            self._engine.journal_close()
            self._target = None
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None
        self._engine.spill_close()

    @property
    def next_s(self) -> float:
        """Time at which tick() has work."""
        return self._retry_s

    def tick(self, now_s: float) -> None:
        """Repeat a failed snapshot, and follow a step of the wall clock."""
        self._follow_wall_clock()
        if now_s >= self._retry_s:
            (self._begin_again or partial(self.save_snapshot, spare=False))()

    # ---- sessions ----

    def opened(self, session: SessionView) -> None:
        """Record a new session."""
        if self._target is None or session.expiry_s == 0:
            return
        session.kept = self._has_kept = True
        self._kept.changed(session)
        self._name_rings()
        self._record(SessionOpened(session_number(session.handle), session.client_info, session.expiry_s))
        self._engine.session_keep(session.handle, True)

    def connected(self, session: SessionView) -> None:
        """Record that the client of a session is connected, perhaps with another expiry."""
        if self._target is None:
            return
        if session.kept and session.expiry_s == 0:
            self.closed(session)
        elif session.kept:
            self._kept.changed(session)
            self._record(Connected(session_number(session.handle), session.client_info, session.expiry_s))

    def disconnected(self, session: SessionView) -> None:
        """Record that the client of a session is away."""
        self._follow_wall_clock()
        session.left_ns = self._wall_ns()
        if session.kept:
            self._kept.changed(session)
            self._record(Disconnected(session_number(session.handle), session.expiry_s, session.left_ns))

    def closed(self, session: SessionView) -> None:
        """Record that a session ends, or is no longer kept. Must be called before the engine closes it."""
        if not session.kept:
            return
        session.kept = False
        self._kept.changed(session)
        self._engine.session_keep(session.handle, False)
        self._record(SessionClosed(session_number(session.handle)))

    def subscribed(self, session: SessionView, topic_filter: str) -> None:
        """Record a subscription, with the options that the session has for it."""
        if session.kept:
            self._kept.changed(session)
            options = session.subscriptions[topic_filter]
            if session.sends_retained and topic_filter in session.sends_retained:
                options |= SENDS_RETAINED
            self._record(Subscribed(session_number(session.handle), topic_filter, options))

    def unsubscribed(self, session: SessionView, topic_filters: Iterable[str]) -> None:
        """Record that subscriptions were removed."""
        if session.kept and (removed := list(topic_filters)):
            self._kept.changed(session)
            self._record(Unsubscribed(session_number(session.handle), removed))

    def group(self, handle: int, shared_filter: str, *, is_kept: bool) -> None:
        """Record that the members of a group have changed. `is_kept`: a member has a kept session."""
        if self._target is None:
            return
        if is_kept:
            self._record(GroupOpened(session_number(handle), shared_filter))
        self._engine.session_keep(handle, is_kept)

    def acl_changed(self) -> None:
        """Write a snapshot: purged queue entries are not in the journal."""
        self.request_snapshot()

    # ---- rings and wills ----

    def ring_added(self, ring_number: int, name: str, epoch: int) -> None:
        """Record the number that the engine uses for this ring.

        Must be called before its first new record: a restart finds records for sessions only in known rings.
        """
        self._engine.set_ring_name(ring_number, name.encode(), epoch)
        self.rings[ring_number] = name, epoch
        self._unnamed.append(ring_number)
        if self._target is not None and self._has_kept:
            self._name_rings()
            self._engine.block_log(ring_number)  # at `disk`: no acknowledgement before the sync of the name

    def _name_rings(self) -> None:
        """Note the ring numbers of entries, as soon as there are sessions with entries."""
        named = {
            ring_number: self.rings[ring_number] for ring_number in self._unnamed if ring_number in self.rings
        }
        self._unnamed.clear()
        if named:
            self._record(self._rings_record(named))

    def _rings_record(self, named: dict[int, tuple[str, int]]) -> Rings:
        return Rings(
            {
                ring_number: (name, epoch, self._engine.routed_position(ring_number))
                for ring_number, (name, epoch) in named.items()
            }
        )

    def marks(self) -> dict[str, tuple[int, int]]:
        """For each ring: its epoch, and the position below which all records were routed."""
        marks: dict[str, tuple[int, int]] = {}
        for ring_number, (name, epoch) in self.rings.items():
            if epoch >= marks.get(name, (0, 0))[0] and (
                position := self._engine.routed_position(ring_number)
            ):
                marks[name] = epoch, position
        return marks

    def ring_removed(self, ring_number: int) -> None:
        """Forget a ring that the engine has removed."""
        self.rings.pop(ring_number, None)

    def will(self, client_info: ClientInfo, will: Will, due_s: float) -> None:
        """Record a will that is published at `due_s`."""
        if self._target is not None:
            self._record(will_record(KeptWill(client_info, will, self._wall_ns_of(due_s))))

    def will_of(self, client: ClientView) -> None:
        """Record the will of a connected client.

        It is published if the broker dies before the client disconnects, even if its session is not kept: a
        crash closes the connection [MQTT-3.1.2-8], and the restart is the first that can publish [3.1.2.5].
        """
        if self._target is not None and client.will is not None:
            self._record(will_record(KeptWill(client.client_info, client.will, 0, client.session.kept)))

    def will_done(self, client_id: str) -> None:
        """Record that a client has no will any more."""
        if self._target is not None:
            self._record(WillDone(client_id))

    def _follow_wall_clock(self) -> None:
        """Move the saved times by a step of the wall clock: a restart must not end a session early."""
        ahead_ns = self._wall_ns_of(0)
        step_ns, self._wall_ahead_ns = ahead_ns - self._wall_ahead_ns, ahead_ns
        if self._state is None or abs(step_ns) < STEP_MIN_NS:
            return
        for session in self._state.sessions:
            if session.left_ns:
                session.left_ns += step_ns
                self._kept.changed(session)
        log.info("wall clock stepped %s", pairs(step_s=round(step_ns / 1e9, 3)))
        self.request_snapshot()

    def _wall_ns_of(self, due_s: float) -> int:
        return self._wall_ns() + int((due_s - self._clock()) * 1e9)

    # ---- writing ----

    def fits(self, client_info: ClientInfo, will: Will | None) -> bool:
        """False if records of this client would be too long for the journal: each would cost a snapshot."""
        if self._target is None:
            return True
        max_bytes = self._target.ring.capacity_bytes // RECORD_SHARE - RECORD_HEAD_BYTES
        if will is None and _longest_record_bytes(client_info) <= max_bytes:
            return True  # without an encoding of each CONNECT
        # the identity that authentication may add
        proven = msgspec.structs.replace(client_info, identity=client_info.username)
        if len(encode_record(SessionOpened(0, proven, 0))) > max_bytes:
            return False
        return will is None or len(encode_record(will_record(KeptWill(proven, will, 0)))) <= max_bytes

    def _record(self, record: JournalRecord) -> None:
        if self._target is not None and not self._engine.journal_append(encode_record(record)):
            self._due_round = self._round + 1
            self.save_snapshot()

    def confirmation(self) -> Callable[[], bool]:
        """Function that returns True as soon as a restart finds the present state. At `disk` that includes a
        restart after a power cut. For any thread.
        """
        if self._target is None:  # nothing is kept, except a snapshot of an earlier start
            return lambda: self._begin_again is None
        ring, due_round = self._target.ring, self._due_round
        end = self._target.writer.end_position if self._target.output_waits else 0
        return lambda: self.saved_round >= due_round and ring.extremes().durable_position >= end

    def request_snapshot(self) -> int:
        """Write a snapshot of the current state; return the `saved_round` from which on it is written."""
        due_round = self._round + 1
        self._again = self._writing
        self.save_snapshot()
        return due_round

    def save_snapshot(self, *, at_once: bool = False, spare: bool = True) -> None:
        """Write the whole state: on a thread, or before anything else happens if `at_once`. `spare`: to the
        spare files if the others do not take it, because the journal needs room.

        While one snapshot is being written the next must wait: the engine requests another for the rest.
        """
        if self._target is None or (self._writing and not at_once):
            self._room_due |= self._writing and spare
            return
        self._retry_s, self._again, self._room_due = float("inf"), False, False
        if (position := self._engine.journal_end(at_once)) is None:
            return
        offset = self._target.ring.extremes().end_offset
        self._round += 1
        snapshot = self._snapshot(at_once=at_once or self._call is None)
        if self._call is None or at_once:
            if self._thread is not None:  # an older snapshot of the thread must not be written last
                self._thread.submit(int).result()
            self._finish(self._round, position, offset, self._write(position, snapshot, spare=spare))
            return
        assert self._thread is not None  # with `call`
        self._writing = True
        self._thread.submit(self._write_apart, self._call, self._round, position, offset, snapshot, spare)

    def _write_apart(
        self, call: Call, number: int, position: int, offset: int, snapshot: Snapshot, spare: bool
    ) -> None:
        """Write on the thread, and report to the broker's thread."""
        written = self._write(position, snapshot, spare=spare)
        call(partial(self._finish, number, position, offset, written))

    def _finish(self, number: int, position: int, offset: int, written: _SnapshotResult) -> None:
        if self._target is None or number != self._round:
            return
        self._writing = False
        failed, is_saved = written
        before, self._failing = self._failing, failed is not None
        self.failure = "" if failed is None else _reason_of(failed)
        if is_saved:
            self._engine.journal_snapshot_saved(position, self._due_bytes())
        if failed is not None:
            if not before or self._may_log():  # not each second
                bug = None if isinstance(failed, OSError) else failed
                details = pairs(reason=self.failure, again_in_s=RETRY_S)
                log.error("session snapshot failed %s", details, exc_info=bug)
            self._retry_s = self._clock() + RETRY_S
            if self._room_due:
                self.save_snapshot()
            return
        self.saved_round = number
        self.on_snapshot(offset)
        if self._again:
            self.save_snapshot()

    def _due_bytes(self) -> int:
        assert self._target is not None
        return max(self._target.ring.capacity_bytes // DUE_SHARE, self.snapshot_bytes)

    def _write(self, position: int, snapshot: Snapshot, *, spare: bool) -> _SnapshotResult:
        """Write the snapshot; return its exception: one left on the thread would end all snapshots."""
        assert self._target is not None  # no local name of it: the frames of an exception would keep the ring
        if (failed := self._try(self._target.files, position, snapshot)) is None:
            return _SnapshotResult(None, is_saved=True)
        self.failure = _reason_of(failed)  # before the next question: from now on the ring may not return
        if not (spare and self._target.spare and self._target.may_spare()):
            return _SnapshotResult(failed, is_saved=False)
        again = self._try([(path, False) for path in self._target.spare], position, snapshot)
        return _SnapshotResult(failed, is_saved=again is None)

    def _try(self, files: Iterable[tuple[Path, bool]], position: int, snapshot: Snapshot) -> Exception | None:
        assert self._target is not None
        try:
            for path, sync in files:
                if sync:
                    snapshot.await_records()
                origin = Origin(self._target.ring.epoch, position, self._wall_ns())
                self.snapshot_bytes = self._written(path, origin, snapshot, sync=sync)
        except OSError as error:
            return error.with_traceback(None)  # its frames have the snapshot
        except Exception as error:  # noqa: BLE001
            return error
        self.snapshots += 1
        return None

    def _written(self, path: Path, origin: Origin, snapshot: Snapshot, *, sync: bool) -> int:
        """Write one snapshot file and return its size. Raises OSError, also if the reserve has no space."""
        assert self._target is not None
        reserve = self._target.reserve
        try:
            size = write_snapshot(path, origin, snapshot.frames(), sync=sync, reserve=reserve)
        except OSError as error:
            if reserve is None or error.errno != errno.ENOSPC:
                raise
            frames = snapshot.frames()
            size = write_snapshot(path, origin, frames, sync=sync, reserve=reserve, uses_reserve=True)
        if reserve is not None:
            reserve.keep(size)
        return size

    def _snapshot(self, *, at_once: bool) -> Snapshot:
        """Snapshot of all kept state. `at_once`: it is written before anything else happens."""
        assert self._state is not None
        _, shared, wills, clients = self._state
        self._unnamed.clear()
        kept_sessions = self._kept.saved()
        waiting = [
            KeptWill(client_info, will, self._wall_ns_of(due_s))
            for client_info, will, due_s in wills.waiting()
        ]
        connected = [
            KeptWill(client.client_info, client.will, 0, client.session.kept)
            for client in clients
            if client.will is not None
        ]
        groups = [
            GroupOpened(session_number(handle), shared_filter)
            for handle, shared_filter in shared.groups_of_kept()
        ]
        self.sessions_saved = len(kept_sessions) + len(waiting)
        return Snapshot(
            self._rings_record(self.rings),
            kept_sessions,
            groups,
            connected + waiting,
            self._sections if at_once else list(self._sections()).__iter__,
            self.records_synced(),
        )

    def _sections(self) -> Iterator[bytes]:
        first: int | None = 0
        while first is not None:
            entries, first = self._engine.journal_sections(first, SECTION_BYTES)
            if entries:
                yield entries


def _longest_record_bytes(client_info: ClientInfo) -> int:
    """Upper limit for the bytes of a record: a character takes up to 4, and the user name is in it twice."""
    characters = len(client_info.client_id) + len(client_info.address)
    if client_info.username is not None:
        characters += 2 * len(client_info.username)
    if client_info.certificate is not None:
        characters += len(client_info.certificate)
    return FACTS_HEAD_BYTES + 4 * characters + len(client_info.certificate_der or b"")


def _reason_of(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{problem_of(error)}; {remedy_of(error)}"
    return str(error) or type(error).__name__
