"""Changes of the engine while an allocation fails: each is complete or refused (tests/c/without_memory.c)."""

import subprocess
from pathlib import Path

import pytest

from tests.support.c_programs import FAILING, MQTT, compiled
from tests.support.project import ROOT

MAIN = ROOT / "tests" / "c" / "without_memory.c"
UNLISTED = "    engine->retained_unlisted |= !topic->changed;\n"
MISTAKES = (
    ("mqtt/route/retained", UNLISTED, ""),
    ("mqtt/route/retained", "    engine->retained_due |= !topic->changed;\n", ""),
    ("mqtt/route/retained", "(topic->retained != NULL || unlisted)", "topic->retained != NULL"),
    ("mqtt/route/topics", " || engine->retained_unlisted)", ")"),
    ("mqtt/out/spill_file", "!mq_list_reserve(&spill->retired, capacity) || ", ""),
    (
        "mqtt/route/shared_subscriptions",
        "            group_of(queue)->count--;\n            return false;\n",
        "            return true;\n",
    ),
)


def outcome(directory: Path, planted: dict[str, list[tuple[str, str]]] | None = None) -> str:
    program = compiled(directory, MAIN, "-O1", link_flags=FAILING, sources=MQTT, planted=planted)
    return subprocess.run([program], capture_output=True, text=True, check=False).stderr


@pytest.mark.timeout(600)  # an emulated compiler is slow
def test_no_change_is_lost_without_memory(tmp_path: Path) -> None:
    assert outcome(tmp_path) == ""


@pytest.mark.parametrize(("stem", "right", "wrong"), MISTAKES)
def test_planted_mistakes_are_found(tmp_path: Path, stem: str, right: str, wrong: str) -> None:
    assert outcome(tmp_path, {stem: [(right, wrong)]}).startswith("not so: ")
