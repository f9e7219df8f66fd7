"""Merged files in a plan: the tasks are those for the files that they replace, of which few are looked at."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.errors import FilesMissing
from bridge.format.drained_file import FileFooter
from bridge.format.file_name import FileName
from bridge.format.merged_file import merged_footer
from bridge.spark import landing_zone
from bridge.spark.landing_zone import Landing, MergedFile, StoredFile, parts_of, unique
from bridge.spark.merged_files import cut, divided, table_end
from bridge.spark.micro_batch import advance, between
from bridge.spark.task_planning import FileTask, tasks_of
from bridge.spark.unread_files import UnreadFiles
from tests.support.mergeable_lakes import make_lake, merger, stores

DAY, EPOCH = "2026-01-02", 7
OLD_S, YOUNG_S = 100.0, 2e9  # before and long after the end of that day


def footer_of(seq: int, partition: int, first: int, last: int) -> FileFooter:
    return FileFooter(
        "a", "default", partition, EPOCH, 0, None, first, last, last - first + 1, 1, 2, seq, (), (), seq
    )


def stored(footer: FileFooter, modified_s: float = OLD_S) -> StoredFile:
    name = footer.name(DAY)
    merged = MergedFile(name, 100, footer) if footer.merged else None
    return StoredFile(name, f"/lake/{name.path}", 100, modified_s, merged)


@st.composite
def lakes(draw: st.DrawFn) -> list[StoredFile]:
    """Files of two partitions, some missing, some with records of others, some merged, some there twice."""
    chance = random.Random(draw(st.integers(0, 1 << 30)))
    ends, lanes = [0, 0], ([], [])  # type: tuple[list[int], tuple[list[FileFooter], ...]]
    for seq in range(1, draw(st.integers(1, 14)) + 1):
        partition = chance.randrange(2)
        if chance.random() < 0.1:
            ends[partition] = max(0, ends[partition] - chance.randrange(25))
        first = ends[partition]
        ends[partition] = first + chance.randrange(1, 9)
        if chance.random() > 0.06:
            lanes[partition].append(footer_of(seq, partition, first, ends[partition] - 1))
    files = []
    for lane in lanes:
        group: list[FileFooter] = []
        for footer in [*lane, None]:
            if (
                footer
                and group
                and group[-1].last_offset + 1 == footer.first_offset
                and chance.random() < 0.7
            ):
                group.append(footer)
                continue
            if len(group) > 1:
                files.append(stored(merged_footer(group), chance.choice([OLD_S, YOUNG_S])))
            if len(group) == 1 or chance.random() < 0.2:  # not yet removed
                files += map(stored, group)
            group = [footer] if footer else []
    return files


def outcome(plan: Any) -> Any:
    try:
        return plan()
    except FilesMissing as error:
        return str(error)


def of_parts(
    files: list[StoredFile], start: dict[str, int], ending: int, young_s: float | None
) -> tuple[dict[str, int], list[FileTask]]:
    parts = unique(part for file in files for part in parts_of(file))
    end = {
        edge: min(number, ending) for edge, number in advance(start, parts, younger_than_s=young_s).items()
    }
    chosen = between(start, end, parts, dense=young_s is not None)
    return end, sorted(tasks_of(chosen, parts), key=lambda task: task.path)


def of_whole_files(
    files: list[StoredFile], start: dict[str, int], ending: int, young_s: float | None
) -> tuple[dict[str, int], list[FileTask]]:
    present = cut(divided(files), start)
    end = {edge: min(number, ending) for edge, number in table_end(start, present, young_s).items()}
    present = cut(present, end)
    chosen = between(start, end, present, dense=False)
    return end, sorted(tasks_of(chosen, present), key=lambda task: task.path)


@settings(max_examples=300, deadline=None)
@given(lakes(), st.sampled_from([{}, {"a": 0}, {"a": 3}, {"a": 6}, {"b": 2}]), st.integers(1, 16), st.data())
def test_the_tasks_are_those_for_the_replaced_files(
    files: list[StoredFile], start: dict[str, int], ending: int, data: st.DataObject
) -> None:
    young_s = data.draw(st.sampled_from([None, OLD_S, 1.8e9]))
    expected = outcome(lambda: of_parts(files, start, ending, young_s))
    assert outcome(lambda: of_whole_files(files, start, ending, young_s)) == expected


def test_a_merged_file_stays_whole_unless_another_has_some_of_its_records() -> None:
    one = stored(merged_footer([footer_of(seq, 0, 10 * seq, 10 * seq + 9) for seq in (1, 2, 3)]))
    two = stored(merged_footer([footer_of(seq, 0, 10 * seq, 10 * seq + 9) for seq in (4, 5)]))
    replaced, again = stored(footer_of(2, 0, 20, 29)), stored(footer_of(6, 0, 55, 64))
    assert divided([one, two, replaced]) == [one, two]
    assert [file.name.drain_seq for file in divided([one, two, again])] == [3, 4, 5, 6]
    assert cut([one, two], {"a": 4}) == [one, *parts_of(two)]
    assert cut([one, two], {"a": 3}) == [one, two]


def test_a_stream_opens_no_merged_file_that_it_has_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_lake(tmp_path, "brim")
    store = stores(tmp_path)
    merger(tmp_path, store).run_pass()
    store.close()
    opened: list[FileName | None] = []
    footer = Landing._footer

    def counted(self: Landing, place: Any, path: str, length: int) -> FileFooter:
        opened.append(landing_zone.name_of(path))
        return footer(self, place, path, length)

    monkeypatch.setattr(Landing, "_footer", counted)
    unread = UnreadFiles(Landing(str(tmp_path)), [])
    unread.refresh()
    last = unread.latest()["edge-1"]
    merged = [name for listed in unread._days.values() for name in listed.files if name.merged]
    assert len(merged) >= 4
    unread.mark_read({"edge-1": last - 2})
    assert [file.name.drain_seq for file in unread.files()] == [last - 1, last]
    assert {name.drain_seq for name in opened if name} == {
        name.drain_seq for name in merged if name.drain_seq > last - 2
    }
    everything = UnreadFiles(Landing(str(tmp_path)), [])
    everything.refresh()
    assert len(everything.files()) == last
    everything.mark_read({"edge-1": last - 2})
    assert everything.read_ranges == unread.read_ranges
