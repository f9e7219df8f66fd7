"""The documents as a web site: built strictly, and readable without a network."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import PAGES
from tests.support.project import ROOT

# Resources that a browser loads without a click.
LOADS = re.compile(
    r"""<(?:script|img|iframe|link(?=[^>]*stylesheet))\b[^>]*?(?:src|href)=["']?(https?:|//)"""
)
STYLE_LOADS = re.compile(r"""(?:url\(|@import )\s*["']?(?:https?:|//)""")


def build(project: Path, into: Path) -> tuple[int, str]:
    """Exit status and standard error of a strict build of the documents of a checkout."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(into)]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    into = tmp_path_factory.mktemp("site")
    status, error = build(ROOT, into)
    assert status == 0, error
    return into


def test_links_that_lead_nowhere_fail_the_build_and_each_is_named(tmp_path: Path) -> None:
    links = ["nowhere.md", "how-to/sinks.md#nowhere", "#nowhere", "/how-to/sinks.md", "../README.md"]
    settings = (ROOT / "mkdocs.yml").read_text().partition("nav:\n")[0]  # of two pages, not of all
    (tmp_path / "mkdocs.yml").write_text(settings)
    (tmp_path / "docs/how-to").mkdir(parents=True)
    shutil.copy(ROOT / "docs/how-to/sinks.md", tmp_path / "docs/how-to")
    (tmp_path / "docs/index.md").write_text("# Links\n\n[right](how-to/sinks.md)\n")
    with (tmp_path / "docs/index.md").open("a") as page:
        page.writelines(f"\n[a link]({link})\n" for link in links)
    status, error = build(tmp_path, tmp_path / "site")
    warnings = [line for line in error.splitlines() if "WARNING" in line and "index.md" in line]
    assert (status, len(warnings)) == (1, len(links)), error
    assert [link for link in links if not any(f"'{link}'" in line for line in warnings)] == []


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
