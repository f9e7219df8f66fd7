"""A segment or an archive that the disk cannot read: what waits, what is left out, and what is reported."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bridge.errors import SourceError
from bridge.source.partition_source import RingName
from edge.cli.exit_status import Exit
from edge.cli.log_options import status_of
from edge.log import offline_reader
from edge.log.log_place import LogPlace
from edge.log.offline_reader import LogView, ScanPosition
from edge.log.surviving_log import FILES_MAX, PATIENCE_S, SurvivingLog
from persistence import Log, LogReader
from persistence.archive import archive_segment
from persistence.files import OsFiles, opened
from persistence.read import log_reader
from persistence.read.merged_reader import MergedReader
from persistence.segment.format import HEADER_PAGE_BYTES
from persistence.segment.salvaging_files import SalvagingFiles
from tests.bridge.source.test_partition_source import log_thread, written
from tests.support.bad_disk import BadDisk
from tests.support.bridges import EPOCH as BRIDGE_EPOCH
from tests.support.bridges import Gates, begin_all, drain, publish, ring, run_dry, settings
from tests.support.drained_files import offsets_drained
from tests.support.kept_logs import EPOCH, Kept, keep
from tests.support.logs import Written, read_all, recovered

RECORDS = 12
SEGMENT_BYTES = 9216  # two records each


def kept(directory: Path) -> Path:
    """A log with a record of 2,000 bytes for each offset; its third segment of six."""
    keep(
        directory, "a-0", [Kept("t", b"%04d" % number * 500) for number in range(RECORDS)],
        segment_bytes=SEGMENT_BYTES,
    )  # fmt: skip
    return sorted(directory.glob("*.log"))[2]


def offsets_in(path: Path) -> set[int]:
    """Offsets of the records in a segment."""
    data = path.read_bytes()
    return {number for number in range(RECORDS) if b"%04d" % number * 500 in data}


def all_offsets(reader: LogReader) -> list[int]:
    """Offsets of all records that the reader returns."""
    offsets: list[int] = []
    while ranges := reader.read("a-0", EPOCH, offsets[-1] + 1 if offsets else 0, 3000):
        offsets += [offset for run in ranges for offset in range(run.offset, run.offset + run.count)]
    return offsets


def place_of_header(path: Path) -> tuple[int, int]:
    return 0, HEADER_PAGE_BYTES - 1


def place_of(path: Path, offset: int) -> tuple[int, int]:
    """A byte in the middle of a record."""
    at = path.read_bytes().index(b"%04d" % offset * 500) + 1000
    return at, at


def place_of_first(path: Path) -> tuple[int, int]:
    return place_of(path, min(offsets_in(path)))


def place_of_last(path: Path) -> tuple[int, int]:
    return place_of(path, max(offsets_in(path)))


@pytest.mark.parametrize(
    ("place", "part"),
    [(place_of_header, slice(None)), (place_of_first, slice(1)), (place_of_last, slice(-1, None))],
)
def test_a_disk_error_is_an_error_and_only_a_salvaging_reader_reads_past_it(
    tmp_path: Path, place: Callable[[Path], tuple[int, int]], part: slice
) -> None:
    path, files = kept(tmp_path), BadDisk()
    hit = offsets_in(path)
    files.break_at(path, *place(path))
    reader = LogReader(files, str(tmp_path))
    reader.refresh()
    with pytest.raises(OSError, match="Input/output error") as error:
        all_offsets(reader)
    assert error.value.filename == str(path)
    lost = sorted(hit)[part]
    assert all_offsets(reader.salvaging()) == [it for it in range(RECORDS) if it not in lost]
    assert {damage.segment for damage in reader.damaged.values()} == {path.name}
    if place is place_of_header:
        assert reader.salvaging().lost[path.name].startswith("cannot be read: Input/output error")
    files.pass_over()
    assert all_offsets(reader) == list(range(RECORDS))


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_is_an_error_and_only_a_salvaging_reader_reads_past_it(
    tmp_path: Path, make: Callable[[Path], object]
) -> None:
    path = kept(tmp_path)
    hit = offsets_in(path)
    path.unlink()
    make(path)
    reader = LogReader(OsFiles(), str(tmp_path))
    reader.refresh()
    with pytest.raises(OSError, match="not a regular file"):
        all_offsets(reader)
    assert all_offsets(reader.salvaging()) == [it for it in range(RECORDS) if it not in hit]


def test_a_segment_that_was_read_before_it_became_unreadable_is_left_out(tmp_path: Path) -> None:
    path = kept(tmp_path)
    hit = offsets_in(path)
    reader = LogReader(OsFiles(), str(tmp_path))
    reader.refresh()
    salvaging = reader.salvaging()
    assert all_offsets(salvaging) == list(range(RECORDS))
    path.unlink()
    path.mkdir()
    assert all_offsets(salvaging) == [it for it in range(RECORDS) if it not in hit]


def test_a_read_past_the_end_of_an_unreadable_file_returns_no_more_bytes_than_the_file_has(
    tmp_path: Path,
) -> None:
    path, files = tmp_path / "file", BadDisk()
    path.write_bytes(b"x" * 1000)
    files.break_at(path, 600, 999)
    with opened(files, str(path)) as handle:
        salvaging = SalvagingFiles(files)
        assert salvaging.read(handle, 4096, 0) == b"x" * 512 + bytes(488)
        assert salvaging.read(handle, 4096, 700) == bytes(300)


@pytest.mark.parametrize("part", ["records", "footer"])
def test_an_archive_that_the_disk_cannot_read_is_an_error_and_is_not_skipped(
    tmp_path: Path, part: str
) -> None:
    path, files = kept(tmp_path), BadDisk()
    base, after = (int(it.stem) for it in sorted(tmp_path.glob("*.log"))[2:4])
    archive_segment(OsFiles(), str(tmp_path), base, after - base)
    hit = offsets_in(path)
    path.unlink()
    archive = next(it for it in tmp_path.iterdir() if it.suffix == ".parquet")
    size = archive.stat().st_size
    files.break_at(archive, *((size - 8, size) if part == "footer" else (4, 4)))
    reader = LogReader(files, str(tmp_path))
    reader.refresh()
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output error") as error:
            all_offsets(reader)
        assert error.value.filename == str(archive)
    salvaging = reader.salvaging()
    salvaging.archive.refresh()
    assert all_offsets(salvaging) == [it for it in range(RECORDS) if it not in hit]
    files.pass_over()
    assert all_offsets(reader) == list(range(RECORDS))


@contextmanager
def lapped(runtime_dir: Path, log_dir: Path, files: BadDisk) -> Iterator[Log]:
    """A ring with the last of 3,000 records, and a log with all of them in some segments."""
    with Log(log_dir, files, segment_bytes=64 << 10, retain_bytes=0, direct=False) as log:
        log.recover()
        with ring(runtime_dir) as made:
            thread = log_thread(log, made)
            thread.start()
            for _ in range(30):
                publish(made, 100, size=100)
                written(log, made)
            thread.stop()
            yield log


def test_a_bridge_waits_until_a_disk_error_passes_and_declares_no_loss(
    runtime_directory: Path, tmp_path: Path
) -> None:
    files, name = BadDisk(), RingName("default", 0)
    with lapped(runtime_directory, tmp_path / "log", files) as log:
        path = sorted((tmp_path / "log").glob("*.log"))[1]
        files.break_at(path, 20_000, 20_000)
        with drain(settings(runtime_directory, tmp_path), record_log=log.reader) as drained:
            while not drained.partitions.error_of(name):
                drained.step()
            assert f"{path}: Input/output error" in drained.partitions.error_of(name)
            assert "to give up the records of that file, move it" in drained.partitions.error_of(name)
            files.pass_over()
            drained.partitions.forget(name)  # its pause
            run_dry(drained)
            assert drained.totals.lost_records == 0
    assert offsets_drained(tmp_path / "lake") == {("default", 0, BRIDGE_EPOCH): list(range(3000))}


def test_a_file_in_flight_at_a_crash_is_not_dropped_because_of_a_disk_error(
    runtime_directory: Path, tmp_path: Path
) -> None:
    files, chosen = BadDisk(), settings(runtime_directory, tmp_path, window=2)
    with lapped(runtime_directory, tmp_path / "log", files) as log:
        with drain(chosen, Gates(tmp_path / "lake"), record_log=log.reader) as killed:
            begin_all(killed, 1)
        files.break_at(min((tmp_path / "log").glob("*.log")), 4096, 1 << 20)
        with drain(chosen, record_log=log.reader) as drained:
            with pytest.raises(SourceError, match="Input/output error"):
                run_dry(drained)
            files.pass_over()
            run_dry(drained)
            assert drained.totals.lost_records == 0
    assert offsets_drained(tmp_path / "lake") == {("default", 0, BRIDGE_EPOCH): list(range(3000))}


def test_a_replay_reads_the_rest_and_names_the_file_and_the_offsets(tmp_path: Path) -> None:
    path = kept(tmp_path)
    hit = offsets_in(path)
    path.unlink()
    path.mkdir()
    view = LogView(tmp_path)
    position = ScanPosition(view, view.rings(), LogPlace(), LogPlace())
    found = [record.offset for record in position.records()]
    assert found == [it for it in range(RECORDS) if it not in hit]
    assert (position.missing, position.gaps) == (len(hit), [("a-0", EPOCH, min(hit), max(hit))])
    (damage,) = view.damage()
    assert damage[0] == str(path)
    assert "not a regular file" in damage[1]
    assert "move or remove it" in damage[1]


def test_one_topic_is_read_from_the_rest_and_the_file_is_named(tmp_path: Path) -> None:
    path = kept(tmp_path)
    hit = offsets_in(path)
    path.unlink()
    path.mkdir()
    view = LogView(tmp_path)
    position = ScanPosition(view, view.rings(), LogPlace(), LogPlace(), ["t"])
    assert [record.offset for record in position.records()] == [it for it in range(RECORDS) if it not in hit]
    assert [place for place, _ in view.damage()] == [str(path)]


def test_damage_is_reported_if_no_record_is_missing_and_a_bounded_number_of_gaps_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(offline_reader, "GAPS_MAX", 1)
    kept(tmp_path)
    paths = sorted(tmp_path.glob("*.log"))[1:4:2]
    hit = sorted(offset for path in paths for offset in offsets_in(path))
    for path in paths:
        path.unlink()
        path.mkdir()
    view = LogView(tmp_path)
    every = ScanPosition(view, view.rings(), LogPlace(), LogPlace())
    assert len(list(every.records())) == RECORDS - len(hit)
    assert (every.missing, every.gaps) == (len(hit), [("a-0", EPOCH, hit[0], hit[1])])
    last = ScanPosition(view, view.rings(), LogPlace(offset=hit[-1] + 1), LogPlace())
    assert len(list(last.records())) == RECORDS - hit[-1] - 1
    assert (last.missing, status_of(view, last, "replay")) == (0, Exit.INCOMPLETE)
    error = capsys.readouterr().err
    assert (all(str(path) in error for path in paths), " missing: damaged" in error) == (True, False)


def surviving(reader: LogReader, patience_s: float, now: Callable[[], float]) -> SurvivingLog:
    past, salvaging = MergedReader(lambda _: [reader]), MergedReader(lambda _: [reader.salvaging()])
    return SurvivingLog(past, salvaging, patience_s, now)


def test_a_start_reads_past_a_file_and_clients_do_so_after_some_time(tmp_path: Path) -> None:
    path, files = kept(tmp_path), BadDisk()
    hit = offsets_in(path)
    files.break_at(path, 0, HEADER_PAGE_BYTES - 1)
    reader = LogReader(files, str(tmp_path))
    reader.refresh()
    at_start = surviving(reader, 0.0, lambda: 0.0)
    assert [run.offset for run in at_start.read("a-0", EPOCH, min(hit), 1)] == [max(hit) + 1]
    assert at_start.epochs("a-0") == [(EPOCH, 0, RECORDS)]
    assert at_start.seek_time("a-0", EPOCH, 1 << 62) == RECORDS
    (before,) = at_start.read("a-0", EPOCH, min(hit) - 1, 1)
    after = at_start.read_at("a-0", EPOCH, before.position + len(before.view), 1)
    assert [run.offset for run in after] == [max(hit) + 1]
    times = iter([100.0, 115.0, 129.0, 130.0, 200.0])
    for_clients = surviving(reader, 30.0, lambda: next(times))
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error"):
            for_clients.read("a-0", EPOCH, min(hit), 1)
    assert [run.offset for run in for_clients.read("a-0", EPOCH, min(hit), 1)] == [max(hit) + 1]
    with pytest.raises(OSError, match="Input/output error"):
        for_clients.read("a-0", EPOCH, min(hit), 1)


def test_what_was_left_out_is_read_again_before_clients_would_do_without_it_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, files, now_s = kept(tmp_path), BadDisk(), 100.0
    monkeypatch.setattr(log_reader, "monotonic", lambda: now_s)
    files.break_at(path, 0, HEADER_PAGE_BYTES - 1)
    reader = LogReader(files, str(tmp_path))
    reader.refresh()
    assert len(all_offsets(reader.salvaging())) < RECORDS
    files.pass_over()
    now_s += PATIENCE_S
    assert all_offsets(reader.salvaging()) == list(range(RECORDS))
    assert reader.salvaging() is reader.salvaging()
    path.unlink()
    reader.refresh()
    assert reader.salvaging().bases() == reader.bases()


def test_a_lack_of_descriptors_is_never_hidden() -> None:
    def lacking(_: str) -> list[LogReader]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a")

    log = SurvivingLog(MergedReader(lacking), MergedReader(lambda _: []))
    with pytest.raises(OSError, match="Too many open files"):
        log.read("a-0", EPOCH, 0, 1)


def test_a_bounded_number_of_files_that_failed_is_remembered() -> None:
    def broken(ring_name: str) -> list[LogReader]:
        raise OSError(errno.EIO, os.strerror(errno.EIO), ring_name)

    log = SurvivingLog(MergedReader(broken), MergedReader(lambda _: []), 30.0, lambda: 0.0)
    for number in range(FILES_MAX + 5):
        with pytest.raises(OSError, match="Input/output error"):
            log.read(f"a-{number}", EPOCH, 0, 1)
    assert len(log._failed) == FILES_MAX


def test_the_live_segment_is_read_by_a_salvaging_reader_too(tmp_path: Path) -> None:
    path, files = kept(tmp_path), BadDisk()
    hit = offsets_in(path)
    files.break_at(path, 0, HEADER_PAGE_BYTES - 1)
    with Log(tmp_path, files, segment_bytes=SEGMENT_BYTES, retain_bytes=0, direct=False) as log:
        log.recover()
        assert all_offsets(log.reader.salvaging()) == [it for it in range(RECORDS) if it not in hit]


def test_a_salvaging_reader_gets_the_records_that_the_live_segment_gets_later() -> None:
    written = Written.empty()
    written.add("a-0", EPOCH, [b"0"])
    written.sync()
    salvaging = written.log.reader.salvaging()
    for number in range(1, 3):
        written.add("a-0", EPOCH, [b"%d" % number])
        written.sync()
        assert written.log.reader.salvaging() is salvaging
        assert list(read_all(salvaging, "a-0", EPOCH)) == list(range(number + 1))


def test_a_salvaging_reader_has_records_that_no_proof_follows_after_a_start() -> None:
    """The process was killed after its last sync: only the recovery knows where the log ends."""
    written = Written.empty()
    for number in range(3):
        written.add("a-0", EPOCH, [b"%d" % number])
        written.sync()
    log, _ = recovered(written.files.kill())
    assert list(read_all(log.reader.salvaging(), "a-0", EPOCH)) == list(range(3))
