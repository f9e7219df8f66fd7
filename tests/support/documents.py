"""Documents as tests read them: Markdown files, their code blocks and commands."""

import importlib
import re
import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from edge.cli import VERBS
from tests.support.project import ROOT

README = ROOT / "README.md"
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [README, ARCHITECTURE, ROOT / "CONTRIBUTING.md", *PAGES]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_SHELL_PREFIX = re.compile(r"^(?:sudo |\w+=\S+ |/opt/brim/bin/)+")


class Block(NamedTuple):
    """A fenced block of code."""

    page: Path
    language: str
    text: str


def short(path: Path) -> str:
    """Path below the top folder, as the name of a test case."""
    return str(path.relative_to(ROOT))


def blocks(language: str, pages: list[Path] = DOCUMENTS) -> list[Block]:
    """Every fenced block of that language, in the order of the pages."""
    found = [Block(page, *match.groups()) for page in pages for match in _BLOCK.finditer(page.read_text())]
    return [block for block in found if block.language == language]


def block_of(page: str, language: str, begins: str = "") -> str:
    """The one block of a page whose text begins so."""
    found = [it.text for it in blocks(language, [ROOT / page]) if it.text.startswith(begins)]
    assert len(found) == 1, f"{page}: {len(found)} blocks of {language} begin with {begins!r}"
    return found[0]


def prose(page: Path) -> str:
    """The text of a page without its fenced blocks."""
    return _BLOCK.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Targets of all links."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Anchors of all headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", it).strip().lower()) for it in headings}


def commands(program: str) -> Iterator[tuple[Path, list[str]]]:
    """Page and words of each line in a shell block that calls `program`."""
    for block in blocks("sh"):
        for line in (_SHELL_PREFIX.sub("", line) for line in block.text.replace("\\\n", " ").splitlines()):
            if line.split(" ")[0] == program:
                yield block.page, shlex.split(line, comments=True)[1:]


def parse(words: list[str]) -> None:
    """Parse the words of a `brim` command as the program does, without running it.

    Raises SystemExit: the program refuses the words. Skips what only pyspark can parse where it is missing.
    """
    verb, *rest = words
    assert verb in VERBS, f"brim has no verb {verb}"
    parser = ArgumentParser(prog=f"brim {verb}")
    importlib.import_module(f"edge.cli.{verb}").add_arguments(parser)
    given = parser.parse_args(rest)
    if verb == "spark":
        job = importlib.import_module(f"bridge.spark.jobs.{given.job}")
        job.arguments().parse_args(given.arguments)
