"""Syncs of the store: which transactions a power cut may undo."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.config.directories import make_directory
from edge.delayed.store import FILE_NAME, DelayedMessage, DelayedStore, StoredMessage
from tests.support.lossy_mount import LossyMount, missing

pytestmark = pytest.mark.skipif(missing() != "", reason=missing())

CLOCK = (1, 1)
MESSAGE = DelayedMessage(1, "t", 0, b"", b"v")


@pytest.fixture
def mount() -> Iterator[LossyMount]:
    with LossyMount() as mount:
        make_directory(mount.path / "state", "state_dir")
        yield mount


def opened(mount: LossyMount, *, synced: bool = True) -> DelayedStore:
    store = DelayedStore(Path(mount.path, "state", FILE_NAME), synced=synced)
    store.open()
    store.sync(CLOCK)
    return store


def syncs(mount: LossyMount) -> int:
    return int(mount.ask("counts").get("fdatasync", 0))


def first(store: DelayedStore) -> StoredMessage:
    message = store.find(1)
    assert message is not None
    return message


def test_new_messages_are_synced_and_removals_only_on_request(mount: LossyMount) -> None:
    store = opened(mount)
    before = syncs(mount)
    store.apply([MESSAGE, MESSAGE, MESSAGE], (), (), (1, 3), CLOCK)
    added = syncs(mount)
    assert added > before
    store.apply((), [first(store)], [(2, 9)], (1, 3), CLOCK)
    assert syncs(mount) == added, "a repetition is allowed after a power cut"
    store.apply([MESSAGE], (), (), (1, 4), CLOCK)
    again = syncs(mount)
    assert again > added
    removed = store.find(2)
    assert removed is not None
    store.apply((), [removed], (), (1, 4), CLOCK, sync=True)
    requested = syncs(mount)
    assert requested > again
    store.sync((2, 2))  # SQLite writes, and syncs, nothing if no value changes
    assert syncs(mount) > requested
    store.close()


def test_a_store_without_durability_syncs_on_request_only(mount: LossyMount) -> None:
    store = opened(mount, synced=False)
    before = syncs(mount)
    store.apply([MESSAGE], (), (), (1, 1), CLOCK)
    assert syncs(mount) == before
    store.sync((2, 2))
    assert syncs(mount) > before
    store.close()


def test_a_store_that_is_opened_again_syncs_its_next_message(mount: LossyMount) -> None:
    store = opened(mount)
    store.apply([MESSAGE], (), (), (1, 1), CLOCK)
    store.open()
    before = syncs(mount)
    store.apply([MESSAGE], (), (), (1, 2), CLOCK)
    assert syncs(mount) > before
    store.close()


@pytest.mark.parametrize("seed", range(6))
def test_synced_transactions_survive_a_power_cut(mount: LossyMount, seed: int) -> None:
    store = opened(mount)
    store.apply([MESSAGE, MESSAGE], (), (), (1, 2), CLOCK)
    store.apply((), [first(store)], (), (1, 2), CLOCK)
    store.sync((5, 7))
    mount.cut(seed)
    store.close()
    mount.boot()
    store.open()
    assert (store.messages, store.find(1), store.clock) == (1, None, (5, 7))
    store.close()
