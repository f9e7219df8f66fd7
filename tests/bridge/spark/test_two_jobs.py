"""Two jobs that write one table without a lock, as in an object store: each record is there once."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("deltalake", reason="needs the delta extra: pip install 'brim[delta]'")
pytest.importorskip("pyiceberg", reason="needs the iceberg extra: pip install 'brim[iceberg]'")

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

from bridge.errors import TableBusy
from bridge.spark.delta_log import DeltaLog
from bridge.spark.iceberg_log import IcebergLog
from bridge.spark.jobs import bronze
from bridge.spark.table_places import parquet_files
from bridge.spark.tables import TableFormat
from tests.support.drained_files import T0_NS, drained_file_of, store
from tests.support.examples import examples
from tests.support.open_tables import rows_of
from tests.support.project import ROOT

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

Said = pytest.CaptureFixture[str]
FORMS = ("delta", "iceberg")
LOGS: dict[str, type[DeltaLog | IcebergLog]] = {"delta": DeltaLog, "iceberg": IcebergLog}
each_form = pytest.mark.parametrize("form", FORMS)
DAY_US = 86_400_000_000
ROWS = 4  # of a batch
SECOND_DRIVER = """
import contextlib, json, sys
from bridge.spark.jobs import bronze
from tests.support.spark_session import start_spark
start_spark()
bronze.table_lock = lambda *_: contextlib.nullcontext()
for line in sys.stdin:
    print("status", bronze.main(json.loads(line)), flush=True)
"""


def offsets(table: Path, form: str) -> list[int]:
    """As any reader of the format has them."""
    found: list[int] = rows_of(table, form, ["offset"])["offset"].to_pylist()
    return sorted(found)


# ---- two drivers ----


@pytest.fixture(scope="module")
def second_driver() -> Iterator[Callable[[list[str]], None]]:
    """Run a job in another process, whose Java serves all tests: its start takes longest."""
    command = [sys.executable, "-c", SECOND_DRIVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout

        def run(words: list[str]) -> None:
            print(json.dumps(words), file=process.stdin, flush=True)
            assert next((line for line in said if line.startswith("status ")), "ended") == "status 0\n"

        yield run
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize(("form", "step"), [("delta", "write_files"), ("iceberg", "commit")])
def test_a_driver_that_was_cut_off_doubles_and_loses_nothing(
    spark: Any,
    second_driver: Callable[[list[str]], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Said,
    form: str,
    step: str,
) -> None:
    """Its scheduler has started the next one meanwhile, which writes the same batch and another one."""
    lake, table = tmp_path / "lake", tmp_path / "bronze"
    store(lake, *(drained_file_of(10 * it, 10 * it + 9, drain_seq=it + 1) for it in range(2)))
    how = [str(lake), "--to", str(table), f"--format={form}", "--option=maxFilesPerTrigger=1"]
    owner: Any = bronze if step == "write_files" else LOGS[form]
    goes_on: Callable[..., None] = getattr(owner, step)

    def is_cut_off(*words: Any, **named: Any) -> None:
        monkeypatch.setattr(owner, step, goes_on)
        second_driver(how)
        goes_on(*words, **named)

    monkeypatch.setattr(owner, step, is_cut_off)
    monkeypatch.setattr(bronze, "table_lock", lambda *_: nullcontext())
    status = 0
    with suppress(StreamingQueryException):  # Spark's own, for the checkpoint: it comes behind the commit
        status = bronze.main(how)
    assert offsets(table, form) == list(range(20))
    assert (status, "batch 0 was committed meanwhile" in capsys.readouterr().err) == (2, True)
    assert bronze.main(how) == 0
    assert offsets(table, form) == list(range(20))


# ---- attempts, step by step ----


def write(target: bronze.TableTarget, batch: int, *, rows: int = ROWS, more: str = "") -> None:
    """The files of an attempt, in the form in which Spark leaves them: one for each day; `more`: a column."""
    for day in range(2):
        numbers = range(batch * ROWS + day, batch * ROWS + rows, 2)
        times = pa.array([T0_NS // 1000 + day * DAY_US + it for it in numbers], pa.timestamp("us", "UTC"))
        names = pa.array([f"plant/{it}" for it in numbers])
        found = pa.table({"offset": pa.array(numbers, pa.int64()), "timestamp": times, "topic": names})
        found = found.append_column(more, names) if more else found
        directory = Path(target.table, target.directory(batch), f"dt=2023-11-{14 + day}")
        directory.mkdir(parents=True, exist_ok=True)
        pq.write_table(found, directory / f"part-{uuid.uuid4()}.parquet", store_schema=False)


def target_of(table: Path, form: str) -> bronze.TableTarget:
    """The table as a job opens it that continues a checkpoint."""
    (checkpoint := Path(f"{table}.state", "checkpoint", "offsets")).mkdir(parents=True, exist_ok=True)
    (checkpoint / "0").touch()
    return bronze.opened_target(str(table), "", TableFormat(form))


def files_of(table: Path, target: bronze.TableTarget, batch: int) -> list[str]:
    return [it.path for it in parquet_files(f"{table}/{target.directory(batch)}")]


def reads_early(monkeypatch: pytest.MonkeyPatch, target: bronze.TableTarget, times: int) -> None:
    """Let a job commit for the state of the table as it is now, whatever comes between."""
    log: Any = target.log
    opened, early = log._opened, [log._opened() for _ in range(times)]
    monkeypatch.setattr(log, "_opened", lambda: early.pop() if early else opened())


@each_form
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("early", [0, 1, 2])
@pytest.mark.parametrize("dies", [False, True])
def test_of_two_attempts_at_a_batch_one_counts_and_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, begun: bool, early: int, dies: bool
) -> None:
    """`early`: how many of its two looks at the table the later one had before the other's commit.

    `dies`: the other one is killed behind its commit, before it deletes files of attempts.
    """
    table, batch = tmp_path / "table", int(begun)
    for it in range(batch):
        write(before := target_of(table, form), it)
        bronze.commit(before, it, ROWS)
    one, two = target_of(table, form), target_of(table, form)
    write(one, batch)
    write(two, batch)
    reads_early(monkeypatch, one, early)
    if dies:
        assert two.log is not None
        two.log.commit(batch, two.directory(batch), ROWS)
    else:
        bronze.commit(two, batch, ROWS)
    said = "committed meanwhile" if early < 2 or dies else "has 0 records, not 4"
    with pytest.raises(TableBusy, match=said):
        bronze.commit(one, batch, ROWS)
    assert offsets(table, form) == list(range(ROWS * (batch + 1)))
    assert len(files_of(table, two, batch)) == 2
    assert len(files_of(table, one, batch)) == (2 if dies and early else 0)


@each_form
def test_a_batch_before_the_last_one_is_not_committed_again(tmp_path: Path, form: str) -> None:
    """By a driver that was cut off for longer than a batch, and has its look at the table behind it."""
    table = tmp_path / "table"
    for batch in range(3):
        write(target := target_of(table, form), batch)
        bronze.commit(target, batch, ROWS)
    write(late := target_of(table, form), 1)
    assert late.log is not None
    with pytest.raises(TableBusy, match="committed meanwhile"):
        late.log.commit(1, late.directory(1), ROWS)
    assert offsets(table, form) == list(range(3 * ROWS))


@each_form
def test_an_attempt_that_adds_a_column_does_not_double_a_batch_that_came_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The column is a commit of its own; the other one commits its batch just before it."""
    table = tmp_path / "table"
    write(before := target_of(table, form), 0)
    bronze.commit(before, 0, ROWS)
    one, two = target_of(table, form), target_of(table, form)
    write(one, 1, more="line")
    write(two, 1)
    reads_early(monkeypatch, one, 2)
    assert two.log is not None
    two.log.commit(1, two.directory(1), ROWS)  # and it is killed before it deletes other attempts
    with pytest.raises(TableBusy, match="committed meanwhile"):
        bronze.commit(one, 1, ROWS)
    assert offsets(table, form) == list(range(2 * ROWS))


