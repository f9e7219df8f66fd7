"""The page of a run: made from small numbers, and opened in a browser, offline."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from examples.demo.page import render
from examples.demo.plots import draw
from examples.demo.report import print_ledger, print_table
from tests.support.demo_report import make_report


class Loads(HTMLParser):
    """Everything that a browser would fetch, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {"src", "href", "xlink:href", "data", "action"}
        self.fetched += [
            value for name, value in attrs if name in names and value and not value.startswith("#")
        ]
        self.fetched += [tag] if tag in {"script", "link", "iframe", "object"} else []

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    report, png = make_report(), tmp_path_factory.mktemp("plots") / "plots.png"
    return draw(report.lake, report.samples, report.outages, png), png


def test_the_page_fetches_nothing(picture: tuple[str, Path]) -> None:
    page = render(make_report(), picture[0], [("./dev demo", "again")])
    loads = Loads()
    loads.feed(page)
    assert loads.fetched == []
    assert not re.search(r"@import|url\((?!#)", page)


def test_the_page_says_what_happened_and_escapes_what_it_was_told(picture: tuple[str, Path]) -> None:
    page = render(make_report(), picture[0], [])
    assert "it &lt;began&gt; &amp; went on" in page
    assert "<began>" not in page
    loads = Loads()
    loads.feed(page)
    text = " ".join(loads.text)
    for words in ("0 lost, 0 duplicated", "sink cut off, 3.0 s", "replay/<b>/load", "1.2 MB/s", "10 rows"):
        assert words in text


def test_the_page_of_a_run_that_does_not_match_says_so_first(picture: tuple[str, Path]) -> None:
    page = render(make_report(lose=2), picture[0], [])
    assert "The ledger does not match." in page
    assert "2 acknowledged messages are missing: host/a/cpu/0 8, host/a/cpu/0 9" in page
    assert "0 lost" not in page


def test_the_picture_is_whole_svg_and_png(picture: tuple[str, Path]) -> None:
    svg, png = picture
    assert ET.fromstring(svg).tag.endswith("svg")
    assert png.read_bytes().startswith(b"\x89PNG")


def test_a_terminal_gets_the_same_numbers() -> None:
    console = Console(width=110, record=True, file=None, quiet=False, force_terminal=False)
    with console.capture() as capture:
        report = make_report(lose=2)
        print_table(console, report.lake)
        print_ledger(console, report.ledger)
    text = capture.get()
    assert re.search(r"host/a/disk/vda +60 +2 B/s +1.2 MB/s", text)
    assert re.search(r"in the table +8 +10 +2 +2 +0 +0", text)
    assert "does NOT match" in text
