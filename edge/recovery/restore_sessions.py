"""Session recovery: applies the snapshot and the journal of sessions (read_journal.py) after a restart.

restore() creates sessions, subscriptions, queues and wills, before any client is served.

Queues hold positions of records. Records that their ring has overwritten are in the spill file
(edge/session_store/spill_file.py), or are read from the log when needed (edge/broker/log_backfill.py). For a
ring that begins a new epoch an ended ring stands for the old one. Records that no store has are reported as
lost, and counted as overrun when their turn comes.

Records stored behind the last journal entry of a ring are routed as new ones: their publishers got no
acknowledgement, or one that the record was stored.

Time continues while the broker is down: sessions, messages and wills age. A client that was connected counts
as away since the last journal entry. If that entry is more than a day old, the clock may be wrong, and no
client could connect meanwhile: sessions and wills do not age by the time since then.
"""

from __future__ import annotations

import logging
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from edge.auth.interfaces import ClientInfo
from edge.broker.sliced_work import at_once
from edge.engine.subscription_options import SENDS_RETAINED, subscription_of
from edge.logging_setup import pairs
from edge.mqtt import Connect, Version, Will, decode_packet
from edge.mqtt.primitives import decode_variable_integer
from edge.recovery.read_journal import NEVER_ENDS, RANGE_BYTES, PastLog, SavedState, read_record
from edge.session_store.journal_records import (
    Connected,
    Disconnected,
    GroupOpened,
    Rings,
    SessionClosed,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillDone,
    WillWaits,
)
from edge.session_store.snapshot_file import ENTRIES, RECORD
from ringbuf import RECORD_ALIGN
from ringbuf.constants import CLOCK_SET_NS

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker
    from edge.broker.engine_rings import PartitionLike
    from edge.broker.sessions import Session
    from edge.engine.engine import Engine
    from persistence import Epoch
    from ringbuf import Range

log = logging.getLogger(__name__)

ALIGN_MASK = -RECORD_ALIGN
NOTHING_WAITS = 0xFFFF_FFFF_FFFF_FFFF  # in Engine.lowest_positions()
DOWN_MAX_NS = 86_400 * 1_000_000_000  # a longer time since the last journal entry counts for no session


class Restored(NamedTuple):
    """Result of a restart."""

    sessions: int
    subscriptions: int
    queued: int
    in_flight: int
    lost: int  # records that neither a ring nor the log nor the spill file has: their entries are given up
    duration_ms: float


def restore(
    broker: Broker,
    state: SavedState,
    partitions: Mapping[str, PartitionLike],
    past: PastLog | None = None,
    *,
    now_s: float,
    now_ns: int,
) -> Restored:
    """Restore `state` in a broker that serves no client yet.

    `partitions`: the rings that the broker writes, by name. Rings of local producers are those that its
    journal knows. `now_s` is of the broker's clock, `now_ns` of the wall clock.
    """
    return _Restart(broker, state, partitions, past).run(now_s, now_ns)


