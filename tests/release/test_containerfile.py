"""release/Containerfile: its stages, and its command and health check as an engine would confine them.

A container engine is not needed: namespaces give the process a read-only root, another user, no capability
and 64 MiB of /dev/shm. test_container_engine.py builds and runs the image.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.containerfile import ignored, stages_of
from tests.support.documents import parse
from tests.support.project import ROOT

STAGES = stages_of(ROOT / "release" / "Containerfile")
BUILD, IMAGE = STAGES
UNSHARE = [
    "unshare", "--user", "--map-user=10001", "--map-group=10001", "--keep-caps", "--mount", "--net",
]  # fmt: skip
CONFINE = """
set -e
ip link set lo up
mount -t tmpfs -o size=64m tmpfs /dev/shm
mount --bind "$1" "$1"
mount -o remount,bind,ro /
shift
exec setpriv --inh-caps=-all --bounding-set=-all --no-new-privs "$@"
"""
LIFE = """
if touch "$1/outside" 2> /dev/null; then echo "the root is not read-only"; exit 1; fi
shift
check() { sh -c "$CHECK"; }
check 2> /dev/null && exit 1
"$@" & broker=$!
until check 2> /dev/null; do kill -0 $broker || exit 1; sleep 0.1; done
echo healthy as $(id -u), $(brim status --json | grep -o '"runtime_dir": *"[^"]*"')
brim pub -p "$PORT" plant/1 21.5 -r -q 1
brim sub -p "$PORT" plant/1 -C 1
kill $broker; wait $broker; echo "stopped with $?"
check 2> /dev/null || echo "not healthy"
"""
SERVED = [
    'healthy as 10001, "runtime_dir": "/dev/shm/brim"',
    "21.5",
    "stopped with 0",
    "not healthy",
]


def confined(state: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a container does: it may write to `state` and /dev/shm only."""
    if missing := [name for name in ("unshare", "setpriv", "ip") if shutil.which(name) is None]:
        pytest.skip(f"needs {', '.join(missing)}: apt-get install util-linux iproute2")
    words = [*UNSHARE, "sh", "-c", CONFINE, "sh", str(state)]
    probe = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"this machine permits no user and mount namespaces: {probe.stderr.strip()}")
    return subprocess.run(
        [*words, *command],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_image_has_two_stages_a_plain_user_and_a_health_check() -> None:
    assert BUILD.name == "build"
    assert "gcc" in "".join(it.text for it in BUILD.all("RUN"))
    assert "gcc" not in "".join(it.text for it in IMAGE.all("RUN"))
    user, group = IMAGE.last("USER").text.split(":")
    assert int(user) == int(group) > 0
    after_user = IMAGE.instructions[IMAGE.instructions.index(IMAGE.last("USER")) :]
    assert not {"RUN", "COPY", "ADD"} & {it.name for it in after_user}
    assert "CMD brim status" in IMAGE.last("HEALTHCHECK").text
    assert IMAGE.last("VOLUME").text == IMAGE.environment["STATE_DIRECTORY"]
    assert IMAGE.last("ENTRYPOINT").words == ["brim"]
    parse(IMAGE.last("CMD").words)


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    for stage in STAGES:
        for copy in stage.all("COPY"):
            sources = [] if "--from=" in copy.text else copy.words[:-1]
            assert all((ROOT / name).exists() for name in sources)
            assert not {part for name in sources for part in Path(name).parts} & set(ignored(ROOT))
    assert {".git", ".venv", "build", "dist"} <= set(ignored(ROOT))


def test_the_broker_serves_with_a_read_only_root_and_64_mib_of_shared_memory(tmp_path: Path) -> None:
    state, programs = tmp_path / "state", tmp_path / "bin"
    state.mkdir(mode=0o750)
    programs.mkdir()
    (programs / "brim").write_text(f'#!/bin/sh\nexec {sys.executable} -m edge "$@"\n')
    (programs / "brim").chmod(0o755)
    config = tmp_path / "brim.toml"
    config.write_text((ROOT / "release" / "debian" / "brim.toml").read_text())
    command = [str(config) if word.endswith(".toml") else word for word in IMAGE.last("CMD").words]
    environment = IMAGE.environment | {
        "STATE_DIRECTORY": str(state),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "CHECK": IMAGE.last("HEALTHCHECK").text.partition(" CMD ")[2],
        "PORT": "1883",
    }
    done = confined(state, "sh", "-c", LIFE, "sh", str(tmp_path), "brim", *command, **environment)
    assert done.stdout.splitlines() == SERVED, done.stderr
    assert "ring size lowered to fit" in done.stderr
    assert (state / "epochs").exists()
    assert not Path(IMAGE.environment["RUNTIME_DIRECTORY"]).exists()
