"""Kafka sink and confluent-kafka in a bare loop, against the mock brokers of librdkafka, on loopback.

The arguments of each produce() are made before: topic, key, value and headers of each record. The client has
the sink's own settings. Each client has sent one record before: until it knows the leaders of a new topic,
half a second passes.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._bridge_sinks import Lane, NotThere
from bridge.format.file_builder import DrainedFile
from bridge.format.file_parser import parse
from bridge.format.record_batch import RecordRun
from bridge.format.sink_batch import SinkBatch
from bridge.sinks.interface import RecordSink, Sink
from bridge.sinks.registry import open_sink
from ringbuf import Batch as Columns
from ringbuf.record import encode

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
    """Addresses of the mock brokers, which run in a process of their own."""
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


def _messages(files: Sequence[DrainedFile], topic: str) -> Iterator[Arguments]:
    """Arguments of produce(), one tuple for each record."""
    from bridge.sinks.kafka_client import SOURCE_HEADER

    for drained_file in files:
        file = parse(b"".join(drained_file.parts))
        footer = file.footer
        source = (SOURCE_HEADER, f"{footer.edge}/{footer.stream}/{footer.partition}/{footer.epoch}".encode())
        for extent in file.extents:
            for it in Columns.of(extent.body, footer.epoch, RecordRun.of(extent.body).first_offset, None):
                stamp = it.timestamp_ns
                record = ("brim-record", b"%d %d %d" % (it.offset, stamp, it.flags & 7))
                yield topic, it.bytes(), it.key, -1, None, None, stamp // 1_000_000, [source, record]


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


def _send_one(sink: Sink) -> None:
    assert isinstance(sink, RecordSink)
    columns = (Columns.of(memoryview(encode(0, b"first", epoch=1, key=b"first")), 1, 0, None),)
    sink.send(SinkBatch("edge-1", "first", 0, 1, 0, 0, 0, columns)).result()  # type: ignore[arg-type]


@contextmanager
def kafka(_: Path) -> Iterator[Lane]:
    """One Kafka record for each record."""
    messages: list[Arguments] = []
    topics = (f"lake-{number}" for number in itertools.count())
    with brokers() as servers:
        from confluent_kafka import Producer

        from bridge.sinks.kafka_client import DEFAULTS

        quiet = {"delivery.report.only.error": True}  # no Python for successful deliveries
        producer = Producer({**DEFAULTS, **quiet, "bootstrap.servers": servers})

        def prepare(files: Sequence[DrainedFile]) -> None:
            messages[:] = _messages(files, "bare")
            _push(producer, messages[:1])

        def open_it() -> Any:
            sink = open_sink(f"kafka://{servers}/{next(topics)}")
            sink.begin("edge-1")
            _send_one(sink)
            return sink

        try:
            yield Lane(lambda: None, open_it, lambda _: _push(producer, messages), prepare)
        finally:
            producer.purge()
            producer.close()


LANES: dict[str, Callable[[Path], Any]] = {"kafka": kafka}
