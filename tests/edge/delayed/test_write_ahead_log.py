"""A write-ahead log of the store with wrong frames: SQLite drops what follows, and the broker reports it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge.config.directories import file_system
from edge.delayed.store import DelayedMessage, DelayedStore
from edge.delayed.write_ahead_log import Dropped, dropped_transactions
from edge.mqtt import PubAck, Publish
from tests.support.delayed_broker import broker_of, listed
from tests.support.mqtt_socket import SocketClient
from tests.support.waiting import wait_until

COMMITS = 20
PLACE, CLOCK = (1, 0), (0, 1)
PAGE_BYTES = 4096
FRAME_BYTES = 24 + PAGE_BYTES
REPORT = "delayed messages lost or repeated"


@pytest.fixture(params=["mapped", "in memory"], autouse=True)
def index(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of the log is in a file, or in memory as on a file system that copies on write."""
    if request.param == "in memory":
        monkeypatch.setattr("edge.delayed.store._COPY_ON_WRITE", (file_system(tmp_path),))


def add(store: DelayedStore, *numbers: int) -> None:
    """One transaction for each number."""
    for number in numbers:
        message = DelayedMessage(number, f"t/{number}", 0, b"", bytes(3000))
        store.apply([message], (), (), (1, number), CLOCK)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[Path]:
    """The files of a store that was killed after COMMITS transactions."""
    store = DelayedStore(tmp_path / "live.sqlite", synced=False)
    store.open()
    store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log has these transactions and no others
    add(store, *range(COMMITS))
    yield copied(tmp_path)
    store.close()


def copied(directory: Path) -> Path:
    path = directory / "delayed.sqlite"
    for suffix in ("", "-wal"):
        shutil.copy(f"{directory / 'live.sqlite'}{suffix}", f"{path}{suffix}")
    return path


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def frames_of(path: Path) -> int:
    return (log_of(path).stat().st_size - 32) // FRAME_BYTES  # a kill leaves a part of the last one


def flip(path: Path, position: int) -> None:
    with log_of(path).open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1]))


