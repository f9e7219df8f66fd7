"""The log thread: real files, real rings, real threads, and processes that are killed."""

import errno
import os
import resource
import select
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from persistence import EpochConflict, Log, LogClosed, LoggedRing, LogThread, OsFiles
from ringbuf import Ring
from ringbuf.record import decode
from tests.support.called_disk import CalledFiles
from tests.support.children import Child
from tests.support.logs import payloads
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S, wait_until


class Told:
    """Counts calls of on_durable, and waits for them."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = 0

    def __call__(self) -> None:
        with self.changed:
            self.count += 1
            self.changed.notify_all()

    def until(self, ring: Ring, position: int) -> None:
        """Returns when the ring is durable up to there."""
        with self.changed:
            durable = lambda: ring.extremes().durable_position >= position  # noqa: E731
            assert self.changed.wait_for(durable, PATIENCE_S)


@contextmanager
def running(
    directory: Path, *sources: LoggedRing, files: OsFiles | None = None, segment_bytes: int = 1 << 20
) -> Iterator[tuple[Log, LogThread, Told]]:
    """A log and its thread."""
    log, told = Log(directory, files, segment_bytes=segment_bytes), Told()
    log.recover()
    thread = LogThread(log, sources, told)
    try:
        thread.start()
        yield log, thread, told
    finally:
        thread.stop()
        log.close()


class StoppedMeanwhile(threading.Event):
    """Stops the thread after each check that found it running, before that thread does anything else."""

    def __init__(self, thread: LogThread) -> None:
        super().__init__()
        self._thread = thread

    def is_set(self) -> bool:
        was_set = super().is_set()
        if not was_set:
            self.set()
            self._thread.writer.call()
            self._thread._maintenance_due.set()
        return was_set


@pytest.fixture
def ring(runtime_directory: Path) -> Iterator[Ring]:
    with Ring.create(runtime_directory / "a-0", capacity_bytes=1 << 20, epoch=7) as ring:
        yield ring


def test_records_become_durable_while_the_thread_sleeps_on_the_rings(ring: Ring, tmp_path: Path) -> None:
    writer = ring.writer()
    with running(tmp_path, LoggedRing(ring, "disk")) as (log, _, told):
        for i in range(300):
            writer.publish(b"%d" % i, key="t")
            if i % 10 == 0:
                told.until(ring, writer.end_position)
        told.until(ring, writer.end_position)
        assert payloads(log, "a-0", 7) == {i: b"%d" % i for i in range(300)}
    with Log(tmp_path) as log:
        assert log.recover().rings == {"a-0": (7, 300)}


def test_stopping_syncs_what_waits_for_its_interval(ring: Ring, tmp_path: Path) -> None:
    with running(tmp_path, LoggedRing(ring, "interval", sync_interval_ms=3_600_000)):
        for i in range(50):
            ring.writer().publish(b"%d" % i)
    with Log(tmp_path) as log:
        assert log.recover().rings == {"a-0": (7, 50)}
    assert ring.slots() == []


def test_rings_of_durability_process_are_left_out(ring: Ring, tmp_path: Path) -> None:
    with Log(tmp_path) as log:
        log.recover()
        thread = LogThread(log, [(ring, "process", 1000, 1 << 20)])
        thread.start()
        ring.writer().publish(b"x")
        assert ring.slots() == []
        assert thread.stop()
        assert log.ends() == {}


def test_rings_join_and_leave_while_it_runs(ring: Ring, runtime_directory: Path, tmp_path: Path) -> None:
    with running(tmp_path, LoggedRing(ring, "disk")) as (log, thread, told):
        with Ring.create(runtime_directory / "b-0", capacity_bytes=1 << 20, epoch=9) as other:
            other.writer().publish(b"before it joined")
            thread.add(LoggedRing(other, "disk"))
            told.until(other, other.writer().end_position)
            with pytest.raises(EpochConflict):
                thread.add(LoggedRing(_older(other), "disk"))
            thread.remove("b-0")
            assert other.slots() == []
        ring.writer().publish(b"the first one goes on")
        told.until(ring, ring.writer().end_position)
        assert log.ends() == {"a-0": (7, 1), "b-0": (9, 1)}
    with pytest.raises(LogClosed, match="does not run"):
        thread.add(LoggedRing(ring, "disk"))


def _older(ring: Ring) -> Ring:
    """The same ring with an epoch that cannot be."""
    ring.epoch -= 1
    return ring


def test_it_runs_ahead_of_others_while_somebody_waits_for_its_syncs(
    ring: Ring, runtime_directory: Path, tmp_path: Path
) -> None:
    with (
        Ring.create(runtime_directory / "b-0", capacity_bytes=1 << 20, epoch=7) as other,
        running(tmp_path, LoggedRing(ring, "interval")) as (_, thread, _),
    ):
        own = next(it.native_id for it in threading.enumerate() if it.name == "brim-log")
        assert own is not None
        policy = lambda: os.sched_getscheduler(own) & ~os.SCHED_RESET_ON_FORK  # noqa: E731
        assert policy() == os.SCHED_OTHER
        thread.add(LoggedRing(other, "disk"))
        wait_until(lambda: thread.status()["scheduling"] != "normal")
        allowed = thread.status()["scheduling"] == "fifo"  # else the reason
        assert policy() == (os.SCHED_FIFO if allowed else os.SCHED_OTHER)
        thread.remove("b-0")
        wait_until(lambda: thread.status()["scheduling"] == "normal")
        assert policy() == os.SCHED_OTHER


def test_a_ring_that_cannot_join_stops_the_start_and_nothing_runs(ring: Ring, tmp_path: Path) -> None:
    with running(tmp_path, LoggedRing(ring, "disk")):
        ring.writer().publish(b"x")
    ring.epoch -= 1
    before = threading.active_count()
    with Log(tmp_path) as log:
        log.recover()
        with pytest.raises(EpochConflict):
            LogThread(log, [LoggedRing(ring, "disk")]).start()
    assert threading.active_count() == before
    assert ring.slots() == []


def test_the_next_segment_is_made_ready_ahead(ring: Ring, tmp_path: Path) -> None:
    with running(tmp_path, LoggedRing(ring, "disk"), segment_bytes=1 << 18) as (log, _, told):
        for _ in range(20):
            for _ in range(50):
                assert ring.writer().publish(b"x" * 1000) is not None
            told.until(ring, ring.writer().end_position)
        assert len(log.reader.bases()) > 3
    with Log(tmp_path, segment_bytes=1 << 18) as log:
        assert log.recover().rings == {"a-0": (7, 1000)}


def test_a_thousand_rings_share_one_thread(runtime_directory: Path, tmp_path: Path) -> None:
    """Some write all the time, one writes rarely: each becomes durable, and is in the log whole."""
    with ExitStack() as stack:
        rings = [
            stack.enter_context(Ring.create(runtime_directory / f"r-{i}", capacity_bytes=1 << 16, epoch=7))
            for i in range(1000)
        ]
        sources = [LoggedRing(it, "disk" if i % 3 else "interval", 20) for i, it in enumerate(rings)]
        with running(tmp_path, *sources, segment_bytes=1 << 17) as (log, _, told):
            for turn in range(3):
                for i, ring in enumerate(rings):
                    assert ring.writer().publish(b"%d:%d" % (i, turn)) is not None
                    if i % 100 == 7:
                        rings[0].writer().publish_many([b"busy"] * 20)
            for ring in rings:
                told.until(ring, ring.writer().end_position)
            for i in (1, 500, 999):
                expected = {turn: b"%d:%d" % (i, turn) for turn in range(3)}
                assert payloads(log, f"r-{i}", 7) == expected
            assert len(payloads(log, "r-0", 7)) == 3 + 3 * 10 * 20
        with Log(tmp_path) as log:
            ends = log.recover().rings
            assert {name: end.end_offset for name, end in ends.items()} == {
                it.name: it.writer().end_offset for it in rings
            }


def test_an_eventfd_is_written_when_records_become_durable(ring: Ring, tmp_path: Path) -> None:
    """Without on_durable nothing of the log thread needs Python then."""
    descriptor = os.eventfd(0, os.EFD_CLOEXEC)
    try:
        with Log(tmp_path) as log:
            log.recover()
            thread = LogThread(log, [LoggedRing(ring, "disk")], wake_descriptor=descriptor)
            thread.start()
            for i in range(50):
                ring.writer().publish(b"%d" % i)
                while ring.extremes().durable_position < ring.writer().end_position:
                    assert select.select([descriptor], [], [], PATIENCE_S)[0]
                    os.eventfd_read(descriptor)
            assert thread.stop()
            assert payloads(log, "a-0", 7) == {i: b"%d" % i for i in range(50)}
    finally:
        os.close(descriptor)


def test_a_mistake_that_ends_the_thread_is_said_and_nothing_more_is_acknowledged(
    ring: Ring, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mistakes = iter((KeyError("a mistake"),))

    def on_durable() -> None:
        raise next(mistakes)

    log = Log(tmp_path / "log", segment_bytes=1 << 20)
    log.recover()
    thread, changed = LogThread(log, [LoggedRing(ring, "disk")], on_durable), threading.Event()
    thread.writer.state.on_change = changed.set
    thread.start()
    try:
        ring.writer().publish(b"1")
        assert changed.wait(PATIENCE_S)
        status = thread.status()
        assert status["read_only"]
        assert status["reason"] == "its thread has ended: KeyError('a mistake'); restart the broker"
        with pytest.raises(LogClosed):
            thread.roll()
        end = ring.extremes().durable_position
        ring.writer().publish(b"2")
        assert ring.extremes().durable_position == end
    finally:
        assert not thread.stop()
        thread.writer.close()
        log.close()
    assert "KeyError" in caplog.text
    caplog.clear()  # its traceback holds what was closed


def test_status_can_be_asked_from_anywhere(ring: Ring, tmp_path: Path) -> None:
    with running(tmp_path, LoggedRing(ring, "disk")) as (_, thread, told):
        ring.writer().publish(b"x")
        told.until(ring, ring.writer().end_position)
        status = thread.status()
    assert (status["read_only"], status["records"]) == (False, 1)


def test_a_file_size_limit_is_reported_and_survived(ring: Ring, tmp_path: Path) -> None:
    """A real error of the operating system: EFBIG from pwritev, after a short write up to the limit."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    writer = ring.writer()
    with running(tmp_path, LoggedRing(ring, "disk")) as (log, thread, told):
        writer.publish(b"before")
        told.until(ring, writer.end_position)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
            for _ in range(100):
                writer.publish(b"x" * 1000)
            position = ring.extremes().durable_position
            wait_until(lambda: thread.status()["read_only"])
            assert "ulimit -f" in thread.writer.state.reason
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        told.until(ring, writer.end_position)
        assert not thread.writer.state.read_only
        assert ring.extremes().durable_position > position
        assert len(payloads(log, "a-0", 7)) == 101


