"""Streams: the partition of each topic, and the partitions themselves.

Owns the rings that the broker writes, from start to stop. Never reads or publishes a record: the Writer of
each Partition does that.

A start takes over the rings of the last run (ring_files.py). A ring is checked and continues at its next
offset, after a clean stop and after kill -9; an unusable ring is renamed. A new ring replaces it, in a new
epoch, and begins at the end of the log, if there is a log.

A stop keeps every ring that holds a record. Subscribers, sessions and bridges continue there after the next
start, and a `process` stream has no other copy. To free that memory, remove the runtime directory while the
broker is stopped. Rings that never held a record are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, Self

from msgspec import Struct

from edge.config.schema import Config, Durability, Stream
from edge.logging_setup import pairs
from edge.mqtt.topic_filters import matches
from edge.streams.epochs import Epochs
from edge.streams.ring_files import LogEnd, LoggedRecords, ring_to_write
from ringbuf import Ring, Writer, crc32c

log = logging.getLogger(__name__)


class Partition(Struct, frozen=True):
    """An ordered sequence of records: one ring and its only writer. Name: "{stream}-{index}"."""

    name: str
    stream: str
    index: int
    ring: Ring
    writer: Writer
    durability: Durability
    visible: Literal["commit", "durable"] = "commit"


class Streams:
    """All partitions of a broker. Created by open(); closed once, after all writers and readers."""

    def __init__(self, groups: Iterable[tuple[Stream, list[Partition]]]) -> None:
        self._groups = list(groups)

    @classmethod
    def open(
        cls,
        config: Config,
        epochs: Epochs,
        log_ends: Mapping[str, tuple[int, int]] | None = None,
        past: LoggedRecords | None = None,
    ) -> Self:
        """Every partition of `config`, re-attached or new, in its runtime directory, which must be locked.

        `log_ends`: ends of the recovered log, ring name -> (epoch, offset after its last record); `past`
        reads the log. Raises RingsUnavailable: no room in memory, or another process writes one of the rings.
        """
        streams = cls([])
        try:
            for stream in config.stream:
                partitions: list[Partition] = []
                streams._groups.append((stream, partitions))
                for index in range(stream.partitions):
                    path = config.runtime_dir / f"{stream.name}-{index}"
                    log_end = LogEnd(*(log_ends or {}).get(path.name, ()))
                    partitions.append(_open(stream, index, path, epochs, log_end, past))
        except BaseException:
            streams.close()
            raise
        return streams

    def take(self, added: Streams, order: Iterable[str]) -> None:
        """Take over the streams of `added`, which is empty afterwards. `order`: the names of all streams.

        Other threads may read the streams meanwhile.
        """
        groups = {stream.name: (stream, partitions) for stream, partitions in self._groups + added._groups}
        self._groups, added._groups = [groups[name] for name in order], []

    def all(self) -> list[Partition]:
        """Every partition, in the order of the configuration."""
        return [partition for _, partitions in self._groups for partition in partitions]

    def groups(self) -> list[tuple[Stream, list[Partition]]]:
        """Every stream with its partitions, in the order in which topics are matched."""
        return self._groups

    def rules(self) -> list[tuple[list[str], list[Partition]]]:
        """Filters and partitions of each stream, in the order in which topics are matched: the rules by which
        partition_of() decides.
        """
        return [(list(stream.topics), partitions) for stream, partitions in self._groups]

    def partition_of(self, topic: str) -> Partition:
        """Partition of a topic: always the same one while the streams stay the same. take() changes them.

        ringbuf/c/mqtt/route/streams.c has the same rule.
        """
        partitions = self._partitions_for(topic)
        return partitions[crc32c(topic.encode()) % len(partitions)]

    def named(self, name: str) -> tuple[Stream, Partition]:
        """The partition of that name, with the settings of its stream. The partition must exist."""
        pairs = ((stream, partition) for stream, partitions in self._groups for partition in partitions)
        return next(pair for pair in pairs if pair[1].name == name)

    def _partitions_for(self, topic: str) -> list[Partition]:
        *others, (_, rest) = self._groups
        for stream, partitions in others:
            if any(matches(topic_filter, topic) for topic_filter in stream.topics):
                return partitions
        return rest  # the default stream takes the rest, including topics that begin with $

    def close(self) -> None:
        """Close all rings; those with records stay for the next start. May be called twice."""
        kept_bytes, directory = 0, None
        for _, partitions in self._groups:
            for partition in partitions:
                ring = partition.ring
                extremes = ring.extremes()
                ring.close()
                if extremes.end_offset == ring.first_offset:
                    ring.unlink()
                else:
                    kept_bytes += ring.capacity_bytes
                    directory = ring.path.parent
            partitions.clear()
        if kept_bytes:
            log.info("rings kept for the next start %s", pairs(bytes=kept_bytes, directory=directory))


def _open(
    stream: Stream, index: int, path: Path, epochs: Epochs, log_end: LogEnd, past: LoggedRecords | None
) -> Partition:
    def writer_of(ring: Ring) -> Writer:
        logged = stream.durability.is_logged
        # A logged ring must not lose records to the log: its publishers wait up to queue_timeout_ms.
        waits = stream.when_full == "block" or (stream.when_full == "overwrite" and logged)
        return ring.writer(
            when_full="block" if waits else "reject",
            queue_timeout_ms=stream.queue_timeout_ms,
            # the cursor file is untrusted: only readers that the control socket admitted can block the writer
            blocking_readers="admitted",
        )

    ring, writer = ring_to_write(
        path, stream.ring_bytes, epochs, log_end=log_end, past=past, prepare=writer_of
    )
    ring.show_durable(stream.visible == "durable")
    return Partition(path.name, stream.name, index, ring, writer, stream.durability, stream.visible)
