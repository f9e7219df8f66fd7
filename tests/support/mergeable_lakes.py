"""Landing zones with small files of a closed day, and everything that Brim's readers see of them."""

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from bridge.arrow import parquet_reader
from bridge.arrow.decode import decode_file
from bridge.drain.clock import DrainClock
from bridge.drain.merger import Merger
from bridge.drain.settings import BridgeSettings
from bridge.format.file_builder import DrainedFile, compressed
from bridge.format.file_name import COMPRESSED_SUFFIX, SUFFIX, is_parquet
from bridge.sinks.interface import MergingStore
from bridge.sinks.merging import merging_store
from bridge.sinks.registry import open_file_sink
from bridge.spark.completeness import account
from bridge.spark.jobs.gaps import file_infos
from bridge.spark.landing_zone import Landing, StoredFile, name_of
from bridge.spark.task_planning import tasks_of
from tests.support.bridges import settings
from tests.support.drained_files import EPOCH, drained_file_of

FORMS = ("brim", "zstd", "parquet")
DAY_NS = 86_400 * 10**9
CREATED_NS = 1_700_000_123_456_789_000
LOOKS_AGAIN_S = 900.0  # after this time a merger looks at each closed day again
Seen = tuple[Any, ...]


def drained_files() -> list[DrainedFile]:
    """Two partitions in turns, a second stream, losses, two epochs, records drained twice, a second day."""
    files, seq = [], 0

    def add(first: int, last: int, **more: Any) -> None:
        nonlocal seq
        seq += 1
        files.append(drained_file_of(first, last, drain_seq=seq, **more))

    for number in range(6):
        add(10 * number, 10 * number + 9)
        add(7 * number, 7 * number + 6, partition=1)
    add(0, 4, stream="alarms", partition=3)
    add(65, 69, lost=((60, 64),))
    add(70, 79)
    add(80, 89)
    add(30, 49)  # again, after a `backfill`
    add(0, 9, epoch=EPOCH + 1, previous=(EPOCH, 95), earlier_skipped=((EPOCH, 90, 94),))
    add(10, 19, epoch=EPOCH + 1)
    add(20, 29, epoch=EPOCH + 1, created_ns=CREATED_NS + DAY_NS)
    add(30, 39, epoch=EPOCH + 1, created_ns=CREATED_NS + DAY_NS)
    return files


def make_lake(root: Path, form: str, files: list[DrainedFile] | None = None) -> None:
    """The files as `form` in a directory."""
    with closing(
        open_file_sink(root.as_uri(), {"format": "parquet" if form == "parquet" else "brim"})
    ) as sink:
        for file in files or drained_files():
            if form == "zstd":
                name = file.name.replace(SUFFIX, COMPRESSED_SUFFIX)
                sink.put(compressed(replace(file, name=name)))
            else:
                sink.put(file)


def stores(root: Path) -> MergingStore:
    """The store of that directory."""
    store = merging_store(open_file_sink(root.as_uri()))
    assert store is not None
    return store


def merger(
    root: Path,
    store: MergingStore,
    *,
    drained_to: int = 1000,
    clock: DrainClock | None = None,
    **changes: Any,
) -> Merger:
    """Merger that waits for nothing, unless `changes` of the settings say so."""
    values = {"merge_after_s": 1, "merge_keep_s": 0, "merge_rate_bytes_s": 1 << 40}
    chosen: BridgeSettings = settings(root, root, **{**values, **changes})
    return Merger(chosen, store, lambda: drained_to, clock or ShiftedClock(step_s=LOOKS_AGAIN_S))


class ShiftedClock:
    """A clock that is some days ahead, and on which `step_s` passes with each look at monotonic()."""

    def __init__(self, days: int = 0, *, step_s: float = 0.0) -> None:
        self._days, self._step_s, self._steps_s = days, step_s, 0.0

    def monotonic(self) -> float:
        self._steps_s += self._step_s
        return time.monotonic() + self._steps_s

    def wall_ns(self) -> int:
        return time.time_ns() + self._days * DAY_NS

    def age_s(self, timestamp_ns: int) -> float:
        return 0.0


def seen(root: Path | str, *, behind: int = 0) -> Seen:
    """Files with their footers, the account of the gap report, and each record with its content.

    `behind`: only the files with a higher drain_seq, as a stream that stands there reads them.
    """
    infos = file_infos(str(root))
    files = [info.file for info in infos]
    chosen = [file for file in files if file.name.drain_seq > behind]
    names = [(info.file.name, info.footer, info.error) for info in infos]
    return names, account(_without_places(infos)), sorted(read(str(root), chosen, files))


def _without_places(infos: list[Any]) -> list[Any]:
    return [info._replace(file=StoredFile(info.file.name, "", 0, 0.0)) for info in infos]


def read(root: str, chosen: list[StoredFile], files: list[StoredFile]) -> Iterator[tuple[Any, ...]]:
    """Identity and content of the records of the chosen files, as tasks read them."""
    landing = Landing(root)
    columns = {"offset", "timestamp", "topic", "payload", "properties", "qos", "retain"}
    for task in tasks_of(chosen, files):
        name = name_of(task.path)
        assert name is not None
        if is_parquet(task.path):
            with landing.parquet(task.path) as file:
                batches = list(parquet_reader.rows_of(file, task.path, name, columns))
        else:
            batches = list(decode_file(landing.read(task.path, task.length), columns))
        for batch in batches:
            rows = zip(*(batch.columns[column].to_pylist() for column in sorted(columns)), strict=True)
            for offset, row in enumerate(rows, batch.first_offset):
                if any(first <= offset <= last for first, last in task.ranges):
                    yield name.stream, name.partition, name.epoch, offset, str(row)
