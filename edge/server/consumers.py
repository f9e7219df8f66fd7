"""Setup of the consumers' endpoint: journal, rings, and the outlet to the broker's thread."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from edge.config.schema import Config, Stream
from edge.consumers.coordinator import Coordinator
from edge.consumers.ended_rings import EndedRing
from edge.consumers.offset_journal import Journal
from edge.consumers.offset_store import OffsetStore
from edge.consumers.registry import GroupRegistry, RingEntry
from edge.consumers.ring_source import ReadableLog, RingSource
from edge.consumers.server import ConsumersEndpoint
from edge.errors import EdgeError
from edge.local.producers import ProducerRing, Producers, skipping_damaged
from edge.local.zmq_listener import ZmqListener
from edge.logging_setup import pairs
from edge.server.consumers_outlet import BrokerOutlet
from edge.streams.absent_rings import is_ring_of_stream
from edge.streams.ring_files import NO_LOG, LogEnd, attached_to_read
from edge.streams.streams import Partition, Streams
from edge.transport.listener import Listener
from persistence.errors import is_process_limit
from persistence.files import OsFiles
from ringbuf import Ring
from ringbuf.errors import RingError

if TYPE_CHECKING:
    from edge.log.log_set import LogSet

log = logging.getLogger(__name__)


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
        coordinator.also.append(outlet.report_durable)
        return coordinator

    zmq = config.zmq
    keys = (zmq.secret_key_file, zmq.client_keys_dir) if config.consumers_need_keys else (None, None)
    endpoint = ConsumersEndpoint(zmq_listener, make, secret_key_file=keys[0], client_keys_dir=keys[1])
    outlet.hand_over = endpoint.call
    outlet.follow_upstream()

    def add_producer(added: ProducerRing) -> None:
        entry = _entry_of(added.ring, added.stream, None, logs)
        endpoint.add(entry, added.ring.reader(name="consumers", verify=True))

    for producer in producers.all():
        with skipping_damaged(producer.name):
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


def ended_rings(streams: Iterable[Stream], directory: Path, logs: LogSet | None) -> Iterator[RingEntry]:
    """Rings of partitions that these streams had in earlier runs of the broker; `directory`: of ring files.

    Raises OSError if too many files are open.
    """
    present = {stream.name: stream for stream in streams}
    names = {file.stem for file in directory.glob("*.ring")}
    if logs is not None:
        names |= logs.ends().keys()
    for name in sorted(filter(is_ring_of_stream, names)):
        of_stream, _, index = name.rpartition("-")
        stream = present.get(of_stream)
        if stream is None or int(index) < stream.partitions:
            continue
        if (source := _ended_ring(directory / name, logs)) is not None:
            yield RingEntry(source, stream.name, stream.topics, stream.durability, stream.sync_interval_ms)


def _ended_ring(path: Path, logs: LogSet | None) -> RingSource | None:
    """Source of a ring file, or of the log where there is no usable file; None: neither has records."""
    reader = _log_with(path.name, logs)
    end = None if logs is None else logs.end_of(path.name)
    log_end = NO_LOG if end is None else LogEnd(*end)
    try:
        with attached_to_read(path, log_end) as ring:
            if ring.name == path.name:  # otherwise a copy of another ring
                return EndedRing.of_file(path, ring, reader, log_end)
    except FileNotFoundError:
        pass
    except (RingError, OSError) as error:
        if is_process_limit(error):
            raise
        log.warning("ring of a removed partition not usable %s", pairs(ring=path.name, reason=error))
    return EndedRing.of_log(path.name, reader, *log_end) if reader is not None else None


def _log_with(name: str, logs: LogSet | None) -> ReadableLog | None:
    """The log, if it has records of that ring; the stream may have had another durability then."""
    return logs.for_clients if logs is not None and logs.end_of(name) is not None else None


def _entry_of(ring: Ring, stream: Stream, topics: tuple[str, ...] | None, logs: LogSet | None) -> RingEntry:
    readable_log = (
        logs.for_clients if logs is not None and stream.durability.is_logged else _log_with(ring.name, logs)
    )
    return RingEntry(
        RingSource(ring, readable_log), stream.name, topics, stream.durability, stream.sync_interval_ms
    )


def _registry(config: Config) -> GroupRegistry:
    directory = config.state_dir / "consumers"
    try:
        store = OffsetStore(Journal(OsFiles(), str(directory), "offsets"))
    except OSError as error:
        text = f"committed offsets of consumers in {directory}: {error.strerror}"
        raise EdgeError(text, hint="repair the directory, or write enabled = false in [consumers]") from error
    return GroupRegistry(store, config.consumers, time.time_ns)
