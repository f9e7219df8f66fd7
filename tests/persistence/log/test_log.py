"""The log as a directory of segments: rolling, reading, retention, and what becomes of rings."""

import errno
from itertools import pairwise
from random import Random

import pytest

from persistence import LogClosed, LogReader
from persistence.read.log_reader import RingEnd
from persistence.read.segment_tables import TABLES_MAX
from persistence.segment.extent_table import ExtentRows, Row
from persistence.segment.format import segment_name
from tests.support.logs import DIRECTORY, Written, make_log, read_all, recovered
from tests.support.simfiles import SimFiles


def filled(*, runs: int = 12, **options: int) -> Written:
    """A log of several segments: runs of ring a-0, of 3 records of 500 bytes each."""
    written = Written.empty(segment_bytes=8192, **options)
    for i in range(runs):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
    return written


def test_a_full_segment_is_followed_by_one_that_begins_where_it_ends() -> None:
    written = filled()
    bases = written.log.reader.bases()
    assert len(bases) == 6
    assert written.log.stats.segments_begun == 6
    for base, following in pairwise(bases):
        assert following - base <= 8192
    assert read_all(written.log, "a-0", 7) == written.records["a-0", 7]
    assert read_all(recovered(written.files.kill())[0], "a-0", 7) == written.records["a-0", 7]


def test_records_synced_before_another_ring_is_dropped_keep_their_ring_in_the_catalogue() -> None:
    """The log has not taken the results of the sync yet."""
    written = Written.empty()
    written.add("a-0", 7, [b"synced"])
    written.log.write()
    written.log.commit.sync()
    written.add("b-0", 7, [b"dropped"])
    written.log._give_up()
    written.log.drop(written.log._ids["b-0"])
    assert written.log.ends()["a-0"] == (7, 1)
    written.add("a-0", 7, [b"later"])
    written.sync()
    for base in written.log.reader.bases()[:1]:  # the next segment names the ring, too
        written.files.unlink(f"{DIRECTORY}/{segment_name(base)}")
    log, report = recovered(written.files.kill())
    assert report.rings["a-0"] == (7, 2)
    assert [*read_all(log, "a-0", 7)] == [1]


def test_a_record_larger_than_a_segment_gets_one_of_its_own() -> None:
    written = Written.empty(segment_bytes=8192)
    written.add("a-0", 7, [b"small"])
    written.add("a-0", 7, [bytes(50_000)])
    written.add("a-0", 7, [b"small"])
    written.sync()
    assert len(written.log.reader.bases()) == 3
    assert read_all(written.log, "a-0", 7) == written.records["a-0", 7]


@pytest.mark.parametrize("limit_bytes", [1, 2000, 1 << 20])
def test_reading_begins_at_the_record_that_was_asked_for(limit_bytes: int) -> None:
    written = filled()
    its = written.records["a-0", 7]
    for offset in range(len(its)):
        found = written.log.read("a-0", 7, offset, limit_bytes)
        assert found[0].offset == offset
        assert bytes(found[0].view).startswith(its[offset])
        assert found[0].first_timestamp_ns == 1_000 + offset
        assert found[-1].last_timestamp_ns == 1_000 + found[-1].offset + found[-1].count - 1
        assert sum(len(it.view) for it in found) < limit_bytes + 3 * 600
        assert found[0].position == sum(
            len(it) + -len(it) % 32 for number, it in its.items() if number < offset
        )
    assert written.log.read("a-0", 7, len(its), limit_bytes) == []


def test_what_the_log_does_not_have_is_not_read() -> None:
    written = filled()
    assert written.log.read("a-0", 8, 0, 1 << 20) == []
    assert written.log.read("b-0", 7, 0, 1 << 20) == []
    assert written.log.epochs("b-0") == []


def test_what_is_not_durable_is_not_read() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"])
    written.log.write()
    assert written.log.read("a-0", 7, 0, 1 << 20) == []
    assert written.log.unsynced_bytes > 0
    written.log.sync()
    assert len(written.log.read("a-0", 7, 0, 1 << 20)) == 1
    assert written.log.unsynced_bytes == 0


def test_a_gap_that_was_announced_is_a_gap_when_read() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"] * 3)
    written.add("a-0", 7, [b"y"] * 3, first=10)
    written.sync()
    assert sorted(read_all(written.log, "a-0", 7)) == [0, 1, 2, 10, 11, 12]
    assert written.log.read("a-0", 7, 5, 1 << 20)[0].offset == 10
    assert read_all(recovered(written.files.kill())[0], "a-0", 7) == written.records["a-0", 7]


