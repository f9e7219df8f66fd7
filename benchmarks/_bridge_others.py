"""MQTT sink and Parquet sink, each compared with a library in a bare loop.

mqtt      Mosquitto.  The loop is paho-mqtt's, with messages made before: QoS 1, 1000 in flight parquet   a
directory.  The loop is pyarrow's writer, from tables made before, and syncs its files
"""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._bridge_sinks import Lane, NotThere, at_once, write
from benchmarks._mqtt_brokers import mosquitto
from benchmarks._mqtt_process import Ports, free_port
from bridge.format.file_builder import DrainedFile
from bridge.format.file_parser import parse
from bridge.format.record_batch import RecordRun
from bridge.sinks.registry import open_sink
from ringbuf import Batch

MQTT_MIB = 3
IN_FLIGHT = 1000
Published = tuple[str, bytes, Any]


def _runs(file: DrainedFile) -> DrainedFile:
    """The file with its records, which are in its parts."""
    extents = parse(b"".join(file.parts)).extents
    return replace(file, runs=tuple(RecordRun(it.body, it.unchecked) for it in extents))


# ---- MQTT ----


def _published(files: Sequence[DrainedFile]) -> Iterator[Published]:
    from paho.mqtt.packettypes import PacketTypes
    from paho.mqtt.properties import Properties

    for file in map(_runs, files):
        footer = file.footer
        source = f"{footer.edge}/{footer.stream}/{footer.partition}/{footer.epoch}"
        for run in file.runs:
            for it in Batch.of(run.records, footer.epoch, run.first_offset, None):
                properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
                record = f"{it.offset} {it.timestamp_ns} {it.flags & 7}"
                properties.UserProperty = [("brim-source", source), ("brim-record", record)]
                yield it.key.decode(), it.bytes(), properties


def _publish_all(port: int, prepared: Sequence[Published]) -> None:
    from paho.mqtt.client import Client, MQTTv5
    from paho.mqtt.enums import CallbackAPIVersion

    left, done = itertools.count(1), threading.Event()

    def arrived(*_: object) -> None:
        if next(left) == len(prepared):
            done.set()

    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTv5)
    client.on_publish = arrived
    client.max_inflight_messages_set(IN_FLIGHT)
    client.connect("127.0.0.1", port)
    client.loop_start()
    for topic, payload, properties in prepared:
        client.publish(topic, payload, 1, properties=properties)
    done.wait(60)
    client.disconnect()
    client.loop_stop()


@contextmanager
def mqtt(place: Path) -> Iterator[Lane]:
    """Lane to another broker."""
    if shutil.which("mosquitto") is None:
        raise NotThere("mosquitto is not installed")
    prepared: list[Published] = []
    with mosquitto(place, Ports(free_port())) as broker:
        yield Lane(
            lambda: None,
            lambda: open_sink(f"mqtt://127.0.0.1:{broker.port}"),
            lambda _: _publish_all(broker.port, prepared),
            lambda files: prepared.extend(_published(files)),
            mib_most=MQTT_MIB,
            warm_files=1,
        )


# ---- Parquet ----


@contextmanager
def parquet(place: Path) -> Iterator[Lane]:
    """Lane to a directory."""
    try:
        import pyarrow as pa
        from pyarrow import parquet as writing
    except ImportError as error:
        raise NotThere("pyarrow is not installed") from error
    from bridge.sinks.parquet import SETTINGS, parquet_name, table_of

    root, prepared = place / "lake", list[tuple[str, Any]]()

    def push(one: tuple[str, Any]) -> None:
        name, table = one
        out = pa.BufferOutputStream()
        with writing.ParquetWriter(out, table.schema, **SETTINGS) as writer:
            writer.write_table(table)
        write(root / name, (memoryview(out.getvalue()),))

    yield Lane(
        lambda: shutil.rmtree(root, ignore_errors=True),
        lambda: open_sink(root.as_uri(), {"format": "parquet"}),
        lambda _: at_once(push, prepared),
        lambda files: prepared.extend((parquet_name(it.name), table_of(_runs(it))) for it in files),
    )


LANES = {"mqtt": mqtt, "parquet": parquet}
