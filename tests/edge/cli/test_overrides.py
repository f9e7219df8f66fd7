"""Values of the command line, for which the rules of the configuration file hold."""

from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.exit_status import Exit


@pytest.fixture
def directories(runtime_directory: Path, tmp_path: Path) -> list[str]:
    return ["--runtime-dir", str(runtime_directory), "--state-dir", str(tmp_path)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "80000"], "listener[0].port: 80000 is above the limit, 65535; 0 takes a free one"),
        (["-p", "-1"], "listener[0].port: -1 is below the least, 0"),
        (["--host", ""], "listener[0].host: '' is not allowed"),
        (["--host", "a b"], "listener[0].host: 'a b' is not allowed"),
        (["--host", "0.0.0.0"], "listener[0].host: 0.0.0.0 is reached from other machines"),
        (["--runtime-dir", "a\0b"], "runtime_dir: 'a\\x00b' is not a path"),
        (["--state-dir", "a\0b"], "state_dir: 'a\\x00b' is not a path"),
    ],
)
def test_a_value_of_the_command_line_goes_through_the_rules_of_the_file(
    directories: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    status = main(["run", *directories, *arguments])
    error = capsys.readouterr().err
    assert status == Exit.CONFIGURATION
    assert message.split(":", maxsplit=1)[0] in error
    assert f"the command line: {message}" in error.replace(str(Path.cwd()) + "/", "")


@pytest.mark.parametrize("option", ["--runtime-dir", "--state-dir"])
def test_an_empty_directory_is_not_the_working_directory(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", option, ""])
    assert ended.value.code == Exit.USAGE
    assert "it is empty; name a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["pub", "t", "x", "-p", "80000"],
        ["sub", "t", "-p", "0"],
        ["sub", "t", "--shm", "--runtime-dir", ""],
        ["sub", "t", "-W", "1 hour"],
        ["pub", "t", "x", "--keep-alive", "1.5"],
        ["bench", "mqtt", "-p", "80000"],
        ["replay", "--to", "-", "--rate", "-1"],
        ["replay", "--to", "-", "--speed", "0"],
        ["replay", "--to", "-", "--speed", "inf"],
        ["replay", "--to", "-", "--speed", "1e9"],
        ["replay", "--to", "-", "-C", "0"],
        ["replay", "--to", "-", "--window", "0"],
    ],
    ids=" ".join,
)
def test_a_wrong_value_of_a_verb_is_a_usage_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == Exit.USAGE
    assert "--help` shows the arguments" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["../..", "..", ".", "a/b", "/tmp/a", "A", "a\nb", "a" * 200])
def test_the_name_of_a_bridge_without_a_configuration_is_no_path(
    directories: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """The checkpoint and the socket get this name."""
    monkeypatch.setattr("bridge.drain.bridge.Bridge", lambda *_, **__: pytest.fail("a bridge was created"))
    with pytest.raises(SystemExit) as ended:
        main(["bridge", "run", name, "--to", f"file://{tmp_path}/lake", *directories])
    assert ended.value.code == Exit.USAGE
    assert "invalid bridge name" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
