"""Plain words: texts use neither the openers nor the words that the house rules ban, and no false names.

The scanner reads docstrings, comments, headings of Markdown documents, help texts, log lines and errors.
Comments and docstrings name only files and modules that exist: a rename must not leave a false trail.
FOLDERS lists the folders and files of the root, each with everything below it.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.project import ROOT

FOLDERS = (
    "benchmarks", "bridge", "brim", "build.py", "docs", "edge", "examples", "persistence", "release",
    "ringbuf", "tests",
    "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "README.md",
)  # fmt: skip

OPENER = re.compile(r"\W*(What|Who|Whose|Whom|Where|When|Whether|How)\b(?! -)")
OPENER_REMEDY = "begin with a noun phrase or an imperative; Booleans: 'True if ...'"
FREE = "comment"
"""Kind that an opener may begin: a comment inside a function may say `When the ring is full, ...`."""

PROGRAM = (
    "broker|bridge|engine|server|client|publisher|subscriber|consumer|session|ring|log|journal|reader|writer|"
    "kernel|loop|thread|process|sink|store|socket|plug-in|drain|listener|router|core|listeners|peer"
)
BANNED = {
    r"\bwhoever\b": "name the role: 'the caller', 'the client'",
    r"\bnobody\b": "'no reader', 'no client', 'no subscription'",
    r"\bof ours\b": "name the owner: 'of this broker', 'of this process'",
    r"\band its kin\b": "name the others, or 'and similar errors'",
    r"(?<!there\s)\b(is|are) (?-i:none)\b": "'is not', 'is absent', 'is invalid'",
    r"\banew\b": "'again' or 'new'",
    r"\bbeside\b": "'next to', 'together with', 'in addition to'",
    r"\b(put|puts|putting) aside\b": "'renamed', 'moved to PLACE'",
    r"\b(let|lets|letting) go\b": "'release', 'close', 'forget'",
    r"\bon (its|their) way\b": "'in flight', 'not yet delivered'",
    r"\bas far as\b": "'up to', 'as much as', 'if'",
    r"\bin vain\b": "'without effect', 'fails'",
    r"\bgo(es)? on\b(?! the\b)": "'continue'",
    r"\b(is|are|was|were|be|been|being) (told|asked|heard|welcome|believed)\b": (
        "'notified', 'requested', 'received', 'accepted', 'verified'"
    ),
    rf"\b({PROGRAM})s? (say|tell|ask|want|hear|trust)s?\b": "'report', 'notify', 'request', 'accept'",
    rf"\b({PROGRAM})s? (said|told|wanted|heard|trusted)\b": "'reported', 'notified', 'required', 'received'",
}
PATTERNS = [
    (re.compile(words.replace(" ", r"\s+"), re.IGNORECASE), remedy) for words, remedy in BANNED.items()
]
CODE = re.compile(r"`[^`]*`")
LOG_CALLS = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})


class Text(NamedTuple):
    """A piece of prose with the line it begins on; continuation lines keep their line breaks."""

    kind: str
    line: int
    text: str


class Finding(NamedTuple):
    """A banned opener or word."""

    line: int
    kind: str
    found: str
    remedy: str


def literal(node: ast.expr) -> str | None:
    """The constant text of an expression, or the constant beginning of an f-string."""
    if isinstance(node, ast.JoinedStr):
        node = node.values[0] if node.values else node
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def string_of(node: ast.AST) -> tuple[str, ast.expr] | None:
    """Kind and expression of the docstring, log line, error or help text that a syntax node holds."""
    match node:
        case ast.Expr(value=ast.Constant() as value):
            return "docstring", value
        case ast.Raise(exc=ast.Call(args=[first, *_])):
            return "error", first
        case ast.Call(func=ast.Attribute(attr=name), args=[first, *_]) if name in LOG_CALLS:
            return "log", first
        case ast.keyword(arg="help" | "description" | "epilog", value=value):
            return "help", value
    return None


def python_texts(source: str) -> Iterator[Text]:
    """Docstrings (those after an attribute included), log lines, errors, help texts and comments."""
    for node in ast.walk(ast.parse(source)):
        found = string_of(node)
        if found and (text := literal(found[1])) is not None:
            yield Text(found[0], found[1].lineno, text)
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] != block[-1][0] + 1:
            yield Text("comment", block[0][0], "\n".join(line for _, line in block))
            block = []
        block.append((token.start[0], token.string.lstrip("#!: ")))
    if block:
        yield Text("comment", block[0][0], "\n".join(line for _, line in block))


C_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.DOTALL)
C_MARK = re.compile(r"^[ \t]*(/\*+|\*/|\*|//)?[ \t]?|\*/$", re.MULTILINE)
LICENSE = re.compile(r"^SPDX-License-Identifier:.*$", re.MULTILINE)


def c_texts(source: str) -> Iterator[Text]:
    """Comments; those at the left margin describe a file or a declaration, so they count as docstrings."""
    for match in C_TOKEN.finditer(source):
        if not match.group().startswith("/"):
            continue
        text = LICENSE.sub("", C_MARK.sub("", match.group()))
        margin = match.start() == 0 or source[match.start() - 1] == "\n"
        yield Text("docstring" if margin else "comment", source.count("\n", 0, match.start()) + 1, text)


def markdown_texts(source: str) -> Iterator[Text]:
    """Headings outside of code blocks."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        fenced ^= line.lstrip().startswith("```")
        if not fenced and re.match(r"#+ ", line):
            yield Text("heading", number, line.lstrip("# "))


READERS = {".py": python_texts, ".pyi": python_texts, ".c": c_texts, ".h": c_texts, ".md": markdown_texts}


def line_of(text: Text, place: int) -> int:
    return text.line + text.text.count("\n", 0, place)


def findings(text: Text) -> Iterator[Finding]:
    """Each banned opener and word of a text; names in backticks are left out."""
    text = text._replace(text=CODE.sub(lambda match: re.sub(r"[^\n]", "_", match.group()), text.text))
    if text.kind != FREE and (match := OPENER.match(text.text)):
        yield Finding(line_of(text, match.start(1)), text.kind, match[1], OPENER_REMEDY)
    if text.kind == "docstring" and text.text.strip() in {"It.", "It"}:
        yield Finding(text.line, text.kind, "It", "name the thing")
    for pattern, remedy in PATTERNS:
        for match in pattern.finditer(text.text):
            yield Finding(line_of(text, match.start()), text.kind, match.group(), remedy)


@cache
def files() -> dict[str, Path]:
    """Source files and documents by path from the root, without folders that a build or a tool made."""
    made = re.compile(r"(^|/)(\.[^/]*|__pycache__|build|dist|site|node_modules|[^/]*\.egg-info)/")
    found = {str(path.relative_to(ROOT)): path for path in ROOT.rglob("*") if path.suffix in READERS}
    return {name: path for name, path in sorted(found.items()) if not made.search(name) and path.is_file()}


@cache
def texts(name: str) -> list[Text]:
    """Texts of a file, read once for all rules."""
    return list(READERS[files()[name].suffix](files()[name].read_text()))


def covers(folder: str, name: str) -> bool:
    return name == folder or name.startswith(folder + "/")


def complaints(name: str) -> Iterator[str]:
    """One line per finding of a file: place, text and remedy."""
    lines = files()[name].read_text().splitlines()
    for text in texts(name):
        for line, kind, found, remedy in findings(text):
            yield f"{name}:{line}: {found!r} in a {kind}: {lines[line - 1].strip()!r}; write {remedy}"


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_stays_in_plain_words(folder: str) -> None:
    names = [name for name in files() if covers(folder, name)]
    assert names, f"{folder} is no longer there: name the folder that its files moved to"
    assert [line for name in names for line in complaints(name)] == []


def test_each_file_is_in_a_folder_of_the_list() -> None:
    assert [name for name in files() if not any(covers(folder, name) for folder in FOLDERS)] == []


PYTHON = '''"""{}"""
# {}
log.warning("{}", 1)
raise ValueError(f"{} {{x}}")
add(help="{}")
class A:
    x: int
    """{}"""
    async def f(self):
        """{}"""
'''
PLAIN = "Ring reader."


def planted(place: int, text: str) -> list[Finding]:
    source = PYTHON.format(*[text if number == place else PLAIN for number in range(7)])
    return [finding for found in python_texts(source) for finding in findings(found)]


PLACES = [
    (0, 1, "docstring"),
    (2, 3, "log"),
    (3, 4, "error"),
    (4, 5, "help"),
    (5, 8, "docstring"),
    (6, 10, "docstring"),
]


@pytest.mark.parametrize(("place", "line", "kind"), PLACES)
@pytest.mark.parametrize("opener", ["What", "Who", "Whose", "Where", "When", "Whether", "How"])
def test_an_opener_is_found_with_its_line(opener: str, place: int, line: int, kind: str) -> None:
    assert planted(place, f"{opener} a record is") == [Finding(line, kind, opener, OPENER_REMEDY)]


@pytest.mark.parametrize("place", range(7))
def test_a_banned_word_is_found_in_every_kind_of_text(place: int) -> None:
    (finding,) = planted(place, "A record for nobody.")
    assert (finding.found, finding.remedy) == ("nobody", "'no reader', 'no client', 'no subscription'")


def test_a_docstring_that_is_only_it_is_found() -> None:
    assert [finding.found for finding in planted(6, "It.")] == ["It"]


def test_plain_texts_pass() -> None:
    assert planted(0, PLAIN) == []
    assert planted(1, "When the ring is full, the oldest record is overwritten.") == []
    assert planted(6, "None if there is none. True if the value is None.") == []
    assert planted(6, "The value of `what`, `anew` and `nobody`.") == []
    assert planted(6, "However long the queue is. Somewhere. Besides.") == []


def test_a_banned_phrase_is_found_across_lines() -> None:
    python = "x = 1\n# Records that are on\n# their way.\n"
    (finding,) = (finding for text in python_texts(python) for finding in findings(text))
    assert (finding.line, finding.kind) == (2, "comment")
    c = "/*\n * Records that\n * are as\n * far as.\n */"
    (finding,) = (finding for text in c_texts(c) for finding in findings(text))
    assert (finding.line, finding.kind) == (3, "docstring")


def test_comments_of_c_are_read_and_strings_are_not() -> None:
    source = '/* SPDX-License-Identifier: Apache-2.0\n *\n * When it is due.\n */\nchar *a = "/* nobody";\n'
    source += "/* How many. */\nint f(void) {\n    /* When due: nobody waits. */\n    return 1; // Anew.\n}\n"
    found = [(f.line, f.kind, f.found) for text in c_texts(source) for f in findings(text)]
    assert found == [
        (3, "docstring", "When"),
        (6, "docstring", "How"),
        (8, "comment", "nobody"),
        (9, "comment", "Anew"),
    ]


def test_headings_are_read_and_code_blocks_are_not() -> None:
    source = "# Brim\n\n## What the log keeps\n\nWhat follows.\n\n```sh\n# How to\n```\n\n### How to\n"
    found = [(f.line, f.kind, f.found) for text in markdown_texts(source) for f in findings(text)]
    assert found == [(3, "heading", "What"), (11, "heading", "How")]


