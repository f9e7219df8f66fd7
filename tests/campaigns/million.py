"""A million records by each sink into the table, with broker, bridge and Spark killed -9 ten times each.

    python -m tests.campaigns million [--records 1000000] [--kills 10] [--spark-kills 10]
                                        [--bridge-kills 10] [--sinks directory,s3,kafka] [--seed 0]
                                        [--format parquet|delta|iceberg] [--processes 3]

One history of pipeline.py for each sink, without cuts; the sinks run side by side.  In the end the outside
ledger of the publishers is held against the table: each acknowledged message is there, none more often than
it was published, each identity (epoch and offset of a partition) once.  Of Kafka, all records of the topic
are read: those that it has more than once are at most one resend window for each kill of the bridge.

Spark runs in local mode, and each job starts a JVM: most of the time of a run.
"""

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.campaigns.ledger import show
from tests.campaigns.pipeline import Storm, Toll, check_table, missing, missing_for_kafka
from tests.campaigns.pools import each
from tests.support.directories import memory_directory
from tests.support.outside_client import Lost
from tests.support.pipeline import Pipeline
from tests.support.s3_server import s3_server
from tests.support.upstreams import CutS3, Lake, Upstream

RECORDS, KILLS = 1_000_000, 10
PUBLISHERS = 5  # of tests/support/pipeline.py
WINDOW = 5_000  # resend_max_records of the bridge to Kafka
OFFSETS_A_BATCH = 80_000  # so that Spark has batches for each kill
RATE_BYTES_S = 12_000_000  # so that a bridge drains when it is killed
SETTINGS = f"file_bytes = 1048576\nresend_max_records = {WINDOW}\nrate_bytes_s = {RATE_BYTES_S}"
# Columns of the table.
COUNTS = ("records", "broker kills", "bridge kills", "Spark kills", "published again", "twice in Kafka")


def history(
    upstream: Upstream,
    each_publishes: int,
    toll: Toll,
    seed: int,
    check: Callable[[Pipeline], object] = check_table,
    *,
    table_format: str = "parquet",
) -> Counter[str]:
    """One sink, with so many records of each publisher.  Raises AssertionError: Lost, Stuck."""
    counts: Counter[str] = Counter()
    how = {"settings": SETTINGS, "spark": _job(upstream), "table_format": table_format}
    with (
        TemporaryDirectory() as disk,
        memory_directory() as memory,
        Pipeline("kept", memory, Path(disk), upstream, **how) as pipeline,
    ):
        Storm(pipeline, Random(seed), counts, each_publishes, toll).rage()
        counts["published again"] = counts["sent again"]
        check(pipeline)
        if not upstream.lake:
            counts["twice in Kafka"], allowed = _twice(upstream), WINDOW * toll.bridge
            if counts["twice in Kafka"] > allowed:
                raise Lost(f"{counts['twice in Kafka']} records went to Kafka twice (allowed: {allowed})")
    return counts


def _twice(upstream: Upstream) -> int:
    from tests.support.cut_kafka import CutKafka

    assert isinstance(upstream, CutKafka)
    return upstream.came_twice()


def _job(upstream: Upstream) -> str:
    return "bridge.spark.jobs.bronze" if upstream.lake else "bridge.spark.jobs.kafka"


@contextmanager
def _directory(disk: Path) -> Iterator[Upstream]:
    yield Lake(disk)


@contextmanager
def _s3(disk: Path) -> Iterator[Upstream]:
    del disk
    with s3_server() as url:
        yield CutS3(url)


@contextmanager
def _kafka(disk: Path) -> Iterator[Upstream]:
    from tests.support.cut_kafka import CutKafka

    yield CutKafka(disk, offsets_a_batch=OFFSETS_A_BATCH)


SINKS: dict[str, Callable[[Path], AbstractContextManager[Upstream]]] = {
    "directory": _directory,
    "s3": _s3,
    "kafka": _kafka,
}


def toll_of(kills: int, spark_kills: int, bridge_kills: int | None = None) -> Toll:
    """So many of broker and bridge, and of Spark; no cuts."""
    bridge = kills if bridge_kills is None else bridge_kills
    return Toll(bridge, kills, spark_kills, cuts=0, connections=kills)


def run_sink(
    records: int, toll: Toll, seed: int, table_format: str, sink: str
) -> tuple[str, Counter[str], str]:
    """One sink in a process of its own: its name, its row of the table, and what was wrong."""
    begun = time.monotonic()
    counts: Counter[str] = Counter()
    wrong = ""
    with TemporaryDirectory() as disk, SINKS[sink](Path(disk)) as upstream:
        try:
            each_publishes = -(-records // PUBLISHERS)
            counts = history(upstream, each_publishes, toll, seed, table_format=table_format)
        except AssertionError as error:  # Lost and Stuck are
            wrong = f"{sink}: {error}"
    row = Counter({name: counts[name] for name in COUNTS})
    row["allowed twice"] = WINDOW * toll.bridge if sink == "kafka" else 0
    row["seconds"] = int(time.monotonic() - begun)
    return sink, row, wrong


def run_million(chosen: Namespace) -> int:
    """All sinks, side by side.  Exit status: 1 if anything was wrong, 2 if it cannot run here."""
    sinks = chosen.sinks.split(",")
    if unknown := set(sinks) - set(SINKS):
        print(f"million has no sink {', '.join(sorted(unknown))} (allowed: {', '.join(SINKS)})")
        return 2
    if reason := missing_for_kafka() if "kafka" in sinks else missing():
        print(f"million cannot run here: it {reason}")
        return 2
    spark_kills = chosen.kills if chosen.spark_kills is None else chosen.spark_kills
    toll = toll_of(chosen.kills, spark_kills, chosen.bridge_kills)
    killed = f"{toll.broker} kills of the broker, {toll.bridge} of the bridge, {toll.spark} of Spark"
    to = f"to each of {chosen.sinks}, then {chosen.format}"
    print(f"million: {chosen.records:,} records {to}; {killed}", flush=True)
    begun = time.monotonic()
    rows: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    call = partial(run_sink, chosen.records, toll, chosen.seed, chosen.format)
    for sink, row, mistake in each(call, sinks, chosen.processes):
        rows[sink] = row
        wrong += [mistake] if mistake else []
        print(f"WRONG {mistake}" if mistake else f"million: {sink} is done: {dict(row)}", flush=True)
    facts = {"sinks": rows, "wrong": len(wrong), "seed": chosen.seed}
    show("million", {**facts, "seconds": int(time.monotonic() - begun)})
    return 1 if wrong else 0
