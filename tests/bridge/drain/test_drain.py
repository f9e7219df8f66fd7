"""The drain, step by step: every record once, whatever fails, and every loss declared to the offset."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from bridge.drain.lag import LagMeter
from bridge.errors import SinkConflict, SinkUnavailable
from bridge.format.file_parser import parse
from bridge.source.partition_source import PartitionSource
from ringbuf import FLAG_UNCHECKED
from ringbuf.record import RecordHeader
from tests.support.bridges import (
    EPOCH,
    FailingSink,
    Gates,
    begin_all,
    drain,
    drain_next_to_backlog,
    publish,
    ring,
    run_dry,
    settings,
)
from tests.support.drained_files import footers, offsets_drained
from tests.support.waiting import wait_until


def test_every_record_of_every_partition_is_drained_once(runtime_directory: Path, tmp_path: Path) -> None:
    names = {"default-0": ("default", 0), "default-1": ("default", 1), "cam@gate": ("cam@gate", 0)}
    rings = [ring(runtime_directory, name) for name in names]
    with drain(settings(runtime_directory, tmp_path)) as drained:
        for count in (50, 1, 200):
            for made in rings:
                publish(made, count)
            run_dry(drained)
    for made in rings:
        made.close()
    assert offsets_drained(tmp_path / "lake") == {(*key, EPOCH): list(range(251)) for key in names.values()}
    found = list(footers(tmp_path))
    assert [footer.drain_seq for footer in found] == list(range(1, len(found) + 1))
    assert all(not footer.lost and not footer.skipped and footer.previous is None for footer in found)


def test_a_file_is_cut_at_its_size_at_its_records_or_by_linger(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path, file_bytes=4096, file_records=100, linger_ms=3_600_000)
    with ring(runtime_directory) as made, drain(chosen) as drained:
        publish(made, 10)
        assert drained.step() > 0  # 10 x 64 bytes wait
        assert [lag.lag_records for lag in LagMeter(drained).lags()] == [10]
        publish(made, 60)
        run_dry_full(drained)
        assert sum(footer.count for footer in footers(tmp_path)) == 64  # 64 x 64 bytes are 4096
        publish(made, 100)
        run_dry_full(drained)
        drained.partitions.flushing = True
        run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(170))}


def test_a_file_has_at_most_as_many_records_as_the_settings_say(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with (
        ring(runtime_directory) as made,
        drain(settings(runtime_directory, tmp_path, file_records=100)) as drained,
    ):
        publish(made, 630)
        run_dry(drained)
    assert [footer.count for footer in footers(tmp_path)] == [100] * 6 + [30]
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(630))}


def run_dry_full(drained) -> None:
    """Steps until no file is full."""
    while drained.step() == 0:
        pass


def test_the_next_process_goes_on_where_the_last_one_was(runtime_directory: Path, tmp_path: Path) -> None:
    with ring(runtime_directory) as made:
        for _ in range(5):
            publish(made, 30)
            with drain(settings(runtime_directory, tmp_path)) as drained:
                run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(150))}


def test_an_outage_costs_nothing_and_a_lost_answer_doubles_nothing(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = FailingSink(tmp_path / "lake")
    down = SinkUnavailable("down")
    sink.before = [down, down, None, None, down]
    sink.after = [down, None, down]
    with ring(runtime_directory) as made, drain(settings(runtime_directory, tmp_path), sink) as drained:
        failures = 0
        for _ in range(4):
            publish(made, 25)
            for _ in range(10):
                try:
                    run_dry(drained)
                    break
                except SinkUnavailable:
                    failures += 1
    assert failures == 5
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(100))}
    assert len(set(sink.puts)) == len(list(footers(tmp_path)))


def test_a_file_under_way_at_a_crash_is_the_same_file_afterwards(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Although more has come meanwhile, and whether the sink had got it or not."""
    for stored in (False, True):
        root = tmp_path / str(stored)
        root.mkdir()
        sink = FailingSink(root / "lake")
        down: list[SinkUnavailable | None] = [SinkUnavailable("down")]
        if stored:
            sink.after = list(down)
        else:
            sink.before = list(down)
        with ring(runtime_directory, f"s{stored:d}-0") as made:
            chosen = settings(runtime_directory, root, streams=(f"s{stored:d}",))
            publish(made, 40)
            with drain(chosen, sink) as drained, pytest.raises(SinkUnavailable):
                run_dry(drained)
            publish(made, 40)
            with drain(chosen, sink) as drained:
                run_dry(drained)
        assert [(it.first_offset, it.last_offset) for it in footers(root)] == [(0, 39), (40, 79)]
        assert sink.puts[0] == sink.puts[1]


