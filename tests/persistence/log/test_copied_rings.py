"""Rings that other processes write, in the log: copied and checked, and what they lost said."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import cast

import pytest

from persistence import Log, LoggedRing, LogThread
from persistence.log.copied_rings import CopiedRing, CopiedRingsWriter, CopyingReader
from ringbuf import Range, Reader, Ring
from ringbuf.record import decode
from tests.support.simfiles import SimFiles
from tests.support.waiting import wait_until

RING_BYTES = 64 << 10


@pytest.fixture
def pair(runtime_directory: Path) -> Iterator[tuple[Ring, Ring]]:
    """A ring as its writer has it, and as the broker does."""
    path = runtime_directory / "cam@one"
    with Ring.create(path, capacity_bytes=RING_BYTES, epoch=7) as ring, Ring.attach(path) as attached:
        yield ring, attached


@contextmanager
def stepped(
    directory: Path, attached: Ring, *, blocks_writer: bool
) -> Iterator[tuple[Log, CopiedRingsWriter, CopiedRing]]:
    """A log and its writer, whose rounds a test does itself."""
    with Log(directory) as log:
        log.recover()
        writer, copied = CopiedRingsWriter(log), CopiedRing(attached, blocks_writer=blocks_writer)
        writer.add(copied.logged(LoggedRing(attached, "disk")))
        try:
            yield log, writer, copied
        finally:
            writer.close()


def offsets(log: Log) -> list[int]:
    """Offsets of the ring in the log."""
    found: list[int] = []
    offset = 0
    while ranges := log.read("cam@one", 7, offset, 1 << 20):
        for it in ranges:
            data = bytes(it.view)
            while data:
                record, length = decode(data, 7)
                assert record.payload[:8] == b"%08d" % record.offset
                found.append(record.offset)
                data = data[length:]
        offset = ranges[-1].offset + ranges[-1].count
    return found


def publish(ring: Ring, count: int, size: int = 1000, **options: object) -> int:
    """Publish records that begin with their offset; return the number of those accepted."""
    writer = ring.writer(**options)  # type: ignore[arg-type]
    payloads = (b"%08d" % (writer.end_offset) + bytes(size) for _ in range(count))
    return sum(writer.publish(payload, key=b"cam") is not None for payload in payloads)


def fails(operation: str, _: str) -> None:
    if operation == "pwritev":
        raise OSError(errno.EIO, "Input/output error")


def test_records_of_another_process_are_logged_and_their_room_given_back(
    pair: tuple[Ring, Ring], tmp_path: Path
) -> None:
    ring, attached = pair
    with stepped(tmp_path, attached, blocks_writer=True) as (log, writer, copied):
        for _ in range(10):  # three times what the ring holds
            assert publish(ring, 20) == 20
            writer.step()
        assert offsets(log) == list(range(200))
        assert (copied.lost, writer.lost(), writer.status()["lost_records"]) == (0, {}, 0)


def test_what_the_disk_has_not_taken_is_still_in_the_ring(pair: tuple[Ring, Ring], tmp_path: Path) -> None:
    """A broker that is killed then finds it there: its writer had to wait."""
    ring, attached = pair
    files = SimFiles(Random(0))
    with Log(tmp_path, files=files) as log:
        log.recover()
        writer = CopiedRingsWriter(log)
        writer.add(CopiedRing(attached, blocks_writer=True).logged(LoggedRing(attached, "disk")))
        sent = publish(ring, 100, when_full="reject")
        files.hook = fails
        writer.step()
        assert publish(ring, 1, when_full="reject") == 0
        files.hook = None
        writer.close()
    with stepped(tmp_path, attached, blocks_writer=True) as (log, writer, _):
        writer.step()
        assert offsets(log) == list(range(sent))


def test_what_the_log_holds_does_not_change_with_the_ring(pair: tuple[Ring, Ring], tmp_path: Path) -> None:
    """A round is taken, and the ring overwritten before the disk has it: the copy is what is written."""
    ring, attached = pair
    with stepped(tmp_path, attached, blocks_writer=True) as (log, writer, _):
        publish(ring, 20)
        ranges = writer.readers()[0].ranges(1 << 20)
        publish(ring, 50)
        assert [bytes(it.view[40:48]) for it in ranges][:1] == [b"00000000"]
        assert not offsets(log)


def test_a_ring_that_overwrites_says_what_it_lost(pair: tuple[Ring, Ring], tmp_path: Path) -> None:
    ring, attached = pair
    with stepped(tmp_path, attached, blocks_writer=False) as (log, writer, copied):
        publish(ring, 20)
        writer.step()
        publish(ring, 200)
        writer.step()
        writer.step()
        found = offsets(log)
        assert found[:20] == list(range(20))
        assert found[20:] == list(range(220 - len(found) + 20, 220))
        assert copied.lost == 220 - len(found) > 0
        assert writer.lost() == {"cam@one": copied.lost}
    with Log(tmp_path) as log:
        assert log.recover().rings["cam@one"] == (7, 220)
        assert offsets(log) == found


class Overtaken:
    """A reader whose ring is written over just after it was read, once."""

    def __init__(self, reader: Reader, ring: Ring) -> None:
        self._reader, self._ring, self._late = reader, ring, True

    def __getattr__(self, name: str) -> object:
        return getattr(self._reader, name)

    def ranges(self, limit_bytes: int, limit: int) -> list[Range]:
        found = self._reader.ranges(limit_bytes, limit)
        if self._late:
            publish(self._ring, 200)
            self._late = False
        return found


def test_what_is_written_over_while_it_is_copied_is_lost_and_not_believed(
    pair: tuple[Ring, Ring], tmp_path: Path
) -> None:
    ring, attached = pair
    with stepped(tmp_path, attached, blocks_writer=False) as (log, writer, copied):
        publish(ring, 20)
        reader = cast(CopyingReader, writer.readers()[0])
        reader._reader = cast(Reader, Overtaken(reader._reader, ring))
        writer.step()
        found = offsets(log)
        assert writer.broken == {}
        assert found == list(range(220 - len(found), 220))
        assert copied.lost == 220 - len(found) > 20


def test_a_log_that_was_evicted_goes_on_with_what_is_left(pair: tuple[Ring, Ring], tmp_path: Path) -> None:
    ring, attached = pair
    with stepped(tmp_path, attached, blocks_writer=True) as (log, writer, copied):
        kept = publish(ring, 200, when_full="block", queue_timeout_ms=1)
        assert kept == 200, "the writer was stopped for good"
        for _ in range(3):
            writer.step()
        found = offsets(log)
        assert found == list(range(200 - len(found), 200))
        assert copied.lost == 200 - len(found) > 0


def test_a_ring_with_garbage_is_left_alone_and_others_go_on(
    pair: tuple[Ring, Ring], tmp_path: Path, runtime_directory: Path
) -> None:
    ring, attached = pair
    other = Ring.create(runtime_directory / "cam@two", capacity_bytes=RING_BYTES, epoch=7)
    try:
        with stepped(tmp_path, attached, blocks_writer=True) as (log, writer, _):
            writer.add(CopiedRing(other, blocks_writer=False).logged(LoggedRing(other, "disk")))
            publish(ring, 3)
            with (runtime_directory / "cam@one.ring").open("r+b") as file:
                file.seek(16384 + 60)
                file.write(b"\xff")
            publish(other, 3)
            writer.step()
            assert "do not verify" in writer.broken["cam@one"]
            assert log.reader.epochs("cam@two")
            assert not offsets(log)
    finally:
        other.close()


def test_a_producer_that_died_before_it_told_of_its_end_is_gone_on_with(
    pair: tuple[Ring, Ring], tmp_path: Path
) -> None:
    """The log read records that the end in the header does not know of yet, and starts again."""
    ring, attached = pair
    publish(ring, 3)
    with stepped(tmp_path, attached, blocks_writer=True) as (_, writer, _):
        writer.step()
    real = Ring.extremes
    behind = attached.extremes()._replace(end_offset=1, end_position=0)
    try:
        Ring.extremes = lambda self: behind  # type: ignore[method-assign]
        with stepped(tmp_path, attached, blocks_writer=True) as (log, writer, _):
            Ring.extremes = real  # type: ignore[method-assign]
            publish(ring, 2)
            writer.step()
            assert offsets(log) == [0, 1, 2, 3, 4]
    finally:
        Ring.extremes = real  # type: ignore[method-assign]


def test_the_thread_sleeps_on_rings_of_other_processes(pair: tuple[Ring, Ring], tmp_path: Path) -> None:
    ring, attached = pair
    with Log(tmp_path) as log:
        log.recover()
        copied = CopiedRing(attached, blocks_writer=True).logged(LoggedRing(attached, "disk"))
        thread = LogThread(log, [copied], writer=CopiedRingsWriter(log))
        thread.start()
        try:
            for number in range(1, 4):
                publish(ring, 1)
                wait_until(lambda number=number: log.stats.records == number)  # type: ignore[misc]
        finally:
            assert thread.stop()
        assert offsets(log) == [0, 1, 2]


def test_the_thread_sleeps_on_all_rings_however_many(
    pair: tuple[Ring, Ring], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_on: list[int] = []
    with stepped(tmp_path, pair[1], blocks_writer=True) as (_, writer, _):
        readers = writer.readers() * 200
        monkeypatch.setattr(writer, "readers", lambda: readers)
        monkeypatch.setattr(writer._sleeper, "sleep", lambda readers, _: slept_on.append(len(readers)))
        writer.run()
    assert slept_on == [200]
