"""The `dev` script knows what is done already, names what is missing, and shows no address.

That it makes a working .venv is seen by whoever runs it, first of all continuous integration.
"""

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.house import ROOT, dev

MODULE = "ringbuf/_ringbuf.abi3.so"
FILES = ["pyproject.toml", "build.py", "locks/core.txt", "ringbuf/c/ring.c", MODULE]


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose .venv is set up as it should be for the set `core`."""
    for name in ("ringbuf/c", "locks", ".venv/bin"):
        (tmp_path / name).mkdir(parents=True)
    for name in FILES:
        (tmp_path / name).write_text("as it is")
    places = {"VENV": ".venv", "PYTHON": ".venv/bin/python", "STAMP": ".venv/brim.json", "LOCKS": "locks"}
    for name, place in {**places, "MODULE": MODULE, "ROOT": "."}.items():
        monkeypatch.setattr(dev, name, tmp_path / place)
    (tmp_path / ".venv/bin/python").symlink_to(sys.executable)
    dev.finish(dev.note({}, wanted := dev.wanted_stamp(["core"]), *wanted))
    return tmp_path


def test_a_second_run_finds_everything_done(checkout: Path) -> None:
    assert dev.is_current(dev.wanted_stamp(["core"]))


@pytest.mark.parametrize("changed", FILES)
def test_a_changed_file_is_noticed(checkout: Path, changed: str) -> None:
    (checkout / changed).write_text("otherwise")
    assert not dev.is_current(dev.wanted_stamp(["core"]))


@pytest.mark.parametrize("removed", [MODULE, ".venv/bin/python", ".venv/brim.json"])
def test_a_removed_file_is_noticed(checkout: Path, removed: str) -> None:
    (checkout / removed).unlink()
    assert not dev.is_current(dev.wanted_stamp(["core"]))


def test_other_compiler_flags_are_noticed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFLAGS", "-O0")
    assert not dev.is_current(dev.wanted_stamp(["core"]))


def test_a_set_that_was_never_installed_is_noticed(checkout: Path) -> None:
    (checkout / "locks/spark.txt").write_text("")
    assert not dev.is_current(dev.wanted_stamp(["core", "spark"]))


def test_a_stamp_cut_short_counts_as_none(checkout: Path) -> None:
    stamp = checkout / ".venv/brim.json"
    stamp.write_text(stamp.read_text()[:-10])
    assert dev.stamped() == {}


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


@pytest.mark.parametrize(("release", "version"), [("17.0.15", 17), ("21", 21), ("1.8.0_412", 8), ("?", 0)])
def test_a_java_says_its_version_in_its_release_file(tmp_path: Path, release: str, version: int) -> None:
    (tmp_path / "release").write_text(f'IMPLEMENTOR="Debian"\nJAVA_VERSION="{release}"\n')
    assert dev.java_version(tmp_path / "bin" / "java") == version


@pytest.mark.parametrize(("release", "taken"), [("17.0.1", True), ("11.0.2", False)])
def test_only_a_java_that_spark_runs_on_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, taken: bool
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.touch(0o755)
    (tmp_path / "release").write_text(f'JAVA_VERSION="{release}"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert dev.find_java() == (java if taken else None)


@pytest.mark.parametrize(
    ("system", "package"),
    [
        ('ID=debian\nVERSION_ID="12"\n', "openjdk-17-jre-headless"),
        ('ID=debian\nVERSION_ID="13"\n', "openjdk-21-jre-headless"),
        ('ID=ubuntu\nVERSION_ID="24.04"\n', "openjdk-17-jre-headless"),
    ],
)
def test_the_java_package_is_one_that_the_system_has(tmp_path: Path, system: str, package: str) -> None:
    (tmp_path / "os-release").write_text(system)
    assert dev.java_package(tmp_path / "os-release") == package


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert "gcc" in dev.missing_packages()


def test_missing_python_headers_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert dev.missing_packages() == [f"python3.{sys.version_info.minor}-dev"]


def test_nothing_is_missing_where_the_tests_run() -> None:
    assert dev.missing_packages() == []


def test_a_command_that_fails_shows_what_it_said_last() -> None:
    with pytest.raises(SystemExit) as stopped:
        dev.quietly([sys.executable, "-c", "print('the reason'); raise SystemExit(3)"], print)
    assert str(stopped.value) == "the reason\nfailed with status 3"


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
def test_what_fails_beside_others_is_run_once_more_alone_and_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    failing: str,
    status: int,
    told: str | None,
) -> None:
    (tmp_path / "test_a.py").write_text(
        "from pathlib import Path\n"
        "def test_it():\n"
        f"    failing = {failing}\n"
        "    Path(__file__).with_name('seen').touch()\n"
        "    assert not failing\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    places = {"ROOT": tmp_path, "LAST_FAILED": tmp_path / ".pytest_cache/v/cache/lastfailed"}
    for name, value in {**places, "PYTHON": Path(sys.executable)}.items():
        monkeypatch.setattr(dev, name, value)
    assert dev.all_tests() == status
    shown = capfd.readouterr().out.partition("PASSED ONLY THE SECOND TIME")[2]
    assert (told in shown) if told else not shown
