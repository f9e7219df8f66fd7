"""Several files under way: acknowledged in any order, written down from the front, the same after a crash."""

from concurrent.futures import Future
from pathlib import Path

import pytest

from bridge.drain.checkpoint import Checkpoint, cursors_in
from bridge.drain.in_flight import InFlightFile, InFlightWindow
from bridge.drain.scheduler import BACKLOG_MIN_BYTES, Demand, Scheduler
from bridge.errors import CheckpointError, SinkBlocked, SinkError, SinkUnavailable
from bridge.format.cursor import Cursor
from bridge.format.file_name import FileName
from bridge.format.file_parser import parse, verify
from bridge.format.write_intent import WriteIntent
from bridge.rangeset import union
from bridge.source.partition_source import RingName
from tests.support.bridges import (
    EPOCH,
    FailingSink,
    Gates,
    SteppedDrain,
    begin_all,
    drain,
    publish,
    ring,
    run_dry,
    settings,
)
from tests.support.drained_files import footers, offsets_drained
from tests.support.waiting import wait_until


def collect_until(made: SteppedDrain, drain_seq: int) -> None:
    def collected() -> bool:
        made.collect()
        return made.drain_seq == drain_seq

    wait_until(collected)


def test_files_arrive_in_any_order_and_the_cursor_moves_from_the_front(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Gates(tmp_path / "lake")
    chosen = settings(runtime_directory, tmp_path, window=4, file_bytes=4096)  # 64 records
    with ring(runtime_directory, capacity_bytes=1 << 18) as made, drain(chosen, sink) as drained:
        publish(made, 300)
        begin_all(drained, 4)
        assert drained.step() > 0
        for number, done in ((3, 0), (2, 0), (1, 3), (4, 4)):
            sink.open[number].set()
            wait_until(lambda number=number: number in sink.there)  # type: ignore[misc]
            collect_until(drained, done)
            cursor = drained.checkpoint.cursors.get(("default", 0))
            assert (cursor.next_offset if cursor else 0) == 64 * done
        sink.open[5].set()
        run_dry(drained)
        (saved,) = cursors_in(chosen.checkpoint_path) or []
        assert saved.next_offset == 300
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(300))}


def test_after_a_crash_all_that_was_under_way_is_the_same_whatever_had_arrived(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Gates(tmp_path / "lake")
    chosen = settings(runtime_directory, tmp_path, window=4, file_bytes=4096)
    with ring(runtime_directory, capacity_bytes=1 << 18) as made:
        publish(made, 300)
        with drain(chosen, sink) as drained:
            begin_all(drained, 4)
            sink.open[2].set()
            wait_until(lambda: 2 in sink.there)
            sink.before = [SinkUnavailable("down")] * len(sink.open)
            for gate in sink.open.values():
                gate.set()
        publish(made, 100)
        sink.before = []
        with drain(chosen, sink) as drained:
            run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(400))}
    found = list(footers(tmp_path))
    assert [it.drain_seq for it in found] == list(range(1, len(found) + 1))
    assert [it.first_offset for it in found[:4]] == [0, 64, 128, 192]


def test_a_sink_that_is_away_is_asked_by_one_file_at_a_time(runtime_directory: Path, tmp_path: Path) -> None:
    sink = FailingSink(tmp_path / "lake")
    sink.before = [SinkUnavailable("down")] * 8
    chosen = settings(runtime_directory, tmp_path, window=4, file_bytes=4096)
    failures = 0
    with ring(runtime_directory, capacity_bytes=1 << 18) as made, drain(chosen, sink) as drained:
        publish(made, 256)
        for _ in range(20):
            try:
                run_dry(drained)
                break
            except SinkUnavailable:
                failures += 1
    assert 5 <= failures <= 8  # four at once, then one after the other
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(256))}


def test_a_file_whose_intent_cannot_be_saved_is_not_sent(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Checkpoint) -> None:
        raise CheckpointError("no space left on the disk")

    with ring(runtime_directory) as made, drain(settings(runtime_directory, tmp_path)) as drained:
        run_dry(drained)
        publish(made, 10)
        with monkeypatch.context() as patch:
            patch.setattr(Checkpoint, "save", full)
            for _ in range(2):
                with pytest.raises(CheckpointError):
                    run_dry(drained)
        drained.finish()
        assert drained.drain_seq == 0
        assert list((tmp_path / "lake").rglob("*.brim*")) == []
        run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(10))}


