"""Part of librdkafka that the Kafka sink uses: a cluster, a producer, and groups of messages.

confluent-kafka brings the library, and is imported when a sink is opened: the extra `kafka`. Its own
producer takes some microseconds of Python per message, and as much again per acknowledgement. Here records
are passed in C, a batch at a time, and their acknowledgements are counted there (ringbuf/c/kafka).

Never decides what is sent, or sent again. A client that failed is dropped with all its messages, so that no
old message arrives after those that are sent again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import cffi

from bridge.errors import BadName, SinkUnavailable
from ringbuf import Batch
from ringbuf.extras import install_extra
from ringbuf.native import ffi, lib

SOURCE_HEADER = "brim-source"  # as ringbuf/c/kafka/produce.c writes it

DELIVERY_TIMEOUT_MS = 25_000  # after this time the client gives a message up
PATIENCE_MAX = 12  # times as long for a record that is alone: 300 s is the limit of socket.timeout.ms
SOCKET_TIMEOUT_MS = 60_000  # the default of librdkafka
CHECK_TIMEOUT_S = 5.0
FULL = -184  # the client's queue is full: RD_KAFKA_RESP_ERR__QUEUE_FULL

DEFAULTS: Mapping[str, Any] = {
    "client.id": "brim",
    "enable.idempotence": True,
    "acks": "all",
    "linger.ms": 5,
    "reconnect.backoff.ms": 500,
    "compression.type": "zstd",
    "partitioner": "murmur2_random",  # the same partition for a key as clients in Java choose
    "message.timeout.ms": DELIVERY_TIMEOUT_MS,
}
# Options that must not be set: what the bridge promises depends on them.
FIXED = ("enable.idempotence", "acks", "message.timeout.ms", "delivery.report.only.error")

REMEDIES = {
    "_TRANSPORT": "check the network and the names of the brokers",
    "_RESOLVE": "check the names of the brokers, and DNS",
    "_ALL_BROKERS_DOWN": "check the network and the names of the brokers",
    "_TIMED_OUT": "check the network and the names of the brokers",
    "_MSG_TIMED_OUT": "check the network, which may be too slow, and the cluster: fewer replicas than "
    "min.insync.replicas may be in sync",
    "_AUTHENTICATION": "check sasl.username and sasl.password",
    "_SSL": "check security.protocol and ssl.ca.location",
    "_UNKNOWN_TOPIC": "make the topic, or let the cluster make it",
    "UNKNOWN_TOPIC_OR_PART": "make the topic, or let the cluster make it",
    "TOPIC_AUTHORIZATION_FAILED": "allow the bridge to write and describe this topic",
    "CLUSTER_AUTHORIZATION_FAILED": "allow the bridge IdempotentWrite on the cluster",
    "NOT_ENOUGH_REPLICAS": "bring replicas back, or lower min.insync.replicas",
}

# Of librdkafka.so.1, whose ABI is public and only grows.
LIBRARY = """
void *rd_kafka_conf_new(void);
int rd_kafka_conf_set(void *, const char *name, const char *value, char *text, size_t room);
void rd_kafka_conf_set_events(void *, int events);
void rd_kafka_conf_set_log_cb(void *, void *callback);
void rd_kafka_conf_destroy(void *);
void *rd_kafka_new(int type, void *conf, char *text, size_t room);
void rd_kafka_destroy(void *);
int rd_kafka_purge(void *, int flags);
void *rd_kafka_queue_get_main(void *);
void rd_kafka_queue_yield(void *);
void rd_kafka_queue_destroy(void *);
void *rd_kafka_topic_new(void *, const char *name, void *conf);
void rd_kafka_topic_destroy(void *);
const char *rd_kafka_err2name(int);
const char *rd_kafka_err2str(int);
typedef struct { char *name; int partition_count; void *partitions; int error; } topic_metadata;
typedef struct { int broker_count; void *brokers; int topic_count; topic_metadata *topics; } cluster_metadata;
int rd_kafka_metadata(void *, int all, void *topic, const cluster_metadata **, int timeout_ms);
void rd_kafka_metadata_destroy(const cluster_metadata *);
int rd_kafka_producev(void *, ...);
void *rd_kafka_queue_poll(void *, int timeout_ms);
int rd_kafka_event_type(void *);
void *rd_kafka_event_message_next(void *);
int rd_kafka_event_error(void *);
const char *rd_kafka_event_error_string(void *);
void rd_kafka_event_destroy(void *);
"""
PRODUCER, PURGE_ALL, EVENTS, TEXT_BYTES = 0, 3, 1 | 8, 512


class _Library:
    """The library that confluent-kafka has loaded. Raises ImportError."""

    def __init__(self) -> None:
        from confluent_kafka import cimpl

        self.ffi = cffi.FFI()
        self.ffi.cdef(LIBRARY)
        try:
            self.calls: Any = self.ffi.dlopen(cimpl.__file__)  # finds the library that it depends on
            self.producev = self.address("rd_kafka_producev")
        except (OSError, AttributeError) as error:
            raise ImportError(f"this confluent-kafka hides its librdkafka: {error}") from error

    def address(self, name: str) -> Any:
        """Address of a function, for C."""
        return self.pointer(getattr(self.calls, name))

    def pointer(self, array: Any) -> Any:
        """The same address, for ringbuf's C."""
        return ffi.cast("void *", int(self.ffi.cast("uintptr_t", array)))

    def text(self, pointer: Any) -> str:
        """A C string."""
        encoded: bytes = self.ffi.string(pointer) if pointer else b""
        return encoded.decode(errors="replace")


