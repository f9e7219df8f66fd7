"""From publishers to the table, with the upstream cut and the bridge and Spark killed with -9: the outside
ledger says whether each record is there exactly once, or declared lost to the offset.

`pipeline`: the log keeps what waits.  Publishers by MQTT at QoS 1, some of which lose their connection and
repeat, and one by shared memory, publish always.  The bridge lives for a moment each time, often while it
starts; the upstream is cut in each of the ways of cut_line.py and upstreams.py; the bronze job reads the lake
as it grows, and is killed while it writes.  In the end everything acknowledged is in the table once, by its
number and by its offset, and the report of gaps names nothing.

`kafka`: the same by a topic of a real Kafka, whose broker is killed, too; the table is held against the
ledger alone.

`overflow`: rings and log are too small for a cut.  The report must name exactly the offsets that are missing.
What it leaves out is what drain.py says is not covered: a put that the store carries out after it has said
that there is no such name, when the records are gone; so files in flight end with the bridge.
"""

import importlib.util
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.campaigns.running import Campaign, Outcome
from tests.support import kafka_connector
from tests.support.directories import memory_directory
from tests.support.outside_client import Lost
from tests.support.pipeline import Form, Pipeline
from tests.support.s3_server import s3_server
from tests.support.upstreams import CutDisk, CutS3, Upstream, may_mount

BRIDGE_KILLS = 30  # of one seed
CUTS = 5  # of one seed: each kind that there is, at least twice if there are two
CUT_S = (0.2, 3.0)
CALM_S = (0.3, 4.0)
LIFE_S = (0.0, 0.7)  # of a bridge, from when it answers
START_S = 0.6  # a start that is killed lives at most so long
SPARK_LATE_S = (0.0, 3.0)  # from a batch of its own to its kill
SPARK_PATIENCE_S = 120.0
SPARK_EARLY_S = (1.0, 6.0)  # from its start, where there may be no batch
BROKER_CALM_S = (0.5, 3.0)  # from when publishers are connected
EACH: dict[Form, int] = {"kept": 100_000, "small": 30_000}  # records of a publisher
PACE: dict[Form, int] = {"kept": 500, "small": 10}  # of these, in a moment
MOMENT_S = 0.01
SPARK_KILLS: dict[Form, int] = {"kept": 1, "small": 0}
DISK_BYTES = 256 << 20  # for all that a seed drains
FILE_BYTES = (1 << 15, 1 << 17, 1 << 19)


@dataclass(frozen=True)
class Toll:
    """Kills -9 and cuts of one history, in numbers."""

    bridge: int = BRIDGE_KILLS
    broker: int = 0
    spark: int = 0
    cuts: int = CUTS
    connections: int = 1 << 30  # at most: of publishers, lost with messages under way