def test_epochs_of_a_ring_follow_each_other() -> None:
    written = filled()
    written.add("b-0", 3, [b"beside"])
    written.add("a-0", 9, [b"after the power cut"] * 2)
    written.sync()
    for log in (written.log, recovered(written.files.kill(), segment_bytes=8192)[0]):
        assert log.epochs("a-0") == [(7, 0, 36), (9, 36, 38)]
        assert log.ends() == {"a-0": (9, 38), "b-0": (3, 1)}
        assert read_all(log, "a-0", 9) == written.records["a-0", 9]


def test_the_oldest_segments_go_and_their_room_is_used_again() -> None:
    written = Written.empty(segment_bytes=8192, retain_bytes=3 << 16)
    removed = []
    for i in range(40):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
        if written.log.needs_maintenance:
            written.log.run_maintenance()
        removed.append(written.log.stats.segments_removed)
    assert removed[-1] > 10
    assert len(written.log.reader.bases()) == 3
    files = [name for name in written.files.listdir(DIRECTORY) if name != "LOCK"]
    assert len(files) == 4
    epochs = written.log.epochs("a-0")
    first = epochs[0].first_offset
    assert first > 60
    its = written.records["a-0", 7]
    assert read_all(written.log, "a-0", 7) == {offset: its[offset] for offset in range(first, 120)}
    assert written.log.read("a-0", 7, 0, 1)[0].offset == first
    assert read_all(recovered(written.files.kill())[0], "a-0", 7) == {o: its[o] for o in range(first, 120)}


def test_a_ring_that_left_is_forgotten_with_its_last_record() -> None:
    written = Written.empty(segment_bytes=8192, retain_bytes=3 << 16)
    written.add("video@cam", 7, [b"x"])
    written.log.leave("video@cam")
    for i in range(40):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
        written.log.run_maintenance()
        if i == 1:
            assert "video@cam" in written.log.ends()
    assert set(written.log.ends()) == {"a-0"}


def test_a_ring_that_left_between_two_segments_is_remembered_with_its_records() -> None:
    written = filled()
    written.log.remove(0)
    written.add("video@cam", 7, [b"x"])
    written.sync()
    written.log.roll()
    written.log.leave("video@cam")
    written.add("a-0", 7, [b"next"])
    written.sync()
    for log in (written.log, recovered(written.files.kill())[0]):
        assert log.ends()["video@cam"] == (7, 1)
        assert read_all(log, "video@cam", 7) == written.records["video@cam", 7]


def test_a_quiet_ring_that_stays_is_remembered_without_a_record() -> None:
    written = Written.empty(segment_bytes=8192, retain_bytes=3 << 16)
    written.add("quiet-0", 7, [b"x"])
    for i in range(40):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
        written.log.run_maintenance()
    assert written.log.ends()["quiet-0"] == (7, 1)
    assert recovered(written.files.kill())[0].ends()["quiet-0"] == (7, 1)
    assert written.log.read("quiet-0", 7, 0, 1) == []


def test_each_sealed_segment_is_told_of_once_and_only_when_it_is_whole() -> None:
    written = Written.empty(segment_bytes=8192)
    told: dict[int, bytes] = {}

    def note(base: int) -> None:
        assert base not in told
        told[base] = bytes(written.files.names[f"{DIRECTORY}/{base:020d}.log"].disk)

    def fail(base: int) -> None:
        raise OSError(errno.EIO, "injected")

    written.log.on_sealed[:] = [fail, note]
    for i in range(12):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
        if i % 3 == 0:
            written.log.run_maintenance()
    written.log.run_maintenance()
    bases = written.log.reader.bases()
    assert list(told) == bases[:-1] == sorted(written.log.sealed())
    for base, data in told.items():
        assert bytes(written.files.names[f"{DIRECTORY}/{base:020d}.log"].disk) == data
    log, _ = recovered(written.files.kill(), segment_bytes=8192)
    again: list[int] = []
    log.on_sealed[:] = [again.append]
    log.run_maintenance()
    assert again == bases[-4:]


