"""`brim segments` over real logs, damaged and whole, with and without a broker that writes."""

import errno
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.format import file_parser
from edge.cli import main, segments_export
from persistence import Log, LogReader, OsFiles
from persistence.segment.format import HEADER_PAGE_BYTES, segment_name
from tests.support.children import ModuleChild
from tests.support.kept_logs import Kept, keep
from tests.support.project import ROOT

PAYLOAD = b"x" * 600
SEGMENT_BYTES = 12_288  # some 14 records each


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Thirty records of the shared log in three segments, and three of a ring with its own."""
    keep(
        tmp_path,
        "a-0",
        [Kept(f"a/{number % 2}", PAYLOAD, number) for number in range(30)],
        segment_bytes=SEGMENT_BYTES,
    )
    keep(tmp_path / "own-0", "own-0", [Kept("own", b"y", number) for number in range(3)])
    return tmp_path


def brim(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit status, standard output and error of `brim segments ...`."""
    status = main(["segments", *map(str, arguments)])
    return status, *capsys.readouterr()


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, Any]:
    """Exit status, and what --json says."""
    status, out, _ = brim(capsys, *arguments, "--json")
    return status, json.loads(out)


def segments(directory: Path) -> list[Path]:
    return sorted(it for it in directory.iterdir() if it.suffix == ".log")


def damage(segment: Path, payload: int = 2) -> None:
    """One bit of one record's payload."""
    data = bytearray(segment.read_bytes())
    where = [match.start() for match in re.finditer(re.escape(PAYLOAD), data)][payload]
    data[where + 300] ^= 1
    segment.write_bytes(data)


# ---- ls ----


def test_each_segment_is_listed_with_what_is_in_it(directory, capsys):
    status, out, _ = brim(capsys, "ls", "--log", directory)
    lines = out.splitlines()
    assert status == 0
    assert lines[0].split() == ["LOG", "SEGMENT", "STATE", "SIZE", "RECORDS", "FROM", "TO", "RINGS"]
    assert [line.split()[0] for line in lines[1:]] == [".", ".", ".", "own-0", "4"]
    assert lines[-1].startswith("4 segments, ")
    assert lines[-1].endswith(" on the disk")
    _, found = told(capsys, "ls", "--log", directory)
    counts = [it["records"] for it in found["segments"]]
    assert (min(counts) > 0, sum(counts[:3]), counts[3]) == (True, 30, 3)
    assert [it["state"] for it in found["segments"]][2:] == ["active", "active"]
    assert found["segments"][3]["rings"][0]["name"] == "own-0"


def test_a_segment_that_says_nothing_any_more_is_listed_with_its_reason(directory, capsys):
    first = segments(directory)[0]
    first.write_bytes(bytes(HEADER_PAGE_BYTES) + first.read_bytes()[HEADER_PAGE_BYTES:])
    status, out, _ = brim(capsys, "ls", "--log", directory)
    assert status == 1
    assert "lost" in out
    assert "WARNING  0: no header of magic" in out


# ---- verify ----


def test_a_whole_log_is_verified(directory, capsys):
    status, out, _ = brim(capsys, "verify", "--log", directory)
    assert status == 0
    assert re.match(r"4 files, .* read: no damage\n", out)
    assert "2 of them have no index yet" in out
    assert brim(capsys, "repair", "--log", directory)[0] == 0
    status, out, _ = brim(capsys, "verify", "--log", directory)
    assert (status, len(out.splitlines())) == (0, 1)


def test_every_damaged_place_is_found_wherever_it_is(directory, capsys):
    for number in (0, 1):
        damage(segments(directory)[number])
    status, found = told(capsys, "verify", "--log", directory)
    assert status == 1
    assert [(it["file"], it["ring"], it["kept"]) for it in found["damage"]] == [
        (segments(directory)[0].name, "a-0", 0),
        (segments(directory)[1].name, "a-0", 0),
    ]
    status, out, _ = brim(capsys, "verify", "--log", directory)
    assert out.count("bytes damaged of a-0") == 2


