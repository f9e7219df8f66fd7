"""The core of the log thread: when it writes, when it syncs, and what it reports."""

import errno
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from persistence import EpochConflict, LoggedRing, LogWriter, TooManyRings
from persistence.log import log_writer as writer_module
from ringbuf import Ring
from tests.support.log_desk import MS, Desk, count, durable, end
from tests.support.logs import read_all, recovered
from tests.support.rings import fill, overwrite


@pytest.fixture
def desk(runtime_directory: Path) -> Iterator[Desk]:
    desk = Desk(runtime_directory)
    yield desk
    desk.close()


def test_disk_is_synced_in_the_round_that_writes_it(desk: Desk) -> None:
    ring = desk.ring("disk")
    for i in range(10):
        ring.writer().publish(bytes([i]) * 100, key="t")
    assert durable(ring) == 0
    desk.writer.step()
    assert durable(ring) == end(ring) > 0
    assert (desk.syncs(), desk.told) == (1, 1)
    assert count(desk.files, ring) == 10


def test_what_came_during_one_sync_shares_the_next(desk: Desk) -> None:
    """Group commit: many rings, one sync."""
    rings = [desk.ring("disk") for _ in range(5)]
    for ring in rings:
        for _ in range(20):
            ring.writer().publish(b"x")
    desk.writer.step()
    assert desk.syncs() == 1
    assert [durable(ring) for ring in rings] == [end(ring) for ring in rings]


def test_interval_is_synced_when_its_time_has_come(desk: Desk) -> None:
    ring = desk.ring("interval", sync_interval_ms=500)
    ring.writer().publish(b"x" * 100)
    assert desk.writer.step() == 500 * MS
    desk.now = 499 * MS
    ring.writer().publish(b"later")
    assert desk.writer.step() == 1 * MS
    assert (desk.syncs(), durable(ring)) == (0, 0)
    desk.now = 500 * MS
    desk.writer.step()
    assert (desk.syncs(), durable(ring)) == (1, end(ring))


def test_interval_is_synced_when_enough_waits(desk: Desk) -> None:
    ring = desk.ring("interval", sync_interval_ms=10_000, sync_bytes=3000)
    for expected in (0, 0, 1, 1):
        ring.writer().publish(b"x" * 1100)
        desk.writer.step()
        assert desk.syncs() == expected


def test_interval_never_lets_the_ring_fill_up(desk: Desk) -> None:
    """Memory is released when it is durable, so a part of the ring must not wait for the interval."""
    ring = desk.ring("interval", sync_interval_ms=3_600_000, sync_bytes=1 << 30)
    for _ in range(1000):
        assert ring.writer().publish(b"x" * 1000) is not None
        desk.writer.step()
    assert desk.syncs() >= 1000 * 1000 // 65536


def test_what_disk_syncs_is_durable_for_interval_too(desk: Desk) -> None:
    slow, fast = desk.ring("interval"), desk.ring("disk")
    slow.writer().publish(b"x")
    desk.writer.step()
    assert durable(slow) == 0
    fast.writer().publish(b"y")
    desk.writer.step()
    assert durable(slow) == end(slow)


def test_a_ring_is_held_until_its_records_are_durable(desk: Desk) -> None:
    ring = desk.ring("disk")
    desk.fail(errno.EIO, "fdatasync")
    published = fill(ring.writer())
    for _ in range(5):
        desk.now += 10_000 * MS
        desk.writer.step()
    assert ring.writer().publish(b"x" * 1000) is None
    desk.files.hook = None
    desk.now += 10_000 * MS
    desk.writer.step()
    desk.writer.step()
    assert ring.writer().publish(b"x" * 1000) is not None
    assert count(desk.files, ring) == published