class Storm:
    """One history: things happen to a pipeline, at random times, until all of them have."""

    def __init__(
        self, pipeline: Pipeline, random: Random, counts: Counter[str], each: int, toll: Toll
    ) -> None:
        self.pipeline = pipeline
        self.random = random
        self.counts = counts
        self._each, self._toll, self._spark_kills = each, toll, toll.spark
        kinds = [*pipeline.upstream.kinds] * toll.cuts
        self._cuts = random.sample(kinds[: toll.cuts], toll.cuts)
        self._kill_broker_at = time.monotonic() + random.uniform(*BROKER_CALM_S)
        self._cut: str | None = None
        self._cut_at = time.monotonic() + random.uniform(*CALM_S)
        self._kill_at: float | None = None  # None: when the bridge answers
        self._kill_spark_at: float | None = None
        self._batches = 0
        self._spark_since = 0.0
        self._spark_unharmed = False  # the last job, which has ended

    def rage(self) -> None:
        """All of it, then calm, until all is drained.  Raises Stuck."""
        pipeline = self.pipeline
        self._start_bridge()
        while not self._over:
            kills = self.counts["bridge kills"] + self.counts["broker kills"]
            share = min((kills + 1) / max(self._toll.bridge + self._toll.broker, 1), 1)
            pace = PACE[pipeline.form]
            pipeline.allow(min(pipeline.each + pace, int(self._each * share)))
            pipeline.work(MOMENT_S)
            now = time.monotonic()
            self._upstream(now)
            self._broker(now)
            self._bridge(now)
            self._spark(now)
            may_lose = pipeline.form == "kept" and self.counts["connections lost"] < self._toll.connections
            if may_lose and self.random.random() < 0.01:
                pipeline.reconnect(self.random.randrange(len(pipeline.publishers)))
                self.counts["connections lost"] += 1
        pipeline.publish(self._each if pipeline.form == "kept" else pipeline.each)
        pipeline.settle()
        self.counts["records"] += pipeline.records
        self.counts["sent again"] += sum(end - first for it in pipeline.ledgers for first, end in it.again)
        self.counts["objects"] += len(pipeline.upstream.objects())

    @property
    def _over(self) -> bool:
        killed = self.counts["bridge kills"] >= self._toll.bridge and self._spark_kills == 0
        killed = killed and self.counts["broker kills"] >= self._toll.broker
        return killed and not self._cuts and self._cut is None and not self.pipeline.spark_runs

    def _upstream(self, now: float) -> None:
        if now < self._cut_at:
            return
        if self._cut is not None:
            self.pipeline.upstream.mend()
            self.counts["cuts"] += 1
            self.counts[f"cuts {self._cut}"] += 1
            self._cut = None
            self._cut_at = now + self.random.uniform(*CALM_S)
        elif self._cuts:
            self._cut = self._cuts.pop()
            self.pipeline.upstream.cut(self._cut)
            self._cut_at = now + self.random.uniform(*CUT_S)

    def _broker(self, now: float) -> None:
        if now < self._kill_broker_at or self.counts["broker kills"] >= self._toll.broker:
            return
        self.pipeline.kill_broker()
        self.pipeline.restart_broker()
        self.counts["broker kills"] += 1
        self._kill_broker_at = time.monotonic() + self.random.uniform(*BROKER_CALM_S)

    def _start_bridge(self) -> None:
        self.pipeline.start_bridge()
        early = self.random.random() < 0.15
        self._kill_at = time.monotonic() + self.random.uniform(0, START_S) if early else None

    def _bridge(self, now: float) -> None:
        if self._kill_at is None:
            if self.pipeline.state() is not None:
                self._kill_at = now + self.random.uniform(*LIFE_S)
        elif now >= self._kill_at and self.counts["bridge kills"] < self._toll.bridge:
            self.pipeline.kill_bridge()
            if self.pipeline.form == "small":
                self.pipeline.upstream.reset()
            self.counts["bridge kills"] += 1
            self._start_bridge()

    def _spark(self, now: float) -> None:
        pipeline = self.pipeline
        if self._spark_kills == 0:
            return
        if not pipeline.spark_runs:
            if self.counts["bridge kills"] > min(3, self._toll.bridge - 1) and pipeline.upstream.objects():
                # A job that ended by itself found too little to do: the next is killed whatever it does.
                at = now + self.random.uniform(*SPARK_EARLY_S) if self._spark_unharmed else None
                pipeline.start_spark()
                self._kill_spark_at, self._batches, self._spark_since = at, pipeline.batches, now
                self._spark_unharmed = True
        elif self._kill_spark_at is None:
            if pipeline.batches > self._batches or now > self._spark_since + SPARK_PATIENCE_S:
                self._kill_spark_at = now + self.random.uniform(*SPARK_LATE_S)
        elif now >= self._kill_spark_at and pipeline.kill_spark():
            self.counts["Spark kills"] += 1
            self._spark_kills -= 1
            self._spark_unharmed = False


