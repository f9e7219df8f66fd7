"""Data of the Spark benchmark: telemetry that went through a ring and a drain, and copies for peers.

Owns the records, and ensures that all forms hold the same ones. A folder that was kept is used again if it
holds the same number of records, so that a second run begins at once.

    json/, packed/      drained files of 8 MiB: the same telemetry as JSON, and as msgpack
    lane/               the records of json/ in Parquet files of a bridge
    merged/             lane/ after the bridge has merged its files
    parquet/            the rows of json/, by Spark, zstd
    lines/              the same, as JSON lines, the payload a string
    typed/              the fields of the payloads as JSON lines, with topic and time
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgpack

from bridge.drain.checkpoint import Checkpoint
from bridge.drain.drain import Drain
from bridge.drain.settings import BridgeSettings
from bridge.sinks.registry import open_file_sink
from edge.config.schema import Bridge
from edge.server.bridge_settings import copied_settings
from ringbuf import Ring
from tests.support.mergeable_lakes import LOOKS_AGAIN_S, ShiftedClock, merger, stores

PARTITIONS = 4
DEVICES = 1000
RING_BYTES = 64 << 20
FILE_RECORDS = 50_000  # of 160 bytes: a file has the 8 MiB at which a bridge closes it
FIELDS = "ts bigint, temp double, vib double, rpm bigint, ok boolean, site string"

Telemetry = dict[str, Any]


def telemetry(records: int) -> Iterator[Telemetry]:
    """Telemetry in six fields; no two payloads are equal."""
    chosen = random.Random(7)
    for number in range(records):
        yield {
            "ts": 1_700_000_000_000 + number,
            "temp": round(chosen.gauss(21, 4), 2),
            "vib": round(chosen.expovariate(90), 5),
            "rpm": chosen.randrange(900, 3000),
            "ok": number % 97 != 0,
            "site": chosen.choice(("north", "south", "quay")),
        }


def make(root: Path, records: int, spark: Any) -> None:
    """Make all forms of `records` records below `root`."""
    stamp, content = root / "records", f"{records} by {FILE_RECORDS}, with a Parquet lane, also merged"
    if stamp.is_file() and stamp.read_text() == content:
        return
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    packers: dict[str, Callable[[Telemetry], bytes]] = {
        "json": lambda content: json.dumps(content).encode(),
        "packed": msgpack.packb,
    }
    for name, pack in packers.items():
        drained(root / name, map(pack, telemetry(records)))
    drained(root / "lane", map(packers["json"], telemetry(records)), {"format": "parquet"})
    shutil.copytree(root / "lane", root / "merged")
    merge(root / "merged")
    _copies(root, spark)
    stamp.write_text(content)


def drained(lake: Path, payloads: Iterator[bytes], options: dict[str, str] | None = None) -> None:
    """Write a record of each payload, through rings and a drain, into `lake`."""
    work = lake.with_name(f"{lake.name}-work")
    (work / "rings").mkdir(parents=True)
    topics = [f"plant/line{number % 9}/device{number:04d}/data" for number in range(DEVICES)]
    settings = BridgeSettings(
        **copied_settings(Bridge(name="lake", to=lake.as_uri(), linger_ms=0)),
        edge_id="edge-1",
        runtime_dir=work / "rings",
        state_dir=work / "state",
        options={},
        spool_bytes={},
    )
    rings = [
        Ring.create(work / "rings" / f"press-{number}", capacity_bytes=RING_BYTES, epoch=1_700_000_000)
        for number in range(PARTITIONS)
    ]
    sink = open_file_sink(lake.as_uri(), options)
    checkpoint = Checkpoint.open(settings.checkpoint_path, settings.edge_id, sink.url)
    drain = Drain(settings, sink, checkpoint, None)
    writers = [ring.writer() for ring in rings]
    try:
        while batch := list(itertools.islice(payloads, FILE_RECORDS * PARTITIONS)):
            for number, payload in enumerate(batch):
                writers[number % PARTITIONS].publish(payload, topics[number * 7 % DEVICES])
            while drain.step() <= 0 or not drain.drained():
                pass
    finally:
        drain.close()
        checkpoint.close()
        sink.close()
        for ring in rings:
            ring.close()
        shutil.rmtree(work)


def merge(lake: Path) -> None:
    """Merge the files below `lake`, as a bridge does days later."""
    store = stores(lake)
    days_later = merger(lake, store, drained_to=sys.maxsize, clock=ShiftedClock(3, step_s=LOOKS_AGAIN_S))
    for _ in range(3):  # to staged files, to their final names, and without the staged names
        days_later.run_pass()
    store.close()


def _copies(root: Path, spark: Any) -> None:
    """The forms that Spark reads by itself."""
    from pyspark.sql import functions as f

    rows = spark.read.format("brim").load(str(root / "json"))
    rows.write.option("compression", "zstd").parquet(str(root / "parquet"))
    text = rows.withColumn("payload", f.col("payload").cast("string"))
    text.write.json(str(root / "lines"))
    fields = f.from_json(f.col("payload").cast("string"), FIELDS).alias("said")
    typed = rows.select("topic", "timestamp", fields).select("topic", "timestamp", "said.*")
    typed.write.json(str(root / "typed"))
