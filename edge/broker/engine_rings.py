"""Rings of the engine: the number of each ring there, and the rules by which topics get a ring.

Owns both. Streams may be added while clients are served: new topics follow the new rules at once, and the
known topics are moved in steps. Never opens or closes a ring.

Invariant: a topic has one ring at any time. Records from before a move stay in the earlier ring.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from edge.broker.durability import RingDurability
from edge.broker.sliced_work import Steps
from edge.config.schema import AckGate
from edge.engine.engine import Engine
from edge.session_store.journal_writer import SessionJournal
from ringbuf import Ring, Writer

PLACES_MAX = 256  # places of the table of topics that are examined between two yields
FILTERS_TRIED_MAX = 25_600  # filters of streams that are tried between two yields: about 0.2 ms


class LogUse(Protocol):
    """The part of edge.config.schema.Durability that routing needs."""

    @property
    def ack_gate(self) -> AckGate:
        """Event that acknowledgements wait for."""

    @property
    def is_logged(self) -> bool:
        """True if the log gets every record."""


class PartitionLike(Protocol):
    """The part of edge.streams.streams.Partition that routing needs."""

    @property
    def name(self) -> str:
        """Name of the ring."""

    @property
    def writer(self) -> Writer:
        """The only writer of the ring."""

    @property
    def ring(self) -> Ring:
        """The shared-memory ring of this partition."""

    @property
    def durability(self) -> LogUse:
        """Event that acknowledgements wait for, and the use of the log."""


StreamRules: TypeAlias = "Sequence[tuple[Sequence[str], Sequence[PartitionLike]]]"


class EngineRings:
    """Table of the rings that the engine has, and of the streams. All methods run on the broker's thread."""

    def __init__(
        self, engine: Engine, journal: SessionJournal, durability: RingDurability, streams: StreamRules
    ) -> None:
        """Create the table without rings: the engine gets a ring with its first topic."""
        self._engine = engine
        self._journal = journal
        self._durability = durability
        self._numbers: dict[str, int] = {}  # ring name -> number in the engine
        self._rings: dict[int, tuple[str, int]] = {}  # number in the engine -> ring name and epoch
        self._places: dict[str, tuple[int, int]] = {}  # ring name -> stream and partition in the rules
        self._filter_count = 1
        self._set_streams(streams)

    def ring_of(self, ring_number: int) -> tuple[str, int]:
        """Name and epoch of the ring with this number in the engine."""
        return self._rings[ring_number]

    def ring_of_topic(self, topic: int) -> str:
        """Name of the ring that gets the new records of a topic."""
        return self._rings[self._engine.topic_ring(topic)][0]

    def number_of(self, partition: PartitionLike) -> int:
        """Number of a partition's ring in the engine, which gets the ring if it does not have it."""
        ring_number = self._numbers.get(partition.name)
        if ring_number is None:
            durability = partition.durability
            ring_number = self._engine.add_ring(partition.writer, durability.ack_gate, durability.is_logged)
            self._durability.begin(partition.name, ring_number)
            self._numbers[partition.name] = ring_number
            if partition.name in self._places:
                self._engine.stream_ring(*self._places[partition.name], ring_number)
            self._rings[ring_number] = partition.name, partition.ring.epoch
            self._journal.ring_added(ring_number, *self._rings[ring_number])
        return ring_number

    def add_ended(self, name: str, epoch: int, *, logged: bool) -> int:
        """Add the ended epoch of a ring; return its number. `logged`: the log has records of that epoch."""
        ring_number = self._engine.add_ended_ring(logged)
        self._rings[ring_number] = name, epoch
        self._journal.ring_added(ring_number, name, epoch)
        return ring_number

    def remove_ended(self, ring_number: int) -> None:
        """Remove an ended ring, of which no record waits any more."""
        self._engine.remove_ring(ring_number)
        self._journal.ring_removed(ring_number)
        del self._rings[ring_number]

    # ---- streams ----

    def add_streams(self, streams: StreamRules) -> None:
        """Use `streams` from now on: the present streams in their order, and added ones between them.

        Known topics stay in their rings until moving_topics(). The router's `partition_of` must use the same
        streams when this returns. Raises OverflowError, MemoryError: the earlier streams stay.
        """
        known = self._places
        new = [ring for _, partitions in streams for ring in partitions if ring.name not in known]
        try:
            for partition in new:
                self.number_of(partition)
            self._set_streams(streams)
        except BaseException:
            for partition in new:
                self._forget_ring(partition.name)
            raise

    def moving_topics(self, done: Callable[[int], object]) -> Steps[None]:
        """Steps that move topics to the rings of added streams, then call `done` with the number of topics.

        Queues, in-flight windows and retained messages keep the records that the earlier rings have.
        """
        moved = 0
        first: int | None = 0
        try:
            while first is not None:
                places = max(1, min(PLACES_MAX, FILTERS_TRIED_MAX // self._filter_count))
                count, first = self._engine.topics_move(first, places)
                moved += count
                yield
        finally:
            done(moved)

    def _set_streams(self, streams: StreamRules) -> None:
        numbers = self._numbers
        self._engine.streams_set(
            [
                ("\0".join(filters).encode(), array("H", (numbers.get(ring.name, 0) for ring in partitions)))
                for filters, partitions in streams
            ]
        )
        self._filter_count = max(1, sum(len(filters) for filters, _ in streams))
        self._places = {
            partition.name: (number, index)
            for number, (_, partitions) in enumerate(streams)
            for index, partition in enumerate(partitions)
        }

    def _forget_ring(self, ring_name: str) -> None:
        """Undo number_of() for a ring without records."""
        ring_number = self._numbers.pop(ring_name, None)
        if ring_number is not None:
            self._durability.end(ring_name)
            self.remove_ended(ring_number)
