"""Manual pages: one for each verb, with every option, and clean for mandoc and man."""

import argparse
import shutil
import subprocess
from pathlib import Path

import pytest

from docs.generate.manual import manuals
from edge import cli
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("man")
    for name, text in manuals().items():
        (made / name).write_text(text)
    return made


def test_each_verb_has_a_page() -> None:
    assert set(manuals()) == {"brim.1", *(f"brim-{verb}.1" for verb in cli.VERBS)}


@pytest.mark.skipif(shutil.which("mandoc") is None, reason="needs the Debian package mandoc")
def test_mandoc_finds_nothing_to_mend(directory: Path) -> None:
    command = ["mandoc", "-Tlint", "-Wstyle", *sorted(map(str, directory.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    # Pages refer to pages that are not installed yet.
    left = [line for line in done.stdout.splitlines() if "referenced manual not found" not in line]
    assert left == []


@pytest.mark.skipif(shutil.which("man") is None, reason="needs the Debian package man-db")
@pytest.mark.parametrize("verb", cli.VERBS)
def test_man_shows_each_option(directory: Path, verb: str) -> None:
    command = ["man", "--warnings", "-l", str(directory / f"brim-{verb}.1")]
    environment = {"MANWIDTH": "200", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=PATIENCE_S, env=environment
    )
    assert done.stderr == ""
    shown = done.stdout.replace("\u2010", "-").replace("\u2212", "-")
    for action in cli.parser_of(verb)._actions:
        if action.dest != "help" and action.help != argparse.SUPPRESS:
            assert all(name in shown for name in action.option_strings)
