"""Files that are replaced as a whole, on a disk whose power is cut before each of the calls."""

import os
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec
import pytest

from bridge.drain.checkpoint import Checkpoint
from bridge.format.installation import Installation
from edge.recovery.retained_store import _SavedPieces, _Written
from edge.session_store.snapshot_file import RECORD, Origin, read_snapshot, write_snapshot
from edge.streams.epochs import Epochs
from persistence.durable_file import TEMPORARY_SUFFIX, Envelope, read_file, replace_file
from persistence.files import Files, OsFiles
from ringbuf import FLAG_RETAIN
from ringbuf.record import encode
from tests.support.simfiles import PowerCut, SimFiles

CRASHES = 20  # of the disk at each call, by other seeds
REPLACEMENTS = 3
ENVELOPE = Envelope(b"BRIMTEST", 1)


class Content:
    """One kind of file in `directory`: the numbers 1, 2, 3, ... written one after the other."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "file"

    def write(self, files: Files, number: int) -> None:
        replace_file(files, str(self.path), [b"", ENVELOPE.pack(b"%d" % number * 1_000)])

    def read(self, files: Files) -> int:
        """The number in the file; 0: there is no file. Raises an error if the file is damaged."""
        try:
            body = ENVELOPE.body(read_file(files, str(self.path)))
        except FileNotFoundError:
            return 0
        assert body == body[:1] * 1_000
        return int(body[:1])


class BridgeProgress(Content):
    def write(self, files: Files, number: int) -> None:
        checkpoint = Checkpoint.open(self.path, "edge", "sink", files)
        try:
            checkpoint.drain_seq = number
            checkpoint.save()
        finally:
            checkpoint.close()

    def read(self, files: Files) -> int:
        checkpoint = Checkpoint.open(self.path, "edge", "sink", files)
        checkpoint.close()
        with pytest.raises(FileNotFoundError):
            files.open(f"{self.path}.damaged")
        return checkpoint.drain_seq


class RingEpochs(Content):
    def write(self, files: Files, number: int) -> None:
        assert Epochs(self.path, files=files).next("a") == number

    def read(self, files: Files) -> int:
        return Epochs(self.path, files=files).next("a") - 1


class Lives(Content):
    def write(self, files: Files, number: int) -> None:
        made = Installation.open(self.directory, files=files)
        made.copy_to(())
        made.begin_life(number)

    def read(self, files: Files) -> int:
        return Installation.open(self.directory, files=files).newest_first_epoch


class SavedSnapshot(Content):
    def write(self, files: Files, number: int) -> None:
        frames = [(RECORD, b"%d" % number * 5_000)] * 3
        write_snapshot(self.path, Origin(1, number, 0), frames, sync=True, files=files)

    def read(self, files: Files) -> int:
        damaged: list[Path] = []
        found = read_snapshot(self.path, damaged, files)
        assert damaged == []
        return 0 if found is None else found.origin.position


class Retained(Content):
    """The third sweep replaces the file; the others append to it."""

    written: _Written | None = None

    def write(self, files: Files, number: int) -> None:
        if self.written is None or number == 1:
            self.written = _Written(self.path, files, sync=True)
        self.written.begin(number == REPLACEMENTS)
        self.written.add(encode(number, b"%d" % number, epoch=1, key=b"a", flags=FLAG_RETAIN), b"")
        self.written.end({"r": (1, number)}, 0)

    def read(self, files: Files) -> int:
        saved = _SavedPieces(self.path, files)
        pieces = list(saved)
        number = saved.marks.get("r", (1, 0))[1]
        assert bool(pieces) >= bool(number)
        return number


KINDS = [Content, BridgeProgress, RingEpochs, Lives, SavedSnapshot, Retained]


class Cut:
    """Cuts the power before the call with that number."""

    def __init__(self, at: int) -> None:
        self.calls = 0
        self.at = at

    def __call__(self, operation: str, path: str) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise PowerCut


def after_crashes(files: SimFiles, read: Callable[[Files], int]) -> set[int]:
    return {read(files.crash(Random(seed))) for seed in range(CRASHES)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_power_cut_leaves_the_old_content_or_the_new_one(kind: type[Content], tmp_path: Path) -> None:
    finished = False
    calls = 0
    while not finished:
        calls += 1
        files, content, done = SimFiles(Random(calls)), kind(tmp_path), 0
        files.short_writes = True
        files.hook = Cut(calls)
        try:
            for number in range(1, REPLACEMENTS + 1):
                content.write(files, number)
                done = number
            finished = True
        except PowerCut:
            pass
        files.hook = None
        found = after_crashes(files, content.read)
        assert found <= {done, done + 1}, f"at call {calls}"
        assert found == {done} if finished else calls < 1_000
    assert calls > 5 * REPLACEMENTS, "the calls of the disk were not those of SimFiles"


@pytest.mark.parametrize("operation", ["open", "pwritev", "fdatasync", "rename"])
@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.__name__)
def test_a_failed_replacement_keeps_the_old_file_and_leaves_no_other(
    kind: type[Content], operation: str, tmp_path: Path
) -> None:
    files, content = SimFiles(Random(1)), kind(tmp_path)
    content.write(files, 1)
    before = set(files.names)

    def fail(called: str, path: str) -> None:
        if called == operation:
            raise OSError(5, os.strerror(5), path)

    files.hook = fail
    with pytest.raises(Exception, match=os.strerror(5)):
        content.write(files, 2)
    files.hook = None
    assert content.read(files) == 1
    assert set(files.names) == before


def test_the_rest_of_a_killed_replacement_is_overwritten(tmp_path: Path) -> None:
    files, content = SimFiles(Random(1)), Content(tmp_path)
    handle = files.open(f"{content.path}{TEMPORARY_SUFFIX}", create=True)
    files.pwritev(handle, [bytes(100_000)], 0)
    content.write(files, 1)
    assert content.read(files) == 1
    assert files.listdir(str(tmp_path)) == ["file"]


def test_a_flipped_bit_in_an_envelope_is_found() -> None:
    good = ENVELOPE.pack(msgspec.json.encode({"a": 1}))
    for at in range(8 * len(good)):
        data = bytearray(good)
        data[at // 8] ^= 1 << at % 8
        with pytest.raises(ValueError, match=r"header|magic|checksum"):
            ENVELOPE.body(bytes(data))


def test_a_relative_path_is_replaced_in_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    replace_file(OsFiles(), "file", [b"old"])
    replace_file(OsFiles(), "file", [b"new"])
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_the_name_of_a_relative_path_survives_a_power_cut() -> None:
    files, synced = SimFiles(Random(1)), list[str]()
    files.hook = lambda operation, path: synced.append(path) if operation == "dirsync" else None
    replace_file(files, "file", [b"new"])
    assert synced == ["."]
