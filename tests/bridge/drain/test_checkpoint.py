"""The checkpoint: what it says after each save, golden bytes, and what damage does."""

import dataclasses
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bridge.drain.checkpoint import VERSION, Checkpoint, cursors_in
from bridge.errors import CheckpointBusy, CheckpointError, CheckpointMismatch, CheckpointNewer
from bridge.format.cursor import Cursor
from bridge.format.write_intent import WriteIntent
from persistence.files import OsFiles
from tests.support.drained_files import CREATED_NS, EPOCH

GOLDEN = Path(__file__).parents[2] / "golden" / "bridge" / "checkpoint-v3.bin"
OLDER = GOLDEN.with_name("checkpoint-v1.bin")
BEFORE = GOLDEN.with_name("checkpoint-v2.bin")
WIDE = (1 << 30 | 7) << 32 | EPOCH  # as in the lake
OF_A_LOG = GOLDEN.parents[1] / "persistence" / "checkpoint-v1.bin"
SINK = "file:///srv/lake"
INTENT = WriteIntent(1, CREATED_NS, "default", 2, EPOCH, 5, (EPOCH - 9, 77), 10, 19, ((8, 9),), ((5, 7),))


@pytest.fixture
def path(runtime_directory: Path) -> Path:
    """In memory: a synchronized write to a disk would take longer than all else here."""
    return runtime_directory / "bridge" / "lake.checkpoint"


def opened(path: Path) -> Checkpoint:
    return Checkpoint.open(path, "edge-1", SINK)


def again(checkpoint: Checkpoint) -> Checkpoint:
    """As the next process finds it."""
    checkpoint.close()
    return opened(checkpoint.path)


def test_a_file_is_under_way_until_it_is_finished(path: Path) -> None:
    checkpoint = opened(path)
    assert checkpoint.fresh
    checkpoint.begin([INTENT])
    checkpoint = again(checkpoint)
    assert (checkpoint.intents, checkpoint.drain_seq, checkpoint.fresh) == ([INTENT], 0, False)
    checkpoint.finish()
    checkpoint = again(checkpoint)
    assert checkpoint.intents == [INTENT]  # until it is saved
    checkpoint.finish()
    checkpoint.save()
    checkpoint = again(checkpoint)
    assert (checkpoint.intents, checkpoint.drain_seq, checkpoint.day) == ([], 1, "2023-11-14")
    assert checkpoint.cursors == {("default", 2): Cursor("default", 2, EPOCH, 5, 20)}
    checkpoint.close()


def test_the_number_and_the_records_of_a_file_that_is_given_up_go_to_the_next(path: Path) -> None:
    checkpoint = opened(path)
    second = replace(INTENT, drain_seq=2, first_offset=20, last_offset=25, lost=(), skipped=())
    third = replace(second, drain_seq=3, first_offset=26, last_offset=29)
    checkpoint.begin([INTENT, replace(second, skipped=((3, 4),)), third])
    checkpoint.finish()
    checkpoint.give_up()
    assert checkpoint.cursors["default", 2].previous == second.previous
    checkpoint.finish()
    checkpoint.save()
    checkpoint = again(checkpoint)
    assert (checkpoint.free, checkpoint.drain_seq, checkpoint.number()) == ([2], 3, 2)
    cursor = checkpoint.cursors["default", 2]
    assert (cursor.next_offset, cursor.owed, cursor.skipped) == (30, ((20, 25),), ((3, 4),))
    late = replace(second, first_offset=30, last_offset=31, lost=((20, 25),))
    assert checkpoint.settled_to == 3
    checkpoint.begin([late])
    assert (checkpoint.free, checkpoint.number()) == ([], 4)
    assert (checkpoint.drain_seq, checkpoint.settled_to) == (3, 1)  # its number may be put again
    checkpoint.finish()
    assert (checkpoint.drain_seq, checkpoint.settled_to) == (3, 3)
    assert checkpoint.cursors["default", 2].owed == ()
    checkpoint.close()


