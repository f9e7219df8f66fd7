"""A start: what it keeps, what it cuts, what it keeps aside, and that nothing makes it refuse."""

import errno
import json
from pathlib import Path
from random import Random

import pytest

from persistence import Log, LogLocked, LogReader
from persistence.durable_file import TEMPORARY_SUFFIX
from persistence.log.preallocate import PREPARED_NAME
from persistence.log.recovery import recover
from persistence.segment.clean_shutdown import MARKER_NAME
from persistence.segment.format import (
    FORMAT_VERSION,
    HEADER_PAGE_BYTES,
    READ_VERSIONS,
    SegmentHeader,
    segment_name,
)
from ringbuf import crc32c
from tests.support.logs import (
    DIRECTORY,
    Written,
    disk_of,
    make_log,
    quarantined,
    read_all,
    recovered,
    typical,
)
from tests.support.simfiles import PowerCut, SimFiles

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "persistence"
CHECKPOINT_PATH = f"{DIRECTORY}/{MARKER_NAME}"
FIRST = f"{DIRECTORY}/00000000000000000000.log"


def test_every_cut_of_a_segment_recovers_a_whole_prefix() -> None:
    """The log was not closed, and the file ends anywhere: a prefix is left, and the log continues."""
    written = Written.empty()
    random = Random(5)
    for _ in range(8):
        written.add("a-0", 7, [random.randbytes(random.randrange(90)) for _ in range(random.randrange(1, 4))])
        written.sync()
    whole = written.files.kill()
    its = written.records["a-0", 7]
    size = len(whole.names[FIRST].cache)
    most = 0
    for cut in range(HEADER_PAGE_BYTES, size + 1):
        files = whole.kill()
        del files.names[FIRST].cache[cut:]
        log, _ = recovered(files)
        read = read_all(log, "a-0", 7)
        assert read == {offset: its[offset] for offset in range(len(read))}
        assert log.ends().get("a-0", (0, 0))[1] == len(read)
        assert len(read) >= most
        most = len(read)
    assert most == len(its)


@pytest.mark.parametrize("cut", [0, 1, 63, 64, 2047, 2048, 2112, 4095, 4096])
def test_a_segment_cut_in_its_header_is_left_alone(cut: int) -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"])
    written.sync()
    files = written.files.kill()
    del files.names[FIRST].cache[cut:]
    log, report = recovered(files)
    assert read_all(log, "a-0", 7) == {}
    assert report.end_position >= cut
    assert len(files.names[FIRST].cache) <= max(cut, HEADER_PAGE_BYTES)


def test_a_torn_tail_is_cut_kept_aside_and_reported() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"kept"] * 3)
    written.sync()
    end = len(written.files.names[FIRST].cache) - 32
    written.add("a-0", 7, [b"torn"] * 3)
    written.log.write()
    files = written.files.kill()
    files.names[FIRST].cache[end + 80] ^= 4
    torn = bytes(files.names[FIRST].cache[end:])
    log, report = recovered(files)
    assert report.torn is not None
    assert (report.torn.place, report.torn.length) == (end, len(torn))
    assert len(read_all(log, "a-0", 7)) == 3
    assert len(files.names[FIRST].cache) == end
    aside = f"{DIRECTORY}/quarantine/00000000000000000000.log-{end}"
    assert bytes(files.names[f"{aside}.bytes"].cache) == torn
    facts = json.loads(bytes(files.names[f"{aside}.json"].cache))
    assert (facts["segment"], facts["place"], facts["copied_bytes"]) == (FIRST[-24:], end, len(torn))
    assert recovered(files.kill())[1].torn is None


def test_an_unbroken_end_is_not_called_torn() -> None:
    """Zeros behind the last extent, as a prepared segment has them, or nothing, or another life's bytes."""
    written = Written.empty()
    written.add("a-0", 7, [b"x"] * 3)
    written.sync()
    for tail in (b"", bytes(4096), Random(1).randbytes(4096)):
        files = written.files.kill()
        files.names[FIRST].cache += tail
        log, report = recovered(files)
        assert report.torn is None
        assert len(read_all(log, "a-0", 7)) == 3


