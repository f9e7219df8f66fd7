"""House rules that a reader relies on: short functions, short modules, each opening with what it is."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.project import PACKAGES, ROOT

LINE_CHARACTERS = 110
FUNCTION_LINES = 70
MODULE_LINES = 600
C_OPENING = re.compile(r"/\* SPDX-License-Identifier: Apache-2\.0\n \*\n \* \S")
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


def python_functions(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Name and lines of each function, those in classes and functions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def c_functions(text: str) -> Iterator[tuple[str, int]]:
    """First line and lines of each function."""
    for match in C_FUNCTION.finditer(text):
        yield match.group().partition("\n")[0], match.group().count("\n") + 1


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_a_source_file_fits_the_page() -> None:
    offences = []
    for path in [*PYTHON, *C]:
        lines = path.read_text().splitlines()
        offences += [f"{short(path)}: {len(lines)} lines"] if len(lines) > MODULE_LINES else []
        wide = (number for number, line in enumerate(lines, 1) if len(line) > LINE_CHARACTERS)
        offences += [f"{short(path)}:{number}: over {LINE_CHARACTERS} characters" for number in wide]
    assert offences == []


def test_a_python_module_says_what_it_is_and_keeps_its_functions_short() -> None:
    offences = []
    for path in (path for path in PYTHON if path.suffix != ".pyi"):
        tree = ast.parse(path.read_text())
        offences += [] if ast.get_docstring(tree) else [f"{short(path)}: no docstring"]
        offences += [
            f"{short(path)}: {name}" for name, lines in python_functions(tree) if lines > FUNCTION_LINES
        ]
    assert offences == []


def test_a_c_file_says_what_it_is_and_keeps_its_functions_short() -> None:
    offences = []
    for path in C:
        text = path.read_text()
        offences += [] if C_OPENING.match(text) else [f"{short(path)}: no license and opening comment"]
        offences += [f"{short(path)}: {name}" for name, lines in c_functions(text) if lines > FUNCTION_LINES]
    assert offences == []


def test_nothing_is_left_for_later() -> None:
    found = [(short(path), LEFTOVER.findall(path.read_text())) for path in [*PYTHON, *C, *PROSE]]
    assert [(name, words) for name, words in found if words] == []


def test_every_kind_of_file_is_looked_at() -> None:
    """A folder that moves must not leave these rules with nothing to read."""
    names = {short(path) for path in [*PYTHON, *C, *PROSE]}
    assert {"dev", "build.py", "edge/errors.py", "tests/conftest.py", "README.md"} <= names
    assert all(len(paths) > 30 for paths in (PYTHON, C, PROSE))


def test_functions_are_found_in_both_languages() -> None:
    python = "class A:\n    async def one(self):\n        def two():\n            pass\n"
    assert dict(python_functions(ast.parse(python))) == {"one": 3, "two": 2}
    c = "static int one(int a,\n               int b)\n{\n    return a;\n}\n\nint two(void) {\n}\n"
    c += "typedef struct three {\n    int (*call)(void);\n} three;\nstatic const int four[] = {\n    1,\n};\n"
    assert list(c_functions(c)) == [("static int one(int a,", 5), ("int two(void) {", 2)]


def test_no_function_of_the_c_core_goes_unseen() -> None:
    """A function that the pattern missed would never be too long: each `}` alone at the margin ends one."""
    counts = [
        (short(path), len(re.findall(r"^\}$", text, re.MULTILINE)), len(list(c_functions(text))))
        for path in C
        for text in [path.read_text()]
    ]
    assert [count for count in counts if count[1] != count[2]] == []


def test_an_include_guard_has_the_name_of_its_file() -> None:
    """BRIM_, perhaps the name of a folder, and the name of the file: an old name would be a false trail."""
    found = [
        (short(path), match[1])
        for path in C
        if path.suffix == ".h"
        for match in re.finditer(r"^#ifndef (\w+)\n#define \1$", path.read_text(), re.MULTILINE)
    ]
    assert len(found) > 20
    wrong = [
        (name, guard)
        for name, guard in found
        if guard not in {f"BRIM_{name}_H" for name in _guard_names(Path(name))}
    ]
    assert wrong == []


def _guard_names(path: Path) -> set[str]:
    own = path.stem.upper()
    return {own, *(f"{folder.upper()}_{own}" for folder in path.parts[:-1])}
