"""The bytes of notes and snapshots: what a later version must still read."""

import errno
import os
from pathlib import Path

import pytest

from edge.auth.interfaces import ClientInfo
from edge.recovery.read_journal import read_saved_state
from edge.recovery.state_files import FILE_NAMES
from edge.session_store.journal_records import (
    Connected,
    Disconnected,
    GroupOpened,
    JournalRecord,
    Rings,
    SessionClosed,
    SessionOpened,
    Subscribed,
    Unsubscribed,
    WillDone,
    WillWaits,
    decode_record,
    encode_record,
)
from edge.session_store.snapshot_file import ENTRIES, RECORD, Frame, Origin, read_snapshot, write_snapshot
from persistence.files import OsFiles
from ringbuf import Ring
from tests.support.project import ROOT

GOLDEN_1, GOLDEN = (ROOT / "tests" / "golden" / "state" / f"sessions-v{it}.state" for it in (1, 2))
FACTS = ClientInfo("dev", "anna", "127.0.0.1", 0, identity="anna", verified=True)
NOTES: list[JournalRecord] = [
    Rings({1: ("default-0", 1_700_000_000, 4096)}),
    SessionOpened(3, FACTS, 3600),
    Subscribed(3, "a/#", 1 | 7 << 8),
    Unsubscribed(3, ["b", "c"]),
    Connected(3, FACTS, 60),
    Disconnected(3, 60, 1_700_000_000_000_000_000),
    GroupOpened(4, "$share/g/a"),
    WillWaits(FACTS, b"\x10\x00", 1_700_000_030_000_000_000),
    WillDone("dev"),
    SessionClosed(3),
]
ORIGIN = Origin(1_700_000_001, 8192, 1_700_000_002_000_000_000)
FRAMES = [*((RECORD, encode_record(note)) for note in NOTES), (ENTRIES, bytes.fromhex("0300000501000000"))]
RECEIPT = (ENTRIES, bytes.fromhex("0300000d2a0000000000100007000000"))


def test_what_is_written_are_the_golden_bytes(tmp_path: Path) -> None:
    write_snapshot(tmp_path / "it", ORIGIN, [*FRAMES, RECEIPT], sync=False)
    assert (tmp_path / "it").read_bytes() == GOLDEN.read_bytes()


@pytest.mark.parametrize(("golden", "last"), [(GOLDEN_1, FRAMES[-1]), (GOLDEN, RECEIPT)])
def test_the_golden_bytes_are_read(golden: Path, last: Frame) -> None:
    found = read_snapshot(golden)
    assert found is not None
    assert found.origin == ORIGIN
    assert [decode_record(body) for kind, body in found if kind == RECORD] == NOTES
    assert list(found)[-1] == last


@pytest.mark.parametrize("at", [0, 9, 40, 60, -1])
def test_a_damaged_file_is_put_aside(at: int, tmp_path: Path) -> None:
    data = bytearray(GOLDEN.read_bytes())
    data[at] ^= 0x10
    file = tmp_path / "sessions.state"
    file.write_bytes(data)
    assert read_snapshot(file) is None
    assert (tmp_path / "sessions.state.bad").read_bytes() == data


def test_a_directory_in_the_place_of_the_file_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "sessions.state").mkdir()
    assert read_snapshot(tmp_path / "sessions.state") is None
    assert (tmp_path / "sessions.state.bad").is_dir()


class _NoFileOpens(OsFiles):
    """Files of which none can be opened, for a cause that passes."""

    def __init__(self, cause: int) -> None:
        self._cause = cause

    def open(self, path: str, *, create: bool = False, mode: int | None = None) -> int:
        raise OSError(self._cause, os.strerror(self._cause), path)


@pytest.mark.parametrize("cause", [errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_a_file_that_cannot_be_read_for_now_never_counts_as_absent(cause: int, tmp_path: Path) -> None:
    file = tmp_path / "sessions.state"
    file.write_bytes(GOLDEN.read_bytes())
    with pytest.raises(OSError, match=os.strerror(cause)):
        read_snapshot(file, files=_NoFileOpens(cause))
    assert file.read_bytes() == GOLDEN.read_bytes()


def test_half_a_file_is_none(tmp_path: Path) -> None:
    file = tmp_path / "sessions.state"
    file.write_bytes(GOLDEN.read_bytes()[:-3])
    assert read_snapshot(file) is None


@pytest.mark.parametrize("damaged", [0, 1])
def test_a_damaged_snapshot_costs_nothing_while_its_copy_is_whole(
    damaged: int, tmp_path: Path, runtime_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = [tmp_path / name for name in FILE_NAMES]
    whole = GOLDEN.read_bytes()
    with Ring.create(runtime_directory / "sessions", capacity_bytes=1 << 16, epoch=7) as ring:
        for at in range(len(whole)):
            for file in files:
                file.write_bytes(whole)
            data = bytearray(whole)
            data[at] ^= 1 << at % 8
            files[damaged].write_bytes(data)
            assert list(read_saved_state([files], ring, None).frames) == [*FRAMES, RECEIPT]
        assert "its copy is used" in caplog.text
        for file in files:
            file.write_bytes(b"")
        assert not read_saved_state([files], ring, None).frames
        assert "sessions are lost" in caplog.text
