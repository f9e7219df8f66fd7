"""The `dev` script knows what is done already, names what is missing, and shows no address.

Continuous integration, first of all, shows that it makes a working .venv.
"""

import ast
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.project import ROOT, dev

FILES = ["pyproject.toml", "locks/core.txt"]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose .venv is set up as it should be for the set `core`."""
    for name in ("locks", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in FILES:
        (tmp_path / name).write_text("as it is")
    places = {"VENV": ".venv", "PYTHON": ".venv/bin/python", "STAMP": ".venv/brim.json", "LOCKS": "locks"}
    for name, place in {**places, "ROOT": "."}.items():
        monkeypatch.setattr(dev, name, tmp_path / place)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    (tmp_path / "build.py").write_text("")
    (tmp_path / ".venv/brim.json").write_text(json.dumps(dev.wanted_stamp(["core"])))
    return tmp_path


@pytest.fixture
def set_ups(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The content of .venv that each set-up was to install, instead of the set-up."""
    wanted: list[dict[str, str]] = []
    monkeypatch.setattr(dev, "set_up", wanted.append)
    return wanted


def test_a_second_run_finds_everything_done(checkout: Path, set_ups: list[dict[str, str]]) -> None:
    dev.prepare("core")
    assert set_ups == []


@pytest.mark.parametrize("changed", FILES)
def test_a_changed_file_is_noticed(checkout: Path, changed: str, set_ups: list[dict[str, str]]) -> None:
    (checkout / changed).write_text("otherwise")
    dev.prepare("core")
    assert set_ups == [dev.wanted_stamp(["core"])]


@pytest.mark.parametrize("content", [None, '{"python": "3.'], ids=["absent", "cut short"])
def test_a_stamp_that_is_absent_or_cut_short_counts_as_none(
    checkout: Path, content: str | None, set_ups: list[dict[str, str]]
) -> None:
    stamp = checkout / ".venv/brim.json"
    stamp.unlink() if content is None else stamp.write_text(content)
    dev.prepare("core")
    assert len(set_ups) == 1


def test_a_set_that_was_never_installed_is_noticed(checkout: Path, set_ups: list[dict[str, str]]) -> None:
    (checkout / "locks/spark.txt").write_text("")
    dev.prepare("core", "spark")
    assert set_ups == [dev.wanted_stamp(["core", "spark"])]


def test_the_core_is_compiled_again_before_each_verb(checkout: Path) -> None:
    (checkout / "build.py").write_text("raise SystemExit('the reason')")
    with pytest.raises(SystemExit):
        dev.prepare("core")


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("Looking in indexes: https://user:secret@host.example/simple", "..."),
        ("Looking in links: /srv/wheels", "..."),
        ("Downloading https://host.example/a/cffi.whl (1 kB)", "Downloading https://.../a/cffi.whl (1 kB)"),
        ("Pool(host='host.example', port=443): timed out", "Pool(host='...', port=443): timed out"),
        ("Collecting cffi==2.1.1", "Collecting cffi==2.1.1"),
    ],
)
def test_addresses_are_cut_out_of_what_pip_says(line: str, shown: str) -> None:
    assert dev.without_addresses(line) == shown


@pytest.mark.parametrize(
    ("release", "taken"), [("17.0.1", True), ("21", True), ("1.8.0_412", False), ("?", False)]
)
def test_only_a_java_that_spark_runs_on_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, taken: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{release}\" 2024-01-16' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert dev.find_java() == (java if taken else None)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "gcc" in dev.missing_packages()


def test_missing_python_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert f"python3.{sys.version_info.minor}-dev" in dev.missing_packages()


def test_nothing_is_missing_where_the_tests_run() -> None:
    assert dev.missing_packages() == []


def test_a_failed_command_shows_its_output_without_addresses_and_stops(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = "print('Requirement already satisfied: x'); print('no https://host/x'); raise SystemExit(3)"
    with pytest.raises(SystemExit) as stopped:
        dev.filtered([sys.executable, "-c", source])
    assert str(stopped.value) == "failed with status 3"
    assert capsys.readouterr().out == "   no https://.../x\n"


def test_older_pythons_can_read_the_script_and_so_say_what_they_are() -> None:
    ast.parse((ROOT / "dev").read_text(), feature_version=(3, 8))


def test_an_unknown_verb_fails_and_lists_those_that_there_are() -> None:
    run = subprocess.run([sys.executable, ROOT / "dev", "dmeo"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "no such command: dmeo" in run.stderr
    assert all(f"./dev {verb} " in run.stdout for verb in dev.VERBS)


@pytest.mark.parametrize(
    ("failing", "status", "told"),
    [
        pytest.param(
            "not Path(__file__).with_name('seen').exists()", 0, "test_a.py::test_it", id="only at first"
        ),
        pytest.param("True", 1, None, id="always"),
        pytest.param("False", 0, None, id="never"),
    ],
)
@pytest.mark.parametrize("marks", [("java", "slow"), ("slow", "java")], ids=["with Java", "without Java"])
def test_what_fails_beside_others_is_run_once_more_alone_and_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    failing: str,
    status: int,
    told: str | None,
    marks: tuple[str, str],
) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text(
        "from pathlib import Path\n"
        "import pytest\n"
        f"@pytest.mark.{marks[1]}\n"
        "def test_other():\n"
        "    pass\n"
        f"@pytest.mark.{marks[0]}\n"
        "def test_it():\n"
        f"    failing = {failing}\n"
        "    Path(__file__).with_name('seen').touch()\n"
        "    assert not failing\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    java\n    slow\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # loading them takes longest
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    monkeypatch.setattr(dev, "ROOT", tmp_path)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    one_process = {cache: [*options, "-n", "1"] for cache, options in dev.RUNS.items()}
    monkeypatch.setattr(dev, "RUNS", one_process)
    assert dev.all_tests() == status
    shown = capfd.readouterr().out.partition("PASSED ONLY THE SECOND TIME")[2]
    assert (told in shown) if told else not shown
