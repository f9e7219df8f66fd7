"""The smallest ring against a deque of what was published, as a state machine.

Plain and blocking readers, seeks, aborts, claims that shrink, batches longer than the ring, and the death and
succession of the writer, in any order that Hypothesis comes up with.
"""

import tempfile
from collections import deque
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from ringbuf import Batch, Reader, Record, Ring, Writer
from ringbuf.errors import HeldTooMuch, OffsetGone, Overrun
from ringbuf.record import payload_position, span
from tests.support.directories import SHARED_MEMORY
from tests.support.examples import examples
from tests.support.rings import CAPACITY_BYTES, payload_of

LARGEST = CAPACITY_BYTES // 4
CHUNK_BYTES = 4096  # of the smallest ring: what the writer takes at a time
lengths = st.one_of(st.integers(0, 300), st.integers(300, 5000), st.just(LARGEST - 32))
keys = st.sampled_from(["", "a", "plant/1/temp", "k" * 40])


class Published:
    """One record as it should be."""

    def __init__(self, offset: int, key: str, length: int) -> None:
        self.offset, self.key, self.payload = offset, key.encode(), payload_of(offset, length)
        self.span = span(payload_position(len(self.key), 0) + length)

    def is_(self, record: Record) -> None:
        """Fails unless `record` is this one."""
        assert (record.offset, record.key, record.bytes()) == (self.offset, self.key, self.payload)


class Cursor:
    """A reader, and what it should see next."""

    def __init__(self, reader: Reader, blocks_writer: bool) -> None:
        self.reader, self.blocks_writer, self.next = reader, blocks_writer, reader.offset
        self.held: list[Record | Batch] = []


