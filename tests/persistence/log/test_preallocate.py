"""SegmentPreallocator for segments: made ready ahead of need, and rather from a segment that goes than from
zeros.
"""

import errno
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from persistence.files import Buffer, OsFiles
from persistence.log import preallocate as module
from persistence.log.preallocate import PREPARED_NAME, SegmentPreallocator

SEGMENT_BYTES = 1 << 20
STEPS = 2048


def test_a_segment_that_goes_ends_a_fill_that_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FILL_BYTES", SEGMENT_BYTES // STEPS)
    begun, rests, files = threading.Event(), 0, OsFiles()

    def rest(_: float) -> None:
        nonlocal rests
        rests += 1
        begun.set()
        time.sleep(0.005)  # all of them take ten seconds

    room = SegmentPreallocator(files, str(tmp_path), SEGMENT_BYTES, rest)
    for _ in range(2):  # from nothing, twice: two are wanted from now on
        handle, path = room.take()
        files.close(handle)
    files.unlink(path)
    (tmp_path / PREPARED_NAME).write_bytes(bytes(SEGMENT_BYTES))
    room.adopt()
    old = tmp_path / "old"
    old.write_bytes(bytes(SEGMENT_BYTES))
    filling = threading.Thread(target=room.prepare, args=(lambda: False,))
    filling.start()
    begun.wait()
    assert room.recycle(str(old), SEGMENT_BYTES)
    filling.join()
    assert rests < STEPS - 1
    assert room.ready == 2
    assert not old.exists()
    room.close()


class Counting(OsFiles):
    """With a count of what is written."""

    writes = 0

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> int:
        """See Files."""
        self.writes += 1
        return super().pwritev(handle, buffers, position)


def test_a_segment_that_is_about_to_go_is_waited_for_and_no_zeros_are_written(tmp_path: Path) -> None:
    asked, files = threading.Event(), Counting()

    def stopped() -> bool:
        asked.set()
        return False

    room = SegmentPreallocator(files, str(tmp_path), SEGMENT_BYTES)
    old = tmp_path / "old"
    old.write_bytes(bytes(SEGMENT_BYTES))
    preparing = threading.Thread(target=room.prepare, args=(stopped, 1.0))
    preparing.start()
    asked.wait()
    assert room.recycle(str(old), SEGMENT_BYTES)
    preparing.join()
    assert (room.ready, files.writes) == (1, 0)
    room.close()


def test_a_removed_segment_that_a_backup_has_is_not_written_again(tmp_path: Path) -> None:
    room = SegmentPreallocator(OsFiles(), str(tmp_path), SEGMENT_BYTES)
    old, backup = tmp_path / "old", tmp_path / "backup"
    old.write_bytes(b"x" * (SEGMENT_BYTES - 1))  # a fill would write its last byte
    backup.hardlink_to(old)
    assert room.recycle(str(old), SEGMENT_BYTES)
    assert (old.exists(), room.ready) == (False, 0)
    assert backup.read_bytes() == b"x" * (SEGMENT_BYTES - 1)
    assert backup.stat().st_nlink == 1
    room.close()


class Failing(OsFiles):
    """A directory that cannot be synced, or a name that cannot be removed."""

    call = ""

    def dirsync(self, path: str) -> None:
        """See Files."""
        if self.call == "dirsync":
            raise OSError(errno.EIO, "injected")
        super().dirsync(path)

    def unlink(self, path: str) -> None:
        """See Files."""
        if self.call == "unlink":
            raise OSError(errno.EIO, "injected")
        super().unlink(path)


@pytest.mark.parametrize("call", ["dirsync", "unlink"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_backup_keeps_its_bytes_after_a_removal_that_failed_halfway(
    tmp_path: Path, call: str, restarts: bool
) -> None:
    files = Failing()
    room = SegmentPreallocator(files, str(tmp_path), SEGMENT_BYTES)
    old, backup = tmp_path / "old", tmp_path / "backup"
    old.write_bytes(b"x" * SEGMENT_BYTES)
    backup.hardlink_to(old)
    files.call = call
    with suppress(OSError):
        room.recycle(str(old), SEGMENT_BYTES)
    files.call = ""
    assert backup.stat().st_nlink == 2
    if restarts:
        room = SegmentPreallocator(files, str(tmp_path), SEGMENT_BYTES)
        room.adopt()
    room.prepare(lambda: False)
    handle, _ = room.take()
    files.pwritev(handle, [b"next"], 0)
    files.close(handle)
    assert backup.read_bytes() == b"x" * SEGMENT_BYTES
    room.close()