def test_a_file_that_is_given_up_leaves_all_that_it_declares_next_to_later_ranges(path: Path) -> None:
    before, checkpoint = EPOCH - 9, opened(path)
    lost, skipped = ((before, 1, 2),), ((before, 3, 4),)
    checkpoint.begin([replace(INTENT, earlier_lost=lost, earlier_skipped=skipped)])
    cursor = Cursor("default", 2, EPOCH, 5, 40, owed=((20, 29),), skipped=((30, 39),))
    checkpoint.move(replace(cursor, earlier_lost=((before, 5, 6),), earlier_skipped=((before, 7, 8),)))
    checkpoint.give_up()
    given_up = checkpoint.cursors["default", 2]
    assert given_up.owed == ((20, 29), *INTENT.lost, (INTENT.first_offset, INTENT.last_offset))
    assert given_up.skipped == ((30, 39), *INTENT.skipped)
    assert given_up.earlier_lost == (*lost, (before, 5, 6))
    assert given_up.earlier_skipped == (*skipped, (before, 7, 8))
    checkpoint.close()


def test_offsets_before_the_first_file_of_an_epoch_wait_to_be_declared(path: Path) -> None:
    checkpoint = opened(path)
    checkpoint.begin([replace(INTENT, lost=(), skipped=())])
    checkpoint.finish()
    assert checkpoint.cursors["default", 2] == Cursor("default", 2, EPOCH, 5, 20, skipped=((5, 9),))
    checkpoint.close()


def test_a_turn_in_which_all_was_compared_is_saved_once(path: Path) -> None:
    checkpoint = opened(path)
    checkpoint.save()
    checkpoint.compared_in("turn")
    assert not checkpoint.saved
    checkpoint.save()
    checkpoint = again(checkpoint)
    assert checkpoint.turn == "turn"
    checkpoint.compared_in("turn")
    assert checkpoint.saved
    checkpoint.close()


def test_it_is_written_as_the_golden_bytes_and_read_from_them(path: Path) -> None:
    checkpoint = opened(path)
    cursor = Cursor("cam@gate", 0, WIDE, 0, 7, (1, 2), ((9, 12),), ((1, 2),), skipped=((3, 6),))
    intent = dataclasses.replace(INTENT, epoch=WIDE, installation="0123456789abcdef" * 2)
    checkpoint.move(cursor)
    checkpoint.begin([intent])
    checkpoint.close()
    assert path.read_bytes() == GOLDEN.read_bytes()
    path.write_bytes(GOLDEN.read_bytes())
    checkpoint = opened(path)
    assert checkpoint.intents == [intent]
    assert checkpoint.cursors["cam@gate", 0] == cursor
    checkpoint.close()


@pytest.mark.parametrize(("file", "more"), [(OLDER, ()), (BEFORE, (((9, 12),), ((1, 2),)))])
def test_one_of_a_version_before_is_read(path: Path, file: Path, more: tuple[Any, ...]) -> None:
    path.parent.mkdir()
    path.write_bytes(file.read_bytes())
    checkpoint = opened(path)
    assert checkpoint.intents == [INTENT]
    cursor = Cursor("cam@gate", 0, EPOCH, 0, 7, (1, 2), *more)
    assert checkpoint.cursors["cam@gate", 0] == replace(cursor, skipped=((3, 6),))
    checkpoint.close()


def test_skipped_ranges_with_drained_records_between_them_are_saved(path: Path) -> None:
    checkpoint = opened(path)
    cursors = [
        Cursor("default", 1, EPOCH, 0, 20, owed=((7, 8),), skipped=((3, 6), (9, 12))),
        Cursor("default", 2, EPOCH, 0, 20, skipped=((3, 19),)),
        Cursor("default", 3, EPOCH, 0, 20),
    ]
    for cursor in cursors:
        checkpoint.move(cursor)
    checkpoint.save()
    checkpoint = again(checkpoint)
    assert list(checkpoint.cursors.values()) == cursors
    checkpoint.close()


def test_two_drains_never_share_one(path: Path) -> None:
    first = opened(path)
    with pytest.raises(CheckpointBusy, match=str(path)):
        opened(path)
    first.close()
    opened(path).close()


