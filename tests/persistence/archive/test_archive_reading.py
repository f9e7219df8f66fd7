"""A log of which a part is archived reads as if nothing had happened."""

from collections.abc import Callable

import pytest

from persistence import LogReader
from persistence.archive import Archive, archive_name, archive_segment
from persistence.maintenance.scrub import scrub_archive
from persistence.segment.format import HEADER_PAGE_BYTES, base_of_name, segment_name
from tests.support.archives import SMALL, ends_of
from tests.support.keyed_logs import many_topics
from tests.support.logs import DIRECTORY, Written, make_log, read_all, recovered, typical
from tests.support.simfiles import SimFiles

TIME_NS = 1_000  # of the first record: tests/support/logs.py


def archive_first(files: SimFiles, count: int) -> None:
    """Archives the first segments of a closed log."""
    for base, end in list(ends_of(files).items())[:count]:
        archive_segment(files, DIRECTORY, base, end, group_bytes=SMALL)
        files.unlink(f"{DIRECTORY}/{segment_name(base)}")


def half_archived(count: int = 2) -> tuple[Written, LogReader, LogReader]:
    """A closed log, its reader while all of it was there, and one after some segments were archived."""
    written = typical()
    before = LogReader(written.files.kill(), DIRECTORY)
    before.refresh()
    archive_first(written.files, count)
    after = LogReader(written.files, DIRECTORY)
    after.refresh()
    return written, before, after


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("limit_bytes", [1, 700, 1 << 20])
def test_records_are_read_across_archives_and_segments(count: int, limit_bytes: int) -> None:
    written, _, after = half_archived(count)
    for (name, epoch), its in written.records.items():
        log = make_log(written.files)
        log.reader = after
        assert read_all(log, name, epoch, limit_bytes) == its
        for offset in its:
            found = after.read(name, epoch, offset, limit_bytes)
            assert found[0].offset == offset
            assert bytes(found[0].view).startswith(its[offset])


def test_positions_times_and_topics_are_found_as_before() -> None:
    written, before, after = half_archived()
    for (name, epoch), its in written.records.items():
        assert after.epochs(name) == before.epochs(name)
        for offset in its:
            position = before.read(name, epoch, offset, 1)[0].position
            found = after.read_at(name, epoch, position + 31, 1)[0]
            assert found.position <= position < found.position + len(found.view)
            assert after.seek_time(name, epoch, TIME_NS + offset) == offset
        assert after.seek_time(name, epoch, TIME_NS + len(its)) == len(its)
        assert _topic(after, name, epoch) == _topic(before, name, epoch) == its
        assert after.read_topic(name, "other", epoch, 0, 1 << 20) == []
    assert after.ends() == before.ends()


def _topic(reader: LogReader, name: str, epoch: int) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    offset = 0
    while ranges := reader.read_topic(name, name, epoch, offset, 500):
        for it in ranges:
            assert it.count == 1 or len(it.view) > 32
            for number in range(it.offset, it.offset + it.count):
                (one, *_) = reader.read(name, epoch, number, 1)
                found[number] = bytes(one.view[: int.from_bytes(one.view[:4], "little")])
            offset = it.offset + it.count
    return found


def test_what_is_archived_is_shown_with_the_segments() -> None:
    _, before, after = half_archived()
    was, now = before.segments(), after.segments()
    assert [it.state for it in now] == ["archived", "archived", "active"]
    for old, new in zip(was, now, strict=True):
        assert (old.base, old.bytes, old.records) == (new.base, new.bytes, new.records)
        for ring, archived in zip(old.rings, new.rings, strict=True):
            assert (ring.name, ring.epoch, ring.bytes) == (archived.name, archived.epoch, archived.bytes)
            assert archived.first_timestamp_ns <= ring.first_timestamp_ns
            assert archived.last_timestamp_ns >= ring.last_timestamp_ns


def test_another_process_sees_what_is_archived_while_it_looks() -> None:
    written = typical()
    reader = LogReader(written.files, DIRECTORY)
    reader.refresh()
    its = written.records["a-0", 7]
    assert reader.read("a-0", 7, 0, 1)[0].offset == 0
    archive_first(written.files, 1)
    reader.refresh()
    log = make_log(written.files)
    log.reader = reader
    assert read_all(log, "a-0", 7) == its
    assert reader.archive.reads > 0


def test_the_log_goes_on_where_everything_was_archived_but_the_last_segment() -> None:
    written = typical()
    archive_first(written.files, 2)
    log, report = recovered(written.files, segment_bytes=9216)
    assert report.damage == ()
    assert log.ends() == {
        "a-0": (7, len(written.records["a-0", 7])),
        "b-0": (7, len(written.records["b-0", 7])),
    }
    assert read_all(log, "a-0", 7) == written.records["a-0", 7]
    assert [base_of_name(name) for name in sorted(written.files.listdir(DIRECTORY))].count(None) >= 2
    log.close()


