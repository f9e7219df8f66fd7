"""The life of a segment: sealed, archived, read again and again, and gone; in this process and in a child."""

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from persistence import Log, LoggedRing, LogThread, OsFiles
from persistence.archive import archive_name, temporary_name
from persistence.maintenance.background_process import BackgroundProcess, Job, TaskFailed
from persistence.maintenance.maintenance import (
    RELEASE_BYTES,
    Maintenance,
    MaintenanceRules,
    MaintenanceThread,
)
from persistence.maintenance.retention_rules import Floor
from persistence.maintenance.scrub import RateLimitedFiles, ScrubOrder, ScrubResult
from persistence.read.segment_tables import ListedSegment
from persistence.segment.format import segment_name
from persistence.segment.scan import DamagedRange
from ringbuf import Ring
from ringbuf.record import encode
from tests.support.archives import path_of
from tests.support.cached_files import cached_bytes, forgets
from tests.support.in_process_worker import InProcessWorker
from tests.support.log_simulation import run_of
from tests.support.logs import DIRECTORY, Written, disk_of, read_all, recovered
from tests.support.simfiles import SimFiles
from tests.support.simulated_maintenance import Kept
from tests.support.waiting import PATIENCE_S, wait_until

NO_SCRUB = MaintenanceRules(archive=True, scrub_bytes_per_s=0)

Logged = tuple[Ring, Log, LogThread]


def filled(count: int = 14) -> Written:
    written = Written.empty(segment_bytes=8192)
    for i in range(count):
        written.add("a-0", 7, [b'{"temperature": %d.5, "ok": true}' % i * 12] * 4)
        written.add("b-0", 7, [bytes([i]) * 100])
        written.sync()
    return written


def states(kept: Kept) -> list[str]:
    return [it.state for it in kept.maintenance.segments()]


# ---- archiving ----


def test_segments_are_archived_from_the_oldest_on_and_read_as_before() -> None:
    kept = Kept(filled(), NO_SCRUB)
    count = len(kept.bases())
    assert states(kept) == ["sealed"] * (count - 1) + ["active"]
    seen = []
    for _ in range(3 * count):
        kept.steps(1)
        seen.append(states(kept).count("archived"))
    assert seen == sorted(seen)
    assert states(kept) == ["archived"] * (count - 1) + ["active"]
    names = kept.written.files.listdir(DIRECTORY)
    assert sum(name.endswith(".parquet") for name in names) == count - 1
    assert sum(name.endswith(".log") for name in names) == 1
    for (name, epoch), its in kept.written.records.items():
        assert read_all(kept.written.log, name, epoch) == its
    status = kept.maintenance.status()
    assert status["archive"]["segments"] == count - 1  # type: ignore[index]
    assert status["archive"]["ratio"] > 1  # type: ignore[index]


def test_archives_go_like_segments() -> None:
    kept = Kept(filled(), NO_SCRUB._replace(retain_bytes=1 << 15))
    kept.steps(80)
    archived = states(kept).count("archived")
    assert 0 < archived < 7
    assert kept.maintenance.stats.deleted > 0
    first = kept.written.log.epochs("a-0")[0].first_offset
    assert first > 0
    its = kept.written.records["a-0", 7]
    assert read_all(kept.written.log, "a-0", 7) == {offset: its[offset] for offset in range(first, len(its))}


def test_what_was_archived_when_the_process_died_is_found_and_its_segment_goes() -> None:
    kept = Kept(filled(), NO_SCRUB)
    log = kept.written.log
    remove, log.remove = log.remove, lambda base: None  # type: ignore[method-assign]
    kept.steps(2)
    log.remove = remove  # type: ignore[method-assign]
    assert path_of(0) in kept.written.files.names
    assert f"{DIRECTORY}/{segment_name(0)}" in kept.written.files.names
    files = kept.written.files.kill()
    after, report = recovered(files, segment_bytes=8192)
    assert report.damage == ()
    again = Kept(Written(files, after, kept.written.records), NO_SCRUB)
    again.steps(40)
    assert f"{DIRECTORY}/{segment_name(0)}" not in files.names
    for (name, epoch), its in kept.written.records.items():
        assert read_all(after, name, epoch) == its


