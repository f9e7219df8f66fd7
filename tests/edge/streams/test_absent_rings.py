"""Absent rings: those of removed streams are found, and nothing else in the directory is taken for one."""

import os
import resource
import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest

from edge.streams.absent_rings import absent_rings
from edge.transport.descriptors import open_now
from ringbuf import Ring
from ringbuf.files import ring_file


def names(directory: Path, *present: str) -> list[str]:
    return [ring.name for ring in absent_rings(directory, present, None)]


@pytest.fixture
def directory(runtime_directory: Path) -> Path:
    for name in ("default-0", "plant-0", "plant-1", "plant@camera", "sessions"):
        Ring.create(runtime_directory / name, capacity_bytes=1 << 16, epoch=1).close()
    return runtime_directory


def test_rings_without_a_stream_are_absent(directory: Path) -> None:
    assert names(directory, "default-0", "plant-0") == ["plant-1"]
    assert names(directory, "default-0") == ["plant-0", "plant-1"]
    assert names(directory, "default-0", "plant-0", "plant-1") == []


def test_a_copy_of_a_ring_is_not_taken_for_it(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    shutil.copy(ring_file(directory / "default-0"), ring_file(directory / "plant-9"))
    assert names(directory, "default-0", "plant-0", "plant-1") == []
    assert "a copy of default-0" in caplog.text


def test_an_unusable_ring_is_left_where_it_is(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    damaged = ring_file(directory / "plant-0")
    damaged.write_bytes(b"\xff" * 100)
    assert names(directory, "default-0") == ["plant-1"]
    assert "not usable" in caplog.text
    assert damaged.read_bytes() == b"\xff" * 100


def test_one_ring_at_a_time_takes_descriptors(directory: Path) -> None:
    before = open_now()
    rings = absent_rings(directory, [], None)
    open_with_a_ring = [open_now() for _ in rings]
    assert len(open_with_a_ring) == 3
    assert len(set(open_with_a_ring)) == 1
    assert open_now() == before


def test_a_lack_of_descriptors_is_not_taken_for_an_unusable_ring(directory: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    with ExitStack() as down:
        for _ in range(highest + 1 - open_now()):  # the free numbers below the highest
            down.enter_context(open(os.devnull, "rb"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 2, hard))
        try:
            with pytest.raises(OSError, match="Too many open files"):
                next(absent_rings(directory, [], None))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
