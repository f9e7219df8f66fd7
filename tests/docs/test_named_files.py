"""Comments and docstrings name only files and modules that exist: a rename must not leave a false trail."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.support.project import ROOT
from tests.test_words import READERS, c_texts, files, python_texts

FILE = re.compile(r"(?<![\w./*{}<-])((?:[\w-]+/)*[\w-]+\.(?:py|c|h))\b(?!\()")
MODULE = re.compile(r"(?<![\w./])((?:bridge\.[a-z_]+|edge|persistence|ringbuf)(?:\.[a-z_]+)+)\b")
ELSEWHERE = {"Python.h", "daemon.py"}  # of CPython and PySpark
READ = {suffix: reader for suffix, reader in READERS.items() if reader in (python_texts, c_texts)}


@cache
def tails() -> set[str]:
    """Every path below the top folder, and each of its ends."""
    parts = [Path(name).parts for name in files()]
    return {"/".join(it[begin:]) for it in parts for begin in range(len(it))}


def is_module(name: str) -> bool:
    """True if a module, a package or a name in one of them is called so."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        head = ROOT.joinpath(*parts[:end])
        if (module := head.with_suffix(".py")).is_file() or (module := head / "__init__.py").is_file():
            return end == len(parts) or re.search(rf"\b{parts[end]}\b", module.read_text()) is not None
    return False


def false_trails(name: str, source: str) -> Iterator[str]:
    """One line per name of a file or module that does not exist."""
    for text in READ[Path(name).suffix](source):
        if text.kind in ("comment", "docstring"):
            wrong = [it for it in FILE.findall(text.text) if it not in tails() | ELSEWHERE]
            wrong += [it for it in MODULE.findall(text.text) if not is_module(it)]
            yield from (f"{name}:{text.line}: {it}" for it in wrong)


def test_comments_and_docstrings_name_files_that_exist() -> None:
    named = [name for name, path in files().items() if path.suffix in READ]
    assert len(named) > 500
    assert [trail for name in named for trail in false_trails(name, files()[name].read_text())] == []


def test_a_name_that_leads_nowhere_is_found() -> None:
    python = (
        '"""Reads (nowhere.py), mqtt/nothing.h and edge.mqtt.never; edge.mqtt.packets, ring.h exist."""\n'
    )
    assert [it.split(": ")[1] for it in false_trails("a.py", python)] == [
        "nowhere.py",
        "mqtt/nothing.h",
        "edge.mqtt.never",
    ]
    assert len(list(false_trails("a.c", "int a; /* see gone.c */\n"))) == 1
