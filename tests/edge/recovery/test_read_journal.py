"""Saved sessions are read piece by piece, as often as their frames are needed."""

import tracemalloc
from pathlib import Path

import pytest

from edge.recovery.read_journal import read_saved_state
from edge.session_store.snapshot_file import ENTRIES, Origin, write_snapshot
from ringbuf import Ring
from ringbuf.ring import ring_file

MIB = 1 << 20
SECTION = (ENTRIES, bytes(MIB))


def test_a_start_has_a_piece_of_the_saved_sessions_in_memory(tmp_path: Path, runtime_directory: Path) -> None:
    files = [tmp_path / "sessions.state", tmp_path / "sessions.state.copy"]
    for file in files:
        write_snapshot(file, Origin(1, 0, 0), [SECTION] * 60, sync=False)
    with Ring.create(runtime_directory / "sessions", capacity_bytes=16 * MIB, epoch=1) as ring:
        writer = ring.writer()
        for _ in range(10):
            writer.publish(bytes(MIB), key=ENTRIES)
        tracemalloc.start()
        try:
            state = read_saved_state([files], ring, None)
            assert sum(1 for frame in state.frames if frame == SECTION) == 70
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        writer.close()
    assert peak_bytes < 8 * MIB


def test_a_damaged_journal_is_reported_once(
    tmp_path: Path, runtime_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "sessions.state"
    write_snapshot(file, Origin(1, 0, 0), [SECTION], sync=False)
    with Ring.create(runtime_directory / "sessions", capacity_bytes=1 << 16, epoch=1) as ring:
        writer = ring.writer()
        for number in range(3):
            writer.publish(b"entry %d" % number, key=ENTRIES)
        writer.close()
        data = bytearray(ring_file(ring.path).read_bytes())
        at = data.index(b"entry 1")
        with ring_file(ring.path).open("r+b") as damaged:
            damaged.seek(at)
            damaged.write(b"E")
        state = read_saved_state([[file]], ring, None)
        for _ in range(2):
            assert list(state.frames) == [SECTION, (ENTRIES, b"entry 0")]
    assert caplog.text.count("session journal record damaged") == 1
