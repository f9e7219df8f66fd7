"""A Containerfile as data."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple


class Instruction(NamedTuple):
    """One instruction, with its continuation lines joined."""

    name: str
    text: str

    @property
    def words(self) -> list[str]:
        """Words of its JSON form; otherwise split at blanks."""
        words: list[str] = json.loads(self.text) if self.text.startswith("[") else self.text.split()
        return words


@dataclass
class Stage:
    """The instructions from one FROM to the next."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, name: str) -> list[Instruction]:
        """Its instructions of one kind."""
        return [it for it in self.instructions if it.name == name]

    def last(self, name: str) -> Instruction:
        """The last instruction of a kind, which is in force."""
        return self.all(name)[-1]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of ENV NAME=VALUE."""
        return dict(it.text.split("=", 1) for it in self.all("ENV"))


def stages_of(path: Path) -> list[Stage]:
    """The stages of a Containerfile, in order."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    stages: list[Stage] = []
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        name, _, text = line.strip().partition(" ")
        if name == "FROM":
            base, _, alias = text.partition(" AS ")
            stages.append(Stage(base, alias))
        elif name:
            stages[-1].instructions.append(Instruction(name, text.strip()))
    return stages


def ignored(root: Path) -> list[str]:
    """Patterns of .containerignore."""
    return [line for line in (root / ".containerignore").read_text().splitlines() if line]