@pytest.mark.parametrize(("edge", "sink"), [("edge-2", SINK), ("edge-1", "file:///srv/other")])
def test_one_of_another_edge_or_sink_is_refused(path: Path, edge: str, sink: str) -> None:
    checkpoint = opened(path)
    checkpoint.begin([INTENT])
    checkpoint.close()
    with pytest.raises(CheckpointMismatch):
        Checkpoint.open(path, edge, sink)
    opened(path).close()  # the lock was given back


def test_every_cut_and_every_flipped_bit_is_put_aside(path: Path) -> None:
    good = GOLDEN.read_bytes()
    path.parent.mkdir()
    damaged = [good[:length] for length in range(len(good))]
    damaged += [good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in range(20)]
    damaged += [good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in range(32, len(good))]
    for data in damaged:
        path.write_bytes(data)
        checkpoint = opened(path)
        assert checkpoint.fresh
        assert Path(f"{path}.damaged").read_bytes() == data
        checkpoint.close()


def test_the_checkpoint_of_a_log_is_refused_and_stays_as_it_is(path: Path) -> None:
    """They have one magic."""
    data = OF_A_LOG.read_bytes()
    path.parent.mkdir()
    path.write_bytes(data)
    with pytest.raises(CheckpointMismatch, match=f"{path} is the checkpoint of a log, not of a bridge"):
        opened(path)
    assert path.read_bytes() == data
    path.write_bytes(data[:-1])  # its content is unknown
    opened(path).close()
    assert Path(f"{path}.damaged").read_bytes() == data[:-1]


@pytest.mark.parametrize("name", ["lake.checkpoint", "lake.checkpoint.lock"])
def test_a_directory_in_its_place_is_named_with_its_remedy(path: Path, name: str) -> None:
    place = path.with_name(name)
    place.mkdir(parents=True)
    with pytest.raises(CheckpointError, match=str(place)) as caught:
        opened(path)
    assert caught.value.hint == "move or remove it"


def test_one_of_a_later_version_is_refused_and_stays_as_it_is(path: Path) -> None:
    """A sink for single records cannot tell how far it was: it would get all of them again."""
    good = GOLDEN.read_bytes()
    head, body = good[:8] + struct.pack("<II", VERSION + 1, len(good) - 32), good[32:]
    newer = head + struct.pack("<I12x", zlib.crc32(body, zlib.crc32(head))) + body
    path.parent.mkdir()
    path.write_bytes(newer)
    for _ in range(2):  # the lock was given back
        with pytest.raises(
            CheckpointNewer, match=f"version {VERSION + 1}, and this Brim reads up to"
        ) as caught:
            opened(path)
        assert "move this file away" in caught.value.hint
    assert path.read_bytes() == newer
    assert cursors_in(path) is None
    path.write_bytes(newer[:-1] + b"?")  # damaged all the same
    opened(path).close()
    assert Path(f"{path}.damaged").exists()


class FullDisk(OsFiles):
    """Lets so many bytes through, then none."""

    room = 0

    def pwritev(self, handle: int, buffers, position: int) -> int:
        if self.room <= 0:
            raise OSError(28, "No space left on device")
        written = super().pwritev(handle, [memoryview(buffers[0])[: self.room]], position)
        self.room -= written
        return written


@pytest.mark.parametrize("room", [0, 1, 100])
def test_a_save_that_fails_changes_nothing(path: Path, room: int) -> None:
    files = FullDisk()
    files.room = 1 << 20
    checkpoint = Checkpoint.open(path, "edge-1", SINK, files)
    checkpoint.begin([INTENT])
    before = path.read_bytes()
    files.room = room
    second = replace(INTENT, drain_seq=2, first_offset=20, last_offset=25, lost=(), skipped=())
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoint.begin([second])
    assert checkpoint.intents == [INTENT]
    assert path.read_bytes() == before
    files.room = 1 << 20
    checkpoint.begin([second])
    checkpoint = again(checkpoint)
    assert checkpoint.intents == [INTENT, second]
    checkpoint.close()
