"""Epochs: numbers that are never used twice, whatever happens to the files that keep them."""

import os
from functools import partial

import msgspec
import pytest

from bridge.drain.checkpoint import Checkpoint
from bridge.format.cursor import Cursor
from edge.config.schema import Config
from edge.consumers.offset_journal import Journal
from edge.consumers.offset_store import OffsetStore
from edge.errors import EdgeError
from edge.server.epoch_traces import highest_trace
from edge.session_store.journal_records import Rings, encode_record
from edge.session_store.snapshot_file import Origin, write_snapshot
from edge.streams.epochs import EPOCH_MARGIN, Epochs, pack_epochs, unpack_epochs
from persistence.files import OsFiles
from ringbuf import Ring
from tests.support.project import ROOT

GOLDEN = ROOT / "tests" / "golden" / "state"
EPOCHS = {"default-0": 1_700_000_000, "press@camera": 1_700_000_123, "sessions": 7}


def test_an_epoch_is_one_more_than_all_before_it_and_no_clock_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr("time.time", lambda: pytest.fail("an epoch depends on the clock"))
    epochs = Epochs(tmp_path / "epochs")
    assert [epochs.next("a"), epochs.next("a"), epochs.next("b", above=5_000)] == [1, 2, 5_001]
    again = Epochs(tmp_path / "epochs")
    assert [again.next("a"), again.next("c"), again.next("b")] == [5_002, 5_002, 5_002]
    assert Epochs(tmp_path / "epochs", in_use=lambda: 6_000).next("a") == 6_001


def test_a_life_begins_with_the_first_epoch_after_a_start_above_all_that_are_in_use(tmp_path):
    began: list[int] = []
    for in_use in (0, 0, 70):
        epochs = Epochs(tmp_path / "epochs", in_use=partial(int, in_use), begin_life=began.append)
        epochs.next("a")
        epochs.next("b")
    assert began == [1, 2, 71]


def test_epochs_that_no_longer_fit_are_an_error_and_not_a_wrap(tmp_path):
    with pytest.raises(EdgeError, match="exceeds 4294967295"):
        Epochs(tmp_path / "epochs").next("a", above=(1 << 32) - 1)