class RingMachine(RuleBasedStateMachine):
    """The model keeps all records that can still be in the ring; the ring may have forgotten the oldest."""

    cursors = Bundle("cursors")

    @initialize()
    def create(self) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="brim-model-", dir=SHARED_MEMORY)
        self.path = Path(self.directory.name) / "ring"
        self.ring = Ring.create(self.path, capacity_bytes=CAPACITY_BYTES, epoch=5)
        self.writer: Writer = self.ring.writer(queue_timeout_ms=3_600_000)
        self.readers_ring = Ring.attach(self.path)
        self.model: deque[Published] = deque()
        self.end = 0
        self.all: list[Cursor] = []

    def add(self, key: str, length: int) -> None:
        self.model.append(Published(self.end, key, length))
        self.end += 1
        while sum(it.span for it in self.model) - self.model[0].span > CAPACITY_BYTES:
            self.model.popleft()

    # ---- writing ----

    @rule(key=keys, length=lengths)
    def publish(self, key: str, length: int) -> None:
        offset = self.writer.publish(payload_of(self.end, min(length, LARGEST - 80)), key=key)
        if offset is None:
            assert any(it.blocks_writer for it in self.all), "refused, and no reader blocks"
        else:
            assert offset == self.end
            self.add(key, min(length, LARGEST - 80))

    @rule(count=st.integers(0, 400), length=st.integers(0, 400), key=keys)
    def publish_many(self, count: int, length: int, key: str) -> None:
        done = self.writer.publish_many([payload_of(self.end + i, length) for i in range(count)], key=key)
        assert done == count or any(it.blocks_writer for it in self.all)
        for _ in range(done):
            self.add(key, length)

    @rule(key=keys, length=lengths, less=st.integers(0, 100), commit=st.booleans())
    def claim(self, key: str, length: int, less: int, commit: bool) -> None:
        length = min(length, LARGEST - 80)
        claim = self.writer.claim(length, key=key)
        if not claim:
            assert any(it.blocks_writer for it in self.all)
        elif commit:
            actual = max(0, length - less)
            memoryview(claim)[:actual] = payload_of(self.end, actual)
            assert claim.commit(actual) == self.end
            self.add(key, actual)
        else:
            memoryview(claim)[:] = b"\xff" * length
            claim.abort()

    @rule()
    def succeed(self) -> None:
        """The writer goes, another takes the ring over; readers notice nothing."""
        self.ring.close()
        self.ring = Ring.reattach(self.path)
        self.writer = self.ring.writer(queue_timeout_ms=3_600_000)
        assert self.writer.end_offset == self.end

    # ---- reading ----

    @rule(target=cursors, blocks_writer=st.booleans(), oldest=st.booleans())
    def join(self, blocks_writer: bool, oldest: bool):
        if len(self.all) > 6:
            return multiple()
        reader = self.readers_ring.reader(
            blocks_writer=blocks_writer, start="oldest" if oldest else "latest", verify=True
        )
        cursor = Cursor(reader, blocks_writer)
        self.check_start(cursor, oldest)
        self.all.append(cursor)
        return cursor

    def check_start(self, cursor: Cursor, oldest: bool) -> None:
        assert cursor.next <= self.end
        if not oldest:
            assert cursor.next == self.end
            return
        behind = sum(it.span for it in self.model if it.offset >= cursor.next)
        total = sum(it.span for it in self.model)
        room = CAPACITY_BYTES - 2 * LARGEST - 3 * CHUNK_BYTES
        assert behind >= min(total, room) or self.end - cursor.next == len(self.model)

    @rule(cursor=cursors)
    def poll(self, cursor: Cursor) -> None:
        try:
            record = cursor.reader.poll()
        except Overrun as overrun:
            self.was_overrun(cursor, overrun)
        except HeldTooMuch:
            assert cursor.held
        else:
            self.came(cursor, [] if record is None else [record])
            if record is None:
                assert cursor.next == self.end, "none came, but there is one"
            elif cursor.blocks_writer:
                cursor.held.append(record)

    @rule(cursor=cursors, limit=st.integers(1, 300))
    def read_many(self, cursor: Cursor, limit: int) -> None:
        try:
            batch = cursor.reader.read_many(limit)
        except Overrun as overrun:
            self.was_overrun(cursor, overrun)
        except HeldTooMuch:
            assert cursor.held
        else:
            before = cursor.next
            self.came(cursor, list(batch))
            assert len(batch) > 0 or before == self.end
            if cursor.blocks_writer:
                cursor.held.append(batch)

    def came(self, cursor: Cursor, records: list[Record]) -> None:
        for record in records:
            assert record.offset == cursor.next
            self.model[record.offset - self.model[0].offset].is_(record)
            cursor.next += 1

    def was_overrun(self, cursor: Cursor, overrun: Overrun) -> None:
        assert not cursor.blocks_writer, "a blocking reader was lapped"
        assert overrun.lost == cursor.reader.offset - cursor.next > 0
        behind = sum(it.span for it in self.model if it.offset >= cursor.next)
        assert cursor.next < self.model[0].offset or behind > CAPACITY_BYTES - 2 * LARGEST - 3 * CHUNK_BYTES
        cursor.next = cursor.reader.offset

    @precondition(lambda self: self.model)
    @rule(cursor=cursors, data=st.data())
    def seek(self, cursor: Cursor, data: st.DataObject) -> None:
        cursor.held.clear()
        wanted = data.draw(st.integers(self.model[0].offset, self.end + 2))
        try:
            cursor.reader.seek(wanted)
            assert cursor.reader.offset == wanted
        except OffsetGone as gone:
            assert gone.nearest == cursor.reader.offset
            assert gone.nearest > wanted or wanted > self.end
        cursor.next = cursor.reader.offset

    @rule(cursor=cursors, oldest=st.booleans())
    def seek_an_end(self, cursor: Cursor, oldest: bool) -> None:
        cursor.held.clear()
        if oldest:
            cursor.reader.seek_oldest()
        else:
            cursor.reader.seek_latest()
        cursor.next = cursor.reader.offset
        self.check_start(cursor, oldest)

    @rule(cursor=cursors, data=st.data())
    def let_go(self, cursor: Cursor, data: st.DataObject) -> None:
        if cursor.held:
            cursor.held.pop(data.draw(st.integers(0, len(cursor.held) - 1)))

    @rule(cursor=consumes(cursors))
    def leave(self, cursor: Cursor) -> None:
        cursor.held.clear()
        cursor.reader.close()
        self.all.remove(cursor)

    # ---- always ----

    @invariant()
    def what_is_held_stands(self) -> None:
        for cursor in getattr(self, "all", []):
            for held in cursor.held:
                for record in [held] if isinstance(held, Record) else held:
                    self.model[record.offset - self.model[0].offset].is_(record)

    @invariant()
    def the_ring_says_where_it_ends(self) -> None:
        if hasattr(self, "ring"):
            extremes = self.ring.extremes()
            assert extremes.end_offset == self.end
            assert extremes.oldest_offset <= self.end

    def teardown(self) -> None:
        if hasattr(self, "ring"):
            self.all.clear()
            self.readers_ring.close()
            self.ring.close()
            self.directory.cleanup()


TestRing = RingMachine.TestCase
TestRing.settings = settings(max_examples=examples(30), stateful_step_count=40, deadline=None)
