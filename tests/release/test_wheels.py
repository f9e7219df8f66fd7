"""`./dev wheels`: the wheel of this machine runs the first minutes where there is no compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import ROOT

TARGET = f"manylinux_2_17_{os.uname().machine}"
COMMANDS = """
set -e
brim run --port 0 --quiet --state-dir state --runtime-dir "$1" & broker=$!
until port=$(brim status --runtime-dir "$1" --json 2> /dev/null | python -c \\
    'import json, sys; print(json.load(sys.stdin)["listeners"][0].rpartition(":")[2])'); do :; done
brim pub -p "$port" plant/press/7 21.5 -r -q 1
brim sub -p "$port" 'plant/#' -C 1
kill $broker
wait $broker
"""


@pytest.mark.campaign
def test_a_wheel_needs_no_compiler(tmp_path: Path, runtime_directory: Path) -> None:
    subprocess.run([ROOT / "dev", "wheels", TARGET], check=True)
    [wheel] = (ROOT / "dist").glob(f"*{TARGET}.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    tools = tmp_path / "bin"
    tools.mkdir()
    programs = tmp_path / "venv" / "bin"
    plain = {**os.environ, "PATH": f"{programs}:{tools}", "PYTHONPATH": ""}
    command = [str(programs / "pip"), "install", "--quiet", "--only-binary=:all:", str(wheel)]
    subprocess.run(command, env=plain, check=True)
    words = ["/bin/sh", "-c", COMMANDS, "sh", str(runtime_directory)]
    done = subprocess.run(words, cwd=tmp_path, env=plain, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "21.5\n"), done.stderr
