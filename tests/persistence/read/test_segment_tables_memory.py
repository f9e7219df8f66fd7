"""Memory of the segment tables: what a log keeps of sealed and of removed segments."""

import gc

from persistence.read.segment_tables import TABLES_MAX, ListedSegment
from persistence.segment.footer import Footer
from persistence.segment.scan import SegmentTable
from tests.support.logs import Written

SEGMENTS = 40


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(it) is kind for it in gc.get_objects())


def written() -> Written:
    """A log of many small segments that this process has written."""
    log = Written.empty(segment_bytes=8192)
    while len(log.log.reader.bases()) < SEGMENTS:
        log.add("a-0", 7, [bytes(1000)] * 3)
        log.sync()
    return log


def test_a_log_keeps_the_tables_of_few_sealed_segments_in_memory() -> None:
    before = alive(SegmentTable)
    log = written()
    assert (
        alive(SegmentTable) - before <= TABLES_MAX + 2
    )  # and the live one, and the one that was sealed last
    log.log.close()


def test_segments_that_are_removed_leave_no_memory_behind() -> None:
    kinds = (ListedSegment, SegmentTable, Footer)
    before = [alive(kind) for kind in kinds]
    log = written()
    log.log.run_maintenance()
    log.log.prove()
    log.sync()
    for facts in log.log.reader.segments():  # with footers and tables
        log.log.reader.epochs("a-0")
        assert facts is not None
    assert alive(Footer) - before[2] > SEGMENTS // 2
    while len(log.log.reader.bases()) > 1:
        log.log.remove(log.log.reader.bases()[0])
    assert all(alive(kind) - count <= 2 for kind, count in zip(kinds, before, strict=True))
    log.log.close()
