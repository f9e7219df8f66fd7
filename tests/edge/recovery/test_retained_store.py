"""A retained message outlives the record it came with: the ring may overwrite that, the file has it."""

import errno
import os
import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge.broker.retained_authors import client_info_of_author
from edge.broker.retained_delivery import RetainedRecord
from edge.mqtt import Properties, Publish, Subscribe, Subscription
from edge.recovery.retained_store import (
    REWRITE_MIN_BYTES,
    RetainedStore,
    _SavedPieces,
    _Written,
    in_order,
    marks_in,
)
from persistence import Log, LogReader, OsFiles, durable_file
from ringbuf import Ring
from ringbuf.ring import cursor_file, ring_file
from tests.support.cold_log import ColdLog
from tests.support.directories import memory_directory
from tests.support.mqtt_bench import Bench
from tests.support.no_threads import no_threads
from tests.support.project import ROOT
from tests.support.waiting import wait_until

RING_BYTES = 1 << 16
GOLDEN = ROOT / "tests" / "golden" / "state"


class Site:
    """One broker after another on the same ring and file."""

    def __init__(self, directory: Path, state: Path) -> None:
        self.directory = directory
        self.file = state / "retained.state"
        self.now_ms = 1_000_000
        self.past: LogReader | None = None

    @contextmanager
    def life(self, *, killed: bool = False, files: OsFiles | None = None) -> Iterator[Bench]:
        """`files`: those that the start reads."""
        bench = Bench(directory=self.directory, capacity_bytes=RING_BYTES, now_ms=self.now_ms)
        retained = RetainedStore(self.file, sync=False)
        retained._files = files or retained._files
        retained.restore(bench.broker, [bench.partition.ring], self.past)
        yield bench
        self.now_ms = bench.now_ms
        if killed:
            wait_until(lambda: bench.settle() == 0 and not retained.is_saving)
            thread = retained._thread
            assert thread is not None
            thread.shutdown()
            bench.crash()
        else:
            retained.stop()
            bench.close()


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with memory_directory() as directory:
        yield Site(directory, tmp_path)


def retained(bench: Bench) -> dict[str, bytes]:
    found = {}
    client = bench.client("reader")
    client.send(Subscribe(1, (Subscription("#", 0),)))
    for packet in client.received()[1:]:
        assert isinstance(packet, Publish)
        assert packet.retain
        found[packet.topic] = bytes(packet.payload)
    return found


def authors_in(bench: Bench) -> dict[str, str]:
    """Client identifier of the author of each retained message that has one."""
    rows, _ = bench.engine.retained_authors(0, 100)
    known = [(topic, client_info_of_author(author)) for topic, author in rows]
    return {bench.engine.topic_name(topic).decode(): its.client_id for topic, its in known if its is not None}


