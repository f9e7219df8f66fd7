"""The operator's page: verdicts, checks, and charts of what names and footers say; one file, no network."""

import json
import os
import re
import sys
from datetime import UTC, datetime
from html import escape, unescape
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("plotly", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.format.file_name import FileName
from bridge.spark.completeness import FileInfo, account
from bridge.spark.jobs import report
from bridge.spark.jobs.gaps import file_infos
from bridge.spark.landing_zone import StoredFile
from bridge.spark.report.absent_ranges import link_to
from bridge.spark.report.device_rows import Device
from bridge.spark.report.figure_style import LABEL_MAX
from bridge.spark.report.offset_strips import CELLS, offset_strips
from bridge.spark.report.stream_checks import StreamLimits, stream_rows
from bridge.spark.report.wording import count_in_words, seconds_in_words, shortened
from ringbuf.extras import install_extra
from tests.support.drained_files import CREATED_NS, T0_NS, drained_file_of, store

Said = pytest.CaptureFixture[str]

HOUR_S = 3600
HOSTILE = "<script>alert(1)</script><a href='https://x'>&%{x}</a>"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    made = [drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1) for seq in range(5)]
    made.append(drained_file_of(60, 69, drain_seq=6, lost=((50, 59),)))
    for number, path in enumerate(store(root, *made)):
        came = T0_NS / 1e9 + (2 * HOUR_S if number == 3 else 5)
        os.utime(path, (came, came))
    return root


def page_of(
    root: Path, devices: tuple[list[Device], int] | None = None, lag_max_s: float | None = None
) -> str:
    files, limits = file_infos(str(root)), StreamLimits(lag_max_s)
    checked = account(files)
    streams = stream_rows(files, checked, limits, T0_NS / 1e9 + 60)
    return report.report(
        str(root), files, checked, streams, limits=limits, devices=devices, now_s=T0_NS / 1e9 + 60
    )


def text_of(root: Path, target: Path, *words: str) -> tuple[int, str]:
    status = report.main([str(root), "--to", str(target), *words])
    return status, target.read_text()


def drawn(text: str) -> dict[str, Any]:
    """The charts of a page, by the word for them."""
    found = re.findall(
        r'<figure id="chart-(\w+)"[^>]*><script type="application/json">(.*?)</script>', text, re.DOTALL
    )
    return {name: json.loads(data) for name, data in found}


def strips(text: str) -> dict[str, list[tuple[int, int]]]:
    """Offsets in the cells of each state."""
    return {
        trace["name"]: [(row[1], row[2]) for row in trace["customdata"]]
        for trace in drawn(text)["offsets"]["data"]
        if trace["customdata"]
    }


def cells(text: str, heading: str) -> list[list[str]]:
    """Cells of the table under a heading, without tags."""
    table = text.partition(f"<h2>{heading}</h2>")[2].partition("</table>")[0]
    rows = re.findall(r"<tr>(<td.*?)</tr>", table, re.DOTALL)
    return [
        [
            " ".join(re.sub("<[^>]+>", " ", cell).split())
            for cell in re.findall(r"<td.*?</td>", row, re.DOTALL)
        ]
        for row in rows
    ]


@pytest.mark.parametrize(
    ("declared", "status", "verdict", "said"),
    [
        ({}, 0, "complete", "complete: nothing is missing, lost or skipped"),
        ({"skipped": ((10, 19),)}, 5, "skipped", "SKIPPED: 10 records were passed"),
        ({"lost": ((10, 19),)}, 4, "lost", "LOST: 10 records were overwritten"),
        ({"lost": ((10, 14),)}, 1, "missing", "MISSING: 5 records missing, 5 records lost"),
    ],
    ids=["complete", "skipped", "lost", "missing"],
)
def test_each_verdict_has_a_sentence_a_state_and_an_exit_status(
    tmp_path: Path, declared: dict[str, Any], status: int, verdict: str, said: str
) -> None:
    first = 20 if declared else 10
    store(tmp_path, drained_file_of(0, 9), drained_file_of(first, 29, drain_seq=2, **declared))
    found, text = text_of(tmp_path, tmp_path / "report.html")
    assert found == status
    assert f'<p class="verdict {verdict}" data-verdict="{verdict}">{said}' in text
    states = set(declared) | ({verdict} - {"complete"})
    assert set(strips(text)) == {"present", *states}
    assert {it[0] for it in cells(text, "Records that are not there")} == states
    (row,) = cells(text, "Checks of each edge and stream")
    assert row[2] == verdict
    assert {
        name for name, cell in zip(("missing", "lost", "skipped"), row[6:], strict=False) if name in cell
    } == states
    assert [cell for cell in row[6:9] if cell == "0 pass"] == ["0 pass"] * (3 - len(states))


