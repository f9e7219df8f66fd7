"""A broker of another version: a copy of the packages with another version number, in its own directory."""

import shutil
from pathlib import Path

from tests.support.children import Child
from tests.support.project import PACKAGES, ROOT

OLD_VERSION = "0.0.9"
CODE = """
import runpy, sys
sys.path[:0] = [sys.argv.pop(1)]
sys.argv[0] = "brim"
runpy.run_module("edge", run_name="__main__")
"""


class OldVersion:
    """The packages in `directory`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        for package in {name.partition("/")[0] for name in PACKAGES}:
            shutil.copytree(ROOT / package, directory / package, ignore=shutil.ignore_patterns("*.c", "*.h"))
        file = directory / "edge" / "cli" / "__init__.py"
        text = file.read_text()
        line = next(line for line in text.splitlines() if line.startswith("VERSION = "))
        file.write_text(text.replace(line, f'VERSION = "{OLD_VERSION}"'))

    def broker(self, *arguments: object, environment: dict[str, str]) -> Child:
        """`brim run` with these arguments, once it serves clients."""
        child = Child(CODE, self._directory, "run", *arguments, environment=environment)
        child.lines_until("brim status")
        return child