def test_a_taken_over_ring_is_appended_from_where_the_log_ends(desk: Desk, runtime_directory: Path) -> None:
    ring = desk.ring("disk")
    ring.writer().publish(b"logged")
    desk.writer.step()
    ring.writer().publish(b"in the ring alone")
    desk.writer.close()
    ring.close()
    desk.rings.clear()
    log, _ = recovered(desk.files.kill())
    ring = Ring.reattach(runtime_directory / "r-0")
    writer = LogWriter(log)
    writer.add(LoggedRing(ring, "disk"))
    ring.writer().publish(b"new")
    assert writer.finish()
    assert sorted(read_all(log, "r-0", 7)) == [0, 1, 2]
    assert durable(ring) == end(ring)
    writer.close()
    ring.close()


def test_a_ring_full_to_the_brim_is_appended_whole_when_it_is_taken_over(
    desk: Desk, runtime_directory: Path
) -> None:
    """The first waiting record is inside a chunk of the ring's index; its first record is gone: no seek
    finds it.
    """
    ring = desk.ring("disk")
    for _ in range(100):
        ring.writer().publish(b"x" * 300)
    desk.writer.step()
    desk.fail(errno.EIO, "pwritev", "open")
    desk.writer.step()
    published = 100 + fill(ring.writer(), 300)
    desk.writer.close()
    ring.close()
    desk.rings.clear()
    log, _ = recovered(desk.files.kill())
    assert log.ends()["r-0"].end_offset == 100
    ring = Ring.reattach(runtime_directory / "r-0")
    writer = LogWriter(log)
    writer.add(LoggedRing(ring, "disk"))
    assert ring.writer().publish(b"x" * 300) is None
    assert writer.finish()
    assert sorted(read_all(log, "r-0", 7)) == list(range(published))
    assert ring.writer().publish(b"x" * 300) is not None
    writer.close()
    ring.close()


def test_a_new_ring_of_a_higher_epoch_goes_on_with_the_offsets(desk: Desk) -> None:
    ring = desk.ring("disk", name="a-0")
    ring.writer().publish(b"x")
    desk.writer.step()
    desk.writer.remove("a-0")
    ring.unlink()
    epoch, offset = desk.log.ends()["a-0"]
    with Ring.create(ring.path, capacity_bytes=65536, epoch=epoch + 1, first_offset=offset) as after:
        desk.writer.add(LoggedRing(after, "disk"))
        after.writer().publish(b"y")
        desk.writer.step()
        assert desk.log.epochs("a-0") == [(7, 0, 1), (8, 1, 2)]
        desk.writer.remove("a-0")


def test_a_ring_that_contradicts_the_log_is_refused(desk: Desk) -> None:
    ring = desk.ring("disk", name="a-0")
    ring.writer().publish(b"x")
    desk.writer.step()
    desk.writer.remove("a-0")
    ring.unlink()
    for epoch in (7, 6):
        with Ring.create(ring.path, capacity_bytes=65536, epoch=epoch) as other:
            with pytest.raises(EpochConflict, match="first_offset=1") as caught:
                desk.writer.add(LoggedRing(other, "disk"))
            assert (caught.value.name, caught.value.epoch) == ("a-0", 7)
            assert other.slots() == []
            other.unlink()


def test_a_ring_that_has_moved_on_leaves_a_gap_that_can_be_seen(desk: Desk) -> None:
    ring = desk.ring("disk", name="a-0")
    ring.writer().publish(b"x")
    desk.writer.step()
    desk.writer.remove("a-0")
    for _ in range(200):
        ring.writer().publish(b"y" * 1000)
    desk.writer.add(LoggedRing(ring, "disk"))
    assert desk.writer.finish()
    read = read_all(desk.log, "a-0", 7)
    assert read.keys() > {0, 200}
    assert 1 not in read
    assert sorted(read)[1:] == list(range(sorted(read)[1], 201))


END_PAIRS = 0x88  # the end of the ring in its header, twice


