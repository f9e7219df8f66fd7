"""Fewer partitions at a start: groups and readers get the records of the partitions that are gone."""

import datetime as dt
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

import brim
from brim import Letter, consumer, publish
from edge.cli import main
from edge.consumers.ended_rings import EndedRing
from edge.consumers.start_place import oldest_in
from ringbuf import Range, Ring
from ringbuf.ring import ring_file
from tests.support.brim_process import BrimProcess
from tests.support.logs import Written

SUFFIXES = (".ring", ".cursors")
BODIES = [b"%d" % number for number in range(60)]


def settings(partitions: int, durability: str) -> str:
    return f"""
[[stream]]
name = "some"
topics = ["a/#"]
partitions = {partitions}
ring_bytes = 1048576
durability = "{durability}"
sync_interval_ms = 20
"""


class Scene:
    """A broker that loses partitions or durability between two starts."""

    def __init__(self, runtime_dir: Path, directory: Path) -> None:
        self.runtime_dir, self.directory = runtime_dir, directory

    def broker(self, partitions: int, durability: str) -> BrimProcess:
        return BrimProcess(self.runtime_dir, self.directory, settings(partitions, durability), bridge=False)

    def publish(self, first: int, end: int) -> None:
        letters = [(Letter(f"a/{number % 10}", 1), BODIES[number]) for number in range(first, end)]
        assert publish(letters, runtime_dir=self.runtime_dir) == end - first

    def end_of(self, ring: str) -> int:
        with Ring.attach(self.runtime_dir / ring) as attached:
            return attached.extremes().end_offset

    def received(
        self, group: str, count: int, start: Literal["oldest"] | int | dt.datetime = "oldest"
    ) -> Counter[bytes]:
        """Payloads that a member gets and acknowledges until it has `count`."""
        got: Counter[bytes] = Counter()
        with consumer(group, "a/#", start=start, runtime_dir=self.runtime_dir) as records:
            while got.total() < count and (batch := records.read(20.0)) is not None:
                got.update(bytes(record) for record in batch)
                assert records.ack(batch)
        return got

    def forget_memory(self) -> None:
        for file in self.runtime_dir.glob("*.ring"):
            file.unlink()


@pytest.fixture
def scene(runtime_directory: Path, tmp_path: Path) -> Scene:
    return Scene(runtime_directory, tmp_path)


@pytest.mark.parametrize(
    ("durability", "memory"), [("process", True), ("interval", True), ("interval", False)]
)
def test_groups_get_the_records_of_partitions_that_are_gone(
    durability: str, memory: bool, scene: Scene
) -> None:
    with scene.broker(3, durability):
        scene.publish(0, 20)
        assert scene.received("known", 20).total() == 20
        since = dt.datetime.now(dt.UTC)
        scene.publish(20, 40)
    if not memory:
        scene.forget_memory()
    with scene.broker(1, durability):
        scene.publish(40, 60)
        assert scene.received("known", 40) == Counter(BODIES[20:])
        assert scene.received("new", 60) == Counter(BODIES)
        assert scene.received("since", 40, since) == Counter(BODIES[20:])
        assert publish([(Letter("other", 1), b"")] * 60, runtime_dir=scene.runtime_dir) == 60
        assert scene.received("last", 1, scene.end_of("some-0") - 1) == Counter(BODIES[59:])
        read: Counter[bytes] = Counter()
        with brim.reader("a/#", start="oldest", runtime_dir=scene.runtime_dir) as batches:
            while read.total() < len(BODIES) and (batch := batches.read(20.0)) is not None:
                read.update(bytes(record) for record in batch)
        assert read == Counter(BODIES)
    with scene.broker(3, durability):  # the partitions come back, and the group continues in them
        assert (
            publish([(Letter(f"a/{n}", 1), b"again") for n in range(10)], runtime_dir=scene.runtime_dir) == 10
        )
        assert scene.received("known", 10) == Counter({b"again": 10})


@pytest.mark.parametrize("serves", [True, False])
def test_groups_get_the_records_of_partitions_that_are_gone_of_a_stream_that_a_reload_adds(
    serves: bool, scene: Scene
) -> None:
    with scene.broker(3, "interval"):
        scene.publish(0, 40)
    scene.forget_memory()
    other = settings(1, "interval").replace("some", "other").replace("a/#", "b/#")
    with BrimProcess(scene.runtime_dir, scene.directory, other, bridge=False) as broker:
        if serves:  # the consumers' endpoint runs before the reload
            letters = [(Letter("b/1", 1), b"")]
            assert publish(letters, runtime_dir=scene.runtime_dir) == 1
        with broker.config.open("a") as file:
            file.write(settings(1, "interval"))
        assert main(["reload", "--runtime-dir", str(scene.runtime_dir)]) == 0
        scene.publish(40, 60)
        assert scene.received("new", 60) == Counter(BODIES)


def test_partitions_that_are_gone_take_no_descriptors_which_clients_may_have(scene: Scene) -> None:
    with scene.broker(30, "process"):
        scene.publish(0, 60)
    with scene.broker(1, "process") as broker:
        assert scene.received("one", 60) == Counter(BODIES)
        opened = Path(f"/proc/{broker.pid}/fd")
        names = {file.readlink().name for file in opened.iterdir()}
        assert not names & {f"some-{number}{suffix}" for number in range(1, 30) for suffix in SUFFIXES}