def test_a_damaged_segment_stays_between_archives_and_is_read_as_far_as_it_can_be() -> None:
    kept = Kept(filled(), NO_SCRUB)
    files = kept.written.files
    damaged = kept.bases()[1]
    files.flip(f"{DIRECTORY}/{segment_name(damaged)}", 5000 * 8)
    kept.steps(40)
    assert states(kept)[:3] == ["archived", "sealed", "archived"]
    assert "damaged" in kept.maintenance.refused[damaged]
    its = kept.written.records["a-0", 7]

    def readable(log: Log) -> dict[int, bytes]:
        found = read_all(log, "a-0", 7)
        assert found.items() <= its.items()
        return found

    before = readable(kept.written.log)
    assert len(its) - 1 <= len(before) <= len(its)
    after, _ = recovered(files.kill(), segment_bytes=8192)
    assert readable(after) == before
    assert len(after.reader.damaged) <= 2


def test_a_segment_whose_archiving_fails_each_time_does_not_stop_that_of_others() -> None:
    kept = Kept(filled(), NO_SCRUB)

    def fail(operation: str, path: str) -> None:
        if archive_name(0) in path:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    kept.written.files.hook = fail
    kept.steps(60)
    assert states(kept) == ["sealed", *["archived"] * (len(kept.bases()) - 2), "active"]
    assert "Input/output error" in kept.maintenance.trouble
    kept.written.files.hook = None
    kept.steps(60)
    assert states(kept)[0] == "archived"


def test_an_archive_that_cannot_be_read_after_it_was_made_does_not_stop_that_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(filled(), NO_SCRUB)
    archive = kept.maintenance.log.reader.archive
    info = archive.info
    monkeypatch.setattr(archive, "info", lambda base: info(base) if base else None)
    kept.steps(60)
    assert states(kept)[1:] == [*["archived"] * (len(kept.bases()) - 2), "active"]
    assert "cannot be read" in kept.maintenance.trouble


def test_a_segment_that_cannot_be_archived_now_is_tried_again() -> None:
    kept = Kept(filled(), NO_SCRUB)

    def refuse(operation: str, path: str) -> None:
        if ".parquet." in path:
            raise OSError(28, "no space")

    kept.written.files.hook = refuse
    kept.steps(2)
    assert "no space" in kept.maintenance.trouble
    kept.written.files.hook = None
    kept.steps(3)
    assert states(kept).count("archived") == 0
    kept.clocks.pass_by(60)
    kept.steps(40)
    assert states(kept)[0] == "archived"
    assert kept.maintenance.trouble == ""


# ---- memory ----


def test_what_is_on_the_disk_does_not_stay_in_memory(tmp_path: Path) -> None:
    if not forgets(tmp_path):
        pytest.skip("this file system keeps everything in memory")
    with Log(tmp_path, retain_bytes=0, direct=False) as log:
        log.recover()
        log.join("a-0", 7, 0)
        maintenance = Maintenance(log, MaintenanceRules(scrub_bytes_per_s=0), InProcessWorker(log.files))
        for number in range(RELEASE_BYTES // 10_000):
            log.append(log._ids["a-0"], [run_of(encode(number, bytes(10_000), epoch=7, key=b"t"), 7)])
            if number % 100 == 0:
                log.write()
        log.write()
        log.sync()
        segment = tmp_path / segment_name(0)
        assert cached_bytes(segment) > RELEASE_BYTES // 2
        maintenance.step()
        assert cached_bytes(segment) < RELEASE_BYTES // 8
        maintenance.close()


# ---- reading again ----


def test_everything_is_read_once_a_pass_and_damage_is_told() -> None:
    kept = Kept(filled(), MaintenanceRules(archive=False, scrub_interval_s=1000))
    count = len(kept.bases())
    kept.steps(2 * count + 2)
    assert (kept.maintenance.turns.passes, kept.maintenance.turns.damaged) == (1, 0)
    read = kept.maintenance.turns.read_bytes
    assert read > (count - 1) * 7000
    kept.steps(10)
    assert kept.maintenance.turns.read_bytes == read
    kept.written.files.flip(f"{DIRECTORY}/{segment_name(kept.bases()[2])}", 5000 * 8)
    kept.clocks.pass_by(1000)
    kept.steps(2 * count + 2)
    assert (kept.maintenance.turns.passes, kept.maintenance.turns.damaged) == (2, 1)
    assert [segment for segment, _ in kept.written.log.reader.damaged] == [segment_name(kept.bases()[2])]


DAMAGED = ScrubResult(0, False, 64, (DamagedRange(segment_name(0), 0, 64, "", 0),), {})


@pytest.mark.parametrize("result", [TaskFailed("later", "No such file"), DAMAGED])
def test_work_on_a_segment_that_retention_has_removed_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, result: object
) -> None:
    kept = Kept(filled(), MaintenanceRules(archive=False))
    kept.maintenance.step()
    job = kept.maintenance._job
    assert job is not None
    kept.written.log.remove(job.base)
    monkeypatch.setattr(kept.maintenance._worker, "result", lambda: result)
    kept.maintenance.step(may_begin=False)
    assert not kept.maintenance.trouble
    assert not kept.written.log.reader.damaged
    assert not caplog.records