@pytest.mark.parametrize("damage", [b"\xff" * 8, bytes(32)], ids=["garbage", "zeros"])
@pytest.mark.parametrize("first", [0, 3, 9])
def test_damaged_records_of_a_ring_are_passed_over_and_its_publishers_served(
    desk: Desk, caplog: pytest.LogCaptureFixture, damage: bytes, first: int
) -> None:
    bad, good = desk.ring("disk"), desk.ring("disk")
    for records in (first, 10 - first):  # the log looks at the first of a run; the rest goes as it is
        desk.writer.step()
        for ring in (bad, good):
            assert all(ring.writer().publish(b"x") is not None for _ in range(records))
    place = 16384 + first * 64 + (0 if damage == bytes(32) else 8)
    overwrite(bad.path, place, damage)
    for _ in range(2):
        desk.writer.step()
    assert (durable(bad), durable(good)) == (end(bad), end(good))
    assert desk.writer.broken == {}
    assert desk.writer.status()["lost_records"] == 1
    assert f"records lost before they were logged ring={bad.name} before={first + 1} records=1" in caplog.text
    assert all(bad.writer().publish(b"y") is not None for _ in range(5))
    desk.writer.step()
    assert durable(bad) == end(bad)
    assert (count(desk.files, bad), count(desk.files, good)) == (14, 10)


def test_damage_behind_good_records_of_the_same_round_is_passed_over(desk: Desk) -> None:
    ring = desk.ring("disk")
    writer = ring.writer()
    while ring.capacity_bytes - writer.end_position >= 2 * 160:
        writer.publish(b"x" * 100, b"k")
        desk.writer.step()
    for payload in (b"last", b"damaged", b"first behind"):
        writer.publish(payload * 10, b"k")
    overwrite(ring.path, 16384 + 8, b"\xff" * 8)  # the first record after the wrap
    assert desk.writer.finish()
    assert durable(ring) == end(ring)
    assert desk.writer.lost_records > 0
    assert desk.writer.remove(ring.name)


def test_a_ring_whose_end_is_damaged_too_is_left_and_the_others_go_on(desk: Desk) -> None:
    bad, good = desk.ring("disk"), desk.ring("disk")
    bad.writer().publish(b"x")
    overwrite(bad.path, 16384 + 8, b"\xff" * 8)
    overwrite(bad.path, END_PAIRS, bytes(32))
    good.writer().publish(b"y")
    changes: list[int] = []
    desk.writer.state.on_change = lambda: changes.append(1)
    desk.writer.step()
    assert durable(good) == end(good)
    assert list(desk.writer.broken) == [bad.name]
    assert desk.writer.status()["broken_rings"]
    assert changes, "publishers that wait for this log are refused from now on"
    assert bad.slots() == []
    assert all(bad.writer().publish(b"x" * 1000) is not None for _ in range(200))


def test_a_ring_that_is_removed_is_in_the_log_as_far_as_it_went(desk: Desk) -> None:
    ring, other = desk.ring("interval"), desk.ring("interval")
    published = fill(ring.writer())
    other.writer().publish(b"x")
    assert desk.writer.remove(ring.name)
    assert ring.slots() == []
    assert count(desk.files, ring) == published
    assert desk.writer.remove("nobody")


def test_a_ring_removed_from_a_broken_disk_leaves_nothing_behind_that_points_to_it(desk: Desk) -> None:
    """Its memory may be overwritten now: what was queued of it must never be written."""
    ring, other = desk.ring("disk"), desk.ring("disk")
    ring.writer().publish(b"safe")
    desk.writer.step()
    for each in (ring, other):
        each.writer().publish(b"waits")
    desk.fail(errno.EIO, "fdatasync")
    desk.writer.step()
    assert not desk.writer.remove(ring.name)
    for _ in range(200):
        assert ring.writer().publish(b"overwrites" * 100) is not None
    desk.files.hook = None
    desk.now += 10_000 * MS
    desk.writer.step()
    assert desk.log.ends() == {ring.name: (7, 1), other.name: (7, 1)}
    assert count(desk.files, ring) == 1
    assert count(desk.files, other) == 1


def test_a_ring_removed_while_the_log_takes_nothing_takes_no_records_of_others_along(desk: Desk) -> None:
    gone, other = desk.ring("interval"), desk.ring("interval")
    for ring in (gone, other):
        ring.writer().publish(b"written, not synced")
    desk.writer.step()
    desk.writer.blocked = "the disk is full"
    assert not desk.writer.remove(gone.name)
    desk.writer.blocked = ""
    other.writer().publish(b"later")
    desk.now += 10_000 * MS
    desk.writer.step()
    desk.writer.step(sync=True)
    assert durable(other) == end(other)
    assert (count(desk.files, gone), count(desk.files, other)) == (0, 2)


