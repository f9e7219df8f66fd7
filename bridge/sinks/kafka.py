"""The sink that is a Kafka cluster, by confluent-kafka: one Kafka record for each record.

confluent-kafka is imported when a sink is opened: pip install 'brim[kafka]'.

    kafka://host:9092,other:9092/topic      "{stream}" in the topic stands for the stream's name

A Kafka record that any consumer can read:

    key              the topic a record was published to: what one device sends stays in order, but for a
                     backlog, beside which goes what comes in meanwhile (live_share = 0: never)
    value            its payload, as it came
    timestamp        when the broker took it, in ms
    brim-source      header, text: EDGE/STREAM/PARTITION/EPOCH
    brim-record      header, text: OFFSET TIMESTAMP_NS FLAGS, flags as in a record: QoS 3, retain 4
    mqtt-properties  header, only where there are any: MQTT 5 properties in wire form

The two brim headers are the identity of a record.  The producer is idempotent and waits for all replicas, so
the cluster sees each record once while the producer lives; after an outage or a crash some come again, and
whoever must not count twice asks whether it has OFFSET of EDGE/STREAM/PARTITION/EPOCH already; that it has a
higher one says nothing.

One thread produces and flushes: all that waits, up to IN_FLIGHT_BYTES, then it is waited for together.  The
client calls Python for failures alone, not for each delivery: what is neither in its queue after flush() nor
reported as failed has arrived.  A client that failed is thrown away with all that it still has, so that
nothing old comes after what is sent again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from bridge.errors import BadName, SinkBlocked, SinkError, SinkUnavailable
from bridge.records import Records, Rejected, unchanged
from ringbuf import FLAG_PROPERTIES

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

__all__ = ["SOURCE_HEADER", "Cluster", "Headers", "KafkaSink", "cluster_of_url"]

log = logging.getLogger(__name__)

Headers: TypeAlias = list[tuple[str, str | bytes | None]]
Told: TypeAlias = Callable[["KafkaError | None", "Message"], None]

SOURCE_HEADER, RECORD_HEADER, PROPERTIES_HEADER = "brim-source", "brim-record", "mqtt-properties"

DELIVERY_TIMEOUT_MS = 25_000  # the client gives a record up
FLUSH_TIMEOUT_S = 28.0
ASK_TIMEOUT_S = 5.0
IN_FLIGHT_BYTES = 16 << 20  # of records between two waits: a quarter of a second of what a client can do
POLL_EVERY = 1_000  # records: how often the client is let tell what has happened
IDLE_POLL_S = 1.0  # tokens of OAuth and the like are renewed in poll()

DEFAULTS: Mapping[str, Any] = {
    "client.id": "brim",
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "reconnect.backoff.ms": 500,
    "compression.type": "zstd",
    "partitioner": "murmur2_random",  # the same partition for a key as Java's clients choose
    "message.timeout.ms": DELIVERY_TIMEOUT_MS,
    "delivery.report.only.error": True,
}
FIXED = ("enable.idempotence", "acks", "message.timeout.ms", "delivery.report.only.error")

REMEDIES = {
    "_TRANSPORT": "check the network and the names of the brokers",
    "_RESOLVE": "check the names of the brokers, and DNS",
    "_ALL_BROKERS_DOWN": "check the network and the names of the brokers",
    "_TIMED_OUT": "check the network and the names of the brokers",
    "_MSG_TIMED_OUT": "check the cluster: fewer replicas than min.insync.replicas may be in sync",
    "_AUTHENTICATION": "check sasl.username and sasl.password",
    "_SSL": "check security.protocol and ssl.ca.location",
    "_UNKNOWN_TOPIC": "make the topic, or let the cluster make it",
    "UNKNOWN_TOPIC_OR_PART": "make the topic, or let the cluster make it",
    "TOPIC_AUTHORIZATION_FAILED": "allow the bridge to write and describe this topic",
    "CLUSTER_AUTHORIZATION_FAILED": "allow the bridge IdempotentWrite on the cluster",
    "NOT_ENOUGH_REPLICAS": "bring replicas back, or lower min.insync.replicas",
}
# Of one record: the same record would fail again, others would not.
OF_A_RECORD = {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG"}


class _Quiet:
    """For the client, which says each failed connection anew: the bridge says what matters, once."""

    @staticmethod
    def log(level: int, text: str, *details: object) -> None:
        log.debug("client, level %d: %s", level, text % details if details else text)


class Cluster:
    """A Kafka cluster, and a producer to it while there is one.  Belongs to one thread at a time."""

    def __init__(self, servers: str, topic: str, config: Mapping[str, Any]) -> None:
        from confluent_kafka import KafkaException, Producer

        self.topic = topic
        self.url = f"kafka://{servers}/{topic}"
        self.failed: list[tuple[KafkaError, Message]] = []  # since take_failed()
        self._producer_type: type[Producer] = Producer
        self.exception = KafkaException
        self._last_error: KafkaError | None = None
        self._config = {**config, "error_cb": self._note}
        try:
            Producer(self._config, logger=_Quiet()).close()  # without servers: what is wrong is said here
        except (KafkaException, TypeError, ValueError) as error:
            raise BadName(f"{self.url}: {_text(error)}", hint="see librdkafka's configuration") from error
        self._config["bootstrap.servers"] = servers
        self._producer: Producer | None = None

    def producer(self) -> Producer:
        """The one there is, or a new one."""
        if self._producer is None:
            self._last_error = None
            self._producer = self._producer_type(self._config, logger=_Quiet())
        return self._producer

    def ask(self) -> None:
        """Raises SinkUnavailable unless the cluster answers, and has the topic or would make it."""
        topic = None if "{stream}" in self.topic else self.topic
        try:
            found = self.producer().list_topics(topic, timeout=ASK_TIMEOUT_S) if topic else None
            if found is None:
                self.producer().list_topics(timeout=ASK_TIMEOUT_S)
            elif (error := found.topics[topic].error) is not None and not error.retriable():
                raise self.unavailable(error)
        except self.exception as error:
            self.drop()
            raise self.unavailable(self._last_error or error.args[0]) from error

    def on_delivery(self, error: KafkaError | None, message: Message) -> None:
        """For produce(): called for failures alone."""
        if error is not None:
            self.failed.append((error, message))

    def take_failed(self) -> list[tuple[KafkaError, Message]]:
        """What has failed since it was last asked."""
        failed, self.failed = self.failed, []
        return failed

    def produce(
        self, topic: str, value: bytes, key: bytes, timestamp_ms: int, headers: Headers, told: Told
    ) -> None:
        """One record, waiting while the client's queue is full.  Raises SinkUnavailable, SinkBlocked."""
        producer, deadline = self.producer(), time.monotonic() + FLUSH_TIMEOUT_S
        while True:
            try:
                producer.produce(topic, value, key, -1, told, None, timestamp_ms, headers)
            except self.exception as error:
                raise self.refusal(error.args[0]) from error
            except BufferError:
                if time.monotonic() > deadline:
                    raise SinkUnavailable(f"{self.url}: its client's queue stays full") from None
                producer.poll(0.05)
            else:
                return

    def flush(self) -> None:
        """All that was produced has arrived, or is in `failed`.  Raises SinkUnavailable."""
        left = self.producer().flush(FLUSH_TIMEOUT_S)
        if left:
            raise self.unavailable(self._last_error, f"{left} records unanswered after {FLUSH_TIMEOUT_S:g} s")

    def refusal(self, error: KafkaError) -> SinkError:
        """Why the client has not taken a record."""
        if error.name() in OF_A_RECORD:
            hint = "raise message.max.bytes of topic and producer"
            return SinkBlocked(f"{self.url}: {error.str()}", hint=hint)
        return self.unavailable(error)

    def unavailable(self, error: KafkaError | None, text: str = "") -> SinkUnavailable:
        """What is wrong, in words."""
        name = error.name() if error is not None else ""
        said = "; ".join(part for part in (text, error.str() if error is not None else "") if part)
        return SinkUnavailable(f"{self.url}: {said}", hint=REMEDIES.get(name, ""))

    def drop(self) -> None:
        """Throw the producer away, with all that it has not sent yet."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            with suppress(self.exception):
                producer.flush(1.0)  # tells of what was purged
            producer.close()
        self.failed.clear()

    def _note(self, error: KafkaError) -> None:
        log.debug("kafka: %s", error)
        if self._last_error is None or error.name() not in {"_TRANSPORT", "_ALL_BROKERS_DOWN"}:
            self._last_error = error  # a wrong password is worth more than "all brokers down"


def cluster_of_url(url: str, options: Mapping[str, str], **defaults: Any) -> Cluster:
    """For kafka://host:port,host:port/topic; options are librdkafka's.  Raises BadName, SinkUnavailable."""
    parts = urlsplit(url)
    topic = unquote(parts.path.strip("/"))
    if not parts.netloc or "@" in parts.netloc or not topic or "/" in topic:
        raise BadName(
            f"{url!r} names no brokers or no topic", hint="write kafka://host:9092,other:9092/topic"
        )
    for name in FIXED:
        if name in options:
            raise BadName(f"{url}: option {name} is the bridge's own business", hint="remove it")
    try:
        return Cluster(parts.netloc, topic, {**DEFAULTS, **defaults, **options})
    except ImportError as error:
        hint = "pip install 'brim[kafka]'"
        raise SinkUnavailable(f"{url}: confluent-kafka is not installed", hint=hint) from error