def test_archives_are_read_again_too() -> None:
    kept = Kept(filled(), NO_SCRUB._replace(scrub_bytes_per_s=1 << 30, scrub_interval_s=1000))
    kept.steps(60)
    assert kept.maintenance.turns.passes == 1
    path = path_of(kept.bases()[1])
    kept.written.files.flip(path, 100 * 8)
    kept.clocks.pass_by(1000)
    kept.steps(60)
    assert kept.maintenance.turns.damaged == 1
    assert kept.maintenance.status()["archive"]["damaged"] == 1  # type: ignore[index]


def test_reading_keeps_to_its_pace_and_stops_when_asked() -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    files = Written.empty().files
    handle = files.open("/x", create=True)
    files.pwritev(handle, [bytes(10_000)], 0)
    paced = RateLimitedFiles(files, 1000, clock=lambda: now[0], sleep=sleep)
    for _ in range(5):
        paced.read(handle, 1000, 0)
    assert now[0] == pytest.approx(5.0)
    assert max(slept) <= 1.0
    stopped = RateLimitedFiles(files, 1, lambda: True, clock=lambda: now[0], sleep=sleep)
    with pytest.raises(Exception, match="asked to stop"):
        stopped.read(handle, 1000, 0)


def test_a_pass_takes_what_comes_meanwhile_along() -> None:
    turns = ScrubOrder(interval_s=100)
    assert turns.next([0, 10], 5.0) == 0
    turns.done(ScrubResult(0, False, 7, (), {}))
    assert turns.next([10, 20], 6.0) == 10
    turns.skip(10)
    assert turns.next([10, 20], 7.0) == 20
    turns.done(ScrubResult(20, True, 7, (), {"page 0": "x"}))
    assert turns.next([20], 8.0) is None
    assert (turns.passes, turns.last_pass_s, turns.damaged) == (1, 3.0, 1)
    assert turns.next([20], 104.0) is None
    assert turns.next([20], 105.0) == 20


# ---- a process of its own ----


def real_log(directory: Path, records: int = 3000) -> Log:
    log = Log(directory, segment_bytes=1 << 18, retain_bytes=0)
    log.recover()
    log.join("a-0", 7, 0)
    position = 0
    for begin in range(0, records, 100):
        data = b"".join(
            encode(offset, b'{"temperature": %d}' % (offset % 40) * 9, epoch=7, key=b"t/%d" % (offset % 9))
            for offset in range(begin, begin + 100)
        )
        log.append(log._ids["a-0"], [run_of(data, 7, position=position)])
        position += len(data)
        log.write()
        log.sync()
    return log


def test_the_child_archives_and_gives_way(tmp_path: Path) -> None:
    log = real_log(tmp_path)
    before = b"".join(it.view for it in log.read("a-0", 7, 0, 1 << 30))
    maintenance = Maintenance(log, NO_SCRUB, worker := BackgroundProcess())
    thread = MaintenanceThread([maintenance], worker)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    niceness: set[int] = set()
    while len(log.sealed()) > 0 and time.monotonic() < deadline:
        if (process := worker._process) is not None and process.poll() is None:
            niceness.add(os.getpriority(os.PRIO_PROCESS, process.pid))
        thread.wake()
    thread.stop()
    assert log.sealed() == {}
    assert 19 in niceness
    assert worker._process is None
    found, offset = b"", 0
    while ranges := log.read("a-0", 7, offset, 1 << 30):
        found += b"".join(it.view for it in ranges)
        offset = ranges[-1].offset + ranges[-1].count
    assert found.startswith(before)
    assert offset == 3000
    log.close()


