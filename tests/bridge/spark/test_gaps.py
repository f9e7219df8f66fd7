"""The gap report over files: names and footers, without Spark."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.errors import DrainedFileError, SourceOptionError
from bridge.format.file_builder import compressed
from bridge.format.file_parser import verify
from bridge.spark.jobs import gaps
from bridge.spark.jobs.common import counted
from bridge.spark.landing_zone import Landing
from tests.support.drained_files import EPOCH, drained_file_of, store


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Two partitions, a declared loss, a second epoch."""
    root = tmp_path / "lake"
    store(
        root,
        drained_file_of(0, 9),
        drained_file_of(0, 4, drain_seq=2, partition=1),
        drained_file_of(10, 19, drain_seq=3),
        drained_file_of(30, 39, drain_seq=4, lost=((20, 26),), skipped=((27, 29),)),
        drained_file_of(0, 9, drain_seq=5, epoch=EPOCH + 1, previous=(EPOCH, 40)),
        drained_file_of(0, 9, drain_seq=1, edge="edge-2"),
    )
    return root


def file_of(lake: Path, drain_seq: int, edge: str = "edge-1") -> Path:
    (path,) = (lake / f"edge={edge}").rglob(f"{drain_seq:016d}-*.brim")
    return path


COMPLETE, MISSING, LOST, SKIPPED = 0, 1, 4, 5  # exit statuses


