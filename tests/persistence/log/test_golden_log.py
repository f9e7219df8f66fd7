"""A log directory of each format version there has been is read whole, and written on."""

import hashlib
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from persistence import Log, LogReader, OsFiles
from persistence.archive import archive_segment
from persistence.segment.format import FORMAT_VERSION
from ringbuf import FLAG_UNCHECKED, Range
from ringbuf.record import decode, encode
from tests.support.archives import SMALL
from tests.support.log_simulation import records_in, run_of
from tests.support.simfiles import SimFiles

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "persistence"
LOGS = sorted(it for it in GOLDEN.glob("log-v*") if it.is_dir())
SEGMENT_BYTES = 8192
WRITTEN_BY = {"log-v1": 1}  # format version of the segments


class Line(NamedTuple):
    """A record, as log-v*.txt tells it."""

    ring: str
    epoch: int
    offset: int
    topic: str
    timestamp_ns: int
    digest: str  # of its bytes in the ring


def line_of(ring: str, epoch: int, data: bytes) -> Line:
    record, _ = decode(data, epoch)
    digest = hashlib.sha256(data).hexdigest()[:16]
    return Line(ring, epoch, record.offset, record.key.decode(), record.timestamp_ns, digest)


def expected(golden: Path) -> list[Line]:
    lines = (it.split(" ") for it in golden.with_suffix(".txt").read_text().splitlines())
    return [Line(ring, int(e), int(o), topic, int(ns), digest) for ring, e, o, topic, ns, digest in lines]


def logs_of(directory: Path) -> list[Path]:
    return [directory, *(it for it in directory.iterdir() if it.is_dir())]


def told(ring: str, runs: list[Range]) -> Iterator[Line]:
    for run in runs:
        for _, begin, end in records_in(bytes(run.view)):
            yield line_of(ring, run.epoch, bytes(run.view[begin:end]))


def held(reader: LogReader, rings: list[str]) -> list[Line]:
    """Every record that a log gives."""
    found: list[Line] = []
    for ring in rings:
        for span in reader.epochs(ring):
            offset = span.first_offset
            while runs := reader.read(ring, span.epoch, offset, 2000):
                found += told(ring, runs)
                offset = found[-1].offset + 1
    return found


@pytest.fixture(params=LOGS, ids=lambda it: it.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, list[Line]]:
    """A copy of one, and what is in it."""
    copy = tmp_path / "log"
    shutil.copytree(request.param, copy)
    return copy, expected(request.param)


def test_there_is_a_golden_log_of_the_present_version() -> None:
    assert {it.name for it in LOGS} == set(WRITTEN_BY)
    assert max(WRITTEN_BY.values()) == FORMAT_VERSION


@pytest.mark.parametrize("directory", LOGS, ids=lambda it: it.name)
def test_its_segments_are_of_the_version_that_it_is_for(directory: Path) -> None:
    for segment in directory.rglob("*.log"):
        assert int.from_bytes(segment.read_bytes()[8:12], "little") == WRITTEN_BY[directory.name]


def test_every_record_is_read_from_outside(golden: tuple[Path, list[Line]]) -> None:
    directory, lines = golden
    rings = sorted({it.ring for it in lines})
    found: list[Line] = []
    for place in logs_of(directory):
        reader = LogReader(OsFiles(), str(place))
        reader.refresh()
        found += held(reader, rings)
        assert reader.damaged == {}
    assert sorted(found) == lines


def test_what_is_archived_and_what_is_indexed_is_still_known_to_be(golden: tuple[Path, list[Line]]) -> None:
    directory, _ = golden
    reader = LogReader(OsFiles(), str(directory))
    reader.refresh()
    assert [it.state for it in reader.segments()] == [
        "archived", *["flushed"] * 6, "active",
    ]  # fmt: skip


def test_records_are_found_by_topic_and_by_time(golden: tuple[Path, list[Line]]) -> None:
    directory, lines = golden
    reader = LogReader(OsFiles(), str(directory))
    reader.refresh()
    its = [it for it in lines if (it.ring, it.epoch) == ("a-0", 7)]
    for topic in {it.topic for it in its}:
        found: list[Line] = []
        while runs := reader.read_topic("a-0", topic, 7, found[-1].offset + 1 if found else 0, 1 << 20):
            found += told("a-0", runs)
        assert found == [it for it in its if it.topic == topic]
    for it in its:
        assert reader.seek_time("a-0", 7, it.timestamp_ns) == it.offset


