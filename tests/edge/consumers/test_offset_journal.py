"""The journal of committed offsets: its bytes, what damage costs, and that no crash makes it lie."""

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from edge.consumers import offset_journal as journal_module
from edge.consumers.ack_tracker import Tried
from edge.consumers.delivery_settings import DeliverySettings
from edge.consumers.offset_journal import Journal, needs_recovery, pack_header, pack_record
from edge.consumers.offset_store import OffsetStore, decode_body
from persistence.files import OsFiles
from tests.support.simfiles import SimFiles

GOLDEN = Path(__file__).parents[2] / "golden" / "consumers"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)


def golden(name: str) -> bytes:
    lines = (GOLDEN / name).read_text().splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


def opened(directory: Path) -> tuple[Journal, list[bytes]]:
    made = Journal(OsFiles(), str(directory), "offsets")
    return made, made.recover()


def written(store: OffsetStore) -> None:
    """Write the content of the golden file."""
    members, operator = DeliverySettings(60_000, 3), DeliverySettings(backoff_ms=500, backoff_max_ms=9_000)
    store.note_group("billing", "ordered", ("a/#", "b"), 1, members, operator, "uid 1000")
    store.note_place("billing", "press-0", 7, 1000, BitMap64([1002, 1003, 1 << 33]), 2, whole=True)
    store.note_place("billing", "press-0", 7, 1005, None, 3)
    store.forget("other")
    store.note_tried("billing", "press-0", 7, [Tried(1005, 1010, 2, "no good"), Tried(1011, 1012, 1, "")])
    store.flush(sync=True)


def test_the_file_has_these_bytes(tmp_path):
    store = OffsetStore(Journal(OsFiles(), str(tmp_path), "offsets"))
    written(store)
    store.close()
    assert (tmp_path / "offsets").read_bytes() == golden("journal.txt")


@pytest.mark.parametrize("name", ["journal.txt", "journal-without-owner.txt", "journal-without-settings.txt"])
def test_these_bytes_are_read(name, tmp_path):
    (tmp_path / "offsets").write_bytes(golden(name))
    store = OffsetStore(Journal(OsFiles(), str(tmp_path), "offsets"))
    group = store.groups["billing"]
    assert (group.mode, group.filters) == ("ordered", ("a/#", "b"))
    assert group.owner == ("uid 1000" if name == "journal.txt" else "")
    if name != "journal-without-settings.txt":
        assert group.members == DeliverySettings(lease_ms=60_000, tries_max=3)
        assert group.operator == DeliverySettings(backoff_ms=500, backoff_max_ms=9_000)
    else:
        assert (group.members, group.operator) == (DeliverySettings(), DeliverySettings())
    place = group.places["press-0"]
    assert (place.epoch, place.floor, list(place.done), place.time_ns) == (7, 1005, [1 << 33], 3)
    assert place.tried == [(1005, 1010, 2, "no good"), (1011, 1012, 1, "")]
    assert store.damaged == 0
    store.close()


@settings(max_examples=40)
@given(st.lists(st.binary(min_size=1, max_size=60), max_size=8), st.data())
def test_a_file_cut_anywhere_gives_what_is_whole(tmp_path_factory, bodies, data):
    directory = tmp_path_factory.mktemp("cut")
    file = directory / "offsets"
    whole = pack_header() + b"".join(map(pack_record, bodies))
    cut = data.draw(st.integers(len(pack_header()), len(whole)))
    file.write_bytes(whole[:cut])
    made, found = opened(directory)
    ends = [
        len(pack_header()) + sum(len(pack_record(it)) for it in bodies[: i + 1]) for i in range(len(bodies))
    ]
    # What fills a record up to 8 bytes may be missing: the body is there.
    least = [it for it, end in zip(bodies, ends, strict=True) if end <= cut]
    assert found[: len(least)] == least
    assert found == bodies[: len(found)]
    made.append([b"next"])
    made.close()
    made, again = opened(directory)
    made.close()
    assert again == [*found, b"next"]


@settings(max_examples=40)
@given(st.lists(st.binary(min_size=1, max_size=40), min_size=2, max_size=6), st.data())
def test_a_flipped_bit_costs_one_record(tmp_path_factory, bodies, data):
    directory = tmp_path_factory.mktemp("flip")
    whole = bytearray(pack_header() + b"".join(map(pack_record, bodies)))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    (directory / "offsets").write_bytes(whole)
    made, found = opened(directory)
    made.close()
    assert len(found) >= len(bodies) - 1
    left = iter(bodies)
    assert all(any(it == other for other in left) for it in found), "in order, and nothing else"


def test_a_damaged_header_costs_no_record_and_is_repaired(tmp_path):
    whole = pack_header() + b"".join(map(pack_record, [b"one", b"two"]))
    for header in (bytes(16), b"\xff" * 16, bytes([whole[0] ^ 1]) + whole[1:16]):
        (tmp_path / "offsets").write_bytes(header + whole[16:])
        made, found = opened(tmp_path)
        made.append([b"next"])
        made.close()
        assert (found, made.damaged) == ([b"one", b"two"], 1)
        assert (tmp_path / "offsets").read_bytes() == whole + pack_record(b"next")


