"""Drained files in Spark, and Spark's own Parquet, JSON and binaryFile readers: rates and processor time.

    ./dev bench spark [--rounds 5] [--warm 3] [--records 4000000] [--only rows,freshness] [--keep DIR]

All read the same records, in one session of two tasks at a time on this machine, and take turns in each
round; a ratio compares figures of one round.  Before the rounds that count, each is run until Java has
compiled it (--warm rounds), and Python's workers are up.  Nothing is written (Spark's noop sink).
Processor time is that of the JVM and of its Python workers together: on a busy machine it is the steadier
figure.  Prints a table of medians and, as its last line, one JSON object.

    brim_over_parquet, _json, _binaryfile     rows a second, of whole rows: eleven columns, payloads as they
                                              are.  _cpu behind it: rows a processor second.  The peers:
                                              Parquet (zstd) that Spark wrote, JSON lines with a schema, and
                                              binaryFile with mapInArrow around the same compiled decoder
    typed_over_json, .._cpu                   msgpack telemetry into typed columns in the reader, and a
                                              grouped aggregate; over JSON lines with a schema of the same
    typed_over_from_json, .._cpu              over Parquet and from_json
    stream_over_parquet, .._cpu               one stream, available now, over one of the Parquet files
    native_QUERY, lane_QUERY, merged_QUERY    time of Spark's Parquet over that of brim.lake(), on native
                                              files, on Parquet files of a bridge, and on these after the
                                              bridge has merged them: count; two_columns,
                                              one_topic and time_range (a fifth), into the noop sink; each
                                              from the path to the result, with its listing of files
    columns_over_all                          two columns by .schema() over all of them
    trigger_N_files_ms                        from a new file to its committed batch, in a stream that has
                                              read N files of DAYS days before; and trigger_most_over_fewest
    freshness_FORMAT_STEP_ms, .._p99_ms       from a publish to its row at 10,000 records/s, in tables
                                              of each format, by step (_spark_freshness.py)
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import _spark_freshness, _spark_lake, _spark_triggers
from bridge.arrow.decode import decode_file
from bridge.arrow.schema import DDL, TYPES, Constants, batch_of
from bridge.format import file_parser
from bridge.format.file_name import SUFFIX
from bridge.spark.lake import lake
from bridge.spark.session import session

PARTS = ("rows", "lakes", "typed", "stream", "trigger", "freshness")
WITHOUT_LAKE = {"trigger": _spark_triggers.measured, "freshness": _spark_freshness.measured}
QUERIES = ("count", "two_columns", "one_topic", "time_range")
TOPIC = "plant/line3/device0021/data"
MASTER = "local[2]"
PAYLOADS = """
[[payload]]
topic = "plant/+/+/data"
format = "msgpack"
[payload.fields]
ts = "long"
temp = "double"
vib = "double"
rpm = "long"
ok = "boolean"
site = "string"
"""
TICKS_S = os.sysconf("SC_CLK_TCK")

Run = Callable[[], Any]


class Machine:
    """Processor time of all processes below this one: the JVM, and the Python workers that it starts."""

    @staticmethod
    def cpu_s() -> float:
        """Seconds so far. Ended processes are in the time of the process that waited for them."""
        parents, times = {}, {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended meanwhile
                continue
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15]))
        ours = set(_below(parents, os.getpid()))
        return sum(times[pid] for pid in ours) / TICKS_S


def _below(parents: dict[int, int], root: int) -> Iterator[int]:
    for pid, parent in parents.items():
        if parent == root:
            yield pid
            yield from _below(parents, pid)


class Reads:
    """Measurements: each is a query that reads all records once."""

    def __init__(self, spark: Any, root: Path) -> None:
        self.spark, self.root = spark, root
        self.payloads = root / "payloads.toml"
        self.payloads.write_text(PAYLOADS)
        self.scratch = Path(tempfile.mkdtemp(prefix="spark-bench-"))

    def rows(self) -> dict[str, Run]:
        """Whole rows."""
        two = self.spark.read.format("brim").schema("partition int, offset long")
        return {
            "brim": lambda: _noop(self.spark.read.format("brim").load(str(self.root / "json"))),
            "parquet": lambda: _noop(self.spark.read.parquet(str(self.root / "parquet"))),
            "json": lambda: _noop(self.spark.read.schema(_text(DDL)).json(str(self.root / "lines"))),
            "binaryfile": lambda: _noop(self._binary_files()),
            "columns": lambda: _noop(two.load(str(self.root / "json"))),
        }

    def lakes(self) -> dict[str, Run]:
        """Narrow queries on brim.lake(), and on Spark's own Parquet."""
        own = functools.partial(self.spark.read.parquet, str(self.root / "parquet"))
        first, last = own().selectExpr("min(timestamp)", "max(timestamp)").first()
        fifth = (last - first) / 5
        since, until = (time.astimezone(UTC) for time in (first + 2 * fifth, first + 3 * fifth))
        in_time = f"timestamp >= '{since}' AND timestamp < '{until}'"
        runs: dict[str, Run] = {
            "own_count": lambda: own().count(),
            "own_two_columns": lambda: _noop(own().select("topic", "timestamp")),
            "own_one_topic": lambda: _noop(own().where(f"topic = '{TOPIC}'")),
            "own_time_range": lambda: _noop(own().where(in_time)),
        }
        for name, place in (("native", "json"), ("lane", "lane"), ("merged", "merged")):
            runs |= self._narrow(
                name, functools.partial(lake, self.spark, str(self.root / place)), since, until
            )
        return runs

    @staticmethod
    def _narrow(name: str, read: Callable[..., Any], since: datetime, until: datetime) -> dict[str, Run]:
        return {
            f"{name}_count": lambda: read(columns="partition").count(),
            f"{name}_two_columns": lambda: _noop(read(columns="topic, timestamp")),
            f"{name}_one_topic": lambda: _noop(read(topic=TOPIC)),
            f"{name}_time_range": lambda: _noop(read(since=since, until=until)),
        }

    def typed(self) -> dict[str, Run]:
        """Fields of payloads, grouped."""
        fields = _spark_lake.FIELDS
        return {
            "typed": lambda: _noop(_grouped(self._typed())),
            "json_lines": lambda: _noop(
                _grouped(self._lines(f"topic string, timestamp timestamp, {fields}"))
            ),
            "from_json": lambda: _noop(_grouped(self._from_json(fields))),
        }

    def stream(self) -> dict[str, Run]:
        """Streams, from an empty checkpoint."""
        streaming = self.spark.readStream
        parquet = self.spark.read.parquet(str(self.root / "parquet")).schema
        return {
            "brim_stream": lambda: self._drain(streaming.format("brim").load(str(self.root / "json"))),
            "parquet_stream": lambda: self._drain(
                streaming.schema(parquet).parquet(str(self.root / "parquet"))
            ),
        }

    def _typed(self) -> Any:
        reader = self.spark.read.format("brim").option("payloads", str(self.payloads))
        return reader.schema("topic string, temp double, vib double, rpm long").load(
            str(self.root / "packed")
        )

    def _lines(self, schema: str) -> Any:
        return self.spark.read.schema(schema).json(str(self.root / "typed"))

    def _from_json(self, fields: str) -> Any:
        from pyspark.sql import functions as f

        rows = self.spark.read.parquet(str(self.root / "parquet"))
        said = f.from_json(f.col("payload").cast("string"), fields).alias("said")
        return rows.select("topic", said).select("topic", "said.*")

    def _binary_files(self) -> Any:
        reader = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true")
        files = reader.option("pathGlobFilter", f"*{SUFFIX}").load(str(self.root / "json"))
        return files.select("content").mapInArrow(_decoded, DDL)

    def _drain(self, frame: Any) -> None:
        checkpoint = tempfile.mkdtemp(dir=self.scratch)
        writer = frame.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()


