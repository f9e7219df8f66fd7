"""A gap in a ring, where records were damaged: every kind of reader learns of it and continues behind it."""

from pathlib import Path

import pytest

from bridge.source.partition_source import PartitionSource, RecordBuffer, RingName
from edge.config.schema import Config, Stream
from edge.consumers.ring_source import Overwritten, RingRecords, RingSource
from edge.local.producers import Producers
from edge.streams.epochs import Epochs
from persistence import Log, LogWriter
from persistence import LoggedRing as LogSource
from ringbuf import Ring
from ringbuf.constants import HEADER_BYTES
from ringbuf.errors import OffsetGone
from ringbuf.ring import ring_file
from tests.support.logs import read_all
from tests.support.rings import overwrite

RECORDS, FIRST, END = 20, 7, 10  # of which FIRST to END - 1 are damaged
SPAN = 128


def damaged(path: Path) -> None:
    """Damage the records of a ring that no process has open."""
    for offset in range(FIRST, END):
        overwrite(path, HEADER_BYTES + offset * SPAN + 50, b"\xff\xfe")


def fill(ring: Ring) -> None:
    """Publish records of SPAN bytes each."""
    for number in range(RECORDS):
        assert ring.writer().publish(bytes([number]) * (SPAN - 40), key="t/1") == number
    assert ring.writer().end_position == RECORDS * SPAN


@pytest.fixture
def path(runtime_directory: Path) -> Path:
    path = runtime_directory / "t-0"
    with Ring.create(path, capacity_bytes=1 << 16, epoch=7) as ring:
        fill(ring)
    damaged(path)
    return path


def test_a_consumer_group_is_told_of_the_next_record(path: Path) -> None:
    with Ring.reattach(path) as ring:
        source = RingSource(ring)
        found = source.read(0, 1 << 20)
        assert isinstance(found, RingRecords)
        assert (found.offset, found.count) == (0, FIRST)
        for lost in range(FIRST, END):
            assert source.read(lost, 1 << 20) == Overwritten(END)
        found = source.read(END, 1 << 20)
        assert isinstance(found, RingRecords)
        assert (found.offset, found.count) == (END, RECORDS - END)
        source.close()


def test_a_bridge_reads_up_to_it_and_behind_it(path: Path) -> None:
    buffer = RecordBuffer()
    with Ring.reattach(path):
        source = PartitionSource(RingName("t", 0), path, None)
        source.refresh()
        batch = source.read(7, 0, 1 << 20, buffer)
        assert batch is not None
        assert (batch.first_offset, batch.last_offset) == (0, FIRST - 1)
        batch = source.read(7, FIRST, 1 << 20, buffer)
        assert batch is not None
        assert (batch.first_offset, batch.last_offset) == (END, RECORDS - 1)
        source.close()


def test_the_log_continues_behind_it_and_all_is_durable(path: Path, tmp_path: Path) -> None:
    with Log(tmp_path, segment_bytes=1 << 20) as log:
        log.recover()
        with Ring.reattach(path) as ring:
            writer = LogWriter(log)
            writer.add(LogSource(ring, "disk"))
            for _ in range(3):
                writer.step()
            assert ring.extremes().durable_position == RECORDS * SPAN
            assert writer.lost_records == END - FIRST
            assert writer.broken == {}
            assert ring.writer().publish(b"next") == RECORDS
            writer.step(sync=True)
            assert ring.extremes().durable_position == ring.extremes().end_position
            writer.close()
        wanted = [it for it in range(RECORDS + 1) if not FIRST <= it < END]
        assert sorted(read_all(log, "t-0", 7)) == wanted
    with Log(tmp_path, segment_bytes=1 << 20) as again:
        assert again.recover().damage == ()
        assert sorted(read_all(again, "t-0", 7)) == wanted


def test_the_ring_of_a_producer_that_has_gone_is_repaired_by_the_broker(
    runtime_directory: Path, tmp_path: Path
) -> None:
    config = Config(
        runtime_dir=runtime_directory, state_dir=tmp_path, stream=(Stream(name="t", topics=("#",)),)
    )
    producers = Producers(config, Epochs(tmp_path / "epochs"))
    made = producers.open("cam", "t", 0)
    with Ring.reattach(made.ring.path) as ring:
        fill(ring)
    producers.close()
    damaged(made.ring.path)
    again = Producers(config, Epochs(tmp_path / "epochs"))
    again.attach_left_behind()
    (left,) = again.all()
    with left.ring.reader(start="oldest", verify=True, overrun="count") as reader:
        assert [it.offset for it in reader.read_many(100)] == [*range(FIRST), *range(END, RECORDS)]
        assert reader.lost == END - FIRST
    again.close()


def test_a_ring_that_its_producer_writes_is_left_as_it_is(runtime_directory: Path, tmp_path: Path) -> None:
    config = Config(
        runtime_dir=runtime_directory, state_dir=tmp_path, stream=(Stream(name="t", topics=("#",)),)
    )
    producers = Producers(config, Epochs(tmp_path / "epochs"))
    made = producers.open("cam", "t", 0)
    producers.close()
    with Ring.reattach(made.ring.path) as ring:
        fill(ring)
        damaged(made.ring.path)
        before = ring_file(made.ring.path).read_bytes()
        again = Producers(config, Epochs(tmp_path / "epochs"))
        again.attach_left_behind()
        assert len(again.all()) == 1
        again.close()
        assert ring_file(made.ring.path).read_bytes()[HEADER_BYTES:] == before[HEADER_BYTES:]


def test_an_offset_in_a_gap_is_gone_and_the_next_is_near(path: Path) -> None:
    with Ring.reattach(path) as ring, ring.reader(start="oldest") as reader:
        for lost in range(FIRST, END):
            with pytest.raises(OffsetGone) as gone:
                reader.seek(lost)
            assert gone.value.nearest == END
