"""Commands in hints: they name the installation that runs, and its pip."""

import json
import re
import shlex
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from ringbuf.extras import install_extra, install_package
from tests.support.project import PACKAGES, ROOT

Record = dict[str, object]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A site directory with the metadata of Brim, as pip writes it; without the record of its origin."""
    folder = tmp_path / "site" / "brim-0.1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: brim\nVersion: 0.1.0\n")
    folder.as_uri()  # imports modules, from Python 3.14 on
    monkeypatch.setattr(sys, "path", [str(folder.parent)])
    assert metadata.version("brim") == "0.1.0"
    return folder / "direct_url.json"


def command_with(record: Path, content: Record | None) -> list[str]:
    """Arguments of pip for the extra sql."""
    record.unlink(missing_ok=True)
    if content is not None:
        record.write_text(json.dumps(content))
    words = shlex.split(install_extra("sql"))
    return words[words.index("install") + 1 :]


def test_the_command_names_the_clone_or_wheel_of_the_installation(installed: Path, tmp_path: Path) -> None:
    clone = tmp_path / "a clone"
    clone.mkdir()
    wheel = tmp_path / "brim-0.1.0-cp311-abi3-linux_x86_64.whl"
    wheel.touch()
    editable: Record = {"url": clone.as_uri(), "dir_info": {"editable": True}}
    assert command_with(installed, editable) == ["-e", f"{clone}[sql]"]
    assert command_with(installed, {"url": clone.as_uri(), "dir_info": {}}) == [f"{clone}[sql]"]
    assert command_with(installed, {"url": wheel.as_uri(), "archive_info": {}}) == [f"{wheel}[sql]"]


def test_without_a_local_origin_the_installed_distribution_is_named(installed: Path, tmp_path: Path) -> None:
    removed: Record = {"url": (tmp_path / "removed.whl").as_uri(), "archive_info": {}}
    remote: Record = {"url": "https://user:secret@git.example.com/brim.git", "vcs_info": {}}
    other: Record = {"url": 5}
    for record in (None, removed, remote, other):
        assert command_with(installed, record) == ["brim[sql]"]
    installed.write_text("no JSON")
    assert install_extra("sql").endswith("install 'brim[sql]'")


def test_pip_is_that_of_the_running_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "pip").touch(0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(own))
    assert install_package("polars>=1") == "pip install 'polars>=1'"
    monkeypatch.setenv("PATH", f"{other}:{own}")
    assert install_package("polars") == f"{own}/python -m pip install polars"


def test_every_extra_in_a_hint_exists_and_is_in_the_documents() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"]) - {"demo"}
    page = (ROOT / "docs/how-to/install.md").read_text()
    assert extras <= set(re.findall(r"`(\w+)`", page))
    files = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    hinted = {name for path in files for name in re.findall(r"install_extra\(['\"](\w+)", path.read_text())}
    assert hinted == extras
