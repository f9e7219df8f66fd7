"""Kafka beside confluent-kafka in a bare loop: the mock brokers that are built into librdkafka, on loopback.

What the loop produces is made before: topic, key, value and headers of each record; or records as they lie in
memory, as much as a chunk at once.  The client has the sink's own settings, and compresses both, by zstd.
Either client has sent one record before: until it knows the leaders of a new topic, that takes half a second.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._bridge_sinks import Lane, NotThere
from bridge.drained import parse
from bridge.records import Records
from bridge.sink import RecordSink, Sink, open_sink
from bridge.unit import Batch, Intent, Run, Unit, build
from ringbuf import Batch as Columns
from ringbuf.record import encode

CHUNK_BYTES = 256 << 10
BROKERS = """
import sys
from confluent_kafka import Producer
owner = Producer({"test.mock.num.brokers": 1, "log_level": 0})
print(",".join(f"{it.host}:{it.port}" for it in owner.list_topics(timeout=30).brokers.values()), flush=True)
sys.stdin.read()
"""

Arguments = tuple[Any, ...]


@contextmanager
def brokers() -> Iterator[str]:
    """Their addresses; in a process of their own, as brokers are."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise NotThere("confluent-kafka is not installed") from error
    with subprocess.Popen(
        [sys.executable, "-c", BROKERS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


def _messages(units: Sequence[Unit], topic: str) -> Iterator[Arguments]:
    """As produce() takes them, one for each record."""
    from bridge.sinks.kafka import RECORD_HEADER
    from bridge.sinks.kafka_client import SOURCE_HEADER

    for unit in units:
        file = parse(b"".join(unit.parts))
        footer = file.footer
        source = (SOURCE_HEADER, f"{footer.edge}/{footer.stream}/{footer.partition}/{footer.epoch}".encode())
        for extent in file.extents:
            for it in Columns.of(extent.body, footer.epoch, Run.of(extent.body).first_offset, None):
                stamp = it.timestamp_ns
                record = (RECORD_HEADER.decode(), b"%d %d %d" % (it.offset, stamp, it.flags & 7))
                yield topic, it.bytes(), it.key, -1, None, None, stamp // 1_000_000, [source, record]


def _chunks(units: Sequence[Unit], topic: str) -> Iterator[Arguments]:
    for unit in units:
        whole = b"".join(unit.parts)
        for at in range(0, len(whole), CHUNK_BYTES):
            yield topic, whole[at : at + CHUNK_BYTES], b"edge-1/all/0"


def _push(producer: Any, messages: Sequence[Arguments]) -> None:
    for number, message in enumerate(messages):
        while True:
            try:
                producer.produce(*message)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()


def _one_record() -> tuple[Intent, Batch]:
    record = memoryview(encode(0, b"first", epoch=1, key=b"first"))
    intent = Intent(1, time.time_ns(), "first", 0, 1, 0, None, 0, 0, (), ())
    return intent, Batch(1, 0, 0, 0, 0, (Run.of(record),))


def _send(sink: Sink, one: tuple[Intent, Batch]) -> None:
    intent, batch = one
    if isinstance(sink, RecordSink):
        columns = (Columns.of(batch.runs[0].records, 1, 0, None),)
        sink.send(Records("edge-1", "first", 0, 1, 0, 0, 0, columns)).result()  # type: ignore[arg-type]
    else:
        sink.put(build("edge-1", intent, batch))


@contextmanager
def kafka(_: Path, mode: str = "message") -> Iterator[Lane]:
    """One Kafka record for each, or chunks."""
    made: list[Arguments] = []
    topics = (f"lake-{number}" for number in itertools.count())
    with brokers() as servers:
        from confluent_kafka import Producer

        from bridge.sinks.kafka_client import DEFAULTS

        level = {} if mode == "message" else {"compression.level": 1}
        quiet = {"delivery.report.only.error": True}  # no Python for what arrives
        producer = Producer({**DEFAULTS, **quiet, **level, "bootstrap.servers": servers})

        def prepare(units: Sequence[Unit]) -> None:
            made[:] = (_messages if mode == "message" else _chunks)(units, "bare")
            _push(producer, made[:1])

        def open_it() -> Any:
            options = {"mode": mode} | ({"chunk_bytes": str(CHUNK_BYTES)} if mode == "chunk" else {})
            sink = open_sink(f"kafka://{servers}/{next(topics)}", options)
            sink.begin("edge-1")
            _send(sink, _one_record())
            return sink

        try:
            yield Lane(lambda: None, open_it, lambda _: _push(producer, made), prepare)
        finally:
            producer.purge()
            producer.close()


def kafka_chunk(place: Path) -> Any:
    """See kafka()."""
    return kafka(place, "chunk")


LANES: dict[str, Callable[[Path], Any]] = {"kafka": kafka, "kafka_chunk": kafka_chunk}
