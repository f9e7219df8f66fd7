"""A small file system of its own, and a file that fills it.  Only root can mount one: skipped otherwise."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of that size, for its owner and group."""
    at.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=0750", "tmpfs", str(at)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED: no file system can be mounted here, be root: {mounted.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with_room = True
            while with_room:
                try:
                    with_room = file.write(bytes(size)) == size
                except OSError:
                    with_room = False
    return filler