def test_a_page_has_what_is_lost_the_files_next_to_it_and_how_late_the_rest_came(
    lake: Path, tmp_path: Path
) -> None:
    status, text = text_of(lake, tmp_path / "report.html")
    assert status == 4
    assert 'data-verdict="complete"' not in text
    assert strips(text) == {"present": [(0, 49), (60, 69)], "lost": [(50, 59)]}
    (row,) = cells(text, "Records that are not there")
    assert row[:6] == ["lost", "edge-1", "default/0", "1700000000", "50 to 59", "10"]
    before, after = re.findall(r'<a href="(file:[^"]+)">[56]</a>', text)[:2]
    paths = [Path(unquote(urlsplit(url).path)) for url in (before, after)]
    assert paths == sorted(lake.rglob("*.brim"))[4:]
    late = drawn(text)["late"]["data"][0]
    assert dict(zip(late["y"], late["x"], strict=True)) == {
        "within 1 s": 0,
        "within 10 s": 50,
        "within 1 min": 0,
        "within 10 min": 0,
        "within 1 h": 0,
        "within 1 day": 10,
        "later than 1 day": 0,
    }
    assert cells(text, "Files with the most lag")[0][-1] == "2.0 h"


def test_what_is_missing_or_cannot_be_read_is_on_the_page(lake: Path, tmp_path: Path) -> None:
    paths = sorted(lake.rglob("*.brim"))
    paths[1].unlink()
    paths[2].write_bytes(b"nothing")
    status, text = text_of(lake, tmp_path / "report.html")
    assert status == 1
    assert "MISSING: 10 records missing, 1 files missing, 1 files unreadable, 10 records lost" in text
    assert strips(text)["missing"] == [(10, 19)]
    assert cells(text, "Edges")[0][2] == "1 missing missing"
    assert cells(text, "Unreadable files")[0][0].endswith(paths[2].name)
    assert cells(text, "Checks of each edge and stream")[0][6] == "10, 1 files unreadable missing"


def test_a_limit_that_is_exceeded_fails_its_check_and_has_an_exit_status(
    tmp_path: Path, capsys: Said
) -> None:
    for number, path in enumerate(
        store(tmp_path, drained_file_of(0, 9), drained_file_of(0, 9, edge="edge-2"))
    ):
        came = T0_NS / 1e9 + (-30 if number else 100)
        os.utime(path, (came, came))
    target = tmp_path / "report.html"
    limits = ("--lag-max", "60", "--clock-max", "10", "--silent-max", "1e12")
    status, text = text_of(tmp_path, target, *limits, "--json")
    assert status == 6
    assert json.loads(capsys.readouterr().out) == {
        "page": str(target), "verdict": "complete", "files": 2, "above_limits": 2,
    }  # fmt: skip
    rows = cells(text, "Checks of each edge and stream")
    assert [row[9] for row in rows] == ["1.7 min fail", "0.0 s pass"]
    assert [row[11] for row in rows] == ["0.0 s pass", "30 s fail"]
    assert all(row[10].endswith("pass") for row in rows)
    assert text_of(tmp_path, target)[0] == 0
    assert "fail<" not in target.read_text()


def test_a_verdict_hides_no_limit_and_a_limit_no_verdict(lake: Path, tmp_path: Path) -> None:
    status, text = text_of(lake, tmp_path / "report.html", "--lag-max", "60")
    assert status == 4
    assert "1 of 1 streams are above a limit" in text


def test_a_loss_of_one_record_among_millions_is_a_cell_of_its_strip(tmp_path: Path) -> None:
    store(tmp_path, drained_file_of(0, 9))
    files = file_infos(str(tmp_path))
    (epoch,) = account(files).epochs
    epoch.expected, epoch.present, epoch.lost = (
        [(0, 9_999_999)],
        [(0, 4_999_998), (5_000_000, 9_999_999)],
        [(4_999_999, 4_999_999)],
    )
    figure, _ = offset_strips([epoch])
    (lost,) = [trace for trace in figure.data if trace.name == "lost"]
    assert lost.x[0] >= 1 / CELLS
    assert [row[3] for row in lost.customdata] == ["1 lost, 41,666 present"]
    assert sum(len(trace.x or ()) for trace in figure.data) == 3


def test_texts_of_a_device_cannot_break_the_page_or_a_chart(lake: Path) -> None:
    device = Device("edge-1", HOSTILE, 7, 1234, datetime(2026, 1, 31, tzinfo=UTC))
    text = page_of(lake, ([device], 1))
    assert "<script>alert" not in text
    assert unescape(cells(text, "Devices")[0][1]) == HOSTILE
    (bars, _) = drawn(text)["devices"]["data"]
    assert bars["customdata"] == [[escape(f"edge-1 {HOSTILE}")]]
    assert "<" not in re.findall(r'application/json">(.*?)</script>', text, re.DOTALL)[-1]