def in_reused_file(length: int) -> Written:
    """A log with one record, whose segment is a file with other bytes."""
    files = SimFiles(Random(0))
    files.makedirs(DIRECTORY)
    handle = files.open(f"{DIRECTORY}/{PREPARED_NAME}", create=True)
    files.pwritev(handle, [b"\xff" * (1 << 16)], 0)
    files.close(handle)
    log = make_log(files, segment_bytes=1 << 16)
    log.recover()
    written = Written(files, log)
    written.add("a-0", 7, [bytes(length)])
    written.sync()
    return written


def test_an_unbroken_end_at_the_end_of_a_page_of_a_reused_file_is_not_called_torn() -> None:
    length = 8192 - in_reused_file(8192).log.commit.end % 4096
    written = in_reused_file(length)
    assert written.log.commit.end % 4096 == 0
    log, report = recovered(written.files.kill(), segment_bytes=1 << 16)
    assert (report.torn, read_all(log, "a-0", 7)) == (None, written.records["a-0", 7])


def test_the_log_goes_on_behind_the_cut_in_a_new_segment() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"] * 3)
    written.sync()
    written.add("a-0", 7, [b"lost"] * 3)
    written.log.write()
    files = written.files.crash(Random(0))
    log, report = recovered(files)
    end = report.rings["a-0"].end_offset
    again = Written(files, log)
    again.add("a-0", 8, [b"new"] * 2, first=end)
    again.sync()
    assert len(log.reader.bases()) == 2
    assert [(it.epoch, it.first_offset, it.end_offset) for it in log.epochs("a-0")] == [
        (7, 0, end),
        (8, end, end + 2),
    ]


def test_a_second_recovery_changes_nothing() -> None:
    first, report = recovered(typical().files.kill(), segment_bytes=9216)
    before = disk_of(first).contents()
    second, again = recovered(disk_of(first).kill(), segment_bytes=9216)
    assert disk_of(second).contents() == before
    assert (report.rings, report.end_position) == (again.rings, again.end_position)


def test_a_recovery_leaves_a_whole_file_with_its_footer_for_backups_have_links_to_it() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"x"])
    written.sync()
    log, _ = recovered(written.files.kill())
    log.run_maintenance()
    path, files = f"{DIRECTORY}/{0:020d}.log", disk_of(log).kill()
    before = bytes(files.names[path].cache)
    assert log.reader.segments()[0].indexed
    log, report = recovered(files)
    assert bytes(files.names[path].cache) == before
    assert (report.torn, report.rings["a-0"]) == (None, (7, 1))
    assert log.reader.segments()[0].indexed


