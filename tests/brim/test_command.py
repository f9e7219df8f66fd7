"""The command `brim` next to other distributions that own one of the names of its packages."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.project import PACKAGES, ROOT

RUN = "import sys; sys.path.insert(0, sys.argv.pop(1)); from brim._command import main; sys.exit(main())"


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", RUN, str(folder), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def plant(folder: Path, name: str, *, distribution: str = "") -> Path:
    """A package of another project, and the metadata of its distribution."""
    path = folder / name / "__init__.py"
    path.parent.mkdir(parents=True)
    path.write_text('"""Another project."""\n')
    if distribution:
        metadata = folder / f"{distribution}-9.9.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 9.9\n")
        (metadata / "RECORD").write_text(f"{name}/__init__.py,,\n")
    return path


@pytest.mark.parametrize("name", ["bridge", "edge", "persistence", "ringbuf"])
def test_a_package_of_another_distribution_is_named_with_its_owner(name: str, tmp_path: Path) -> None:
    path = plant(tmp_path, name, distribution=f"{name}-tools")
    found = run(tmp_path, "--help")
    assert found.returncode == 2
    assert found.stderr.splitlines() == [
        f"brim: {path} belongs to the distribution {name}-tools 9.9, not to brim",
        f"  run `pip uninstall {name}-tools` and install brim again, or use a new environment",
    ]


def test_a_folder_without_a_distribution_is_named_with_the_remedy(tmp_path: Path) -> None:
    path = plant(tmp_path, "edge")
    found = run(tmp_path, "--help")
    assert found.returncode == 2
    first, remedy = found.stderr.splitlines()
    assert first == f"brim: {path} is not a file of brim (expected {ROOT / 'edge' / '__init__.py'})"
    assert "PYTHONPATH" in remedy


@pytest.fixture
def overwritten(tmp_path: Path) -> Path:
    """An installation in which `edge` was overwritten, as pip does without a word."""
    home = tmp_path / "site"
    home.mkdir()
    shutil.copytree(ROOT / "brim", home / "brim", ignore=shutil.ignore_patterns("__pycache__"))
    for name in set(PACKAGES) - {"brim", "edge"}:
        (home / name).symlink_to(ROOT / name)
    return home


def test_a_package_that_was_overwritten_is_named_with_the_owner(overwritten: Path) -> None:
    path = plant(overwritten, "edge", distribution="edge")
    found = run(overwritten, "--help")
    assert found.returncode == 2
    assert found.stderr.splitlines()[0] == f"brim: {path} belongs to the distribution edge 9.9, not to brim"


def test_an_import_that_fails_for_another_reason_keeps_its_message(overwritten: Path) -> None:
    plant(overwritten, "edge")
    found = run(overwritten, "--help")
    assert found.returncode == 1
    assert found.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'edge.cli'"


def test_the_check_reads_no_metadata_when_all_is_well() -> None:
    code = "import sys; from brim._command import main; main(); print(*sys.modules)"
    command = [sys.executable, "-c", code, "--help"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(found.stdout.splitlines()[-1].split())
    assert "edge.cli" in loaded
    assert not {"importlib.metadata", "asyncio", "edge.broker.dispatcher", "msgspec", "zmq"} & loaded


def test_the_command_of_the_wheel_begins_with_the_check() -> None:
    assert '[project.scripts]\nbrim = "brim._command:main"\n' in (ROOT / "pyproject.toml").read_text()
    found = subprocess.run(
        [sys.executable, "-m", "brim", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout == "brim 0.1.0\n"
