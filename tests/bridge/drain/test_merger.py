"""Merging of small files: readers see the same before, during and after, whatever is killed."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from pyarrow import fs, parquet

from bridge.drain.bridge import Bridge
from bridge.drain.merger import Merger
from bridge.errors import BadName, SinkUnavailable
from bridge.format.file_name import is_staged
from bridge.sinks.directory import DirectorySink
from bridge.sinks.interface import MergingStore
from bridge.sinks.merging import merging_store
from bridge.sinks.registry import open_file_sink
from bridge.spark.landing_zone import Landing
from bridge.spark.task_planning import tasks_of
from bridge.spark.unread_files import UnreadFiles
from tests.support.bridges import FailingSink, drain, publish, ring, run_dry, settings
from tests.support.drained_files import drained_file_of
from tests.support.mergeable_lakes import (
    CREATED_NS,
    FORMS,
    ShiftedClock,
    drained_files,
    make_lake,
    merger,
    seen,
    stores,
)
from tests.support.s3_server import make_bucket, options, s3_server
from tests.support.waiting import wait_until

NEVER_S = 10**6
FIVE = [drained_file_of(3 * n, 3 * n + 2, drain_seq=n + 1, created_ns=CREATED_NS) for n in range(5)]
SMALL = FIVE[:4]


@pytest.fixture
def lake(runtime_directory: Path) -> Path:
    """In memory: each file is synced, and no test here cuts the power."""
    return runtime_directory / "lake"


def paths(lake: Path) -> list[str]:
    return sorted(str(path.relative_to(lake)) for path in lake.glob("edge=*/dt=*/**/*-e*"))


def merged(lake: Path) -> list[Path]:
    return sorted(path for path in lake.rglob("*.merged.*") if not is_staged(str(path)))


def by_glob(lake: Path) -> list[int]:
    """Offsets in the files that other readers of Parquet find."""
    return sorted(
        offset
        for path in lake.glob("edge=*/dt=*/*.parquet")
        for offset in parquet.read_table(path, columns=["offset"])["offset"].to_pylist()
    )


def merge(lake: Path, passes: int = 3, **changes: Any) -> Merger:
    store = stores(lake)
    made = merger(lake, store, **changes)
    for _ in range(passes):
        made.run_pass()
    store.close()
    return made


@pytest.mark.parametrize("form", FORMS)
def test_readers_see_the_same_files_records_and_losses_before_during_and_after(lake: Path, form: str) -> None:
    make_lake(lake, form)
    behind = (0, 1, 7, 10, 17, 20)
    before = [seen(lake, behind=number) for number in behind]
    count = len(paths(lake))
    merge(lake, merge_keep_s=NEVER_S)
    assert len(paths(lake)) == count + 5  # the merged files are there, and nothing was removed
    assert [seen(lake, behind=number) for number in behind] == before
    totals = merge(lake).totals
    assert totals.removed_files == 19 + (5 if form == "parquet" else 0)
    assert len(paths(lake)) == 7
    assert [seen(lake, behind=number) for number in behind] == before
    assert not list(lake.rglob("_merged"))


@pytest.mark.parametrize("form", FORMS)
def test_a_second_merger_finds_nothing_to_do(lake: Path, form: str) -> None:
    make_lake(lake, form)
    merge(lake)
    left = paths(lake)
    totals = merge(lake).totals
    assert (totals.merged_files, totals.removed_files, paths(lake)) == (0, 0, left)


@pytest.mark.parametrize("form", FORMS)
def test_files_of_a_backfill_are_merged_apart_from_those_drained_before(lake: Path, form: str) -> None:
    again = [drained_file_of(3 * n, 3 * n + 2, drain_seq=n + 4, created_ns=CREATED_NS) for n in range(1, 5)]
    make_lake(lake, form, [*SMALL, *again])
    before, rows = seen(lake), by_glob(lake)
    merge(lake)
    assert [path.name[:16] for path in merged(lake)] == ["0000000000000004", "0000000000000008"]
    assert len(paths(lake)) == 2  # all small files are gone
    assert (seen(lake), by_glob(lake)) == (before, rows)


def test_files_that_a_reader_has_planned_stay_for_the_time_of_the_setting(lake: Path) -> None:
    make_lake(lake, "parquet", SMALL)
    before = set(paths(lake))
    merge(lake, merge_keep_s=NEVER_S)
    assert before < set(paths(lake))
    [added] = set(paths(lake)) - before
    assert is_staged(added)
    assert by_glob(lake) == list(range(12))  # others pass over it


def test_a_stream_in_the_middle_of_a_merged_file_reads_the_rest_in_one_task(lake: Path) -> None:
    make_lake(lake, "brim", SMALL)
    merge(lake)
    files = Landing(str(lake)).files()
    assert [file.name.drain_seq for file in files] == [1, 2, 3, 4]
    [task] = tasks_of([file for file in files if file.name.drain_seq > 2], files)
    assert task.ranges == ((6, 11),)
    assert task.length == merged(lake)[0].stat().st_size == sum(file.length for file in files)


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_behind_a_merged_file_never_opens_it(
    lake: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lake(lake, form, SMALL)
    merge(lake)
    unread = UnreadFiles(Landing(str(lake)), [])
    unread.refresh(whole=True)
    unread.mark_read({"edge-1": 2})
    assert [file.name.drain_seq for file in unread.files()] == [3, 4]
    unread.refresh(whole=True)
    assert [file.name.drain_seq for file in unread.files()] == [3, 4]
    unread.mark_read({"edge-1": 4})
    monkeypatch.setattr(Landing, "_footer", None)  # which cannot be called
    unread.refresh(whole=True)
    assert unread.files() == []


@pytest.mark.parametrize("changes", [{"drained_to": 0}, {"merge_after_s": 1 << 31}])
def test_a_day_that_is_not_closed_and_a_bridge_that_does_not_know_its_files_merge_nothing(
    lake: Path, changes: dict[str, int]
) -> None:
    make_lake(lake, "brim", SMALL)
    before = paths(lake)
    merge(lake, **changes)
    assert paths(lake) == before


def test_a_file_that_is_not_acknowledged_is_not_merged(lake: Path) -> None:
    make_lake(lake, "brim", SMALL)
    merge(lake, drained_to=3)
    assert [path[26:42] for path in paths(lake)] == ["0000000000000003", "0000000000000004"]


def test_large_files_stay_and_merged_files_have_about_the_size_of_the_setting(lake: Path) -> None:
    files = [
        drained_file_of(n, n, drain_seq=n + 1, payload=lambda _: b"x" * (300 << 10), created_ns=CREATED_NS)
        for n in range(7)
    ]
    files.append(
        drained_file_of(7, 7, drain_seq=8, payload=lambda _: b"x" * (600 << 10), created_ns=CREATED_NS)
    )
    make_lake(lake, "brim", files)
    before = seen(lake)
    merge(lake, merge_bytes=1 << 20)
    assert seen(lake) == before
    assert [path.name[:16] for path in merged(lake)] == ["0000000000000003", "0000000000000006"]
    assert len(paths(lake)) == 4


def test_files_with_other_columns_are_in_another_merged_file(lake: Path, tmp_path: Path) -> None:
    for number, fields in enumerate(('temp = "double"', 'temp = "double", site = "string"')):
        schema = tmp_path / f"{number}.toml"
        schema.write_text(f'[[payload]]\ntopic = "#"\nformat = "json"\nfields = {{ {fields} }}\n')
        sink: Any = open_file_sink(lake.as_uri(), {"format": "parquet", "payloads": str(schema)})
        for n in range(2 * number, 2 * number + 2):
            file = drained_file_of(
                n, n, drain_seq=n + 1, payload=lambda _: b'{"temp": 2, "site": "a"}', created_ns=CREATED_NS
            )
            sink.put(replace(file, payloads=sink.schema[0]))
        sink.close()
    merge(lake)
    tables = [parquet.read_table(path) for path in merged(lake)]
    assert [table.column_names[-3:] for table in tables] == [
        ["payload", "temp", "_rescued"],
        ["temp", "site", "_rescued"],
    ]
    assert [table["temp"].to_pylist() for table in tables] == [[2.0, 2.0], [2.0, 2.0]]


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_file_stays_as_it_is_and_the_others_are_merged(lake: Path, form: str) -> None:
    make_lake(lake, form, FIVE)
    [path] = lake.rglob("0000000000000003-*")
    data = bytearray(path.read_bytes())
    data[8:40] = b"\xff" * 32
    path.write_bytes(data)
    merge(lake)
    assert [name[26:42] for name in paths(lake)] == [f"{n:016d}" for n in (2, 3, 5)]
    assert path.read_bytes() == data


@pytest.mark.parametrize("form", FORMS)
def test_a_file_that_the_disk_cannot_read_stays_and_the_others_are_merged(
    lake: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    make_lake(lake, form, FIVE)

    def opened(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name.startswith("0000000000000003-"):
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return open(path, *arguments, **options)

    monkeypatch.setattr("bridge.sinks.directory.open", opened, raising=False)
    totals = merge(lake).totals
    assert totals.merged_files == 4
    assert [name[26:42] for name in paths(lake)] == [f"{n:016d}" for n in (2, 3, 5)]


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_merged_file_is_removed_while_the_files_that_it_replaces_are_there(
    lake: Path, form: str
) -> None:
    make_lake(lake, form, SMALL)
    before = seen(lake)
    merge(lake, 1, merge_keep_s=NEVER_S)
    [path] = lake.rglob("*.merged.*")
    data = bytearray(path.read_bytes())
    data[70:100] = b"\xff" * 30
    path.write_bytes(data)
    merge(lake, 5)  # and merged again
    assert len(paths(lake)) == 1
    assert seen(lake) == before


def test_a_damaged_merged_file_stays_if_it_may_be_the_only_one(lake: Path) -> None:
    make_lake(lake, "brim", SMALL)
    merge(lake, 1, merge_keep_s=NEVER_S)
    [path] = merged(lake)
    path.write_bytes(path.read_bytes()[:70] + b"\xff" * 30 + path.read_bytes()[100:])
    next(lake.rglob("0000000000000002-*")).unlink()
    before = paths(lake)
    merge(lake)
    assert paths(lake) == before


def test_records_that_were_drained_twice_stay_in_their_second_file(lake: Path) -> None:
    make_lake(lake, "brim", SMALL)
    merge(lake, 1, merge_keep_s=NEVER_S)
    make_lake(lake, "brim", [drained_file_of(4, 5, drain_seq=5, created_ns=CREATED_NS)])
    before = seen(lake)
    merge(lake)
    assert [path[26:42] for path in paths(lake)] == ["0000000000000004", "0000000000000005"]
    assert seen(lake) == before


def test_a_second_merged_file_with_the_same_records_is_removed_and_not_published(lake: Path) -> None:
    """Two bridges of one edge, in a store without conditional writes, had different listings."""
    make_lake(lake, "parquet", SMALL)
    before = seen(lake)
    merge(lake, 1, merge_keep_s=NEVER_S, drained_to=3)
    [first] = lake.rglob("*.new")
    content, name = first.read_bytes(), first.name
    first.unlink()
    merge(lake, 1, merge_keep_s=NEVER_S)
    (first.parent / name).write_bytes(content)
    merge(lake)
    assert seen(lake) == before
    assert by_glob(lake) == list(range(12))


def test_a_bridge_that_does_not_hold_the_edge_changes_nothing(lake: Path) -> None:
    make_lake(lake, "brim", SMALL)
    before, holder = paths(lake), DirectorySink(lake)
    holder.begin("edge-1")
    with pytest.raises(SinkUnavailable, match="another bridge drains this edge"):
        merge(lake)
    holder.close()
    assert paths(lake) == before


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """An S3 server; pyarrow's threads for S3 have started."""
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[s3,server]'")
    with s3_server() as url:
        make_bucket(url, "empty")
        assert fs.FileSystem.from_uri(_url(url, "empty"))[0].get_file_info("empty").type
        yield url


