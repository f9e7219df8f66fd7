"""Absent rings: those of removed streams are found, and nothing else in the directory is taken for one."""

import shutil
from pathlib import Path

import pytest

from edge.streams.absent_rings import absent_rings
from ringbuf import Ring
from ringbuf.files import ring_file


def names(directory: Path, *present: str) -> list[str]:
    with absent_rings(directory, present, None) as rings:
        return [ring.name for ring in rings]


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
