"""Footers: what is read by one is what is read without, whatever becomes of it."""

import errno
import struct
from collections.abc import Iterator
from operator import sub
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from persistence import Log, LogReader
from persistence.errors import FormatError
from persistence.log.footer_builder import REST_SHARE, FooterBuilder
from persistence.maintenance.maintenance import Maintenance, MaintenanceRules
from persistence.segment import footer
from persistence.segment.format import SegmentHeader, segment_name
from persistence.segment.scan import DamagedRange, read_header
from ringbuf import FLAG_UNCHECKED, crc32c
from tests.support.cached_files import cached_bytes, forgets
from tests.support.in_process_worker import InProcessWorker
from tests.support.keyed_logs import EPOCH, CountingFiles, keyed, many_topics, topic_records
from tests.support.logs import DIRECTORY, Written, read_all
from tests.support.simfiles import SimFiles

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "persistence"


Records = dict[str, list[tuple[int, str, int, bytes]]]  # by ring


def tended(runs: int = 60) -> tuple[SimFiles, Log, Records]:
    """A log with footers behind all segments but the last."""
    files, log, written = many_topics(runs, list(range(5000)))
    log.run_maintenance()
    log.prove()
    log.sync()
    return files, log, written


def reader_of(files: SimFiles) -> LogReader:
    reader = LogReader(files, DIRECTORY)
    reader.refresh()
    return reader


def everything(reader: LogReader, written: Records) -> Iterator[object]:
    """Results of all methods of a reader."""
    for name, its in written.items():
        yield reader.epochs(name)
        for offset in (0, 7, len(its) - 3):
            yield topic_records(reader.read(name, EPOCH, offset, 3000))
        for topic in ("t/0", "t/3", "t/none", ""):
            for offset in (0, len(its) // 2):
                yield topic_records(reader.read_topic(name, topic, EPOCH, offset, 1 << 20))
        for time in (0, 1, 77, 150, 5000):
            yield reader.seek_time(name, EPOCH, time)
        yield [it.offset for it in reader.read_at(name, EPOCH, 640, 1)]


def told(reader: LogReader) -> list[object]:
    return [
        (it.base, it.bytes, it.rings, it.first_timestamp_ns, it.last_timestamp_ns) for it in reader.segments()
    ]


def test_all_answers_are_the_same_with_footers_and_without() -> None:
    files, log, written = tended()
    assert [it.indexed for it in reader_of(files).segments()][:-1] == [True] * (len(log.reader.bases()) - 1)
    bare, bare_log, _ = many_topics(60, list(range(5000)))
    bare_log.prove()
    bare_log.sync()
    assert not any(it.indexed for it in reader_of(bare).segments())
    with_footers, without = reader_of(files), reader_of(bare)
    assert list(everything(with_footers, written)) == list(everything(without, written))
    assert told(with_footers) == told(without)
    assert with_footers.damaged == {}


def test_who_has_a_footer_never_reads_the_segment() -> None:
    """One topic of very many: of each sealed segment headers, footer and its records; of the last, all."""
    files = CountingFiles(Random(1))
    log = Log(DIRECTORY, files, segment_bytes=1 << 20, retain_bytes=0)
    log.recover()
    log.join("a-0", EPOCH, 0)
    its: list[tuple[int, str, int, bytes]] = []
    for _ in range(40):
        batch = [(f"t/{(len(its) + n) % 5000}", 1 + len(its) + n, b"x" * 200) for n in range(400)]
        its += keyed(log, "a-0", batch, len(its), 0)
        log.write()
        log.sync()
    log.run_maintenance()
    reader = reader_of(files)
    CountingFiles.read_bytes = 0
    found = topic_records(reader.read_topic("a-0", "t/4321", EPOCH, 0, 1 << 20))
    assert found == [it for it in its if it[1] == "t/4321"]
    first = CountingFiles.read_bytes
    facts = reader.segments()
    assert [it.indexed for it in facts] == [True, True, True, False]
    last = facts[-1].bytes
    assert first < last + 3 * (32 << 10)
    assert reader.seek_time("a-0", EPOCH, 5000) == 4999
    CountingFiles.read_bytes = 0
    assert len(reader.read_topic("a-0", "t/4999", EPOCH, 0, 1 << 20)) == 3
    assert CountingFiles.read_bytes < last + 3 * (24 << 10), "the directory and the table are known by now"
    log.close()


def test_a_segment_that_was_proven_before_it_was_rolled_gets_a_footer() -> None:
    written = Written.empty()
    written.add("a-0", EPOCH, [b"x"])
    written.sync()
    written.log.prove()
    written.log.roll()
    written.add("a-0", EPOCH, [b"y"])
    written.sync()
    written.log.run_maintenance()
    assert [it.indexed for it in written.log.reader.segments()] == [True, False]


def test_each_damaged_byte_of_a_footer_costs_time_and_nothing_else() -> None:
    files, log, written = tended(30)
    expected = list(everything(reader_of(files), written))
    base = log.reader.bases()[0]
    path = f"{DIRECTORY}/{segment_name(base)}"
    end = log.reader.tables.end_of(base)
    assert end is not None
    place = footer.place_of(end)
    data = files.names[path].cache
    random = Random(3)
    for at in range(place, len(data), 3):
        data[at] ^= 1 << (bit := random.randrange(8))
        assert list(everything(reader_of(files), written)) == expected, f"byte {at - place}"
        data[at] ^= 1 << bit


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(0, 2**32))
def test_a_footer_that_is_cut_or_overwritten_is_not_believed(at: int, seed: int) -> None:
    files, log, written = tended(30)
    expected = list(everything(reader_of(files), written))
    base = log.reader.bases()[0]
    data = files.names[f"{DIRECTORY}/{segment_name(base)}"].cache
    place = footer.place_of(log.reader.tables.end_of(base) or 0)
    at = place + at % (len(data) - place)
    if seed % 3 == 0:
        del data[at:]
    else:
        data[at : at + 700] = bytes(700) if seed % 3 == 1 else Random(seed).randbytes(700)
    reader = reader_of(files)
    assert list(everything(reader, written)) == expected
    assert reader.damaged == {}


