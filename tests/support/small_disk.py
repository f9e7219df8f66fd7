"""A small file system of its own, and a file that fills it.  Only root can mount one: skipped otherwise."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(at: Path, size_bytes: int, inodes: int = 0) -> Iterator[Path]:
    """A file system of that size, for its owner and group. `inodes`: 0: no limit."""
    at.mkdir()
    options = f"size={size_bytes},nr_inodes={inodes},mode=0750"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(at)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"NOT TESTED: no file system can be mounted here, be root: {mounted.stderr.strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


@contextmanager
def btrfs_disk(at: Path, size_bytes: int) -> Iterator[Path]:
    """A file system that writes each change to a new place, in an image next to it: 128 MiB and more."""
    image = at.with_suffix(".image")
    at.mkdir()
    image.touch()
    os.truncate(image, size_bytes)
    for command in (["mkfs.btrfs", "-q", str(image)], ["mount", "-o", "loop", str(image), str(at)]):
        try:
            subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"NOT TESTED: needs root, and the Debian package btrfs-progs: {error}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def take_inodes(disk: Path) -> list[Path]:
    """Empty files that take all inodes that are left."""
    files: list[Path] = []
    try:
        while True:
            files.append(disk / f"empty-{len(files)}")
            files[-1].touch()
    except OSError:
        return files[:-1]


def remount(disk: Path, how: str) -> None:
    """Mount it as "ro" or "rw". No file may be open for writing."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


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
