"""Directories of a broker: the file system that they are on."""

from pathlib import Path

from edge.config.directories import file_system


def test_the_file_system_of_a_directory_is_known(runtime_directory: Path) -> None:
    assert file_system(Path("/proc/self")) == "proc"
    assert file_system(runtime_directory) == "tmpfs"
