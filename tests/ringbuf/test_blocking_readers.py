"""Blocking readers: never overtaken while the writer heeds them, and never a block for long."""

import signal
import threading
from pathlib import Path
from random import Random

import pytest

from ringbuf import Reader, Record, Ring, Writer
from ringbuf.errors import ClaimPending, Evicted, HeldTooMuch, OffsetGone, Overrun, RingClosed
from ringbuf.ring import cursor_file
from tests.support.children import Child
from tests.support.rings import drained, fill, payload_of, publish_to_lap

BLOCKS = (
    "import sys; from ringbuf import Ring; ring = Ring.attach(sys.argv[1]);"
    "r = ring.reader(blocks_writer=True, start='oldest');"
)


def polled(reader: Reader) -> Record:
    record = reader.poll()
    assert record is not None
    return record


def test_a_blocking_reader_holds_the_writer_back_and_loses_nothing(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    seen = 0
    for _ in range(20):
        count = fill(writer)
        assert count > 0
        assert writer.publish(b"") is None or writer.publish(bytes(1000)) is None
        for payload in drained(reader):
            assert payload in (payload_of(seen, 1000), b"")
            seen += 1
    assert seen == writer.end_offset
    assert writer.rejected >= 20


def test_a_full_ring_takes_nothing_of_a_claim_either(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    fill(writer)
    assert not writer.claim(1000)
    end = writer.end_offset
    assert writer.publish_many([bytes(1000)] * 3) == 0
    assert writer.end_offset == end
    drained(reader)
    assert writer.publish_many([bytes(1000)] * 3) == 3


def test_many_go_in_as_far_as_there_is_room(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    done = writer.publish_many([payload_of(i, 1000) for i in range(100)])
    assert 55 < done < 64
    assert drained(reader) == [payload_of(i, 1000) for i in range(done)]


def test_a_record_in_hand_keeps_its_place(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    writer.publish(payload_of(0))
    held = polled(reader)
    fill(writer)
    for _ in range(20):
        polled(reader)
    assert writer.publish(bytes(1000)) is None
    assert held.valid()
    assert held.bytes() == payload_of(0)
    assert reader.released == 0
    del held
    assert reader.released > 0
    assert fill(writer) > 0


def test_closing_twice_harms_no_successor(ring: Ring) -> None:
    first = ring.reader(local=True, blocks_writer=True)
    first.close()
    second = ring.reader(local=True, blocks_writer=True)
    assert second.slot == first.slot
    first.close()
    del first
    assert [slot.state for slot in ring.slots()] == ["blocking"]
    assert second.poll() is None


def test_a_view_keeps_the_record_and_so_its_place(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    writer.publish(payload_of(0))
    view = memoryview(polled(reader))[3:7]
    fill(writer)
    assert reader.released == 0
    assert bytes(view) == payload_of(0)[3:7]
    view.release()
    assert reader.released > 0


@pytest.mark.parametrize("seed", range(5))
def test_records_are_let_go_in_any_order(ring: Ring, seed: int) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    for i in range(100):
        writer.publish(payload_of(i))
    records: list[Record | None] = [polled(reader) for _ in range(100)]
    ends = [record.position for record in records[1:] if record is not None] + [writer.end_position]
    order = list(range(100))
    Random(seed).shuffle(order)
    gone: set[int] = set()
    for i in order:
        if i % 2:
            it = records[i]
            assert it is not None
            it.release()
            it.release()
        records[i] = None
        gone.add(i)
        oldest = next((k for k in range(100) if k not in gone), 100)
        assert reader.released == (ends[oldest - 1] if oldest else 0)


def test_a_batch_is_one_hold(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    for i in range(100):
        writer.publish(payload_of(i))
    first, second = reader.read_many(50), reader.read_many(50)
    record = first[3]
    del first
    second.release()
    assert reader.released == 0, "a record of the first batch is still in hand"
    assert record.bytes() == payload_of(3)
    del record
    assert reader.released == writer.end_position


def test_more_than_a_thousand_leases_are_told_apart(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    for _ in range(3):
        for _ in range(900):
            assert writer.publish(b"") is not None
        held = [polled(reader) for _ in range(900)]
        assert all(record.valid() for record in held)
        held.reverse()
        while held:
            held.pop()
    assert reader.released == writer.end_position


def test_holding_more_than_half_the_ring_is_an_error_not_a_stall(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    fill(writer)
    held: list[Record] = []
    with pytest.raises(HeldTooMuch, match=r"32768 \(half the ring\) are allowed"):
        held.extend(polled(reader) for _ in range(100))
    held.clear()
    assert reader.poll() is not None


def test_ranges_are_held_until_released(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    fill(writer)
    ranges = reader.ranges(10_000)
    assert reader.released == 0
    assert writer.publish(bytes(1000)) is None
    behind = ranges[0].position + len(ranges[0].view)
    reader.release(behind)
    assert reader.released == behind
    reader.release(0)
    reader.release(1 << 60)
    assert reader.released == behind, "only what has been read can be released, and only once"
    assert writer.publish(bytes(1000)) is not None


def test_a_seek_lets_go_of_everything(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    for i in range(100):
        writer.publish(payload_of(i))
    held = [polled(reader) for _ in range(50)]
    reader.seek(80)
    assert reader.released == reader.cursor
    record = polled(reader)
    held.clear()
    assert reader.released < reader.cursor, "old holds say nothing about the new place"
    del record
    reader.seek(10)
    assert reader.released == reader.cursor
    fill(writer)
    assert polled(reader).bytes() == payload_of(10)


def test_a_blocking_reader_that_starts_in_the_past_keeps_it(ring: Ring) -> None:
    writer = ring.writer()
    publish_to_lap(writer, 2)
    reader = ring.reader(local=True, blocks_writer=True, start="oldest")
    first = reader.offset
    last = first
    while writer.publish(payload_of(writer.end_offset)) is not None:
        last = writer.end_offset
    assert drained(reader) == [payload_of(i) for i in range(first, last)]


def test_both_kinds_of_reader_share_a_ring(ring: Ring) -> None:
    blocking, plain, writer = ring.reader(local=True, blocks_writer=True), ring.reader(), ring.writer()
    publish_to_lap(writer, 0.5)
    drained(blocking)
    publish_to_lap(writer, 0.8)
    with pytest.raises(Overrun):
        plain.poll()
    assert len(drained(blocking)) > 150


# ---- who is heeded ----


def test_a_foreign_reader_in_the_way_is_evicted_after_the_queue_timeout(ring: Ring) -> None:
    writer = ring.writer(queue_timeout_ms=0)
    with Ring.attach(ring.path) as attached:
        stalled, lively = attached.reader(blocks_writer=True), attached.reader(blocks_writer=True)
        stalled_at = stalled.cursor
        for i in range(1000):
            assert writer.publish(payload_of(i)) == i
            lively.poll()
        assert [slot.state for slot in ring.slots()] == ["evicted", "blocking"]
        for use in (stalled.poll, stalled.read_many, lambda: stalled.ranges(1)):
            with pytest.raises(Evicted, match="held the writer back at offset 0"):
                use()
        assert stalled.wait(0), "to be told is a reason to wake"
        assert (stalled.cursor, lively.offset) == (stalled_at, 1000)
        stalled.close()
        fresh = attached.reader(blocks_writer=True)
        publish_to_lap(writer, 0.3)
        assert len(drained(fresh)) > 70, "its successor in the slot did nothing wrong"


def test_until_the_timeout_publish_is_refused(ring: Ring) -> None:
    writer = ring.writer(queue_timeout_ms=3_600_000)
    with Ring.attach(ring.path) as attached:
        reader = attached.reader(blocks_writer=True)
        fill(writer)
        for _ in range(100):
            assert writer.publish(bytes(1000)) is None
        assert writer.rejected == 101
        assert [slot.state for slot in ring.slots()] == ["blocking"]
        drained(reader)
        assert writer.publish(bytes(1000)) is not None


def test_an_own_reader_is_never_evicted(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer(queue_timeout_ms=0)
    with Ring.attach(ring.path) as attached:
        foreign = attached.reader(blocks_writer=True)
        count = fill(writer)
        assert [slot.state for slot in ring.slots()] == ["blocking", "evicted"]
        assert len(drained(reader)) == count
        with pytest.raises(Evicted):
            foreign.poll()


def test_a_blocking_writer_waits_as_long_as_the_timeout_then_evicts(ring: Ring) -> None:
    writer = ring.writer(when_full="block", queue_timeout_ms=30)
    with Ring.attach(ring.path) as attached:
        stalled = attached.reader(blocks_writer=True)
        for i in range(100):
            assert writer.publish(payload_of(i, 1000)) == i
        with pytest.raises(Evicted):
            stalled.poll()


def test_a_blocking_writer_behind_an_own_reader_gives_up_in_the_end(ring: Ring) -> None:
    reader, writer = (
        ring.reader(local=True, blocks_writer=True),
        ring.writer(when_full="block", queue_timeout_ms=30),
    )
    fill(writer)
    assert writer.publish(bytes(1000)) is None
    drained(reader)
    assert writer.publish(bytes(1000)) is not None


def test_a_blocked_writer_goes_on_when_room_comes(ring: Ring) -> None:
    """The reader sleeps when the batch begins: the writer must wake it before the batch is over."""
    reader = ring.reader(local=True, blocks_writer=True, spin_ns=0)
    writer = ring.writer(when_full="block", queue_timeout_ms=60_000)
    seen: list[bytes] = []

    def read() -> None:
        while len(seen) < 1000:
            assert reader.wait(60)
            seen.extend(drained(reader))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        assert writer.publish_many([payload_of(i, 1000) for i in range(1000)]) == 1000
    finally:
        thread.join()
    assert seen == [payload_of(i, 1000) for i in range(1000)]


def test_while_one_thread_waits_for_room_another_is_told(ring: Ring) -> None:
    reader, writer = (
        ring.reader(local=True, blocks_writer=True),
        ring.writer(when_full="block", queue_timeout_ms=60_000),
    )
    fill_without_waiting(writer)
    done: list[int | None] = []
    thread = threading.Thread(target=lambda: done.append(writer.publish(payload_of(7, 1000), key="mine")))
    thread.start()
    try:
        with pytest.raises(ClaimPending, match="waits for room"):
            while not done:
                writer.publish(b"", key="other")
                drained_nothing_yet(writer)
        ring.admit(0)
    finally:
        found = read_to_end(reader, thread)
    assert found[-1].key == b"mine"
    assert found[-1].bytes() == payload_of(7, 1000)


def fill_without_waiting(writer: Writer) -> None:
    """To the brim, in steps that are known to fit."""
    for _ in range(63):
        writer.publish(bytes(960), key="k")


def drained_nothing_yet(writer: Writer) -> None:
    assert writer.end_offset <= 70


def read_to_end(reader: Reader, thread: threading.Thread) -> list[Record]:
    """All records, copied out by the time the other thread has ended; the last one still in hand."""
    last: list[Record] = []
    while thread.is_alive() or reader.lag:
        record = reader.poll()
        if record is not None:
            last = [record]
    thread.join()
    return last


def test_closing_a_ring_frees_a_thread_that_waits_for_room(ring: Ring) -> None:
    ring.reader(local=True, blocks_writer=True)
    keeper, writer = (
        ring.reader(local=True, blocks_writer=True),
        ring.writer(when_full="block", queue_timeout_ms=60_000),
    )
    fill_without_waiting(writer)
    caught: list[BaseException] = []
    started = threading.Event()

    def publish() -> None:
        started.set()
        while not caught:
            try:
                writer.publish(bytes(1000))
            except ClaimPending:  # the look below
                continue
            except RingClosed as error:
                caught.append(error)

    thread = threading.Thread(target=publish)
    thread.start()
    started.wait()
    while True:
        try:
            claim = writer.claim(0)
        except ClaimPending:
            break
        assert claim
        claim.abort()
    end = writer.end_position
    ring.close()
    thread.join()
    assert len(caught) == 1
    assert writer.end_position == end
    assert not keeper.open


def test_a_signal_ends_a_wait_for_room(ring: Ring) -> None:
    reader, writer = (
        ring.reader(local=True, blocks_writer=True),
        ring.writer(when_full="block", queue_timeout_ms=60_000),
    )
    fill_without_waiting(writer)

    def interrupt(*_: object) -> None:
        raise KeyError("by the handler")

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyError, match="by the handler"):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            writer.publish(bytes(1000))
    finally:
        signal.signal(signal.SIGALRM, old)
    drained(reader)
    assert writer.publish(b"") is not None


def test_only_listed_readers_gate_when_told_so(ring: Ring) -> None:
    writer = ring.writer(blocking_readers="admitted", queue_timeout_ms=3_600_000)
    with Ring.attach(ring.path) as attached:
        listed, other = attached.reader(blocks_writer=True), attached.reader(blocks_writer=True)
        ring.admit(listed.slot)
        publish_to_lap(writer, 0.5)
        assert len(drained(listed)) > 100
        publish_to_lap(writer, 0.8)
        with pytest.raises(Overrun):
            other.poll()
        fill(writer)
        assert writer.publish(bytes(1000)) is None
        ring.evict(listed.slot)
        assert writer.publish(bytes(1000)) is not None
        with pytest.raises(Evicted):
            listed.poll()


def test_a_dead_reader_is_swept_at_once_not_after_the_timeout(ring: Ring) -> None:
    writer = ring.writer(queue_timeout_ms=3_600_000)
    writer.publish(b"x")
    with Child(BLOCKS + "held = r.poll(); print('holds', len(held)); input()", ring.path) as child:
        assert child.line() == "holds 1"
        child.kill()
    assert writer.publish_many([payload_of(i) for i in range(1000)]) == 1000
    assert ring.slots() == []


def test_a_stopped_reader_is_not_dead_but_evicted(ring: Ring) -> None:
    writer = ring.writer(when_full="block", queue_timeout_ms=20)
    with Child(BLOCKS + "print('here'); input()", ring.path) as child:
        child.line()
        child.process.send_signal(signal.SIGSTOP)
        assert writer.publish_many([payload_of(i) for i in range(1000)]) == 1000
        assert [slot.state for slot in ring.slots()] == ["evicted"]
        child.process.send_signal(signal.SIGCONT)


def test_a_blocking_reader_may_replay_while_the_writer_runs(ring: Ring) -> None:
    """Joining in the past races with the writer's advance: once in, not a record is missing."""
    writer = ring.writer()
    publish_to_lap(writer, 2)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            writer.publish(payload_of(writer.end_offset))

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(300):
            with ring.reader(local=True, blocks_writer=True, start="oldest") as reader:
                expected = reader.offset
                for _ in range(50):
                    record = reader.poll()
                    if record is not None:
                        assert record.offset == expected
                        assert record.bytes() == payload_of(expected)
                        expected += 1
                assert reader.lost == 0
    finally:
        stop.set()
        thread.join()


def test_a_blocking_reader_cannot_go_back_to_what_is_gone(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    for _ in range(3):
        fill(writer)
        drained(reader)
    with pytest.raises(OffsetGone):
        reader.seek(0)
    fill(writer)
    assert len(drained(reader)) > 30


def test_cursors_of_readers_are_in_the_file_and_nowhere_else(ring: Ring) -> None:
    writer = ring.writer()
    before = Path(cursor_file(ring.path)).read_bytes()
    own = ring.reader(local=True, blocks_writer=True)
    writer.publish(b"x")
    own.poll()
    assert Path(cursor_file(ring.path)).read_bytes() == before
