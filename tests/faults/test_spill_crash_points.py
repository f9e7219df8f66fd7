"""A broker is killed at every single instruction of what it does to the spill file (tests/c/step_spill.c).

Each variant with a mistake planted differs from the real code by a line or two, and must be found.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.c_programs import compiled
from tests.support.project import ROOT

STEP = ROOT / "tests" / "c" / "step_spill.c"
SCENARIOS = ("first", "few", "unit", "large", "large ends", "reuse", "moves")
SOURCES = (
    "base/record",
    "base/crc32c",
    "mqtt/lists",
    "mqtt/out/spill_file",
    "mqtt/out/spill_index",
    "mqtt/out/spill_compact",
)
# A copy by "rep movsb" is a step for each byte.
TUNED = {"GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=1000000000"}

BODY = "    copy->position = position;\n"

PLANTED = {
    "an extent is used again while its copies are needed": (
        "moves",
        {"spill_file": [("    if (spill->extents[unit].live == 0 && unit != spill->filling)\n",
                         "    if (unit != spill->filling)\n")]},
    ),
    "a copy is put where the one before it is": (
        "few", {"spill_file": [("    extent->used += span;\n", "    extent->used += 0 * span;\n")]},
    ),
    "the header of a large extent hides it": (
        "large",
        {"spill_file": [("unit, (uint32_t)((bytes + MQ_UNIT_BYTES - 1) / MQ_UNIT_BYTES), false);",
                         "unit, 1, false);")]},
    ),
    "half a copy is there, and its checksum is not looked at": (
        "few",
        {"spill_file": [(BODY, BODY + "    store_last(&copy->length, span);\n")],
         "spill_index": [("    return mq_spilled_verifies(", "    return true || mq_spilled_verifies(")]},
    ),
}  # fmt: skip


def step(program: Path, scenario: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **TUNED}
    return subprocess.run([program, scenario], capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("step"), STEP, "-O2", sources=SOURCES)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_broker_killed_at_any_instruction_leaves_every_copy_that_it_has_committed(
    program: Path, scenario: str
) -> None:
    done = step(program, scenario)
    assert done.returncode == 0, done.stdout + done.stderr
    name, _, states = done.stdout.partition(": ")
    assert name == scenario
    assert int(states.split()[0]) > 20


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_in_the_spill_file_is_found(tmp_path: Path, bug: str) -> None:
    scenario, changes = PLANTED[bug]
    planted = {f"mqtt/out/{stem}": its for stem, its in changes.items()}
    program = compiled(tmp_path, STEP, "-O2", "-Wno-error", sources=SOURCES, planted=planted)
    done = step(program, scenario)
    assert done.returncode == 1, f"not found: {done.stdout}{done.stderr}"
    assert f"{scenario}, state " in done.stdout