@pytest.mark.parametrize(
    ("field", "code"),
    [("at", "Q"), ("records", "Q"), ("rows", "I"), ("rows_bytes", "I"), ("marks", "I"), ("topics", "I")],
)
def test_a_footer_with_a_section_outside_it_is_not_believed(field: str, code: str) -> None:
    """With valid checksums."""
    files, log, written = tended(30)
    expected = list(everything(reader_of(files), written))
    base = log.reader.bases()[0]
    data = files.names[f"{DIRECTORY}/{segment_name(base)}"].cache
    place = footer.place_of(log.reader.tables.end_of(base) or 0)
    groups, catalogue_bytes = struct.unpack_from("<II", data, place + 40)
    at = {"records": 24, "at": 56, "rows": 64, "rows_bytes": 68, "marks": 72, "topics": 76}[field]
    listed = place + 64
    end = listed + catalogue_bytes + 88 * groups
    for value in {"Q": (1 << 63, (1 << 64) - 1), "I": (1 << 31, (1 << 32) - 1)}[code]:
        struct.pack_into(f"<{code}", data, listed + catalogue_bytes + at, value)
        struct.pack_into("<I", data, place + 48, crc32c(bytes(data[listed:end])))
        struct.pack_into("<I", data, place + 60, crc32c(bytes(data[place : place + 60])))
        assert reader_of(files).segments()[0].indexed is False
        assert list(everything(reader_of(files), written)) == expected