@pytest.mark.parametrize("name", ["epochs", "epochs.copy"])
def test_no_flipped_bit_of_a_file_costs_an_epoch_or_a_start(tmp_path, name, caplog):
    Epochs(tmp_path / "epochs").next("a", above=5_000)
    data = (tmp_path / name).read_bytes()
    for bit in range(len(data) * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        (tmp_path / name).write_bytes(damaged)
        Epochs(tmp_path / "epochs")
        assert (tmp_path / "epochs").read_bytes() == (tmp_path / "epochs.copy").read_bytes() == data
        assert (tmp_path / f"{name}.bad").read_bytes() == damaged
    assert Epochs(tmp_path / "epochs").next("a") == 5_002
    assert "epochs file damaged" in caplog.text


@pytest.mark.parametrize("length", range(0, 50, 7))
def test_a_file_that_was_cut_or_removed_is_made_from_its_copy(tmp_path, length):
    Epochs(tmp_path / "epochs").next("a", above=5_000)
    os.truncate(tmp_path / "epochs", length)
    assert Epochs(tmp_path / "epochs").next("a") == 5_002
    (tmp_path / "epochs").unlink()
    assert Epochs(tmp_path / "epochs").next("a") == 5_003


def test_of_two_files_that_differ_the_higher_epochs_count(tmp_path):
    """A crash between the two writes leaves the copy one behind."""
    (tmp_path / "epochs").write_bytes(pack_epochs({"a": 8, "b": 3}))
    (tmp_path / "epochs.copy").write_bytes(pack_epochs({"a": 7, "c": 9}))
    assert Epochs(tmp_path / "epochs").next("c") == 10
    assert unpack_epochs((tmp_path / "epochs").read_bytes()) == {"a": 10, "b": 10, "c": 10}


@pytest.mark.parametrize(
    "damaged", [b"", b"\0" * 100, os.urandom(100), b'{"a": "x"}', b'{"a": 99999999999}'], ids=len
)
def test_epochs_of_which_both_files_are_damaged_are_rebuilt_above_all_that_is_known(
    tmp_path, caplog, damaged
):
    for name in ("epochs", "epochs.copy"):
        (tmp_path / name).write_bytes(damaged)
    epochs = Epochs(tmp_path / "epochs", lambda: 1_700_000_000)
    assert epochs.next("a") == epochs.next("b") == 1_700_000_000 + EPOCH_MARGIN
    assert (tmp_path / "epochs.bad").read_bytes() == (tmp_path / "epochs.copy.bad").read_bytes() == damaged
    assert "epochs rebuilt" in caplog.text
    assert Epochs(tmp_path / "epochs", pytest.fail).next("a") == 1_700_000_001 + EPOCH_MARGIN


@pytest.mark.parametrize(("trace", "first"), [(5, 5 + EPOCH_MARGIN), (0, 1)])
def test_lost_files_are_reported_and_a_first_start_is_not(tmp_path, caplog, trace, first):
    assert Epochs(tmp_path / "epochs", lambda: trace).next("a") == first
    assert ("epochs rebuilt" in caplog.text) == bool(trace)


def test_version_1_is_read_and_becomes_version_2_with_a_copy(tmp_path):
    (tmp_path / "epochs").write_bytes(msgspec.json.encode(EPOCHS))
    Epochs(tmp_path / "epochs")
    for name in ("epochs", "epochs.copy"):
        assert unpack_epochs((tmp_path / name).read_bytes()) == EPOCHS


def test_what_is_written_are_the_golden_bytes():
    assert pack_epochs(EPOCHS) == (GOLDEN / "epochs-v2.bin").read_bytes()
    for version in (1, 2):
        assert unpack_epochs((GOLDEN / f"epochs-v{version}.bin").read_bytes()) == EPOCHS


def _in_a_ring(config: Config, epoch: int) -> None:
    Ring.create(config.runtime_dir / "x-0", capacity_bytes=1 << 16, epoch=epoch).close()


def _in_a_bridge_checkpoint(config: Config, epoch: int) -> None:
    (config.state_dir / "bridge").mkdir()
    checkpoint = Checkpoint.open(config.state_dir / "bridge" / "lake.checkpoint", "edge", "sink")
    checkpoint.move(Cursor("x", 0, 5 << 32 | epoch, 0, 0))  # as in the lake
    checkpoint.save()
    checkpoint.close()


def _in_consumer_offsets(config: Config, epoch: int) -> None:
    (config.state_dir / "consumers").mkdir()
    store = OffsetStore(Journal(OsFiles(), str(config.state_dir / "consumers"), "offsets"))
    store.note_place("group", "x-0", epoch, 5, None, 0)
    store.flush(sync=False)
    store.close()


def _in_a_session_checkpoint(config: Config, epoch: int) -> None:
    frames = [(b"n", encode_record(Rings({1: ("x-0", epoch, 0)})))]
    write_snapshot(config.state_dir / "sessions.state", Origin(3, 0, 0), frames, sync=False)


@pytest.mark.parametrize(
    "leave",
    [_in_a_ring, _in_a_bridge_checkpoint, _in_consumer_offsets, _in_a_session_checkpoint],
)
def test_an_epoch_is_found_wherever_it_has_left_a_trace(tmp_path, runtime_directory, leave):
    config = Config(runtime_dir=runtime_directory, state_dir=tmp_path)
    epoch = 4_000_000_000
    leave(config, epoch)
    assert highest_trace(config, [17]) == epoch
    assert highest_trace(config, [epoch + 1]) == epoch + 1
    (tmp_path / "epochs.bad").touch()
    os.utime(tmp_path / "epochs.bad", (epoch + 9, epoch + 9))  # a clock that was wrong
    assert highest_trace(config, []) == epoch


class CountedFiles(OsFiles):
    """Counts the files that get a name."""

    renamed = 0

    def rename(self, old: str, new: str) -> None:
        self.renamed += 1
        super().rename(old, new)


def test_all_known_rings_get_their_epochs_by_the_first_write_after_a_start(tmp_path):
    path, names = tmp_path / "epochs", ("a", "b", "c", "d")
    first = Epochs(path)
    before = {name: first.next(name) for name in names}
    files = CountedFiles()
    epochs = Epochs(path, files=files)
    given = {name: epochs.next(name) for name in names}
    assert files.renamed == 2  # the file and its copy
    assert min(given.values()) > max(before.values())
    assert unpack_epochs(path.read_bytes()) == given
    assert epochs.next("b") > given["b"]  # a ring may begin twice in a life of the broker
    again = Epochs(path)
    assert again.next("a") > max(given.values())
    assert again.next("c", above=100) == 101
    assert unpack_epochs(path.read_bytes())["c"] == 101