def test_what_maintenance_stumbles_over_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the disk would fill without a visible cause."""
    looks: list[str] = []

    def floors(ring_name: str) -> list[Floor]:
        looks.append(ring_name)
        raise ValueError("a mistake in somebody's floors")

    thread = MaintenanceThread(
        [Maintenance(filled().log, NO_SCRUB, InProcessWorker(OsFiles()), floors=floors)]
    )
    thread.start()
    wait_until(lambda: bool(looks))
    seen = len(looks)
    thread.wake()
    wait_until(lambda: len(looks) > seen)
    thread.stop()
    assert "a mistake in somebody's floors" in caplog.text


@pytest.mark.parametrize("failing", ["_look_at_disk", "_roll_old_segment", "_release_cache"])
def test_a_disk_that_answers_nothing_else_still_loses_its_oldest_segments(
    failing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = Kept(filled(), NO_SCRUB._replace(archive=False, retain_bytes=1 << 15))

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(kept.maintenance, failing, fail)
    kept.steps(60)
    assert kept.maintenance.stats.deleted > 0
    assert len(kept.bases()) == 1
    assert "Input/output error" in caplog.text


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES])
def test_a_segment_that_the_disk_does_not_return_keeps_no_other(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(filled(), NO_SCRUB._replace(archive=False, retain_bytes=1 << 15))
    refuse(kept.written.files, kept.bases()[0], code, monkeypatch)
    kept.maintenance._infos.clear()
    kept.steps(60)
    assert len(kept.bases()) == 1


def test_a_lack_of_descriptors_removes_no_segment_that_a_consumer_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = Kept(filled(), NO_SCRUB._replace(archive=False, retain_bytes=1 << 15))
    before = kept.bases()
    refuse(kept.written.files, before[0], errno.EMFILE, monkeypatch)
    kept.maintenance._infos.clear()
    with pytest.raises(OSError, match="Too many open files"):
        kept.steps(1)
    assert kept.written.log.reader.bases() == before


def refuse(files: SimFiles, base: int, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each open() of a segment fail."""
    open_file = files.open

    def fail(path: str, **options: Any) -> int:
        if path.endswith(segment_name(base)):
            raise OSError(code, os.strerror(code), path)
        return open_file(path, **options)

    monkeypatch.setattr(files, "open", fail)


def test_work_on_many_segments_grows_with_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def base_of(segment: ListedSegment) -> object:
        nonlocal looks
        looks += 1
        return segment.__dict__["base"]

    def keep_base(segment: ListedSegment, base: int) -> None:
        segment.__dict__["base"] = base

    monkeypatch.setattr(ListedSegment, "base", property(base_of, keep_base), raising=False)
    counts: list[float] = []
    for number in (40, 160):
        written = filled(number)
        written.log.close()
        looks = 0
        log, _ = recovered(written.files.kill(), segment_bytes=8192)
        Kept(Written(disk_of(log), log), NO_SCRUB._replace(archive=False)).steps(2)
        counts.append(looks / len(log.reader.bases()))
    few, many = counts
    assert many < 2 * few, "each segment is compared with all others"


def answer(worker: BackgroundProcess) -> object:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if (found := worker.result()) is not None:
            return found
        time.sleep(0.01)
    raise AssertionError("no answer")


def test_the_child_reads_again_and_says_what_it_cannot_do(tmp_path: Path) -> None:
    log = real_log(tmp_path)
    base, end = 0, log.reader.bases()[1]
    worker = BackgroundProcess()
    worker.start(Job("scrub_segment", str(tmp_path), base, end))
    found = answer(worker)
    assert isinstance(found, ScrubResult)
    assert (found.bytes, found.places) == (end, ())
    with open(tmp_path / segment_name(base), "r+b") as file:
        file.seek(5000)
        file.write(b"rot")
    worker.start(Job("scrub_segment", str(tmp_path), base, end))
    found = answer(worker)
    assert isinstance(found, ScrubResult)
    assert [place.ring_name for place in found.places] == ["a-0"]
    worker.start(Job("archive", str(tmp_path), base, end))
    refused = answer(worker)
    assert isinstance(refused, TaskFailed)
    assert refused.kind == "never"
    worker.start(Job("scrub_archive", str(tmp_path), base, 0))
    assert isinstance(answer(worker), TaskFailed)
    assert not (tmp_path / archive_name(base)).exists()
    worker.close()
    log.close()