class BrokenOnce(CalledFiles):
    """A disk whose fdatasync fails with EIO some times for the log thread, and then works."""

    broken = 0

    def fdatasync(self, handle: int) -> None:
        if self.broken and threading.current_thread().name == "brim-log":
            self.broken -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(handle)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_a_sync_that_fails_is_survived_by_writing_again(ring: Ring, tmp_path: Path, times: int) -> None:
    files, writer = BrokenOnce(), ring.writer()
    with running(tmp_path, LoggedRing(ring, "disk"), files=files) as (log, thread, told):
        for i in range(30):
            if i == 10:
                files.broken = times
            writer.publish(b"%d" % i)
            told.until(ring, writer.end_position)
        assert files.broken == 0
        assert log.stats.failed_syncs + log.stats.failed_writes == times
        assert thread.status()["reason"] == ""
        assert payloads(log, "a-0", 7) == {i: b"%d" % i for i in range(30)}


@pytest.mark.parametrize("thread", ["brim-log", "brim-log-maint"])
def test_a_stop_between_a_check_and_a_sleep_is_noticed(ring: Ring, tmp_path: Path, thread: str) -> None:
    log = Log(tmp_path)
    log.recover()
    logged = LogThread(log, [LoggedRing(ring, "disk")])
    logged._stopping = StoppedMeanwhile(logged)
    run = logged._run if thread == "brim-log" else logged._run_maintenance
    only = threading.Thread(target=run, name=thread, daemon=True)
    logged.writer.call()
    logged._maintenance_due.set()
    only.start()
    only.join(PATIENCE_S)
    assert not only.is_alive()
    log.close()


