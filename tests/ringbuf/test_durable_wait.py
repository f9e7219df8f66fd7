"""Wait for the disk, by polling or asleep: no wake-up is lost, at any moment of the sync."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.c_programs import compiled
from tests.support.project import ROOT

MAIN = ROOT / "tests" / "c" / "durable_wait.c"
SLEEP = "    long result = syscall("
CHANGE = tuple[str, str, str]  # source, text, replacement
INSTRUMENTED: Sequence[CHANGE] = (
    (
        "base/eventcount",
        "#define RECHECK_NS 1000000000ll",
        "#define RECHECK_NS 3600000000000ll\nextern void before_sleep(void);",
    ),
    ("base/eventcount", SLEEP, f"    before_sleep();\n{SLEEP}"),
)
NEVER_LOOKS_ON: CHANGE = ("ring/wait", "#define SPIN_MAX_NS 250000ll", "#define SPIN_MAX_NS -1ll")
ALARM = -14


def made(directory: Path, *changes: CHANGE, flags: Sequence[str] = ()) -> Path:
    planted: dict[str, list[tuple[str, str]]] = {}
    for source, old, new in (*INSTRUMENTED, *changes):
        planted.setdefault(source, []).append((old, new))
    return compiled(directory, MAIN, "-O2", *flags, planted=planted)


def run(program: Path, *arguments: object) -> tuple[int, str]:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_what_becomes_durable_between_a_look_and_the_sleep_ends_the_wait(tmp_path: Path) -> None:
    assert run(made(tmp_path), "between") == (0, "")
    assert run(made(tmp_path, NEVER_LOOKS_ON), "between") == (0, "")


@pytest.mark.parametrize("changes", [(), (NEVER_LOOKS_ON,)], ids=["looking on", "asleep"])
def test_every_waiter_is_woken_at_every_step(tmp_path: Path, changes: Sequence[CHANGE]) -> None:
    status, said = run(made(tmp_path, *changes), "many", 4000)
    assert (status, said.split()[1:]) == (0, ["sleeps"]), said
    if changes:
        assert int(said.split()[0]) > 0


MISTAKES: dict[str, tuple[str, Sequence[CHANGE]]] = {
    "it sleeps on what it has not seen": (
        "between",
        [("base/eventcount", "FUTEX_WAIT, seen,", "FUTEX_WAIT, seen * 0 + *epoch,")],
    ),
    "it does not say that it sleeps": (
        "many",
        [
            (
                "ring/wait",
                "rb_prepare(&header->durable_wake, &header->durable_sleepers, 1);",
                "header->durable_wake;",
            ),
            NEVER_LOOKS_ON,
        ],
    ),
    "it is not woken": (
        "many",
        [
            ("base/eventcount", "    syscall(SYS_futex, epoch, FUTEX_WAKE", "    (void)0; // syscall("),
            NEVER_LOOKS_ON,
        ],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_waiter_with_a_mistake_is_caught(tmp_path: Path, mistake: str) -> None:
    story, changes = MISTAKES[mistake]
    assert run(made(tmp_path, *changes, flags=["-DPATIENCE_S=1"]), story)[0] == ALARM
