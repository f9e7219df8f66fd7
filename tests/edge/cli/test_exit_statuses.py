"""Exit statuses of verbs that talk to a broker: 3 no broker is reachable, 4 it refused."""

import errno
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.cli import VERBS as ALL_VERBS
from edge.cli import main
from edge.cli.exit_status import Exit
from tests.support.brim_process import BrimProcess
from tests.support.ports import free_port
from tests.support.project import ROOT

LOCAL = [
    ["status"],
    ["clients", "ls"],
    ["clients", "show", "nobody"],
    ["clients", "kick", "nobody"],
    ["clients", "forget", "nobody"],
    ["topics"],
    ["top"],
    ["tap"],
    ["streams"],
    ["retained", "ls"],
    ["retained", "clear", "#"],
    ["consumers", "ls"],
    ["consumers", "forget", "nobody"],
    ["bridge", "status"],
    ["bridge", "pause", "lake"],
    ["bridge", "pause"],
    ["sub", "a", "--shm"],
]
MQTT = [["pub", "a", "x"], ["sub", "a"], ["bench", "mqtt", "publish"]]


@pytest.mark.parametrize("words", LOCAL, ids=" ".join)
def test_a_local_verb_without_a_broker_ends_with_3(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if words[0] == "consumers":  # It waits for a broker that may be about to come.
        monkeypatch.setattr("edge.consumers.client_socket.CONNECT_TIMEOUT_S", 0.2)
        (tmp_path / "consumers.sock").touch()
    assert main([*words, "--runtime-dir", str(tmp_path)]) == Exit.CANNOT_CONNECT
    assert capsys.readouterr().err.startswith(f"brim {words[0]}: ")


@pytest.mark.parametrize("verb", ["run", "status", "pause", "resume", "skip", "backfill"])
def test_the_name_of_a_bridge_cannot_lead_to_another_directory(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--stream", "default", "--from", "0"] if verb == "backfill" else []
    with pytest.raises(SystemExit, match="2"):
        main(["bridge", verb, "x/../../lake", *more, "--runtime-dir", str(tmp_path)])
    assert (
        "argument NAME: invalid bridge name 'x/../../lake'; write 1 to 24 of a-z" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("running", "remedy"),
    [(["lake", "sea"], "choose one of: lake, sea"), ([], "start one: `brim bridge run`")],
)
def test_a_command_to_an_unknown_bridge_names_those_that_run(
    running: list[str], remedy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in running:
        (tmp_path / f"bridge-{name}.sock").touch()
    assert main(["bridge", "pause", "laek", "--runtime-dir", str(tmp_path)]) == Exit.CANNOT_CONNECT
    error, hint = capsys.readouterr().err.splitlines()[:2]
    assert (error, hint) == ("brim bridge: no bridge laek runs here", f"  {remedy}")
    assert main(["bridge", "status", "laek", "--runtime-dir", str(tmp_path)]) == Exit.CANNOT_CONNECT


@pytest.mark.parametrize("words", MQTT, ids=" ".join)
def test_an_mqtt_verb_without_a_broker_ends_with_3(words: list[str]) -> None:
    assert main([*words, "--port", str(free_port())]) == Exit.CANNOT_CONNECT


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    (tmp_path / "acl").write_text("topic readwrite open/#\n")
    (tmp_path / "users").write_text("")
    settings = "[auth]\nacl_file = 'acl'\npassword_file = 'users'\n"
    with BrimProcess(runtime_directory, tmp_path, settings) as brim:
        yield brim


def test_a_verb_that_is_refused_ends_with_4(broker: BrimProcess, capsys: pytest.CaptureFixture[str]) -> None:
    here = ["--runtime-dir", str(broker.runtime_dir)]
    refused = [
        ["clients", "forget", "nobody", *here],
        ["clients", "kick", "nobody", *here],
        ["clients", "show", "nobody", *here],
        ["consumers", "forget", "nobody", *here],
        ["bridge", "backfill", "lake", "--stream", "none", "--from", "1", *here],
        ["pub", "a", "x", "--port", str(broker.port)],
        ["sub", "a", "--port", str(broker.port)],
        ["bench", "mqtt", "publish", "--duration", "1", "--port", str(broker.port)],
    ]
    for words in refused:
        status, error = main(words), capsys.readouterr().err
        assert (words, status) == (words, Exit.REFUSED), error
    assert main(["status", *here]) == 0


def test_with_json_the_errors_of_a_verb_are_json(
    broker: BrimProcess, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    plan = tmp_path / "devices.toml"
    assert main(["sim", "--init"]) == 0
    plan.write_text(capsys.readouterr().out)
    here, there = ["--runtime-dir", str(broker.runtime_dir)], ["--port", str(broker.port)]
    wrong = {
        ("retained", "get", "open/none", *here): Exit.INCOMPLETE,
        ("sub", "a", *there): Exit.REFUSED,
        ("request", "a", "x", *there): Exit.REFUSED,
        ("reply", "a", "x", *there): Exit.REFUSED,
        ("sub", "a", "--shm", "--runtime-dir", "/absent"): Exit.CANNOT_CONNECT,
        ("sim", str(plan), "--cafile", "/absent"): Exit.USAGE,
    }
    for words, status in wrong.items():
        assert (words, main([*words, "--json"])) == (words, status)
        error = json.loads(capsys.readouterr().err)
        assert (error["verb"], bool(error["error"]), bool(error["hint"])) == (words[0], True, True)
    with pytest.raises(SystemExit, match="2"):
        main(["topics", "--json", "--limt", "3"])
    error = json.loads(capsys.readouterr().err)
    assert error["verb"] == "topics"
    assert error["error"] == "unrecognized arguments: --limt; did you mean --limit?"


class Forbidden(socket.socket):
    """A socket that this user may not connect to anything."""

    def connect(self, address: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_user_who_may_not_connect_is_refused(
    broker: BrimProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As root every connection is permitted, so the answer of the kernel is given here."""
    monkeypatch.setattr(socket, "socket", Forbidden)
    assert main(["status", "--runtime-dir", str(broker.runtime_dir)]) == Exit.REFUSED
    assert "may not talk to this broker" in capsys.readouterr().err


def test_a_file_in_a_directory_that_is_not_there_has_a_remedy(tmp_path: Path) -> None:
    file = tmp_path / "absent" / "rows.csv"
    # a process: the verb takes the lowest priority
    line = [sys.executable, "-m", "edge", "sql", "SELECT 1", "-o", str(file), "--state-dir", str(tmp_path)]
    text, as_json = (
        subprocess.run([*line, *more], capture_output=True, cwd=ROOT, timeout=60, check=False)
        for more in ((), ("--json",))
    )
    assert (text.returncode, as_json.returncode) == (Exit.USAGE, Exit.USAGE)
    assert text.stderr.decode() == f"brim sql: {file}: No such file or directory\n  check the path\n"
    assert json.loads(as_json.stderr)["hint"] == "check the path"


def test_the_help_lists_the_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    lines = [line.split(maxsplit=1) for line in text.splitlines()]
    assert [[str(int(it)), it.meaning] for it in Exit] == [
        line for line in lines if line and line[0].isdigit()
    ]
    assert all(verb in text for verb in ALL_VERBS)


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["stauts"], ["run", "--nonsense"], ["pub"]])
def test_wrong_arguments_end_with_2_and_a_word_of_help(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        raise SystemExit(main(arguments))
    assert "brim" in capsys.readouterr().err


def test_the_version_is_shown_and_a_misspelled_verb_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("brim 0.")
    assert main(["statsu"]) == 2
    assert "did you mean `brim status`?" in capsys.readouterr().err
    assert main(["statsu", "--json"]) == Exit.USAGE
    error = json.loads(capsys.readouterr().err)
    assert error["error"] == "there is no verb 'statsu'"
    assert error["hint"] == "did you mean `brim status`?"
    assert main(["report"]) == Exit.USAGE  # a job of `brim spark`, and near to reply
    assert "did you mean `brim spark report`?" in capsys.readouterr().err


def test_a_lack_of_memory_has_a_remedy_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("edge.cli.check.run", lambda arguments: bytearray(1 << 62))
    assert main(["check", "brim.toml"]) == Exit.USAGE
    error = capsys.readouterr().err
    assert error.startswith("brim check: not enough memory (")
    assert "MemoryMax=" in error
    assert main(["check", "brim.toml", "--json"]) == Exit.USAGE
    assert json.loads(capsys.readouterr().err)["error"].startswith("not enough memory (")