_library = functools.cache(_Library)


class Failure(NamedTuple):
    """Error of librdkafka."""

    name: str
    text: str

    @classmethod
    def of(cls, code: int) -> Failure:
        """The error for one of its codes."""
        library = _library()
        return cls(
            library.text(library.calls.rd_kafka_err2name(code)),
            library.text(library.calls.rd_kafka_err2str(code)),
        )


class KafkaMessage(NamedTuple):
    """One message that is built in Python."""

    key: bytes
    value: bytes
    timestamp_ms: int
    identity: bytes  # the value of brim-record
    properties: bytes = b""


class ProduceGroup:
    """Group of messages that are waited for together."""

    def __init__(self) -> None:
        self.counts = ffi.new("rb_kafka_flight *")
        self.handed_over = 0
        self._marks: list[tuple[Any, Sequence[int]]] = []

    def marks(self, numbers: Sequence[int]) -> Any:
        """Memory for as many messages as there are numbers; failures() identifies messages by it."""
        marks = ffi.new("rb_kafka_mark[]", len(numbers))
        self._marks.append((marks, numbers))
        return marks

    @property
    def ended(self) -> bool:
        """True if all messages of the group have arrived or failed."""
        return int(self.counts.ended) >= self.handed_over

    def failures(self) -> Iterator[tuple[int, Failure]]:
        """Numbers of the messages that have not arrived, with the error."""
        if self.counts.failed:
            for marks, numbers in self._marks:
                for number, mark in zip(numbers, marks, strict=True):
                    if mark.error:
                        yield number, Failure.of(mark.error)


