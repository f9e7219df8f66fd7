"""Memory of consumer windows, seen by malloc: the bitmaps are a C library's."""

from edge.consumers.ack_tracker import AckTracker, Rules
from tests.support.malloc import allocated_bytes

TURNS = 5_000
LEAK_MAX_BYTES = 16  # a turn; an iterator of a bitmap has 224


def work(tracker: AckTracker, turns: int) -> None:
    for _ in range(turns):
        first = tracker.next
        tracker.deliver(first, first + 4, "ann", 100.0)
        assert tracker.ack([(first + 3, 1)], "ann").accepted == 1  # out of order: the bitmap is used
        assert tracker.missing(first, first + 4) == [(first, 3)]
        assert tracker.ack([(first, 4)], "ann").accepted == 4
        tracker.take_changes()


def test_records_that_come_and_are_done_leave_no_memory_behind() -> None:
    tracker = AckTracker(0, Rules(ordered=True))
    work(tracker, 200)
    before = allocated_bytes()
    work(tracker, TURNS)
    assert tracker.floor == tracker.next == (200 + TURNS) * 4
    assert allocated_bytes() - before < TURNS * LEAK_MAX_BYTES