def fill(bench: Bench) -> None:
    """More than the ring has room for, a little at a time, as a broker receives it."""
    publisher = bench.client("filler")
    for _ in range(2 * RING_BYTES // 1024):
        publisher.send(Publish("noise", bytes(1000)))
        publisher.received()


def golden_lives(site: Site) -> None:
    """Two messages; then one of them replaced, the other cleared."""
    with site.life() as bench:
        first = Publish("a/1", b"one", retain=True), Publish("a/2", b"two", 1, True, packet_id=1)
        bench.client("c-ann").send(*first, Publish("a/3", b"three", retain=True))
    with site.life() as bench:
        bench.client("c-bob").send(Publish("a/2", b"2", retain=True), Publish("a/1", b"", retain=True))


def test_what_is_written_are_the_golden_bytes(site: Site) -> None:
    golden_lives(site)
    assert site.file.read_bytes() == (GOLDEN / "retained-v2.state").read_bytes()


@pytest.mark.parametrize(
    ("name", "authors"),
    [("retained-v1.state", {}), ("retained-v2.state", {"a/2": "c-bob", "a/3": "c-ann"})],
)
def test_the_golden_bytes_are_read_with_authors_and_without(
    site: Site, name: str, authors: dict[str, str]
) -> None:
    """Version 1, of brokers up to 0.1, has no authors."""
    site.file.write_bytes((GOLDEN / name).read_bytes())
    assert marks_in(site.file).keys() == {"t-0"}
    for _ in range(2):
        with site.life() as bench:
            bench.broker.check_retained()
            assert retained(bench) == {"a/2": b"2", "a/3": b"three"}
            assert authors_in(bench) == authors


def test_a_message_without_an_author_does_not_get_that_of_the_message_before_it(site: Site) -> None:
    site.file.write_bytes(b"".join((GOLDEN / f"retained-v{number}.state").read_bytes() for number in (2, 1)))
    with site.life() as bench:
        assert retained(bench).keys() == {"a/2", "a/3"}
        assert authors_in(bench) == {}


def test_a_file_with_long_authors_is_not_rewritten_by_each_sweep(tmp_path: Path) -> None:
    """Authors are not counted in what is retained: a file of many and small messages is mostly authors."""
    written = _Written(tmp_path / "retained.state", OsFiles(), sync=False)
    for replaces in (True, False, False):
        written.begin(replaces)
        written.add(bytes(32), bytes(2 * REWRITE_MIN_BYTES) if replaces else b"")
        written.end({}, 1_000)
        assert not written.needs_rewrite


@pytest.mark.parametrize("killed", [False, True])
def test_what_the_ring_has_overwritten_is_there_again(site: Site, killed: bool) -> None:
    with site.life(killed=killed) as bench:
        bench.client("p").send(Publish("a", b"old", retain=True), Publish("b", b"b", retain=True))
        bench.client("p").send(Publish("a", b"new", retain=True))
        fill(bench)
        bench.client("p").send(Publish("c", b"c", retain=True))
    with site.life() as bench:
        assert retained(bench) == {"a": b"new", "b": b"b", "c": b"c"}
        fill(bench)
    with site.life() as bench:
        assert retained(bench) == {"a": b"new", "b": b"b", "c": b"c"}


def test_what_was_cleared_stays_so(site: Site) -> None:
    with site.life(killed=True) as bench:
        bench.client("p").send(Publish("a", b"1", retain=True), Publish("b", b"2", retain=True))
        fill(bench)
        bench.client("p").send(Publish("a", b"", retain=True))
        fill(bench)
    with site.life(killed=True) as bench:
        assert retained(bench) == {"b": b"2"}
        bench.client("p").send(Publish("b", b"", retain=True))
    with site.life() as bench:
        assert retained(bench) == {}


def test_properties_and_age_go_along(site: Site) -> None:
    properties = Properties(content_type="text", message_expiry_interval_s=60)
    with site.life() as bench:
        publisher = bench.client5("p")
        publisher.send(Publish("a", b"1", retain=True, properties=properties))
        fill(bench)
    site.now_ms += 20_000
    with site.life() as bench:
        client = bench.client5("c")
        client.send(Subscribe(1, (Subscription("a"),)))
        _, packet = client.received()
        assert isinstance(packet, Publish)
        assert packet.properties.content_type == "text"
        assert packet.properties.message_expiry_interval_s == 40


def test_a_file_is_good_up_to_its_damage(site: Site) -> None:
    with site.life() as bench:
        bench.client("p").send(Publish("a", b"1", retain=True))
    whole = site.file.read_bytes()
    with site.life() as bench:
        fill(bench)
        bench.client("p").send(Publish("b", b"2", retain=True))
        fill(bench)
    site.file.write_bytes(whole + site.file.read_bytes()[len(whole) :][:-10])
    with site.life() as bench:
        assert retained(bench)["a"] == b"1"
        bench.client("p").send(Publish("c", b"3", retain=True))
        fill(bench)
    with site.life() as bench:
        assert retained(bench)["c"] == b"3"


def test_a_start_has_a_part_of_a_long_file_in_memory(site: Site) -> None:
    golden_lives(site)
    site.file.write_bytes(site.file.read_bytes() * 50_000)
    tracemalloc.start()
    try:
        assert marks_in(site.file)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < site.file.stat().st_size // 4


class BadSector(OsFiles):
    """A disk that reads no byte behind the first ones of a file."""

    def __init__(self, code: int, good_bytes: int) -> None:
        self.code, self.good_bytes = code, good_bytes

    def read(self, handle: int, length: int, position: int) -> bytes:
        if position + length > self.good_bytes:
            raise OSError(self.code, os.strerror(self.code))
        return super().read(handle, length, position)


def test_what_a_file_has_before_a_bad_sector_is_there_after_all_later_starts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable_file, "WINDOW_BYTES", 4096)
    sizes: list[int] = []
    for topic in ("a", "b"):
        with site.life() as bench:
            bench.client("p").send(Publish(topic, bytes(9_000), retain=True))
            fill(bench)
        sizes.append(site.file.stat().st_size)
    content = site.file.read_bytes()
    with pytest.raises(InterruptedError):
        list(_SavedPieces(site.file, BadSector(errno.EINTR, 0)))  # the file is not the cause
    assert site.file.read_bytes() == content
    with site.life(files=BadSector(errno.EIO, sizes[0])) as bench:
        assert retained(bench) == {"a": bytes(9_000)}
    assert site.file.with_name("retained.state.bad").read_bytes() == content
    with site.life() as bench:
        assert retained(bench) == {"a": bytes(9_000)}


