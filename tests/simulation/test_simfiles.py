"""The simulated disk takes what a real one may take, and nothing else: else the crashes prove nothing."""

import errno
from collections.abc import Iterator
from random import Random

import pytest

from tests.support.simfiles import SECTOR_BYTES, SimFiles

OLD, NEW = b"o" * (4 * SECTOR_BYTES), b"n" * (4 * SECTOR_BYTES)


def written(*, synced: bool) -> tuple[SimFiles, int]:
    """A file of old sectors, its name and they on the disk, overwritten by new ones."""
    files = SimFiles(Random(0))
    handle = files.open("/d/f", create=True)
    files.pwritev(handle, [OLD], 0)
    files.fdatasync(handle)
    files.dirsync("/d")
    files.pwritev(handle, [NEW], 0)
    if synced:
        files.fdatasync(handle)
    return files, handle


def crashes(files: SimFiles, count: int = 300) -> Iterator[SimFiles]:
    return (files.crash(Random(seed)) for seed in range(count))


def data(files: SimFiles, path: str = "/d/f") -> bytes:
    return bytes(files.names[path].cache)


def test_what_was_synced_stays() -> None:
    files, _ = written(synced=True)
    assert {data(crashed) for crashed in crashes(files)} == {NEW}


def test_what_was_not_synced_goes_in_any_subset_of_sectors() -> None:
    files, _ = written(synced=False)
    found = {data(crashed) for crashed in crashes(files)}
    assert {OLD, NEW} <= found
    assert len(found) == 16
    assert all(
        len(set(it[at : at + SECTOR_BYTES])) == 1 for it in found for at in range(0, len(OLD), SECTOR_BYTES)
    )


def test_versions_between_two_syncs_may_survive() -> None:
    files, handle = written(synced=False)
    files.pwritev(handle, [b"x" * SECTOR_BYTES], 0)
    assert {data(crashed)[:1] for crashed in crashes(files)} == {b"o", b"n", b"x"}


def test_growth_that_was_not_synced_may_be_zeros_or_nothing() -> None:
    files, handle = written(synced=True)
    files.pwritev(handle, [b"g" * SECTOR_BYTES], len(NEW))
    tails = {data(crashed)[len(NEW) :] for crashed in crashes(files)}
    assert tails == {b"", bytes(SECTOR_BYTES), b"g" * SECTOR_BYTES}


def test_a_truncated_tail_may_come_back_until_it_is_synced() -> None:
    files, handle = written(synced=True)
    files.ftruncate(handle, SECTOR_BYTES)
    assert {len(data(crashed)) for crashed in crashes(files)} == {SECTOR_BYTES, len(NEW)}
    files.fdatasync(handle)
    assert {len(data(crashed)) for crashed in crashes(files)} == {SECTOR_BYTES}


def test_names_are_lost_in_any_subset_until_their_directory_is_synced() -> None:
    files, _ = written(synced=True)
    files.open("/d/made", create=True)
    files.rename("/d/f", "/d/renamed")
    assert {tuple(sorted(crashed.names)) for crashed in crashes(files)} == {
        ("/d/f",),
        ("/d/f", "/d/made"),
        ("/d/renamed",),
        ("/d/made", "/d/renamed"),
    }
    files.dirsync("/d")
    assert {tuple(sorted(crashed.names)) for crashed in crashes(files)} == {("/d/made", "/d/renamed")}
    files.unlink("/d/made")
    assert {len(crashed.names) for crashed in crashes(files)} == {1, 2}


def test_with_a_directory_goes_what_is_in_it_until_its_own_name_is_synced() -> None:
    files, _ = written(synced=True)
    files.mkdir("/d/inner")
    files.fdatasync(files.open("/d/inner/f", create=True))
    files.dirsync("/d/inner")
    assert {tuple(sorted(crashed.names)) for crashed in crashes(files)} == {
        ("/d/f",),
        ("/d/f", "/d/inner", "/d/inner/f"),
    }
    files.dirsync("/d")
    assert {len(crashed.names) for crashed in crashes(files)} == {3}
    files.makedirs("/d/other/below")
    assert {len(crashed.names) for crashed in crashes(files)} == {6}  # /d is counted, now that it was made


def test_a_full_disk_takes_no_more() -> None:
    files, handle = written(synced=True)
    files.room_bytes = len(NEW) + 100
    files.pwritev(handle, [OLD], 0)
    with pytest.raises(OSError, match="no space left"):
        files.pwritev(handle, [OLD], len(NEW))
    files.room_bytes = None
    files.pwritev(handle, [OLD], len(NEW))


def test_a_sync_that_fails_forgets_and_the_next_one_does_not_help() -> None:
    found = set()
    for seed in range(200):
        files, handle = written(synced=False)
        files.random = Random(seed)

        def fail(operation: str, path: str) -> None:
            raise OSError(errno.EIO, "injected")

        files.hook = fail
        with pytest.raises(OSError, match="injected"):
            files.fdatasync(handle)
        files.hook = None
        assert data(files) == NEW
        files.fdatasync(handle)
        found.add(data(files.crash(Random(0))))
    assert OLD in found
    assert len(found) == 16


def test_the_death_of_a_process_loses_nothing_but_its_locks() -> None:
    files, handle = written(synced=False)
    files.lock("/d/LOCK")
    with pytest.raises(BlockingIOError):
        files.lock("/d/LOCK")
    after = files.kill()
    after.lock("/d/LOCK")
    assert data(after) == NEW
    assert OLD in {data(crashed) for crashed in crashes(after)}
    files.fdatasync(handle)
    assert OLD in {data(crashed) for crashed in crashes(after)}  # It is a copy.


def test_a_write_that_fails_may_have_written_a_part() -> None:
    files, handle = written(synced=True)

    def fail(operation: str, path: str) -> None:
        raise OSError(errno.ENOSPC, "injected")

    files.hook = fail
    with pytest.raises(OSError, match="injected"):
        files.pwritev(handle, [b"p" * 1000], 0)
    assert 0 < data(files).count(b"p") < 1000
