"""Archives of the project as hatchling builds them: the wheel and the source archive."""

import os
import subprocess
import sys
from pathlib import Path


def hatch(kind: str, project: Path, into: Path) -> Path:
    """The archive that hatchling builds of a project; the compiler does not optimise, which takes longest."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(into)]
    plain = {**os.environ, "CFLAGS": "-O0"}
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, env=plain)
    assert run.returncode == 0, run.stdout + run.stderr
    [made] = into.iterdir()
    return made