FILE = re.compile(r"(?<![\w./*{}<-])((?:[\w-]+/)*[\w-]+\.(?:py|c|h))\b(?!\()")
MODULE = re.compile(r"(?<![\w./])((?:bridge\.[a-z_]+|edge|persistence|ringbuf)(?:\.[a-z_]+)+)\b")
ELSEWHERE = {"Python.h", "daemon.py"}  # of CPython and PySpark


@cache
def tails() -> set[str]:
    """Every path below the top folder, and each of its ends."""
    parts = [Path(name).parts for name in files()]
    return {"/".join(it[begin:]) for it in parts for begin in range(len(it))} | ELSEWHERE


@cache
def is_module(name: str) -> bool:
    """True if a module, a package or a name in one of them is called so."""
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        head = ROOT.joinpath(*parts[:end])
        if (module := head.with_suffix(".py")).is_file() or (module := head / "__init__.py").is_file():
            return end == len(parts) or re.search(rf"\b{parts[end]}\b", module.read_text()) is not None
    return False


def false_trails(name: str, found: Iterable[Text]) -> Iterator[str]:
    """One line per name of a file or module that does not exist."""
    for text in found:
        if text.kind in ("comment", "docstring"):
            wrong = [it for it in FILE.findall(text.text) if it not in tails()]
            wrong += [it for it in MODULE.findall(text.text) if not is_module(it)]
            yield from (f"{name}:{text.line}: {it}" for it in wrong)


def test_comments_and_docstrings_name_files_that_exist() -> None:
    named = [name for name, path in files().items() if path.suffix != ".md"]
    assert len(named) > 500
    assert [trail for name in named for trail in false_trails(name, texts(name))] == []


def test_a_name_that_leads_nowhere_is_found() -> None:
    python = (
        '"""Reads (nowhere.py), mqtt/nothing.h and edge.mqtt.never; edge.mqtt.packets, ring.h exist."""\n'
    )
    assert [it.split(": ")[1] for it in false_trails("a.py", python_texts(python))] == [
        "nowhere.py",
        "mqtt/nothing.h",
        "edge.mqtt.never",
    ]
    assert len(list(false_trails("a.c", c_texts("int a; /* see gone.c */\n")))) == 1
