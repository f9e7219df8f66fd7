"""ConsumerCore: a consumer without sockets: creates requests and processes answers.

Both forms of client.py run it. They send the result of requests(), pass answers to take(), and return
batches.

Joins the group, fetches records ahead of their use, and sends heartbeats. Joins again when the broker does
not know it any more, or does not answer. Its records no longer belong to it then: fetched batches are
dropped, acknowledgements of the others are refused by the broker, and the records are delivered again.

Invariant: at most one fetch is under way, and at most `ahead` batches wait to be taken.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from edge.consumers.ack_result import Offsets, runs_of
from edge.consumers.delivery_settings import NO_SETTINGS, DeliverySettings
from edge.consumers.groups import Mode
from edge.consumers.protocol import (
    VERSION,
    Ack,
    Acked,
    Alive,
    Answer,
    BatchInfo,
    Commit,
    Failed,
    Fetch,
    Fetched,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Nack,
    RequestMessage,
)
from edge.consumers.publishes import NOT_BEFORE
from edge.consumers.start_place import LATEST, StartPlace
from edge.errors import Refused
from edge.logging_setup import pairs
from edge.mqtt.errors import ProtocolError, Version
from edge.mqtt.primitives import Body
from edge.mqtt.properties import In, decode_properties
from ringbuf import FLAG_PROPERTIES, Batch, Record
from ringbuf.errors import Corrupt

log = logging.getLogger(__name__)

PATIENCE_S = 2.0  # in addition to the time of a fetch; after that the broker counts as dead
JOIN_PATIENCE_S = 30.0  # the first join of a group at a time searches the log
MAX_WAIT_MS = 500
REJOIN_S = 0.2
DELAY_MAX_MS = 7 * 86_400_000
NEVER_NS = (1 << 63) - 1  # a publisher may write any number of digits; larger values do not fit a float


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """Settings of a consumer."""

    group: str
    filters: tuple[str, ...]
    mode: Mode = "ordered"
    start: StartPlace = LATEST
    name: str = ""
    session_s: float = 10.0
    batch_bytes: int = 1 << 20
    ahead: int = 1
    delivery: DeliverySettings = NO_SETTINGS
    in_flight_max: int = 0
    batch_records: int = 0
    priority: int = 0


@dataclass(slots=True, eq=False)
class ConsumerBatch:
    """Records of one ring, in order: iterate, index, len(). `tries`: earlier deliveries without
    acknowledgement.

    A Record has separate memory here; `record.key` is its topic, `bytes(record)` its payload.
    """

    ring: str
    epoch: int
    offset: int
    count: int
    tries: int
    again: bool  # missing records between these may be with other members
    records: Sequence[Record]
    generation: int
    member: str
    rest_is_delayed: bool = False  # records behind these were given back, for later

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __getitem__(self, index: int) -> Record:
        return self.records[index]


class ConsumerCore:
    """State of one consumer. Times are of time.monotonic()."""

    def __init__(self, settings: ConsumerSettings) -> None:
        self.settings = settings
        self.batches: deque[ConsumerBatch] = deque()
        # of requests with a waiting caller; None: no answer yet, or lost
        self.answers: dict[int, Answer | None] = {}
        self.refusal: Refused | None = None  # of the first join: a repetition would be refused too
        self.rings: tuple[str, ...] = ()  # partitions of this member
        self.refused = 0  # records whose acknowledgement was refused
        self._numbers = itertools.count(1)
        self._instance = secrets.token_hex(8)
        self._joined: Joined | None = None
        self._was_in = False
        self._outgoing: deque[RequestMessage] = deque()
        self._under_way: dict[int, float] = {}  # request -> time at which it is given up
        self._fetch_id = 0
        self._join_id = 0
        self._join_s = 0.0
        self._requested_s = 0.0

    # ---- for client.py ----

    @property
    def joined(self) -> bool:
        """True if the broker knows this member."""
        return self._joined is not None

    def requests(self, now_s: float, *, connected: bool) -> list[RequestMessage]:
        """Requests to send now. Pass those that cannot be sent to unsent()."""
        if any(deadline <= now_s for deadline in self._under_way.values()) or (
            not connected and self._under_way
        ):
            self._lose()
        if not connected:
            return []
        if self._joined is None:
            self._join(now_s)
        else:
            self._queue_request(self._joined, now_s)
        requests = list(self._outgoing)
        self._outgoing.clear()
        for request in requests:
            self._under_way[request.id] = now_s + _patience_s(request)
        return requests

    def unsent(self, request: RequestMessage) -> None:
        """Queue a request again that could not be sent."""
        self._outgoing.append(request)
        self._under_way.pop(request.id, None)

    def due_s(self, now_s: float) -> float:
        """Time at which requests() may have something to send, if no answer comes."""
        due_s = min(self._under_way.values(), default=now_s + 1.0)
        if self._joined is None:
            return min(due_s, max(self._join_s, now_s + 0.01))
        return min(due_s, self._requested_s + self._joined.heartbeat_ms / 1000)

    def take(self, answer: Answer, frames: list[bytes], now_s: float) -> None:
        """Process an answer."""
        if self._under_way.pop(answer.id, None) is None:
            return  # of an earlier membership
        if answer.id in self.answers:
            self.answers[answer.id] = answer
        if answer.id == self._join_id:
            self._join_id = 0
            self._take_join(answer, now_s)
        elif isinstance(answer, Fetched):
            self._fetch_id = 0
            self._take_records(answer, frames)
        elif isinstance(answer, Alive):
            self.rings = answer.rings
        elif isinstance(answer, Acked):
            self.refused += answer.refused
        elif isinstance(answer, Failed):
            self._take_failure(answer)

    def next_batch(self, now_s: float) -> ConsumerBatch | None:
        """Remove and return the next batch; None if there is none now."""
        return self.batches.popleft() if self.batches else None

    def leave(self) -> Leave | None:
        """The last request of a member; None if the broker does not know it."""
        if self._joined is None:
            return None
        return Leave(next(self._numbers), VERSION, self.settings.group, self._joined.member)

    # ---- requests of the application ----

    def ack(self, batch: ConsumerBatch, offsets: Offsets | None) -> Ack:
        """Return a request: acknowledge these records of the batch, or all."""
        runs = self._whole(batch) if offsets is None else runs_of(offsets)
        return Ack(*self._head(batch), tuple(runs))

    def nack(
        self,
        batch: ConsumerBatch,
        offsets: Offsets | None,
        delay_s: float | None,
        cause: str,
        *,
        counts: bool = True,
    ) -> Nack:
        """Return a request: give these records of the batch back, or all, to get them again."""
        runs = self._whole(batch) if offsets is None else runs_of(offsets)
        delay_ms = None if delay_s is None else int(min(max(delay_s * 1000, 0), DELAY_MAX_MS))
        return Nack(*self._head(batch), tuple(runs), delay_ms, cause[:1024], counts)

    def commit(self, batch: ConsumerBatch, offset: int) -> Commit:
        """Return a request: acknowledge all records of the ring below `offset`."""
        return Commit(*self._head(batch), offset)

    def working(self) -> Heartbeat | None:
        """Return a request: extend the leases of all records; None if not joined."""
        if self._joined is None:
            return None
        group, member = self.settings.group, self._joined.member
        return Heartbeat(next(self._numbers), VERSION, group, member, working=True)

    def queue(self, request: RequestMessage, *, wait: bool) -> int:
        """Queue a request for the next requests(), and return its number. `wait`: keep its answer."""
        if wait:
            self.answers[request.id] = None
        self._outgoing.append(request)
        return request.id

    def is_lost(self, number: int) -> bool:
        """True if that request will get no answer."""
        waiting = any(request.id == number for request in self._outgoing)
        return not waiting and number not in self._under_way and self.answers.get(number) is None

    # ---- joining and staying ----

    def _join(self, now_s: float) -> None:
        if self._join_id or now_s < self._join_s:
            return
        settings = self.settings
        self._join_id = next(self._numbers)
        self._outgoing.append(
            Join(
                self._join_id,
                VERSION,
                settings.group,
                settings.filters,
                settings.mode,
                settings.start.to,
                int(settings.session_s * 1000),
                settings.name,
                self._instance,
                settings.delivery,
                settings.start.value,
                settings.in_flight_max,
                settings.priority,
            )
        )

    def _take_join(self, answer: Answer, now_s: float) -> None:
        if isinstance(answer, Joined):
            self._joined, self._was_in, self.rings = answer, True, answer.rings
        elif isinstance(answer, Failed):
            self._join_s = now_s + REJOIN_S
            if not self._was_in:
                self.refusal = Refused(answer.error, hint=answer.hint)
            log.warning(
                "consumer refused by the broker %s", pairs(group=self.settings.group, reason=answer.error)
            )

    def _queue_request(self, joined: Joined, now_s: float) -> None:
        group, member = self.settings.group, joined.member
        if not self._fetch_id and len(self.batches) < self.settings.ahead:
            self._fetch_id = next(self._numbers)
            limits = (self.settings.batch_bytes, MAX_WAIT_MS, self.settings.batch_records)
            fetch = Fetch(self._fetch_id, VERSION, group, member, *limits)
            self._outgoing.append(fetch)
        elif now_s >= self._requested_s + joined.heartbeat_ms / 1000:
            self._outgoing.append(Heartbeat(next(self._numbers), VERSION, group, member))
        if self._outgoing:
            self._requested_s = now_s

    def _lose(self) -> None:
        """Forget everything under way: the broker has ended, or has forgotten this member."""
        self._joined = None
        self._join_id = self._fetch_id = 0
        self._under_way.clear()
        self._outgoing.clear()
        self.batches.clear()

    def _take_failure(self, answer: Failed) -> None:
        if answer.id == self._fetch_id:
            self._fetch_id = 0
        if answer.code == "unknown":
            self._lose()
        elif answer.code != "fenced":
            log.warning("consumer request refused %s", pairs(reason=answer.error))

    # ---- records ----

    def _take_records(self, answer: Fetched, frames: list[bytes]) -> None:
        if self._joined is None:
            return
        delayed_rings: set[str] = set()  # rings of which all further records come again
        for info, frame in zip(answer.batches, frames, strict=False):
            if info.ring in delayed_rings:
                continue
            batch = self._decoded(info, frame, answer.generation, self._joined.member)
            if batch is None:
                continue
            if batch.rest_is_delayed:
                delayed_rings.add(batch.ring)
            if batch.records:
                self.batches.append(batch)

    def _decoded(self, info: BatchInfo, frame: bytes, generation: int, member: str) -> ConsumerBatch | None:
        try:
            records = Batch.of(frame, info.epoch, info.offset, None, info.offset + info.count)
        except Corrupt as error:
            # Its lease will expire; the broker reports details with the dead letter.
            where = pairs(ring=info.ring, offset=info.offset, reason=error)
            log.error("invalid records not delivered %s", where)
            return None
        place = (info.ring, info.epoch, info.offset, info.count)
        verified: Any = records
        batch = ConsumerBatch(*place, info.tries, info.again, verified, generation, member)
        if records.any_flags & FLAG_PROPERTIES:
            self._put_off(batch)
        return batch

    def _put_off(self, batch: ConsumerBatch) -> None:
        """Give back records that must not be delivered yet; in ordered groups also all behind them."""
        now_ns = time.time_ns()
        ready: list[Record] = []
        for record in batch.records:
            wait_ns = _not_before(record) - now_ns
            if wait_ns <= 0:
                ready.append(record)
                continue
            back = self.nack(batch, [record], wait_ns / 1e9 + 0.001, "not yet", counts=False)
            self._outgoing.append(back)
            if self.settings.mode == "ordered":
                batch.rest_is_delayed = True
                break
        if len(ready) < len(batch.records):
            batch.records = ready

    def _head(self, batch: ConsumerBatch) -> tuple[int, int, str, str, int, str, int]:
        number = next(self._numbers)
        # For an earlier membership: the broker may still accept it, if no other member has the records.
        member = self._joined.member if self._joined is not None else batch.member
        return (number, VERSION, self.settings.group, member, batch.generation, batch.ring, batch.epoch)

    def _whole(self, batch: ConsumerBatch) -> list[tuple[int, int]]:
        """Runs of all records of the batch; one run if the broker knows that the gaps match no filter."""
        known = self._joined is not None and self._joined.member == batch.member
        if known and not batch.again and not isinstance(batch.records, list):
            return [(batch.offset, batch.count)]
        return runs_of(batch.records)


def _patience_s(request: RequestMessage) -> float:
    """Time after which the broker counts as dead if it does not answer."""
    if isinstance(request, Join):
        return JOIN_PATIENCE_S
    return PATIENCE_S + (request.max_wait_ms / 1000 if isinstance(request, Fetch) else 0)


def _not_before(record: Record) -> int:
    """Time in ns before which a record must not be delivered; 0 for none."""
    wire = record.properties
    if NOT_BEFORE.encode() not in wire:
        return 0
    try:
        user = decode_properties(Body(wire, Version.V5), In.PUBLISH).user
        return min(max((int(value) for name, value in user if name == NOT_BEFORE), default=0), NEVER_NS)
    except (ProtocolError, ValueError):
        return 0