@each_form
def test_an_attempt_whose_commit_had_no_answer_keeps_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """A store may have the commit and a client report a conflict, with its own first request."""
    table = tmp_path / "table"
    target = target_of(table, form)
    write(target, 0)
    append = LOGS[form]._append

    def has_no_answer(self: Any, *batch: Any) -> None:
        monkeypatch.undo()
        append(self, *batch)
        append(self, *batch)  # as the client does, for the table that it had read

    monkeypatch.setattr(LOGS[form], "_append", has_no_answer)
    with pytest.raises(TableBusy):
        bronze.commit(target, 0, ROWS)
    assert offsets(table, form) == list(range(ROWS))


@each_form
def test_files_that_went_or_came_under_the_hands_of_a_job_are_not_committed(
    tmp_path: Path, form: str
) -> None:
    for rows in (ROWS - 1, ROWS + 1):
        target = target_of(tmp_path / f"table{rows}", form)
        write(target, 0, rows=rows)
        with pytest.raises(TableBusy, match=f"has {rows} records, not {ROWS}"):
            bronze.commit(target, 0, ROWS)
        assert target.log is not None
        assert target.log.last_batch() is None


@each_form
def test_cleaning_spares_a_batch_that_takes_longer_than_the_age_of_its_files(
    tmp_path: Path, form: str
) -> None:
    table = tmp_path / "table"
    done, killed, slow = (target_of(table, form) for _ in range(3))
    write(done, 0)
    bronze.commit(done, 0, ROWS)
    write(killed, 0)
    write(slow, 1)
    for path in table.rglob("*.parquet"):
        os.utime(path, (0, 0))
    assert done.log is not None
    assert done.log.clean(1) == 2
    assert not files_of(table, killed, 0)
    bronze.commit(slow, 1, ROWS)
    assert offsets(table, form) == list(range(2 * ROWS))