def test_a_segment_that_is_removed_is_gone_and_the_others_stay() -> None:
    written = filled(runs=20)
    first, second, *_, last = written.log.reader.bases()
    for base in (second, first, first, last):  # Twice the same, and the one that is being written: nothing.
        written.log.remove(base)
    bases = written.log.reader.bases()
    assert first not in bases
    assert second not in bases
    assert last in bases
    assert written.log.stats.segments_removed == 2
    its = written.records["a-0", 7]
    start = written.log.epochs("a-0")[0].first_offset
    assert start > 0
    expected = {offset: data for offset, data in its.items() if offset >= start}
    assert read_all(written.log, "a-0", 7) == expected
    assert read_all(recovered(written.files.kill(), segment_bytes=8192)[0], "a-0", 7) == expected


def test_a_reader_of_another_process_sees_what_is_proven() -> None:
    written = Written.empty(segment_bytes=8192)
    reader = LogReader(written.files, DIRECTORY)
    reader.refresh()
    assert reader.ends() == {}
    written.add("a-0", 7, [b"first"])
    written.sync()
    reader.refresh()
    assert reader.read("a-0", 7, 0, 1 << 20) == []  # Nothing behind it says yet that it is durable.
    written.log.prove()
    reader.refresh()
    assert len(reader.read("a-0", 7, 0, 1 << 20)) == 1
    for i in range(12):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
        reader.refresh()
    written.log.close()
    reader.refresh()
    assert reader.epochs("a-0") == [(7, 0, 37)]
    assert reader.ends() == {"a-0": (7, 37)}
    found, offset = {}, 0
    while ranges := reader.read("a-0", 7, offset, 4000):
        offset = ranges[-1].offset + ranges[-1].count
        found.update({it.offset: it.count for it in ranges})
    assert sum(found.values()) == 37


def test_a_reader_of_another_process_survives_retention() -> None:
    """The file that it knows has been used again: that is no damage, and nothing of it is read."""
    written = Written.empty(segment_bytes=8192, retain_bytes=3 << 16)
    reader = LogReader(written.files, DIRECTORY)
    for i in range(6):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
        if written.log.needs_maintenance:
            written.log.run_maintenance()
    reader.refresh()
    assert reader.read("a-0", 7, 0, 1)
    for i in range(30):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
        written.log.run_maintenance()
        found = reader.read("a-0", 7, 0, 1 << 20)
        assert [
            it for it in found if not bytes(it.view).startswith(written.records["a-0", 7][it.offset])
        ] == []
    reader.refresh()
    assert reader.damaged == {}
    first = reader.epochs("a-0")[0].first_offset
    assert reader.read("a-0", 7, 0, 1)[0].offset == first > 0