def test_a_lapped_bridge_declares_exactly_what_it_lost(runtime_directory: Path, tmp_path: Path) -> None:
    with ring(runtime_directory) as made, drain(settings(runtime_directory, tmp_path)) as drained:
        publish(made, 100)
        run_dry(drained)
        publish(made, 5000, size=100)
        oldest = made.extremes().oldest_offset
        assert oldest > 100
        run_dry(drained)
    there = offsets_drained(tmp_path / "lake")["default", 0, EPOCH]
    lost = [pair for footer in footers(tmp_path) for pair in footer.lost]
    assert lost == [(100, oldest - 1)]
    assert there == [*range(100), *range(oldest, 5100)]
    assert drained.totals.lost_records == oldest - 100


def test_what_was_gone_before_the_first_look_is_declared_too(runtime_directory: Path, tmp_path: Path) -> None:
    with ring(runtime_directory, first=7) as made:
        publish(made, 3000, size=100)
        oldest = made.extremes().oldest_offset
        with drain(settings(runtime_directory, tmp_path)) as drained:
            run_dry(drained)
    first = next(footers(tmp_path))
    assert (first.epoch_first_offset, first.lost) == (7, ((7, oldest - 1),))


def test_a_bridge_that_begins_with_the_latest_declares_what_it_passed_over(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with ring(runtime_directory) as made:
        publish(made, 30)
        with drain(settings(runtime_directory, tmp_path, start="latest")) as drained:
            drained.scan_if_due()
            (lag,) = LagMeter(drained).lags()  # the sink has never been reached
            assert (lag.epoch, lag.next_offset, lag.lag_records) == (EPOCH, 30, 0)
            run_dry(drained)
            publish(made, 10)
            run_dry(drained)
    (footer,) = footers(tmp_path)
    assert (footer.skipped, footer.lost, footer.first_offset, footer.last_offset) == (((0, 29),), (), 30, 39)


def test_records_filled_in_place_are_drained_beside_the_others(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Their payload has no checksum of its own; the extent's covers it."""
    with (
        ring(runtime_directory, capacity_bytes=1 << 18) as made,
        drain(settings(runtime_directory, tmp_path)) as it,
    ):
        writer = made.writer()
        for number in range(20):
            publish(made, number % 3)
            claim = writer.claim(6000, "cam/1")
            assert claim
            with memoryview(claim) as view:
                view[:] = bytes([number]) * 6000
            claim.commit()
        run_dry(it)
    extents = [
        extent
        for path in (tmp_path / "lake").rglob("[0-9]*.brim")
        for extent in parse(path.read_bytes()).extents
    ]
    unchecked = [extent for extent in extents if extent.unchecked]
    assert len(unchecked) == 20
    assert all(RecordHeader.of(extent.body).flags & FLAG_UNCHECKED for extent in unchecked)
    list(footers(tmp_path))
    assert len(offsets_drained(tmp_path / "lake")["default", 0, EPOCH]) == made_end(20)


def made_end(claims: int) -> int:
    return sum(number % 3 + 1 for number in range(claims))


def test_the_last_records_of_a_ring_that_is_replaced_are_drained_first(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with drain(settings(runtime_directory, tmp_path)) as drained:
        with ring(runtime_directory) as made:
            publish(made, 10)
            run_dry(drained)
            publish(made, 5)
            made.unlink()
        with ring(runtime_directory, epoch=EPOCH + 5) as made:
            publish(made, 3)
            run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {
        ("default", 0, EPOCH): list(range(15)),
        ("default", 0, EPOCH + 5): list(range(3)),
    }
    assert [footer.previous for footer in footers(tmp_path)] == [None, None, (EPOCH, 15)]


def test_a_ring_that_is_gone_is_let_go_when_it_is_drained(runtime_directory: Path, tmp_path: Path) -> None:
    """Else the memory of every producer that ever was would stay."""
    chosen = settings(runtime_directory, tmp_path, linger_ms=3_600_000)
    with drain(chosen) as drained:
        with ring(runtime_directory, "cam@gate") as made:
            publish(made, 10)
            assert drained.step() > 0
            made.unlink()
        drained.drained()
        assert [lag.lag_records for lag in LagMeter(drained).lags()] == [10]
        drained.partitions.flushing = True
        run_dry(drained)
        assert LagMeter(drained).lags() == []
        assert drained.partitions.readers() == []
    assert offsets_drained(tmp_path / "lake") == {("cam@gate", 0, EPOCH): list(range(10))}


def test_an_epoch_that_ended_unseen_is_named_by_the_next_with_how_far_it_was_drained(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made, drain(chosen) as drained:
        publish(made, 10)
        run_dry(drained)
        publish(made, 5)
        made.unlink()
    with drain(chosen) as drained:
        with ring(runtime_directory, epoch=EPOCH + 1) as made:  # in which nothing is ever published
            run_dry(drained)
            made.unlink()
        with ring(runtime_directory, epoch=EPOCH + 5) as made:
            publish(made, 3)
            run_dry(drained)
    assert [footer.previous for footer in footers(tmp_path)] == [None, (EPOCH, 10)]


def test_a_ring_of_an_earlier_epoch_than_was_drained_is_an_error_that_stops_no_other(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made, drain(chosen) as drained:
        publish(made, 10)
        run_dry(drained)
        made.unlink()
    with ring(runtime_directory, epoch=EPOCH - 1) as old, ring(runtime_directory, "other-0") as other:
        publish(old, 5)
        publish(other, 5)
        with drain(chosen) as drained:
            while (
                not any("give this edge another edge_id" in lag.error for lag in LagMeter(drained).lags())
                or drained.step() == 0
            ):
                drained.step()
            (blocked,) = [lag for lag in LagMeter(drained).lags() if lag.error]
            assert blocked.lag_records == 5
            assert blocked.lag_s > 0
    assert offsets_drained(tmp_path / "lake") == {
        ("default", 0, EPOCH): list(range(10)),
        ("other", 0, EPOCH): list(range(5)),
    }


def test_a_lack_of_memory_delays_one_partition(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = PartitionSource.read

    def without_memory(source: PartitionSource, *arguments: Any) -> Any:
        if source.name.stream == "default":
            raise MemoryError
        return read(source, *arguments)

    with ring(runtime_directory) as made, ring(runtime_directory, "other-0") as other:
        publish(made, 5)
        publish(other, 5)
        with drain(settings(runtime_directory, tmp_path)) as drained:
            with monkeypatch.context() as patch:
                patch.setattr(PartitionSource, "read", without_memory)
                wait_until(lambda: drained.step() > 0 and len(offsets_drained(tmp_path / "lake")) == 1)
                assert "Cannot allocate memory" in {lag.error for lag in LagMeter(drained).lags()}
            wait_until(lambda: drained.step() > 0 and len(offsets_drained(tmp_path / "lake")) == 2)
            assert not any(lag.error for lag in LagMeter(drained).lags())


def test_a_damaged_record_is_passed_over_and_declared(runtime_directory: Path, tmp_path: Path) -> None:
    with ring(runtime_directory) as made:
        publish(made, 30)
        damage(runtime_directory, (11, 12, 20))
        with drain(settings(runtime_directory, tmp_path)) as drained:
            run_dry(drained)
    lost = list(itertools.chain.from_iterable(footer.lost for footer in footers(tmp_path)))
    assert lost == [(11, 12), (20, 20)]
    there = offsets_drained(tmp_path / "lake")["default", 0, EPOCH]
    assert there == [offset for offset in range(30) if offset not in {11, 12, 20}]


def damage(runtime_directory: Path, offsets: Iterable[int]) -> None:
    """Records of publish(), in the ring's memory."""
    with open(runtime_directory / "default-0.ring", "r+b") as file:
        data = file.read()
        for offset in offsets:
            file.seek(data.index(str(offset).encode().rjust(20, b".")))
            file.write(b"!")


def test_a_backlog_that_is_gone_to_its_last_record_is_lost_and_nothing_after_it(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path, file_bytes=4096, live_after_ms=0)
    with ring(runtime_directory) as made:
        publish(made, 5)
        with drain(chosen) as drained:
            run_dry(drained)
            publish(made, 251)  # the ring gives up 256 records at once
            while not drained.checkpoint.cursors["default", 0].ahead:
                drained.step()
            publish(made, 20)
            while drained.checkpoint.cursors["default", 0].live_offset <= 256:
                drained.step()
            drained.finish()
            cursor = drained.checkpoint.cursors["default", 0]
        while made.extremes().oldest_offset < (cursor.stop_offset or 0):
            publish(made, 1)
        assert made.extremes().oldest_offset == cursor.stop_offset  # neither behind nor before it
        with drain(chosen) as drained:
            run_dry(drained)
    declared = [pair for footer in footers(tmp_path) for pair in footer.lost]
    assert declared == [(cursor.next_offset, 255)]
    there = offsets_drained(tmp_path / "lake")["default", 0, EPOCH]
    assert sorted(there) == [*range(cursor.next_offset), *range(256, max(there) + 1)]


def test_of_the_files_of_a_crash_only_those_that_cannot_be_read_again_are_given_up(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """The second of three has damaged records by then; the first is in flight again when it is looked at."""
    sink = Gates(tmp_path / "lake")
    sink.before = [SinkUnavailable("down")] * 3
    chosen = settings(runtime_directory, tmp_path, window=3, file_bytes=4096)
    with ring(runtime_directory) as made:
        publish(made, 192)
        with drain(chosen, sink) as drained:
            begin_all(drained, 3)
            for gate in sink.open.values():
                gate.set()
        damage(runtime_directory, (70,))
        with drain(chosen, sink) as drained:
            run_dry(drained)
            publish(made, 1)
            run_dry(drained)
    there = offsets_drained(tmp_path / "lake")["default", 0, EPOCH]
    lost = [offset for footer in footers(tmp_path) for first, last in footer.lost for offset in (first, last)]
    assert lost == [64, 127]
    assert sorted(there) == [*range(64), *range(128, 193)]


def test_many_damaged_records_in_a_row_hold_nothing_up(runtime_directory: Path, tmp_path: Path) -> None:
    with ring(runtime_directory) as made:
        publish(made, 100)
        damage(runtime_directory, range(10, 60))
        with drain(settings(runtime_directory, tmp_path)) as drained:
            run_dry(drained)
            assert (drained.totals.damaged_records, drained.totals.lost_records) == (50, 50)
            assert drained.checkpoint.losses["default", 0].lost_by == {"damaged": 50}
    assert [it for footer in footers(tmp_path) for it in footer.lost] == [(10, 59)]
    there = offsets_drained(tmp_path / "lake")["default", 0, EPOCH]
    assert there == [*range(10), *range(60, 100)]


def test_damaged_records_at_the_end_are_told_of_once_however_often_they_are_looked_at(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ring(runtime_directory) as made, drain(settings(runtime_directory, tmp_path)) as drained:
        publish(made, 25)
        for first, end in ((25, 30), (30, 33)):
            publish(made, end - first)
            damage(runtime_directory, range(first, end))
            for _ in range(100):
                drained.answered.clear()
                if drained.step() > 0 and drained.in_flight:
                    assert drained.answered.wait(20)
            assert (drained.totals.records, drained.totals.damaged_records) == (25, end - 25)
        said = [it.message for it in caplog.records if "wrong checksums" in it.message]
        place = f"ring={runtime_directory}/default-0 epoch={EPOCH} from=25"
        assert said == [f"records with wrong checksums skipped {place}"]
        publish(made, 1)
        run_dry(drained)
        assert (drained.totals.damaged_records, drained.totals.lost_records) == (8, 8)
    assert [it for footer in footers(tmp_path) for it in footer.lost] == [(25, 32)]


@pytest.mark.parametrize("what", ["removed", "damaged"])
def test_a_lost_checkpoint_is_found_again_in_the_sink(
    runtime_directory: Path, tmp_path: Path, what: str
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made, ring(runtime_directory, "default-1") as other:
        for _ in range(3):
            publish(made, 20)
            publish(other, 10)
            with drain(chosen) as drained:
                run_dry(drained)
        if what == "removed":
            chosen.checkpoint_path.unlink()
        else:
            chosen.checkpoint_path.write_bytes(b"BRIMCKPT, but not really")
        publish(made, 20)
        with drain(chosen) as drained:
            run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {
        ("default", 0, EPOCH): list(range(80)),
        ("default", 1, EPOCH): list(range(30)),
    }
    sequence = [footer.drain_seq for footer in footers(tmp_path)]
    assert sequence == list(range(1, len(sequence) + 1))


@pytest.mark.parametrize("under_way", [False, True])
def test_a_checkpoint_from_a_backup_is_corrected_by_what_the_sink_has(
    runtime_directory: Path, tmp_path: Path, under_way: bool
) -> None:
    """Else its numbers would be given twice, and Spark would take the second for what it has read."""
    chosen = settings(runtime_directory, tmp_path)
    sink = FailingSink(tmp_path / "lake")
    with ring(runtime_directory) as made:
        publish(made, 20)
        with drain(chosen, sink) as drained:
            run_dry(drained)
        publish(made, 5)
        if under_way:
            sink.after = [SinkUnavailable("down")]
            with drain(chosen, sink) as drained, pytest.raises(SinkUnavailable):
                run_dry(drained)
        backup = chosen.checkpoint_path.read_bytes()
        for _ in range(3):
            publish(made, 20)
            with drain(chosen, sink) as drained:
                run_dry(drained)
        chosen.checkpoint_path.write_bytes(backup)
        publish(made, 20)
        with drain(chosen, sink) as drained:
            run_dry(drained)
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(105))}
    sequence = [footer.drain_seq for footer in footers(tmp_path)]
    assert sequence == list(range(1, len(sequence) + 1))


@pytest.mark.parametrize("what", ["lost", "of a backup"])
def test_what_waits_beside_newer_records_still_waits_when_the_checkpoint_is(
    runtime_directory: Path, tmp_path: Path, what: str
) -> None:
    """The highest offset that the sink has says nothing of those below it: the ranges in its names do."""
    chosen = settings(runtime_directory, tmp_path, file_bytes=4096, live_after_ms=0)
    with ring(runtime_directory) as made:
        publish(made, 5)
        with drain(chosen) as drained:
            run_dry(drained)
            backup = chosen.checkpoint_path.read_bytes()
            drain_next_to_backlog(made, drained)
            assert drained.checkpoint.cursors["default", 0].next_offset < 205
        if what == "lost":
            chosen.checkpoint_path.unlink()
        else:
            chosen.checkpoint_path.write_bytes(backup)
        with drain(chosen) as drained:
            run_dry(drained)
            assert drained.checkpoint.cursors["default", 0].ahead == ()
    assert sorted(offsets_drained(tmp_path / "lake")["default", 0, EPOCH]) == list(range(225))
    assert [pair for footer in footers(tmp_path) for pair in footer.lost] == []


@pytest.mark.parametrize("stored", [False, True])
def test_a_file_whose_records_are_gone_after_a_crash_is_lost_only_if_the_sink_has_not_got_it(
    runtime_directory: Path, tmp_path: Path, stored: bool
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    sink = FailingSink(tmp_path / "lake")
    (sink.after if stored else sink.before).append(SinkUnavailable("down"))
    with ring(runtime_directory) as made:
        publish(made, 20)
        with drain(chosen, sink) as drained, pytest.raises(SinkUnavailable):
            run_dry(drained)
        publish(made, 3000, size=100)
        oldest = made.extremes().oldest_offset
        with drain(chosen, sink) as drained:
            run_dry(drained)
    there = offsets_drained(tmp_path / "lake")["default", 0, EPOCH]
    begin = 20 if stored else 0
    assert there == [*range(begin), *range(oldest, 3020)]
    assert [pair for footer in footers(tmp_path) for pair in footer.lost] == [(begin, oldest - 1)]
    assert [footer.drain_seq for footer in footers(tmp_path)] == list(
        range(1, 1 + len(list(footers(tmp_path))))
    )


def test_two_edges_of_one_name_are_found_out(runtime_directory: Path, tmp_path: Path) -> None:
    """Their files collide in name and differ in content: that stops the second, and harms nothing."""
    chosen = settings(runtime_directory, tmp_path)
    twin = settings(runtime_directory, tmp_path, name="twin")
    with ring(runtime_directory) as made:
        publish(made, 10)
        with drain(chosen) as drained:
            run_dry(drained)
        path = next((tmp_path / "lake").rglob("[0-9]*.brim"))
        before = path.read_bytes()
        sink = FailingSink(tmp_path / "lake")
        sink.inner.names = lambda prefix: iter(())  # type: ignore[method-assign]  # as if both began at once
        with drain(twin, sink) as drained, pytest.raises(SinkConflict):
            run_dry(drained)
    assert path.read_bytes() == before


def test_a_checkpoint_that_is_ahead_of_its_ring_waits_for_it(runtime_directory: Path, tmp_path: Path) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made, drain(chosen) as drained:
        publish(made, 50)
        run_dry(drained)
        made.unlink()
    with ring(runtime_directory) as made:
        publish(made, 10)
        with drain(chosen) as drained:
            for _ in range(5):
                drained.step()
            # Nothing behind offset 50 is there to be read yet; it is not taken for drained, nor for lost.
            assert [lag.next_offset for lag in LagMeter(drained).lags()] == [50]
            assert drained.partitions.readers() == []
