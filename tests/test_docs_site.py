"""The documents as a web site: built strictly, and readable without a network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import PAGES
from tests.support.house import ROOT

# What a browser loads by itself; a link that a reader follows is no load.
LOADS = re.compile(
    r"""<(?:script|img|iframe|link(?=[^>]*stylesheet))\b[^>]*?(?:src|href)=["']?(https?:|//)"""
)
STYLE_LOADS = re.compile(r"""(?:url\(|@import )\s*["']?(?:https?:|//)""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(into)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return into


def test_every_page_is_built(site: Path) -> None:
    expected = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in PAGES}
    assert expected <= {path.relative_to(site) for path in site.rglob("*.html")}


def test_a_page_loads_nothing_from_other_places(site: Path) -> None:
    pages, styles = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert len(pages) >= len(PAGES)
    assert styles
    assert [path.name for path in pages if LOADS.search(path.read_text())] == []
    assert [path.name for path in styles if STYLE_LOADS.search(path.read_text())] == []


def test_a_load_from_another_place_is_found() -> None:
    for text in (
        '<script src="https://a.example/b.js">',
        '<link rel="stylesheet" href="https://a.example/b.css">',
        '<link href="//a.example/b.css" rel="stylesheet">',
        "<img src=https://a.example/b.png>",
    ):
        assert LOADS.search(text), text
    assert not LOADS.search('<a href="https://a.example">')
    assert STYLE_LOADS.search('@import "https://a.example/b.css"')
