"""The log as another process sees it: rings, places, topics, and what is missing."""

from pathlib import Path

import pytest

from edge.errors import EdgeError
from edge.log.log_place import LogPlace
from edge.log.offline_reader import LogView, ScanPosition
from edge.streams.ring_files import stream_of
from persistence.segment.format import segment_name
from ringbuf import FLAG_RETAIN
from tests.support.kept_logs import MINUTE_NS, NOON_NS, Kept, keep


def numbers(cursor: ScanPosition) -> list[tuple[str, int]]:
    return [(it.ring, it.offset) for it in cursor.records()]


def at_minute(minute: float) -> LogPlace:
    return LogPlace(timestamp_ns=NOON_NS + int(minute * MINUTE_NS))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Two rings in the shared log and one of its own, of which each has a record a minute."""
    keep(tmp_path, "a-0", [Kept(f"a/{number % 2}", b"%d" % number, number) for number in range(6)])
    keep(tmp_path, "b-0", [Kept("b", b"%d" % number, number + 0.5) for number in range(6)])
    keep(tmp_path / "own-0", "own-0", [Kept("own", b"x" * number, number + 0.7) for number in range(3)])
    return tmp_path


@pytest.mark.parametrize(
    ("ring", "stream"), [("press-0", "press"), ("a-b-12", "a-b"), ("press@cam-1", "press")]
)
def test_a_ring_belongs_to_a_stream(ring, stream):
    assert stream_of(ring) == stream


def test_every_log_below_the_directory_is_seen(directory):
    assert LogView(directory).rings() == ["a-0", "b-0", "own-0"]


def test_where_there_is_no_log_that_is_said(tmp_path):
    for place in (tmp_path, tmp_path / "none"):
        with pytest.raises(EdgeError, match="there is no log in"):
            LogView(place)


def test_records_of_several_rings_come_by_their_times(directory):
    view = LogView(directory)
    found = numbers(ScanPosition(view, view.rings(), LogPlace(), LogPlace()))
    assert found[:6] == [("a-0", 0), ("b-0", 0), ("own-0", 0), ("a-0", 1), ("b-0", 1), ("own-0", 1)]
    assert len(found) == 15


def test_a_record_is_what_was_kept(tmp_path):
    keep(tmp_path, "a-0", [Kept("a/1", b"payload", 2, FLAG_RETAIN, b"\x05\x26\x00\x00\x00\x00")])
    view = LogView(tmp_path)
    (record,) = ScanPosition(view, ["a-0"], LogPlace(), LogPlace()).records()
    assert (record.topic, bytes(record.payload), record.properties) == (
        b"a/1", b"payload", b"\x05\x26\x00\x00\x00\x00",
    )  # fmt: skip
    assert record.flags & FLAG_RETAIN
    assert record.timestamp_ns == NOON_NS + 2 * MINUTE_NS


@pytest.mark.parametrize(
    ("first", "end", "found"),
    [
        (LogPlace(), LogPlace(), [0, 1, 2, 3, 4, 5]),
        (LogPlace(offset=4), LogPlace(), [4, 5]),
        (LogPlace(offset=2), LogPlace(offset=4), [2, 3]),
        (at_minute(2.5), LogPlace(), [3, 4, 5]),
        (at_minute(1), at_minute(3), [1, 2]),
        (LogPlace(), at_minute(-5), []),
        (LogPlace(offset=99), LogPlace(), []),
        (at_minute(99), LogPlace(), []),
    ],
)
def test_a_part_begins_and_ends_at_offsets_and_times(directory, first, end, found):
    view = LogView(directory)
    cursor = ScanPosition(view, ["a-0"], first, end)
    assert cursor.ahead() == len(found)
    assert [offset for _, offset in numbers(cursor)] == found
    assert cursor.passed == len(found)
    assert cursor.missing == 0


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        (["a/1"], [("a-0", 1), ("a-0", 3), ("a-0", 5)]),
        (["a/1", "own"], [("own-0", 0), ("a-0", 1), ("own-0", 1), ("own-0", 2), ("a-0", 3), ("a-0", 5)]),
        (["a/+"], [("a-0", number) for number in range(6)]),
        (["nothing/#"], []),
    ],
)
def test_topics_are_chosen_by_filters(directory, filters, found):
    view = LogView(directory)
    assert numbers(ScanPosition(view, view.rings(), LogPlace(), LogPlace(), filters)) == found


@pytest.mark.parametrize("filters", [[], ["a/0"], ["a/+"]])
def test_a_cursor_goes_on_where_it_stopped(directory, filters):
    view = LogView(directory)
    cursor = ScanPosition(view, ["a-0"], LogPlace(), LogPlace(), filters)
    before = numbers(cursor)
    keep(directory, "a-0", [Kept("a/0", b"new", 9)])
    assert numbers(cursor) == []
    view.refresh()
    assert numbers(cursor) == [("a-0", 6)]
    assert before[0] == ("a-0", 0)


def test_what_is_damaged_is_passed_over_and_counted(tmp_path):
    records = [Kept("a", b"x" * 600, number) for number in range(30)]
    keep(tmp_path, "a-0", records, segment_bytes=12_288)
    segment = tmp_path / segment_name(0)
    data = bytearray(segment.read_bytes())
    where = [at for at in range(len(data)) if data.startswith(b"x" * 600, at)][2]
    data[where + 300] ^= 1
    segment.write_bytes(data)
    view = LogView(tmp_path)
    cursor = ScanPosition(view, ["a-0"], LogPlace(), LogPlace())
    assert [offset for _, offset in numbers(cursor)] == [0, 1, *range(3, 30)]
    assert cursor.missing == 1


def test_a_ring_that_was_moved_is_read_from_both_its_logs(tmp_path):
    keep(tmp_path, "a-0", [Kept("a", b"old", number) for number in range(3)])
    keep(tmp_path / "a-0", "a-0", [Kept("a", b"new", number) for number in range(3, 6)], first=3)
    view = LogView(tmp_path)
    assert [offset for _, offset in numbers(ScanPosition(view, ["a-0"], LogPlace(), LogPlace()))] == list(
        range(6)
    )
    assert [offset for _, offset in numbers(ScanPosition(view, ["a-0"], at_minute(1), LogPlace()))] == [
        1,
        2,
        3,
        4,
        5,
    ]
    assert [
        offset for _, offset in numbers(ScanPosition(view, ["a-0"], at_minute(4), LogPlace(), ["a"]))
    ] == [4, 5]


@pytest.mark.parametrize("filters", [["t"], ["#"]])
def test_a_topic_is_read_whole_after_its_ring_came_back_to_an_earlier_log(
    tmp_path: Path, filters: list[str]
) -> None:
    """Also where two logs have the same records."""
    offsets = {tmp_path: (0, 6, 9), tmp_path / "worker1": (2, 6, 12)}
    for place, firsts in offsets.items():
        for first in firsts:
            records = [
                Kept("t" if number % 2 else "other", b"", number) for number in range(first, first + 3)
            ]
            keep(place, "a-0", records, first=first)
    cursor = ScanPosition(LogView(tmp_path), ["a-0"], LogPlace(), LogPlace(), filters)
    every = [*range(5), *range(6, 15)]
    assert [offset for _, offset in numbers(cursor)] == [it for it in every if filters == ["#"] or it % 2]
