"""Disks that fail: an error at each call, several in a row, a full disk, and a stop meanwhile."""

import errno
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from persistence import Log, LogAbsence, LoggedRing, LogWriter
from persistence.log.log_writer import PROVE_AFTER_NS
from persistence.segment.format import segment_name
from ringbuf import Ring
from tests.support.log_desk import MS, Desk, count, durable, end
from tests.support.logs import read_all, recovered
from tests.support.rings import overwrite

DISK_CALLS = ["open", "pwritev", "fdatasync", "rename", "dirsync", "ftruncate"]


@pytest.fixture
def desk(runtime_directory: Path) -> Iterator[Desk]:
    desk = Desk(runtime_directory)
    yield desk
    desk.close()


def test_one_failed_sync_costs_nothing_and_is_not_even_a_pause(desk: Desk) -> None:
    ring = desk.ring("disk")
    ring.writer().publish(b"before")
    desk.writer.step()
    desk.fail(errno.EIO, "fdatasync", times=1)
    ring.writer().publish(b"during")
    assert desk.writer.step() == 0
    assert not desk.writer.state.read_only
    assert "EIO" in desk.writer.state.reason
    assert durable(ring) < end(ring)
    desk.writer.step()
    assert desk.writer.state.reason == ""
    assert durable(ring) == end(ring)
    assert count(desk.files, ring) == 2
    assert desk.log.stats.failed_syncs == 1
    assert len(desk.log.reader.bases()) == 2


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EMFILE])
def test_a_disk_that_takes_nothing_is_read_only_until_it_does(desk: Desk, code: int) -> None:
    ring = desk.ring("disk")
    ring.writer().publish(b"before")
    desk.writer.step()
    before = durable(ring)
    desk.fail(code, "pwritev", "fdatasync", "open", "rename", "ftruncate")
    ring.writer().publish(b"during")
    pauses = []
    for _ in range(12):
        desk.now += (pause := desk.writer.step())
        pauses.append(pause)
    assert desk.writer.state.read_only
    assert errno.errorcode[code] in desk.writer.state.reason
    assert pauses[0] == 0
    assert 0 < pauses[1] < pauses[3] <= max(pauses) <= 5_000 * MS
    assert desk.writer.readers() == []
    desk.writer.step()
    tried, desk.now = desk.files.operations, desk.now + 1 * MS
    assert desk.writer.step() > 0
    assert desk.files.operations == tried  # Not before its time.
    assert durable(ring) == before
    assert count(desk.files, ring) == 1
    desk.files.hook = None
    desk.now += 5_000 * MS
    desk.writer.step()
    assert not desk.writer.state.read_only
    assert durable(ring) == end(ring)
    assert count(desk.files, ring) == 2


def test_a_directory_in_place_of_the_next_segment_is_named_with_its_remedy(
    runtime_directory: Path, tmp_path: Path
) -> None:
    place = tmp_path / "log" / segment_name(0)
    with (
        Ring.create(runtime_directory / "r", capacity_bytes=65536, epoch=7) as ring,
        Log(tmp_path / "log", segment_bytes=1 << 20, retain_bytes=0, direct=False) as log,
    ):
        log.recover()
        writer = LogWriter(log)
        writer.add(LoggedRing(ring, "disk"))
        place.mkdir()
        ring.writer().publish(b"x")
        writer.step()
        writer.step()
        assert writer.state.reason == f"{place.name}: Is a directory; move or remove it (EISDIR)"
        place.rmdir()
        assert writer.finish()
        assert durable(ring) == end(ring)
        writer.close()


def test_a_log_that_was_killed_and_has_no_room_for_its_proof_is_read_only(desk: Desk) -> None:
    desk.ring("disk").writer().publish(b"synced, not proven")
    desk.writer.step()
    log, _ = recovered(desk.files.crash(Random(0)))
    log.floor = lambda total: total + 1
    now = 0
    writer = LogWriter(log, clock_ns=lambda: now)
    now = PROVE_AFTER_NS
    pauses = []
    for _ in range(5):
        now += (pause := writer.step())
        pauses.append(pause)
    assert writer.state.read_only
    assert pauses[0] == 0
    assert all(pauses[1:])
    log.floor = lambda total: 0
    writer.step()
    assert not writer.state.failures
    assert log.commit.is_proven
    log.close()


def test_a_damaged_durable_position_promises_nothing_that_the_disk_has_not_taken(desk: Desk) -> None:
    ring = desk.ring("interval")
    ring.writer().publish(b"written, not synced")
    desk.writer.step()
    files = desk.files.kill()
    desk.writer.close()
    desk.fail(errno.EIO, "fdatasync")
    files.hook, desk.files.hook = desk.files.hook, None
    log, _ = recovered(files)
    ring.durable(1 << 40)
    writer = LogWriter(log, clock_ns=lambda: 0)
    writer.add(LoggedRing(ring, "disk"))
    writer.step()
    assert durable(ring) == 0
    files.hook = None
    writer.step()
    assert durable(ring) == end(ring) > 0
    assert count(files, ring) == 1
    writer.close()
    log.close()


