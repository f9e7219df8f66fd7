"""Waiting for the disk, by looking on or asleep: no wake-up is lost, at whatever moment the log says it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.c_programs import compiled
from tests.support.house import ROOT

MAIN = ROOT / "tests" / "c" / "durable_wait.c"
SLEEP = "int slept = rb_futex_wait(rb_low_half(&header->durable), (uint32_t)durable,"
INSTRUMENTED = (
    (
        "#define RECHECK_NS 1000000000ll",
        "#define RECHECK_NS 3600000000000ll\nextern void before_sleep(void);",
    ),
    (SLEEP, f"before_sleep();\n{SLEEP}"),
)
NEVER_LOOKS_ON = ("#define LOOK_NS 250000ll", "#define LOOK_NS -1ll")
ALARM = -14


def made(directory: Path, *changes: tuple[str, str], flags: Sequence[str] = ()) -> Path:
    return compiled(directory, MAIN, "-O2", *flags, planted={"wait": [*INSTRUMENTED, *changes]})


def run(program: Path, *arguments: object) -> tuple[int, str]:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_what_becomes_durable_between_a_look_and_the_sleep_ends_the_wait(tmp_path: Path) -> None:
    assert run(made(tmp_path), "between") == (0, "")
    assert run(made(tmp_path, NEVER_LOOKS_ON), "between") == (0, "")


@pytest.mark.parametrize("changes", [(), (NEVER_LOOKS_ON,)], ids=["looking on", "asleep"])
def test_every_waiter_is_woken_at_every_step(tmp_path: Path, changes: Sequence[tuple[str, str]]) -> None:
    status, said = run(made(tmp_path, *changes), "many", 4000)
    assert (status, said.split()[1:]) == (0, ["sleeps"]), said
    if changes:
        assert int(said.split()[0]) > 0


MISTAKES = {
    "it sleeps on what it has not seen": (
        "between",
        [(SLEEP, SLEEP.replace("(uint32_t)durable", "(uint32_t)header->durable"))],
    ),
    "it does not say that it sleeps": (
        "many",
        [
            ("atomic_fetch_add_explicit(&header->durable_waiters, 1, memory_order_seq_cst);", ""),
            ("atomic_fetch_sub_explicit(&header->durable_waiters, 1, memory_order_seq_cst);", ""),
            NEVER_LOOKS_ON,
        ],
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_waiter_with_a_mistake_is_caught(tmp_path: Path, mistake: str) -> None:
    story, changes = MISTAKES[mistake]
    assert run(made(tmp_path, *changes, flags=["-DPATIENCE_S=1"]), story)[0] == ALARM
