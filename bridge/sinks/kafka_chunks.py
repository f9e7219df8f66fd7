"""The sink that is a Kafka topic of chunks: one Kafka record for 64 to 512 KiB of records.

    kafka://host:9092/topic with the option mode = "chunk"

For a topic that only Brim's own reader reads: several times what single records reach, at a fifth of their
bytes, and records stay bit for bit what they were in the ring, checksums included.

    key           EDGE/STREAM/PARTITION, so that a partition of Brim is in order in one of Kafka's
    value         a chunk (bridge/chunks.py): a small drained file, compressed
    timestamp     of its last record, in ms
    brim-source   header, text: EDGE/STREAM/PARTITION/EPOCH
    brim-range    header, text: FIRST LAST, offsets of the chunk

A unit is safe when all of its chunks are.  One that is put again is sent again, at most one resend window
(bridge/resend.py): readers know a chunk by source and range, and keep the first.  A topic cannot be asked for
names, so without its checkpoint a bridge begins with the oldest record again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from bridge.chunks import chunks_of
from bridge.errors import BadName, SinkBlocked, SinkError, SinkUnavailable
from bridge.sinks.kafka_client import (
    FULL,
    OF_A_RECORD,
    SETTLE_S,
    Client,
    Cluster,
    Failure,
    Flight,
    Message,
    cluster_of_url,
)
from bridge.unit import Unit
from persistence.archive.zstd import check_available
from persistence.errors import ArchiveUnavailable

__all__ = ["KafkaChunkSink"]

RANGE_HEADER = b"brim-range"
CHUNK_BYTES = 256 << 10
POLL_S = 0.05  # one thread polls for all; the others look in between whether theirs is done
FULL_S = 0.01
CHUNK_BYTES_LEAST, CHUNK_BYTES_MOST = 4 << 10, 16 << 20


class KafkaChunkSink:
    """Units into a Kafka topic, in chunks of about `chunk_bytes` before compression."""

    keeps_names = False  # a topic keeps both of two equal chunks

    def __init__(self, cluster: Cluster, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.url = cluster.url
        self._cluster = cluster
        self._chunk_bytes = chunk_bytes

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
        defaults = {"compression.type": "none", "linger.ms": 1}
        return cls(cluster_of_url(url, rest, **defaults), int(text))

    def begin(self, edge: str) -> None:
        """See UnitSink.  A topic has no locks: that each edge has one bridge is up to people."""
        del edge
        self._cluster.ask()

    def put(self, unit: Unit) -> None:
        """See UnitSink."""
        with self._cluster.client() as client:
            try:
                self._put(client, unit)
            except SinkUnavailable:
                if client.fatal():
                    self._cluster.drop()
                raise

    def _put(self, client: Client, unit: Unit) -> None:
        footer, flight = unit.footer, client.flight()
        place = f"{footer.edge}/{footer.stream}/{footer.partition}"
        to = client.to(self._cluster.topic_of(footer.stream), f"{place}/{footer.epoch}".encode())
        stamp_ms = footer.last_timestamp_ns // 1_000_000
        deadline = time.monotonic() + SETTLE_S
        for chunk in chunks_of(unit, self._chunk_bytes):
            ends = b"%d %d" % (chunk.first_offset, chunk.last_offset)
            message = Message(place.encode(), chunk.data, stamp_ms, RANGE_HEADER, ends)
            while (code := client.produce(to, flight, message, chunk.first_offset)) == FULL:
                if time.monotonic() > deadline:
                    raise self._cluster.unavailable(Failure.of(code))
                client.poll(FULL_S)
            if code:
                raise self._refused(Failure.of(code))
        while not flight.ended and time.monotonic() < deadline:
            client.poll(POLL_S, flight)
        self._check(client, flight)

    def _check(self, client: Client, flight: Flight) -> None:
        for _, failure in flight.failures():
            raise self._refused(failure)
        if not flight.ended:
            missing = flight.handed_over - int(flight.counts.ended)
            raise self._cluster.unavailable(client.last_error(), f"{missing} chunks unanswered")
        client.settled(flight)

    def _refused(self, failure: Failure) -> SinkError:
        if failure.name in OF_A_RECORD:
            hint = "lower chunk_bytes, or raise message.max.bytes of topic and producer"
            return SinkBlocked(f"{self.url}: {failure.text}", hint=hint)
        return self._cluster.unavailable(failure)

    def names(self, prefix: str) -> Iterator[str]:
        """See UnitSink.  None: a topic cannot be asked."""
        del prefix
        return iter(())

    def close(self) -> None:
        """See UnitSink."""
        self._cluster.drop()
