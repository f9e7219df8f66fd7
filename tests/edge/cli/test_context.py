"""brim context: a named broker is used by verbs that connect, unless an address is given."""

import json
from pathlib import Path

import pytest

from edge.auth.password_file import change_user
from edge.auth.password_hash import make_hash
from edge.cli import main
from edge.cli.exit_status import Exit
from tests.support.brim_process import BrimProcess
from tests.support.ports import free_port

MESSAGE = ["pub", "plant/1", "x", "-q", "1"]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "brim" / "contexts.json"


def test_a_context_is_used_until_an_address_is_given(
    home: Path, runtime_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dead, password = free_port(), tmp_path / "password"
    password.write_text("secret\n")
    users = tmp_path / "users"
    change_user(users, "ann", make_hash(b"secret", "pbkdf2"))
    settings = f'[auth]\npassword_file = "{users}"\n'
    with BrimProcess(runtime_directory, tmp_path, settings, bridge=False) as broker:
        port = str(broker.port)
        words = ["--port", port, "-u", "ann", "--password-file", str(password)]
        assert main(["context", "add", "plant", *words, "--use"]) == 0
        assert main(["context", "add", "dead", "--port", str(dead)]) == 0
        assert main(MESSAGE) == 0
        assert main([*MESSAGE, "--context", "dead"]) == Exit.CANNOT_CONNECT
        assert main([*MESSAGE, "--port", str(dead)]) == Exit.CANNOT_CONNECT
        assert main([*MESSAGE, "--port", port]) == Exit.REFUSED  # its user and password go nowhere else
        assert main(["context", "use", "none"]) == 0
        assert main([*MESSAGE, "--port", port, "-u", "ann", "--password-file", str(password)]) == 0
        assert main([*MESSAGE, "--context", "plant"]) == 0
        capsys.readouterr()
    assert home.stat().st_mode & 0o777 == 0o600
    assert "secret" not in home.read_text()


def test_contexts_that_this_user_cannot_read_or_write_are_an_error_with_a_remedy(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.parent.parent.write_text("not a directory")  # as a directory of another user
    for words, wanted in (
        (["context", "add", "plant"], "contexts.json cannot be read: Not a directory"),
        (["context", "ls"], "contexts.json cannot be read: Not a directory"),
        (MESSAGE, "or name a broker by --host"),
    ):
        assert main(words) == Exit.USAGE
        assert wanted in capsys.readouterr().err


def test_contexts_that_cannot_be_written_are_an_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home.parent.parent.mkdir()
    home.parent.symlink_to("/proc/none")
    assert main(["context", "add", "plant"]) == Exit.USAGE
    assert "contexts.json cannot be written: " in capsys.readouterr().err


def test_contexts_are_listed_and_removed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["context", "ls"]) == 0
    assert capsys.readouterr().out == "there are no contexts\n"
    assert main(["context", "add", "plant", "--host", "edge-1", "--tls", "--use"]) == 0
    assert main(["context", "ls"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["plant", "*", "edge-1", "-", "-", "yes"]
    assert main(["context", "ls", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == {"current": "plant", "contexts": {"plant": {"host": "edge-1", "tls": True}}}
    assert main(["context", "rm", "plant"]) == 0
    assert main(["context", "ls", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"current": "", "contexts": {}}


def test_a_context_that_does_not_exist_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["context", "use", "x"], ["context", "rm", "x"], [*MESSAGE, "--context", "x"]):
        assert main(words) == Exit.USAGE
        assert "there is no context 'x' (present: none)" in capsys.readouterr().err
    assert main(["context", "add", "none"]) == Exit.USAGE


def test_a_file_that_others_may_change_or_that_is_damaged_is_not_used(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["context", "add", "plant"]) == 0
    home.chmod(0o666)
    assert main(MESSAGE) == Exit.USAGE
    assert "other users may change it" in capsys.readouterr().err
    home.chmod(0o600)
    assert main(["context", "add", "secure", "--tls"]) == 0
    assert main(["bench", "mqtt", "pair", "--context", "secure"]) == Exit.USAGE
    assert "uses TLS" in capsys.readouterr().err
    home.write_text("{")
    assert main(["context", "ls"]) == Exit.USAGE