def test_a_log_of_which_every_segment_was_archived_begins_the_next_one_behind_the_archives() -> None:
    written = typical()
    base, length = list(ends_of(written.files).items())[-1]
    archive_first(written.files, 3)
    log, report = recovered(written.files)
    assert report.segments == 0
    log.join("a-0", 8, 0)
    log.write()
    assert log.reader.bases() == [base + length]
    log.close()


def test_rings_of_which_every_segment_was_archived_continue_behind_the_archives() -> None:
    written = typical()
    archive_first(written.files, 3)
    written.files.unlink(f"{DIRECTORY}/{archive_name(0)}")  # retention
    for _ in range(2):  # the second start finds a segment without records of these rings
        log, _ = recovered(written.files)
        ends = {name: (epoch, len(its)) for (name, epoch), its in written.records.items()}
        assert {name: log.ends()[name] for name in ends} == ends
        log.join("c-0", 8, 0)
        log.write()
        log.close()


@pytest.mark.parametrize("count", [1, 2])
def test_rings_continue_behind_the_archives_if_the_last_segment_has_no_header(count: int) -> None:
    written = typical()
    archive_first(written.files, count)
    ends = {key: archived_end(written.files, *key) for key in written.records}
    for name in written.files.listdir(DIRECTORY):
        if base_of_name(name) is not None:
            written.files.flip(f"{DIRECTORY}/{name}", 8 * 20)
            written.files.flip(f"{DIRECTORY}/{name}", 8 * (HEADER_PAGE_BYTES // 2 + 20))
    log, report = recovered(written.files)
    assert report.notes
    assert log.ends() == {name: (epoch, ends[name, epoch]) for name, epoch in ends}
    log.close()


def archived_end(files: SimFiles, name: str, epoch: int) -> int:
    """Offset after the last archived record of a ring."""
    return Archive(files, DIRECTORY).end_offset(name, epoch)


def test_a_new_segment_behind_archives_moves_no_end_of_the_segment_before_them() -> None:
    written = typical()
    ends = ends_of(written.files)
    first, *later = ends
    for base in later:
        archive_segment(written.files, DIRECTORY, base, ends[base], group_bytes=SMALL)
        written.files.unlink(f"{DIRECTORY}/{segment_name(base)}")
    log, _ = recovered(written.files)
    log.join("a-0", 8, 0)
    log.write()
    assert log.reader.bases() == [first, later[-1] + ends[later[-1]]]
    assert log.reader.tables.end_of(first) == ends[first]
    log.close()


def test_a_segment_before_an_archive_ends_where_the_archive_begins() -> None:
    """Its footer behind that end is not damage, also if a start must read the segment."""
    files, log, _ = many_topics(60, list(range(5000)))
    log.run_maintenance()
    log.close()
    first, second, *_ = ends_of(files)
    archive_segment(files, DIRECTORY, second, ends_of(files)[second], group_bytes=SMALL)
    files.unlink(f"{DIRECTORY}/{segment_name(second)}")
    for base in ends_of(files):
        if base > first:
            files.flip(f"{DIRECTORY}/{segment_name(base)}", 8 * (HEADER_PAGE_BYTES + 40))
    _, report = recovered(files)
    assert segment_name(first) not in {damage.segment for damage in report.damage}


def test_what_is_archived_while_it_is_looked_for_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looked for in the archives, which do not have it yet, then in the segments, which no longer do."""
    written = typical()
    reader = LogReader(written.files, DIRECTORY)
    reader.refresh()
    first_offset, archive = reader.archive.first_offset, reader.archive
    (base, end), *_ = ends_of(written.files).items()

    def meanwhile(ring_name: str, epoch: int, offset: int) -> int | None:
        found = first_offset(ring_name, epoch, offset)
        if base in reader.bases():
            archive_segment(written.files, DIRECTORY, base, end, group_bytes=SMALL)
            archive.add(base)
            reader.tables.remove(base)
        return found

    monkeypatch.setattr(archive, "first_offset", meanwhile)
    assert reader.read("a-0", 7, 0, 1)[0].offset == 0


@pytest.mark.parametrize("was_read", [False, True])
def test_another_process_s_archive_is_found_when_the_segment_has_gone(was_read: bool) -> None:
    written = typical()
    reader = LogReader(written.files, DIRECTORY)
    reader.refresh()
    if was_read:  # so the reader knows where the records were
        assert reader.read("a-0", 7, 0, 1)[0].offset == 0
    archive_first(written.files, 1)
    assert reader.read("a-0", 7, 0, 1)[0].offset == 0


def test_every_question_finds_another_process_s_archive_when_the_segment_has_gone() -> None:
    written, before, _ = half_archived(0)
    questions: list[Callable[[LogReader], object]] = [
        lambda reader: [info.rings for info in reader.segments()],
        lambda reader: reader.epochs("a-0"),
        lambda reader: reader.seek_time("a-0", 7, TIME_NS),
        lambda reader: reader.read_at("a-0", 7, 0, 1)[0].offset,
        lambda reader: _topic(reader, "a-0", 7),
    ]
    readers = [LogReader(written.files, DIRECTORY) for _ in questions]
    for reader in readers:
        reader.refresh()
    archive_first(written.files, 1)
    for ask, reader in zip(questions, readers, strict=True):
        assert ask(reader) == ask(before)
    assert [info.state for info in readers[0].segments()][:2] == ["archived", "sealed"]


def test_records_behind_damaged_archives_are_still_read() -> None:
    """The last row group of the last archive is damaged: the segment behind it has more."""
    written, _, after = half_archived()
    its = written.records["a-0", 7]
    (last, *_) = after.archive.all()[::-1]
    *_, group = last.groups("a-0", 7)
    written.files.flip(last.path, 8 * (group.place + group.length // 2))
    log = make_log(written.files)
    log.reader = after
    lost = range(group.first_offset, group.end_offset)
    assert group.end_offset < len(its)
    assert read_all(log, "a-0", 7) == {offset: data for offset, data in its.items() if offset not in lost}
    assert after.read("a-0", 7, lost[0], 1)[0].offset == group.end_offset


@pytest.mark.parametrize("limit_bytes", [1, 1 << 16])
def test_records_of_a_segment_between_two_damaged_archives_are_read(limit_bytes: int) -> None:
    """The first and the third segment are archived, and both archives are damaged next to the second."""
    written = Written.empty(segment_bytes=20_000)
    for _ in range(24):
        written.add("a-0", 7, [bytes(800)] * 3)
        written.sync()
    written.log.close()
    ends = ends_of(written.files)
    first, middle, third, *_ = ends
    for base in (first, third):
        archive_segment(written.files, DIRECTORY, base, ends[base], group_bytes=1)
        written.files.unlink(f"{DIRECTORY}/{segment_name(base)}")
    reader = LogReader(written.files, DIRECTORY)
    reader.refresh()
    assert reader.bases()[0] == middle
    before, after = reader.archive.all()
    groups = before.groups("a-0", 7)[-1], after.groups("a-0", 7)[0]
    for archive, group in zip((before, after), groups, strict=True):
        written.files.flip(archive.path, 8 * (group.place + group.length // 2))
    lost = {offset for it in groups for offset in range(it.first_offset, it.end_offset)}
    its = {offset: data for offset, data in written.records["a-0", 7].items() if offset not in lost}
    assert len(after.groups("a-0", 7)) > 1, "the second archive has undamaged records"
    assert any(groups[0].end_offset <= offset < groups[1].first_offset for offset in its)
    assert read_all(reader, "a-0", 7, limit_bytes) == its
    assert reader.read("a-0", 7, groups[0].first_offset, 1)[0].offset == groups[0].end_offset
    assert reader.read("a-0", 7, groups[1].first_offset, 1)[0].offset == groups[1].end_offset


def test_damage_of_an_archive_is_logged_once_with_its_ring_and_offsets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Also if a reader that leaves out what the disk cannot read meets it, or a scrub."""
    written, _, reader = half_archived()
    archive = reader.archive.all()[-1]
    group = archive.groups("a-0", 7)[-1]
    written.files.flip(archive.path, 8 * (group.place + group.length // 2))
    for it in (reader, reader, reader.salvaging()):
        it.read("a-0", 7, group.first_offset, 1)
    reader.archive.add_damage(archive.base, scrub_archive(written.files, DIRECTORY, archive.base).parts)
    (line,) = caplog.messages
    assert f"archive={archive.path}" in line
    assert f"(ring a-0, epoch 7, offsets {group.first_offset} to {group.end_offset - 1})" in line


def test_an_archive_without_a_valid_footer_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    written, _, reader = half_archived()
    archive = reader.archive.all()[0]
    written.files.flip(archive.path, 8 * archive.size - 1)
    damaged = LogReader(written.files, DIRECTORY)
    for it in (damaged, damaged, damaged.salvaging()):
        it.refresh()
        it.read("a-0", 7, 0, 1)
    damaged.archive.add_damage(archive.base, scrub_archive(written.files, DIRECTORY, archive.base).parts)
    (line,) = caplog.messages
    assert f"archive={archive.path} part='footer'" in line


def test_damage_of_an_archive_that_was_made_again_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    written, _, reader = half_archived()
    archive = reader.archive.all()[0]
    group = archive.groups("a-0", 7)[0]
    written.files.flip(archive.path, 8 * (group.place + group.length // 2))
    for _ in range(2):
        reader.read("a-0", 7, group.first_offset, 1)
        reader.archive.add(archive.base)
    assert len(caplog.messages) == 2
