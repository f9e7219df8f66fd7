"""What a run leaves for people: made from small numbers, and looked at as a browser would, offline."""

import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from examples.demo.journal import JournalFile
from examples.demo.lake import Aggregate, Arrived, Lake
from examples.demo.ledger import Stage, build
from examples.demo.page import render
from examples.demo.plots import Outage, Sample, draw
from examples.demo.report import Report, print_ledger, print_table
from examples.demo.tally import Tally

BEGIN = 1_795_248_000
DEVICES = ("host/a/cpu/0", "host/a/cpu/1", "host/a/disk/vda", "replay/<b>/load")


def make_report(*, lose: int = 0) -> Report:
    acked, seen = Tally(), Tally()
    acked.expect("host/a/cpu/0", 10)
    seen.expect("host/a/cpu/0", 10 - lose)
    stages = [Stage(name, 10, 0, 0, seen) for name in ("shared memory", "in the table")]
    ledger = build([JournalFile("amqtt", {"host/a/cpu/0": 10}, acked, {})], stages)
    seconds = [Aggregate(device, BEGIN + n, 3, float(n), 0.0, 9.0) for device in DEVICES for n in range(20)]
    minutes = [Aggregate(device, BEGIN, 60, 2.5, 0.0, 1_234_567.0) for device in DEVICES]
    lake = Lake("Spark 4.3.0", 3.0, 10, 0, 0, minutes, seconds, [("bronze", 1.0, "10 rows")], seen)
    samples = [Sample(BEGIN + n / 2, n, n, n, n, max(n - 4, 0), n) for n in range(40)]
    outages = [Outage("sink cut off", BEGIN + 5, BEGIN + 8, "#b7791f")]
    arrived = Arrived(3, 4_000_000, 10, 0, 0)
    events = [(BEGIN + 1.0, "it <began> & went on")]
    return Report(ledger, lake, arrived, samples, outages, events, "a & b", BEGIN, BEGIN + 20)


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
