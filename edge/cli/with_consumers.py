"""The consumers' endpoint of a broker, put together: journal, rings, and the way to the MQTT thread."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from edge.config import Config, Stream
from edge.consumers.dead_letters import Fate, Outgoing
from edge.consumers.endpoint import ConsumersEndpoint
from edge.consumers.journal import Journal
from edge.consumers.ledger import Ledger, RingEntry, Settings
from edge.consumers.offsets import OffsetStore
from edge.consumers.service import Service
from edge.consumers.source import ColdLog, Source
from edge.errors import EdgeError
from edge.listener import Listener
from edge.producers import ProducerRing, Producers
from edge.streams import Streams
from persistence.files import OsFiles
from ringbuf import FLAG_EXPIRY, Ring

__all__ = ["consumers_endpoint"]

DURABLE_POLL_S = 0.002  # between looks whether the log has synced what was published


class BrokerOutlet:
    """Messages to the broker's own thread, and what became of them back.

    What a stream of durability "disk" stores is told when the log has synced it.
    """

    def __init__(self, listener: Listener, streams: Streams) -> None:
        self.hand_over: Callable[[Callable[[], object]], object] = lambda function: function()
        self._listener = listener
        self._streams = streams
        self._unsynced: deque[tuple[list[tuple[Ring, int]], Callable[[], None]]] = deque()

    def __call__(self, messages: Sequence[Outgoing], done: Callable[[list[Fate]], None]) -> None:
        """See Outlet."""
        self._listener.call(partial(self._publish, messages, done))

    def look(self) -> float:
        """Tells what the log has synced by now; seconds until that is worth another look."""
        while self._unsynced:
            places, tell = self._unsynced[0]
            if any(ring.extremes().durable_position < position for ring, position in places):
                return DURABLE_POLL_S
            self._unsynced.popleft()
            tell()
        return float("inf")

    def _publish(self, messages: Sequence[Outgoing], done: Callable[[list[Fate]], None]) -> None:
        """On the broker's thread."""
        fates = [self._store(it) for it in messages]
        places: dict[str, tuple[Ring, int]] = {}
        for message, fate in zip(messages, fates, strict=True):
            partition = self._streams.partition_of(message.topic)
            if fate == "stored" and partition.durability == "disk":
                # The writer's own word: the ring's is told once a batch.
                places[partition.name] = (partition.ring, partition.writer.end_position)
        self.hand_over(partial(self._stored, list(places.values()), partial(done, fates)))

    def _stored(self, places: list[tuple[Ring, int]], tell: Callable[[], None]) -> None:
        self._unsynced.append((places, tell))

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
    config: Config, streams: Streams, producers: Producers, listener: Listener, cold: ColdLog | None
) -> ConsumersEndpoint:
    """The endpoint with all rings, not started.  Raises EdgeError: its journal cannot be read."""
    outlet = BrokerOutlet(listener, streams)

    def make(wake: Callable[[], None]) -> Service:
        service = Service(_ledger(config), outlet, clock=time.monotonic, wake=wake)
        service.also.append(outlet.look)
        return service

    keys, clients = config.zmq.secret_key_file, config.zmq.client_keys_dir
    endpoint = ConsumersEndpoint(
        config.consumers_endpoint, make, secret_key_file=keys, client_keys_dir=clients
    )
    outlet.hand_over = endpoint.call
    settings = {stream.name: stream for stream in config.stream}

    def entry_of(ring: Ring, stream: Stream, topics: tuple[str, ...] | None) -> RingEntry:
        source = Source(ring, cold if stream.durability != "process" else None)
        return RingEntry(source, stream.name, topics, stream.durability, stream.sync_interval_ms)

    for it in streams.all():
        stream = settings[it.stream]
        endpoint.add(entry_of(it.ring, stream, stream.topics), it.ring.reader(name="consumers", own=True))

    def add_producer(added: ProducerRing) -> None:
        entry = entry_of(added.ring, added.stream, None)
        endpoint.add(entry, added.ring.reader(name="consumers", verify=True))

    for producer in producers.all():
        add_producer(producer)
    producers.on_ring.append(add_producer)
    return endpoint


def _ledger(config: Config) -> Ledger:
    consumers, directory = config.consumers, config.state_dir / "consumers"
    files = OsFiles()
    try:
        files.makedirs(str(directory))
        store = OffsetStore(Journal(files, str(directory), "offsets"))
    except OSError as error:
        text = f"committed offsets of consumers in {directory}: {error.strerror}"
        raise EdgeError(text, hint="mend the directory, or write enabled = false in [consumers]") from error
    settings = Settings(
        consumers.lease_ms,
        consumers.tries_max,
        consumers.backoff_ms,
        consumers.backoff_max_ms,
        consumers.records_max,
        consumers.dead_letter_topic,
        consumers.groups_max,
        consumers.members_max,
    )
    return Ledger(store, settings, time.time_ns)
