"""Frames of a file that are read a window at a time are those of the whole content in memory."""

import random
import tracemalloc
from itertools import islice
from pathlib import Path

import pytest

from persistence import durable_file
from persistence.durable_file import WINDOW_BYTES, frames_in, frames_of_file, pack_frame
from persistence.files import OsFiles

Frames = list[tuple[bytes, bytes, int]]


def read(path: Path) -> Frames:
    files = OsFiles()
    handle = files.open(str(path))
    try:
        found = frames_of_file(files, handle, files.size(handle))
        return [(kind, bytes(body), end) for kind, body, end in found]
    finally:
        files.close(handle)


def in_memory(path: Path) -> Frames:
    return [(kind, bytes(body), end) for kind, body, end in frames_in(memoryview(path.read_bytes()))]


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_the_same_up_to_a_damage_or_a_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(durable_file, "WINDOW_BYTES", 64)
    chance = random.Random(seed)
    bodies = [chance.randbytes(chance.choice((0, 1, 30, 55, 56, 64, 500))) for _ in range(30)]
    data = bytearray(b"".join(pack_frame(b"r", body) + body for body in bodies))
    path = tmp_path / "frames"
    path.write_bytes(data)
    assert len(read(path)) == len(bodies)
    for _ in range(50):
        changed = bytearray(data)
        changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed[: chance.choice((len(data), chance.randrange(len(data))))])
        assert read(path) == in_memory(path)


def test_a_long_file_is_in_memory_a_window_at_a_time(tmp_path: Path) -> None:
    """Also behind a frame that is longer than a window."""
    path, long_bytes = tmp_path / "frames", 8 * WINDOW_BYTES
    bodies = [bytes(long_bytes), *[bytes(100_000)] * 400]
    with path.open("wb") as file:
        for body in bodies:
            file.writelines((pack_frame(b"r", body), body))
    files = OsFiles()
    handle = files.open(str(path))
    tracemalloc.start()
    try:
        frames = frames_of_file(files, handle, files.size(handle))
        assert sum(1 for _ in islice(frames, 2)) == 2
        tracemalloc.reset_peak()
        assert sum(1 for _ in frames) == len(bodies) - 2
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        files.close(handle)
    assert peak_bytes < 4 * WINDOW_BYTES < long_bytes
