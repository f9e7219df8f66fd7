"""A writer is killed at every single instruction of what it does (tests/c/step.c), and taken over.

A random kill hardly ever hits a window of one instruction; this hits each.  That it sees what it should is
shown by planting bugs: each variant differs from the real writer by a line or two, and must be caught.
"""

import subprocess
from pathlib import Path

import pytest

from tests.support.c_programs import compiled, only_on_x86_64
from tests.support.project import ROOT

STEP = ROOT / "tests" / "c" / "step.c"
SCENARIOS = ("first", "one", "many", "claim", "wrap", "reserve", "gate", "wake", "takeover")

ZERO_AHEAD = "    store_length(writer, writer->tail + span, 0, memory_order_relaxed);\n"
COMMIT = "    store_length(writer, writer->tail, length, memory_order_release);\n"
PAD_ZERO = "    store_length(writer, next, 0, memory_order_relaxed);\n"
PAD = "    store_length(writer, writer->tail, RB_PADDING_BIT | (uint32_t)pad, memory_order_release);\n"
GRANTED = "    atomic_store_explicit(&writer->header->granted, to, memory_order_relaxed);\n"

PLANTED = {
    "the length is stored before the payload": (
        "many",
        [("    memcpy(to, payload, length);\n    rb_commit(writer, length, true);\n",
          "    rb_commit(writer, length, true);\n    memcpy(to, payload, length);\n")],
    ),
    "the length is stored before the checksum": (
        "one",
        [(COMMIT, ""), ("    uint32_t covered = checked", COMMIT + "    uint32_t covered = checked")],
    ),
    "the word that ends the chain is not zeroed": ("one", [(ZERO_AHEAD, "")]),
    "the word that ends the chain is zeroed after the commit": (
        "claim",
        [(ZERO_AHEAD, ""),
         (COMMIT, COMMIT + "    atomic_signal_fence(memory_order_seq_cst);\n" + ZERO_AHEAD)],
    ),
    "the word after the padding is zeroed too late": (
        "wrap",
        [(PAD_ZERO, ""), (PAD, PAD + "    atomic_signal_fence(memory_order_seq_cst);\n" + PAD_ZERO)],
    ),
    "the end is two plain words": ("one", [("count = writer->end_count + 1;", "count = writer->end_count;")]),
    "the watermark is not told": ("reserve", [(GRANTED, "")]),
    "the watermark is told after the room is used": (
        "reserve",
        [(GRANTED, ""), ("    memcpy(to, payload, length);\n", "    memcpy(to, payload, length);\n"
          "    atomic_signal_fence(memory_order_seq_cst);\n"
          "    atomic_store_explicit(&writer->header->granted, writer->reserve, memory_order_relaxed);\n")],
    ),
    "gates are not looked at": (
        "gate", [("    return cursor + writer->capacity;", "    return UINT64_MAX;")],
    ),
    "the next writer trusts the end": (
        "many",
        [("    while (writer->tail + RB_RECORD_ALIGN <= writer->reserve && recover_step(writer))\n"
          "        ;\n", "")],
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    only_on_x86_64()
    return compiled(tmp_path_factory.mktemp("step"), STEP, "-O2")


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_writer_killed_at_any_instruction_leaves_nothing_half_done(step: Path, scenario: str) -> None:
    done = subprocess.run([step, scenario], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    name, _, points = done.stdout.partition(": ")
    assert name == scenario
    assert int(points.split()[0]) > 400


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(tmp_path: Path, bug: str) -> None:
    only_on_x86_64()
    scenario, changes = PLANTED[bug]
    program = compiled(tmp_path, STEP, "-O2", "-Wno-error", planted={"ring/writer": changes})
    done = subprocess.run([program, scenario], capture_output=True, text=True, check=False)
    assert done.returncode == 1, f"not found: {done.stdout}{done.stderr}"
    assert f"{scenario}, point " in done.stdout