def test_a_tail_that_is_cut_is_reported(tmp_path, caplog):
    logging.disable(logging.NOTSET)
    whole = pack_header() + b"".join(map(pack_record, [b"one", b"two"]))
    for damaged in (whole[:-6], whole[:-16] + bytes(16)):
        (tmp_path / "offsets").write_bytes(damaged)
        caplog.clear()
        assert opened_and_closed(tmp_path) == [b"one"]
        assert f"tail cut file={tmp_path / 'offsets'} place=32" in caplog.text
    caplog.clear()
    assert opened_and_closed(tmp_path) == [b"one"]
    assert caplog.text == ""


def test_a_start_reads_every_file_but_one_with_a_valid_header_only(tmp_path):
    path = tmp_path / "offsets"
    assert not needs_recovery(path)
    for data, expected in (
        (pack_header(), False),
        (b"", True),
        (pack_header()[:-1], True),
        (b"x" * len(pack_header()), True),
        (pack_header() + pack_record(b"body"), True),
    ):
        path.write_bytes(data)
        assert needs_recovery(path) is expected, data


def test_a_file_of_somebody_else_is_put_aside(tmp_path):
    (tmp_path / "offsets").write_bytes(b"something else entirely")
    made, found = opened(tmp_path)
    made.append([b"x"])
    made.close()
    assert (found, made.damaged) == ([], 1)
    assert (tmp_path / "offsets.damaged").read_bytes() == b"something else entirely"
    assert opened_and_closed(tmp_path) == [b"x"]


def opened_and_closed(directory: Path) -> list[bytes]:
    made, found = opened(directory)
    made.close()
    return found


def test_it_is_written_anew_when_it_has_grown(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "COMPACT_MIN_BYTES", 1_000)
    store = OffsetStore(Journal(OsFiles(), str(tmp_path), "offsets"))
    store.note_group("g", "queue", ("#",), 0, owner="uid 1")
    sizes = []
    for floor in range(500):
        store.note_place("g", "r-0", 1, floor, BitMap64([floor + 2]), floor)
        store.flush(sync=False)
        sizes.append((tmp_path / "offsets").stat().st_size)
    store.close()
    assert max(sizes) < 1_200
    assert min(sizes[100:]) < 400
    again = OffsetStore(Journal(OsFiles(), str(tmp_path), "offsets"))
    place = again.groups["g"].places["r-0"]
    again.close()
    assert again.groups["g"].owner == "uid 1"
    assert (place.floor, list(place.done)) == (499, [499, 500, 501])


def test_after_an_error_of_the_disk_everything_is_in_a_new_file(tmp_path):
    class Full(OsFiles):
        fails = False

        def pwritev(self, handle, buffers, position):
            if self.fails:
                raise OSError(errno.ENOSPC, "no space")
            return super().pwritev(handle, buffers, position)

        def fdatasync(self, handle):
            if self.fails:
                raise OSError(errno.EIO, "no")
            super().fdatasync(handle)

    files = Full()
    store = OffsetStore(Journal(files, str(tmp_path), "offsets"))
    store.note_group("g", "queue", ("#",), 0)
    store.note_place("g", "r-0", 1, 5, None, 0)
    store.flush(sync=True)
    files.fails = True
    store.note_place("g", "r-0", 1, 6, None, 0)
    for _ in range(2):
        with pytest.raises(OSError, match="no"):
            store.flush(sync=True)
        assert store.broken
        store.note_place("g", "r-0", 1, 7, None, 0)
    files.fails = False
    store.flush(sync=True)
    assert not store.broken
    store.close()
    again = OffsetStore(Journal(OsFiles(), str(tmp_path), "offsets"))
    again.close()
    assert again.groups["g"].places["r-0"].floor == 7


class NoNewFiles(OsFiles):
    """Refuses what makes a new file, at one of its steps; open files stay usable."""

    def __init__(self, step: str, code: int) -> None:
        super().__init__()
        self.step, self.code = step, code
        self.fails = False
        self.tries = 0
        self.news: set[int] = set()

    def open(self, path, **more):
        new = path.endswith(".tmp")
        self.tries += new
        self._refuse("open", new)
        handle = super().open(path, **more)
        self.news = {handle} if new else self.news - {handle}
        return handle

    def pwritev(self, handle, buffers, position):
        self._refuse("pwritev", handle in self.news)
        return super().pwritev(handle, buffers, position)

    def fdatasync(self, handle):
        self._refuse("fdatasync", handle in self.news)
        super().fdatasync(handle)

    def dirsync(self, path):
        self._refuse("dirsync", True)
        super().dirsync(path)

    def _refuse(self, step: str, new: bool) -> None:
        if self.fails and new and step == self.step:
            raise OSError(self.code, os.strerror(self.code))


