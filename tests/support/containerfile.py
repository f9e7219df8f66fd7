"""A Containerfile as data, and its steps in directories instead of images: no container engine is needed."""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["Instruction", "Stage", "ignored", "run_stage", "stages_of"]


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


def run_stage(
    stage: Stage, root: Path, context: Path, environment: dict[str, str], others: dict[str, Path]
) -> None:
    """Run RUN and COPY of a stage in the directory `root`, by chroot. `others`: those of earlier stages."""
    place = "/"
    for instruction in stage.instructions:
        if instruction.name == "WORKDIR":
            place = instruction.text
            (root / place[1:]).mkdir(parents=True, exist_ok=True)
        elif instruction.name == "COPY":
            _copy(instruction.words, root, place, context, others)
        elif instruction.name == "RUN":
            command = f"cd {place} && {instruction.text}"
            subprocess.run(["chroot", root, "/bin/sh", "-ec", command], check=True, env=environment)


def _copy(words: list[str], root: Path, place: str, context: Path, others: dict[str, Path]) -> None:
    options, paths = [it for it in words if it.startswith("--")], [it for it in words if it[:2] != "--"]
    source_root = others[options[0].removeprefix("--from=")] if options else context
    target = root / os.path.join(place, paths[-1]).lstrip("/")
    skipped = [] if options else [pattern.removeprefix("**/") for pattern in ignored(context)]

    def skip(_: str, names: list[str]) -> Iterator[str]:
        return (name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in skipped))

    for name in paths[:-1]:
        source = source_root / name.lstrip("/")
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True, ignore=skip)
        else:
            into = target / source.name if paths[-1].endswith("/") else target
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, into)