@pytest.mark.parametrize("same_ring", [True, False])
def test_a_start_without_the_file_reads_the_log(site: Site, tmp_path: Path, same_ring: bool) -> None:
    with site.life(killed=True) as bench, ColdLog.behind(bench, tmp_path / "log") as cold:
        bench.broker.call = bench.calls.append  # no thread reads the log
        bench.client("p").send(Publish("a", b"old", retain=True), Publish("b", b"b", retain=True))
        bench.client("p").send(Publish("a", b"new", retain=True), Publish("c", b"c", retain=True))
        bench.client("p").send(Publish("c", b"", retain=True))
        for _ in range(2 * RING_BYTES // 16_000):
            bench.client("filler").send(*(Publish("noise", bytes(1000)) for _ in range(16)))
            cold.write()
        bench.client("p").send(Publish("d", b"d", retain=True))
        cold.write()
    site.file.unlink(missing_ok=True)
    if not same_ring:  # a power cut took it
        ring_file(site.directory / "t-0").unlink()
        cursor_file(site.directory / "t-0").unlink()
        Ring.create(site.directory / "t-0", capacity_bytes=RING_BYTES, epoch=2).close()
    with Log(tmp_path / "log") as log:
        log.recover()
        site.past = log.reader
        with site.life() as bench:
            assert retained(bench) == {"a": b"new", "b": b"b", "d": b"d"}
    site.past = None
    with site.life() as bench:
        assert retained(bench) == {"a": b"new", "b": b"b", "d": b"d"}


def test_it_does_not_grow_without_bound(site: Site) -> None:
    with site.life() as bench:
        publisher = bench.client("p")
        for number in range(600):
            publisher.send(Publish("a", struct.pack("<I", number) + bytes(12_000), retain=True))
            publisher.received()
    assert site.file.stat().st_size < 2 << 20
    with site.life() as bench:
        assert retained(bench)["a"][:4] == struct.pack("<I", 599)


def test_a_file_that_somebody_removes_is_written_whole_again(site: Site) -> None:
    """Not from where the removed one ended, with a hole before it, which no start could read."""
    with site.life(killed=True) as bench:
        bench.client("p").send(Publish("a", b"1", retain=True))
        fill(bench)
        wait_until(lambda: bench.settle() == 0 and site.file.exists())
        site.file.unlink()

        def is_back() -> bool:  # by the save after the one that misses it
            bench.client("p").send(Publish("b", b"2", retain=True))
            fill(bench)
            return bench.settle() == 0 and site.file.exists()

        wait_until(is_back)
    with site.life() as bench:
        assert retained(bench) == {"a": b"1", "b": b"2"}


def test_it_is_saved_while_no_thread_can_be_started(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with site.life(killed=True) as bench, no_threads(monkeypatch):
        bench.client("p").send(Publish("a", b"1", retain=True))
        fill(bench)
        wait_until(lambda: bench.settle() == 0 and site.file.exists())
    with site.life() as bench:
        assert retained(bench) == {"a": b"1"}


def test_records_of_several_rings_are_merged_by_time_and_the_earlier_stream_is_newer() -> None:
    def records(ring: str, *times: int) -> list[RetainedRecord]:
        return [RetainedRecord(b"t", 0, time, b"", f"{ring}{time}".encode()) for time in times]

    merged = in_order([records("added", 2, 3, 9), records("default", 1, 2, 3)])
    assert [record.payload for record in merged] == [
        b"default1", b"default2", b"added2", b"default3", b"added3", b"added9",
    ]  # fmt: skip
