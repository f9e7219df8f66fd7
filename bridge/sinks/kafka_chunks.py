"""The sink that is a Kafka topic of chunks: one Kafka record for 64 to 512 KiB of records.

    kafka://host:9092/topic with the option mode = "chunk"

For a topic that only Brim's own reader reads: several times what single records reach, at a fifth of their
bytes, and records stay bit for bit what they were in the ring, checksums included.

    key           EDGE/STREAM/PARTITION, so that a partition of Brim is in order in one of Kafka's
    value         a chunk (bridge/chunks.py): a small drained file, compressed
    timestamp     of its last record, in ms
    brim-source   header, text: EDGE/STREAM/PARTITION/EPOCH
    brim-range    header, text: FIRST LAST, offsets of the chunk

A unit is safe when all of its chunks are.  One that is put again is sent again: readers know a chunk by
source and range, and keep the first.  A topic cannot be asked for names, so a checkpoint that is lost begins
from the oldest record anew.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from bridge.chunks import chunks_of
from bridge.errors import BadName, SinkBlocked, SinkUnavailable
from bridge.sinks.kafka import FLUSH_TIMEOUT_S, OF_A_RECORD, SOURCE_HEADER, Cluster, Headers, cluster_of_url
from bridge.unit import Unit
from persistence.archive.zstd import check_available
from persistence.errors import ArchiveUnavailable

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message

__all__ = ["KafkaChunkSink"]

RANGE_HEADER = "brim-range"
CHUNK_BYTES = 256 << 10
POLL_S = 0.002  # another thread may have been told of our chunks: then nothing wakes this one
CHUNK_BYTES_LEAST, CHUNK_BYTES_MOST = 4 << 10, 16 << 20


class KafkaChunkSink:
    """Units into a Kafka topic, in chunks of about `chunk_bytes` before compression."""

    def __init__(self, cluster: Cluster, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.url = cluster.url
        self._cluster = cluster
        self._chunk_bytes = chunk_bytes
        self._making = threading.Lock()  # of a producer

    @classmethod
    def of_url(cls, url: str, options: Mapping[str, str]) -> KafkaChunkSink:
        """As cluster_of_url(), and the option chunk_bytes."""
        rest = dict(options)
        text = rest.pop("chunk_bytes", str(CHUNK_BYTES))
        if not text.isdecimal() or not CHUNK_BYTES_LEAST <= int(text) <= CHUNK_BYTES_MOST:
            limits = f"{CHUNK_BYTES_LEAST} to {CHUNK_BYTES_MOST}"
            raise BadName(f"{url}: chunk_bytes is {text!r}, and must be {limits}")
        try:
            check_available()
        except ArchiveUnavailable as error:
            hint = "pip install 'brim[kafka]'"
            raise SinkUnavailable(f"{url}: zstd is not installed", hint=hint) from error
        defaults = {"compression.type": "none", "linger.ms": 1, "delivery.report.only.error": False}
        return cls(cluster_of_url(url, rest, **defaults), int(text))

    def begin(self, edge: str) -> None:
        """See UnitSink.  A topic has no locks: that each edge has one bridge is up to people."""
        del edge
        with self._making:
            self._cluster.ask()

    def put(self, unit: Unit) -> None:
        """See UnitSink."""
        footer = unit.footer
        place = f"{footer.edge}/{footer.stream}/{footer.partition}"
        source = (SOURCE_HEADER, f"{place}/{footer.epoch}".encode())
        topic = self._cluster.topic.replace("{stream}", footer.stream)
        with self._making:
            producer = self._cluster.producer()
        delivery = _Delivery()
        for chunk in chunks_of(unit, self._chunk_bytes):
            headers: Headers = [source, (RANGE_HEADER, b"%d %d" % (chunk.first_offset, chunk.last_offset))]
            stamp = footer.last_timestamp_ns // 1_000_000
            delivery.began += 1
            self._cluster.produce(topic, chunk.data, place.encode(), stamp, headers, delivery.told)
        deadline = time.monotonic() + FLUSH_TIMEOUT_S
        while delivery.ended < delivery.began and time.monotonic() < deadline:
            producer.poll(POLL_S)
        self._check(delivery)

    def _check(self, delivery: _Delivery) -> None:
        error = delivery.error
        if error is not None and error.name() in OF_A_RECORD:
            hint = "lower chunk_bytes, or raise message.max.bytes of topic and producer"
            raise SinkBlocked(f"{self.url}: {error.str()}", hint=hint)
        if error is not None or delivery.ended < delivery.began:
            if error is not None and error.fatal():
                with self._making:
                    self._cluster.drop()
            missing = delivery.began - delivery.ended
            raise self._cluster.unavailable(error, f"{missing} chunks unanswered" if missing else "")

    def names(self, prefix: str) -> Iterator[str]:
        """See UnitSink.  None: a topic cannot be asked."""
        del prefix
        return iter(())

    def close(self) -> None:
        """See UnitSink."""
        self._cluster.drop()


class _Delivery:
    """How far the chunks of one unit are; counted under the GIL, by whichever thread polls."""

    def __init__(self) -> None:
        self.began = self.ended = 0
        self.error: KafkaError | None = None

    def told(self, error: KafkaError | None, message: Message) -> None:
        del message
        self.error = self.error or error
        self.ended += 1
