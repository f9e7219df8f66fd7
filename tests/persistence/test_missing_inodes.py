"""Inodes of a file system, as the cause of an error."""

import os
from pathlib import Path

import pytest

from persistence.durable_file import lacks_inodes
from tests.support.small_disk import small_disk, take_inodes

OTHER = 65_534


def test_a_file_system_without_inodes_is_found_above_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20, inodes=20) as disk:
        assert not lacks_inodes(disk / "new" / "file")
        take_inodes(disk)
        assert lacks_inodes(disk / "new" / "file")
        assert not lacks_inodes(tmp_path)
    assert not lacks_inodes(3)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_a_working_directory_that_the_user_may_not_look_into_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o700)
    child = os.fork()
    if not child:
        os.setuid(OTHER)
        status = 1
        try:
            status = lacks_inodes("new")
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