class KafkaSink:
    """Records into a Kafka topic, one for one."""

    def __init__(self, cluster: Cluster) -> None:
        self.url = cluster.url
        self._cluster = cluster
        self._waiting: queue.SimpleQueue[tuple[Records, Future[Sequence[Rejected]]] | None]
        self._waiting = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._client = threading.Lock()  # begin() asks only while the thread has nothing to send

    @classmethod
    def of_url(cls, url: str, options: Mapping[str, str]) -> KafkaSink:
        """See cluster_of_url()."""
        return cls(cluster_of_url(url, options))

    def begin(self, edge: str) -> None:
        """See RecordSink."""
        del edge
        with self._client:
            self._cluster.ask()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="brim-kafka", daemon=True)
            self._thread.start()

    def send(self, records: Records) -> Future[Sequence[Rejected]]:
        """See RecordSink."""
        if self._thread is None:
            raise SinkUnavailable(f"{self.url}: not begun")
        future: Future[Sequence[Rejected]] = Future()
        self._waiting.put((records, future))
        return future

    def close(self) -> None:
        """See RecordSink."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._waiting.put(None)
            thread.join()
        self._cluster.drop()

    def _run(self) -> None:
        """Takes what waits, produces it, waits for it together."""
        over = False
        while not over:
            taken, over = self._take()
            if not taken:
                with self._client:
                    self._cluster.producer().poll(0)
                continue
            with self._client:
                self._settle(taken)

    def _take(self) -> tuple[list[tuple[Records, Future[Sequence[Rejected]]]], bool]:
        """What waits, up to IN_FLIGHT_BYTES; whether the sink is being closed."""
        taken: list[tuple[Records, Future[Sequence[Rejected]]]] = []
        length = 0
        try:
            while length < IN_FLIGHT_BYTES:
                item = self._waiting.get(timeout=IDLE_POLL_S) if not taken else self._waiting.get_nowait()
                if item is None:
                    return taken, True
                taken.append(item)
                length += item[0].length
        except queue.Empty:
            pass
        return taken, False

    def _settle(self, taken: Sequence[tuple[Records, Future[Sequence[Rejected]]]]) -> None:
        try:
            rejected = self._deliver([records for records, _ in taken])
        except Exception as error:  # noqa: BLE001  whatever it was, the drain must be told
            self._cluster.drop()
            failure = error if isinstance(error, SinkError) else SinkBlocked(f"{self.url}: {error!r}")
            for _, future in taken:
                future.set_exception(failure)
            return
        for (_, future), bad in zip(taken, rejected, strict=True):
            future.set_result(bad)

    def _deliver(self, sent: Sequence[Records]) -> list[list[Rejected]]:
        """For each of them, in the same order, what will never be taken.  Raises SinkUnavailable."""
        rejected: list[list[Rejected]] = [[] for _ in sent]
        self._cluster.take_failed()
        for records, bad in zip(sent, rejected, strict=True):
            bad.extend(self._produce(records))
        self._cluster.flush()
        for error, message in self._cluster.take_failed():
            if error.name() not in OF_A_RECORD:
                raise self._cluster.unavailable(error)
            source, offset = identity_of(message)
            for records, bad in zip(sent, rejected, strict=True):
                if source == source_of(records) and records.first_offset <= offset <= records.last_offset:
                    bad.append(Rejected(offset, error.str()))
        return rejected

    def _produce(self, records: Records) -> Iterator[Rejected]:
        """Hand them all to the client; those that are too large for it."""
        cluster, topic_of = self._cluster, records.topic_of
        producer, on_delivery = cluster.producer(), cluster.on_delivery
        produce, topic = producer.produce, cluster.topic.replace("{stream}", records.stream)
        source = (SOURCE_HEADER, source_of(records))
        plain = topic_of is unchanged
        for number, (message, offset, stamp, flags) in enumerate(_numbered(records)):
            headers: Headers = [source, (RECORD_HEADER, b"%d %d %d" % (offset, stamp, flags & 7))]
            if flags & FLAG_PROPERTIES:
                headers.append((PROPERTIES_HEADER, message.properties))
            key = message.key if plain else topic_of(message.key)
            value, stamp_ms = message.bytes(), stamp // 1_000_000
            try:
                produce(topic, value, key, -1, on_delivery, None, stamp_ms, headers)
            except BufferError:
                cluster.produce(topic, value, key, stamp_ms, headers, on_delivery)
            except cluster.exception as error:
                if error.args[0].name() not in OF_A_RECORD:
                    raise cluster.unavailable(error.args[0]) from error
                yield Rejected(offset, error.args[0].str())
            if number % POLL_EVERY == 0:
                producer.poll(0)


def _numbered(records: Records) -> Iterator[tuple[Any, int, int, int]]:
    """Each with its offset, timestamp and flags; by columns, where C has made them."""
    batch: Any
    for batch in records.batches:
        if hasattr(batch, "offsets"):  # ringbuf.Batch
            yield from zip(batch, batch.offsets, batch.timestamps_ns, batch.flags, strict=True)
        else:
            yield from ((it, it.offset, it.timestamp_ns, it.flags) for it in batch)


def source_of(records: Records) -> bytes:
    """The value of brim-source."""
    return f"{records.edge}/{records.stream}/{records.partition}/{records.epoch}".encode()


def identity_of(message: Message) -> tuple[bytes, int]:
    """Source and offset of a record, from its headers."""
    found: dict[str, Any] = dict(message.headers() or {})
    return found[SOURCE_HEADER], int(found[RECORD_HEADER].split()[0])


def _text(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.str() if hasattr(first, "str") else str(first)
