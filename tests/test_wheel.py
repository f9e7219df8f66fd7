"""What is released works without the checkout: the source archive builds a wheel, and the wheel runs."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.support.house import PACKAGES, ROOT


def hatch(kind: str, project: Path, into: Path) -> Path:
    """The archive that hatchling builds of a project."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(into)]
    run = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    [made] = into.iterdir()
    return made


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, unpacked."""
    archive = hatch("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("sources")
    with tarfile.open(archive) as members:
        members.extractall(unpacked, filter="data")
    [project] = unpacked.iterdir()
    return project


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the source archive builds."""
    return hatch("wheel", sources, tmp_path_factory.mktemp("wheel"))


def names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as members:
        return set(members.namelist())


def test_the_source_archive_holds_all_that_the_checkout_does_but_nothing_compiled(sources: Path) -> None:
    for folder in (*PACKAGES, "tests", "locks"):
        here = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        here = {path for path in here if path.suffix not in {".so", ".o"} and "__pycache__" not in path.parts}
        assert here == {path.relative_to(sources) for path in (sources / folder).rglob("*") if path.is_file()}
    assert {"build.py", "dev", "LICENSE", "README.md", "pyproject.toml"} <= {
        path.name for path in sources.iterdir()
    }


def test_the_wheel_is_for_every_python_from_3_11_on(wheel: Path) -> None:
    assert wheel.name.startswith("brim-0.1.0-cp311-abi3-linux_")


def test_the_wheel_holds_the_packages_and_no_c(wheel: Path) -> None:
    python = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    held = names(wheel)
    assert python | {f"{package}/py.typed" for package in PACKAGES} | {"ringbuf/_ringbuf.abi3.so"} <= held
    assert {Path(name).parts[0] for name in held} == {*PACKAGES, "brim-0.1.0.dist-info"}
    assert not [name for name in held if name.endswith((".c", ".h", ".o"))]


def test_the_wheel_runs_where_there_is_no_checkout(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as members:
        members.extractall(tmp_path)
    code = (
        "import sys; sys.path.insert(0, '.'); import ringbuf as r; print(r.__file__, r.crc32c(b'123456789'))"
    )
    command = [sys.executable, "-I", "-c", code]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(tmp_path / "ringbuf" / "__init__.py"), str(0xE3069283)]
