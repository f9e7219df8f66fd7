"""Triggers of a stream: the time from a new file to its committed batch, by the number of files before it.

A landing zone begins with N files of DAYS days that the stream has read (startingOffsets). They are never
opened, so they are empty. Each measured file has RECORDS records. The landing zones take turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from bridge.format.file_builder import build
from bridge.format.file_name import FileName
from bridge.format.record_batch import RecordBatch, RecordRun
from bridge.format.write_intent import WriteIntent
from bridge.sinks.directory import DirectorySink
from ringbuf.record import encode

FILES = (1_000, 10_000, 100_000)
DAYS = 30
ROUNDS, WARM = 15, 5
RECORDS, EDGE, EPOCH = 100, "edge-1", 1_700_000_000
FIRST_DAY = datetime(2026, 1, 1, tzinfo=UTC)


def measured(spark: Any, scratch: Path) -> dict[str, float]:
    """Medians in ms, and the ratio of the largest landing zone to the smallest."""
    lakes = [GrowingLake(spark, scratch, count) for count in FILES]
    times_ms: dict[int, list[float]] = {lake.history: [] for lake in lakes}
    for number in range(WARM + ROUNDS):
        for lake in lakes:
            elapsed_ms = lake.trigger_ms()
            if number >= WARM:
                times_ms[lake.history].append(elapsed_ms)
    for lake in lakes:
        lake.query.stop()
    medians = {count: statistics.median(times) for count, times in times_ms.items()}
    for count, median in medians.items():
        print(f"   {count:7} files: {median:6.0f} ms from a file to its batch", flush=True)
    figures = {f"trigger_{count}_files_ms": round(median) for count, median in medians.items()}
    return {**figures, "trigger_most_over_fewest": round(medians[FILES[-1]] / medians[FILES[0]], 3)}


class GrowingLake:
    """Landing zone with `history` files, and a stream behind them."""

    def __init__(self, spark: Any, scratch: Path, history: int) -> None:
        self.root = Path(tempfile.mkdtemp(dir=scratch))
        self.history = self.number = history
        self._write_history()
        frame = spark.readStream.format("brim").option("startingOffsets", f'{{"{EDGE}": {history}}}')
        writer = frame.load(str(self.root)).writeStream.format("noop")
        self.query = writer.option("checkpointLocation", tempfile.mkdtemp(dir=scratch)).start()
        self.query.processAllAvailable()

    def _write_history(self) -> None:
        for number in range(1, self.history + 1):
            day = FIRST_DAY + timedelta(days=number * DAYS // (self.history + 1))
            first = RECORDS * number
            name = FileName(EDGE, number, "default", 0, EPOCH, first, first + RECORDS - 1, f"{day:%Y-%m-%d}")
            path = self.root / name.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()

    def trigger_ms(self) -> float:
        """Put a file as the bridge does, and wait until its batch is committed."""
        self.number += 1
        begun = time.monotonic()
        sink = DirectorySink(self.root)
        sink.put(_drained_file(self.number))
        sink.close()
        self.query.processAllAvailable()
        rows = self.query.lastProgress["numInputRows"] if self.query.lastProgress else 0
        if rows not in (0, RECORDS):  # 0: the progress of a trigger without a file may be the last
            raise SystemExit(f"a batch had {rows} rows in place of {RECORDS}")
        return (time.monotonic() - begun) * 1000


def _drained_file(number: int) -> Any:
    first = RECORDS * number
    offsets = range(first, first + RECORDS)
    records = b"".join(
        encode(offset, b"21.5", epoch=EPOCH, key=b"plant/1/temp", timestamp_ns=time.time_ns(), flags=0)
        for offset in offsets
    )
    stamp = time.time_ns()
    run = RecordRun(memoryview(records), False)
    batch = RecordBatch(EPOCH, first, offsets[-1], stamp, stamp, (run,))
    intent = WriteIntent(number, stamp, "default", 0, EPOCH, 0, None, first, offsets[-1], (), ())
    return build(EDGE, intent, batch)