def test_what_was_good_of_a_ring_that_is_damaged_later_becomes_durable(desk: Desk) -> None:
    ring = desk.ring("interval")
    ring.writer().publish(b"good")
    desk.writer.step()
    at = ring.writer().end_position
    ring.writer().publish(b"bad")
    overwrite(ring.path, 16384 + at + 8, b"\xff" * 8)
    overwrite(ring.path, END_PAIRS, bytes(32))
    desk.writer.step()
    assert list(desk.writer.broken) == [ring.name]
    assert count(desk.files, ring) == 1
    assert ring.slots() == []


def test_records_filled_in_place_stand_alone(desk: Desk) -> None:
    ring = desk.ring("disk")
    writer = ring.writer()
    writer.publish(b"before")
    claim = writer.claim(8000, key=b"cam")
    memoryview(claim)[:] = b"p" * 8000
    claim.commit()
    writer.publish(b"after")
    desk.writer.step()
    assert [it.count for it in desk.log.read(ring.name, 7, 0, 1 << 20)] == [1, 1, 1]
    assert count(desk.files, ring) == 3


def test_an_idle_log_proves_its_end_once(desk: Desk) -> None:
    ring = desk.ring("disk")
    ring.writer().publish(b"x")
    desk.writer.step()
    size = desk.log.stats.written_bytes
    desk.now = 1_000 * MS
    desk.writer.step()
    proven = desk.log.stats.written_bytes
    assert proven > size
    desk.now = 9_000 * MS
    assert desk.writer.step() == 60_000 * MS
    assert desk.log.stats.written_bytes == proven
    assert desk.syncs() == 1


def test_finish_brings_everything_to_the_disk_or_says_that_it_could_not(desk: Desk) -> None:
    ring = desk.ring("interval", sync_interval_ms=10_000)
    published = fill(ring.writer())
    assert desk.writer.finish()
    assert count(desk.files, ring) == published
    ring.writer().publish(b"x")
    desk.fail(errno.EIO, "fdatasync")
    assert not desk.writer.finish()
    assert durable(ring) < end(ring)
    assert count(desk.files, ring) >= published


def test_one_thread_serves_so_many_rings(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "RINGS_MAX", 2)
    desk.ring()
    desk.ring()
    with pytest.raises(TooManyRings, match="at most 2"):
        desk.ring()
    assert desk.rings[-1].slots() == []


def test_status_says_how_it_fares(desk: Desk) -> None:
    ring = desk.ring("interval")
    ring.writer().publish(b"x" * 1000)
    desk.writer.step()
    status = desk.writer.status()
    assert status["read_only"] is False
    assert status["unsynced_bytes"] == 512 + 64 + 32 + 1056  # Two announcements, and the record.
    desk.writer.step(sync=True)
    status = desk.writer.status()
    assert (status["unsynced_bytes"], status["records"], status["syncs"]) == (0, 1, 1)
    assert status["fsync"]["count"] == 1  # type: ignore[index]


def test_a_busy_ring_does_not_keep_the_others_waiting(desk: Desk) -> None:
    c = desk.log.commit.c
    c.extent_bytes, c.step_bytes, c.round_bytes = 2000, 4000, 8000
    busy, quiet = desk.ring(), desk.ring()
    fill(busy.writer())
    quiet.writer().publish(b"x")
    desk.writer.step()
    assert durable(quiet) == end(quiet)
    assert 0 < durable(busy) < end(busy)
    assert desk.writer.step() == 0, "the rest is due at once"


def never(*_: object) -> None:
    raise AssertionError


def test_nothing_is_told_when_nothing_became_durable(desk: Desk) -> None:
    told: Callable[..., None] = never
    desk.writer._on_durable = told
    desk.ring("disk")
    for _ in range(3):
        desk.writer.step()
