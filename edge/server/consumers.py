"""Setup of the consumers' endpoint: journal, rings, and the way to the MQTT thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from edge.broker.durability import Lost
from edge.config.schema import AckGate, Config, Durability, Stream
from edge.consumers.append_log import Journal
from edge.consumers.coordinator import Coordinator
from edge.consumers.dead_letters import Fate, Outgoing
from edge.consumers.offset_store import OffsetStore
from edge.consumers.registry import GroupRegistry, GroupSettings, RingEntry
from edge.consumers.ring_source import RingSource
from edge.consumers.server import ConsumersEndpoint
from edge.errors import EdgeError
from edge.local.producers import ProducerRing, Producers
from edge.local.zmq_listener import ZmqListener
from edge.streams.streams import Partition, Streams
from edge.transport.listener import Listener
from persistence.files import OsFiles
from ringbuf import FLAG_EXPIRY, Ring

if TYPE_CHECKING:
    from edge.log.log_set import LogSet

__all__ = ["add_streams", "consumers_endpoint"]

DURABLE_POLL_S = 0.002  # between two checks if the log has synced the published messages


@dataclass(frozen=True, slots=True, eq=False)
class _Unconfirmed:
    """Stored messages that a log has not synced, or sinks do not have yet."""

    fates: list[Fate]
    gates: list[tuple[str, int]]  # of each message: its ring and the offset behind it; "" if it does not wait
    positions: dict[str, tuple[Ring, int]]  # by ring of durability "disk": the position that must be synced
    offsets: dict[str, int]  # by ring of durability "upstream": the offset below which sinks must have all
    until_s: float  # monotonic; from then on they are refused if the log accepts no records
    tell: Callable[[list[Fate]], None]

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
        self.tell(["full" if ring in unsynced else fate for (ring, _), fate in pairs])


class BrokerOutlet:
    """Passes messages to the broker's thread, and their results back.

    A message to a stream of durability "disk" is reported when the log has synced it. If the log accepts no
    records (`failure_of` a ring), it is refused after queue_timeout_ms, like publishers of MQTT. A message to
    a stream of durability "upstream" is reported when the sinks have it; it is refused if a sink loses it.
    """

    def __init__(self, listener: Listener, streams: Streams, failure_of: Callable[[str], str]) -> None:
        self.hand_over: Callable[[Callable[[], object]], object] = lambda function: function()
        self._listener = listener
        self._streams = streams
        self._failure_of = failure_of
        self._unconfirmed: list[_Unconfirmed] = []
        self._drained: dict[str, int] = {}  # by ring: the sinks have all records below this offset

    def __call__(self, messages: Sequence[Outgoing], done: Callable[[list[Fate]], None]) -> None:
        """See Outlet."""
        self._listener.call(partial(self._publish, messages, done))

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

    def look(self) -> float:
        """Report the messages that logs and sinks have. Returns the seconds until the next check.

        Reports of sinks need no check: each ends the wait of the endpoint's thread.
        """
        pause_s = float("inf")
        for batch in list(self._unconfirmed):
            unsynced = batch.unsynced()
            refused = time.monotonic() >= batch.until_s and all(map(self._failure_of, unsynced))
            if unsynced and not refused:
                pause_s = DURABLE_POLL_S
            elif batch.is_drained(self._drained):
                self._unconfirmed.remove(batch)
                batch.answer(unsynced)
        return pause_s

    def _apply_progress(self, ring: str, offset: int, lost: Lost) -> None:
        for batch in self._unconfirmed if lost else ():
            batch.lose(ring, lost)
        self._drained[ring] = offset

    def _publish(self, messages: Sequence[Outgoing], done: Callable[[list[Fate]], None]) -> None:
        """Publish on the broker's thread. An exception refuses all, so that no caller waits forever."""
        try:
            self._publish_all(messages, done)
        except Exception:
            self.hand_over(partial(done, ["refused"] * len(messages)))
            raise

    def _publish_all(self, messages: Sequence[Outgoing], done: Callable[[list[Fate]], None]) -> None:
        fates: list[Fate] = []
        gates: list[tuple[str, int]] = []
        positions: dict[str, tuple[Ring, int]] = {}
        offsets: dict[str, int] = {}
        patience_ms = 0
        for message in messages:
            fates.append(self._store(message))
            if fates[-1] != "stored":
                gates.append(("", 0))
                continue
            stream, partition = self._stored_in(message.topic)
            if partition.durability.ack_gate is AckGate.NONE:
                gates.append(("", 0))
                continue
            # from the writer, because the ring's own values are updated once a batch
            gates.append((partition.name, partition.writer.end_offset))
            if partition.durability is Durability.UPSTREAM:
                offsets[partition.name] = partition.writer.end_offset
            else:
                positions[partition.name] = (partition.ring, partition.writer.end_position)
                patience_ms = max(patience_ms, stream.queue_timeout_ms)
        until_s = time.monotonic() + patience_ms / 1000
        stored = _Unconfirmed(fates, gates, positions, offsets, until_s, done)
        self.hand_over(partial(self._unconfirmed.append, stored))

    def _stored_in(self, topic: str) -> tuple[Stream, Partition]:
        """Stream and partition that store the messages of a topic now: a topic may not have moved to an added
        stream yet.
        """
        broker = self._listener.broker
        ring_name = broker.router.rings.ring_of_topic(broker.engine.topic_find(topic.encode()))
        return self._streams.named(ring_name)

    def _store(self, message: Outgoing) -> Fate:
        own = self._listener.broker.own_messages
        if message.topic.startswith("$") or own.topic_of(message.topic) is None:
            return "refused"
        flag = FLAG_EXPIRY if message.expires else 0
        stored = own.store(
            message.topic, message.payload, message.qos, message.retain, message.properties, flag
        )
        return "stored" if stored else "full"