def test_what_was_lost_and_declared_is_lost_and_neither_complete_nor_missing(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert gaps.main([str(lake)]) == LOST
    said = capsys.readouterr().out
    assert "edge-1 default/0 epoch 1700000000: 30 records in 3 files" in said
    assert "LOST, and declared: 7 (20 to 26)" in said
    assert "skipped on purpose: 3 (27 to 29)" in said
    assert said.splitlines()[-1] == (
        "LOST: 7 records were overwritten or removed before they were drained; 3 more were skipped"
    )


def test_one_thing_has_a_noun_in_the_singular() -> None:
    assert [counted(number, "batch") for number in (0, 1, 2)] == ["0 batches", "1 batch", "2 batches"]
    assert [counted(number, "old file") for number in (1, 2)] == ["1 old file", "2 old files"]


def test_what_was_skipped_on_purpose_is_neither_complete_nor_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store(tmp_path, drained_file_of(0, 9), drained_file_of(15, 19, drain_seq=2, skipped=((10, 14),)))
    assert gaps.main([str(tmp_path), "--json"]) == SKIPPED
    found = json.loads(capsys.readouterr().out)
    assert (found["verdict"], found["skipped"], found["lost"], found["missing"]) == ("skipped", 5, 0, 0)


def test_a_lake_without_any_gap_is_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(tmp_path, drained_file_of(0, 9), drained_file_of(10, 19, drain_seq=2))
    assert gaps.main([str(tmp_path)]) == COMPLETE
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "complete: nothing is missing, lost or skipped"


def test_a_record_that_came_after_it_was_declared_lost_is_not_lost(tmp_path: Path) -> None:
    store(
        tmp_path,
        drained_file_of(0, 9),
        drained_file_of(20, 29, drain_seq=2, lost=((10, 19),)),
        drained_file_of(10, 19, drain_seq=3),
    )
    assert gaps.main([str(tmp_path)]) == COMPLETE


def test_what_an_ended_epoch_could_not_declare_is_no_gap_when_a_later_one_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, epochs = tmp_path / "lake", (EPOCH, EPOCH + 1)
    later = drained_file_of(
        0, 4, drain_seq=2, epoch=epochs[1], previous=(EPOCH, 30), earlier_lost=((EPOCH, 10, 19),)
    )
    store(root, drained_file_of(0, 9), later)
    assert gaps.main([str(root), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["epochs"][0]
    assert (found["lost"], found["missing"]) == ([[10, 19]], [[20, 29]])
    store(root, drained_file_of(5, 9, drain_seq=3, epoch=epochs[1], earlier_skipped=((EPOCH, 20, 29),)))
    assert gaps.main([str(root)]) == LOST
    said = capsys.readouterr().out
    assert "LOST, and declared: 10 (10 to 19)" in said
    assert "skipped on purpose: 10 (20 to 29)" in said


@pytest.mark.parametrize(
    ("removed", "offsets"), [(3, [[10, 19]]), (1, [[0, 9]]), (4, [[20, 39]]), (2, None), (5, None)]
)
def test_a_file_that_was_removed_is_found(
    lake: Path, capsys: pytest.CaptureFixture[str], removed: int, offsets: list[list[int]] | None
) -> None:
    """By its offsets, if its epoch continues or a later epoch declares its end; and by its number."""
    file_of(lake, removed).unlink()
    status = gaps.main([str(lake), "--json"])
    found = json.loads(capsys.readouterr().out)
    first = found["epochs"][0]
    if removed == 5:
        assert status == LOST  # the newest file: nothing tells of it yet
        return
    assert status == 1
    assert found["verdict"] == "missing"
    if offsets is not None:
        assert first["missing"] == offsets
    if removed > 1:
        assert found["edges"][0]["missing"] == [[removed, removed]]


def test_an_old_file_that_was_removed_on_purpose_is_no_gap(lake: Path) -> None:
    file_of(lake, 1).unlink()
    assert gaps.main([str(lake)]) == 1
    assert gaps.main([str(lake), "--retained"]) == LOST


def test_an_epoch_that_is_gone_altogether_is_found(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 3, 4):
        file_of(lake, number).unlink()
    assert gaps.main([str(lake), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["epochs"][0]["epoch"] == EPOCH
    assert found["epochs"][0]["missing"] == [[0, 39]]


def test_a_damaged_file_is_named(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = file_of(lake, 3)
    path.write_bytes(path.read_bytes()[:-1])
    assert gaps.main([str(lake)]) == 1
    assert f"{path}: UNREADABLE" in capsys.readouterr().out


def test_records_in_two_files_are_told(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(lake, drained_file_of(5, 14, drain_seq=6))
    assert gaps.main([str(lake)]) == LOST  # a reader takes each record once all the same
    assert "twice in files: 10 (5 to 14)" in capsys.readouterr().out


def test_two_files_of_the_same_number_are_never_complete(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two machines drain as one edge: no offset needs to be missing."""
    store(tmp_path, drained_file_of(0, 9), drained_file_of(0, 9, epoch=EPOCH + 1))
    assert gaps.main([str(tmp_path)]) == MISSING
    assert "files OF THE SAME NUMBER: 1" in capsys.readouterr().out


def test_edges_are_chosen_by_name(lake: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file_of(lake, 3).unlink()
    assert gaps.main([str(lake), "--edge", "edge-2"]) == 0
    assert "edge-1" not in capsys.readouterr().out
    assert gaps.main([str(lake), "--edge", "*-1"]) == 1


def test_a_place_that_is_none_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gaps.main([str(tmp_path / "nowhere")]) == 2
    assert "is no directory" in capsys.readouterr().err


def test_a_lake_without_files_is_no_proof(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for how in ([], ["--json"]):  # a cron job is to notice a lake without a running bridge
        assert gaps.main([str(tmp_path), *how]) == 2
        said = capsys.readouterr().err.splitlines()[0]
        assert said == f"brim spark gaps: there are no drained files below {tmp_path}"


def test_a_wrong_argument_is_answered_with_the_command_that_people_type(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        gaps.main(["--frob"])
    assert capsys.readouterr().err.startswith("usage: brim spark gaps [-h]")


# ---- the landing zone below it ----


def test_a_file_under_two_days_is_one_file(lake: Path) -> None:
    path = file_of(lake, 3)
    other = path.parents[1] / "dt=2023-11-15"
    other.mkdir()
    (other / path.name).write_bytes(path.read_bytes())
    files = Landing(str(lake)).files()
    assert [file.name.drain_seq for file in files if file.name.edge == "edge-1"] == [1, 2, 3, 4, 5]


def test_other_things_in_the_lake_are_passed_over(lake: Path) -> None:
    day = file_of(lake, 1).parent
    (day / ".partial-x.brim").write_text("")
    (day / "README").write_text("")
    (lake / "_quarantine").mkdir()
    (lake / "edge=loose").write_text("")
    assert len(Landing(str(lake)).files()) == 6


def test_a_file_that_was_renamed_or_has_changed_is_not_read_as_another(lake: Path) -> None:
    landing = Landing(str(lake))
    files = landing.files(["edge-1"])
    path = Path(files[0].path)
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    with pytest.raises(DrainedFileError, match="bytes, and had"):
        landing.read(files[0].path, files[0].length)
    path.write_bytes(Path(files[2].path).read_bytes())
    with pytest.raises(DrainedFileError, match="has the name of another file"):
        landing.read(files[0].path, path.stat().st_size)
    path.unlink()
    with pytest.raises(DrainedFileError, match="is gone"):
        landing.read(files[0].path, files[0].length)


@pytest.mark.parametrize("only_pyarrow", [False, True])
def test_a_compressed_file_is_read_as_any_other(
    lake: Path, monkeypatch: pytest.MonkeyPatch, only_pyarrow: bool
) -> None:
    drained_file = drained_file_of(10, 400, drain_seq=2, edge="edge-2")
    store(lake, replace(compressed(drained_file), name=f"{drained_file.name}.zst"))
    for name in ("compression.zstd", "backports.zstd") if only_pyarrow else ():
        monkeypatch.setitem(sys.modules, name, None)
    landing = Landing(str(lake))
    (stored,) = [it for it in landing.files(["edge-2"]) if it.name.drain_seq == 2]
    assert (stored.name.compressed, landing.footer(stored.path, stored.length)) == (True, drained_file.footer)
    file = landing.read(stored.path, stored.length)
    assert file.body == b"".join(drained_file.parts[:-1])
    path = Path(stored.path)
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(DrainedFileError):
        verify(landing.read(stored.path, stored.length))


@pytest.mark.parametrize("below", [Path(), Path("edge=edge-1", "dt=2026-01-31")])
def test_parquet_files_alone_are_no_lake_with_nothing_in_it(tmp_path: Path, below: Path) -> None:
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    (tmp_path / below / "part-0.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceOptionError, match="none that a bridge has drained") as caught:
        Landing(str(tmp_path)).files()
    assert "spark.read.parquet" in caught.value.hint
    store(tmp_path, drained_file_of(0, 9))
    assert len(Landing(str(tmp_path)).files()) == 1


@pytest.mark.parametrize("below", ["edge=edge-1", "edge=edge-1/dt=2023-11-14"])
def test_a_directory_below_the_root_is_named_as_such(lake: Path, below: str) -> None:
    (lake / below).mkdir(exist_ok=True)
    with pytest.raises(SourceOptionError, match="is below the root") as caught:
        Landing(str(lake / below)).files()
    assert "option edge = 'edge-1'" in caught.value.hint


def test_a_root_is_a_path_or_a_url(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(lake.parent)
    for root in (str(lake), lake.as_uri(), "lake"):
        assert len(Landing(root).files()) == 6
    for root in ("nonsense://x", "/\udcff"):  # a path that is not UTF-8
        with pytest.raises(SourceOptionError, match="cannot be opened"):
            Landing(root).files()
