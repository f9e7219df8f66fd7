"""Scan: records of rings and logs as Arrow batches, for DuckDB, read and decoded by several threads.

DuckDB requests columns and gives a condition. Only these columns are decoded. A condition on one topic is
answered from the topic index of the log if the topic is rare. Batches come in any order.

Owns its threads, which end with the scan. Memory is bounded: a few batches wait for DuckDB.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.dataset

from bridge.arrow.decode import decode_records, decode_sparse
from bridge.arrow.schema import RAW_TYPES, TYPES, DecodedColumns, RingConstants, batch_of
from edge.log.offline_reader import LogView
from edge.sql.losses import QueryLosses
from edge.sql.plan import Part
from edge.sql.pushdown import Pushed, pushed
from edge.sql.ring_records import ring_records
from persistence.processor_priority import Pauses
from ringbuf import Range

SCHEMA: Final = pa.schema(
    [
        pa.field(name, RAW_TYPES.get(name) or TYPES[name])
        for name in (
            "ring", "epoch", "offset", "timestamp_ns", "topic", "flags", "properties", "payload",
        )
    ]
)  # fmt: skip
READ_BYTES = 2 << 20
WAITING_MAX = 4  # batches for each thread
RARE = 200  # a topic with fewer than one of so many records is read from the index
SAMPLE_BYTES = 16 << 10
POLL_S = 0.2


class Task(NamedTuple):
    """Work of one thread: a part, or the records of a rare topic in the part."""

    part: Part
    topic: str = ""


class RecordSource(pyarrow.dataset.Dataset):  # type: ignore[misc]
    """Parts of rings and logs as a dataset of pyarrow, which DuckDB scans."""

    def __init__(
        self, view: LogView | None, parts: Sequence[Part], losses: QueryLosses, threads: int
    ) -> None:
        """Does not call the constructor of the base class, which has none."""
        self.failure: BaseException | None = None
        self._view, self._parts, self._losses, self._threads = view, parts, losses, threads
        self._looking = threading.Lock()

    @property
    def schema(self) -> pa.Schema:
        """Columns of the records."""
        return SCHEMA

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: Any = None,  # noqa: A002
        **_: Any,
    ) -> RecordScan:
        """A scan of these columns with this condition."""
        names = SCHEMA.names if columns is None else list(columns)
        return RecordScan(self, names, filter)

    def scanned(self, condition: Pushed) -> list[Part]:
        """The parts that may have records for the condition; rings first, since they are overwritten."""
        parts = [
            part
            for part in self._parts
            if (condition.since_ns is None or part.latest_ns >= condition.since_ns)
            and (condition.until_ns is None or part.earliest_ns < condition.until_ns)
        ]
        return sorted(parts, key=lambda part: (part.path is None, part.order))

    def runs(self, part: Part) -> Iterator[Range]:
        """Runs of the records of a part, in their order. Missing records are counted."""
        at = part.first_offset
        if part.path is not None:
            for run in ring_records(part.path, part.epoch, at, part.end_offset):
                yield from self._behind(part, at, run.offset)
                if run.offset < part.end_offset:
                    yield run
                at = run.offset + run.count
        yield from self._behind(part, at, part.end_offset)

    def _behind(self, part: Part, first: int, end: int) -> Iterator[Range]:
        """Records first .. end - 1 from the log: the ring does not have them, or no longer."""
        if part.path is not None and first < end and self._view is not None:
            with self._looking:
                self._view.refresh()
        yield from self._logged(part, first, min(end, part.end_offset))

    def _logged(self, part: Part, first: int, end: int) -> Iterator[Range]:
        while first < end and self._view is not None:
            found = self._view.read(part.ring, part.epoch, first, READ_BYTES)
            if not found:
                break
            for run in found:
                self._losses.count(min(run.offset, end) - first)
                first = min(run.offset, end)
                if first == end:
                    return
                yield run
                first = run.offset + run.count
        self._losses.count(max(end - first, 0))

    def tasks(self, condition: Pushed) -> Iterator[Task]:
        """The parts that may have records for the condition; rings first, since they are overwritten.

        Neighbouring parts of the log in which the topic is rare are one task.
        """
        parts = self.scanned(condition)
        for _, group in itertools.groupby(parts, key=lambda part: (part.path, part.key)):
            neighbours = list(group)
            whole = neighbours[0]._replace(end_offset=neighbours[-1].end_offset)
            if condition.topic and self._is_rare(whole, condition.topic):
                yield Task(whole, condition.topic)
            else:
                yield from (Task(part) for part in neighbours)

    def _is_rare(self, part: Part, topic: str) -> bool:
        """True if the log has few records of the topic, by a sample of the first ones."""
        if part.path is not None or self._view is None:
            return False
        sample = self._view.read_topic(part.ring, topic, part.epoch, part.first_offset, SAMPLE_BYTES)
        seen = sum(run.count for run in sample)
        return not sample or sample[-1].offset - part.first_offset > RARE * seen

    def of_topic(self, part: Part, topic: str) -> Iterator[Range]:
        """Runs of the records with that topic."""
        at = part.first_offset
        while (
            self._view is not None
            and at < part.end_offset
            and (found := self._view.read_topic(part.ring, topic, part.epoch, at))
        ):
            yield from (run for run in found if run.offset < part.end_offset)
            at = found[-1].offset + found[-1].count

    @property
    def threads(self) -> int:
        """Largest number of threads of a scan."""
        return self._threads


Result: TypeAlias = pa.RecordBatch | BaseException | None  # None: a thread has ended


class RecordScan:
    """One scan, with the methods of a pyarrow scanner that DuckDB calls."""

    def __init__(self, source: RecordSource, columns: list[str], condition: Any) -> None:
        self._source, self._condition = source, condition
        self._pushed = pushed(condition)
        self._columns = columns
        needed = [name for name in SCHEMA.names if name in columns or name in self._pushed.columns]
        self._schema = pa.schema([SCHEMA.field(name) for name in needed or ["offset"]])
        self.projected_schema = pa.schema([SCHEMA.field(name) for name in columns])

    def to_reader(self) -> pa.RecordBatchReader:
        """Batches of the scan. Its threads start with the first one, and end when the reader is dropped."""
        return pa.RecordBatchReader.from_batches(self.projected_schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        tasks = deque(self._source.tasks(self._pushed))
        threads = min(self._source.threads, len(tasks))
        results: queue.Queue[Result] = queue.Queue(WAITING_MAX * self._source.threads)
        stopped = threading.Event()

        def put(result: Result) -> None:
            while not stopped.is_set():
                with suppress(queue.Full):
                    results.put(result, timeout=POLL_S)
                    return

        def work() -> None:
            pauses = Pauses()
            try:
                while not stopped.is_set():
                    try:
                        task = tasks.popleft()
                    except IndexError:
                        break
                    self._decode(task, put, lambda: stopped.wait(pauses.due_s()))
                put(None)
            except BaseException as error:  # noqa: BLE001 - raised again by the thread that reads
                put(error)

        workers = [threading.Thread(target=work, name="brim-sql", daemon=True) for _ in range(threads)]
        for worker in workers:
            worker.start()
        try:
            yield from self._taken(results, threads)
        finally:
            stopped.set()

    def _taken(self, results: queue.Queue[Result], threads: int) -> Iterator[pa.RecordBatch]:
        while threads:
            result = results.get()
            if result is None:
                threads -= 1
            elif isinstance(result, BaseException):
                self._source.failure = result
                raise result
            else:
                yield result

    def _decode(self, task: Task, put: Callable[[Result], None], is_ended: Callable[[], bool]) -> None:
        constants = RingConstants(task.part.ring, task.part.epoch)
        for decoded in self._decoded(task):
            if is_ended():
                return
            batch = batch_of(decoded, constants, self._schema)
            if self._condition is not None:
                batch = batch.filter(self._condition)
            if batch.num_rows:
                put(batch.select(self._columns))

    def _decoded(self, task: Task) -> Iterator[DecodedColumns]:
        names, part = self._schema.names, task.part
        if task.topic:
            for run in _joined(self._source.of_topic(part, task.topic)):
                yield from decode_sparse(run.view, part.epoch, names)
            return
        for run in _joined(self._source.runs(part)):
            last = min(run.offset + run.count, part.end_offset) - 1
            yield from decode_records(run.view, run.epoch, run.offset, last, names)


def _joined(runs: Iterator[Range]) -> Iterator[Range]:
    """Neighbouring short runs, joined to about READ_BYTES: a batch for each would cost more than its records.

    The log has a run for each of its rounds, with one or two records of a stream that gets few. Offsets that
    no run has are missing in the joined one, too.
    """
    short: list[Range] = []
    length = 0
    for run in runs:
        short.append(run)
        length += len(run.view)
        if length >= READ_BYTES:
            yield _concatenated(short)
            short, length = [], 0
    if short:
        yield _concatenated(short)


def _concatenated(runs: Sequence[Range]) -> Range:
    first, last = runs[0], runs[-1]
    if first is last:
        return first
    count = last.offset + last.count - first.offset
    view = memoryview(b"".join(run.view for run in runs))
    times = first.first_timestamp_ns, last.last_timestamp_ns
    return Range(first.position, first.epoch, first.offset, count, *times, view)
