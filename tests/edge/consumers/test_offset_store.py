"""Offset store: what waits in memory for the journal, and what a place keeps."""

import errno
from random import Random

import pytest
from pyroaring import BitMap64

from edge.consumers.ack_tracker import Tried
from edge.consumers.delivery_settings import NO_SETTINGS
from edge.consumers.offset_journal import Journal
from edge.consumers.offset_store import OffsetStore
from tests.support.simfiles import SimFiles

TRIED = [Tried(0, 2, 1, "nack"), Tried(5, 6, 1, "nack")]


@pytest.fixture
def disk() -> SimFiles:
    files = SimFiles(Random(1))
    files.makedirs("/state")
    return files


def opened(disk: SimFiles) -> OffsetStore:
    return OffsetStore(Journal(disk, "/state", "offsets"))


def put(store: OffsetStore, floor: int) -> None:
    store.note_place("g", "some-0", 1, floor, BitMap64(), 0)


def test_a_flush_leaves_nothing_to_write(disk: SimFiles) -> None:
    store = opened(disk)
    put(store, 1)
    assert store.moved == {"some-0"}
    store.flush(sync=False)
    assert store.moved == set(), "the next flush would sync for this ring again"


def test_changes_take_no_memory_while_the_disk_fails(disk: SimFiles) -> None:
    store = opened(disk)

    def fail(_: str, path: str) -> None:
        raise OSError(errno.EIO, "no disk", path)

    disk.hook = fail
    for floor in range(100):
        put(store, floor)
        with pytest.raises(OSError, match="no disk"):
            store.flush(sync=False)
    assert len(store._waiting) <= 1
    disk.hook = None
    store.flush(sync=True)
    assert opened(disk.crash(Random(1))).groups["g"].places["some-0"].floor == 99


def test_a_change_of_a_group_without_a_place_must_be_written(disk: SimFiles) -> None:
    store = opened(disk)
    store.note_group("g", "ordered", ("a/#",), 0)
    store.flush(sync=False)
    store.note_group("g", "ordered", ("a/#",), 0, NO_SETTINGS, NO_SETTINGS)
    assert store.moved, "its durability is not known"
    store.flush(sync=False)
    store.forget("g")
    assert store.moved


def test_tries_of_records_that_are_done_are_forgotten(disk: SimFiles) -> None:
    store = opened(disk)
    put(store, 0)
    store.note_tried("g", "some-0", 1, list(TRIED))
    put(store, 3)
    assert store.groups["g"].places["some-0"].tried == TRIED[1:]
