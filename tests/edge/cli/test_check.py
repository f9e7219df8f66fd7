"""`brim check`: mistakes that only a part of Brim knows, and the shown settings."""

import json
from pathlib import Path

import pytest

from edge.cli import main
from ringbuf.extras import install_extra
from tests.support.children import ModuleChild


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "brim.toml"


def test_what_a_bridge_cannot_do_is_a_mistake_of_the_configuration(file: Path) -> None:
    for line, said in (('topics = ["a/#"]', "takes files"), ('transform = "no.such:thing"', "takes files")):
        file.write_text(f'[[bridge]]\nname = "lake"\nto = "file:///srv/lake"\n{line}\n')
        with ModuleChild("edge", "check", file) as child:
            status, _, error = child.wait()
        assert (status, said in error) == (2, True)


def test_archiving_without_pyarrow_is_a_mistake_of_the_configuration(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("[log]\narchive = true\n")
    assert main(["check", str(file)]) == 0
    monkeypatch.setattr("persistence.archive.library.is_installed", lambda: False)
    capsys.readouterr()
    assert main(["check", str(file)]) == 2
    assert "log.archive: archives need pyarrow" in (error := capsys.readouterr().err)
    assert install_extra("archive") in error


def test_check_shows_each_listener_as_a_client_writes_it(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text('[[listener]]\nhost = "::1"\n[[listener]]\nport = 9001\ntransport = "websocket"\n')
    assert main(["check", str(file)]) == 0
    shown = [line.split()[1:] for line in capsys.readouterr().out.splitlines() if "listener " in line]
    assert shown == [["[::1]:1883"], ["ws://127.0.0.1:9001"]]


def test_files_with_secrets_are_read(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    token, keys = file.with_name("token"), file.with_name("keys")
    file.write_text(
        f'[metrics]\nlisten = "127.0.0.1:9464"\ntoken_file = "{token}"\n'
        f'[zmq]\nsecret_key_file = "{keys}"\nclient_keys_dir = "/"\n'
    )
    assert main(["check", str(file)]) == 2
    mistakes = capsys.readouterr().err.splitlines()
    for key, path in (("metrics.token_file", token), ("zmq.secret_key_file", keys)):
        assert any(key in line and str(path) in line for line in mistakes), mistakes


def test_keys_that_no_endpoint_uses_are_not_read(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = '[zmq]\nsecret_key_file = "/none"\nclient_keys_dir = "/"\nenabled = false\n'
    file.write_text(keys)
    assert main(["check", str(file)]) == 0
    file.write_text(f'{keys}[consumers]\nendpoint = "tcp://127.0.0.1:5557"\n')
    assert main(["check", str(file)]) == 2
    assert "zmq.secret_key_file /none" in capsys.readouterr().err


def test_a_role_of_the_console_needs_a_user(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    users = file.with_name("web.users")
    users.write_text("")
    file.write_text(f'[web]\nlisten = "127.0.0.1:8080"\nusers_file = "{users}"\noperators = ["bob"]\n')
    assert main(["check", str(file)]) == 2
    mistake = f"{users} has no user bob; add each with `brim passwd {users} NAME`\n"
    assert capsys.readouterr().err == mistake


def test_programs_get_the_verdict_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text('edge_id = "press-7"\n[[listener]]\nport = 1883\n')
    assert main(["check", str(file), "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["file"], verdict["valid"], verdict["mistakes"]) == (str(file), True, [])
    assert "edge      press-7" in verdict["effect"]

    file.write_text("[[listener]]\nport = 80000\nhots = 1\n")
    assert main(["check", str(file), "--json"]) == 2
    verdict = json.loads(capsys.readouterr().out)
    assert (verdict["valid"], len(verdict["mistakes"])) == (False, 2)
    assert f"{file}:2: " in verdict["mistakes"][0]


def test_a_bridge_to_nowhere_is_a_mistake_of_the_configuration(file: Path) -> None:
    file.write_text('[[bridge]]\nname = "lake"\nto = "gopher://x"\n')
    for verb in (("run", "--port", 0, "--config"), ("check",)):
        with ModuleChild("edge", *verb, file) as child:
            status, _, error = child.wait()
        assert status == 2
        assert "bridge lake: " in error
        assert "gopher" in error


def test_a_path_that_no_start_can_bind_is_a_mistake_of_the_configuration(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime = file.with_name("not-yet-made") / "run"
    for path, said in (
        (runtime / "mqtt.sock", ""),  # the start creates runtime_dir
        (
            file.with_name("absent") / "mqtt.sock",
            f"there is no directory {file.with_name('absent')}; make it",
        ),
        (file, f"{file} exists and is not a socket; set another path"),
    ):
        file.write_text(f'runtime_dir = "{runtime}"\n[[listener]]\npath = "{path}"\n')
        assert main(["check", str(file)]) == (2 if said else 0)
        assert said in capsys.readouterr().err
