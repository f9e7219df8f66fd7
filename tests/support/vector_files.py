"""The scenarios of tests/golden/mqtt/vectors, as values.  Their README.md says how they are written."""

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

VECTORS = Path(__file__).parent.parent / "golden" / "mqtt" / "vectors"

_STEP = re.compile(r"(?P<who>[a-z]\d?) (?P<verb>joins|>|<|closed|refused|silent|drops)(?: (?P<rest>.*))?$")
_STATEMENT = re.compile(r"\[MQTT-[\d.]+-\d+\]|\[\d+\.\d[\d.]*\]")


@dataclass(frozen=True)
class Step:
    """`who` is a connection, or "" for what happens to time."""

    who: str
    verb: str
    rest: str
    line: int

    def text(self, own: str) -> str:
        """`rest` with what belongs to this run of the scenario."""
        return self.rest.replace("{id}", own).replace("{me}", self.who)


@dataclass(frozen=True)
class Scenario:
    """Actions of clients, and the answers required."""

    file: str
    line: int
    name: str
    statements: tuple[str, ...]
    steps: tuple[Step, ...]
    mosquitto_differs: str  # why Mosquitto 2.0.11 fails it; "": it does not

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.name}"

    @property
    def needs_time(self) -> bool:
        """True if the scenario waits; it needs a clock that can be set."""
        return any(step.verb == "later" for step in self.steps)


def scenarios(*files: str) -> list[Scenario]:
    """All of them, or those of some files, in their order."""
    paths = [VECTORS / file for file in files] or sorted(VECTORS.glob("*.txt"))
    return [scenario for path in paths for scenario in _read(path)]


def _read(path: Path) -> list[Scenario]:
    found: list[Scenario] = []
    section: tuple[str, ...] = ()
    line = 1
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        lines = block.strip("\n").split("\n")
        line += block[: len(block) - len(block.lstrip("\n"))].count("\n")
        if lines[0].startswith("## "):
            section = tuple(_STATEMENT.findall(lines[0]))
        elif len(lines) > 1 and not lines[0].startswith("#!"):
            found += _expand(path.name, line, lines, section)
        line += block.lstrip("\n").count("\n") + 2
    return found


def _expand(file: str, line: int, lines: list[str], section: tuple[str, ...]) -> list[Scenario]:
    """One scenario for each row of its tables."""
    assert lines[0].startswith("# "), f"{file}:{line}: no title: {lines[0]!r}"
    tables = []
    steps = []
    differs = []
    for number, text in enumerate(lines[1:], line + 1):
        if text.startswith("~ "):
            differs.append(text[2:])
        elif text.startswith("each "):
            tables.append(_table(text[5:], f"{file}:{number}"))
        elif text.startswith("later "):
            steps.append(Step("", "later", text[6:], number))
        elif not text.startswith("# "):
            step = _STEP.match(text)
            assert step, f"{file}:{number}: no step: {text!r}"
            steps.append(Step(step["who"], step["verb"], step["rest"] or "", number))
    found = []
    for rows in itertools.product(*tables):
        values = {name: value for row in rows for name, value in row.items()}
        name = _fill(lines[0][2:], values)
        statements = tuple(_STATEMENT.findall(name)) or section
        assert statements, f"{file}:{line}: names no statement: {name}"
        filled = tuple(Step(s.who, s.verb, _fill(s.rest, values), s.line) for s in steps)
        found.append(Scenario(file, line, name, statements, filled, " ".join(differs)))
    return found


def _table(text: str, where: str) -> list[dict[str, str]]:
    """`a, b: 1, 2 | 3, 4` -> [{a: 1, b: 2}, {a: 3, b: 4}]."""
    head, colon, body = text.partition(":")
    assert colon, f"{where}: no column names: {text!r}"
    names = [name.strip() for name in head.split(",")]
    rows = []
    for row in body.split(" | "):
        cells = [cell.strip() for cell in row.split(",")]
        assert len(cells) == len(names), f"{where}: {row!r} has not {len(names)} columns"
        rows.append(dict(zip(names, cells, strict=True)))
    return rows


def _fill(text: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text
