"""Ring of delayed messages: the partition that stores $delayed/SECONDS/TOPIC until the store has it.

Owns the name. The ring belongs to no stream: no bridge, log, consumer or ZeroMQ subscriber reads it. One
reader of this process blocks its writer, so that nothing is overwritten before it is stored.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from edge.broker.delayed_topics import DELAYED
from edge.broker.engine_rings import PartitionLike
from edge.config.schema import AckGate, Config
from edge.streams.epochs import Epochs
from edge.streams.ring_files import ring_to_write
from ringbuf import Reader, Ring, Writer

RING = "delayed"
QUEUE_TIMEOUT_MS = 200


class StoreGate(Struct, frozen=True):
    """Event that acknowledgements wait for; UPSTREAM: the store has the record."""

    ack_gate: AckGate
    is_logged: bool = False


class DelayedPartition(Struct, frozen=True):
    """The ring, its writer and the reader that blocks it."""

    name: str
    ring: Ring
    writer: Writer
    durability: StoreGate
    reader: Reader
    earlier_end: int  # end of the records from before this start

    def with_delayed(self, partition_of: Callable[[str], PartitionLike]) -> Callable[[str], PartitionLike]:
        """`partition_of`, but with this partition for topics of delayed messages."""
        return lambda name: self if name.startswith(DELAYED) else partition_of(name)

    def close(self) -> None:
        """Close reader and ring, which stays for the next start."""
        self.reader.close()
        self.ring.close()


def open_partition(config: Config, epochs: Epochs) -> DelayedPartition:
    """Open or create the ring in the runtime directory. Raises RingsUnavailable.

    It is as large as the smallest ring of a stream, so that each packet that fits there fits into it.
    """
    ring, writer = ring_to_write(
        config.runtime_dir / RING,
        min(stream.ring_bytes for stream in config.stream),
        epochs,
        prepare=lambda ring: ring.writer(
            when_full="block", queue_timeout_ms=QUEUE_TIMEOUT_MS, blocking_readers="admitted"
        ),
        mode=0o600,
    )
    reader = ring.reader(name="delayed", start="oldest", blocks_writer=True, local=True)
    gate = AckGate.UPSTREAM if config.delayed.durability == "disk" else AckGate.NONE
    return DelayedPartition(RING, ring, writer, StoreGate(gate), reader, ring.extremes().end_offset)
