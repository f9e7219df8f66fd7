"""Owner, group and mode of a file that another user replaces."""

import os
from pathlib import Path

import pytest

from edge.cli import config_file
from edge.cli.kept_access import keep_access
from edge.cli.sql_output import _replaced

OTHER = 65_534


def kept_by_other(earlier: os.stat_result, groups: list[int]) -> tuple[int, int, int]:
    """Owner, group and mode of a new file of another user that replaces `earlier`, from a child process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setgroups(groups)
        os.setgid(OTHER)
        os.setuid(OTHER)
        created = os.memfd_create("file")
        keep_access(earlier, created)
        facts = os.fstat(created)
        os.write(writing, f"{facts.st_uid} {facts.st_gid} {facts.st_mode & 0o7777}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        owner, group, mode = map(int, file.read().split())
    os.waitpid(child, 0)
    return owner, group, mode


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_keeps_a_group_of_its_own_and_gives_no_other_group_rights(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    os.chown(file, 0, 1234)
    file.chmod(0o6664)
    assert kept_by_other(file.stat(), [1234]) == (OTHER, 1234, 0o664)
    assert kept_by_other(file.stat(), []) == (OTHER, OTHER, 0o604)


def test_an_unfinished_file_gives_nobody_more_access_than_the_file_that_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, config = tmp_path / "rows.csv", tmp_path / "brim.toml"
    for file in (result, config):
        file.touch()
        file.chmod(0o600)
    with _replaced(result) as unfinished:
        assert os.fstat(unfinished.fileno()).st_mode & 0o777 == 0o600
    modes: list[int] = []

    def keep(earlier: os.stat_result, descriptor: int) -> None:
        modes.append(os.fstat(descriptor).st_mode & 0o777)  # its content is written already
        keep_access(earlier, descriptor)

    monkeypatch.setattr(config_file, "keep_access", keep)
    assert config_file.set_value(config, "log_level", "debug")
    assert modes == [0o600]
