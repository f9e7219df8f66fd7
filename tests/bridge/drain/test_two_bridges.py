"""Two bridges of different names, one after the other, for one edge and place: no number is given twice."""

from pathlib import Path

import pytest

from bridge.errors import SinkUnavailable
from tests.support.bridges import (
    EPOCH,
    FailingSink,
    Gates,
    begin_all,
    drain,
    publish,
    ring,
    run_dry,
    settings,
)
from tests.support.drained_files import footers, offsets_drained


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("file_bytes", "of_the_other"), [(1 << 15, 320), (6144, 96)])
def test_a_bridge_that_was_killed_sees_what_another_has_put_under_the_numbers_that_it_meant_to_give(
    runtime_directory: Path, tmp_path: Path, begun: bool, file_bytes: int, of_the_other: int
) -> None:
    lake = tmp_path / "lake"
    first = settings(runtime_directory, tmp_path, window=4, file_bytes=4096)  # 64 records
    other = settings(runtime_directory, tmp_path, name="other", file_bytes=file_bytes)
    with ring(runtime_directory, capacity_bytes=1 << 18) as made:
        publish(made, 64)
        if begun:
            with drain(first, FailingSink(lake)) as drained:
                run_dry(drained)
        publish(made, 256)
        away = Gates(lake)
        away.before = [SinkUnavailable("down")] * 8
        with drain(first, away) as drained:
            begin_all(drained, 4)
            numbers = [it.drain_seq for it in drained.checkpoint.intents]
            for gate in away.open.values():
                gate.set()
        with drain(other) as drained:  # which knows no intent
            while not (cursor := drained.checkpoint.cursors.get(("default", 0))) or (
                cursor.next_offset < of_the_other
            ):
                drained.step()
            assert drained.drain_seq <= numbers[-1]  # so the next number says nothing
        publish(made, 10)
        with drain(first, FailingSink(lake)) as drained:
            run_dry(drained)
    found = list(footers(tmp_path))
    assert [it.drain_seq for it in found] == list(range(1, len(found) + 1))
    assert offsets_drained(lake) == {("default", 0, EPOCH): list(range(330))}
    assert not any(it.lost or it.skipped for it in found)
