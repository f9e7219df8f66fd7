"""Skip and backfill while files are in flight: no command waits for a sink that is not reachable."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bridge.drain.bridge import Bridge
from bridge.drain.commands import backfill, skip
from bridge.errors import SinkUnavailable
from bridge.format.cursor import Cursor
from bridge.format.write_intent import WriteIntent
from bridge.rangeset import union
from bridge.source.partition_source import RingName
from tests.support import bridges
from tests.support.bridges import EPOCH, FailingSink, drain, drain_next_to_backlog, publish, ring, run_dry
from tests.support.drained_files import footers, offsets_drained
from tests.support.waiting import PATIENCE_S, wait_until

DOWN = SinkUnavailable("down")


def test_what_is_under_way_arrives_and_what_waits_behind_it_is_skipped(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = FailingSink(tmp_path / "lake")
    sink.before = [DOWN] * 3
    chosen = bridges.settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        with drain(chosen, sink) as drained:
            publish(made, 10)
            with pytest.raises(SinkUnavailable):
                run_dry(drained)
            publish(made, 20)
            would = ["default-0: 20 records would be skipped, offsets 10 to 29"]
            for _ in range(2):  # and are not
                assert skip(drained, "default", 0, preview=True) == would
            assert skip(drained, "default", 0) == ["default-0: 20 records are skipped, offsets 10 to 29"]
            assert skip(drained, "default", 0, preview=True) == ["nothing waits"]
            assert skip(drained, "default", 0) == ["nothing waits"]
        with drain(chosen, sink) as drained:  # it outlives the process
            with pytest.raises(SinkUnavailable):
                run_dry(drained)
            sink.before = []
            run_dry(drained)
            publish(made, 5)
            run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): [*range(10), *range(30, 35)]}
    assert [footer.skipped for footer in footers(tmp_path)] == [(), ((10, 29),)]


def test_a_backfill_begins_while_a_file_is_under_way(runtime_directory: Path, tmp_path: Path) -> None:
    sink = FailingSink(tmp_path / "lake")
    with (
        ring(runtime_directory) as made,
        drain(bridges.settings(runtime_directory, tmp_path), sink) as drained,
    ):
        publish(made, 20)
        run_dry(drained)
        sink.before = [DOWN]
        publish(made, 10)
        with pytest.raises(SinkUnavailable):
            run_dry(drained)
        assert backfill(drained, "default", 0, 5) == ["default-0: offsets 5 to 19 are drained again"]
        run_dry(drained)
        assert drained.checkpoint.cursors["default", 0].next_offset == 30
    there = offsets_drained(tmp_path / "lake")["default", 0, EPOCH]
    assert sorted(there) == sorted([*range(20), *range(5, 20), *range(20, 30)])
    assert not any(footer.lost or footer.skipped for footer in footers(tmp_path))


def test_a_bridge_whose_sink_is_away_does_as_it_is_told(runtime_directory: Path, tmp_path: Path) -> None:
    sink = FailingSink(tmp_path / "lake")
    sink.before = [DOWN] * 100_000
    bridge = Bridge(bridges.settings(runtime_directory, tmp_path), sink=sink)
    with ring(runtime_directory) as made:
        publish(made, 10)
        bridge.start()
        try:
            wait_until(lambda: bridge.state().condition == "retrying")
            publish(made, 5)
            assert bridge.skip().result(PATIENCE_S) == ["default-0: 5 records are skipped, offsets 10 to 14"]
            sink.before = []
            assert bridge.flush(20)
        finally:
            bridge.stop()
            sink.close()
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(10))}


def test_the_number_of_skipped_records_has_none_that_is_drained_already(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Of two partitions; in one of them live records were drained next to a backlog."""
    chosen = bridges.settings(runtime_directory, tmp_path, file_bytes=4096, live_after_ms=0)
    with ring(runtime_directory) as made, ring(runtime_directory, "default-1") as other:
        publish(made, 5)
        publish(other, 5)
        with drain(chosen) as drained:
            run_dry(drained)
            drain_next_to_backlog(made, drained)
            reached = drained.cursor_of(RingName("default", 0))
            assert reached is not None
            covered = {offset for start, stop in reached.ahead for offset in range(start, stop)}
            waiting = set(range(reached.next_offset, 225)) - covered
            assert covered
            publish(other, 1)
            wanted = [
                f"default-0: {len(waiting)} records are skipped, offsets {min(waiting)} to 224"
                " without those that are drained",
                "default-1: 1 record is skipped, offset 5",
                f"2 partitions: {len(waiting) + 1} records are skipped",
            ]
            assert skip(drained, None, None) == wanted


def declared(root: Path) -> tuple[set[int], set[int], set[int]]:
    """Offsets of the partition that are in files, declared lost, and declared skipped."""
    lost, skipped = set[int](), set[int]()
    for footer in footers(root):
        for offsets, ranges, earlier in (
            (lost, footer.lost, footer.earlier_lost),
            (skipped, footer.skipped, footer.earlier_skipped),
        ):
            for epoch, first, last in (*((footer.epoch, *pair) for pair in ranges), *earlier):
                offsets.update(range(first, last + 1) if epoch == EPOCH else ())
    return set(offsets_drained(root / "lake")["default", 0, EPOCH]), lost, skipped


