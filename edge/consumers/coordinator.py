"""Coordinator of consumer groups: turns requests into answers, without sockets. The endpoint adds the
sockets.

Owns the waiting answers: fetches wait for records, acknowledgements for the journal (durable_answers.py),
publishers for the broker's thread and the disk (publishes.py). One turn handles everything that has arrived.

    receive() ... receive() -> turn() -> outbox

Bounds: one fetch waits for each member, and members are limited in number, of each peer and of all. A fetch
that found nothing is tried again after a change in its group. Fetches have FETCHES_S of a turn; other groups
come first in the next one. Reads of the log and publishes under way are limited in number and bytes, searches
of a first record in number, of each peer and of all (quota.py). Records wait until a peer has read its
earlier answers (outbox.py).
Everything else is answered in its turn. An error of one request, fetch or partition affects only that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from edge.consumers.ack_tracker import TooManyRuns, Verdict
from edge.consumers.admin import GroupAdmin
from edge.consumers.dead_letters import DeadLetterPublisher, Outlet
from edge.consumers.durable_answers import DurableAnswers
from edge.consumers.faults import Faults
from edge.consumers.fetch import FetchReader
from edge.consumers.group_partition import GroupPartition
from edge.consumers.groups import ConsumerGroup, Member
from edge.consumers.log_read_thread import LogReadThread
from edge.consumers.outbox import Outbox
from edge.consumers.protocol import (
    PROTOCOL,
    RUNS_MAX,
    Ack,
    Acked,
    Alive,
    Answer,
    Commit,
    Done,
    Failed,
    Fetch,
    Fetched,
    Forget,
    GroupInfo,
    GroupList,
    Groups,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Nack,
    NotDone,
    Publish,
    Read,
    Request,
    RequestMessage,
    Reset,
    RingList,
    Rings,
    SetGroup,
)
from edge.consumers.publishes import Publishes
from edge.consumers.quota import OverShare, Quota
from edge.consumers.reads import PartitionReads
from edge.consumers.registry import GroupRegistry, RingEntry
from edge.consumers.requester import Requester
from edge.consumers.searches import FoundPlaces, Searches
from edge.consumers.start_place import StartPlace
from edge.rpc.protocol import MalformedRequest, encode

EXPIRY_CHECK_S = 0.05  # between two checks for expired leases and sessions
IDLE_S = 1.0
FETCHES_S = 0.005
MEMBERS_MAX, MEMBERS_EACH = 4_096, 64  # of all groups

Frames = Sequence[bytes]


@dataclass(slots=True)
class _WaitingRequest:
    """A fetch without an answer yet."""

    peer: bytes
    request: Fetch
    group: ConsumerGroup
    member: Member
    until_s: float
    look_s: float = 0.0  # time at which it may find records, if nothing changes in its group
    changes: int = -1  # of the group when it found nothing

    def may_find(self, now_s: float) -> bool:
        """False: it found nothing, and would find nothing now."""
        return self.changes != self.group.changes or now_s >= min(self.look_s, self.until_s)


class Coordinator:
    """State of the coordinator. One thread, except for reads and searches of the log, and `outlet`."""

    def __init__(
        self,
        registry: GroupRegistry,
        outlet: Outlet,
        *,
        clock: Callable[[], float],
        wake: Callable[[], object] = lambda: None,
        sinks_of: Callable[[str], str] = lambda topic: "",
    ) -> None:
        """Create the coordinator. `sinks_of` a topic: the stream whose sinks must have its messages before
        they are reported; "": the topic has no such stream.
        """
        self.registry = registry
        self.outbox = Outbox()
        self.counts: Counter[str] = Counter()
        self._faults = Faults(self.counts, clock)
        self.durable_answers = DurableAnswers(registry, self.counts, self._answer)
        # called each turn; each returns the seconds until its next call is useful
        self.also: list[Callable[[], float]] = []
        self._clock = clock
        self._log_reads = LogReadThread("brim-consumers-log", wake, self._faults)
        self._search_thread = LogReadThread("brim-consumers-search", wake, self._faults)
        self._searches = Searches(self._search_thread, self._contained)
        self._fetch_reader = FetchReader(registry, self._log_reads, clock)
        self._dead_letters = DeadLetterPublisher(
            registry, self._log_reads, outlet, clock, self.counts, self._faults
        )
        self._admin = GroupAdmin(registry)
        self._fetches: dict[str, _WaitingRequest] = {}  # by member
        self._groups: dict[str, tuple[GroupInfo, ...]] = {}  # answers of this turn, by requested group
        self._reads = PartitionReads(
            registry,
            self._log_reads,
            self._searches,
            self.outbox,
            clock,
            self._answer,
            self._contained,
        )
        self._publishes = Publishes(outlet, sinks_of, self.counts, self._answer)
        hint = f"stop some members; one connection may have {MEMBERS_EACH}"
        self._members = Quota("members", MEMBERS_MAX, MEMBERS_EACH, 0, hint)
        self._more = False  # records wait to be examined
        self._next_expiry_s = 0.0

    def add_ring(self, entry: RingEntry) -> None:
        """Serve another ring."""
        self.registry.add_ring(entry)

    def rang(self, ring: str) -> None:
        """Report that a ring has new records."""
        self.registry.rang(ring)
        self._reads.rang(ring)

    @property
    def waited_for(self) -> bool:
        """True if a fetch or a read waits for records."""
        return bool(self._fetches or self._reads)

    def status(self) -> list[dict[str, Any]]:
        """Summaries of the groups, largest lag first."""
        groups = sorted(self._admin.groups(""), key=lambda group: -group.lag)
        return [
            {
                "name": group.name,
                "mode": group.mode,
                "members": len(group.members),
                "lag": group.lag,
                "places": [
                    {
                        "ring": place.ring,
                        "epoch": place.epoch,
                        "floor": place.floor,
                        "lag": place.lag,
                        "in_flight": place.in_flight,
                    }
                    for place in group.places
                ],
            }
            for group in groups
        ]

    def close(self) -> None:
        """Write all changes, and close the journal and the thread."""
        self._log_reads.close()
        self._search_thread.close()
        self.registry.collect()
        try:
            self.registry.store.flush(sync=True)
        finally:
            self.registry.store.close()

    # ---- a turn ----

    def receive(self, routing_id: bytes, data: bytes, frames: Frames = (), owner: str = "") -> None:
        """Handle a request of a peer; its answer is in this turn's outbox, or in a later one."""
        peer = Requester(routing_id, owner)
        self.counts["requests"] += 1
        try:
            request = PROTOCOL.decode_request(data)
        except MalformedRequest as error:
            self.counts["malformed"] += 1
            self._answer(peer, Failed(error.id, str(error), "malformed", error.hint))
            return
        with self._contained(peer, request):
            self._do(peer, request, frames)

    @contextmanager
    def _contained(self, peer: bytes, request: RequestMessage) -> Iterator[None]:
        """Answer a request with an error if the block raises: NotDone, a defect, a fault of the machine."""
        action = type(request).__name__.lower()

        def refuse(error: Exception) -> None:
            text = f"{action} failed in the broker: {type(error).__name__}"
            self._answer(peer, Failed(request.id, text, "refused", "see the broker's log, and report this"))

        with self._faults.contained(action, refuse):
            try:
                yield
            except NotDone as error:
                self.counts[error.code] += 1
                if isinstance(error, OverShare):
                    self._faults.over_share(error)
                self._answer(peer, Failed(request.id, str(error), error.code, error.hint))

    def turn(self) -> float:
        """Do the work that is due. Returns the seconds until more may be due."""
        now_s = self._clock()
        self._groups.clear()
        self._more = False
        self._log_reads.run()
        self._search_thread.run()
        also_s = min((look() for look in self.also), default=IDLE_S)
        if now_s >= self._next_expiry_s:
            self._expire_all(now_s)
        end_s = self._clock() + FETCHES_S
        for waiting in self._in_turn():
            if not waiting.may_find(now_s):
                continue
            with self._contained(waiting.peer, waiting.request):
                self._try(waiting, now_s)
            if self._clock() >= end_s:
                self._more = True
                break
        self._reads.run(now_s)
        self.durable_answers.flush(now_s)
        return min(self._pause_s(now_s), also_s)

    def _in_turn(self) -> Iterator[_WaitingRequest]:
        """Waiting fetches: the one that was tried longest ago first; in a group, those of high priority."""
        of_group: dict[ConsumerGroup, list[_WaitingRequest]] = {}
        for waiting in reversed(self._fetches.values()):
            of_group.setdefault(waiting.group, []).append(waiting)
        for fetches in of_group.values():
            fetches.sort(key=lambda waiting: waiting.member.priority)
        for waiting in list(self._fetches.values()):
            yield of_group[waiting.group].pop()

    def _expire_all(self, now_s: float) -> None:
        self._next_expiry_s = now_s + EXPIRY_CHECK_S
        for group in self.registry.groups.values():
            with self._faults.contained(f"expiry check of group {group.name}", lambda _: None):
                self._expire_group(group, now_s)
        self._dead_letters.begin_due(now_s)

    def _expire_group(self, group: ConsumerGroup, now_s: float) -> None:
        for member in group.expire(now_s):
            self.counts["members_lost"] += 1
            self._fetches.pop(member.id, None)
            self._members.give(member.peer, 0)
        for partition in group.partitions.values():
            partition.tracker.expire(now_s)
            group.changes += partition.time_passes(now_s)
        group.complete_moves()

    def _pause_s(self, now_s: float) -> float:
        if self._more and self._fetches:
            return 0.0
        ends = (min(fetch.until_s, fetch.look_s) for fetch in self._fetches.values())
        until_s = min(ends, default=now_s + IDLE_S)
        until_s = min(until_s, self._reads.until_s(), self.durable_answers.until_s())
        if any(group.members for group in self.registry.groups.values()) or self._publishes:
            until_s = min(until_s, self._next_expiry_s)
        return max(min(until_s, now_s + IDLE_S) - now_s, 0.0)

    def _answer(self, peer: bytes, answer: Answer, frames: Frames = ()) -> None:
        self.outbox.append(peer, [encode(answer), *frames])

    # ---- requests ----

    def _do(self, peer: Requester, request: Request, frames: Frames) -> None:
        match request:
            case Fetch():
                self._fetch(peer, request)
            case Ack() | Nack() | Commit():
                self.durable_answers.append(peer, self._acked(request))
            case Join():
                sources = self.registry.without_progress(request)
                start = StartPlace(request.start, request.start_value)
                self._searches.find(peer, request, sources, start, partial(self._join, peer, request))
            case Heartbeat():
                self._answer(peer, self._heartbeat(request))
            case Leave():
                self._leave(peer, request)
            case Publish():
                self._publishes.publish(peer, request, frames)
            case Read():
                self._reads.read(peer, request)
            case Rings():
                self.outbox.require_room(peer)
                self._answer(peer, RingList(request.id, self._admin.rings(request.filters)))
            case Groups():
                self.outbox.require_room(peer)
                groups = self._groups.get(request.group) or self._admin.groups(request.group)
                self._groups = {request.group: groups}
                self._answer(peer, GroupList(request.id, groups, dict(self.counts)))
            case Reset():
                sources = self._admin.rings_to_reset(request)
                start = StartPlace(request.to, request.value)
                self._searches.find(peer, request, sources, start, partial(self._reset, peer, request))
            case SetGroup():
                self._admin.set(request)
                if (group := self.registry.groups.get(request.group)) is not None:
                    group.replay.until_ns(group.partitions.values(), self._clock())  # a new speed counts now
                self.durable_answers.append(peer, Done(request.id))
            case Forget():
                self._admin.forget(request.group)
                self.durable_answers.append(peer, Done(request.id))

    def _reset(self, peer: bytes, request: Reset, places: FoundPlaces) -> None:
        self._admin.reset(request.group, places)
        self.durable_answers.append(peer, Done(request.id))

    def _join(self, peer: Requester, request: Join, starts: FoundPlaces) -> None:
        known = self.registry.groups.get(request.group)
        members = list(known.members.values()) if known is not None else []
        replaced = [member for member in members if request.instance and member.instance == request.instance]
        if len(members) - len(replaced) >= self.registry.settings.members_max:
            text = f"group {request.group} has {len(members)} members, as many as members_max allows"
            raise NotDone(text, "full", "stop some, or raise consumers.members_max")
        if not replaced:
            self._members.check(peer, 0)
        # changes settings, so it follows all refusals
        group = self.registry.open(request, starts, peer.owner)
        for earlier in replaced:
            self._end(group, earlier)
        counts_for = replaced[0].peer if replaced else peer  # the place that _end() has given back
        self._members.take(counts_for, 0)
        now_s, session_s = self._clock(), request.session_ms / 1000
        member = Member(
            os.urandom(8).hex(),
            request.name,
            request.instance,
            session_s,
            now_s + session_s,
            counts_for,
            request.in_flight_max,
            request.priority,
        )
        group.join(member)
        joined = Joined(
            request.id,
            member.id,
            group.generation,
            request.session_ms // 3,
            round(group.rules.lease_s * 1000),
            tuple(group.rings_of(member.id)),
        )
        self.durable_answers.append(peer, joined)

    def _heartbeat(self, request: Heartbeat) -> Answer:
        group, member = self._member(request.group, request.member)
        if request.working:
            for partition in group.partitions.values():
                partition.tracker.extend(member.id, self._clock())
        return Alive(request.id, group.generation, tuple(group.rings_of(member.id)))

    def _leave(self, peer: bytes, request: Leave) -> None:
        group, member = self._member(request.group, request.member)
        self._end(group, member)
        self._answer(peer, Done(request.id))

    def _end(self, group: ConsumerGroup, member: Member) -> None:
        waiting = self._fetches.pop(member.id, None)
        if waiting is not None:
            self._answer(waiting.peer, Fetched(waiting.request.id, group.generation))
        group.leave(member.id, self._clock(), "its consumer left", died=False)
        self._members.give(member.peer, 0)

    def _member(self, name: str, member_id: str) -> tuple[ConsumerGroup, Member]:
        group = self.registry.groups.get(name)
        member = group.members.get(member_id) if group is not None else None
        if group is None or member is None:
            raise NotDone(f"group {name} has no member {member_id[:8]}", "unknown", "join it")
        group.touch(member, self._clock())
        return group, member

    # ---- records out ----

    def _fetch(self, peer: bytes, request: Fetch) -> None:
        group, member = self._member(request.group, request.member)
        if member.id in self._fetches:
            raise NotDone("this member waits for records already", "full", "await one fetch before the next")
        until_s = self._clock() + request.max_wait_ms / 1000
        self._fetches[member.id] = _WaitingRequest(peer, request, group, member, until_s)

    def _try(self, waiting: _WaitingRequest, now_s: float) -> None:
        """Answer a fetch if there are records, or its time is over."""
        group, request = waiting.group, waiting.request
        del self._fetches[waiting.member.id]  # added again below if it still waits: an exception ends it
        room = min(request.max_bytes, self.outbox.room(waiting.peer))
        taken = self._fetch_reader.take(group, waiting.member, room, request.max_records, now_s)
        self._more |= taken.more
        if taken.batches or now_s >= waiting.until_s:
            fetched = Fetched(request.id, group.generation, tuple(taken.batches))
            self._answer(waiting.peer, fetched, taken.frames)
            return
        waiting.changes, waiting.look_s = group.changes, taken.due_s
        if taken.more:
            waiting.look_s = now_s
        elif not room:
            waiting.look_s = now_s + EXPIRY_CHECK_S
        self._fetches[waiting.member.id] = waiting

    # ---- acknowledgements ----

    def _acked(self, request: Ack | Nack | Commit) -> Answer:
        group, member = self._member(request.group, request.member)
        partition = group.partitions.get(request.ring)
        if partition is None or partition.epoch != request.epoch:
            raise NotDone(f"group {group.name} is not in epoch {request.epoch} of {request.ring}", "fenced")
        if not group.owned_since(member.id, partition, request.generation):
            text = f"{request.ring} has gone to another member since generation {request.generation}"
            raise NotDone(text, "fenced", "drop these records; the other member handles them")
        try:
            verdict = self._verdict(group, partition, member, request)
        except TooManyRuns:
            text = f"this {type(request).__name__.lower()} has more than {RUNS_MAX} refused runs of offsets"
            raise NotDone(text, "refused", "send fewer offsets in one request") from None
        group.changes += 1
        if group.ordered and partition.successor is not None:
            group.complete_moves()
        return Acked(request.id, *verdict)

    def _verdict(
        self, group: ConsumerGroup, partition: GroupPartition, member: Member, request: Ack | Nack | Commit
    ) -> Verdict:
        tracker, author = partition.tracker, member.instance or member.id
        if isinstance(request, Ack):
            return tracker.ack(disjoint(request.runs), member.id, author=author)
        if isinstance(request, Commit):
            if not group.ordered:
                hint = "acknowledge its records one by one"
                raise NotDone(f"group {group.name} is a queue", "refused", hint)
            runs = [(tracker.floor, request.offset - tracker.floor)] if request.offset > tracker.floor else []
            return tracker.ack(runs, member.id, author=author, accept_done=True)
        runs = disjoint(request.runs)
        verdict = tracker.returnable(runs, member.id)
        delay_s = None if request.delay_ms is None else request.delay_ms / 1000
        tracker.give_back(runs, member.id, self._clock(), delay_s, request.cause, counts=request.counts)
        return verdict


def disjoint(runs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same offsets as ascending runs that do not touch, so that each span is examined once."""
    joined: list[tuple[int, int]] = []
    first = last = -1  # the last run of `joined` ends at `last`
    for offset, count in sorted(runs):
        if offset > last:
            first, last = offset, offset + count
            joined.append((offset, count))
        elif offset + count > last:
            last = offset + count
            joined[-1] = (first, last - first)
    return joined