def test_recovery_that_is_cut_short_anywhere_is_done_again() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"kept"] * 3)
    written.sync()
    written.add("a-0", 7, [b"torn"] * 9)
    written.log.write()
    files = written.files.kill()
    file = files.names[FIRST]
    file.write(bytes([file.cache[-60] ^ 1]), len(file.cache) - 60)
    for operations in range(20):
        here = files.kill()
        left = operations

        def stop(operation: str, path: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerCut

        here.hook = stop
        try:
            recovered(here)
            break
        except PowerCut:
            here.hook = None
        log, _ = recovered(here.crash(Random(operations)))
        assert len(read_all(log, "a-0", 7)) in {
            3,
            12,
        }  # The bytes before the damaged ones may be on the disk.
    assert operations > 3


def test_a_tail_that_cannot_be_synced_is_written_again_and_shown_later() -> None:
    written = Written.empty()
    written.add("a-0", 7, [b"proven"] * 3)
    written.sync()
    written.add("a-0", 7, [b"unproven"] * 2)
    written.add("b-0", 9, [b"new ring"] * 2)
    written.log.write()
    files = written.files.kill()
    files.hook = _fail_to_sync
    log, report = recovered(files)
    assert "written again" in report.notes[0]
    assert report.rings["a-0"].end_offset == 5
    assert report.rings["b-0"].end_offset == 2
    assert read_all(log, "b-0", 9) == {}
    with pytest.raises(OSError, match="injected"):
        log.write()
    files.hook = None
    log.write()
    log.sync()
    assert read_all(log, "a-0", 7) == written.records["a-0", 7]
    assert read_all(log, "b-0", 9) == written.records["b-0", 9]
    later, again = recovered(files.crash(Random(0)))
    assert again.damage == ()
    assert read_all(later, "a-0", 7) == written.records["a-0", 7]
    assert read_all(later, "b-0", 9) == written.records["b-0", 9]


def test_damage_to_carried_records_of_a_new_ring_is_reported_from_its_first_record_on() -> None:
    """The catalogue that is carried with them says where the ring begins."""
    written = Written.empty()
    written.add("a-0", 7, [b"proven"])
    written.sync()
    written.add("b-0", 9, [b"first run"] * 2, first=5)
    written.add("b-0", 9, [b"second run"] * 2)
    written.add("b-0", 9, [b"undamaged"])
    written.log.write()
    files = written.files.kill()
    files.hook = _fail_to_sync
    log, _ = recovered(files)
    files.hook = None
    log.write()
    log.close()
    files.unlink(CHECKPOINT_PATH)
    path = f"{DIRECTORY}/{segment_name(log.reader.bases()[-1])}"
    data = files.names[path].cache
    for at in range(len(data)):
        if data.startswith((b"first run", b"second run"), at):
            files.flip(path, 8 * at)
    _, report = recovered(files)
    assert [damage.lost for damage in report.damage] == [((5, 9),)]


def _fail_to_sync(operation: str, path: str) -> None:
    if operation == "fdatasync":
        raise OSError(errno.EIO, "injected")


@pytest.mark.parametrize("idle", [True, False])
def test_what_a_crash_left_unproven_others_see_once_the_log_is_idle_or_closed(idle: bool) -> None:
    """Else what was acknowledged last is in no export, until there is one more record."""
    written = Written.empty()
    written.add("a-0", 7, [b"proven"])
    written.sync()
    written.add("a-0", 7, [b"last"] * 2)
    written.sync()
    log, _ = recovered(written.files.kill())
    if idle:
        log.prove()
    else:
        log.close()
    files = disk_of(log)
    reader = LogReader(files, DIRECTORY)
    reader.refresh()
    assert reader.epochs("a-0") == [(7, 0, 3)]
    log.close()
    names = set(files.names)
    for _ in range(2):  # And with that it is done.
        log, _ = recovered(files.kill())
        log.prove()
        files = disk_of(log)
        assert set(files.names) - {CHECKPOINT_PATH} == names - {CHECKPOINT_PATH}


def test_a_sync_that_failed_before_the_process_died_is_not_believed_by_the_next_one() -> None:
    """The kernel holds bytes that it thinks are on the disk: reading them proves nothing."""
    written = Written.empty()
    written.add("a-0", 7, [b"safe"])
    written.sync()
    written.add("a-0", 7, [b"not on the disk" * 200])
    written.log.write()
    file = written.files.names[FIRST]
    file.dirty, file.sizes = {}, []  # What fail_to_sync() does when it has no luck at all.
    log, report = recovered(written.files.kill())
    assert report.rings["a-0"].end_offset == 2
    later, _ = recovered(disk_of(log).crash(Random(0)))
    assert read_all(later, "a-0", 7) == written.records["a-0", 7]


def test_a_damaged_first_catalogue_costs_nothing() -> None:
    """Names and offsets are then known from the segment before, and from the catalogue at the end."""
    written = typical()
    names = sorted(name for name in written.files.listdir(DIRECTORY) if name.endswith(".log"))
    for name in names:
        files = written.files.kill()
        files.flip(f"{DIRECTORY}/{name}", (HEADER_PAGE_BYTES + 40) * 8)
        log, report = recovered(files, segment_bytes=9216)
        assert {ring: end.end_offset for ring, end in report.rings.items()} == {
            key[0]: len(its) for key, its in written.records.items()
        }
        for key, its in written.records.items():
            assert read_all(log, *key) == its


def test_a_damaged_announcement_costs_nothing() -> None:
    """Nothing else says in this log, which was not closed, which ring it is."""
    written = Written.empty()
    written.add("a-0", 7, [b"x"] * 3)
    written.sync()
    written.add("b-0", 7, [b"y"] * 3)
    written.sync()
    written.add("b-0", 7, [b"z"] * 3)
    written.sync()
    data = bytes(written.files.names[FIRST].cache)
    places = [
        at for at in range(HEADER_PAGE_BYTES, len(data)) if data.startswith((b"\xa3a-0", b"\xa3b-0"), at)
    ]
    assert len(places) == 4
    for at in places:
        files = written.files.kill()
        files.flip(FIRST, at * 8 + 1)
        log, report = recovered(files)
        assert report.rings == {"a-0": (7, 3), "b-0": (7, 6)}
        assert {key: read_all(log, *key) for key in written.records} == written.records


def test_sectors_that_cannot_be_read_are_damage_and_no_refusal() -> None:
    written = Written.empty()
    for i in range(6):
        written.add("a-0", 7, [bytes([i]) * 1500])
        written.sync()
    written.log.close()
    written.files.unlink(f"{DIRECTORY}/{MARKER_NAME}")

    class Bad(SimFiles):
        def read(self, handle: int, length: int, position: int) -> bytes:
            if position < 9216 and position + length > 8704:
                raise OSError(errno.EIO, "unreadable")
            return super().read(handle, length, position)

    files = Bad(Random(0), dict(written.files.names))
    log, report = recovered(files)
    read = read_all(log, "a-0", 7)
    assert report.damage
    assert 3 <= len(read) < 6
    assert all(written.records["a-0", 7][offset] == record for offset, record in read.items())


def test_a_log_has_one_writer(tmp_path: Path) -> None:
    first = Log(tmp_path)
    first.recover()
    with pytest.raises(LogLocked, match="another process"):
        Log(tmp_path).recover()
    first.close()
    second = Log(tmp_path)
    second.recover()
    second.close()


def test_files_and_folders_are_not_for_everybody(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.recover()
    written = Written(log.files, log)  # type: ignore[arg-type]
    written.add("a-0", 1, [b"x"])
    written.sync()
    log.close()
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o750
    for path in (tmp_path / "log").iterdir():
        assert path.stat().st_mode & 0o777 == 0o640


def test_room_that_was_prepared_is_found_again() -> None:
    written = Written.empty(segment_bytes=16384)
    written.add("a-0", 1, [b"x"])
    written.sync()
    written.log.prepare()
    written.log.close()
    files = written.files.kill()
    log, _ = recovered(files, segment_bytes=16384)
    assert not log.needs_preallocation
    again = Written(files, log)
    again.add("a-0", 2, [b"y"], first=1)
    again.sync()
    assert len(files.names[log._active.path].cache) == 16384  # type: ignore[union-attr]
    other, _ = recovered(written.files.kill(), segment_bytes=8192)
    assert "prepared.tmp" not in other.files.listdir(DIRECTORY)


def test_quarantine_does_not_grow_without_bound() -> None:
    files = SimFiles(Random(0))
    for index in range(100):
        name = f"{DIRECTORY}/{index * 8192:020d}.log"
        handle = files.open(name, create=True)
        files.pwritev(handle, [b"no segment"], 0)
        files.close(handle)
    for _ in range(3):
        log, report = recovered(files)
        log.close()
    assert len(files.listdir(f"{DIRECTORY}/quarantine")) <= 128
    assert any("is full" in note for note in report.notes)


def test_generations_rise_with_each_start() -> None:
    files = SimFiles(Random(0))
    found = []
    for epoch in range(1, 4):
        log = make_log(files)
        log.recover()
        written = Written(files, log)
        written.add("a-0", epoch, [b"x"], first=epoch)
        written.sync()
        found.append(log._active.header.generation)  # type: ignore[union-attr]
        log.close()
    assert found == [1, 2, 3]


def test_what_is_kept_aside_is_listed_with_the_offsets_that_are_lost() -> None:
    written = Written.empty()
    written.add("a-0", 7, [bytes([65 + n]) * 100 for n in range(10)])
    written.add("a-0", 7, [b"behind"])
    written.sync()
    written.log.close()
    data = written.files.names[FIRST].cache
    for n in (4, 7):
        data[data.index(bytes([65 + n]) * 100)] ^= 1
    written.files.unlink(f"{DIRECTORY}/{MARKER_NAME}")
    _, report = recovered(written.files)
    (damage,) = report.damage
    assert damage.lost == ((4, 5), (7, 8))
    assert quarantined(written.files) == {damage: damage.length}


def test_a_segment_of_a_later_version_is_left_alone_and_the_log_goes_on() -> None:
    written = typical()
    path = max(name for name in written.files.names if name.endswith(".log"))
    cache = written.files.names[path].cache
    for at in (0, 2048):
        cache[at + 8 : at + 12] = (FORMAT_VERSION + 1).to_bytes(4, "little")
        cache[at + 60 : at + 64] = crc32c(bytes(cache[at : at + 60])).to_bytes(4, "little")
    before = bytes(cache)
    log, report = recovered(written.files, segment_bytes=9216)
    assert "version 2 is later than 1" in report.notes[0]
    assert report.damage == ()
    assert log.reader.damaged == {}
    assert bytes(cache) == before
    assert [it.state for it in log.reader.segments()][-1] == "lost"
    assert "version 2" in log.reader.segments()[-1].reason
    end = log.ends()["a-0"].end_offset
    again = Written(written.files, log)
    again.add("a-0", 8, [b"later"], first=end)
    again.sync()
    assert read_all(log, "a-0", 8) == again.records["a-0", 8]
    assert bytes(cache) == before


def test_every_version_that_was_ever_written_has_golden_bytes_that_are_read() -> None:
    for version in READ_VERSIONS:
        data = (GOLDEN / f"segment-v{version}.log").read_bytes()
        assert SegmentHeader.unpack(data).created_ns > 0
    assert FORMAT_VERSION in READ_VERSIONS


class FewFiles(SimFiles):
    """A process that may open so many files once, and then no more."""

    left = 0

    def open(self, path: str, *, create: bool = False, mode: int | None = None) -> int:
        if self.left <= 0:
            raise OSError(errno.EMFILE, "too many open files", path)
        self.left -= 1
        return super().open(path, create=create, mode=mode)


@pytest.mark.parametrize("closed", [False, True])
def test_a_start_without_files_to_open_is_none_rather_than_one_without_records(*, closed: bool) -> None:
    written = Written.empty(segment_bytes=8192)
    for number in range(8):
        written.add("a-0", 7, [bytes([number]) * 700] * 3)
        written.sync()
    if closed:
        written.log.close()
    refused = 0
    for left in range(40):
        files = FewFiles(Random(0), written.files.kill().names)
        files.left = left
        log = make_log(files)
        try:
            report = log.recover()
        except OSError as error:
            assert error.errno == errno.EMFILE
            refused += 1
        else:
            assert (report.damage, report.notes) == ((), ())
        log.close()
        files.left = 1 << 30
        again, _ = recovered(files.kill())
        assert read_all(again, "a-0", 7) == written.records["a-0", 7]
    assert 0 < refused < 40


def test_a_log_that_is_only_read_has_all_its_records_and_is_not_changed() -> None:
    """A kill left unproven records, a torn extent and an unfinished file; and a record is damaged."""
    written = Written.empty()
    for number in range(3):
        written.add("a-0", 7, [bytes([number]) * 1000])
        written.sync()
    written.add("a-0", 7, [b"unproven"])
    written.log.write()
    files = written.files.kill()
    files.close(files.open(f"{DIRECTORY}/x{TEMPORARY_SUFFIX}", create=True))
    files.names[FIRST].cache[HEADER_PAGE_BYTES + 700] ^= 4
    files.names[FIRST].cache += files.names[FIRST].cache[HEADER_PAGE_BYTES : HEADER_PAGE_BYTES + 80]
    before = {name: bytes(file.cache) for name, file in files.names.items()}
    state = recover(files, DIRECTORY, changes=False)
    read = read_all(state.reader, "a-0", 7)
    assert before == {name: bytes(file.cache) for name, file in files.names.items()}
    assert read == {offset: written.records["a-0", 7][offset] for offset in (1, 2, 3)}
    assert [damage.lost for damage in state.damage] == [((0, 1),)]
