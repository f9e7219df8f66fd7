"""Saves of retained messages that are synced: a power cut after a save loses nothing of it."""

from pathlib import Path
from random import Random

import pytest

from edge.recovery.retained_store import _SavedPieces, _Written
from tests.support.simfiles import SimFiles

FILE = Path("/state/retained.state")
CUTS = range(20)


@pytest.fixture
def disk() -> SimFiles:
    files = SimFiles(Random(1))
    files.makedirs("/state")
    return files


def save(written: _Written, *pieces: bytes, replaces: bool = False) -> None:
    written.begin(replaces)
    for piece in pieces:
        written.add(piece, b"")
    written.end({"some-0": (1, len(pieces))}, 0)


def after_cuts(disk: SimFiles) -> set[tuple[bytes, ...]]:
    """Records of the file after power cuts at this moment."""
    contents = (_SavedPieces(FILE, disk.crash(Random(seed))) for seed in CUTS)
    return {tuple(bytes(records) for records, _ in content) for content in contents}


def test_each_save_survives_a_power_cut(disk: SimFiles) -> None:
    written = _Written(FILE, disk, sync=True)
    save(written, b"one" * 400)
    assert after_cuts(disk) == {(b"one" * 400,)}, "also the name of the new file"
    save(written, b"two" * 400)
    assert after_cuts(disk) == {(b"one" * 400, b"two" * 400)}
    save(written, b"all" * 400, replaces=True)
    assert after_cuts(disk) == {(b"all" * 400,)}


def test_a_save_that_is_not_synced_may_be_lost(disk: SimFiles) -> None:
    save(_Written(FILE, disk, sync=False), b"one" * 400)
    assert len(after_cuts(disk)) > 1
