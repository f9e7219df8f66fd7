"""Kafka sink, by confluent-kafka: one Kafka record for each record.

confluent-kafka, the extra `kafka`, is imported when a sink is opened.

    kafka://host:9092,other:9092/topic      "{stream}" in the topic stands for the stream's name

A Kafka record that any consumer can read:

    key              the topic of the record: so the records of one device stay in order.  Records of a
                     backlog and live records are sent in parallel (live_share = 0: never)
    value            its payload, unchanged
    timestamp        time at which the broker took it, in ms
    brim-source      header, text: EDGE/STREAM/PARTITION/EPOCH
    brim-record      header, text: OFFSET TIMESTAMP_NS FLAGS, flags as in a record: QoS 3, retain 4
    mqtt-properties  header, absent without properties: MQTT 5 properties in wire form

The two brim headers are the identity of a record. The producer is idempotent and waits for all replicas, so
the cluster has each record once while the producer lives. After an outage or a crash, records up to the
resend limit are sent again (bridge/drain/resend_limit.py). A reader that must not count twice checks whether
it has OFFSET of EDGE/STREAM/PARTITION/EPOCH already. A higher offset is no proof.

A record that did not arrive in time although no other was in flight gets twice the time, up to 300 s: it may
be large, and the line slow. All records have that time until one of that size, alone in its batch, arrives in
the usual time.

One thread passes records to the client, up to IN_FLIGHT_BYTES at once, and takes the acknowledgements. Both
happen per batch; the work per record is in C. Records of a plug-in, or with another topic at the sink, are
passed one by one.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from bridge.errors import SinkUnavailable
from bridge.format.sink_batch import Rejected, SinkBatch, unchanged
from bridge.sinks.kafka_client import (
    FULL,
    PATIENCE_MAX,
    Cluster,
    Failure,
    KafkaClient,
    KafkaMessage,
    TimedOut,
    cluster_of_url,
)
from ringbuf import FLAG_QOS, FLAG_RETAIN, Batch

IN_FLIGHT_BYTES = 32 << 20  # of records: half a second at the speed of a client
# Codes for one record: that record would fail again, others would not.
OF_A_RECORD = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG"}
FULL_S = 0.05  # wait for room in the client's queue
IDLE_POLL_S = 1.0  # OAuth tokens and similar are renewed in poll()


class _KafkaBatch:
    """Records in flight: the number passed to the client, and their results."""

    def __init__(self, records: SinkBatch, future: Future[Sequence[Rejected]]) -> None:
        self.records, self.future = records, future
        self.rejected: list[Rejected] = []
        self.over = False  # the client has all records
        self._batches = list(records.batches)
        self._at = self._next = 0  # index of the batch, and of its record
        self.begun_s = time.monotonic()
        self._group: Any = None
        self._marks: Any = None

    def hand_over(self, client: KafkaClient, cluster: Cluster) -> bool:
        """Pass records to the client while it takes them. True if it has all. Raises SinkError."""
        records = self.records
        if self._group is None:
            self._group = client.new_group()
        to = client.to(cluster.topic_of(records.stream), source_of(records))
        while self._at < len(self._batches):
            batch = self._batches[self._at]
            code = self._some(client, to, batch)
            if code == FULL:
                return False
            if code:
                failure = Failure.of(code)
                if failure.name not in OF_A_RECORD:
                    raise cluster.unavailable(failure)
                self.rejected.append(Rejected(batch[self._next].offset, failure.text))
                self._next += 1
            if self._next >= len(batch):
                self._at, self._next, self._marks = self._at + 1, 0, None
        self.over = True
        return True

    def _some(self, client: KafkaClient, to: Any, batch: Any) -> int:
        """Pass records of one batch, from the present index on. Returns 0, or the code of the refusal."""
        if isinstance(batch, Batch) and self.records.topic_of is unchanged:
            if self._marks is None:
                self._marks = self._group.marks(batch.offsets)
            self._next, code = client.produce_records(to, self._group, self._marks, batch, self._next)
            return code
        while self._next < len(batch):
            record = batch[self._next]
            identity = b"%d %d %d" % (
                record.offset,
                record.timestamp_ns,
                record.flags & (FLAG_QOS | FLAG_RETAIN),
            )
            key, stamp_ms = self.records.topic_of(record.key), record.timestamp_ns // 1_000_000
            message = KafkaMessage(key, record.bytes(), stamp_ms, identity, record.properties)
            if code := client.produce(to, self._group, message, record.offset):
                return code
            self._next += 1
        return 0

    def is_acknowledged(self, client: KafkaClient, cluster: Cluster) -> bool:
        """True if all were acknowledged. Raises SinkUnavailable: one has not arrived."""
        if self._group is None:
            return False
        for offset, failure in self._group.failures():
            if failure.name not in OF_A_RECORD:
                raise cluster.unavailable(failure)
            if self.over and self._group.ended:
                self.rejected.append(Rejected(offset, failure.text))
        if not (self.over and self._group.ended):
            return False
        client.forget(self._group)
        return True


class KafkaSink:
    """Records into a Kafka topic, one for one."""

    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.url
        self._cluster = cluster
        self._waiting: queue.SimpleQueue[_KafkaBatch | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_url(cls, url: str, options: Mapping[str, str]) -> KafkaSink:
        """See cluster_of_url()."""
        return cls(cluster_of_url(url, options))

    def begin(self, edge: str) -> None:
        """See RecordSink."""
        del edge
        self._cluster.check()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="brim-kafka", daemon=True)
            self._thread.start()

    def send(self, records: SinkBatch) -> Future[Sequence[Rejected]]:
        """See RecordSink."""
        if self._thread is None:
            raise SinkUnavailable(f"{self.url}: the client is not open")
        future: Future[Sequence[Rejected]] = Future()
        self._waiting.put(_KafkaBatch(records, future))
        self._cluster.wake()
        return future

    def close(self) -> None:
        """See RecordSink."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            self._cluster.wake()
            thread.join()
        self._cluster.drop()

    def _run(self) -> None:
        """Pass records that wait, and take acknowledgements."""
        under_way: deque[_KafkaBatch] = deque()
        over = False
        while under_way or not over:
            over = self._take(under_way) or over
            if over and self._cluster.patience > 1:  # close() has a limit of half a minute
                self._fail(under_way, SinkUnavailable(f"{self.url}: closed"))
            try:
                with self._cluster.client() as client:
                    if under_way:
                        self._turn(client, under_way)
                    else:
                        client.poll(0)
            except Exception as error:  # noqa: BLE001  the drain needs every error
                self._fail(under_way, error)

    def _take(self, under_way: deque[_KafkaBatch]) -> bool:
        """Move waiting records into flight, up to IN_FLIGHT_BYTES. True: the sink is being closed."""
        length = sum(batch.records.length for batch in under_way)
        try:
            while length < IN_FLIGHT_BYTES:
                item = self._waiting.get_nowait() if under_way else self._waiting.get(timeout=IDLE_POLL_S)
                if item is None:
                    return True
                under_way.append(item)
                length += item.records.length
        except queue.Empty:
            pass
        return False

    def _turn(self, client: KafkaClient, under_way: deque[_KafkaBatch]) -> None:
        """One round. Raises SinkError: all records in flight have failed."""
        full = not all(batch.over or batch.hand_over(client, self._cluster) for batch in under_way)
        client.poll(FULL_S if full else IDLE_POLL_S)
        while under_way and under_way[0].is_acknowledged(client, self._cluster):
            done = under_way.popleft()
            if done.records.count == 1:
                self._cluster.arrived(done.records.length, time.monotonic() - done.begun_s)
            done.future.set_result(done.rejected)
        if not under_way:
            self._cluster.renew()

    def _fail(self, under_way: deque[_KafkaBatch], error: Exception) -> None:
        self._cluster.drop()
        if isinstance(error, TimedOut) and sum(batch.records.count for batch in under_way) == 1:
            error = self._late(under_way[0].records)
        while under_way:
            under_way.popleft().future.set_exception(error)

    def _late(self, records: SinkBatch) -> SinkUnavailable:
        """The error for a record that was sent alone and is late; the next client waits longer."""
        cluster, record = self._cluster, next(iter(records))
        late_s = cluster.timeout_ms / 1000
        cluster.patience, cluster.late_bytes = min(2 * cluster.patience, PATIENCE_MAX), records.length
        return SinkUnavailable(
            f"{self.url}: record {record.offset} of {source_of(records).decode()}, with "
            f"{len(record.bytes())} bytes, did not arrive in {late_s:g} s although it was sent alone",
            hint=f"it gets {cluster.timeout_ms / 1000:g} s now; if that is not enough, use a faster line, "
            "leave its topic out with topics_not, or check min.insync.replicas of the cluster",
        )


def source_of(records: SinkBatch) -> bytes:
    """The value of brim-source."""
    return f"{records.edge}/{records.stream}/{records.partition}/{records.epoch}".encode()
