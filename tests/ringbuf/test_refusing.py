"""A writer that must refuse records, by request of a process that only reads its ring."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from ringbuf import REFUSAL_NO_LOG, REFUSAL_NO_ROOM, Ring, Writer
from ringbuf.errors import RingClosed
from tests.support.rings import drained, fill, new_ring, overwrite

HOUR_MS = 3_600_000
REFUSAL_AT = 0x300  # layout.h


@pytest.fixture
def broker(ring: Ring) -> Iterator[Ring]:
    """The same ring as another process has it."""
    with Ring.attach(ring.path) as attached:
        yield attached


def impatient(ring: Ring) -> Writer:
    """Its writer, that heeds the word at once."""
    return ring.writer(queue_timeout_ms=0)


def test_a_refused_record_is_a_value_and_takes_no_offset(ring: Ring, broker: Ring) -> None:
    writer = impatient(ring)
    assert writer.publish(b"a") == 0
    assert writer.refusal == 0
    broker.refuse(REFUSAL_NO_ROOM)
    assert writer.refusal == REFUSAL_NO_ROOM
    assert writer.publish(b"b") is None
    assert writer.publish_many([b"c", b"d"]) == 0
    assert not writer.claim(100)
    assert writer.end_offset == 1
    broker.refuse(0)
    assert writer.refusal == 0
    assert writer.publish(b"e") == 1
    with ring.reader(start="oldest") as reader:
        assert drained(reader) == [b"a", b"e"]


def test_refusals_are_counted_by_cause_and_a_full_ring_is_another(ring: Ring, broker: Ring) -> None:
    writer = impatient(ring)
    assert broker.refused() == {"full": 0, "no_room": 0, "no_log": 0}
    for why, times in ((REFUSAL_NO_ROOM, 3), (REFUSAL_NO_LOG, 2)):
        broker.refuse(why)
        for _ in range(times):
            assert writer.publish(b"x") is None
    broker.refuse(0)
    assert writer.rejected == 0
    with ring.reader(blocks_writer=True, local=True):
        fill(writer)
    assert broker.refused() == {"full": 1, "no_room": 3, "no_log": 2}
    assert writer.rejected == 1


def test_a_writer_has_patience_for_its_queue_timeout(ring: Ring, broker: Ring) -> None:
    writer = ring.writer(queue_timeout_ms=HOUR_MS)
    broker.refuse(REFUSAL_NO_LOG)
    assert writer.refusal == 0
    assert writer.publish(b"a") == 0


def test_the_time_runs_from_the_first_word_whatever_it_is_replaced_by(
    runtime_directory: Path, ring: Ring, broker: Ring
) -> None:
    writer = ring.writer(queue_timeout_ms=HOUR_MS)
    long_ago_ms = 1
    overwrite(ring.path, REFUSAL_AT, (long_ago_ms << 8 | REFUSAL_NO_LOG).to_bytes(8, "little"))
    broker.refuse(REFUSAL_NO_ROOM)
    with (runtime_directory / "ring.ring").open("rb") as file:
        file.seek(REFUSAL_AT)
        assert int.from_bytes(file.read(8), "little") == long_ago_ms << 8 | REFUSAL_NO_ROOM
    broker.refuse(0)
    broker.refuse(REFUSAL_NO_ROOM)
    assert writer.refusal == 0  # patience begins again


def test_a_time_to_come_is_no_reason_to_take_records(ring: Ring, broker: Ring) -> None:
    writer = ring.writer(queue_timeout_ms=HOUR_MS)
    overwrite(ring.path, REFUSAL_AT, ((1 << 50) << 8 | REFUSAL_NO_ROOM).to_bytes(8, "little"))
    assert writer.publish(b"x") is None


def test_a_reason_that_no_version_knows_is_none(ring: Ring, broker: Ring) -> None:
    writer = impatient(ring)
    overwrite(ring.path, REFUSAL_AT, (1 << 8 | 77).to_bytes(8, "little"))
    assert writer.publish(b"x") == 0


def test_the_word_outlives_the_writer_and_the_next_one_heeds_it(runtime_directory: Path) -> None:
    with new_ring(runtime_directory) as ring, Ring.attach(ring.path) as broker:
        broker.refuse(REFUSAL_NO_ROOM)
    with Ring.reattach(runtime_directory / "ring") as ring:
        writer = impatient(ring)
        assert writer.publish(b"x") is None
        with Ring.attach(ring.path) as broker:
            broker.refuse(0)
        assert writer.publish(b"x") == 0


def test_a_ring_that_was_closed_refuses_nothing_more(ring: Ring) -> None:
    broker = Ring.attach(ring.path)
    broker.refuse(REFUSAL_NO_ROOM)
    broker.close()
    with pytest.raises(RingClosed):
        broker.refuse(0)
    with pytest.raises(RingClosed):
        broker.refused()


def test_who_may_not_write_the_file_is_told(
    ring: Ring, broker: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.refuse(0)  # no request is needed
    monkeypatch.setattr("ringbuf.shared_mapping.os.open", _read_only)
    with pytest.raises(PermissionError):
        broker.refuse(REFUSAL_NO_ROOM)


def _read_only(path: object, flags: int, mode: int = 0o777) -> int:
    raise PermissionError(13, "not for you", str(path))