class KafkaClient:
    """A producer. Any thread may call, until close(). Raises ValueError: a setting is wrong."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._library = _library()
        self._calls = self._library.calls
        self._handle = self._made(config)
        self._queue = self._calls.rd_kafka_queue_get_main(self._handle)
        self._events = ffi.new("rb_kafka_events *")
        self._events.queue = self._library.pointer(self._queue)
        for field, name in (("poll", "queue_poll"), ("type", "event_type"), ("message", "event_message_next"),
                            ("error", "event_error"), ("text", "event_error_string"),
                            ("destroy", "event_destroy")):  # fmt: skip
            setattr(self._events, field, self._library.address(f"rd_kafka_{name}"))
        self._error = ffi.new("rb_kafka_error *")
        self._polling = threading.Lock()
        self._naming = threading.Lock()
        self._topics: dict[str, Any] = {}
        self._groups: set[ProduceGroup] = set()  # the library uses their memory while they are in flight
        self.users = 0  # count of the Cluster

    def _made(self, config: Mapping[str, Any]) -> Any:
        calls, text = self._calls, self._library.ffi.new(f"char[{TEXT_BYTES}]")
        conf = calls.rd_kafka_conf_new()
        calls.rd_kafka_conf_set_events(conf, EVENTS)
        calls.rd_kafka_conf_set_log_cb(conf, self._library.ffi.NULL)  # the bridge reports errors itself, once
        for name, value in config.items():
            setting = str(value).lower() if isinstance(value, bool) else str(value)
            if calls.rd_kafka_conf_set(conf, name.encode(), setting.encode(), text, TEXT_BYTES) != 0:
                calls.rd_kafka_conf_destroy(conf)
                raise ValueError(self._library.text(text))
        producer = calls.rd_kafka_new(PRODUCER, conf, text, TEXT_BYTES)
        if not producer:
            calls.rd_kafka_conf_destroy(conf)
            raise ValueError(self._library.text(text))
        return producer

    def new_group(self) -> ProduceGroup:
        """A new group."""
        group = ProduceGroup()
        self._groups.add(group)
        return group

    def forget(self, group: ProduceGroup) -> None:
        """Forget a group that has ended."""
        self._groups.discard(group)

    def to(self, topic: str, source: bytes) -> Any:
        """Topic to produce to; `source` becomes a header. Keep the object while it is used."""
        to = ffi.new("rb_kafka_to *")
        to.producev = self._library.producev
        to.client, to.topic = self._library.pointer(self._handle), self._library.pointer(self._topic(topic))
        memory = ffi.from_buffer("char[]", source)
        to.source, to.source_length = memory, len(source)
        return to, memory

    def produce(self, to: Any, group: ProduceGroup, source: KafkaMessage, number: int) -> int:
        """Pass one message to the client.

        Returns 0, or the reason of the refusal: FULL, or another code of librdkafka.
        """
        message = ffi.new("rb_kafka_message *")
        memories = []  # while it is copied
        for field in ("key", "value", "identity", "properties"):
            data: bytes = getattr(source, field)
            memories.append(ffi.from_buffer("uint8_t[]", data))
            setattr(message, field, memories[-1])
            setattr(message, f"{field}_length", len(data))
        message.timestamp_ms = source.timestamp_ms
        code = int(lib.rb_kafka_produce(to[0], group.counts, group.marks((number,)), message))
        group.handed_over += code == 0
        return code

    def produce_records(
        self, to: Any, group: ProduceGroup, marks: Any, batch: Batch, begin: int
    ) -> tuple[int, int]:
        """Pass the records of a batch to the client, from the one at `begin` on, each with its mark.

        Returns the index of the first record that was not passed, and 0 or the reason, as produce().
        """
        memory, error = batch.memory, ffi.new("int *")
        positions = ffi.from_buffer("uint64_t[]", batch.positions)
        data = ffi.from_buffer("uint8_t[]", memory)
        end = lib.rb_kafka_produce_records(
            to[0], group.counts, marks, data, memory.nbytes, positions, begin, len(batch), error
        )
        group.handed_over += end - begin
        return end, error[0]

    def poll(self, timeout_s: float) -> None:
        """Take the present acknowledgements. Wait for the first up to `timeout_s`, or until wake()."""
        with self._polling:
            lib.rb_kafka_poll(self._events, int(timeout_s * 1000), self._error)

    def wake(self) -> None:
        """End a poll(), or the next one."""
        self._calls.rd_kafka_queue_yield(self._queue)

    def last_error(self) -> Failure | None:
        """Its last error that concerns no message: the reason for a missing connection, if known."""
        code = int(self._error.error)
        return (
            Failure(Failure.of(code).name, ffi.string(self._error.text).decode(errors="replace"))
            if code
            else None
        )

    def check(self, topic: str | None) -> Failure | None:
        """Check that the cluster answers, and has the topic or creates it. Returns the error, or None."""
        library = self._library
        metadata = library.ffi.new("const cluster_metadata **")
        handle = self._topic(topic) if topic else library.ffi.NULL
        timeout_ms = int(CHECK_TIMEOUT_S * 1000)
        code = self._calls.rd_kafka_metadata(self._handle, not topic, handle, metadata, timeout_ms)
        if code:
            self.poll(0)
            return self.last_error() or Failure.of(code)
        topics = [metadata[0].topics[number] for number in range(metadata[0].topic_count)]
        codes = [entry.error for entry in topics if library.text(entry.name) == topic]
        self._calls.rd_kafka_metadata_destroy(metadata[0])
        return Failure.of(codes[0]) if any(codes) else None

    def close(self) -> None:
        """Close the producer with all messages that it has not sent yet."""
        with self._polling:
            self._calls.rd_kafka_purge(self._handle, PURGE_ALL)
            for topic in self._topics.values():
                self._calls.rd_kafka_topic_destroy(topic)
            self._calls.rd_kafka_queue_destroy(self._queue)
            self._calls.rd_kafka_destroy(self._handle)
        self._groups.clear()

    def _topic(self, name: str) -> Any:
        with self._naming:
            if name not in self._topics:
                topic_handle = self._calls.rd_kafka_topic_new(
                    self._handle, name.encode(), self._library.ffi.NULL
                )
                self._topics[name] = topic_handle
            return self._topics[name]


class TimedOut(SinkUnavailable):
    """A message was not acknowledged in time."""


class Cluster:
    """A Kafka cluster, and its client while there is one. Any thread may call.

    `patience`: factor of the time that a client has for a message; `late_bytes`: of the message for which it
    grew.
    """

    def __init__(self, servers: str, topic: str, config: Mapping[str, Any]) -> None:
        self.topic = topic
        self.url = f"kafka://{servers}/{topic}"
        try:
            KafkaClient(config).close()  # without servers: reports wrong settings here
        except ValueError as error:
            raise BadName(f"{self.url}: {error}", hint="see librdkafka's configuration") from error
        self._config = {**config, "bootstrap.servers": servers}
        self.patience, self.late_bytes = 1, 0
        self._lock = threading.Lock()
        self._client: KafkaClient | None = None
        self._given_ms = 0  # time that this client has for a message

    @contextmanager
    def client(self) -> Iterator[KafkaClient]:
        """The present client, or a new one. It stays until its last user is done."""
        with self._lock:
            if self._client is None:
                self._client = KafkaClient({**self._config, **self._timeouts()})
                self._given_ms = self.timeout_ms
            client = self._client
            client.users += 1
        try:
            yield client
        finally:
            with self._lock:
                client.users -= 1
                over = client.users == 0 and client is not self._client
            if over:
                client.close()

    @property
    def timeout_ms(self) -> int:
        """Time that a new client has for a message."""
        return int(self._config["message.timeout.ms"]) * self.patience

    def _timeouts(self) -> dict[str, int]:
        if self.patience == 1:
            return {}
        request_ms = max(self.timeout_ms, int(self._config.get("socket.timeout.ms", SOCKET_TIMEOUT_MS)))
        return {"message.timeout.ms": self.timeout_ms, "socket.timeout.ms": request_ms}

    def arrived(self, length: int, took_s: float) -> None:
        """Record that a message has arrived. If one of the late one's length does so in the usual time, the
        line is not slow, it was broken: the next break must not take minutes.
        """
        if length >= self.late_bytes and took_s * 1000 < int(self._config["message.timeout.ms"]):
            self.patience = 1

    def renew(self) -> None:
        """Drop a client that has more time for a message than a new one. No message may be in flight."""
        if self._given_ms > self.timeout_ms:
            self.drop()

    def drop(self) -> None:
        """Drop the client, with all messages that it has not sent yet, as soon as it has no user."""
        with self._lock:
            client, self._client = self._client, None
            unused = client is not None and client.users == 0
        if client is not None and unused:
            client.close()

    def wake(self) -> None:
        """See Client."""
        with self._lock:
            if self._client is not None:
                self._client.wake()

    def topic_of(self, stream: str) -> str:
        """Topic for the records of this stream."""
        return self.topic.replace("{stream}", stream)

    def check(self) -> None:
        """Raise SinkUnavailable unless the cluster answers, and has the topic or would create it."""
        with self.client() as client:
            failure = client.check(None if "{stream}" in self.topic else self.topic)
        if failure is not None:
            self.drop()
            raise self.unavailable(failure)

    def unavailable(self, failure: Failure) -> SinkUnavailable:
        """Error with the reason as a sentence."""
        kind = TimedOut if failure.name == "_MSG_TIMED_OUT" else SinkUnavailable
        return kind(f"{self.url}: {failure.text}", hint=REMEDIES.get(failure.name, ""))


def cluster_of_url(url: str, options: Mapping[str, str]) -> Cluster:
    """Cluster of kafka://host:port,.../topic; options of librdkafka. Raises BadName, SinkUnavailable."""
    parts = urlsplit(url)
    topic = unquote(parts.path.strip("/"))
    if not parts.netloc or "@" in parts.netloc or not topic or "/" in topic:
        raise BadName(
            f"{url!r} names no brokers or no topic", hint="write kafka://host:9092,other:9092/topic"
        )
    if "mode" in options:
        raise BadName(
            f"{url}: unknown option mode (value {options['mode']!r})",
            hint="remove it: a Kafka sink sends one Kafka record for each record",
        )
    for name in FIXED:
        if name in options:
            raise BadName(f"{url}: option {name} is the bridge's own business", hint="remove it")
    try:
        return Cluster(parts.netloc, topic, {**DEFAULTS, **options})
    except ImportError as error:
        hint = install_extra("kafka")
        raise SinkUnavailable(f"{url}: confluent-kafka is not installed: {error}", hint=hint) from error