def _url(server: str, path: str) -> str:
    query = f"region=us-east-1&scheme=http&endpoint_override={server.removeprefix('http://')}"
    return f"s3://who:secret@{path}?{query}"


@pytest.mark.parametrize("form", ["brim", "parquet"])
def test_an_object_store_is_merged_like_a_directory(server: str, form: str) -> None:
    make_bucket(server, form)
    sink = open_file_sink(f"s3://{form}/lake", {**options(server), "format": form})
    sink.begin("edge-1")
    for file in drained_files():
        sink.put(file)
    url = _url(server, f"{form}/lake")
    before, behind = seen(url), seen(url, behind=7)
    store = merging_store(sink)
    assert store is not None
    merger(Path("/"), store, merge_keep_s=NEVER_S).run_pass()
    assert (seen(url), seen(url, behind=7)) == (before, behind)
    made = merger(Path("/"), store)
    for _ in range(3):
        made.run_pass()
        assert (seen(url), seen(url, behind=7)) == (before, behind)
    assert len(list(store.entries("edge=edge-1/"))) == 7
    sink.close()


@pytest.mark.parametrize("what", ["lost", "of a backup", "as it was"])
def test_numbers_in_merged_files_are_not_given_again_when_the_checkpoint_is(
    runtime_directory: Path, tmp_path: Path, what: str
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        for number in range(4):
            publish(made, 20)
            with drain(chosen, clock=ShiftedClock(-3)) as drained:
                run_dry(drained)
            if number == 1:
                backup = chosen.checkpoint_path.read_bytes()
        merge(tmp_path / "lake", drained_to=4)
        assert [path.name[:16] for path in merged(tmp_path / "lake")] == ["0000000000000004"]
        if what == "lost":
            chosen.checkpoint_path.unlink()
        elif what == "of a backup":
            chosen.checkpoint_path.write_bytes(backup)
        publish(made, 20)
        with drain(chosen) as drained:
            run_dry(drained)
    files = Landing(str(tmp_path / "lake")).files()
    assert [(file.name.drain_seq, file.name.first_offset) for file in files] == [
        (n + 1, 20 * n) for n in range(5)
    ]


def test_a_bridge_merges_and_reports_it(runtime_directory: Path, tmp_path: Path) -> None:
    chosen = settings(runtime_directory, tmp_path, merge_after_s=1, merge_keep_s=0)
    with ring(runtime_directory) as made:
        for _ in range(3):
            publish(made, 20)
            with drain(chosen, clock=ShiftedClock(-3)) as drained:
                run_dry(drained)
        bridge = Bridge(chosen)
        bridge.start()
        wait_until(lambda: bridge.state().merging.written_files == 1)
        assert bridge.state().as_dict()["merging"]["merged_files"] == 3
        assert bridge.stop()
    assert len(merged(tmp_path / "lake")) == 1


def test_a_failure_of_merging_is_reported(runtime_directory: Path, tmp_path: Path) -> None:
    chosen = settings(runtime_directory, tmp_path, merge_after_s=1)
    with ring(runtime_directory) as made:
        publish(made, 20)
        with drain(chosen, clock=ShiftedClock(-3)) as drained:
            run_dry(drained)
        holder = DirectorySink(tmp_path / "lake")
        holder.begin("edge-1")
        bridge = Bridge(chosen)
        bridge.start()
        wait_until(lambda: bridge.state().merging.failed)
        assert "another bridge drains this edge" in bridge.state().merging.error
        bridge.stop()
        holder.close()


def test_a_sink_without_files_refuses_the_setting(tmp_path: Path) -> None:
    with pytest.raises(BadName, match="no files to merge"):
        Bridge(settings(tmp_path, tmp_path, merge_after_s=1), sink=FailingSink(tmp_path))


# ---- kills ----


class _Died(BaseException):
    pass


class DyingStore:
    """A store whose process dies before or after a chosen change; each removed file is one."""

    def __init__(self, store: MergingStore, at: int, *, after: bool) -> None:
        self._store, self._left, self._after = store, at, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _change(self, make: Callable[[], object]) -> None:
        self._left -= 1
        if self._left == 0 and not self._after:
            raise _Died
        make()
        if self._left == 0:
            raise _Died

    def put(self, file: Any) -> None:
        self._change(lambda: self._store.put(file))

    def publish(self, staged: str, path: str) -> None:
        self._change(lambda: self._store.publish(staged, path))

    def remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._change(partial(self._store.remove, [path]))


@pytest.mark.parametrize("form", ["brim", "parquet"])
def test_a_death_at_any_change_leaves_what_readers_see_and_the_next_merger_completes_it(
    lake: Path, form: str
) -> None:
    unmerged = lake.parent / "unmerged"
    make_lake(unmerged, form)
    before, globbed = seen(unmerged), set(by_glob(unmerged))
    shutil.copytree(unmerged, lake)
    merge(lake)
    last = paths(lake)
    deaths = 0
    for change in range(1, 100):
        for after in (False, True):
            shutil.rmtree(lake)
            shutil.copytree(unmerged, lake)
            store = stores(lake)
            made = merger(lake, DyingStore(store, change, after=after))
            try:
                for _ in range(3):
                    made.run_pass()
            except _Died:
                deaths += 1
            else:
                assert deaths == 2 * (change - 1) > 40
                return
            finally:
                store.close()
            assert seen(lake) == before
            assert set(by_glob(lake)) == globbed  # other readers miss no record
            merge(lake)
            assert seen(lake) == before
            assert paths(lake) == last


@pytest.mark.parametrize("form", ["brim", "parquet"])
def test_kill_9_at_many_lines_leaves_what_readers_see(lake: Path, form: str) -> None:
    make_lake(lake, form, SMALL)
    before = seen(lake)
    merge(lake)
    last = paths(lake)
    command = [sys.executable, "-m", "tests.support.killed_merger"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None

        def killed_at(lake: Path, line: int) -> int:
            """The number of lines of a whole merge; 0: it was killed."""
            assert process.stdin is not None
            assert process.stdout is not None
            make_lake(lake, form, SMALL)
            process.stdin.write(f"{line} {lake}\n")
            process.stdin.flush()
            word, *rest = process.stdout.readline().split()
            return 0 if word == "killed" else int(rest[0])

        lines = killed_at(lake.parent / "whole", 0)
        assert lines > 300
        for number, line in enumerate(range(1, lines, -(-lines // 25))):
            killed = lake.parent / f"killed{number}"
            assert killed_at(killed, line) == 0
            assert seen(killed) == before
            merge(killed)
            assert seen(killed) == before
            assert paths(killed) == last
        process.stdin.close()
