"""Jars of Maven Central for tests, by name and version, kept only if each has the SHA-256 that it should."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}"
NOTHING_ELSE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


@dataclass(frozen=True)
class Jars:
    """A directory of jars, ~/.cache/brim/NAME, or what the environment says instead.

    `hashes`: the list of sha256sum; there is no other jar.  `alone`: without what they depend on.  To raise a
    version: fetch with it and an empty list, check the jars, and write a new list with sha256sum.
    """

    name: str
    variable: str
    artifacts: Sequence[str]  # GROUP:NAME:VERSION
    hashes: Path
    alone: bool = False

    @property
    def directory(self) -> Path:
        """Directory of the jars, existing or not."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return Path(os.environ.get(self.variable) or cache / "brim" / self.name)

    def fetch(self) -> Path:
        """The directory, fetched if it is not there.  Raises SystemExit with what is in the way."""
        target = self.directory
        if target.is_dir():
            return target
        maven = shutil.which("mvn")
        if maven is None:
            sys.exit(f"{self.name} comes by Maven, and there is none: apt-get install maven")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as work:
            Path(work, "pom.xml").write_text(self._project())
            command = [maven, "-q", "-B", PLUGIN, "-DincludeScope=runtime", "-DoutputDirectory=lib"]
            if subprocess.run(command, cwd=work, check=False).returncode:
                sys.exit(f"Maven could not fetch {self.name}")
            self._check(Path(work, "lib"))
            with suppress(OSError):  # somebody else was quicker
                Path(work, "lib").rename(target)
        return target

    def _project(self) -> str:
        more = NOTHING_ELSE if self.alone else ""
        wanted = "\n".join(DEPENDENCY.format(*it.split(":"), more) + "</dependency>" for it in self.artifacts)
        return (
            "<project><modelVersion>4.0.0</modelVersion><groupId>brim</groupId>"
            f"<artifactId>for-tests</artifactId><version>1</version>\n<dependencies>{wanted}</dependencies>"
            "</project>\n"
        )

    def _check(self, directory: Path) -> None:
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}
        wanted = dict(line.split()[::-1] for line in self.hashes.read_text().splitlines())
        if odd := sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name)):
            sys.exit(f"these jars are not those of {self.hashes.name}, and are not kept: {', '.join(odd)}")
