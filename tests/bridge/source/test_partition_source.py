"""Reading a partition: out of the ring, out of a real log, out of both for one file."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from bridge.format.file_builder import build
from bridge.format.file_parser import parse, verify
from bridge.format.record_batch import RecordBatch, RecordRun
from bridge.format.write_intent import WriteIntent
from bridge.source.broker_log import BrokerLog
from bridge.source.partition_source import PartitionSource, RecordBuffer, RingName, find_rings
from persistence import Log, LogThread
from ringbuf import FLAG_UNCHECKED, Claim, Range, Ring
from ringbuf.record import decode
from tests.support.bridges import EPOCH, drain, publish, ring, run_dry, settings
from tests.support.drained_files import offsets_drained

NAME = RingName("default", 0)


def offsets(batch: RecordBatch | None) -> list[int]:
    """Each record, decoded."""
    found = []
    for run in batch.runs if batch else ():
        data = bytes(run.records)
        while data:
            record, span = decode(data, EPOCH)
            found.append(record.offset)
            data = data[span:]
    return found


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("default-0", RingName("default", 0)),
        ("a-b-12", RingName("a-b", 12)),
        ("cam@gate-2", RingName("cam@gate-2", 0)),
        ("default", None),
        ("-1", None),
        ("x-", None),
        ("x-1a", None),
    ],
)
def test_the_name_of_a_ring_says_which_partition_it_is(name: str, said: RingName | None) -> None:
    assert RingName.parse(name) == said


def test_a_stream_brings_its_local_producers_along(runtime_directory: Path) -> None:
    for name in ("cam-0", "cam@gate", "camera-0", "temp-0"):
        ring(runtime_directory, name).close()
    (runtime_directory / "control.sock").write_text("")
    assert sorted(find_rings(runtime_directory, ("cam",))) == [RingName("cam", 0), RingName("cam@gate", 0)]
    assert len(find_rings(runtime_directory, ())) == 4
    assert find_rings(runtime_directory / "missing", ()) == {}


def log_thread(log: Log, *rings: Ring) -> LogThread:
    """Writes these rings into the log, synced at once."""
    return LogThread(log, [(made, "disk", 10, 1 << 20) for made in rings])


def written(log: Log, made: Ring) -> None:
    """Until the log has all of the ring."""
    reader = made.reader(start="latest")
    try:
        for _ in range(2000):
            if made.extremes().durable_position >= made.extremes().end_position:
                return
            reader.wait(0.005)
    finally:
        reader.close()
    raise AssertionError(f"the log has not caught up: {made.extremes()}")


def test_with_a_log_a_lapped_bridge_loses_nothing(runtime_directory: Path, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.recover()
    with ring(runtime_directory) as made:
        thread = log_thread(log, made)
        thread.start()
        publish(made, 100)
        with drain(settings(runtime_directory, tmp_path), record_log=BrokerLog(tmp_path / "log")) as drained:
            run_dry(drained)
            for _ in range(50):
                publish(made, 100, size=100)
                written(log, made)
            assert made.extremes().oldest_offset > 100
            run_dry(drained)
            assert drained.totals.lost_records == 0
        thread.stop()
    log.close()
    assert offsets_drained(tmp_path / "lake") == {("default", 0, EPOCH): list(range(5100))}


def test_the_epoch_before_a_reboot_is_drained_from_the_log(runtime_directory: Path, tmp_path: Path) -> None:
    chosen = settings(runtime_directory, tmp_path)
    for epoch in (EPOCH, EPOCH + 7, EPOCH + 9):
        log = Log(tmp_path / "log")
        log.recover()
        with ring(runtime_directory, epoch=epoch) as made:
            thread = log_thread(log, made)
            thread.start()
            publish(made, 30)
            written(log, made)
            if epoch == EPOCH + 9:
                with drain(chosen, record_log=log.reader) as drained:
                    run_dry(drained)
            thread.stop()
            made.unlink()
        log.close()
    every = list(range(30))
    there = offsets_drained(tmp_path / "lake")
    assert there == {("default", 0, epoch): every for epoch in (EPOCH, EPOCH + 7, EPOCH + 9)}


def test_what_waits_of_a_stream_that_is_gone_is_drained_from_the_log(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Renamed, or with fewer partitions, while the bridge was away and the machine was started again."""
    chosen = settings(runtime_directory, tmp_path)
    log = Log(tmp_path / "log")
    log.recover()
    for epoch in (EPOCH, EPOCH + 7):
        with ring(runtime_directory, epoch=epoch) as made:
            thread = log_thread(log, made)
            thread.start()
            publish(made, 30)
            written(log, made)
            if epoch == EPOCH:
                with drain(chosen, record_log=log.reader) as drained:
                    run_dry(drained)
                publish(made, 10)
                written(log, made)
            thread.stop()
            made.unlink()
    with ring(runtime_directory, "renamed-0") as other, drain(chosen, record_log=log.reader) as drained:
        publish(other, 5)
        run_dry(drained)
        drained.partitions.scan(drained.is_busy)
        assert list(drained.partitions.sources) == [RingName("renamed", 0)]
    log.close()
    assert offsets_drained(tmp_path / "lake") == {
        ("default", 0, EPOCH): list(range(40)),
        ("default", 0, EPOCH + 7): list(range(30)),
        ("renamed", 0, EPOCH): list(range(5)),
    }