@pytest.mark.parametrize("again", [False, True])
def test_records_that_were_drained_ahead_are_not_declared_skipped(
    runtime_directory: Path, tmp_path: Path, again: bool
) -> None:
    """`again`: the bridge restarts before a file declares what was skipped."""
    chosen = bridges.settings(runtime_directory, tmp_path, file_bytes=4096, live_after_ms=0)
    with ring(runtime_directory) as made:
        publish(made, 5)
        with drain(chosen) as drained:
            run_dry(drained)
            drain_next_to_backlog(made, drained)
            drained.collect()
            skip(drained, None, None)
            if not again:
                publish(made, 5)
                run_dry(drained)
        if again:
            with drain(chosen) as drained:
                publish(made, 5)
                run_dry(drained)
    there, lost, skipped = declared(tmp_path)
    assert set(range(205, 225)) & there
    assert (there & skipped, there | skipped, lost) == (set(), set(range(230)), set())


def test_what_was_skipped_is_declared_when_the_rest_of_the_backlog_is_lost(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = bridges.settings(runtime_directory, tmp_path, file_bytes=4096, live_after_ms=0)
    with ring(runtime_directory) as made:
        publish(made, 5)
        with drain(chosen) as drained:
            run_dry(drained)
            drain_next_to_backlog(made, drained)
            drained.collect()
            (cursor,) = drained.checkpoint.cursors.values()
            first = cursor.next_offset
            drained.redirect(RingName("default", 0), cursor.passed(first + 3))
            drained.collect()
        made.unlink()
    with ring(runtime_directory, epoch=EPOCH + 1) as made, drain(chosen) as drained:
        publish(made, 5)
        run_dry(drained)
    there, lost, skipped = declared(tmp_path)
    assert (skipped, lost) == (set(range(first, first + 3)), set(range(first + 3, 225)) - there)
    assert there | lost | skipped == set(range(225))


# ---- after any command at any time, each offset is in a file or declared ----


class Partition:
    """A cursor, files under way that arrive in their order, and what files then hold and say."""

    def __init__(self) -> None:
        self.cursor = Cursor("default", 0, EPOCH, 0, 0)
        self.intents: list[WriteIntent] = []
        self.end = 0
        self.told: list[int] = []  # each offset once, unless some are drained again on purpose

    @property
    def reached(self) -> Cursor:
        cursor = self.cursor
        for intent in self.intents:
            cursor = cursor.after(intent)
        return cursor

    def decide(self, live: bool, count: int, gone: int = 0) -> bool:
        cursor = self.reached
        start = cursor.live_offset if live else cursor.next_offset
        stop = self.end if live else cursor.stop_offset or self.end
        first = start + gone
        if first >= stop:
            return False
        last = min(first + count, stop) - 1
        lost = tuple(union((*cursor.owed, *(((start, first - 1),) if gone else ()))))
        words = (first, last, lost, cursor.skipped)
        self.intents.append(WriteIntent(1, 0, "default", 0, EPOCH, 0, None, *words))
        return True

    def arrive(self) -> None:
        intent = self.intents.pop(0)
        self.cursor = self.cursor.after(intent)
        for first, last in (*intent.lost, *intent.skipped, (intent.first_offset, intent.last_offset)):
            self.told += range(first, last + 1)

    def run_dry(self) -> None:
        for _ in range(1000):
            while self.intents:
                self.arrive()
            if not self.decide(False, 7) and not self.decide(True, 7):
                return
        raise AssertionError(self.cursor)


ACTS = st.sampled_from(["publish", "live", "backlog", "arrive", "split", "skip", "back", "gone"])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(ACTS, st.integers(1, 9)), max_size=40))
@example([("publish", 1), ("split", 1), ("publish", 1), ("live", 1), ("skip", 1), ("back", 1)])
def test_each_offset_is_in_a_file_or_declared_whatever_is_told_when(acts: list[tuple[str, int]]) -> None:
    partition = Partition()
    for what, number in acts:
        if what == "publish":
            partition.end += number
        elif what in {"live", "backlog"}:
            partition.decide(what == "live", number, gone=number // 8)
        elif what == "arrive" and partition.intents:
            partition.arrive()
        elif what == "split" and not partition.intents:
            partition.cursor = partition.cursor.split(partition.end)
        elif what == "skip":
            partition.cursor = partition.cursor.passed(partition.end)
        elif what == "gone" and not partition.intents and (stop := partition.cursor.stop_offset) is not None:
            partition.cursor = partition.cursor.lost_until(stop)
        elif what == "back":
            partition.cursor = partition.cursor.back(max(partition.cursor.next_offset - number, 0))
    partition.run_dry()
    partition.end += 1  # whose file says what was passed over last
    partition.run_dry()
    assert set(partition.told) == set(range(partition.end))
    assert len(partition.told) == partition.end or any(what == "back" for what, _ in acts)
    cursor = replace(partition.cursor, ahead=())
    assert (cursor.next_offset, cursor.skipped, cursor.owed) == (partition.end, (), ())
