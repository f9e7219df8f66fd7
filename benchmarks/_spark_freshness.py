"""Freshness: the time from a publish to its committed row, and the part of each step, at RATE records/s.

A broker takes MQTT messages at QoS 0 and drains them to a directory, with the default settings of a bridge.
A stream of the job bronze writes them into a table, in this process. Times are those of files: nothing in the
measured path is changed.

    drain   from the record's own timestamp, which is its arrival, to the drained file
    wait    from the file to the trigger that plans it: Spark's checkpoint has its offsets
    batch   from there to the end of the batch: Spark's checkpoint has its commit, behind that of the table

Figures are medians over all records, behind WARM_S of load that does not count.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks._mqtt_tests import RATES
from benchmarks._mqtt_tests import run as run_load
from benchmarks.bridge import broker
from bridge.format.file_name import FileName
from bridge.spark.jobs import bronze
from bridge.spark.tables import FORMATS, TableFormat

RATE = 10_000
WARM_S, SECONDS = 15.0, 30.0
EVERY_S = 0.1  # between triggers; a batch that takes longer is followed at once
SETTLE_S = 5.0
COLUMNS = ["partition", "offset", "timestamp"]
STEPS = ("drain", "wait", "batch", "all")


def measured(spark: Any, scratch: Path) -> dict[str, float]:
    """Medians in ms by format of the table and step, and p99 of the whole."""
    figures: dict[str, float] = {}
    for form in FORMATS:
        times = _times(spark, Path(tempfile.mkdtemp(dir=scratch)), form)
        medians = {step: float(np.median(column)) for step, column in zip(STEPS, times.T, strict=True)}
        p99 = float(np.percentile(times[:, -1], 99))
        parts = ", ".join(f"{step} {medians[step]:.0f}" for step in STEPS[:-1])
        print(
            f"   {form:8}{medians['all']:6.0f} ms from publish to row (p99 {p99:.0f}), {parts}; "
            f"{len(times)} records",
            flush=True,
        )
        figures |= {f"freshness_{form}_{step}_ms": round(value) for step, value in medians.items()}
        figures[f"freshness_{form}_p99_ms"] = round(p99)
    return figures


def _times(spark: Any, place: Path, form: str) -> Any:
    """A row of ms by step for each record."""
    table = place / "bronze"
    with broker(place, "embedded") as (server, *_):
        lake = place / "embedded" / "lake"
        lake.mkdir(exist_ok=True)
        query, _ = bronze.ingest(spark, str(lake), str(table), form=TableFormat(form), every_s=EVERY_S)
        load = replace(RATES["ingest_q0_50"], rate=RATE)
        run_load(server, load, WARM_S)
        warm_until_us = time.time_ns() // 1000
        run_load(server, load, SECONDS)
        time.sleep(SETTLE_S)
        query.processAllAvailable()
        query.stop()
    rows = [_of_batch(path, table, lake) for path in sorted(table.glob("batch*"))]
    times = np.concatenate([part for part in rows if len(part)])
    return times[times[:, 0] > warm_until_us / 1000][:, 1:]


def _of_batch(directory: Path, table: Path, lake: Path) -> Any:
    """Timestamp and steps of each record of a batch, in ms; empty: it has no commit, or no record."""
    number = int(directory.name[len("batch=") :])
    checkpoint = Path(f"{table}.state/checkpoint")
    ended = checkpoint / "commits" / str(number)
    files = sorted(directory.rglob("*.parquet"))
    if not ended.exists() or not files:
        return np.empty((0, 1 + len(STEPS)))
    planned_ms, ended_ms = _written_ms(checkpoint / "offsets" / str(number)), _written_ms(ended)
    columns = [pq.read_table(file, columns=COLUMNS, partitioning=None) for file in files]
    if any(set(part["partition"].to_pylist()) - {0} for part in columns):  # a file may have no record
        raise SystemExit("the records have more than one partition, so offsets do not name a file")
    offsets = np.concatenate([part["offset"].to_numpy() for part in columns])
    taken_ms = np.concatenate([part["timestamp"].cast("int64").to_numpy() for part in columns]) / 1000
    first, drained = _drained(lake)
    drained_ms = drained[np.searchsorted(first, offsets, side="right") - 1]
    whole = ended_ms - taken_ms
    steps = (drained_ms - taken_ms, planned_ms - drained_ms, np.full(len(taken_ms), ended_ms - planned_ms))
    return np.column_stack([taken_ms, *steps, whole])


def _drained(lake: Path) -> tuple[Any, Any]:
    """First offset of each drained file, and when it was there, in ms; in the order of offsets."""
    files = []
    for path in lake.rglob("*.brim*"):
        name = FileName.parse(str(path.relative_to(lake)))
        if name is not None:
            files.append((name.first_offset, _written_ms(path)))
    first, drained = zip(*sorted(files), strict=True)
    return np.array(first), np.array(drained)


def _written_ms(path: Path) -> float:
    return path.stat().st_mtime_ns / 1e6
