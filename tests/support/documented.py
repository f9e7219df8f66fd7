"""A newcomer who types what documents show: commands against a broker that runs with a documented file.

Ports become free ones, and places outside of the test become its own; everything else stays as it is written.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.children import Child, ModuleChild
from tests.support.documents import block_of, commands
from tests.support.project import ROOT

TALKS_MQTT = {"pub", "sub", "request", "reply", "bench"}
PLACES = ("/srv/", "/tmp/brim-", "/run/brim", "/var/lib/")
COMMAND_S = 110  # a query has the lowest priority, and tests keep all processors busy


class Newcomer:
    """A person in an empty directory, with one broker at a time."""

    def __init__(self, directory: Path, runtime_dir: Path) -> None:
        self.directory = directory
        self.runtime_dir = runtime_dir
        self.ports: dict[str, int] = {}  # by scheme, of the broker that runs
        self.environment = {
            "RUNTIME_DIRECTORY": str(runtime_dir),
            "STATE_DIRECTORY": str(directory / "state"),
            "XDG_CONFIG_HOME": str(directory / "settings"),
            "PYTHONPATH": f"{ROOT}{os.pathsep}{directory}",
        }

    def write(self, name: str, text: str) -> Path:
        """A file with this text, with free ports and places of this test."""
        text = re.sub(r"^port = \d+", "port = 0", text, flags=re.MULTILINE)
        path = self.directory / name
        path.write_text(self._placed(text))
        return path

    @contextmanager
    def broker(self, text: str = "") -> Iterator[ModuleChild]:
        """`brim run` with this configuration, once it serves clients."""
        file = self.write("brim.toml", text)
        more = [] if "[[listener]]" in text else ["--port", "0"]
        arguments = ("run", "--config", file, *more)
        with ModuleChild("edge", *arguments, environment=self.environment) as child:
            ready = "".join(child.lines_until("brim status"))
            listeners = ready.partition(": mqtt ")[2].partition("  memory ")[0].split(", ")
            self.ports = dict(map(_scheme_and_port, listeners))
            yield child
            status, _, log = child.stop()
            assert status == 0, log
            assert "Traceback" not in log

    def arguments(self, words: list[str]) -> list[str]:
        """Words of a documented command, with the port and places of this test."""
        words = [self._placed(word) for word in words]
        if words[0] not in TALKS_MQTT or {"-p", "--port", "--unix"} & set(words):
            return words
        scheme = "tls" if "--tls" in words else "mqtt"
        return [*words, "--port", str(self.ports[scheme])]

    def run(self, *words: str, text: str = "") -> str:
        """Standard output of a `brim` command that must succeed; `text` is its standard input."""
        status, out, error = self.status(*words, text=text)
        assert status == 0, f"brim {shlex.join(words)}: status {status}\n{out}{error}"
        return out

    def status(self, *words: str, text: str = "") -> tuple[int, str, str]:
        """Exit status, standard output and standard error of a `brim` command."""
        done = subprocess.run(
            [sys.executable, "-m", "edge", *self.arguments(list(words))],
            cwd=self.directory,
            env={**os.environ, **self.environment},
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    def forget_state(self) -> None:
        """Remove state and memory of the broker, which must not run."""
        shutil.rmtree(self.directory / "state")
        for path in self.runtime_dir.iterdir():
            path.unlink()

    def start(self, *words: str) -> ModuleChild:
        """A `brim` command that stays, such as `brim sub`."""
        return ModuleChild("edge", *self.arguments(list(words)), environment=self.environment)

    def _placed(self, text: str) -> str:
        """Text with places of this test."""
        for place in PLACES:
            text = text.replace(place, f"{self.directory}/")
        return text

    def program(self, page: str, begins: str) -> Child:
        """The program of a page, as a process."""
        code = block_of(page, "python", begins).replace(":1883", f":{self.ports.get('mqtt', 1883)}")
        return Child(code.replace("/dev/shm/", f"{self.runtime_dir}/"), environment=self.environment)


def _scheme_and_port(listener: str) -> tuple[str, int]:
    """Of `127.0.0.1:1883` or `tls://[::]:8883`."""
    scheme = listener.partition("://")[0] if "://" in listener else "mqtt"
    return scheme, int(listener.rpartition(":")[2])


def lines_of(page: str, *begins: str) -> list[list[str]]:
    """Words of the `brim` commands of a page that begin with these words; at least one."""
    found = [words for path, words in commands("brim") if path == ROOT / page]
    chosen = [words for words in found if words[: len(begins)] == list(begins)]
    assert chosen, f"{page}: no command brim {' '.join(begins)}"
    return chosen