FULL_DISK = """
import os, sys, threading
from pathlib import Path
from persistence import Log, LogThread, LoggedRing
from ringbuf import Ring
from tests.support.waiting import wait_until
runtime, disk = map(Path, sys.argv[1:])
ballast = disk / "ballast"
ballast.write_bytes(bytes(600_000))
with Ring.create(runtime / "full-0", capacity_bytes=1 << 20, epoch=7) as ring, Log(disk / "log") as log:
    log.recover()
    came = threading.Event()
    thread = LogThread(log, [LoggedRing(ring, "disk")], came.set)
    thread.start()
    for i in range(600):
        assert ring.writer().publish(b"x" * 1000) is not None
    wait_until(lambda: thread.status()["read_only"])
    durable = ring.extremes().durable_position
    print(thread.status()["reason"], flush=True)
    assert durable < ring.writer().end_position
    ballast.unlink()
    while ring.extremes().durable_position < ring.writer().end_position:
        assert came.wait(20)
        came.clear()
    print(thread.status()["read_only"], log.ends()["full-0"].end_offset, flush=True)
    thread.stop()
"""


def test_a_full_disk_is_reported_and_survived(runtime_directory: Path, tmp_path: Path) -> None:
    """A tmpfs of a megabyte, in a mount namespace of its own: real ENOSPC, until something makes room."""
    mount = f"mount -t tmpfs -o size=1m none {tmp_path}"
    python = f"exec {sys.executable} -c '{FULL_DISK}' {runtime_directory} {tmp_path}"
    own_mounts = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*own_mounts, mount], capture_output=True, check=False).returncode != 0:
        pytest.skip("needs unprivileged user namespaces: sysctl kernel.unprivileged_userns_clone=1")
    command = [*own_mounts, f"{mount} && {python}"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False, cwd=ROOT)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["the disk is full (ENOSPC)", "False 600"]