def test_a_stop_waits_for_the_files_in_flight_and_saves_the_progress(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = Gates(tmp_path / "lake")
    chosen = settings(runtime_directory, tmp_path, window=2)
    with ring(runtime_directory) as made, drain(chosen, sink) as drained:
        publish(made, 10)
        begin_all(drained, 1)
        sink.open[1].set()
        drained.finish()
    (saved,) = cursors_in(chosen.checkpoint_path) or []
    assert saved.next_offset == 10


def test_a_file_that_is_given_up_leaves_its_number_and_its_loss_to_the_next(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """The second of three arrives before the crash; the records of all are gone after it."""
    sink = Gates(tmp_path / "lake")
    chosen = settings(runtime_directory, tmp_path, window=3, file_bytes=4096)
    with ring(runtime_directory) as made:
        publish(made, 192)
        with drain(chosen, sink) as drained:
            begin_all(drained, 3)
            sink.open[2].set()
            wait_until(lambda: 2 in sink.there)
            sink.before = [SinkUnavailable("down")] * 2
            sink.open[1].set()
            sink.open[3].set()
        publish(made, 3000, size=100)
        oldest = made.extremes().oldest_offset
        sink.before = []
        for gate in sink.open.values():
            gate.set()
        with drain(settings(runtime_directory, tmp_path, window=3), sink) as drained:
            run_dry(drained)
    found = list(footers(tmp_path))
    assert sorted(it.drain_seq for it in found) == list(range(1, len(found) + 1))
    lost = tuple(union(pair for it in found for pair in it.lost))
    assert lost == ((0, 63), (128, oldest - 1))
    there = offsets_drained(tmp_path / "lake")["default", 0, EPOCH]
    assert sorted(there) == [*range(64, 128), *range(oldest, 3192)]


@pytest.mark.parametrize("stored", [False, True])
def test_a_compressed_file_is_a_zstd_frame_with_a_footer_that_is_read_without_it(
    runtime_directory: Path, tmp_path: Path, stored: bool
) -> None:
    sink = FailingSink(tmp_path / "lake")
    (sink.after if stored else sink.before).append(SinkUnavailable("down"))
    chosen = settings(runtime_directory, tmp_path, compress="zstd")
    with ring(runtime_directory) as made:
        publish(made, 200)
        with drain(chosen, sink) as drained, pytest.raises(SinkUnavailable):
            run_dry(drained)
        with drain(settings(runtime_directory, tmp_path), sink) as drained:  # by now it is set to none
            run_dry(drained)
    (path,) = (tmp_path / "lake").rglob("[0-9]*.brim.zst")
    file = parse(path.read_bytes(), path.name)
    verify(file, path.name)
    assert FileName.parse(str(path)) == file.name
    assert file.footer.count == 200
    assert path.stat().st_size < len(file.body) / 3


# ---- where a partition stands ----

CURSOR = Cursor("default", 0, EPOCH, 0, 100)


def intent(first: int, last: int, lost: tuple[tuple[int, int], ...] = ()) -> WriteIntent:
    return WriteIntent(1, 0, "default", 0, EPOCH, 0, None, first, last, lost, ())


def test_what_comes_in_is_drained_ahead_until_the_backlog_has_caught_up() -> None:
    split = CURSOR.split(500)
    assert (split.next_offset, split.live_offset, split.stop_offset) == (100, 500, 500)
    live = split.after(intent(500, 509)).after(intent(510, 519))
    assert (live.next_offset, live.live_offset, live.stop_offset) == (100, 520, 500)
    later = live.after(intent(100, 399)).after(intent(520, 529))
    assert (later.next_offset, later.ahead) == (400, ((500, 530),))
    done = later.after(intent(400, 499))
    assert (done.next_offset, done.skipped, done.ahead) == (530, (), ())


def test_an_outage_within_an_outage_is_one_more_gap() -> None:
    both = CURSOR.split(500).after(intent(500, 599)).split(900).after(intent(900, 909))
    assert both.ahead == ((500, 600), (900, 910))
    assert both.after(intent(100, 499)).next_offset == 600
    assert both.after(intent(100, 499)).after(intent(600, 899)).next_offset == 910


def test_what_is_gone_is_owed_until_a_file_declares_it() -> None:
    gone = CURSOR.split(500).after(intent(500, 599)).lost_until(500)
    assert (gone.next_offset, gone.owed) == (600, ((100, 499),))
    assert gone.after(intent(600, 609, lost=((90, 499),))).owed == ()


def test_ranges_that_are_gone_one_after_the_other_are_all_owed() -> None:
    twice = CURSOR.split(500).after(intent(500, 599)).split(700).after(intent(700, 799))
    gone = twice.lost_until(500).lost_until(700)
    assert (gone.next_offset, gone.owed) == (800, ((100, 499), (600, 699)))


def test_going_back_drains_again_up_to_where_it_stood() -> None:
    back = CURSOR.back(40)
    assert (back.next_offset, back.live_offset, back.stop_offset) == (40, 100, 100)
    assert back.after(intent(100, 119)).after(intent(40, 99)).next_offset == 120


def test_skipped_and_lost_ranges_that_are_drained_again_are_not_declared() -> None:
    back = CURSOR.passed(200).lost_until(300).back(150)
    assert (back.skipped, back.owed, back.next_offset) == (((100, 149),), (), 150)


def test_skipping_is_declared_without_what_was_drained_ahead() -> None:
    skipped = CURSOR.split(500).after(intent(500, 599)).passed(700)
    assert (skipped.skipped, skipped.next_offset, skipped.ahead) == (((100, 499), (600, 699)), 700, ())
    assert skipped.accounted_offset == 100


# ---- answers of the sink ----


def failed(*errors: SinkError | None) -> tuple[InFlightWindow, SinkError | None]:
    """A window of files with these answers, None for none yet, and the failure that it reports."""
    window = InFlightWindow()
    for number, error in enumerate(errors):
        file = InFlightFile(intent(10 * number, 10 * number + 9), future=Future())
        assert file.future is not None
        if error is not None:
            file.future.set_exception(error)
        window.files.append(file)
    return window, window.take_answers(0.0, lambda _: None)


def test_after_a_failure_nothing_is_sent_until_the_sink_has_answered_about_the_other_files() -> None:
    window, _ = failed(SinkUnavailable("down"), None)
    assert window.to_send() == []
    window.files[1].future = None
    assert window.to_send() == [window.files[0]]


def test_of_two_failures_the_one_that_blocks_the_bridge_is_reported() -> None:
    away, blocked = SinkUnavailable("down"), SinkBlocked("no such bucket")
    assert failed(away, blocked)[1] is failed(blocked, away)[1] is blocked


def test_a_window_begins_again_only_when_the_sink_has_none_of_its_files() -> None:
    window, _ = failed(SinkUnavailable("down"), None)
    window.rewinding = True
    assert not window.rewound()
    assert len(window) == 2
    assert window.files[1].future is not None
    window.files[1].future.set_exception(SinkUnavailable("down"))
    window.take_answers(0.0, lambda _: None)
    assert window.rewound()
    assert len(window) == 0


# ---- whose turn it is ----


def names(plan: Scheduler, wants: list[Demand], count: int, length: int = 1000) -> list[Demand]:
    chosen = []
    for _ in range(count):
        want = plan.choose(wants, 0.0)
        assert isinstance(want, Demand)
        plan.sent(want, length)
        chosen.append(want)
    return chosen


def test_live_and_backlog_share_as_they_were_told(tmp_path: Path) -> None:
    plan = Scheduler(settings(tmp_path, tmp_path, live_share=0.7))
    wants = [Demand(RingName("default", 0), True, 0), Demand(RingName("default", 0), False, 0)]
    chosen = names(plan, wants, 100)
    assert sum(want.live for want in chosen) == 70
    assert chosen[0].live
    assert not any(want.live for want in names(plan, wants[1:], 50))
    assert sum(want.live for want in names(plan, wants, 10)) in {7, 8}  # nothing is made up for


def test_streams_of_higher_priority_go_first_and_others_take_turns(tmp_path: Path) -> None:
    plan = Scheduler(settings(tmp_path, tmp_path, priorities={"alarms": 5}))
    wants = [Demand(RingName(name, 0), True, 0) for name in ("one", "two", "alarms")]
    assert [it.name.stream for it in names(plan, wants, 2)] == ["alarms", "alarms"]
    assert [it.name.stream for it in names(plan, wants[:2], 4)] == ["one", "two", "one", "two"]


def test_a_rate_is_kept_by_waiting_and_a_backlog_by_small_files(tmp_path: Path) -> None:
    plan = Scheduler(settings(tmp_path, tmp_path, rate_bytes_s=1000, linger_ms=1000))
    live, backlog = (Demand(RingName("default", 0), kind, 0) for kind in (True, False))
    (chosen,) = names(plan, [live], 1, length=3000)
    assert chosen == live
    assert plan.choose([live], 0.0) == pytest.approx(2.0)
    assert plan.choose([live], 2.5) == live
    plan.measured(1 << 20, 1.0)
    assert plan.limit_bytes(backlog) == 1 << 19
    assert plan.limit_bytes(live) == 8 << 20
    plan.measured(1, 1e9)
    for _ in range(50):
        plan.measured(1, 1.0)
    assert plan.limit_bytes(backlog) == BACKLOG_MIN_BYTES