class _Restart:
    def __init__(
        self,
        broker: Broker,
        state: SavedState,
        partitions: Mapping[str, PartitionLike],
        past: PastLog | None,
    ) -> None:
        self._broker = broker
        self._engine: Engine = broker.engine
        self._found = state
        self._partitions = partitions
        self._past = past
        self._sessions: dict[int, Session] = {}  # by number
        self._numbers: dict[str, int] = {}  # of the latest session of each client
        self._wills: dict[str, tuple[ClientInfo, Will, int]] = {}
        self._retained_due: dict[int, set[str]] = {}  # filters by number of their session
        self._rings: dict[int, tuple[int, str, int]] = {}  # number -> current number, name, epoch
        self._ended: dict[tuple[str, int], int] = {}
        self._acts: dict[type, Callable[..., None]] = {
            SessionOpened: self._opened,
            Connected: self._came,
            Disconnected: self._left,
            SessionClosed: self._closed,
            Subscribed: self._subscribed,
            Unsubscribed: self._unsubscribed,
            GroupOpened: self._group_opened,
            Rings: self._rings_named,
            WillWaits: self._will_waits,
            WillDone: self._will_done,
        }

    def run(self, now_s: float, now_ns: int) -> Restored:
        started = time.perf_counter()
        self._engine.replay_begin()
        try:
            self._replay()
            self._route_the_rest()
            self._report_missing_log()
            self._settle()
        finally:
            lost = self._engine.replay_end()
        uncounted_ns = self._uncounted_ns(now_ns)
        self._leave(now_s, now_ns, uncounted_ns)
        self._wait_for_wills(now_s, now_ns, uncounted_ns)
        self._remove_unneeded()
        self._broker.router.purge(self._broker.sessions)
        self._send_retained()
        return self._counted(lost, (time.perf_counter() - started) * 1000)

    def _replay(self) -> None:
        for kind, body in self._found.frames:
            if kind == ENTRIES:
                if not self._engine.replay_entries(body):
                    log.error("session journal entries unreadable %s", pairs(bytes=len(body)))
            elif kind == RECORD and (record := read_record(body)) is not None:
                self._acts[type(record)](record)

    # ---- records ----

    def _opened(self, record: SessionOpened) -> None:
        sessions, client_id = self._broker.sessions, record.client_info.client_id
        # the journal lacks the end of that session
        if (before := sessions.get(client_id)) is not None:
            self._sessions.pop(self._numbers[client_id], None)
            self._end(before)
        self._numbers[client_id] = record.number
        session = sessions.open(record.client_info, record.expiry_s)
        self._sessions[record.number] = session
        self._engine.replay_session(record.number, session.handle)

    def _came(self, record: Connected) -> None:
        if (session := self._sessions.get(record.number)) is not None:
            self._broker.sessions.resume(session, record.client_info, record.expiry_s)
            session.left_ns = 0

    def _left(self, record: Disconnected) -> None:
        if (session := self._sessions.get(record.number)) is not None:
            session.expiry_s, session.left_ns = record.expiry_s, record.at_ns

    def _closed(self, record: SessionClosed) -> None:
        if (session := self._sessions.pop(record.number, None)) is not None:
            self._end(session)

    def _end(self, session: Session) -> None:
        self._broker.router.forget(session)
        self._broker.sessions.close(session)

    def _subscribed(self, record: Subscribed) -> None:
        if (session := self._sessions.get(record.number)) is not None:
            subscription, identifier = subscription_of(record.topic_filter, record.options)
            self._broker.router.subscribe(session, subscription, identifier)
            if record.options & SENDS_RETAINED:
                self._retained_due.setdefault(record.number, set()).add(record.topic_filter)
            elif (due := self._retained_due.get(record.number)) is not None:
                due.discard(record.topic_filter)

    def _unsubscribed(self, record: Unsubscribed) -> None:
        if (session := self._sessions.get(record.number)) is not None:
            self._broker.router.unsubscribe(session, record.topic_filters)

    def _group_opened(self, record: GroupOpened) -> None:
        handle = self._broker.router.group_of(record.shared_filter)
        if handle is not None:
            self._engine.replay_session(record.number, handle)

    def _will_waits(self, record: WillWaits) -> None:
        if (will := _will_of(record.connect)) is not None:
            self._wills[record.client_info.client_id] = record.client_info, will, record.due_ns

    def _will_done(self, record: WillDone) -> None:
        self._wills.pop(record.client_id, None)

    # ---- rings ----

    def _rings_named(self, record: Rings) -> None:
        for number, (name, epoch, routed) in record.rings.items():
            ring_number, end = self._number_of(name, epoch)
            self._rings[number] = ring_number, name, epoch
            self._engine.replay_ring(number, ring_number, end, routed)

    def _number_of(self, name: str, epoch: int) -> tuple[int, int]:
        """Source that stands for that epoch of a ring now, and the position where its records end."""
        partition = self._partitions.get(name)
        if partition is not None and partition.ring.epoch == epoch:
            ring_number = self._broker.router.rings.number_of(partition)
            if self._past is not None and not partition.durability.is_logged:
                self._engine.replay_log(ring_number, self._log_end(name, epoch))
            return ring_number, partition.ring.extremes().end_position
        for ring_number, known in self._broker.journal.rings.items():
            if known == (name, epoch):
                return ring_number, NEVER_ENDS
        ring_number = self._ended.get((name, epoch), 0)
        if not ring_number:
            logged = self._past is not None and any(
                epoch_info.epoch == epoch for epoch_info in self._past.epochs(name)
            )
            ring_number = self._broker.router.rings.add_ended(name, epoch, logged=logged)
            self._ended[name, epoch] = ring_number
        return ring_number, self._log_end(name, epoch)

    def _log_end(self, name: str, epoch: int) -> int:
        """Position after the last record of that epoch that can be read; NEVER_ENDS without a log."""
        if self._past is None:
            return NEVER_ENDS
        for epoch_info in self._past.epochs(name):
            if epoch_info.epoch == epoch:
                runs = self._last_runs(self._past, name, epoch_info)
                return runs[-1].position + len(runs[-1].view) if runs else 0
        return 0

    def _last_runs(self, past: PastLog, name: str, epoch_info: Epoch) -> Sequence[Range]:
        """Runs with the last readable record of an epoch: records behind it may be damaged."""
        epoch, first, end = epoch_info
        at, back = end - 1, 1
        while not (runs := past.read(name, epoch, at, RANGE_BYTES)) and at > first:
            back *= 2
            at = max(first, end - back)
        while runs and (more := past.read(name, epoch, runs[-1].offset + runs[-1].count, RANGE_BYTES)):
            runs = more
        return runs

    def _route_the_rest(self) -> None:
        """Route the records behind the last journal entry, ring by ring."""
        for number, (ring_number, name, epoch) in self._rings.items():
            begin = self._engine.replayed_position(number)
            partition = self._partitions.get(name)
            if (name, epoch) in self._ended:
                self._route_log(ring_number, name, epoch, begin)
            elif partition is not None:
                extremes = partition.ring.extremes()
                at = max(begin & ALIGN_MASK, extremes.oldest_position)
                if at < extremes.end_position:
                    self._route(ring_number, at, None, begin)
            else:
                self._engine.replay_resume_ring(ring_number, begin)

    def _report_missing_log(self) -> None:
        """Report rings whose log ends before the journal: log files were removed, or are older.

        NEVER_ENDS in the journal: an earlier start has routed all records of an ended ring.
        """
        for number, (_, name, epoch) in self._rings.items():
            partition = self._partitions.get(name)
            is_logged = self._past is not None and (
                partition is None or partition.durability.is_logged or bool(self._past.epochs(name))
            )
            journal_end, log_end = self._engine.replayed_position(number), self._log_end(name, epoch)
            if (name, epoch) in self._ended and is_logged and log_end < journal_end < NEVER_ENDS:
                details = {"ring": name, "epoch": epoch, "journal": journal_end, "log": log_end}
                text = "log ends before the session journal, sessions continue without its missing records %s"
                log.warning(text, pairs(**details))

    def _route_log(self, ring_number: int, name: str, epoch: int, begin: int) -> None:
        position = begin & ALIGN_MASK
        while self._past is not None and (runs := self._past.read_at(name, epoch, position, RANGE_BYTES)):
            for run in runs:
                self._route(ring_number, run.position, run.view, begin)
            position = runs[-1].position + len(runs[-1].view)

    def _route(self, ring_number: int, position: int, records: memoryview | None, begin: int) -> None:
        begin, unknown = self._engine.replay_route(ring_number, position, records, begin)
        while unknown is not None:
            self._name(unknown)
            begin, unknown = self._engine.replay_route(ring_number, position, records, begin)

    def _name(self, unknown: bytes) -> None:
        """Make a topic known. If that fails, skip the records of unknown topics."""
        if self._broker.own_messages.topic_of(unknown.decode("utf-8", "replace")) is None:
            self._engine.replay_refuse_topics()

    # ---- the end ----

    def _settle(self) -> None:
        handles = [session.handle for session in self._sessions.values()]
        for handle in (*handles, *self._broker.router.groups()):
            while (unknown := self._engine.replay_resolve(handle)) is not None:
                self._name(unknown)

    def _send_retained(self) -> None:
        """Begin the deliveries of retained messages again that were not finished."""
        for number, session in self._sessions.items():
            filters = self._retained_due.get(number, set())
            self._broker.retained.begin(session, filters)
            for topic_filter in filters:
                at_once(self._broker.retained.send(session, topic_filter))

    def _uncounted_ns(self, now_ns: int) -> int:
        """Time by which sessions and wills do not age, of the time since the last journal entry."""
        alive_ns = self._found.alive_ns
        down_ns = now_ns - alive_ns if alive_ns >= CLOCK_SET_NS else 0
        if down_ns <= DOWN_MAX_NS:
            return 0
        if self._sessions or self._wills:
            text = "no journal entry for more than a day, sessions and wills do not age by that time %s"
            log.info(text, pairs(days=round(down_ns / DOWN_MAX_NS, 1)))
        return down_ns

    def _leave(self, now_s: float, now_ns: int, uncounted_ns: int) -> None:
        """Mark all clients as away."""
        for session in self._sessions.values():
            left_ns = session.left_ns or self._found.alive_ns
            left_ns = min(left_ns + uncounted_ns, now_ns) if left_ns >= CLOCK_SET_NS else now_ns
            self._broker.sessions.disconnected(session, now_s - (now_ns - left_ns) / 1e9)
            session.left_ns = left_ns

    def _wait_for_wills(self, now_s: float, now_ns: int, uncounted_ns: int) -> None:
        for info, will, due_ns in self._wills.values():
            delay_ns = (will.properties.will_delay_interval_s or 0) * 1_000_000_000
            at_ns = due_ns or self._found.alive_ns + delay_ns
            # before CLOCK_SET_NS: of a clock that was not set yet, so unknown
            at_ns = now_ns + delay_ns if at_ns < CLOCK_SET_NS else at_ns + uncounted_ns
            self._broker.wills.restored(info, will, now_s + (at_ns - now_ns) / 1e9)

    def _remove_unneeded(self) -> None:
        """Remove ended rings for which no record waits."""
        positions, _ = self._engine.lowest_positions(0, 0xFFFF_FFFF)
        floors = array("Q", positions)
        for ring_number in self._ended.values():
            if floors[ring_number] == NOTHING_WAITS:
                self._broker.router.rings.remove_ended(ring_number)

    def _counted(self, lost: int, duration_ms: float) -> Restored:
        stats = [self._engine.session_stats(session.handle) for session in self._sessions.values()]
        stats += [self._engine.session_stats(handle) for handle in self._broker.router.groups()]
        return Restored(
            len(self._sessions),
            sum(len(session.subscriptions) for session in self._sessions.values()),
            sum(counts[0] for counts in stats if counts is not None),
            sum(counts[1] for counts in stats if counts is not None),
            lost,
            duration_ms,
        )


def _will_of(packet: bytes) -> Will | None:
    length = decode_variable_integer(packet, 1, len(packet))
    assert length is not None
    connect = decode_packet(packet[0], packet[1 + length[1] :], Version.V5)
    return connect.will if isinstance(connect, Connect) else None