def test_a_file_is_read_again_from_log_and_ring_together(runtime_directory: Path, tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.recover()
    with ring(runtime_directory) as made:
        thread = log_thread(log, made)
        thread.start()
        for _ in range(20):
            publish(made, 100, size=100)
            written(log, made)
        thread.stop()
        publish(made, 100, size=100)  # which the log has not got
        assert made.extremes().oldest_offset > 1000
        source = PartitionSource(NAME, runtime_directory / "default-0", log.reader)
        source.refresh()
        for first, last in ((0, 2099), (5, 5), (1999, 2001), (2050, 2099), (17, 1500)):
            batch = source.read_exactly(EPOCH, first, last)
            assert offsets(batch) == list(range(first, last + 1))
            assert batch is not None
            assert len(batch.runs) == 1
            assert batch.first_timestamp_ns <= batch.last_timestamp_ns
        assert source.read_exactly(EPOCH, 2090, 2100) is None
        source.close()
    log.close()


def test_a_long_file_is_whole_and_the_same_from_ring_and_log(runtime_directory: Path, tmp_path: Path) -> None:
    """It is read in pieces, and the memory for it grows with the first."""
    log = Log(tmp_path / "log")
    log.recover()
    with ring(runtime_directory, capacity_bytes=4 << 20) as made:
        thread = log_thread(log, made)
        thread.start()
        publish(made, 1000, size=3000)
        written(log, made)
        thread.stop()
        hot = PartitionSource(NAME, runtime_directory / "default-0", None)
        hot.refresh()
        cold = PartitionSource(NAME, runtime_directory / "default-0", log.reader)
        contents = set()
        for source in (hot, cold):
            short = source.read(EPOCH, 0, 2 << 20, RecordBuffer())
            assert short is not None
            assert 2 << 20 <= short.length < 3 << 20
            batch = source.read(EPOCH, 0, 8 << 20, RecordBuffer())
            assert batch is not None
            assert offsets(batch) == list(range(1000))
            assert len(batch.runs) == 1
            intent = WriteIntent(1, 1, "default", 0, EPOCH, 0, None, 0, 999, (), ())
            file = build("edge-1", intent, batch)
            assert len(file.parts) == 2
            data = b"".join(file.parts)
            verify(parse(data))
            contents.add(data)
            source.close()
        assert len(contents) == 1
    log.close()


def test_what_is_in_neither_is_not_read_exactly(runtime_directory: Path) -> None:
    with ring(runtime_directory) as made:
        publish(made, 2000, size=100)
        source = PartitionSource(NAME, runtime_directory / "default-0", None)
        source.refresh()
        oldest = made.extremes().oldest_offset
        assert source.read_exactly(EPOCH, oldest - 1, oldest + 5) is None
        assert offsets(source.read_exactly(EPOCH, oldest, oldest + 5)) == list(range(oldest, oldest + 6))
        batch = source.read(EPOCH, 0, 1000, RecordBuffer())
        assert batch is not None
        assert batch.first_offset == oldest
        source.close()


def test_a_run_that_is_cut_keeps_what_covers_it(runtime_directory: Path) -> None:
    with ring(runtime_directory, capacity_bytes=1 << 18) as made:
        publish(made, 2)
        claim = made.writer().claim(5000, "cam")
        assert claim
        with claim, memoryview(claim) as view:
            view[:] = bytes(5000)
        publish(made, 2)
        source = PartitionSource(NAME, runtime_directory / "default-0", None)
        source.refresh()
        for last, kinds in ((1, [False]), (2, [False, True]), (3, [False, True, False])):
            batch = source.read_exactly(EPOCH, 0, last)
            assert batch is not None
            assert [run.unchecked for run in batch.runs] == kinds
            assert all(bool(run.records[30] & FLAG_UNCHECKED) == run.unchecked for run in batch.runs)
        source.close()


def test_records_that_a_dead_writer_has_not_told_of_are_seen(runtime_directory: Path) -> None:
    """`end` may lag behind what is there: here it is set back, as a kill in a batch leaves it."""
    with ring(runtime_directory) as made:
        source = PartitionSource(NAME, runtime_directory / "default-0", None)
        source.refresh()
        assert source.backlog(EPOCH, 0) == (0, 0)
        with open(runtime_directory / "default-0.ring", "r+b") as file:
            file.seek(0x80)
            end = file.read(40)
            publish(made, 3)
            file.seek(0x80)
            file.write(end)
        assert made.extremes().end_offset == 0
        assert source.backlog(EPOCH, 0) == (1, 1)
        assert offsets(source.read(EPOCH, 0, 1000, RecordBuffer())) == [0, 1, 2]
        assert source.backlog(EPOCH, 3) == (0, 0)
        source.close()


class WrittenOver(RecordBuffer):
    """Copies, but only after the writer has come round and begun to fill that place again."""

    def __init__(self, made: Ring) -> None:
        super().__init__()
        self.made = made
        self.claim: Claim | None = None

    def take(self, ranges: Iterable[Range], about_bytes: int = 0) -> tuple[RecordRun, ...]:
        if not self.claim:
            self.claim = self.made.writer().claim(16_000, "cam")
            assert self.claim
            with memoryview(self.claim) as view:
                view[11_000:] = b"!" * 5_000  # the payload, but not the header, of the record that was there
        return super().take(ranges, about_bytes)


def test_what_was_written_over_while_it_was_copied_is_not_believed(runtime_directory: Path) -> None:
    """A payload that has no checksum of its own: that the place was given up is all that tells."""
    with ring(runtime_directory) as made:
        publish(made, 160)  # 64 bytes each
        claim = made.writer().claim(8_000, "cam")
        assert claim
        with claim, memoryview(claim) as view:
            view[:] = b"." * 8_000
        assert made.extremes().end_position < 1 << 16
        while made.extremes().end_position + 64 <= 1 << 16:
            publish(made, 1)
        buffer = WrittenOver(made)
        source = PartitionSource(NAME, runtime_directory / "default-0", None)
        source.refresh()
        batch = source.read(EPOCH, 160, 9_000, buffer)
        assert buffer.claim
        assert batch is None or batch.first_offset > 160
        buffer.claim.abort()
        source.close()