@each_form
def test_a_table_of_an_earlier_version_is_continued(tmp_path: Path, form: str) -> None:
    """Its batches have no directory for each attempt; one was killed before its commit."""
    table = tmp_path / "table"
    for batch in range(2):
        write(before := target_of(table, form), batch)
        attempt = table / before.directory(batch)
        for day in list(attempt.iterdir()):
            day.rename(attempt.parent / day.name)
        attempt.rmdir()
        if batch == 0:
            assert before.log is not None
            before.log.commit(0, f"batch-{batch:09d}", ROWS)
    write(now := target_of(table, form), 1)
    bronze.commit(now, 1, ROWS)
    assert offsets(table, form) == list(range(2 * ROWS))
    assert [it.name for it in (table / "batch-000000001").iterdir()] == [now.attempt]
    assert now.log is not None
    now.log.clean(0)
    assert offsets(table, form) == list(range(2 * ROWS))


# ---- random schedules ----


class Job:
    """A driver with its batch; `early`: states of the table that it has read before it commits."""

    def __init__(self, table: Path, form: str, batch: int) -> None:
        self.target, self.batch = target_of(table, form), batch
        self.step = "begun"
        self.early: list[Any] = []
        log: Any = self.target.log
        opened = log._opened
        log._opened = lambda: self.early.pop() if self.early else opened()


class Schedule:
    """Three drivers with one checkpoint, and maintenance, in any order. The ledger is the last batch."""

    def __init__(self, spark: Any, table: Path, form: str, seed: int) -> None:
        self.spark, self.table, self.form, self.random = spark, table, form, Random(seed)
        self.jobs: dict[int, Job] = {}
        self.next = 0  # in the checkpoint
        self.last = -1  # in the table
        self.late = 0  # commits that were refused
        self.changed = False  # by the last step: files or the log of the table

    def run(self) -> None:
        number, what = self.random.randrange(3), self.random.randrange(20)
        if what == 0:
            self.jobs.pop(number, None)  # killed
        elif what < 3:
            self.maintain(clean=what == 1)
        elif (job := self.jobs.get(number)) is None:
            batch = max(0, self.next - self.random.randrange(2))  # one that was cut off is a batch behind
            self.jobs[number] = Job(self.table, self.form, batch)
        else:
            self.work(number, job)
        if self.changed and self.last >= 0:
            assert offsets(self.table, self.form) == list(range(ROWS * (self.last + 1)))
        self.changed = False

    def work(self, number: int, job: Job) -> None:
        """A driver takes its next step, and may stop between two looks at the table."""
        if job.step == "begun" and bronze.has_batch(job.target.log, job.batch):
            self.go_on(number, job)
        elif job.step == "begun":
            write(job.target, job.batch)
            job.step, self.changed = "written", True
        elif job.step == "written":
            log: Any = job.target.log
            job.early = [log._opened() for _ in range(self.random.randrange(3))]
            job.step = "looked"
        else:
            self.commit(number, job)

    def commit(self, number: int, job: Job) -> None:
        del self.jobs[number]
        self.changed = True
        dies = self.random.choice(["", "", "behind its commit", "before the checkpoint"])
        try:
            if dies == "behind its commit" and not bronze.has_batch(job.target.log, job.batch):
                assert job.target.log is not None
                job.target.log.commit(job.batch, job.target.directory(job.batch), ROWS)
            else:
                bronze.commit(job.target, job.batch, ROWS)
        except TableBusy:
            assert job.batch <= self.last
            self.late += 1
            return
        assert job.batch == self.last + 1
        self.last = job.batch
        if not dies:
            self.go_on(number, job)

    def go_on(self, number: int, job: Job) -> None:
        self.next = max(self.next, job.batch + 1)
        self.jobs[number] = Job(self.table, self.form, job.batch + 1)

    def maintain(self, *, clean: bool) -> None:
        """As for files that are older than the age: each is for a table that all drivers know."""
        self.changed = True
        log: Any = target_of(self.table, self.form).log
        if clean:
            for path in self.table.rglob("*.parquet"):
                os.utime(path, (0, 0))
            log.clean(0)
        else:
            log.compact(self.spark, 1 << 27)


@each_form
def test_of_jobs_maintenance_and_kills_in_any_order_each_record_remains_once(
    spark: Any, tmp_path: Path, form: str
) -> None:
    batches = late = 0
    for seed in range(examples(4)):
        schedule = Schedule(spark, tmp_path / str(seed) / "table", form, seed)
        for _ in range(80):
            schedule.run()
        batches += schedule.last + 1
        late += schedule.late
    assert batches > 4
    assert late > 4
