"""Losses of a partition: each is counted once, with its cause, through crashes, and bounded in number."""

from pathlib import Path

import pytest

from bridge.drain.commands import skip
from bridge.drain.lag import LagMeter
from bridge.drain.loss_report import losses_of
from bridge.drain.losses import DAMAGED, OVERWRITTEN, RANGES_MAX, RETENTION, Losses
from bridge.drain.status import BridgeState
from bridge.errors import SinkUnavailable
from bridge.format.drained_file import EarlierRanges
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
from tests.support.drained_files import offsets_drained


def reported(drained: SteppedDrain) -> tuple[dict[str, int], EarlierRanges, int]:
    """Lost records by cause, their ranges, and how many no file declares yet; of the only partition."""
    meter = LagMeter(drained)
    meter.lags()
    (row,) = losses_of(drained, meter.gone)
    return dict(row.losses.lost_by), row.losses.lost, row.undeclared_records


def test_a_loss_before_the_sink_was_reached_is_reported_at_each_measurement(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with ring(runtime_directory) as made, drain(settings(runtime_directory, tmp_path)) as drained:
        publish(made, 5000)
        drained.scan_if_due()
        meter, oldest = LagMeter(drained), made.extremes().oldest_offset
        for _ in range(2):  # the second time between two searches
            (lag,) = meter.lags()
            assert lag.lag_records == 5000 - oldest
            assert [(gone.first, gone.last) for gone in meter.gone.values()] == [(0, oldest - 1)]


def test_a_loss_is_counted_once_however_often_the_bridge_is_killed(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        publish(made, 5)
        with drain(chosen) as drained:
            run_dry(drained)
        publish(made, 5000)
        oldest = made.extremes().oldest_offset
        lost = ((EPOCH, 5, oldest - 1),)
        answer_lost = FailingSink(tmp_path / "lake")
        answer_lost.after = [SinkUnavailable("the answer was lost")]
        with drain(chosen, answer_lost) as drained:
            drained.scan_if_due()
            assert reported(drained) == ({OVERWRITTEN: oldest - 5}, lost, oldest - 5)
            with pytest.raises(SinkUnavailable):
                run_dry(drained)
        for _ in range(2):
            with drain(chosen) as drained:
                run_dry(drained)
                assert reported(drained) == ({OVERWRITTEN: oldest - 5}, lost, 0)
    (offsets,) = offsets_drained(tmp_path / "lake").values()
    assert offsets == [*range(5), *range(oldest, 5005)]


def test_losses_are_reported_while_a_sink_that_does_not_answer_has_files(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path, window=2)
    silent = Gates(tmp_path / "lake")
    with ring(runtime_directory) as made, drain(chosen, silent) as drained:
        publish(made, 5)
        begin_all(drained, 1)
        publish(made, 5000)
        oldest = made.extremes().oldest_offset
        begin_all(drained, 2)  # the second file declares what was lost before it
        assert reported(drained) == ({OVERWRITTEN: oldest - 5}, ((EPOCH, 5, oldest - 1),), oldest - 5)
        publish(made, 5000)
        lost = ((EPOCH, 5, oldest - 1), (EPOCH, 5005, made.extremes().oldest_offset - 1))
        count = sum(last - first + 1 for _, first, last in lost)
        assert reported(drained) == ({OVERWRITTEN: count}, lost, count)
        for gate in silent.open.values():
            gate.set()
        run_dry(drained)
        assert reported(drained) == ({OVERWRITTEN: count}, lost, 0)


def test_what_an_operator_skips_is_skipped_and_neither_lost_nor_complete(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        publish(made, 5)
        with drain(chosen) as drained:
            run_dry(drained)
            publish(made, 10)
            skip(drained, None, None)
            for turn in range(2):  # before a file declares it, and after
                (row,) = losses_of(drained, {})
                assert (row.losses.skipped, row.losses.skipped_records) == (((EPOCH, 5, 14),), 10)
                assert row.losses.lost_records == 0
                state = BridgeState("lake", "", "idle", losses=(row,)).as_dict()
                assert (state["verdict"], state["skipped_records"], state["lost_records"]) == (
                    "skipped",
                    10,
                    0,
                )
                if not turn:
                    publish(made, 1)
                    run_dry(drained)


def test_each_cause_is_counted_by_itself_and_a_range_only_once() -> None:
    found = Losses().with_lost(((7, 0, 9),), OVERWRITTEN).with_lost(((7, 5, 19),), RETENTION)
    assert found.lost_by == {OVERWRITTEN: 10, RETENTION: 10}
    assert (found.lost, found.lost_ranges) == (((7, 0, 19),), 1)
    found = found.with_lost(((8, 0, 3),), RETENTION, damaged=((8, 1, 2),))
    assert found.lost_by == {OVERWRITTEN: 10, RETENTION: 12, DAMAGED: 2}
    assert (found.lost, found.lost_ranges) == (((7, 0, 19), (8, 0, 3)), 2)


def test_of_many_ranges_the_latest_are_kept_and_all_are_counted() -> None:
    found = Losses()
    for number in range(RANGES_MAX + 8):
        found = found.with_lost(((7, 10 * number, 10 * number),), OVERWRITTEN)
    assert (len(found.lost), found.lost_ranges, found.lost_records) == (
        RANGES_MAX,
        RANGES_MAX + 8,
        RANGES_MAX + 8,
    )
    assert found.lost[-1] == (7, 10 * (RANGES_MAX + 7), 10 * (RANGES_MAX + 7))


def test_a_bridge_that_does_not_run_or_has_more_to_drain_is_not_complete() -> None:
    assert BridgeState("lake", "", "idle").verdict == "complete"
    assert BridgeState("lake", "", "draining", lag_records=1).verdict == "waiting"
    assert {BridgeState("lake", "", it).verdict for it in ("starting", "stopped", "failed")} == {"unknown"}


def test_losses_are_reported_again_at_each_start(runtime_directory: Path, tmp_path: Path) -> None:
    """To publishers of durability "upstream": the broker may have been killed before it knew of them."""
    chosen = settings(runtime_directory, tmp_path)
    told: list[tuple[str, int, int, tuple[tuple[int, int], ...]]] = []
    with ring(runtime_directory) as made:
        publish(made, 5)
        with drain(chosen) as drained:
            run_dry(drained)
        publish(made, 5000)
        with drain(chosen) as drained:
            run_dry(drained)
        oldest = made.extremes().oldest_offset
        with drain(chosen, on_progress=lambda *it: told.append((*it[:3], tuple(it[3])))) as drained:
            run_dry(drained)
    assert told == [("default-0", EPOCH, 5005, ((5, oldest - 1),))]