def test_a_page_in_a_browser_draws_its_charts_without_network_and_runs_no_script_of_a_topic(
    lake: Path, tmp_path: Path
) -> None:
    from tests.support.chromium import Chromium

    device = Device("edge-1", HOSTILE, 7, 1234, datetime(2026, 1, 31, tzinfo=UTC))
    target = tmp_path / "report.html"
    target.write_text(page_of(lake, ([device], 1), 60.0))
    with Chromium() as browser:
        tab = browser.page(width=1000, height=800)
        tab.open(target.as_uri())
        tab.until("document.querySelectorAll('figure .cartesianlayer').length === 5")
        labels = tab.value("[...document.querySelectorAll('figure .ytick text')].map((it) => it.textContent)")
        assert shortened(f"edge-1 {HOSTILE}", LABEL_MAX) in labels
        assert tab.value("document.querySelectorAll('figure a[*|href]').length") == 0
        assert tab.value("performance.getEntriesByType('resource').length") == 0
        assert tab.errors == []


def test_a_page_that_cannot_be_written_is_a_mistake_and_not_a_loss(
    lake: Path, tmp_path: Path, capsys: Said
) -> None:
    """Status 1 would say that something is missing."""
    assert report.main([str(lake), "--to", str(tmp_path / "nowhere" / "report.html")]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "nowhere/report.html" in said


def test_without_plotly_the_error_names_the_command_that_installs_it(
    lake: Path, tmp_path: Path, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("charts", "figure_style", "offset_strips", "page"):
        monkeypatch.delitem(sys.modules, f"bridge.spark.report.{name}")
        monkeypatch.delattr(f"bridge.spark.report.{name}")
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert report.main([str(lake), "--to", str(tmp_path / "report.html")]) == 2
    said, hint = capsys.readouterr().err.splitlines()
    assert said == "brim spark report: the report needs plotly, which is not installed"
    assert hint == f"  {install_extra('spark')}"


def test_an_empty_landing_zone_has_a_page(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    status, text = text_of(tmp_path / "lake", tmp_path / "report.html")
    assert status == 0
    assert set(drawn(text)) == {"offsets"}


def test_files_of_an_object_store_have_a_path_and_no_link() -> None:
    name = FileName("a", 1, "default", 0, 1, 0, 9, "2026-01-31")
    info = FileInfo(StoredFile(name, "/bucket/edge=a/x y.brim", 1, 0.0), None)
    assert link_to("s3://bucket", info) == ""
    assert link_to("/bucket", info) == "file:///bucket/edge%3Da/x%20y.brim"


@pytest.mark.parametrize(
    ("said", "words"),
    [(0.44, "0.4 s"), (12.0, "12 s"), (210.0, "3.5 min"), (7200.0, "2.0 h"), (4e5, "4.6 d")],
)
def test_seconds_are_said_as_one_would(said: float, words: str) -> None:
    assert seconds_in_words(said) == words


def test_counts_are_short() -> None:
    assert [count_in_words(it) for it in (7, 1200, 3_400_000, 5e9)] == ["7", "1.2 k", "3.4 M", "5.0 G"]


def test_volume_is_spread_over_the_time_of_a_file_and_empty_where_nothing_came(tmp_path: Path) -> None:
    """A file of twelve seconds, a minute of silence, and a file of one moment."""
    store(tmp_path, drained_file_of(0, 11_999), drained_file_of(72_000, 72_009, drain_seq=2))
    text = page_of(tmp_path)
    records, size = drawn(text)["volume"]["data"]
    assert len(records["x"]) == 73  # of a second each
    assert records["y"][:12] == pytest.approx([1000.0] * 12, rel=0.01)
    for values in (records["y"], size["y"]):
        assert set(values[12:72]) == {None}
        assert values[72] > 0
    assert size["yaxis"] == "y2"
    assert size["connectgaps"] is False
    assert drawn(text)["volume"]["layout"]["yaxis2"]["title"]["text"] == "bytes/s of files"


def test_streams_above_the_number_of_colours_are_summed_up_and_named(tmp_path: Path) -> None:
    store(tmp_path, *(drained_file_of(0, 9, edge=f"edge-{number}") for number in range(12)))
    bars = drawn(page_of(tmp_path))["volume"]["data"][:-1]
    assert bars[-1]["name"] == "4 others"
    assert len({bar["marker"]["color"] for bar in bars}) == len(bars)
    assert sum(sum(filter(None, bar["y"])) for bar in bars) == pytest.approx(120)


def test_a_clock_in_another_century_makes_a_page(tmp_path: Path) -> None:
    paths = store(
        tmp_path, drained_file_of(0, 9), drained_file_of(10, 19, drain_seq=2, created_ns=CREATED_NS + 1)
    )
    os.utime(paths[0], (5e9, 5e9))
    assert "lag" in drawn(page_of(tmp_path))