def test_a_segment_used_again_while_it_is_read_is_gone_and_not_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A reader of another process has opened the file; before it reads, the file gets another life."""
    written = Written.empty(segment_bytes=8192, retain_bytes=3 << 16)

    def go_on(runs: int) -> None:
        for i in range(runs):
            written.add("a-0", 7, [bytes([i]) * 500] * 3)
            written.sync()
            if written.log.needs_maintenance:
                written.log.run_maintenance()

    go_on(20)
    reader = LogReader(written.files, DIRECTORY)
    reader.refresh()
    first = reader.epochs("a-0")[0].first_offset
    assert reader.read("a-0", 7, first, 1)
    read, once = written.files.read, iter([40])

    def late(handle: int, length: int, position: int) -> bytes:
        go_on(next(once, 0))
        return read(handle, length, position)

    monkeypatch.setattr(written.files, "read", late)
    found = reader.read("a-0", 7, first, 1)
    assert reader.damaged == {}
    assert [it.offset for it in found if it.offset == first] == []
    assert all(bytes(it.view).startswith(written.records["a-0", 7][it.offset]) for it in found)


def test_tables_of_old_segments_are_let_go_and_read_again() -> None:
    written = filled(runs=60)
    assert len(written.log.reader.bases()) > 2 * TABLES_MAX
    log, _ = recovered(written.files.kill(), segment_bytes=8192)
    for _ in range(2):
        assert read_all(log, "a-0", 7) == written.records["a-0", 7]
    assert sum(segment.table is not None for segment in log.reader.tables.segments()) <= TABLES_MAX + 1


def test_a_closed_log_says_so() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"])
    written.sync()
    written.log.close()
    written.log.close()
    with pytest.raises(LogClosed, match="recover"):
        written.log.join("b-0", 1, 0)
    assert written.log.read("a-0", 7, 0, 1) != []


def test_closing_proves_the_last_record() -> None:
    """No extent proves the last synced one, until the log is closed or idle."""
    for idle in (True, False):
        written = Written.empty()
        written.add("a-0", 7, [b"x"] * 2)
        written.sync()
        end = written.log.durable_position
        if idle:
            written.log.prove()
            written.log.prove()
            assert written.log.commit.end < 4096 + end + 700
        else:
            written.log.close()
        reader = LogReader(written.files, DIRECTORY)
        reader.refresh()
        assert reader.tables.segments()[0].table.proven == end  # type: ignore[union-attr]


@pytest.mark.parametrize("operation", ["pwritev", "fdatasync", "rename", "dirsync", "open"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_after_any_failure_everything_queued_is_written_again(operation: str, code: int) -> None:
    """At every place in turn: nothing is said to be durable that is not, and the next attempt brings it
    there.
    """
    for failing in range(12):
        written = Written.empty(segment_bytes=8192)
        count = 0

        def fail(name: str, path: str, failing: int = failing) -> None:
            nonlocal count
            if name == operation:
                count += 1
                if count == failing + 1:
                    raise OSError(code, "injected")

        written.files.hook = fail
        for i in range(8):
            written.add("a-0", 7, [bytes([i]) * 500] * 2)
            for _ in range(3):
                try:
                    written.sync()
                except OSError:
                    durable = written.log.stats.records
                    survived = recovered(written.files.crash(Random(0)))[0].ends()
                    assert durable <= survived.get("a-0", RingEnd(7, 0)).end_offset
        written.files.hook = None
        assert written.log.queued == 0
        assert read_all(written.log, "a-0", 7) == written.records["a-0", 7]
        log, report = recovered(written.files.crash(Random(0)))
        assert report.damage == ()
        assert read_all(log, "a-0", 7) == written.records["a-0", 7]


def test_a_failed_sync_is_never_tried_again_on_the_same_file(monkeypatch: pytest.MonkeyPatch) -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"])
    written.sync()
    first = written.log._active.path  # type: ignore[union-attr]
    synced: list[int] = []
    fdatasync = written.files.fdatasync

    def fail_once(handle: int) -> None:
        synced.append(handle)
        if len(synced) == 1:
            raise OSError(errno.EIO, "injected")
        fdatasync(handle)

    monkeypatch.setattr(written.files, "fdatasync", fail_once)
    written.add("a-0", 7, [b"y"])
    with pytest.raises(OSError, match="Input/output error"):
        written.sync()
    written.sync()
    assert synced[0] not in synced[1:]
    assert len(synced) == 3  # The new segment: once before its name, once with the records.
    assert written.log._active.path != first  # type: ignore[union-attr]
    assert written.log.stats.failed_syncs == 1
    assert written.log.stats.rewritten_bytes > 0


def test_failures_in_a_row_leave_no_trail_of_segments() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"])
    syncs = 0

    def fail(operation: str, path: str) -> None:
        nonlocal syncs
        if operation == "fdatasync":
            syncs += 1
            if syncs % 2 == 0:  # The first one of each segment works: it gets its name.
                raise OSError(errno.EIO, "injected")

    written.files.hook = fail
    for _ in range(10):
        with pytest.raises(OSError, match="Input/output error"):
            written.sync()
    assert len([name for name in written.files.listdir(DIRECTORY) if name.endswith(".log")]) == 1
    written.files.hook = None
    written.sync()
    assert read_all(written.log, "a-0", 7) == written.records["a-0", 7]


def test_a_full_disk_gets_back_what_was_written_in_vain() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x" * 1000])
    written.sync()
    end = written.log.durable_position
    written.add("a-0", 7, [b"y" * 5000])
    written.files.hook = lambda operation, path: _full(operation)
    with pytest.raises(OSError, match="No space left"):
        written.sync()
    assert len(written.files.names[f"{DIRECTORY}/{0:020d}.log"].cache) == end


def _full(operation: str) -> None:
    if operation == "pwritev":
        raise OSError(errno.ENOSPC, "full")


def test_segments_that_could_not_be_prepared_do_without() -> None:
    written = Written.empty(segment_bytes=8192)
    written.add("a-0", 7, [b"x"])
    written.sync()
    written.files.hook = lambda operation, path: _full(operation)
    with pytest.raises(OSError, match="full"):
        written.log.prepare()
    written.files.hook = None
    assert "prepared.tmp" not in written.files.listdir(DIRECTORY)
    assert written.log.needs_preallocation
    for _ in range(9):
        written.add("a-0", 7, [b"x" * 900])
        written.sync()
    assert len(written.log.reader.bases()) > 1


def test_a_segment_that_had_to_grow_becomes_room_of_full_size() -> None:
    written = Written.empty(segment_bytes=8192)
    while len(written.log.reader.bases()) < 3:
        written.add("a-0", 7, [b"x" * 900])
        written.sync()
    name = f"{DIRECTORY}/{0:020d}.log"
    before = bytes(written.files.names[name].cache)
    assert len(before) < 8192
    written.log.remove(0)
    room = written.files.names[f"{DIRECTORY}/prepared.tmp"]
    assert bytes(room.disk) == before.ljust(8192, b"\0")
    assert written.log._preallocator.ready == 1


def test_a_segment_that_is_short_or_cannot_be_filled_up_becomes_no_preallocator() -> None:
    written = Written.empty(segment_bytes=8192)
    while len(written.log.reader.bases()) < 3:
        written.add("a-0", 7, [b"x" * 900])
        written.sync()
    first, second = written.log.reader.bases()[:2]
    written.files.hook = lambda operation, path: _full(operation)
    written.log.remove(first)
    written.files.hook = None
    with written.log._sizing:
        written.log._sizes[second] = 4000
    written.log.remove(second)
    assert not {name for name in written.files.listdir(DIRECTORY) if name.startswith("prepared")}
    assert len(written.log.reader.bases()) == 1


def test_two_rooms_are_kept_once_there_was_none() -> None:
    """And no name is given away while a segment is being made of its file."""
    written = Written.empty(segment_bytes=8192)
    for i in range(6):
        written.add("a-0", 7, [bytes([i]) * 500] * 3)
        written.sync()
    while written.log.needs_maintenance:
        written.log.run_maintenance()
    rooms = {name for name in written.files.listdir(DIRECTORY) if name.startswith("prepared")}
    assert len(rooms) == 2
    rename, taken = written.files.rename, []

    def tending(source: str, target: str) -> None:
        taken.append(source)
        written.files.rename = rename  # type: ignore[method-assign]
        written.log.run_maintenance()
        assert len(written.files.names[source].cache) == 8192
        rename(source, target)

    written.files.rename = tending  # type: ignore[method-assign]
    for i in range(6, 60):
        written.add("a-0", 7, [bytes([i % 256]) * 500] * 3)
        written.sync()
        while written.log.needs_maintenance:
            written.log.run_maintenance()
    assert taken
    assert read_all(written.log, "a-0", 7) == written.records["a-0", 7]
    assert read_all(recovered(written.files.kill())[0], "a-0", 7) == written.records["a-0", 7]


def test_no_second_room_is_made_of_zeros_where_the_next_segment_makes_one_go() -> None:
    written = Written.empty(segment_bytes=1 << 16, retain_bytes=4 << 16)
    while len(written.log.sealed()) < 3:
        written.add("a-0", 7, [bytes(1000)] * 20)
        written.sync()
        written.log.run_maintenance()
    room = written.log._preallocator
    room._most = 2  # as after a segment for which there was no room
    assert room.ready == 1
    assert not written.log.needs_preallocation
    written.log.retain_bytes = 8 << 16
    assert written.log.needs_preallocation
    written.log.run_maintenance()
    assert room.ready == 2


def test_rows_are_found_by_offset() -> None:
    rows = ExtentRows()
    for first, count in ((3, 2), (5, 1), (9, 4)):
        rows.append(Row(first, count, first * 100, 32 * count, 0, whole=True), first, first + count)
    assert [rows.find(offset) for offset in (0, 3, 4, 5, 6, 8, 9, 12, 13)] == [0, 0, 0, 1, 2, 2, 2, 2, 3]
    assert (rows.first_offset, rows.end_offset) == (3, 13)
    assert [row.first_offset for row in rows.from_offset(4, 33)] == [3]
    assert [row.first_offset for row in rows.from_offset(4, 65)] == [3, 5]
    assert (ExtentRows().first_offset, ExtentRows().end_offset, ExtentRows().find(0)) == (0, 0, 0)


def test_short_writes_are_finished() -> None:
    written = Written.empty()
    written.files.short_writes = True
    for i in range(60):
        written.add("a-0", 7, [bytes([i]) * 300] * 3)
        written.sync()
    assert read_all(recovered(written.files.crash(Random(0)))[0], "a-0", 7) == written.records["a-0", 7]


def test_thousands_of_extents_go_with_few_writes() -> None:
    files = SimFiles(Random(0))
    log = make_log(files)
    log.recover()
    written = Written(files, log)
    before = files.operations
    for i in range(1200):
        written.add(f"ring-{i % 40}", 7, [b"x"])
    written.sync()
    assert files.operations - before < 12
    assert log.stats.records == 1200
