"""Offsets that an ended epoch did not declare: the next epoch declares them."""

from dataclasses import replace
from pathlib import Path

import pytest

from bridge.drain.commands import skip
from bridge.errors import DrainedFileError, SinkUnavailable
from bridge.format.drained_file import FileFooter
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
from tests.support.drained_files import drained_file_of, footers, offsets_drained


def test_records_that_do_not_verify_at_the_end_of_an_epoch(runtime_directory: Path, tmp_path: Path) -> None:
    with drain(settings(runtime_directory, tmp_path)) as drained:
        with ring(runtime_directory) as made:
            publish(made, 30)
            with open(runtime_directory / "default-0.ring", "r+b") as file:
                data = file.read()
                for offset in (28, 29):
                    file.seek(data.index(str(offset).encode().rjust(20, b".")))
                    file.write(b"!")
            while drained.totals.records < 28:
                drained.step()
            made.unlink()
        with ring(runtime_directory, epoch=EPOCH + 1) as made:
            publish(made, 3)
            run_dry(drained)
    one, two = footers(tmp_path)
    assert (one.first_offset, one.last_offset, one.lost) == (0, 27, ())
    assert (two.previous, two.lost, two.earlier_lost) == ((EPOCH, 30), (), ((EPOCH, 28, 29),))


def test_the_memory_of_an_ended_epoch_is_free_once_its_records_are_drained(
    runtime_directory: Path, tmp_path: Path
) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(f"{runtime_directory}/default-0.ring (deleted)")

    with drain(settings(runtime_directory, tmp_path)) as drained:
        for epoch in range(EPOCH, EPOCH + 3):
            with ring(runtime_directory, epoch=epoch) as made:
                publish(made, 3)
                run_dry(drained)
                assert mapped() == 0
                made.unlink()
            assert mapped() > 0


def test_a_file_that_is_given_up(runtime_directory: Path, tmp_path: Path) -> None:
    chosen, sink = settings(runtime_directory, tmp_path), FailingSink(tmp_path / "lake")
    sink.before = [SinkUnavailable("down")]
    with ring(runtime_directory) as made:
        publish(made, 20)
        with drain(chosen, sink) as drained, pytest.raises(SinkUnavailable):
            run_dry(drained)
        made.unlink()
    with ring(runtime_directory, epoch=EPOCH + 1) as made:  # in which nothing is ever published
        with drain(chosen, sink) as drained:
            run_dry(drained)
        made.unlink()
    with ring(runtime_directory, epoch=EPOCH + 5) as made:
        publish(made, 3)
        for count in (3, 4):
            with drain(chosen, sink) as drained:
                run_dry(drained)
            publish(made, count)
    one, two = footers(tmp_path)
    assert (one.epoch, one.earlier_lost, one.earlier_skipped) == (EPOCH + 5, ((EPOCH, 0, 19),), ())
    assert two.earlier_lost == ()
    assert one.drain_seq == 1


def test_what_was_passed_over(runtime_directory: Path, tmp_path: Path) -> None:
    with drain(settings(runtime_directory, tmp_path)) as drained:
        with ring(runtime_directory) as made:
            publish(made, 10)
            run_dry(drained)
            publish(made, 5)
            assert skip(drained, None, None) == ["default-0: 5 records are skipped, offsets 10 to 14"]
            made.unlink()
        with ring(runtime_directory, epoch=EPOCH + 1) as made:
            publish(made, 3)
            run_dry(drained)
    *_, last = footers(tmp_path)
    assert (last.previous, last.earlier_skipped) == ((EPOCH, 15), ((EPOCH, 10, 14),))
    assert offsets_drained(tmp_path / "lake")["default", 0, EPOCH] == list(range(10))


def test_the_next_epoch_begins_when_the_sink_has_the_files_of_the_one_before(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Otherwise a crash would forget them, if the sink takes records."""
    sink = Gates(tmp_path / "lake")
    with drain(settings(runtime_directory, tmp_path, window=2), sink) as drained:
        with ring(runtime_directory) as made:
            publish(made, 10)
            begin_all(drained, 1)
            made.unlink()
        with ring(runtime_directory, epoch=EPOCH + 1) as made:
            publish(made, 5)
            for _ in range(3):
                drained.step()
            assert drained.checkpoint.cursors["default", 0].epoch == EPOCH
            for gate in sink.open.values():
                gate.set()
            run_dry(drained)
            assert drained.checkpoint.cursors["default", 0].epoch == EPOCH + 1


def test_a_footer_keeps_what_it_says_of_earlier_epochs_and_is_as_before_without() -> None:
    footer = drained_file_of(0, 9).footer
    assert b"earlier" not in footer.pack()
    assert FileFooter.unpack(footer.pack()) == footer
    more = replace(footer, earlier_lost=((1, 5, 9),), earlier_skipped=((1, 0, 4), (2, 7, 7)))
    assert FileFooter.unpack(more.pack()) == more
    with pytest.raises(DrainedFileError, match="earlier_lost"):
        FileFooter.unpack(replace(more, earlier_lost=((1, 9, 5),)).pack())


def test_an_epoch_without_records_is_reported(runtime_directory: Path, tmp_path: Path) -> None:
    """To publishers of durability "upstream": the sink has all records of the epochs before."""
    told: list[tuple[int, int]] = []
    chosen = settings(runtime_directory, tmp_path)
    with drain(chosen, on_progress=lambda name, epoch, offset, lost: told.append((epoch, offset))) as drained:
        with ring(runtime_directory) as made:
            run_dry(drained)
            publish(made, 3)
            run_dry(drained)
            made.unlink()
        with ring(runtime_directory, epoch=EPOCH + 1):
            run_dry(drained)
    assert told == [(EPOCH, 0), (EPOCH, 3), (EPOCH + 1, 0)]
