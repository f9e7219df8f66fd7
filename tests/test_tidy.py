"""House rules that a reader relies on: short functions, short modules, each opening with what it is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.house import PACKAGES, ROOT

LINE_CHARACTERS = 110
FUNCTION_LINES = 70
MODULE_LINES = 600
SPDX = "/* SPDX-License-Identifier: Apache-2.0\n"
LEFTOVER = re.compile(r"\b(FIX" + r"ME|TO" + r"DO|X" + r"XX)\b")
FOLDERS = (*PACKAGES, "benchmarks", "docs", "examples", "tests")

# A definition at the left margin whose brace ends its line or stands on the next; a structure ends in `};`.
C_FUNCTION = re.compile(r"^(?!typedef|struct|enum|union)\w[^;={}]*\)\s*\{\n(?:.*\n)*?\}$", re.MULTILINE)


def files(*suffixes: str) -> list[Path]:
    inside = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in suffixes]
    return sorted(path for path in inside if "__pycache__" not in path.parts)


PYTHON = [ROOT / "build.py", ROOT / "dev", *files(".py", ".pyi")]
C = files(".c", ".h")
PROSE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def python_functions(text: str) -> Iterator[tuple[str, int]]:
    """Name and lines of each function, those in classes and functions included."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """First line and lines of each function."""
    for match in C_FUNCTION.finditer(text):
        yield match.group().partition("\n")[0], match.group().count("\n") + 1


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*PYTHON, *C], ids=short)
def test_a_source_file_fits_the_page(path: Path) -> None:
    lines = path.read_text().splitlines()
    assert len(lines) <= MODULE_LINES
    assert [number for number, line in enumerate(lines, 1) if len(line) > LINE_CHARACTERS] == []


@pytest.mark.parametrize("path", [path for path in PYTHON if path.suffix != ".pyi"], ids=short)
def test_a_python_module_says_what_it_is_and_keeps_its_functions_short(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "no docstring"
    assert [name for name, lines in python_functions(text) if lines > FUNCTION_LINES] == []


@pytest.mark.parametrize("path", C, ids=short)
def test_a_c_file_says_what_it_is_and_keeps_its_functions_short(path: Path) -> None:
    text = path.read_text()
    assert text.startswith(SPDX)
    assert re.match(r" \*\n \* \S", text.removeprefix(SPDX)), "no opening comment"
    assert [name for name, lines in c_functions(text) if lines > FUNCTION_LINES] == []


@pytest.mark.parametrize("path", [*PYTHON, *C, *PROSE], ids=short)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert LEFTOVER.findall(path.read_text()) == []


def test_functions_are_found_in_both_languages() -> None:
    python = "class A:\n    async def one(self):\n        def two():\n            pass\n"
    assert dict(python_functions(python)) == {"one": 3, "two": 2}
    c = "static int one(int a,\n               int b)\n{\n    return a;\n}\n\nint two(void) {\n}\n"
    c += "typedef struct three {\n    int (*call)(void);\n} three;\nstatic const int four[] = {\n    1,\n};\n"
    assert list(c_functions(c)) == [("static int one(int a,", 5), ("int two(void) {", 2)]


@pytest.mark.parametrize("path", C, ids=short)
def test_no_function_of_the_c_core_goes_unseen(path: Path) -> None:
    """A function that the pattern missed would never be too long: each `}` alone at the margin ends one."""
    text = path.read_text()
    assert re.findall(r"^\}$", text, re.MULTILINE) == ["}"] * len(list(c_functions(text)))
