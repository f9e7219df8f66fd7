"""Outlet of consumers: their messages, stored by the broker's thread, and the result of each.

Owns the messages that wait: to be stored, until a log has synced them, or until the sinks have them. Never
stores a message on another thread than the broker's.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from edge.broker.durability import Lost
from edge.broker.quotas import owner_in
from edge.config.schema import AckGate, Durability, Stream
from edge.consumers.dead_letters import Fate, Outgoing
from edge.engine.engine import OK, TOO_LARGE
from edge.streams.streams import Partition, Streams
from edge.transport.listener import Listener
from ringbuf import FLAG_EXPIRY, FLAG_RETAIN, Ring

MESSAGES_A_CALL = 64  # of consumers, stored by one call on the broker's thread: then that serves MQTT
DURABLE_POLL_S = 0.002  # between two checks if the log has synced the published messages


@dataclass(slots=True, eq=False)
class _Publish:
    """Messages that are being stored, or that are stored and wait for a log to sync them, or for sinks."""

    messages: Sequence[Outgoing]
    report: Callable[[list[Fate]], None]
    fates: list[Fate] = field(default_factory=list)
    # of each message: its ring and the offset behind it; "" if it does not wait
    gates: list[tuple[str, int]] = field(default_factory=list)
    # by ring of durability "disk": the position that must be synced
    positions: dict[str, tuple[Ring, int]] = field(default_factory=dict)
    # by ring of durability "upstream": the offset below which sinks must have all
    offsets: dict[str, int] = field(default_factory=dict)
    patience_ms: int = 0
    until_s: float = 0.0  # monotonic; from then on they are refused if the log accepts no records
    is_stored: bool = False  # all of them

    def unsynced(self) -> set[str]:
        """Rings that are not synced so far."""
        return {
            name for name, (ring, end) in self.positions.items() if ring.extremes().durable_position < end
        }

    def is_drained(self, drained: Mapping[str, int]) -> bool:
        """True if the sinks have all records, or have lost them; `drained`: offset by ring."""
        return all(drained.get(ring, 0) >= offset for ring, offset in self.offsets.items())

    def lose(self, ring: str, lost: Lost) -> None:
        """Refuse messages whose records the sinks have lost."""
        for index, (name, end) in enumerate(self.gates):
            if name == ring and any(first < end <= last + 1 for first, last in lost):
                self.fates[index] = "refused"

    def answer(self, unsynced: set[str]) -> None:
        """Report all messages; those of `unsynced` rings as "full"."""
        pairs = zip(self.gates, self.fates, strict=True)
        self.report(["full" if ring in unsynced else fate for (ring, _), fate in pairs])


class BrokerOutlet:
    """Passes messages to the broker's thread, and their results back.

    A message to a stream of durability "disk" is reported when the log has synced it. If the log accepts no
    records (`failure_of` a ring), it is refused after queue_timeout_ms, like publishers of MQTT. A message to
    a stream of durability "upstream" is reported when the sinks have it; it is refused if a sink loses it.

    Messages are stored in the order of the calls, MESSAGES_A_CALL at once, so that many of them do not delay
    MQTT clients.
    """

    def __init__(self, listener: Listener, streams: Streams, failure_of: Callable[[str], str]) -> None:
        self.hand_over: Callable[[Callable[[], object]], object] = lambda function: function()
        self._listener = listener
        self._streams = streams
        self._failure_of = failure_of
        self._publishes: deque[_Publish] = deque()  # not stored completely, oldest first
        self._is_called = threading.Lock()  # held while a call on the broker's thread is due or runs
        self._unconfirmed: dict[_Publish, None] = {}  # of which a part is stored, so that a sink may lose it
        self._drained: dict[str, int] = {}  # by ring: the sinks have all records below this offset

    def __call__(self, messages: Sequence[Outgoing], done: Callable[[list[Fate]], None]) -> None:
        """See Outlet."""
        self._publishes.append(_Publish(messages, done))
        self._call()

    def sinks_of(self, topic: str) -> str:
        """The stream of a topic if its messages are reported when the sinks have them, otherwise ""."""
        partition = self._streams.partition_of(topic)
        return partition.stream if partition.durability is Durability.UPSTREAM else ""

    def follow_upstream(self) -> None:
        """Take the reports of sinks. After `hand_over` is set."""
        rings = self._listener.broker.router.durability

        def report(ring: str, offset: int, lost: Lost) -> None:
            self.hand_over(partial(self._apply_progress, ring, offset, lost))

        self._listener.call(partial(rings.follow_upstream, report))

    def report_durable(self) -> float:
        """Report the messages that logs and sinks have. Returns the seconds until the next check.

        Reports of sinks need no check: each ends the wait of the endpoint's thread.
        """
        pause_s = float("inf")
        for publish in [publish for publish in self._unconfirmed if publish.is_stored]:
            unsynced = publish.unsynced()
            refused = time.monotonic() >= publish.until_s and all(map(self._failure_of, unsynced))
            if unsynced and not refused:
                pause_s = DURABLE_POLL_S
            elif publish.is_drained(self._drained):
                del self._unconfirmed[publish]
                publish.answer(unsynced)
        return pause_s

    def _apply_progress(self, ring: str, offset: int, lost: Lost) -> None:
        for publish in self._unconfirmed if lost else ():
            publish.lose(ring, lost)
        self._drained[ring] = offset

    def _follow(self, publish: _Publish, *, is_stored: bool) -> None:
        publish.is_stored = is_stored
        self._unconfirmed[publish] = None

    def _refuse(self, publish: _Publish) -> None:
        self._unconfirmed.pop(publish, None)
        publish.report(["refused"] * len(publish.messages))

    def _call(self) -> None:
        if self._is_called.acquire(blocking=False):
            self._listener.call(self._publish_some)

    def _publish_some(self) -> None:
        """Store some messages, on the broker's thread. An exception refuses all of a publish, so that no
        caller waits forever.
        """
        try:
            room = MESSAGES_A_CALL
            while room > 0 and self._publishes:
                publish = self._publishes[0]
                try:
                    room -= self._store_messages(publish, room)
                except Exception:
                    self._publishes.popleft()
                    self.hand_over(partial(self._refuse, publish))
                    raise
                is_stored = len(publish.fates) == len(publish.messages)
                if is_stored:
                    self._publishes.popleft()
                    publish.until_s = time.monotonic() + publish.patience_ms / 1000
                self.hand_over(partial(self._follow, publish, is_stored=is_stored))
        finally:
            self._is_called.release()
            if self._publishes:
                self._call()

    def _store_messages(self, publish: _Publish, count: int) -> int:
        """Store the next `count` messages. Returns their number, at least 1."""
        first = len(publish.fates)
        for message in publish.messages[first : first + count]:
            publish.fates.append(self._store(message))
            if publish.fates[-1] != "stored":
                publish.gates.append(("", 0))
                continue
            stream, partition = self._stored_in(message.full_name)
            if partition.durability.ack_gate is AckGate.NONE:
                publish.gates.append(("", 0))
                continue
            # from the writer, because the ring's own values are updated once a batch
            publish.gates.append((partition.name, partition.writer.end_offset))
            if partition.durability is Durability.UPSTREAM:
                publish.offsets[partition.name] = partition.writer.end_offset
            else:
                publish.positions[partition.name] = (partition.ring, partition.writer.end_position)
                publish.patience_ms = max(publish.patience_ms, stream.queue_timeout_ms)
        return max(len(publish.fates) - first, 1)

    def _stored_in(self, topic: str) -> tuple[Stream, Partition]:
        """Stream and partition that store the messages of a topic now: a topic may not have moved to an added
        stream yet.
        """
        broker = self._listener.broker
        ring_name = broker.router.rings.ring_of_topic(broker.engine.topic_find(topic.encode()))
        return self._streams.named(ring_name)

    def _store(self, message: Outgoing) -> Fate:
        own = self._listener.broker.own_messages
        name, owner = message.full_name, owner_in(message.prefix)
        if message.topic.startswith("$") or own.topic_of(name, owner) is None:
            return "refused"
        expiry, retain = FLAG_EXPIRY * message.expires, FLAG_RETAIN * message.retain
        result = own.offer(name, message.payload, message.qos | expiry | retain, message.properties)
        if result == TOO_LARGE:  # for the ring, so a repetition would never succeed
            return "refused"
        return "stored" if result == OK else "full"