def _decoded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The code of a user who has the decoder and no data source."""
    schema = pa.schema([(name, TYPES[name]) for name in TYPES if not name.startswith("_")])
    for batch in batches:
        for content in batch.column(0):
            file = file_parser.parse(content.as_buffer())
            footer = file.footer
            constants = Constants(footer.edge, footer.stream, footer.partition, footer.epoch)
            for part in decode_file(file, schema.names):
                yield batch_of(part, constants, schema)


def _text(ddl: str) -> str:
    """The columns with the payload as in JSON lines."""
    return ddl.replace("payload binary", "payload string")


def _noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _grouped(frame: Any) -> Any:
    from pyspark.sql import functions as f

    return frame.groupBy("topic").agg(f.avg("temp"), f.max("vib"), f.sum("rpm"), f.count("*"))


Figures = dict[str, list[float]]


def measured(runs: dict[str, Run], warm: int, rounds: int, records: int, megabytes: float) -> Figures:
    """Run every measurement once per round, after `warm` uncounted rounds; rates, and processor seconds."""
    found: Figures = {}
    for number in range(warm + rounds):
        for name, run in runs.items():
            cpu, begun = Machine.cpu_s(), time.monotonic()
            run()
            wall, spent = time.monotonic() - begun, Machine.cpu_s() - cpu
            print(f"   {name}: {wall:.2f} s, {spent:.2f} CPU s{' (warm)' * (number < warm)}", flush=True)
            if number < warm:
                continue
            for what, value in (
                ("rows_s", records / wall),
                ("mb_s", megabytes / wall),
                ("cpu_s", spent),
                ("rows_cpu_s", records / spent),
            ):
                found.setdefault(f"{name}_{what}", []).append(value)
    return found


RATIOS = {
    "brim_over_parquet": ("brim", "parquet"),
    "brim_over_json": ("brim", "json"),
    "brim_over_binaryfile": ("brim", "binaryfile"),
    "columns_over_all": ("columns", "brim"),
    **{
        f"{kind}_{query}": (f"{kind}_{query}", f"own_{query}")
        for kind in ("native", "lane", "merged")
        for query in QUERIES
    },
    "typed_over_json": ("typed", "json_lines"),
    "typed_over_from_json": ("typed", "from_json"),
    "stream_over_parquet": ("brim_stream", "parquet_stream"),
}


def ratios(found: Figures) -> dict[str, float]:
    """Medians of the ratios within a round, by wall and by processor time."""
    medians = {}
    for name, (ours, theirs) in RATIOS.items():
        for suffix, what in (("", "rows_s"), ("_cpu", "rows_cpu_s")):
            pairs = zip(found.get(f"{ours}_{what}", ()), found.get(f"{theirs}_{what}", ()), strict=False)
            values = [one / other for one, other in pairs]
            if values:
                medians[name + suffix] = round(statistics.median(values), 3)
    return medians


def table(found: Figures) -> None:
    """Medians."""
    names = list(dict.fromkeys(name.removesuffix("_rows_s") for name in found if name.endswith("_rows_s")))
    print(f"   {'':16}{'Mrow/s':>10}{'MB/s':>10}{'CPU s':>10}{'Mrow/CPU s':>14}")
    for name in names:
        rows, mb, cpu, rows_cpu = (
            statistics.median(found[f"{name}_{what}"]) for what in ("rows_s", "mb_s", "cpu_s", "rows_cpu_s")
        )
        print(f"   {name:16}{rows / 1e6:10.2f}{mb:10.0f}{cpu:10.2f}{rows_cpu / 1e6:14.2f}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", type=int, default=3, help="rounds before them that do not count")
    parser.add_argument("--records", type=int, default=4_000_000)
    parser.add_argument("--only", default=",".join(PARTS), help="of " + ", ".join(PARTS))
    parser.add_argument("--keep", type=Path, help="where the data is made, and kept for the next run")
    arguments = parser.parse_args()
    names = [name for name in arguments.only.split(",") if name]
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(PARTS)}")
    root = arguments.keep.resolve() if arguments.keep else Path(tempfile.mkdtemp(prefix="spark-bench-"))
    spark = session("brim bench", master=MASTER)
    try:
        print(f"   making {arguments.records} records ...", flush=True)
        if set(names) - set(WITHOUT_LAKE):
            _spark_lake.make(root, arguments.records, spark)
        megabytes = sum(path.stat().st_size for path in (root / "json").rglob("*.brim")) / 1e6
        reads = Reads(spark, root)
        found: Figures = {}
        streams: dict[str, float] = {}
        for name in names:
            if name in WITHOUT_LAKE:
                streams |= WITHOUT_LAKE[name](spark, reads.scratch)
                continue
            found |= measured(
                getattr(reads, name)(), arguments.warm, arguments.rounds, arguments.records, megabytes
            )
        table(found)
        shutil.rmtree(reads.scratch)
    finally:
        spark.stop()
        if not arguments.keep:
            shutil.rmtree(root, ignore_errors=True)
    print(
        json.dumps(
            {
                **ratios(found),
                **streams,
                **{
                    key: round(statistics.median(it))
                    for key, it in found.items()
                    if key.endswith(("_rows_s", "_mb_s"))
                },
            }
        )
    )


if __name__ == "__main__":
    main()
