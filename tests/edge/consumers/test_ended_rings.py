"""Fewer partitions at a start: groups and readers get the records of the partitions that are gone."""

import datetime as dt
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Literal

import pytest

import brim
from brim import Letter, consumer, publish
from ringbuf import Ring
from tests.support.brim_process import BrimProcess

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
        scene.publish(0, 40)
    copied, damaged, *whole = sorted(scene.runtime_dir.glob("some-[1-5].ring"))
    shutil.copy(whole[0], copied)
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
