"""Released files without the checkout: the source archive builds a wheel, and the wheel runs."""

import email
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.children import Child
from tests.support.hatch import hatch
from tests.support.project import PACKAGES, ROOT

pytestmark = pytest.mark.timeout(400)  # the wheel is made by compiling the core
BASE_PACKAGES_MAX = 13  # installed with Brim, without an extra: 14 with Brim
COMMANDS = {"brim", "cffi-gen-src", "markdown-it", "pygmentize", "websockets"}  # on PATH after an install
BRIM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from brim._command import main; sys.exit(main())"
PLUGIN = '[[auth.plugin]]\nclass = "amqtt.contrib.jwt.UserAuthJwtPlugin"\noptions = { secret_key = "k" }\n'


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, unpacked."""
    archive = hatch("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    unpacked = tmp_path_factory.mktemp("sources")
    subprocess.run(["tar", "-xzf", archive, "-C", unpacked], check=True)
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


def needed(requirements: list[str]) -> Iterator[Requirement]:
    """Requirements without those of extras and of other machines."""
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement


@pytest.fixture(scope="module")
def base(wheel: Path) -> dict[str, metadata.Distribution]:
    """The packages that `pip install brim` brings, by name, read from metadata."""
    with zipfile.ZipFile(wheel) as members:
        facts = email.message_from_bytes(members.read("brim-0.1.0.dist-info/METADATA"))
    found: dict[str, metadata.Distribution] = {}
    waiting = list(needed(facts.get_all("Requires-Dist") or []))
    while waiting:
        requirement = waiting.pop()
        if requirement.name not in found:
            found[requirement.name] = metadata.distribution(requirement.name)
            waiting += needed(found[requirement.name].requires or [])
    return found


def test_the_base_install_has_few_packages(base: dict[str, metadata.Distribution]) -> None:
    assert len(base) <= BASE_PACKAGES_MAX, sorted(base)
    assert {"cffi", "msgspec", "pyzmq"} <= base.keys()
    assert not {"amqtt", "dacite", "msgpack"} & base.keys()


def test_the_base_install_puts_no_command_of_another_broker_on_the_path(
    base: dict[str, metadata.Distribution], wheel: Path
) -> None:
    points = [point for found in base.values() for point in found.entry_points]
    commands = {point.name for point in points if point.group == "console_scripts"}
    with zipfile.ZipFile(wheel) as members:
        assert b"\nbrim = " in members.read("brim-0.1.0.dist-info/entry_points.txt")
    assert commands | {"brim"} <= COMMANDS


def test_the_base_install_takes_no_websockets_that_ignores_the_limit_of_frames() -> None:
    """tests/edge/transport/test_websocket_frames.py sets ServerProtocol.max_size; 16 has other names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [websockets] = [it for it in map(Requirement, project["dependencies"]) if it.name == "websockets"]
    assert websockets.specifier.contains(metadata.version("websockets"))
    assert not websockets.specifier.contains("16.0")


@pytest.fixture(scope="module")
def installed(
    base: dict[str, metadata.Distribution], wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the wheel and the packages of the base install, and no other package."""
    folder = tmp_path_factory.mktemp("installed")
    with zipfile.ZipFile(wheel) as members:
        members.extractall(folder)
    for found in base.values():
        for top in {path.parts[0] for path in found.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(Path(str(found.locate_file(top))))
    return folder


class Installed(Child):
    """`brim ARGUMENTS` with the packages of the base install only."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        super().__init__(BRIM, folder, *arguments)

    def _how(self, code: str) -> list[str]:
        return ["-I", "-S", "-c", code]


def test_the_base_install_serves_clients(installed: Path, runtime_directory: Path, tmp_path: Path) -> None:
    places = ("--runtime-dir", runtime_directory, "--state-dir", tmp_path)
    with Installed(installed, "run", "--port", "0", *places) as broker:
        ready = broker.lines_until("brim status")
        port = ready[0].partition("127.0.0.1:")[2].partition(",")[0]
        for verb in (["pub", "a", "21.5", "-r", "-q", "1"], ["sub", "a", "-C", "1"]):
            with Installed(installed, *verb, "--port", port) as client:
                status, out, log = client.wait()
            assert (status, log) == (0, "")
        assert out == "21.5\n"
        assert broker.stop()[0] == 0


@pytest.mark.parametrize("verb", [["check"], ["run", "--port", "0", "--config"]], ids=["check", "run"])
def test_a_plug_in_without_the_extra_is_refused_with_the_pip_command(
    installed: Path, verb: list[str], runtime_directory: Path, tmp_path: Path
) -> None:
    config = tmp_path / "brim.toml"
    config.write_text(f'runtime_dir = "{runtime_directory}"\nstate_dir = "{tmp_path / "state"}"\n{PLUGIN}')
    with Installed(installed, *verb, config) as brim:
        status, _, log = brim.wait()
    assert status == 2
    assert log.count("need amqtt") == 1
    assert "pip install 'brim[amqtt]'" in log
    assert "Traceback" not in log