def test_an_archive_that_was_flipped_a_bit_is_found(directory, capsys):
    assert brim(capsys, "archive", "--log", directory)[0] == 0
    archive = min(directory.glob("*.parquet"))
    data = bytearray(archive.read_bytes())
    data[len(data) // 3] ^= 4
    archive.write_bytes(data)
    status, found = told(capsys, "verify", "--log", directory)
    assert status == 1
    assert {it["file"] for it in found["damage"]} == {archive.name}


# ---- repair ----


def test_a_torn_tail_is_cut_and_kept_aside(directory, capsys):
    last = segments(directory)[-1]
    with last.open("r+b") as file:
        file.seek(-40, os.SEEK_END)
        file.truncate()
        file.seek(0, os.SEEK_END)
        file.write(b"\1" * 700)
    status, out, _ = brim(capsys, "repair", "--log", directory)
    assert status == 0
    assert f"{last.name}: cut at" in out
    assert sorted((directory / "quarantine").iterdir())
    assert brim(capsys, "verify", "--log", directory)[0] == 0
    assert "cut at" not in brim(capsys, "repair", "--log", directory)[1]


def test_sealed_segments_have_their_index_after_a_repair(directory, capsys):
    def indexed() -> list[bool]:
        found = told(capsys, "ls", "--log", directory)[1]["segments"]
        return [it["indexed"] for it in found if it["log"] == str(directory)][:-1]

    assert indexed() == [False, False]
    assert brim(capsys, "repair", "--log", directory)[0] == 0
    assert indexed() == [True, True]
    assert brim(capsys, "verify", "--log", directory)[0] == 0


def change_footer(segment: Path, at: int) -> None:
    """One bit of the footer, which ends the file."""
    data = bytearray(segment.read_bytes())
    data[at] ^= 4
    segment.write_bytes(data)


@pytest.mark.parametrize("at", [-1, -40, -300])
def test_an_index_that_is_wrong_is_found_and_made_anew(directory, capsys, at):
    assert brim(capsys, "repair", "--log", directory)[0] == 0
    whole = segments(directory)[1].read_bytes()
    change_footer(segments(directory)[1], at)
    status, found = told(capsys, "verify", "--log", directory)
    assert (status, found["indexes"]) == (1, {"right": 1, "wrong": 1})
    assert "its index does not match its records" in brim(capsys, "verify", "--log", directory)[1]
    status, out, _ = brim(capsys, "repair", "--log", directory)
    assert status == 0
    assert "indexes that were missing or wrong, and are written again: 1" in out
    assert out.endswith("all is well: start the broker\n")
    assert segments(directory)[1].read_bytes() == whole
    assert brim(capsys, "verify", "--log", directory)[0] == 0


def test_what_cannot_be_mended_is_copied_and_said_after_a_repair(directory, capsys):
    damage(segments(directory)[0])
    status, found = told(capsys, "repair", "--log", directory)
    assert (status, found["copied"], found["indexes"]) == (1, 1, 1)
    (flaw,) = found["verified"]["damage"]
    assert (flaw["ring"], flaw["kept"], flaw["lost"]) == ("a-0", 0, 1)
    reports = [json.loads(it.read_text()) for it in (directory / "quarantine").glob("*.json")]
    assert [(it["segment"], it["lost"]) for it in reports] == [(segments(directory)[0].name, [[2, 3]])]
    _, out, _ = brim(capsys, "repair", "--log", directory)
    assert "1 damaged place copied to quarantine/" in out
    assert "`brim segments export` copies them" in out


def test_a_segment_of_which_nothing_can_be_read_is_left_and_told(directory, capsys):
    first = segments(directory)[0]
    first.write_bytes(bytes(HEADER_PAGE_BYTES) + first.read_bytes()[HEADER_PAGE_BYTES:])
    before = first.read_bytes()
    for verb in ("verify", "repair"):
        status, out, _ = brim(capsys, verb, "--log", directory)
        assert status == 1
        assert f"{first.name}: no header of magic" in out
    assert first.read_bytes() == before


def test_a_segment_that_stays_between_archives_is_whole(directory, capsys):
    """It ends where the archive behind it begins, not where the next segment does."""
    damage(segments(directory)[0])
    assert brim(capsys, "archive", "--log", directory)[0] == 1
    assert len(segments(directory)) == 2
    _, found = told(capsys, "verify", "--log", directory)
    assert [(it["place"] > 0, it["lost"]) for it in found["damage"]] == [(True, 1)]
    assert told(capsys, "archive", "--log", directory)[1]["archived"] == []


@pytest.mark.parametrize("verb", ["repair", "archive"])
def test_a_log_that_is_written_is_left_alone(directory, capsys, verb):
    with Log(directory, retain_bytes=0) as log:
        log.recover()
        before = [it.read_bytes() for it in segments(directory)]
        status, out, error = brim(capsys, verb, "--log", directory)
        assert (status, out) == (2, "")
        assert "is being written\n  stop the broker" in error
        assert [it.read_bytes() for it in segments(directory)] == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("verb", ["repair", "archive"])
def test_a_log_of_another_user_is_left_alone(directory, capsys, verb):
    os.chown(directory, 12345, -1)
    before = sorted(directory.iterdir())
    status, out, error = brim(capsys, verb, "--log", directory)
    assert (status, out) == (2, "")
    assert "belongs to user 12345\n  run as that user: sudo -u '#12345' brim segments" in error
    assert sorted(directory.iterdir()) == before


# ---- archive ----


def test_sealed_segments_are_archived_and_read_as_before(directory, capsys):
    _, before, _ = brim(capsys, "export", "--to", "-", "--log", directory)
    _, listed = told(capsys, "ls", "--log", directory)
    status, out, _ = brim(capsys, "archive", "--log", directory)
    assert status == 0
    assert out.startswith("2 segments archived: ")
    assert [it.name for it in segments(directory)] == [segments(directory)[-1].name]
    assert brim(capsys, "export", "--to", "-", "--log", directory)[1] == before
    _, found = told(capsys, "ls", "--log", directory)
    assert [it["state"] for it in found["segments"]] == ["archived", "archived", "active", "active"]
    assert [it["records"] for it in found["segments"]] == [it["records"] for it in listed["segments"]]
    assert brim(capsys, "verify", "--log", directory)[0] == 0
    assert told(capsys, "archive", "--log", directory) == (0, {"archived": [], "refused": []})


def test_a_damaged_segment_is_not_archived(directory, capsys):
    damage(segments(directory)[0])
    status, found = told(capsys, "archive", "--log", directory)
    assert status == 1
    assert len(found["archived"]) == 1
    assert segment_name(0) in found["refused"][0]
    assert segments(directory)[0].name == segment_name(0)


def test_what_retention_takes_before_it_is_looked_at_stops_nobody(directory, capsys):
    """Between the listing of the directory and the look at a file: as one that leads nowhere."""
    (directory / "gone.log").symlink_to("nowhere")
    assert brim(capsys, "verify", "--log", directory)[0] == 0


# ---- export ----


@pytest.mark.parametrize("stopped", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_export_that_was_stopped_leaves_no_part_of_a_file(
    directory, tmp_path, capsys, monkeypatch, stopped
):
    target = tmp_path / "out.jsonl"
    calls = iter([None] * 3)

    def late(*_: object) -> bytes:
        if next(calls, "stop") == "stop":
            raise stopped
        return b"{}"

    monkeypatch.setattr(segments_export, "line_form", lambda **_: late)
    status, _, error = brim(capsys, "export", "--to", target, "--log", directory)
    assert (status, target.exists()) == (130 if isinstance(stopped, KeyboardInterrupt) else 2, False)
    assert status == 130 or "No space left on device\n  free space there" in error
    monkeypatch.undo()
    assert brim(capsys, "export", "--to", target, "--log", directory)[0] == 0


def test_an_output_that_is_full_is_told(directory):
    for verb in (("segments", "ls"), ("replay",)):
        with open("/dev/full", "wb") as full:
            line = [sys.executable, "-m", "edge", *verb, "--log", str(directory)]
            run = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
        said = f"brim {verb[0]}: its output cannot be written: No space left on device\n  free space there"
        assert (run.returncode, run.stderr.startswith(said)) == (2, True), run.stderr


def test_a_log_that_cannot_be_read_is_told(directory, capsys, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(LogReader, "read", fail)
    status, _, error = brim(capsys, "export", "--to", "-", "--log", directory)
    assert status == 2
    assert "Input/output error\n  see the kernel's messages" in error


@pytest.mark.parametrize("first", range(12))
def test_a_disk_that_fails_is_told_whenever_it_does(directory, capsys, monkeypatch, first):
    """From the first read on, or from a later one: of headers, of footers, of records."""
    read, reads = OsFiles.read, itertools.count()

    def failing(files: OsFiles, handle: int, size: int, at: int) -> bytes:
        if next(reads) >= first:
            raise OSError(errno.EIO, "Input/output error")
        return read(files, handle, size, at)

    monkeypatch.setattr(OsFiles, "read", failing)
    for verb in (("ls",), ("export", "--to", "-")):
        status, out, error = brim(capsys, *verb, "--log", directory)
        assert status in {1, 2}
        assert "cannot be read: Input/output error" in out + error
        assert "see the kernel's messages" in out + error


def test_what_can_be_read_is_listed_beside_what_cannot(directory, capsys, monkeypatch):
    read, bad = LogReader.segment, segments(directory)[1].name

    def failing(reader: LogReader, base: int) -> object:
        if segment_name(base) == bad:
            raise OSError(errno.EIO, "Input/output error")
        return read(reader, base)

    monkeypatch.setattr(LogReader, "segment", failing)
    status, out, _ = brim(capsys, "ls", "--log", directory)
    assert status == 1
    assert [line.split()[2] for line in out.splitlines()[1:5]] == ["sealed", "lost", "active", "active"]


def test_one_segment_is_one(tmp_path, capsys):
    keep(tmp_path, "a-0", [Kept("a", b"y", 1)])
    assert ": 1 segment," in ": " + brim(capsys, "ls", "--log", tmp_path)[1].splitlines()[-1]


def test_records_are_exported_as_lines(directory, tmp_path, capsys):
    target = tmp_path / "out.jsonl"
    at = ("export", "--to", target, "--log", directory, "--topic", "a/1", "--from", 4, "--until", 10)
    status, out, error = brim(capsys, *at)
    assert (status, out, error) == (0, "", "3 records exported\n")
    assert [json.loads(line)["offset"] for line in target.read_text().splitlines()] == [5, 7, 9]
    status, _, error = brim(capsys, *at)
    assert status == 2
    assert "is there already" in error


def test_records_that_are_missing_are_told(directory, capsys):
    damage(segments(directory)[0])
    status, out, error = brim(capsys, "export", "--to", "-", "--log", directory)
    assert (status, len(out.splitlines())) == (1, 32)
    assert "1 record missing: damaged" in error


def test_what_lies_behind_damage_in_the_last_segment_is_exported_too(directory, capsys):
    last = segments(directory)[-1]
    damage(last, 0)
    _, found = told(capsys, "ls", "--log", directory)
    assert [len(it["damage"]) for it in found["segments"]] == [0, 0, 1, 0]
    assert sum(it["records"] for it in found["segments"]) == 32
    status, out, error = brim(capsys, "export", "--to", "-", "--log", directory)
    assert (status, len(out.splitlines())) == (1, 32)
    assert "1 record missing: damaged" in error


def test_records_are_exported_as_drained_files(directory, tmp_path, capsys):
    damage(segments(directory)[0])
    lake = tmp_path / "lake"
    at = ("export", "--drained", "--to", lake, "--log", directory, "--edge", "plant-7")
    assert brim(capsys, *at)[0] == 1
    files = sorted(lake.rglob("*.brim"))
    found = [file_parser.parse(it.read_bytes(), it.name) for it in files]
    for it, path in zip(found, files, strict=True):
        file_parser.verify(it)
        assert path.match(it.name.path)
    footers = [it.footer for it in found]
    assert [(it.stream, it.partition, it.first_offset, it.last_offset) for it in footers] == [
        ("a", 0, 0, 1), ("a", 0, 3, 29), ("own", 0, 0, 2),
    ]  # fmt: skip
    assert [it.lost for it in footers] == [(), ((2, 2),), ()]
    status, _, error = brim(capsys, *at)
    assert status == 2
    assert "has drained files of plant-7 already" in error


def test_a_part_is_drained_too(directory, tmp_path, capsys):
    lake = tmp_path / "lake"
    at = ("export", "--drained", "--to", lake, "--log", directory, "--edge", "e", "--ring", "a-0")
    assert brim(capsys, *at, "--from", 20, "--until", 25)[0] == 0
    (path,) = lake.rglob("*.brim")
    footer = file_parser.parse(path.read_bytes()).footer
    assert (footer.first_offset, footer.last_offset, footer.epoch_first_offset) == (20, 24, 20)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ls", "--log", "/nowhere"), "there is no log in /nowhere"),
        (("ls", "--log", "/dev/null"), "/dev/null: Not a directory\n  name the log's directory"),
        (("export", "--to", "/nowhere/x"), "No such file or directory"),
        (("export", "--to", "lake", "--drained", "--topic", "a"), "holds all topics"),
        (("export", "--to", "-", "--from", "x"), "is neither an offset nor a time"),
    ],
)
def test_what_cannot_be_done_is_said_with_what_to_do(directory, capsys, arguments, said):
    where = () if "--log" in arguments else ("--log", directory)
    status, out, error = brim(capsys, *arguments, *where)
    assert (status, out) == (2, "")
    assert said in error


def test_the_log_of_a_running_broker_is_looked_at_and_not_touched(runtime_directory, tmp_path, capsys):
    (tmp_path / "brim.toml").write_text('[[stream]]\nname = "all"\ntopics = ["#"]\ndurability = "disk"\n')
    directories = ("--runtime-dir", runtime_directory, "--state-dir", tmp_path)
    with ModuleChild("edge", "run", "--port", 0, "--config", tmp_path / "brim.toml", *directories) as broker:
        port = int(broker.lines_until("brim status")[0].partition("mqtt 127.0.0.1:")[2].partition(",")[0])
        with ModuleChild("edge", "pub", "a/b", "x", "-q", "1", "--repeat", 5, "--port", port) as publisher:
            assert publisher.wait()[0] == 0
        assert brim(capsys, "verify", *directories)[0] == 0
        assert brim(capsys, "ls", *directories)[0] == 0
        assert brim(capsys, "repair", *directories)[0] == 2
        broker.stop()
    assert brim(capsys, "repair", *directories)[0] == 0
    status, out, _ = brim(capsys, "export", "--to", "-", *directories)
    assert (status, len(out.splitlines())) == (0, 5)
