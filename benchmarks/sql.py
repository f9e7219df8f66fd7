"""SQL on the log and on archives compared with DuckDB on plain Parquet, and with reading lines of JSON.

    python -m benchmarks.sql [--records 10000000] [--rounds 3] [--directory DIR] [--only log,archive,lines]

Telemetry of 1,000 devices, JSON of 70 bytes, in a log of one ring; then the same log with each sealed segment
archived; and the same rows and columns as one Parquet file that DuckDB writes with its defaults. In each
round all take turns at each query, with the same SQL, and a ratio compares medians. Prints a table and, as
its last line, one JSON object.

    one_topic          count and mean of a field, for one device
    by_topic           the same for each device
    by_minute          95th percentile of a field for each minute
    last_value         the last payload of each device
    log_over_duckdb, archive_over_duckdb   time of DuckDB over that of Brim, the median of the four queries;
                       wanted: 0.5 and 0.9. Opening the log and checking the archives is included
    ..._QUERY          the same of one query
    ..._cpu            the same of processor time, on which other work of the machine has less influence
    lines_ratio        time of `brim replay` with a program that sums the lines of JSON, over that of by_topic
                       on the log; on 100,000 records, as time for each record; wanted: 50
    ingest_with_query  MQTT messages a second while by_topic repeats in another process, over those without;
                       wanted: 0.97. The query has the lowest priority; on two processors it competes with
                       the load generator, too

The log is in the page cache, and sealed segments have their footers, which a broker writes within minutes.
Ratios are of one run and one machine; other work on it delays all of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import duckdb

from benchmarks._log_own import broker, memory
from benchmarks._mqtt_tests import RATES, rate
from edge.sql.records import sql
from persistence import Log, LoggedRing, LogThread, OsFiles
from persistence.archive import archive_segment
from persistence.segment.format import segment_name
from ringbuf import Ring

PARTS = ("log", "archive", "lines", "ingest")
DEVICES = 1000
RING_BYTES = 64 << 20
LINES = 100_000
INGEST, INGEST_S = "ingest_q1_window100", 10.0
VALUE = "TRY_CAST(payload_text->>'$.temp' AS DOUBLE)"
QUERIES = {
    "one_topic": f"SELECT count(*), avg({VALUE}) FROM records WHERE topic = 'plant/1/press/0500/telemetry'",
    "by_topic": f"SELECT topic, count(*), avg({VALUE}) FROM records GROUP BY topic",
    "by_minute": f"SELECT date_trunc('minute', timestamp), quantile_cont({VALUE}, 0.95) FROM records "
    "GROUP BY 1",
    "last_value": "SELECT topic, arg_max(payload, timestamp_ns) FROM records GROUP BY topic",
}

Times = dict[str, list[tuple[float, float]]]  # by query: seconds, and seconds of processors


def write_log(directory: Path, records: int) -> None:
    """A log of telemetry, written as a broker does, with the footers of sealed segments."""
    random, topics = Random(1), [b"plant/1/press/%04d/telemetry" % device for device in range(DEVICES)]
    with (
        memory() as rings,
        Ring.create(rings / "press-0", capacity_bytes=RING_BYTES, epoch=1) as ring,
        Log(directory, retain_bytes=0) as log,
    ):
        log.recover()
        thread = LogThread(log, [LoggedRing(ring, "interval", 100, 1 << 20)])
        thread.start()
        publish = ring.writer().publish
        for number in range(records):
            device = number * 7919 % DEVICES
            values = device, number, 20 + random.random() * 60, random.random()
            payload = b'{"device":"press-%04d","seq":%d,"temp":%.2f,"vib":%.4f,"ok":true}' % values
            while publish(payload, topics[device]) is None:
                time.sleep(0.001)
        thread.stop()
        log.run_maintenance()


def archived(log: Path, directory: Path) -> Path:
    """A copy of the log whose sealed segments are archived."""
    shutil.copytree(log, directory)
    files = OsFiles()
    bases = sorted(int(path.stem) for path in directory.glob("*.log"))
    for base, following in itertools.pairwise(bases):
        archive_segment(files, str(directory), base, following - base)
        (directory / segment_name(base)).unlink()
    return directory


def on_brim(log: Path) -> Callable[[str], object]:
    """Runs a query on a log, as a program that begins with it."""
    return lambda query: list(sql(query, log=log, runtime_dir=log / "no-rings"))


def on_parquet(file: Path) -> Callable[[str], object]:
    """Runs a query on a Parquet file by DuckDB only."""

    def run(query: str) -> object:
        with duckdb.connect() as connection:
            connection.execute(f"CREATE VIEW records AS SELECT * FROM '{file}'")
            return connection.execute(query).fetchall()

    return run


def measured(engines: dict[str, Callable[[str], object]], rounds: int) -> dict[str, Times]:
    """Seconds of each engine for each query."""
    times: dict[str, Times] = {name: {query: [] for query in QUERIES} for name in engines}
    for _ in range(rounds):
        for name, query in QUERIES.items():
            for engine, run in engines.items():
                started, cpu = time.perf_counter(), time.process_time()
                run(query)
                taken = time.perf_counter() - started, time.process_time() - cpu
                times[engine][name].append(taken)
    return times


def ratios(times: dict[str, Times]) -> dict[str, float]:
    """Time of DuckDB over that of each other engine; and the table."""
    figures = {}
    medians = {engine: {query: _medians(its[query]) for query in QUERIES} for engine, its in times.items()}
    for engine in times.keys() - {"duckdb"}:
        for kind, suffix in enumerate(("", "_cpu")):
            each = {query: medians["duckdb"][query][kind] / medians[engine][query][kind] for query in QUERIES}
            figures[f"{engine}_over_duckdb{suffix}"] = statistics.median(each.values())
            figures |= {f"{engine}_over_duckdb_{query}{suffix}": ratio for query, ratio in each.items()}
    for query in QUERIES:
        row = (
            f"{engine} {its[query][0]:7.3f} s (cpu {its[query][1]:6.3f})" for engine, its in medians.items()
        )
        print(f"{query:12} {'  '.join(row)}", flush=True)
    return figures


def _medians(taken: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(it[0] for it in taken), statistics.median(it[1] for it in taken)


def lines_over_sql(log: Path, records: int, rounds: int) -> dict[str, float]:
    """Time of a program that sums the lines of `brim replay`, over that of SQL, for each record."""
    program = (
        "import json, sys, collections\n"
        "sums = collections.defaultdict(float)\n"
        "for line in sys.stdin:\n"
        "    record = json.loads(line)\n"
        "    sums[record['topic']] += json.loads(record['payload'])['temp']\n"
    )
    replay = [sys.executable, "-m", "edge", "replay", "--log", str(log), "-C", str(LINES)]
    lines, queries = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        with subprocess.Popen(replay, stdout=subprocess.PIPE) as source:
            subprocess.run([sys.executable, "-c", program], stdin=source.stdout, check=True)
        lines.append((time.perf_counter() - started) / min(LINES, records))
        started = time.perf_counter()
        on_brim(log)(QUERIES["by_topic"])
        queries.append((time.perf_counter() - started) / records)
    return {"lines_ratio": statistics.median(lines) / statistics.median(queries)}


def ingest_with_query(directory: Path, log: Path, rounds: int) -> dict[str, float]:
    """MQTT messages a second with a query that repeats, over those without."""
    command = [sys.executable, "-m", "edge", "sql", "--log", str(log), "--runtime-dir", str(log / "no-rings"),
               "-o", "/dev/null", "--format", "csv", QUERIES["by_topic"]]  # fmt: skip
    loop = f"while :; do {shlex.join(command)}; done"
    pairs = []
    with broker(directory, "interval") as one:
        rate(one, RATES[INGEST], INGEST_S)  # warms up
        for _ in range(rounds):
            plain = rate(one, RATES[INGEST], INGEST_S).value
            with subprocess.Popen(["sh", "-c", loop], process_group=0) as busy:
                try:
                    pairs.append(rate(one, RATES[INGEST], INGEST_S).value / plain)
                finally:
                    os.killpg(busy.pid, signal.SIGTERM)
    return {"ingest_with_query": statistics.median(pairs)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--only", default=",".join(PARTS))
    arguments = parser.parse_args()
    parts = arguments.only.split(",")
    if arguments.directory is not None:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="brim-bench-sql-", dir=arguments.directory) as place:
        log, plain = Path(place, "log"), Path(place, "plain.parquet")
        write_log(log, arguments.records)
        records = brim_rows(log, plain)
        assert records == arguments.records
        engines: dict[str, Callable[[str], object]] = {"duckdb": on_parquet(plain)}
        if "log" in parts:
            engines["log"] = on_brim(log)
        if "archive" in parts:
            engines["archive"] = on_brim(archived(log, Path(place, "archive")))
        figures = ratios(measured(engines, arguments.rounds)) if len(engines) > 1 else {}
        if "lines" in parts:
            figures |= lines_over_sql(log, arguments.records, arguments.rounds)
        if "ingest" in parts:
            figures |= ingest_with_query(Path(place), log, arguments.rounds)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def brim_rows(log: Path, plain: Path) -> int:
    """Write the rows of the log as one Parquet file, in their order; their number."""
    query = f"COPY (SELECT * FROM records ORDER BY \"offset\") TO '{plain}'"
    list(sql(query, log=log, runtime_dir=log / "no-rings", files=True))
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT count(*) FROM '{plain}'").fetchone()
    assert found is not None
    return int(found[0])


if __name__ == "__main__":
    main()