def check_table(pipeline: Pipeline) -> list[tuple[int, int]]:
    """Lets the job run to its end, and holds the table against the ledger.  Ranges lost; raises Lost."""
    from tests.support.lake_ledger import check_complete, check_report, lost_of, missing_in, table_at

    report = pipeline.finish_spark()
    table = table_at(pipeline.table)
    if pipeline.form == "kept":
        check_complete(table, pipeline.ledgers)
        missing = missing_in(table)
        if any(missing.values()):
            raise Lost(f"offsets are not in the table: {missing}")
        if pipeline.upstream.lake:
            check_report(report, missing)
        return []
    gone = dict(lost_of(table, it) for it in pipeline.ledgers)
    check_report(report, gone)
    return [it for its in gone.values() for it in its]


@contextmanager
def upstream_of(seed: int, disk: Path) -> Iterator[Upstream]:
    """S3; and each fourth time a disk, where one can be mounted."""
    if seed % 4 == 3 and may_mount():
        (disk / "mount").mkdir()
        yield CutDisk(disk / "mount", DISK_BYTES, seed)
        return
    with s3_server() as url:
        yield CutS3(url, seed)


@contextmanager
def kafka_of(seed: int, disk: Path) -> Iterator[Upstream]:
    """Kafka."""
    from tests.support.cut_kafka import CutKafka

    (disk / "kafka").mkdir()
    yield CutKafka(disk / "kafka", seed)


def run_seed(
    form: Form,
    seed: int,
    upstreams: Callable[[int, Path], AbstractContextManager[Upstream]] = upstream_of,
    spark: str = "bridge.spark.jobs.bronze",
) -> Outcome:
    """One history."""
    random = Random(seed)
    settings = f"file_bytes = {random.choice(FILE_BYTES)}\nwindow = {random.choice([1, 4])}\n"
    settings += f'compress = "{random.choice(["none", "zstd"])}"'
    counts: Counter[str] = Counter()
    wrong = []
    try:
        with (
            TemporaryDirectory() as disk,
            memory_directory() as memory,
            upstreams(seed, Path(disk)) as upstream,
            Pipeline(form, memory, Path(disk), upstream, settings=settings, spark=spark) as pipeline,
        ):
            Storm(pipeline, random, counts, EACH[form], Toll(spark=SPARK_KILLS[form])).rage()
            lost = check_table(pipeline)
            counts["ranges lost, and declared"] += len(lost)
            counts["lost, and declared"] += sum(last - first + 1 for first, last in lost)
    except AssertionError as error:  # Lost and Stuck are
        wrong.append(f"seed {seed}: {error}")
    return counts, wrong


def run_kept(seed: int) -> Outcome:
    """Nothing is lost."""
    return run_seed("kept", seed)


def run_kafka(seed: int) -> Outcome:
    """Nothing is lost by way of a topic."""
    return run_seed("kept", seed, kafka_of, "bridge.spark.jobs.kafka")


def run_small(seed: int) -> Outcome:
    """Something is."""
    return run_seed("small", seed)


def missing() -> str:
    """Why it cannot run here."""
    for module, extra in (
        ("moto", "moto[s3,server]"),
        ("obstore", "brim[objects]"),
        ("pyspark", "brim[spark]"),
    ):
        if importlib.util.find_spec(module) is None:
            return f"needs {module}: pip install '{extra}'"
    return "" if shutil.which("java") else "needs Java 17 or newer"


def missing_for_kafka() -> str:
    """The same, with Kafka."""
    if importlib.util.find_spec("confluent_kafka") is None:
        return "needs confluent-kafka: pip install 'brim[kafka]'"
    return missing() or kafka_connector.why_not()


PIPELINE = Campaign(
    name="pipeline",
    what="from publishers to the table, with upstream cut, bridge and Spark killed",
    unit="records",
    wanted=10_000_000,
    run_seed=run_kept,
    missing=missing,
)
OVERFLOW = Campaign(
    name="overflow",
    what="the same with a buffer that is too small: what is lost is declared, to the offset",
    unit="ranges lost, and declared",
    wanted=300,
    run_seed=run_small,
    missing=missing,
)
KAFKA = Campaign(
    name="kafka",
    what="from publishers to the table by Kafka, with its broker, the line there, bridge and Spark killed",
    unit="records",
    wanted=2_000_000,
    run_seed=run_kafka,
    missing=missing_for_kafka,
)