def consumers_endpoint(
    config: Config,
    streams: Streams,
    producers: Producers,
    listener: Listener,
    logs: LogSet | None,
    zmq_listener: ZmqListener,
) -> ConsumersEndpoint:
    """Create the endpoint, not started, with the rings of producers. Call add_streams() next.

    Raises EdgeError: its journal is unreadable.
    """
    outlet = BrokerOutlet(listener, streams, logs.failure_of if logs is not None else lambda _: "")

    def make(wake: Callable[[], None]) -> Coordinator:
        coordinator = Coordinator(
            _registry(config), outlet, clock=time.monotonic, wake=wake, sinks_of=outlet.sinks_of
        )
        coordinator.also.append(outlet.look)
        return coordinator

    keys, clients = config.zmq.secret_key_file, config.zmq.client_keys_dir
    endpoint = ConsumersEndpoint(zmq_listener, make, secret_key_file=keys, client_keys_dir=clients)
    outlet.hand_over = endpoint.call
    outlet.follow_upstream()

    def add_producer(added: ProducerRing) -> None:
        entry = _entry_of(added.ring, added.stream, None, logs)
        endpoint.add(entry, added.ring.reader(name="consumers", verify=True))

    for producer in producers.all():
        add_producer(producer)
    producers.on_ring.append(add_producer)
    return endpoint


def add_streams(
    endpoint: ConsumersEndpoint, groups: Iterable[tuple[Stream, list[Partition]]], logs: LogSet | None
) -> None:
    """Serve the rings of streams; also while the endpoint runs."""
    for stream, partitions in groups:
        for partition in partitions:
            entry = _entry_of(partition.ring, stream, stream.topics, logs)
            endpoint.add(entry, partition.ring.reader(name="consumers", local=True))


def _entry_of(ring: Ring, stream: Stream, topics: tuple[str, ...] | None, logs: LogSet | None) -> RingEntry:
    cold = logs.reader if logs is not None and stream.durability.is_logged else None
    return RingEntry(RingSource(ring, cold), stream.name, topics, stream.durability, stream.sync_interval_ms)


def _registry(config: Config) -> GroupRegistry:
    consumers, directory = config.consumers, config.state_dir / "consumers"
    try:
        store = OffsetStore(Journal(OsFiles(), str(directory), "offsets"))
    except OSError as error:
        text = f"committed offsets of consumers in {directory}: {error.strerror}"
        raise EdgeError(text, hint="mend the directory, or write enabled = false in [consumers]") from error
    settings = GroupSettings(
        consumers.lease_ms,
        consumers.tries_max,
        consumers.backoff_ms,
        consumers.backoff_max_ms,
        consumers.records_max,
        consumers.dead_letter_topic,
        consumers.groups_max,
        consumers.members_max,
    )
    return GroupRegistry(store, settings, time.time_ns)