def test_a_child_that_dies_is_noticed_and_replaced(tmp_path: Path) -> None:
    log = real_log(tmp_path)
    end = log.reader.bases()[1]
    worker = BackgroundProcess()
    worker.start(Job("scrub_segment", str(tmp_path), 0, end, 1000))  # a minute or more
    process = worker._process
    assert process is not None
    process.kill()
    process.wait()
    assert answer(worker) == TaskFailed("later", "the process that does such work has ended")
    worker.start(Job("scrub_segment", str(tmp_path), 0, end))
    assert isinstance(answer(worker), ScrubResult)
    worker.start(Job("scrub_segment", str(tmp_path), 0, end, 1000))
    began = time.monotonic()
    worker.close()
    assert worker._process is None
    print(f"ended after {time.monotonic() - began:.1f} s")
    log.close()


def test_an_archive_that_a_killed_child_has_begun_is_removed(tmp_path: Path) -> None:
    """Otherwise each attempt on a machine without memory would leave a file as large as the segment."""
    log = real_log(tmp_path)
    worker = BackgroundProcess()
    worker.start(Job("scrub_segment", str(tmp_path), 0, log.reader.bases()[1], 1000))
    process = worker._process
    assert process is not None
    begun = Path(temporary_name(str(tmp_path / archive_name(0)), process.pid))
    other = Path(temporary_name(str(tmp_path / archive_name(0)), process.pid + 1))
    begun.write_bytes(bytes(1000))
    other.write_bytes(bytes(1000))
    process.kill()
    assert isinstance(answer(worker), TaskFailed)
    assert not begun.exists()
    assert other.exists()  # of another process, which may still write it
    log.close()


# ---- with the log's thread ----


@contextmanager
def logged(runtime_directory: Path, directory: Path, level: Literal["interval", "disk"]) -> Iterator[Logged]:
    """A ring, its log and the thread of that."""
    with (
        Ring.create(runtime_directory / "a-0", capacity_bytes=1 << 16, epoch=7) as ring,
        Log(directory) as log,
    ):
        log.recover()
        thread = LogThread(log, [LoggedRing(ring, level, 50_000)])
        thread.start()
        try:
            yield ring, log, thread
        finally:
            thread.stop()


def test_the_thread_ends_a_segment_and_goes_on_in_another(runtime_directory: Path, tmp_path: Path) -> None:
    with logged(runtime_directory, tmp_path, "interval") as (ring, log, thread):
        ring.writer().publish(b"one", key="t")
        thread.roll()
        assert ring.extremes().durable_position == ring.extremes().end_position
        assert log.active_since_ns is None
        (size,) = log.sealed().values()
        assert size < 1 << 16
        ring.writer().publish(b"two", key="t")
        thread.roll()
        assert sorted(log.sealed()) == log.reader.bases()
        assert len(log.sealed()) == 2
        assert [len(log.read("a-0", 7, offset, 1)) for offset in (0, 1, 2)] == [1, 1, 0]


def test_a_log_that_is_blocked_says_so_and_goes_on_when_it_is_not(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with logged(runtime_directory, tmp_path, "disk") as (ring, _, thread):
        writer = ring.writer()
        writer.publish(b"one", key="t")
        wait_until(lambda: ring.extremes().durable_position == ring.extremes().end_position)
        thread.block("95 % of the disk are in use")
        wait_until(lambda: thread.writer.state.read_only)
        assert thread.writer.state.reason == "95 % of the disk are in use (ENOSPC)"
        writer.publish(b"two", key="t")
        assert ring.extremes().durable_position < ring.extremes().end_position
        thread.block("")
        wait_until(lambda: ring.extremes().durable_position == ring.extremes().end_position)
        assert not thread.writer.state.read_only