def test_a_footer_of_an_earlier_life_of_the_file_is_foreign() -> None:
    files, log, _ = tended(30)
    base = log.reader.bases()[0]
    path = f"{DIRECTORY}/{segment_name(base)}"
    end = log.reader.tables.end_of(base)
    assert end is not None
    handle = files.open(path, create=True)
    header = read_header(files, handle)
    assert footer.read(files, handle, header, end) is not None
    for other in (
        header._replace(salt=header.salt + 1),
        header._replace(base_position=header.base_position + 4096),
    ):
        assert footer.read(files, handle, other, end) is None
        assert footer.found(files, handle, other, end) == b""
    assert footer.read(files, handle, header, end - 4096) is None
    newer = bytearray(files.read(handle, 64, footer.place_of(end)))
    newer[8] = footer.FOOTER_VERSION + 1
    from ringbuf import crc32c

    newer[60:64] = crc32c(bytes(newer[:60])).to_bytes(4, "little")
    files.pwritev(handle, [newer], footer.place_of(end))
    assert footer.read(files, handle, header, end) is None


def test_the_log_itself_is_not_touched_and_recovery_does_not_mind() -> None:
    plain, plain_log, written = many_topics(60, list(range(5000)))
    files, log, _ = tended()
    for base in log.reader.bases()[:-1]:
        path = f"{DIRECTORY}/{segment_name(base)}"
        end = log.reader.tables.end_of(base)
        assert files.names[path].cache[:end] == plain.names[path].cache[:end]
    del plain_log
    later = Log(DIRECTORY, files.kill(), segment_bytes=8192, retain_bytes=0)
    report = later.recover()
    assert (report.damage, report.torn, report.notes) == ((), None, ())
    for name, its in written.items():
        assert len(read_all(later, name, EPOCH)) == len(its)


def test_a_reader_sees_a_footer_that_the_writer_has_written_since() -> None:
    files, log, _ = many_topics(30, list(range(5000)))
    reader = reader_of(files)
    assert not any(segment.indexed for segment in reader.segments())
    log.run_maintenance()
    reader.refresh()
    assert reader.segments()[-2].indexed


def test_a_segment_whose_end_is_not_known_waits_for_its_footer() -> None:
    """Behind too early an end a footer would be written over records."""
    files, log, _ = many_topics(60, list(range(5000)))
    last = log.reader.bases()[-1]
    assert log.reader.tables.end_of(last) is None
    before = bytes(files.names[f"{DIRECTORY}/{segment_name(last)}"].cache)
    log._indexer.add(last)
    log._indexer.write(log.reader)
    assert bytes(files.names[f"{DIRECTORY}/{segment_name(last)}"].cache) == before
    for end in range(4096 + 32, len(before), 32):
        handle = files.open(f"{DIRECTORY}/{segment_name(last)}")
        made = footer.build(files, handle, segment_name(last), end)
        assert made is None or not any(before[end : end + 32])
        files.close(handle)


