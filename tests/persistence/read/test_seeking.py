"""Finding records by time and by topic: against a plain list of all that was written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence import Log, LogReader
from persistence.segment.extent_table import MARK_BYTES, ExtentRows, Row
from persistence.segment.format import segment_name
from tests.support.keyed_logs import EPOCH, many_topics, topic_records
from tests.support.logs import DIRECTORY, Written, disk_of, recovered, typical
from tests.support.simfiles import SimFiles


def readers(files: SimFiles, log: Log) -> list[LogReader]:
    """The writer's own, that of another process, and that of the next start."""
    other = LogReader(files, DIRECTORY)
    other.refresh()
    return [log.reader, other, recovered(files.kill(), segment_bytes=8192)[0].reader]


def test_a_topic_is_read_out_of_all_segments_and_nothing_else() -> None:
    files, log, written = many_topics(60, list(range(1000)))
    assert len(log.reader.bases()) > 3
    log.prove()
    log.sync()
    for reader in readers(files, log):
        for name, its in written.items():
            for topic in ("t/0", "t/4", "t/9"):
                for offset in (0, 1, len(its) // 2, len(its)):
                    wanted = [it for it in its if it[1] == topic and it[0] >= offset]
                    assert topic_records(reader.read_topic(name, topic, EPOCH, offset, 1 << 20)) == wanted


def test_a_topic_is_read_in_pieces_of_about_the_limit() -> None:
    _, log, written = many_topics(30, list(range(1000)))
    wanted = [it for it in written["a-0"] if it[1] == "t/2"]
    found: list[tuple[int, str, int, bytes]] = []
    offset = 0
    while piece := topic_records(log.reader.read_topic("a-0", "t/2", EPOCH, offset, 200)):
        assert len(piece) <= 7
        offset = piece[-1][0] + 1
        found += piece
    assert found == wanted


times = st.lists(st.integers(1, 60), min_size=150, max_size=150)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(times, st.booleans())
def test_a_time_is_found_where_a_list_would_find_it(stamps: list[int], rises: bool) -> None:
    """With a clock that only rises, to the record; with one that jumps, a record of that time or later."""
    files, log, written = many_topics(12, sorted(stamps) if rises else stamps)
    log.prove()
    log.sync()
    for reader in readers(files, log):
        for name, its in written.items():
            for time in (0, 1, 17, 30, 59, 60, 61):
                found = reader.seek_time(name, EPOCH, time)
                later = [it[0] for it in its if it[2] >= time]
                if rises or not later:
                    assert found == (later[0] if later else len(its))
                else:
                    assert found in later or found == len(its)
            assert reader.seek_time(name, EPOCH + 1, 5) == 0


def test_marks_are_sparse_and_never_fall() -> None:
    rows = ExtentRows()
    for n in range(400):
        latest = 1000 + n - (50 if n % 7 else 0)
        rows.append(Row(n, 1, 4096 + n * 1024, 960, n * 960, whole=True), 0, latest)
    marks = rows.marks()
    assert len(marks) == -(-400 // -(-MARK_BYTES // 960))
    assert [it.timestamp_ns for it in marks] == sorted(it.timestamp_ns for it in marks)
    assert rows.find_time(0) == 0
    assert rows.find_time(marks[3].timestamp_ns) == marks[3].offset
    assert rows.find_time(marks[-1].timestamp_ns + 1) is None


def test_what_a_segment_holds_is_told() -> None:
    written = typical()
    log, report = recovered(written.files)
    reader = log.reader
    facts = reader.segments()
    assert [it.base for it in facts] == reader.bases()
    assert [it.state for it in facts] == ["sealed", "sealed", "active"]
    assert sum(it.records for it in facts) == sum(map(len, written.records.values()))
    assert facts[0].rings[0].name == "a-0"
    assert facts[0].first_timestamp_ns == 1_000
    assert facts[-1].rings[0].end_offset == report.rings["a-0"].end_offset
    assert facts[0].base + facts[0].bytes == facts[1].base
    assert all(it.damage == () for it in facts)


def test_a_segment_that_cannot_be_read_says_why() -> None:
    written = typical()
    reader = written.log.reader
    name = sorted(it for it in written.files.listdir(DIRECTORY) if it.endswith(".log"))[1]
    data = disk_of(written.log).names[f"{DIRECTORY}/{name}"].cache
    data[0:4096] = bytes(4096)
    reader = LogReader(written.files, DIRECTORY)
    reader.refresh()
    facts = reader.segments()
    assert [it.state for it in facts] == ["sealed", "lost", "active"]
    assert "no header" in facts[1].reason


def test_a_run_that_is_damaged_whole_does_not_hide_what_lies_behind_it() -> None:
    written = Written.empty()
    for n in range(6):
        written.add("a-0", 7, [bytes([65 + n]) * 60])
        written.sync()
    data = written.files.names[f"{DIRECTORY}/00000000000000000000.log"].cache
    for n in (1, 2, 5):
        data[data.index(bytes([65 + n]) * 60)] ^= 1
    reader = written.log.reader
    assert [it.offset for it in reader.read("a-0", 7, 1, 1)] == [3]
    assert [it.offset for it in reader.read("a-0", 7, 0, 1 << 20)] == [0, 3, 4]
    assert reader.read("a-0", 7, 5, 1) == []
    assert [it.offset for it in reader.read_topic("a-0", "a-0", 7, 1, 1 << 20)] == [3, 4]
    assert reader.seek_time("a-0", 7, 1_001) == 3
    assert len(reader.damaged) == 3


def test_the_segment_of_an_offset_is_found_without_a_look_at_most_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also in a log with two epochs, and with a segment that has lost its header."""
    written = Written.empty(segment_bytes=8192)
    for epoch in (7, 9):
        for number in range(60):
            written.add("a-0", epoch, [bytes([number]) * 1000] * 3, first=None if number else 0)
            written.sync()
    bases = written.log.reader.bases()
    assert len(bases) > 60
    written.files.flip(f"{DIRECTORY}/{segment_name(bases[len(bases) // 2])}", 0)
    written.files.flip(f"{DIRECTORY}/{segment_name(bases[len(bases) // 2])}", 8 * 2048)
    reads: list[str] = []
    opened = SimFiles.open

    def counted(files: SimFiles, path: str, *, create: bool = False, mode: int | None = None) -> int:
        reads.append(path)
        return opened(files, path, create=create, mode=mode)

    monkeypatch.setattr(SimFiles, "open", counted)
    for epoch in (7, 9):
        for offset in (0, 3, 90, 150):
            reader = LogReader(written.files, DIRECTORY)
            reader.refresh()
            reads.clear()
            ranges = reader.read("a-0", epoch, offset, 100)
            assert offset <= ranges[0].offset <= offset + 6
            assert len(reads) <= 16, (epoch, offset)
