"""Defaults of an instance, of a system service, and of credentials that systemd loads."""

import subprocess
import sys
from pathlib import Path

import pytest

from edge.cli import main
from edge.config import directories
from edge.config.directories import control_socket, runtime_directory
from edge.config.loader import parse
from edge.config.schema import Config
from edge.errors import BrokerUnreachable, ConfigError
from edge.local.protocol import Connection
from tests.support.other_user import USER, as_other_user, other_user_or_skip
from tests.support.project import ROOT

TLS = '[[listener]]\ntls = { certificate_file = "a.pem", key_file = "$CREDENTIALS_DIRECTORY/a.key" }\n'


@pytest.fixture(autouse=True)
def _no_directories_of_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNTIME_DIRECTORY", "STATE_DIRECTORY", "BRIM_INSTANCE", "CREDENTIALS_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)


def test_an_instance_has_its_own_directories_and_edge_id(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Config()
    monkeypatch.setenv("BRIM_INSTANCE", "b")
    second = Config()
    for key in ("runtime_dir", "state_dir", "edge_id"):
        assert str(getattr(second, key)) == f"{getattr(first, key)}-b"
    assert parse('edge_id = "x"\nstate_dir = "/y"\n').edge_id == "x"


def test_a_user_without_a_home_directory_is_named_with_the_remedy() -> None:
    other_user_or_skip()
    code = as_other_user("from edge.cli import main; os.environ.pop('HOME', None); main(['context', 'ls'])")
    code = code.replace(
        "import os,", "import os, edge.cli.context, edge.cli.verb_parser, edge.cli.error_catalog,"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert run.stderr.startswith(
        f"brim context: user {USER} has no home directory, and HOME is not set\n  set HOME"
    )


def test_directories_of_systemd_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BRIM_INSTANCE", "b")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/brim-b")
    assert Config().runtime_dir == Path("/run/brim-b")


@pytest.mark.parametrize("name", ["", "../b", "B", "b" * 33])
def test_the_name_of_an_instance_is_part_of_a_path(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["status", "--instance", name])
    assert "invalid name" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["", "-b"])
def test_commands_find_the_service_of_the_system(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BRIM_INSTANCE", suffix.removeprefix("-"))
    monkeypatch.setattr(directories, "SERVICE_DIR", str(tmp_path))
    monkeypatch.setattr(directories, "default_runtime_dir", lambda: tmp_path / "own")
    assert runtime_directory(None) == tmp_path / "own"
    (tmp_path / f"brim{suffix}").mkdir()
    assert runtime_directory(None) == tmp_path / f"brim{suffix}"
    assert runtime_directory("/given") == Path("/given")
    with pytest.raises(BrokerUnreachable, match=str(tmp_path)):
        Connection()
    (tmp_path / "own").mkdir()
    control_socket(tmp_path / "own").touch()  # the user's own broker comes first
    assert runtime_directory(None) == tmp_path / "own"


def test_a_key_is_a_credential_of_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="CREDENTIALS_DIRECTORY is not set; start the broker by systemd"):
        parse(TLS)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    tls = parse(TLS, base=Path("/etc/brim")).listener[0].tls
    assert tls is not None
    assert (tls.certificate_file, tls.key_file) == (Path("/etc/brim/a.pem"), tmp_path / "a.key")
