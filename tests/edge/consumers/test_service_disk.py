"""Groups and the disk: what a power cut leaves of them, a journal that fails, and answers of the log."""

import errno
import time
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

import pytest

from edge.config.schema import Durability
from edge.consumers.delivery_settings import DeliverySettings
from edge.consumers.faults import Faults
from edge.consumers.log_read_thread import LogReadThread
from edge.consumers.offset_journal import Journal
from edge.consumers.offset_store import OffsetStore
from edge.consumers.protocol import Done, Forget, Reset, SetGroup
from edge.consumers.ring_source import RingSource
from ringbuf import Ring
from tests.support.consumer_desk import Desk
from tests.support.simfiles import SimFiles


@pytest.fixture
def disk():
    files = SimFiles(Random(1))
    files.makedirs("/state")
    return files


def after_power_cuts(disk: SimFiles) -> list[OffsetStore]:
    """Offset stores that a start may find if the power is cut now."""
    return [OffsetStore(Journal(disk.crash(Random(seed)), "/state", "offsets")) for seed in range(20)]


def test_where_a_group_is_put_outlives_a_power_cut_like_the_records(runtime_directory, disk):
    """Else one that began at the latest record would begin behind what it was to get."""
    with Desk(runtime_directory, files=disk, journal=Path("/state"), durability=Durability.DISK) as desk:
        desk.publish("early")
        ann = desk.member("g", start="latest")
        assert {store.groups["g"].places["some-0"].floor for store in after_power_cuts(disk)} == {1}
        ann.leave()
        desk.ask(Reset, Done, "g", "oldest")
        assert {store.groups["g"].places["some-0"].floor for store in after_power_cuts(disk)} == {0}
        desk.ask(Forget, Done, "g")
        assert not any(store.groups for store in after_power_cuts(disk))


def test_settings_of_an_operator_outlive_a_power_cut_like_the_records(runtime_directory, disk):
    with Desk(runtime_directory, files=disk, journal=Path("/state"), durability=Durability.DISK) as desk:
        desk.member("g")
        desk.ask(SetGroup, Done, "g", DeliverySettings(lease_ms=7))
        assert {store.groups["g"].operator.lease_ms for store in after_power_cuts(disk)} == {7}


def test_the_removal_of_a_group_outlives_a_power_cut_although_its_stream_was_removed(runtime_directory, disk):
    with Desk(runtime_directory, files=disk, journal=Path("/state"), durability=Durability.DISK) as desk:
        desk.member("g").leave()
        desk.end()
        desk.rings.pop().close()
        desk.start()
        desk.ask(Forget, Done, "g")
        assert not any(store.groups for store in after_power_cuts(disk))


def test_settings_of_an_operator_are_synced_in_time_at_interval(runtime_directory, disk):
    with Desk(runtime_directory, files=disk, journal=Path("/state"), durability=Durability.INTERVAL) as desk:
        desk.member("g")
        desk.turn(2.0)
        desk.turn(2.0)
        desk.ask(SetGroup, Done, "g", DeliverySettings(lease_ms=7))
        assert desk.coordinator.turn() <= 1.0
        desk.turn(1.0)
        assert {store.groups["g"].operator.lease_ms for store in after_power_cuts(disk)} == {7}


def test_where_a_group_is_put_is_synced_in_time_at_interval(runtime_directory, disk):
    with Desk(runtime_directory, files=disk, journal=Path("/state"), durability=Durability.INTERVAL) as desk:
        desk.member("g")
        assert not all("g" in store.groups for store in after_power_cuts(disk))
        assert desk.coordinator.turn() <= 1.0
        desk.turn(1.0)
        assert all("g" in store.groups for store in after_power_cuts(disk))


def test_a_disk_that_fails_is_asked_again_and_keeps_no_processor_busy(runtime_directory, disk):
    with Desk(runtime_directory, files=disk, journal=Path("/state"), durability=Durability.INTERVAL) as desk:
        ann = desk.member()
        desk.publish("a")
        ann.ack(ann.got())

        def refuse(operation: str, path: str) -> None:
            raise OSError(errno.EIO, "the disk has an error")

        disk.hook = refuse
        desk.now_s += 2.0  # when what was acknowledged is to be synced
        pauses = []
        for _ in range(5):
            pauses.append(desk.coordinator.turn())
            desk.now_s += pauses[-1]
        assert min(pauses) > 0.0
        disk.hook = None
        desk.turn(1.0)
        assert {store.groups["g"].places["some-0"].floor for store in after_power_cuts(disk)} == {1}


def test_a_disk_that_fails_is_tried_again_after_a_pause_and_not_in_each_turn(runtime_directory, disk):
    with Desk(runtime_directory, files=disk, journal=Path("/state"), durability=Durability.DISK) as desk:
        ann = desk.member()
        desk.publish("a")
        attempts: list[str] = []

        def refuse(operation: str, path: str) -> None:
            attempts.append(operation)
            raise OSError(errno.EIO, "the disk has an error")

        batch = ann.got()
        disk.hook = refuse
        ann.ack(batch)
        desk.coordinator.turn()
        before = len(attempts)
        assert before
        for _ in range(5):
            desk.coordinator.turn()
        assert len(attempts) == before
        desk.now_s += 1.0
        desk.coordinator.turn()
        assert len(attempts) > before
        disk.hook = None


def test_an_answer_of_the_log_is_not_lost_while_others_are_given_out(runtime_directory):
    """As when the endpoint's thread has its turn between two instructions of the thread that reads."""
    taken: list[object] = []
    reads = LogReadThread("log", lambda: None, Faults(Counter(), time.monotonic))

    class Interrupted(type(reads._results)):  # type: ignore[misc]
        def append(self, answer):
            reads.run()
            super().append(answer)

    reads._results = Interrupted()
    with Ring.create(runtime_directory / "some-0", capacity_bytes=1 << 16, epoch=1) as ring:
        source = RingSource(ring)
        reads.submit(partial(source.read_log, 1, 0, 1 << 16), taken.append)
        reads.close()
        reads.run()
        source.close()
    assert taken == [None]