def published(desk: Desk, rings: list[Ring], number: int) -> None:
    for ring in rings:
        ring.writer().publish_many([bytes([number]) * 300] * 3, key="t")


@pytest.mark.parametrize("in_a_row", [1, 2, 3])
@pytest.mark.parametrize("operation", DISK_CALLS)
def test_an_error_of_any_call_loses_nothing_and_acknowledges_nothing_unsafe(
    runtime_directory: Path, operation: str, in_a_row: int
) -> None:
    """At every place in turn, also while a segment is begun, and in the tries after the first error."""
    for failing in range(0, 14, in_a_row):
        desk = Desk(runtime_directory, segment_bytes=8192)
        rings = [desk.ring("disk", name=f"a-{failing}"), desk.ring("interval", name=f"b-{failing}")]
        calls = 0

        def fail(name: str, path: str, failing: int = failing) -> None:
            nonlocal calls
            if name == operation:
                calls += 1
                if failing < calls <= failing + in_a_row:
                    raise OSError(errno.EIO, "injected")

        desk.files.hook = fail
        for number in range(8):
            published(desk, rings, number)
            desk.writer.step()
            desk.now += 20_000 * MS
            kept = [count(desk.files, ring) for ring in rings]
            assert all(durable(ring) <= 384 * at for ring, at in zip(rings, kept, strict=True))
        desk.files.hook = None
        assert desk.writer.finish()
        assert [durable(ring) for ring in rings] == [end(ring) for ring in rings]
        assert [count(desk.files, ring) for ring in rings] == [24, 24]
        assert recovered(desk.files.crash(Random(0)))[1].damage == ()
        desk.close()


def test_a_failed_write_ends_its_segment_even_if_the_log_must_not_write_any_more(desk: Desk) -> None:
    """The reaction to a failure comes first: the content of the file is unknown, whatever else has come."""
    ring = desk.ring("disk")
    ring.writer().publish(b"before")
    desk.writer.step()
    ring.writer().publish(b"during")

    def block(operation: str, path: str) -> None:
        if operation == "fdatasync":
            desk.writer.blocked = "retention holds everything"
            raise OSError(errno.EIO, "injected")

    desk.files.hook = block
    desk.writer.run()
    desk.files.hook = None
    assert desk.log.active_file == ("", 0)
    desk.writer.step()
    assert durable(ring) < end(ring)
    desk.writer.blocked = ""
    desk.now += 10_000 * MS
    desk.writer.step()
    assert durable(ring) == end(ring)
    assert len(desk.log.reader.bases()) == 2
    assert count(desk.files, ring) == 2


def test_a_blocked_log_keeps_its_segment_and_takes_nothing(desk: Desk) -> None:
    ring = desk.ring("disk")
    ring.writer().publish(b"before")
    desk.writer.step()
    desk.writer.blocked = "the reserve of the disk is used up"
    ring.writer().publish(b"during")
    for _ in range(3):
        desk.now += 10_000 * MS
        desk.writer.step()
    assert desk.writer.state.read_only
    assert desk.log.queued == 0
    desk.writer.blocked = ""
    desk.now += 10_000 * MS
    for _ in range(2):
        desk.writer.step()
    assert durable(ring) == end(ring)
    assert len(desk.log.reader.bases()) == 1


def test_a_disk_that_was_full_and_is_freed_gets_everything_in_few_segments(desk: Desk) -> None:
    ring = desk.ring("disk")
    ring.writer().publish(b"before")
    desk.writer.step()
    desk.files.room_bytes = desk.files.used_bytes() + 2000
    for number in range(20):
        ring.writer().publish(bytes([number]) * 1000)
        desk.writer.step()
        desk.now += 6_000 * MS
    assert desk.writer.state.read_only
    assert "the disk is full" in desk.writer.state.reason
    assert durable(ring) < end(ring)
    desk.files.room_bytes = None
    desk.now += 6_000 * MS
    for _ in range(2):
        desk.writer.step()
    assert durable(ring) == end(ring)
    assert count(desk.files, ring) == 21
    assert len(desk.log.reader.bases()) <= 4