@pytest.mark.parametrize(
    ("step", "code"), [("open", errno.EMFILE), ("pwritev", errno.ENOSPC), ("fdatasync", errno.EIO)]
)
def test_a_new_file_that_cannot_be_made_leaves_the_old_one_in_use(step, code, tmp_path, monkeypatch):
    """It has only grown; and the new one is tried again when it has grown some more, not each time."""
    monkeypatch.setattr(journal_module, "COMPACT_MIN_BYTES", 1_000)
    files = NoNewFiles(step, code)
    store = OffsetStore(Journal(files, str(tmp_path), "offsets"))
    files.news.clear()  # the first one is in use
    store.note_group("g", "queue", ("#",), 0)
    files.fails, files.tries = True, 0
    for floor in range(200):
        store.note_place("g", "r-0", 1, floor, None, 0)
        store.flush(sync=True)
        assert not store.unsynced
    size = (tmp_path / "offsets").stat().st_size
    assert size > 5_000
    assert 0 < files.tries <= size // 1_000
    assert os.listdir(tmp_path) == ["offsets"], "what was begun takes room from the one that is in use"
    files.fails = False
    for floor in range(200, 240):
        store.note_place("g", "r-0", 1, floor, None, 0)
        store.flush(sync=True)
    assert (tmp_path / "offsets").stat().st_size < 1_200
    store.close()
    again = OffsetStore(Journal(OsFiles(), str(tmp_path), "offsets"))
    again.close()
    assert again.groups["g"].places["r-0"].floor == 239


def test_after_a_new_file_has_the_name_the_old_one_is_no_longer_written(tmp_path, monkeypatch):
    monkeypatch.setattr(journal_module, "COMPACT_MIN_BYTES", 1_000)
    files = NoNewFiles("dirsync", errno.EIO)
    store = OffsetStore(Journal(files, str(tmp_path), "offsets"))
    files.fails = True
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        for floor in range(100):
            store.note_place("g", "r-0", 1, floor, None, 0)
            store.flush(sync=True)
    assert store.broken
    store.close()


class Recorder:
    """A life on a disk that fails and forgets: what was promised, and what was ever true."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.files = SimFiles(self.random)
        self.files.makedirs("/state")
        self.floors = {"a": 0, "b": 0}  # the truth
        self.promised = dict(self.floors)  # of which a sync has returned

    def live(self, steps: int) -> int:
        """Some steps of a broker; how many crash states were judged."""
        store = self.start()
        states = 0
        for _ in range(steps):
            ring = self.random.choice("ab")
            self.floors[ring] += self.random.randrange(1, 5)
            store.note_place("g", ring, 1, self.floors[ring], None, 0)
            sync = self.random.random() < 0.5
            store.flush(sync=sync)
            if sync:
                self.promised = dict(self.floors)
            states += self.crash_now()
        return states

    def start(self) -> OffsetStore:
        store = OffsetStore(Journal(self.files, "/state", "offsets"))
        store.note_group("g", "ordered", ("#",), 0)
        return store

    def crash_now(self) -> int:
        """The next start, on what a crash may leave: everything promised, and nothing that never was."""
        found = OffsetStore(Journal(self.files.crash(self.random), "/state", "offsets"))
        places = found.groups["g"].places if "g" in found.groups else {}
        for ring, floor in self.promised.items():
            has = places[ring].floor if ring in places else 0
            assert floor <= has <= self.floors[ring], (ring, floor, has)
        return 1


@pytest.mark.parametrize("compact_bytes", [200, 1 << 20])
def test_what_was_synced_survives_every_crash(compact_bytes, monkeypatch):
    monkeypatch.setattr(journal_module, "COMPACT_MIN_BYTES", compact_bytes)
    assert sum(Recorder(seed).live(40) for seed in range(30)) == 1_200


def test_the_judge_sees_a_journal_that_forgets_to_sync(monkeypatch):
    monkeypatch.setattr(Journal, "sync", lambda self: None)
    with pytest.raises(AssertionError):
        for seed in range(30):
            Recorder(seed).live(40)


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x90", b"\x91\xa4none", b"\x92\xa4gone\x01"])
def test_a_body_that_says_nothing_known_is_no_body(data):
    with pytest.raises(ValueError, match=r"`|malformed|truncated"):
        decode_body(data)


def test_the_file_stays_small_however_often_the_broker_starts(tmp_path, monkeypatch):
    """The length of the current content sets how much may be appended before a rewrite."""
    monkeypatch.setattr(journal_module, "COMPACT_MIN_BYTES", 1_000)
    for _ in range(8):
        store = OffsetStore(Journal(OsFiles(), str(tmp_path), "offsets"))
        while not store._journal.needs_rewrite:
            store.note_place("billing", "press-0", 7, 1_000, None, 3)
            store.flush(sync=False)
        store.close()
        assert (tmp_path / "offsets").stat().st_size < 5_000