def test_rings_that_cannot_be_served_cost_no_start_and_no_other_record(scene: Scene) -> None:
    with scene.broker(6, "process"):
        scene.publish(0, 20)
        for file in scene.runtime_dir.glob("some-*.ring"):
            shutil.copy(file, scene.directory)
        scene.publish(20, 40)
    damaged, *whole, copied = sorted(scene.runtime_dir.glob("some-[1-5].ring"))  # those with records
    shutil.copy(scene.directory / whole[0].name, copied)
    Ring.create(scene.runtime_dir / "gone-0", capacity_bytes=1 << 16, epoch=1).close()  # no stream has it
    os.truncate(damaged, 4096)
    with scene.broker(1, "process") as broker:
        count = scene.end_of("some-0") + sum(scene.end_of(file.stem) for file in whole)
        received = scene.received("new", count)
        assert (received.total(), len(received)) == (count, count)
        assert f"ring of a removed partition not usable ring={damaged.stem}" in broker.stop()


def test_groups_get_the_records_of_a_log_that_the_stream_no_longer_has(scene: Scene) -> None:
    with scene.broker(1, "interval"):
        scene.publish(0, 20)
        assert scene.received("known", 20).total() == 20
        scene.publish(20, 40)
    scene.forget_memory()
    with scene.broker(1, "process"):
        scene.publish(40, 60)
        assert scene.received("known", 40) == Counter(BODIES[20:])


EPOCH = 7
RECORDS = 100  # more than the ring file has room for


class History:
    """Ring file with the last records of an epoch, a copy of it with the first ones, and a log with any."""

    def __init__(self, directory: Path) -> None:
        self.path, self.older = directory / "some-0", directory / "older" / "some-0"
        self.older.parent.mkdir()
        self.records: list[Range] = []
        with Ring.create(self.path, capacity_bytes=1 << 16, epoch=EPOCH) as ring:
            writer, reader = ring.writer(), ring.reader()
            for number in range(RECORDS):
                if number == 40:
                    for suffix in SUFFIXES:
                        shutil.copy(self.path.with_suffix(suffix), self.older.with_suffix(suffix))
                assert writer.publish(b"%1000d" % number) is not None
                (record,) = reader.ranges(1 << 16)
                self.records.append(replace(record, view=memoryview(bytes(record.view))))

    def log(self, parts: list[range]) -> Written:
        """Log with an earlier epoch of five records, and these offsets of the ring's epoch."""
        written = Written.empty()
        written.add("some-0", EPOCH - 1, [b""] * 5, first=200)
        for part in parts:
            written.log.join("some-0", EPOCH, part.start)
            written.log.append(written.log._ids["some-0"], [self.records[offset] for offset in part])
        written.sync()
        return written


def places_read(source: EndedRing) -> list[tuple[int, int]]:
    """Epoch and offset of each record, read from the oldest one on as groups and readers do."""
    places: list[tuple[int, int]] = []
    epoch, offset = oldest_in(source)
    while epoch != source.epoch or source.read(offset, 5000) is not None:
        if (records := source.read_log(epoch, offset, 5000)) is not None:
            assert records.offset >= offset
            places += [(records.epoch, number) for number in range(records.offset, records.end)]
            offset = records.end
        elif (following := source.next_epoch(epoch)) is not None:
            epoch, offset = following.epoch, following.first_offset
        else:
            break
    return places


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize(
    "parts",
    [
        [range(100)],
        [range(80)],
        [range(20)],
        [range(20, 50)],
        [range(60, 100)],
        [range(20), range(95, 100)],
        [range(0)],
    ],
)
def test_each_record_of_a_ring_file_and_a_log_is_read_once_and_found_by_its_time(
    parts: list[range], older: bool, tmp_path: Path
) -> None:
    history, end = History(tmp_path), parts[-1].stop
    log = history.log(parts).log.reader
    path = history.older if older else history.path
    with Ring.attach(path) as ring:
        oldest, ring_end = ring.extremes().oldest_offset, ring.extremes().end_offset
        source = EndedRing.of_file(path, ring, log, (EPOCH, end))
    assert (oldest > 20, ring_end) == (not older, 40 if older else RECORDS)
    there = sorted({*range(oldest, ring_end)}.union(*parts))
    assert places_read(source) == [(EPOCH - 1, n) for n in range(200, 205)] + [(EPOCH, n) for n in there]
    assert source.seek_time(0) == (EPOCH - 1, 200)
    times = {offset: history.records[offset].first_timestamp_ns for offset in there}
    for record in history.records:
        time_ns = record.first_timestamp_ns
        found = min((offset for offset in there if times[offset] >= time_ns), default=source.ends()[1])
        assert source.seek_time(time_ns) == (EPOCH, found)
    assert source.seek_time(time_ns + 1) == (EPOCH, source.ends()[1])
    assert source.ends()[1] == max(ring_end, end)


def test_a_ring_file_that_another_epoch_has_replaced_is_read_no_longer(tmp_path: Path) -> None:
    history = History(tmp_path)
    with Ring.attach(history.path) as ring:
        source = EndedRing.of_file(history.path, ring, None, (0, 0))
    assert source.log.read("some-0", EPOCH, 99, 5000)[0].offset == 99
    assert not source.log.read("some-0", EPOCH + 1, 99, 5000)
    ring_file(history.path).unlink()
    assert source.seek_time(0) == (EPOCH, RECORDS)
    assert not source.log.read("some-0", EPOCH, 0, 5000)
    with Ring.create(history.path, capacity_bytes=1 << 16, epoch=EPOCH + 1) as ring:
        ring.writer().publish(b"other")
        assert not source.log.read("some-0", EPOCH, 0, 5000)
        assert not source.log.read("some-0", EPOCH + 1, 0, 5000)