def damage(path: Path, in_frame: int = 2000) -> None:
    """Change one bit in the middle of the log, at that byte of a frame."""
    flip(path, 32 + FRAME_BYTES * (frames_of(path) // 2) + in_frame)


def opened(path: Path) -> DelayedStore:
    store = DelayedStore(path, synced=False)
    store.open()
    return store


@pytest.mark.parametrize("place", ["page", "checksum", "salt"])
def test_commits_behind_a_damaged_frame_are_counted(
    killed: Path, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    in_frame = {"page": 2000, "checksum": 20, "salt": 9}[place]
    damage(killed, in_frame)
    with closing(opened(killed)) as store:
        kept = store.messages
        assert 0 < kept < COMMITS
        assert [message.topic for message in store.due(COMMITS, 100, 1 << 20)] == [
            f"t/{n}" for n in range(kept)
        ]
        assert store.ring_cursor == (1, kept - 1)
        add(store, 99)
    (line,) = [record.getMessage() for record in caplog.records if REPORT in record.getMessage()]
    assert f"transactions={COMMITS - kept}" in line
    with closing(opened(killed)) as store:
        assert store.messages == kept + 1
    assert caplog.text.count(REPORT) == 1


def test_damage_to_an_earlier_frame_of_the_last_transaction_is_reported(
    killed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A kill interrupts the write of the last frame: those before it are right."""
    flip(killed, log_of(killed).stat().st_size - 2 * FRAME_BYTES + 2000)
    with closing(opened(killed)) as store:
        assert store.messages == COMMITS - 1
    assert "transactions=1" in caplog.text


@pytest.mark.parametrize("position", [0, 9, 17, 25])
def test_a_damaged_header_costs_all_transactions_and_is_reported(
    killed: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    flip(killed, position)
    with closing(opened(killed)) as store:
        assert store.messages == 0
    assert f"transactions={COMMITS}" in caplog.text


def test_a_damaged_header_before_a_single_transaction_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(opened(tmp_path / "live.sqlite")) as store:
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        add(store, 0)
        path = copied(tmp_path)
    flip(path, 9)
    with closing(opened(path)) as again:
        assert again.messages == 0
    assert "transactions=1" in caplog.text


def test_a_power_cut_that_lost_unsynced_frames_is_a_warning_and_not_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the durability "disk" commits are not synced, and their pages reach the disk in any order."""
    with closing(opened(tmp_path / "live.sqlite")) as store:
        add(store, *range(COMMITS))
        store._db.execute("PRAGMA wal_checkpoint(RESTART)")
        earlier = log_of(tmp_path / "live.sqlite").read_bytes()
        add(store, *range(COMMITS, 2 * COMMITS))
        path = copied(tmp_path)
    first = 32 + FRAME_BYTES * (frames_of(path) // 2)
    with log_of(path).open("r+b") as file:  # a page of the file before, as the disk has it
        file.seek(first)
        file.write(earlier[first : first + FRAME_BYTES])
    with closing(opened(path)) as again:
        assert COMMITS < again.messages < 2 * COMMITS
        lost = 2 * COMMITS - again.messages
    (record,) = [record for record in caplog.records if REPORT in record.getMessage()]
    assert record.levelname == "WARNING"
    assert "power cut" in record.getMessage()
    assert f"transactions={lost}" in record.getMessage()


def test_a_kill_at_any_byte_is_not_taken_for_damage(killed: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = log_of(killed).read_bytes()
    for end in {0, 31, 32, 40, *range(len(whole) - 9 * FRAME_BYTES, len(whole), 1000), len(whole)}:
        log_of(killed).write_bytes(whole[:end])
        shutil.copy(killed, killed.with_name("again.sqlite"))
        shutil.copy(log_of(killed), log_of(killed.with_name("again.sqlite")))
        opened(killed.with_name("again.sqlite")).close()
    # the header of the last frame is written, and its page is not
    log_of(killed).write_bytes(whole[:-4096] + bytes(4096))
    with closing(opened(killed)) as store:
        assert store.messages == COMMITS - 1
    assert REPORT not in caplog.text


def test_frames_of_an_earlier_use_of_the_log_are_not_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path / "live.sqlite")
    add(store, *range(COMMITS))
    store._db.execute("PRAGMA wal_checkpoint(RESTART)")
    add(store, 99)
    path = copied(tmp_path)
    store.close()
    assert frames_of(path) > COMMITS
    with closing(opened(path)) as again:
        assert again.messages == COMMITS + 1
        assert dropped_transactions(path, again._index, PAGE_BYTES) == Dropped()
    assert REPORT not in caplog.text


def test_a_kill_before_the_first_frame_of_the_next_use_of_the_log_is_not_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(opened(tmp_path / "live.sqlite")) as store:
        add(store, *range(COMMITS))
        store._db.execute("PRAGMA wal_checkpoint(RESTART)")
        frames = log_of(tmp_path / "live.sqlite").read_bytes()[32:]
        path = copied(tmp_path)
        add(store, 99)
        header = log_of(tmp_path / "live.sqlite").read_bytes()[:32]
    log_of(path).write_bytes(header + frames)
    with closing(opened(path)) as again:
        assert again.messages == COMMITS
    assert REPORT not in caplog.text


def test_a_file_with_pages_of_lost_transactions_is_renamed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After a checkpoint the file has the pages of all transactions. A damaged log hides a part of them, and
    SQLite notices the mixture only where a query meets it.
    """
    with closing(opened(tmp_path / "live.sqlite")) as store:
        add(store, *range(COMMITS))
        messages = store.due(COMMITS, 100, 1 << 20)
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        for message in messages:
            store.apply((), [message], (), PLACE, CLOCK)
        store._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        path = copied(tmp_path)
    damage(path)
    with closing(opened(path)) as again:
        assert again.renamed is not None
        assert again.messages == 0
    assert REPORT in caplog.text
    assert "delayed messages unreadable" in caplog.text


def test_a_broker_reports_a_log_that_was_damaged_after_a_kill(
    runtime_directory: Path, tmp_path: Path
) -> None:
    broker = broker_of(runtime_directory, tmp_path, "interval")
    with broker:
        with SocketClient(broker.port, "p") as client:
            for number in range(COMMITS):
                client.send(Publish(f"$delayed/3600/t/{number}", bytes(3000), 1, packet_id=1))
                assert isinstance(client.packet(), PubAck)
        broker.kill()
    (path,) = tmp_path.rglob("delayed.sqlite")
    damage(path)
    with broker:
        broker.log_until(REPORT)
        assert len(listed(broker)) == COMMITS


@pytest.mark.parametrize("is_reboot", [False, True])
def test_damage_to_the_last_frame_is_reported_if_the_ring_does_not_have_its_record(
    runtime_directory: Path, tmp_path: Path, is_reboot: bool
) -> None:
    broker = broker_of(runtime_directory, tmp_path, "disk")
    with broker:
        with SocketClient(broker.port, "p") as client:
            for _ in range(2):
                client.send(Publish("$delayed/3600/t", bytes(3000), 1, packet_id=1))
                assert isinstance(client.packet(), PubAck)
        broker.kill()
    (path,) = tmp_path.rglob("delayed.sqlite")
    flip(path, log_of(path).stat().st_size - 2000)
    if is_reboot:
        for file in runtime_directory.iterdir():
            file.unlink()
    broker.start()
    wait_until(lambda: len(listed(broker)) == (1 if is_reboot else 2))
    assert (REPORT in broker.stop()) == is_reboot