def test_footers_beside_a_busy_log_take_a_fiftieth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The latest first: the others may have gone before it is their turn."""
    files, log, _ = many_topics(60, list(range(5000)))
    *bases, _last = log.reader.bases()
    reader, now = reader_of(files), 0.0
    asked: list[int] = []

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    indexer = FooterBuilder(files, DIRECTORY, clock)
    monkeypatch.setattr(indexer, "_write", lambda reader, base, end: asked.append(base))
    for base in bases:
        indexer.add(base)
    assert indexer.write(reader, paced=True) == REST_SHARE - 1  # one second of work, one to find out
    assert indexer.write(reader, paced=True)
    assert asked == bases[:-2:-1]
    now += REST_SHARE
    assert indexer.write(reader, paced=True)
    assert asked == bases[:-3:-1]
    assert indexer.write(reader) is None
    assert asked == bases[::-1]


def test_a_damaged_segment_gets_none() -> None:
    files, log, _ = many_topics(60, list(range(5000)))
    base = log.reader.bases()[0]
    files.flip(f"{DIRECTORY}/{segment_name(base)}", 8 * 6000)
    end = log.reader.tables.end_of(base)
    assert end is not None
    log._indexer.add(base)
    log._indexer.write(log.reader)
    facts = reader_of(files).segments()[0]
    assert (facts.indexed, len(facts.damage)) == (False, 1)


def real_sizes(files: SimFiles, bases: list[int]) -> list[int]:
    return [len(files.names[f"{DIRECTORY}/{segment_name(base)}"].cache) for base in bases]


@pytest.mark.parametrize("seed", range(4))
def test_what_is_called_flushed_is_there_after_a_power_cut(seed: int) -> None:
    files, log, _ = many_topics(60, list(range(5000)))
    log.run_maintenance()
    flushed = [it.base for it in log.reader.segments() if it.state == "flushed"]
    assert flushed == log.reader.bases()[:-1]
    after = reader_of(files.crash(Random(seed)))
    assert [it.base for it in after.segments() if it.state == "flushed"] == flushed


def test_a_footer_that_the_disk_does_not_keep_is_not_to_be_seen() -> None:
    files, log, written = many_topics(60, list(range(5000)))
    expected = list(everything(reader_of(files), written))

    def refuse(operation: str, path: str) -> None:
        if operation == "fdatasync" and path.endswith(".log"):
            raise OSError(errno.EIO, "injected")

    files.hook = refuse
    log.run_maintenance()
    files.hook = None
    assert {it.state for it in reader_of(files).segments()} == {"sealed", "active"}
    assert list(everything(reader_of(files), written)) == expected


def test_sizes_count_footers() -> None:
    files, log, _ = many_topics(60, list(range(5000)))
    maintenance = Maintenance(log, MaintenanceRules(scrub_bytes_per_s=0), InProcessWorker(files))
    before = [it.file_bytes for it in maintenance.segments()]
    bases = log.reader.bases()
    log.run_maintenance()
    sizes = real_sizes(files, bases)
    assert min(map(sub, sizes[:-1], before[:-1])) > 0
    assert [log.sealed()[base] for base in bases[:-1]] == sizes[:-1]
    assert [it.file_bytes for it in maintenance.segments()] == sizes
    assert {it.state for it in maintenance.segments()[:-1]} == {"flushed"}


def test_who_was_killed_before_a_footer_was_written_has_it_after_the_next_start() -> None:
    files, log, _ = many_topics(60, list(range(5000)))
    recent = log.reader.bases()[-4:]
    later = Log(DIRECTORY, files.kill(), segment_bytes=8192, retain_bytes=0)
    later.recover()
    later.run_maintenance()
    assert [it.base for it in later.reader.segments() if it.state == "flushed"] == recent


def test_a_segment_that_has_its_footer_takes_no_memory(tmp_path: Path) -> None:
    if not forgets(tmp_path):
        pytest.skip("this file system keeps everything in memory")
    with Log(tmp_path, segment_bytes=256 << 10, retain_bytes=0, direct=False) as log:
        log.recover()
        log.join("a-0", EPOCH, 0)
        for number in range(0, 400, 4):
            keyed(log, "a-0", [("t", n, bytes(4000)) for n in range(number, number + 4)], number, 0)
            log.write()
        log.sync()
        first = tmp_path / segment_name(log.reader.bases()[0])
        assert cached_bytes(first) > 128 << 10
        log.run_maintenance()
        assert log.reader.segments()[0].indexed
    assert cached_bytes(first) <= 64 << 10  # Its table has been looked at since.


def test_a_segment_removed_while_its_footer_is_made_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, log, _ = many_topics(60, list(range(5000)))
    base = log.reader.bases()[0]
    examine = footer.examine
    written: list[int] = []

    def removes(*arguments: object) -> object:
        found = examine(*arguments)  # type: ignore[arg-type]
        log.remove(base)
        return found

    monkeypatch.setattr(footer, "examine", removes)
    monkeypatch.setattr(footer, "put", lambda *arguments: written.append(arguments[2]))
    log._indexer.add(base)
    log._indexer.write(log.reader)
    assert written == []


@pytest.mark.parametrize("error", [FileNotFoundError(errno.ENOENT, "gone"), FormatError("used again")])
def test_a_segment_removed_before_its_footer_is_made_is_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    _, log, _ = many_topics(60, list(range(5000)))
    base = log.reader.bases()[0]

    def fails(*_: object) -> object:
        log.remove(base)
        log._indexer.add(log.reader.bases()[-1])  # as the log's thread does at any time
        raise error

    monkeypatch.setattr(footer, "examine", fails)
    log._indexer.add(base)
    log._indexer.write(log.reader)
    assert not caplog.records


def test_a_segment_removed_while_it_is_examined_is_not_damaged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its file is in use for another segment then."""
    _, log, _ = many_topics(60, list(range(5000)))
    base = log.reader.bases()[0]
    examine = footer.examine

    def removes(*arguments: object) -> object:
        table, made = examine(*arguments)  # type: ignore[arg-type]
        log.remove(base)
        log._indexer.add(log.reader.bases()[-1])
        table.damage.append(DamagedRange("segment", 0, 64, "", 0))
        return table, made

    monkeypatch.setattr(footer, "examine", removes)
    log._indexer.add(base)
    log._indexer.write(log.reader)
    assert not log.reader.damaged
    assert not caplog.records


