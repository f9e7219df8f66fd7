"""The locks pin every version by hash, for all machines, and name no place where to look for it."""

import re
from pathlib import Path

import pytest

from tests.support.project import ROOT, dev

LOCKS = sorted((ROOT / "locks").glob("*.txt"))

# Text after a requirement: markers, hashes and line ends.  An option, a URL or a path is not among these.
PINNED = re.compile(r"([a-z0-9-]+)==([\w.]+)(?: ; ([\w .'\"<>!=()]+))? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def requirements(text: str) -> dict[str, set[tuple[str, str]]]:
    """By name: each version and the marker that says where it applies."""
    found: dict[str, set[tuple[str, str]]] = {}
    for match in filter(None, map(PINNED.fullmatch, text.splitlines())):
        found.setdefault(match[1], set()).add((match[2], match[3] or ""))
    return found


def strange_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if not (PINNED.fullmatch(line) or HASH.fullmatch(line))]


def test_there_is_a_lock_for_each_set() -> None:
    assert [path.stem for path in LOCKS] == sorted(dev.CONTENTS)


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_holds_pins_and_hashes_and_nothing_else(path: Path) -> None:
    text = path.read_text()
    assert strange_lines(text) == []
    assert len(requirements(text)) > 10


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://pypi.example/simple",
        "--extra-index-url http://10.0.0.1/simple",
        "--find-links /somewhere/wheels",
        "cffi @ https://pypi.example/cffi.whl \\",
        "    # from https://pypi.example/simple",
        "cffi>=2 \\",
        "-e .",
    ],
)
def test_a_line_that_names_a_place_or_no_version_is_found(line: str) -> None:
    assert strange_lines(line) == [line]


def test_all_locks_agree_on_a_version() -> None:
    """Else the verbs would take turns replacing packages of the one .venv."""
    agreed: dict[str, set[str]] = {}
    for path in LOCKS:
        for name, pins in requirements(path.read_text()).items():
            versions = {version for version, _ in pins}  # one lock may need it on an older Python only
            assert agreed.setdefault(name, versions) == versions, f"{name} in {path.name}"


def test_the_locks_hold_what_the_project_asks_for() -> None:
    held = {path.stem: requirements(path.read_text()).keys() for path in LOCKS}
    assert {"cffi", "msgspec", "pyzmq", "rich"} <= held["core"]
    assert not {"amqtt", "dacite"} & (held["core"] | held["spark"])
    assert {"amqtt", "dacite"} <= held["demo"] & held["bench"]
    assert {"matplotlib", "obstore", "paho-mqtt", "psutil"} | held["core"] <= held["demo"] <= held["test"]
    assert {"mypy", "pytest", "ruff"} <= held["test"]
    assert {"numpy", "pyarrow", "pyspark"} <= held["spark"]
    assert {"eclipse-zenoh", "iceoryx2"} <= held["bench"]