BROKER = """
import os, sys
from pathlib import Path
from persistence import Log, LogThread, LoggedRing
from ringbuf import Ring
runtime, directory = map(Path, sys.argv[1:])
path = runtime / "a-0"
log = Log(directory, segment_bytes=1 << 18)
report = log.recover()
epoch, end = report.rings.get("a-0", (7, 0))
if (runtime / "a-0.ring").exists():
    ring = Ring.reattach(path)
else:
    ring = Ring.create(path, capacity_bytes=1 << 18, epoch=epoch + 1, first_offset=end)
writer = ring.writer()
told = 0
ends = {}
def on_durable():
    durable = ring.extremes().durable_position
    for offset in [offset for offset, position in list(ends.items()) if position <= durable]:
        del ends[offset]
        sys.stdout.write(f"{ring.epoch} {offset}\\n")
    sys.stdout.flush()
thread = LogThread(log, [LoggedRing(ring, "disk")], on_durable)
thread.start()
while True:
    offset = writer.end_offset
    if writer.publish(b"%d:%d" % (ring.epoch, offset) + bytes(offset % 700)) is not None:
        ends[offset] = writer.end_position
    if offset % 50 == 0:
        os.sched_yield()
"""


@pytest.mark.parametrize("keeps_ring", [True, False])
def test_what_was_acknowledged_survives_kill_9(
    runtime_directory: Path, tmp_path: Path, *, keeps_ring: bool
) -> None:
    """Cycle after cycle; the ring is taken over, or lost as in a power cut, and the log continues."""
    acknowledged: set[tuple[int, int]] = set()
    for cycle in range(8):
        with Child(BROKER, runtime_directory, tmp_path) as broker:
            for _ in range(20 + 150 * (cycle % 3)):
                acknowledged.add(_acknowledged(broker.line()))
            acknowledged |= {_acknowledged(line) for line in broker.kill()}
        if not keeps_ring:
            for name in ("a-0.ring", "a-0.cursors"):
                (runtime_directory / name).unlink()
    with Log(tmp_path) as log:
        report = log.recover()
        assert report.damage == ()
        assert report.notes == ()
        held: set[tuple[int, int]] = set()
        ends = []
        for epoch, first, end in log.epochs("a-0"):
            found = payloads(log, "a-0", epoch)
            assert sorted(found) == list(range(first, end))
            assert all(data.startswith(b"%d:%d" % (epoch, offset)) for offset, data in found.items())
            held |= {(epoch, offset) for offset in found}
            ends.append((first, end))
        assert acknowledged <= held
        assert len(ends) == (1 if keeps_ring else 8)
        assert [end for _, end in ends[:-1]] == [first for first, _ in ends[1:]]


def _acknowledged(line: str) -> tuple[int, int]:
    epoch, offset = map(int, line.split())
    return epoch, offset