def test_records_filled_in_place_are_found_by_their_topic() -> None:
    written = Written.empty(segment_bytes=16384)
    for n in range(6):
        written.add("a-0", 7, [b"small"] * 2)
        written.add_in_place("a-0", 7, bytes([n]) * 5000)
        written.sync()
    written.log.prove()
    written.log.sync()
    written.log.run_maintenance()
    reader = reader_of(written.files)
    assert reader.segments()[0].indexed
    found = reader.read_topic("a-0", "a-0", 7, 0, 1 << 20)
    assert sum(it.count for it in found) == sum(map(len, written.records.values()))
    place = bytes(written.files.names[f"{DIRECTORY}/{segment_name(0)}"].cache).index(bytes(5000))
    written.files.flip(f"{DIRECTORY}/{segment_name(0)}", 8 * place)
    left = reader.read_topic("a-0", "a-0", 7, 0, 1 << 20)
    assert sum(it.count for it in left) == sum(map(len, written.records.values())) - 1
    assert len(reader.damaged) == 1
    assert FLAG_UNCHECKED


def golden_footer() -> bytes:
    """Of the golden segment."""
    data = (GOLDEN / "segment-v1.log").read_bytes()
    files = SimFiles(Random(0))
    handle = files.open("/x", create=True)
    files.pwritev(handle, [data], 0)
    made = footer.build(files, handle, "x", len(data))
    assert made is not None
    return made


def test_a_footer_is_made_as_it_always_was() -> None:
    assert golden_footer() == (GOLDEN / "footer-v1.bin").read_bytes()


def test_a_footer_is_read_as_it_always_was() -> None:
    data = (GOLDEN / "segment-v1.log").read_bytes()
    files = SimFiles(Random(0))
    handle = files.open("/x", create=True)
    files.pwritev(handle, [data], 0)
    files.pwritev(handle, [(GOLDEN / "footer-v1.bin").read_bytes()], footer.place_of(len(data)))
    found = footer.read(files, handle, SegmentHeader.unpack(data), len(data))
    assert found is not None
    assert [(it.first_offset, it.end_offset, it.rows, it.topics) for it in found.groups.values()] == [
        (0, 1, 1, 1),
        (41, 45, 2, 3),
    ]
    table = found.table(files, handle, "x")
    assert sum(len(rows) for rows in table.rings.values()) == 3


if __name__ == "__main__" and not (GOLDEN / "footer-v1.bin").exists():
    (GOLDEN / "footer-v1.bin").write_bytes(golden_footer())
