"""The operator's page: the verdict, and drawings of what names and footers say; one file, no network."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.spark.completeness import account
from bridge.spark.jobs import report, report_html
from bridge.spark.jobs.gaps import file_infos
from tests.support.drained_files import T0_NS, drained_file_of, store

HOUR_S = 3600


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    made = [drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1) for seq in range(5)]
    made.append(drained_file_of(60, 69, drain_seq=6, lost=((50, 59),)))
    for number, path in enumerate(store(root, *made)):
        came = T0_NS / 1e9 + (2 * HOUR_S if number == 3 else 5)
        os.utime(path, (came, came))
    return root


def drawn(text: str) -> list[ET.Element]:
    """The drawings, which must be well formed."""
    return [ET.fromstring(it) for it in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


@pytest.mark.parametrize(
    ("declared", "status", "said", "colour"),
    [
        ({}, 0, '<p class="good">complete: nothing is missing, lost or skipped</p>', None),
        (
            {"skipped": ((10, 19),)},
            5,
            '<p class="skipped">SKIPPED: 10 records were passed',
            report_html.SKIPPED,
        ),
        ({"lost": ((10, 19),)}, 4, '<p class="lost">LOST: 10 records were overwritten', report_html.LOST),
    ],
    ids=["complete", "skipped", "lost"],
)
def test_each_verdict_has_a_sentence_a_colour_and_an_exit_status(
    tmp_path: Path, declared: dict[str, Any], status: int, said: str, colour: str | None
) -> None:
    first = 20 if declared else 10
    store(tmp_path, drained_file_of(0, 9), drained_file_of(first, 29, drain_seq=2, **declared))
    target = tmp_path / "report.html"
    assert report.main([str(tmp_path), "--to", str(target)]) == status
    text = target.read_text()
    assert said in text
    assert {it.get("fill") for it in drawn(text)[0].iter()} - {None, report_html.GOOD} == {colour} - {None}


def test_a_page_says_what_is_lost_and_how_late_the_rest_came(lake: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert report.main([str(lake), "--to", str(target)]) == 4
    text = target.read_text()
    assert "<td>lost</td><td>10</td>" in text
    assert "<td>records</td><td>60</td>" in text
    strip, _, _, lags, late = drawn(text)
    assert {it.get("fill") for it in strip.iter() if it.get("fill")} == {report_html.GOOD, report_html.LOST}
    assert any("2.0 h" in (it.text or "") for it in lags.iter())
    said = [it.text for it in late.iter() if it.text and "records" in it.text]
    assert said == [
        "0 records",
        "50 records",
        "0 records",
        "0 records",
        "0 records",
        "10 records",
        "0 records",
    ]
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|<script", text)


def test_what_is_missing_or_cannot_be_read_is_on_the_page(lake: Path, tmp_path: Path) -> None:
    paths = sorted(lake.rglob("*.brim"))
    paths[1].unlink()
    paths[2].write_bytes(b"nothing")
    target = tmp_path / "report.html"
    assert report.main([str(lake), "--to", str(target)]) == 1
    text = target.read_text()
    assert "10 records and 1 files are missing, 1 files unreadable" in text
    strip = drawn(text)[0]
    assert report_html.BAD in {it.get("fill") for it in strip.iter()}


def test_devices_of_a_table_are_shown_and_their_names_cannot_break_the_page(lake: Path) -> None:
    files = file_infos(str(lake))
    device = report.Device("edge-1", "<script>alert(1)</script>&", 7, 1234, datetime(2026, 1, 31, tzinfo=UTC))
    text = report.report(str(lake), files, account(files), ([device], 1))
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "2026-01-31 00:00:00" in text
    assert drawn(text)


def test_a_page_that_cannot_be_written_is_a_mistake_and_not_a_loss(
    lake: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Status 1 would say that something is missing."""
    assert report.main([str(lake), "--to", str(tmp_path / "nowhere" / "report.html")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "nowhere/report.html" in said


def test_an_empty_landing_zone_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    assert report.main([str(tmp_path / "lake"), "--to", str(tmp_path / "report.html")]) == 0
    assert drawn((tmp_path / "report.html").read_text())


@pytest.mark.parametrize(
    ("said", "words"),
    [(0.44, "0.4 s"), (12.0, "12 s"), (210.0, "3.5 min"), (7200.0, "2.0 h"), (4e5, "4.6 d")],
)
def test_seconds_are_said_as_one_would(said: float, words: str) -> None:
    assert report_html.seconds_in_words(said) == words


def test_counts_are_short() -> None:
    assert [report_html.count_in_words(it) for it in (7, 1200, 3_400_000, 5e9)] == [
        "7",
        "1.2 k",
        "3.4 M",
        "5.0 G",
    ]


def heights(text: str) -> list[float]:
    """Points of the first line that is drawn: how high above the axis, as a share of the highest."""
    (line,) = [it for it in drawn(text)[1].iter() if it.tag.endswith("polyline")]
    ys = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    bottom, top = 180.0, min(ys)
    return [(bottom - y) / (bottom - top) for y in ys]


def test_volume_is_spread_over_the_time_of_a_file_and_zero_where_nothing_came(tmp_path: Path) -> None:
    """A file of twelve seconds, a minute of silence, and a file of one moment."""
    store(tmp_path, drained_file_of(0, 11_999), drained_file_of(72_000, 72_009, drain_seq=2))
    files = file_infos(str(tmp_path))
    found = heights(report.report(str(tmp_path), files, account(files)))
    assert len(found) == 73  # of a second each
    assert found[:12] == pytest.approx([1.0] * 12, abs=0.01)
    assert set(found[12:72]) == {0.0}
    assert found[72] > 0