def test_a_log_past_the_page_cache_ends_its_rounds_at_blocks_of_the_device(
    ring: Ring, tmp_path: Path
) -> None:
    log = Log(tmp_path, segment_bytes=1 << 20, direct=True)
    log.recover()
    thread, writer = LogThread(log, [LoggedRing(ring, "disk")]), ring.writer()
    try:
        thread.start()
        ends = set()
        for i in range(60):
            writer.publish(b"%d" % i)
            assert ring.wait_durable(writer.end_position, PATIENCE_S)
            ends.add(log.durable_position)
        block = int(str(thread.status()["direct_block_bytes"]))
        if block == 0:
            pytest.skip(f"{tmp_path} is on a file system without O_DIRECT")
        assert len(ends) == 60
        assert sum(end % block != 0 for end in ends) < 5  # Before rounds began, and at most once more.
        for i in range(60, 4000):
            while writer.publish(b"%d" % i + bytes(i % 900)) is None:
                assert ring.wait_durable(writer.end_position, PATIENCE_S)
        assert ring.wait_durable(writer.end_position, PATIENCE_S)
        assert len(log.reader.bases()) > 1
        image = tmp_path / "as after a kill"
        shutil.copytree(tmp_path, image, ignore=shutil.ignore_patterns("LOCK", image.name))
        found = payloads(log, "a-0", 7)
    finally:
        thread.stop()
        log.close()
    assert found == {i: b"%d" % i + bytes(i % 900 if i >= 60 else 0) for i in range(4000)}
    for directory in (tmp_path, image):
        with Log(directory) as log:
            report = log.recover()
            assert (report.rings, report.damage) == ({"a-0": (7, 4000)}, ())
            assert payloads(log, "a-0", 7) == found


def test_what_is_larger_than_the_stage_goes_past_the_page_cache_whole(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Chunks are written while the next ones fill; of every size, also such as cannot wait in the stage until
    their checksum is known.
    """
    sizes = (0, 700, 5000, 400_000, 2_100_000, 3_900_000)
    with (
        Ring.create(runtime_directory / "big-0", capacity_bytes=32 << 20, epoch=3) as ring,
        Log(tmp_path, segment_bytes=24 << 20, direct=True) as log,
    ):
        log.recover()
        thread, writer, expected = LogThread(log, [LoggedRing(ring, "disk")]), ring.writer(), {}
        thread.start()
        try:
            for number in range(60):
                expected[number] = bytes([number + 1]) * (sizes[number % len(sizes)] + number)
                while not (claim := writer.claim(len(expected[number]))):
                    ring.wait_durable(ring.extremes().durable_position + 1, PATIENCE_S)
                memoryview(claim)[:] = expected[number]
                claim.commit()
            assert ring.wait_durable(writer.end_position, PATIENCE_S)
            assert len(log.reader.bases()) > 2
            assert payloads(log, "big-0", 3) == expected
        finally:
            thread.stop()
    with Log(tmp_path) as log:
        assert log.recover().damage == ()
        assert payloads(log, "big-0", 3) == expected


def test_who_reads_while_blocks_are_written_beside_the_cache_sees_what_was_written(
    ring: Ring, tmp_path: Path
) -> None:
    """A reader brings pages into the cache that the log still writes: none may be stale."""
    with Log(tmp_path, segment_bytes=1 << 20) as log:
        log.recover()
        thread, writer = LogThread(log, [LoggedRing(ring, "disk")]), ring.writer()
        thread.start()
        done, wrong, looks, seen = threading.Event(), list[int](), 0, 0

        def look() -> None:
            nonlocal looks
            while not done.is_set():
                end = seen
                for it in log.read("a-0", 7, max(end - 20, 0), 1 << 16):
                    data = bytes(it.view)
                    for offset in range(it.offset, it.offset + it.count):
                        record, length = decode(data, 7)
                        data = data[length:]
                        if record.payload != b"%d" % offset * 9:
                            wrong.append(offset)
                looks += 1

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            for number in range(3000):
                while writer.publish(b"%d" % number * 9) is None:
                    assert ring.wait_durable(ring.extremes().durable_position + 1, PATIENCE_S)
                if number % 3:
                    assert ring.wait_durable(writer.end_position, PATIENCE_S)
                    seen = number
            wait_until(lambda: looks > 50)
        finally:
            done.set()
            watcher.join()
            thread.stop()
        assert wrong == []
        assert len(payloads(log, "a-0", 7)) == 3000
