"""Operator of the soak: management commands on a broker under load, one after the other, with a ledger.

    python -m tests.support.soak_operator RUNTIME_DIR CONFIG DIRECTORY SEED

Commands read status, clients, topics, retained messages, streams and consumer groups, watch messages, reload
a configuration that changed, and back up the log and read the backup.  DIRECTORY is empty and holds the
backups.  SIGTERM ends it after the command that runs; then it prints its ledger, a line of JSON: the number
of commands by verb, and each command that ended with another exit status than it may.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.support.project import ROOT

PAUSE_S = 0.4  # between two commands, which take as long themselves: they are processes
TIME_S = 60.0  # for one
LINGER_MS = (500, 1_000, 1_500)  # of the bridge: one of them for each reload


class Command(NamedTuple):
    """A verb with its arguments, and the exit statuses that it may have."""

    verb: str
    arguments: tuple[str, ...] = ("--json",)
    allowed: tuple[int, ...] = (0,)


READING = (
    Command("status", ("--json", "--clients"), (0, 1, 6)),  # a slow client may have lost messages
    Command("top", ("--once", "--json", "--clients")),
    Command("streams", ("--json", "--readers")),
    Command("clients", ("ls", "--json")),
    Command("topics", ("--json", "--limit", "50"), (0, 1)),
    Command("retained", ("ls", "--json")),
    Command("consumers", ("lag", "--json")),
    Command("tap", ("--json", "-C", "500", "-W", "2"), (0, 5)),
    Command("tap", ("--rate", "--interval", "500ms", "-W", "2"), (0, 5)),
    Command("doctor", ("--json",), (0, 1, 2)),
)


class Operator:
    """Runs commands until `over`."""

    def __init__(self, runtime_dir: str, config: Path, directory: Path, seed: int) -> None:
        self.over = False
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._runtime_dir, self._config, self._directory = runtime_dir, config, directory
        self._random = Random(seed)
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self.over = True

    def run(self) -> None:
        """All kinds of commands in random order, again and again."""
        kinds: list[Callable[[], None]] = [partial(self._run, command) for command in READING]
        kinds += [self._reload, self._back_up]
        while not self.over:
            self._random.shuffle(kinds)
            for kind in kinds:
                if self.over:
                    break
                kind()
                time.sleep(PAUSE_S)

    def _run(self, command: Command) -> None:
        words = (sys.executable, "-m", "edge", command.verb, *command.arguments)
        if "--verify" not in command.arguments:
            words += ("--runtime-dir", self._runtime_dir)
        try:
            ended = subprocess.run(
                words, capture_output=True, text=True, cwd=ROOT, check=False, timeout=TIME_S
            )
        except subprocess.TimeoutExpired:
            self.wrong.append(f"{command.verb} did not end in {TIME_S} s")
            return
        self.counts[command.verb] += 1
        if ended.returncode not in command.allowed or "Traceback" in ended.stderr:
            said = (ended.stderr or ended.stdout)[-500:]
            self.wrong.append(f"{command.verb} {command.arguments} ended with {ended.returncode}: {said}")

    def _reload(self) -> None:
        """Change the bridge, and reload."""
        lines = [line for line in self._config.read_text().splitlines() if not line.startswith("linger_ms")]
        text = "\n".join([*lines, f"linger_ms = {self._random.choice(LINGER_MS)}\n"])
        new = self._config.with_suffix(".new")
        new.write_text(text)
        new.replace(self._config)
        self._run(Command("reload"))

    def _back_up(self) -> None:
        """Copy state and log, read the copy, remove it."""
        copy = self._directory / "copy"
        self._run(Command("backup", (str(copy), "--json"), (0, 1)))  # 1: streams in memory are not copied
        self._run(Command("backup", (str(copy), "--verify", "--json")))
        shutil.rmtree(copy, ignore_errors=True)


def main() -> None:
    """Run as a process."""
    os.nice(5)
    operator = Operator(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    operator.run()
    print(json.dumps({"counts": operator.counts, "wrong": operator.wrong}))


if __name__ == "__main__":
    main()