def test_a_stop_while_the_disk_fails_leaves_a_log_that_the_ring_continues(
    desk: Desk, runtime_directory: Path
) -> None:
    ring = desk.ring("disk")
    ring.writer().publish(b"safe")
    desk.writer.step()
    desk.fail(errno.EIO, *DISK_CALLS)
    ring.writer().publish(b"waits")
    assert not desk.writer.finish()
    desk.writer.close()
    desk.log.close()
    ring.close()
    desk.rings.clear()
    log, report = recovered(desk.files.kill())
    assert report.damage == ()
    ring = Ring.reattach(runtime_directory / "r-0")
    writer = LogWriter(log)
    writer.add(LoggedRing(ring, "disk"))
    assert writer.finish()
    assert sorted(read_all(log, "r-0", 7)) == [0, 1]
    assert durable(ring) == end(ring)
    writer.close()
    ring.close()


def test_records_that_wait_when_the_writer_ends_are_written_by_the_next_one(desk: Desk) -> None:
    """Taken, and not durable: they stay in the queue, and their memory stays as it is."""
    ring = desk.ring("interval")
    ring.writer().publish_many([b"x"] * 5, key="t")
    desk.writer.step()
    assert desk.log.queued > 0
    desk.writer.close()
    desk.log.write()
    desk.log.sync()
    assert desk.log.queued == 0
    assert desk.log.ends() == {ring.name: (7, 5)}
    assert count(desk.files, ring) == 5


def test_a_file_system_that_refuses_direct_writes_gets_them_through_the_page_cache(
    runtime_directory: Path,
) -> None:
    desk = Desk(runtime_directory, direct=True)
    ring = desk.ring("disk")
    refused: list[str] = []

    def refuse(operation: str, path: str) -> None:
        if operation == "pwritev" and desk.log.commit.c.descriptor >= 0 and not refused:
            refused.append(path)
            raise OSError(errno.EINVAL, "not a whole block")

    desk.files.hook = refuse
    ring.writer().publish(b"x")
    for _ in range(2):
        desk.writer.step()
    assert refused
    assert not desk.log.direct
    assert not desk.writer.state.failures
    assert (durable(ring), count(desk.files, ring)) == (end(ring), 1)
    desk.close()


def test_a_dropped_queue_leaves_an_idle_log_that_sleeps(desk: Desk) -> None:
    ring = desk.ring("interval")
    desk.writer.step()
    ring.writer().publish(b"x")
    desk.fail(errno.EIO, "pwritev", "fdatasync")
    desk.now += 2_000 * MS
    desk.writer.step()
    assert not desk.writer.remove(ring.name)
    desk.files.hook = None
    desk.now += 10_000 * MS
    desk.writer.step()
    assert desk.log.queued == 0
    assert not desk.log.commit.has_appended
    assert desk.writer.step() == 60_000 * MS


def away(desk: Desk, may_return: Callable[[], bool]) -> tuple[Ring, LogAbsence]:
    """A ring that has left the log, because that fails."""
    absence = LogAbsence(threading.Event(), may_return)
    ring = desk.ring("disk", name="leaver", absence=absence)
    ring.writer().publish(b"before")
    desk.writer.step()
    desk.fail(errno.ENOSPC, "pwritev", "fdatasync", "open", "ftruncate")
    ring.writer().publish(b"during")
    for _ in range(4):
        desk.now += desk.writer.step()
    assert absence.is_away.is_set()
    desk.files.hook = None
    return ring, absence


def step_later(desk: Desk) -> None:
    for _ in range(3):
        desk.now += 5_000 * MS
        desk.writer.step()


def test_a_ring_that_has_left_a_failing_log_returns_only_when_it_may(desk: Desk) -> None:
    safe = threading.Event()
    ring, absence = away(desk, safe.is_set)
    writer = ring.writer()
    assert all(writer.publish(bytes(64)) is not None for _ in range(2_000))  # more than the ring holds
    step_later(desk)
    assert absence.is_away.is_set()
    assert desk.writer.state.read_only
    assert "leaver" in desk.writer.state.reason
    safe.set()
    step_later(desk)
    assert not absence.is_away.is_set()
    assert not desk.writer.state.read_only
    writer.publish(b"after")
    desk.writer.step()
    assert durable(ring) == end(ring)
    assert count(desk.files, ring) > 1


def test_a_ring_that_was_damaged_while_it_was_away_does_not_end_the_log(desk: Desk) -> None:
    ring, absence = away(desk, lambda: True)
    overwrite(ring.path, 16384 + 8, b"\xff" * 8)  # its first record
    other = desk.ring("disk")
    step_later(desk)
    assert absence.is_away.is_set()
    assert list(desk.writer.broken) == ["leaver"]
    writer = ring.writer()
    assert all(writer.publish(bytes(64)) is not None for _ in range(2_000))
    other.writer().publish(b"after")
    desk.writer.step()
    assert durable(other) == end(other)
