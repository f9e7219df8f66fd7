"""Ages of records while the wall clock steps and the machine sleeps (tests/c/record_age.c)."""

import subprocess
from pathlib import Path

import pytest

from tests.support.c_programs import compiled
from tests.support.project import ROOT

MAIN = ROOT / "tests" / "c" / "record_age.c"
SOURCE = "mqtt/record_age"
MISTAKES = (
    ("    span->end_ns = boot_ns + span->ahead_ns;\n", ""),
    ("now_ns > passed_ns ? now_ns - passed_ns : 0", "now_ns > passed_ns ? now_ns : 0"),
    ("    memmove(span + 1, span, (MQ_CLOCK_SPANS - 1) * sizeof *span);\n", ""),
    ("clock->suspended_ns = now_suspended_ns;", "clock->suspended_ns += 0;"),
    (
        "    return differs(ahead_of_steady_ns - clock->suspended_ns, before_ns);\n",
        "    return now_suspended_ns == 0;\n",
    ),
    ("#define STEP_MIN_NS 1000000000ull", "#define STEP_MIN_NS 1000ull"),
    ("then_ns = timestamp_ns + clock->boot_ns - clock->begun_ns;", "then_ns = engine->now_ns;"),
    ("now_ns < CLOCK_SET_NS ? 0 : CLOCK_SET_NS", "0"),
    ("            break;\n", ""),
)


def outcome(directory: Path, *planted: tuple[str, str]) -> str:
    program = compiled(
        directory,
        MAIN,
        "-O1",
        link_flags=("-Wl,--wrap=clock_gettime",),
        sources=(SOURCE,),
        planted={SOURCE: planted},
    )
    return subprocess.run([program], capture_output=True, text=True, check=False).stderr


def test_steps_and_drift_of_the_wall_clock_change_no_age(tmp_path: Path) -> None:
    assert outcome(tmp_path) == ""


@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
def test_planted_mistakes_are_found(tmp_path: Path, right: str, wrong: str) -> None:
    assert outcome(tmp_path, (right, wrong)).startswith("not so: ")