def test_a_start_finds_everything_and_goes_on(golden: tuple[Path, list[Line]]) -> None:
    directory, lines = golden
    rings = sorted({it.ring for it in lines})
    found: list[Line] = []
    for place in logs_of(directory):
        with Log(place, segment_bytes=SEGMENT_BYTES, retain_bytes=0) as log:
            report = log.recover()
            assert (report.torn, report.damage, report.notes) == (None, (), ())
            its = held(log.reader, rings)
            found += its
            ends = report.rings
            log.join("new-0", 1, 5)
            log.append(log._ids["new-0"], [run_of(encode(5, b"new", epoch=1, key=b"n"), 1)])
            log.write()
            log.sync()
        with Log(place, segment_bytes=SEGMENT_BYTES, retain_bytes=0) as log:
            again = log.recover()
            assert ends.items() <= again.rings.items()
            assert [it.offset for it in held(log.reader, ["new-0"])] == [5]
            assert sorted(held(log.reader, rings)) == sorted(its)
    assert sorted(found) == lines


# ---- how it was made ----


def _batch(ring: str, epoch: int, first: int, step: int) -> bytes:
    """Some records: of all sizes, one of them empty, one with MQTT 5 properties."""
    made = b""
    for number in range(first, first + 4):
        payload = bytes((number * 7 + at) % 256 for at in range((0, 1, 60, 300)[number % 4]))
        properties = b"\x05\x02\x00\x00\x00\x3c" if number % 4 == 2 else b""
        made += encode(
            number,
            payload,
            epoch=epoch,
            key=f"plant/{number % 3}/{ring}".encode(),
            timestamp_ns=1_700_000_000_000_000_000 + 1000 * number + step,
            properties=properties,
        )
    return made


def _append(log: Log, lines: list[Line], ring: str, epoch: int, data: bytes, position: int) -> None:
    log.append(log._ids[ring], [run_of(data, epoch, position)])
    lines += [line_of(ring, epoch, data[begin:end]) for _, begin, end in records_in(data)]


def make(directory: Path) -> None:
    """log-v1: one log of three rings, that was killed; one of a ring alone, that was closed."""
    files, salts = SimFiles(Random(1)), count(1)
    lines: list[Line] = []
    for place, rings in (("/log", ["a-0", "b-0"]), ("/log/own-0", ["own-0"])):
        log = Log(
            place,
            files,
            segment_bytes=SEGMENT_BYTES,
            retain_bytes=0,
            clock_ns=lambda: 1_700_000_000_000_000_000,
            salt=lambda: next(salts),
        )
        log.recover()
        position = 0
        for step in range(16 if place == "/log" else 3):
            for ring in rings:
                epoch = 8 if ring == "b-0" and step > 9 else 7
                if step in (0, 10):
                    log.join(ring, epoch, 4 * step + 4 * (epoch == 8))  # a gap that a catalogue announces
                data = _batch(ring, epoch, 4 * step + 4 * (epoch == 8), step)
                _append(log, lines, ring, epoch, data, position)
                position += len(data)
            if step == 4 and place == "/log":
                data = encode(1000, bytes(range(250)) * 17, epoch=3, key=b"camera", flags=FLAG_UNCHECKED)
                log.join("cam@press", 3, 1000)
                _append(log, lines, "cam@press", 3, data, 0)
            log.write()
            log.sync()
        log.prove()
        log.sync()
        log.run_maintenance()
        if place == "/log":
            first, end = log.reader.bases()[0], log.reader.tables.end_of(log.reader.bases()[0])
            assert end is not None
            archive_segment(files, place, first, end, group_bytes=SMALL)
            files.unlink(f"{place}/{first:020d}.log")
        else:
            log.close()
    for name, file in files.names.items():
        if not file.directory and not name.endswith((".tmp", "LOCK")):
            target = directory / name.removeprefix("/log/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(bytes(file.cache))
    text = "".join(" ".join(map(str, it)) + "\n" for it in sorted(lines))
    directory.with_suffix(".txt").write_text(text)


if __name__ == "__main__" and not (GOLDEN / "log-v1").exists():
    make(GOLDEN / "log-v1")
