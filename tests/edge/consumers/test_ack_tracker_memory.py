"""Memory of consumer windows, seen by malloc: the bitmaps are a C library's."""

from edge.consumers.ack_tracker import AckTracker, Rules
from tests.support.malloc import allocated_bytes

TURNS = 5_000
LEAK_MAX_BYTES = 16  # a turn; an iterator of a bitmap has 224


def work(window: AckTracker, turns: int) -> None:
    for _ in range(turns):
        first = window.next
        window.deliver(first, first + 4, "ann", 100.0)
        assert window.ack([(first + 3, 1)], "ann").accepted == 1  # out of order: the bitmap is used
        assert window.missing(first, first + 4) == [(first, 3)]
        assert window.ack([(first, 4)], "ann").accepted == 4
        window.take_changes()


def test_records_that_come_and_are_done_leave_no_memory_behind() -> None:
    window = AckTracker(0, Rules(ordered=True))
    work(window, 200)
    before = allocated_bytes()
    work(window, TURNS)
    assert window.floor == window.next == (200 + TURNS) * 4
    assert allocated_bytes() - before < TURNS * LEAK_MAX_BYTES
