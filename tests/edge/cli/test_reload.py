"""brim reload and brim config, against a broker that runs."""

import asyncio
import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from edge.cli import main
from edge.cli.config import FIRST_FILE
from edge.cli.exit_status import Exit
from edge.config import loader
from edge.config.directories import control_socket
from edge.config.live_settings import setting_changes
from edge.config.public_settings import HIDDEN, default_settings, flat_settings, public_settings
from edge.local.protocol import LogLines, Message, Reload, Settings
from edge.rpc.protocol import encode as request_bytes
from tests.edge.cli.test_clients import FOREIGN
from tests.edge.cli.test_topics import brim
from tests.support.brim_process import BrimProcess
from tests.support.children import Child

SETTINGS = """
[limits]
topics_max = 5000
qos_max = 1
[auth]
acl_file = "acl"
[[stream]]
name = "press"
topics = ["press/#"]
"""


@pytest.fixture
def broker(runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    (tmp_path / "acl").write_text("topic readwrite open/#\n")
    with BrimProcess(runtime_directory, tmp_path, SETTINGS) as broker:
        yield broker


def test_the_configuration_file_of_a_broker_selects_it(
    broker: BrimProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for verb in (["status"], ["bridge", "status"], ["clients"], ["streams"]):
        assert main([*verb, "-c", str(tmp_path / "brim.toml")]) == 0
    assert "ring     press-0" in capsys.readouterr().out
    assert main(["status", "--config", str(tmp_path / "absent.toml")]) == Exit.USAGE


@pytest.mark.parametrize("name", ["acl", "brim.toml"])
def test_a_fifo_or_a_device_in_place_of_a_file_does_not_hold_reloads_up(
    broker: BrimProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    file, kept = tmp_path / name, tmp_path / "kept"
    file.rename(kept)
    for make in (os.mkfifo, partial(os.symlink, "/dev/zero")):
        make(file)
        status, out, error = brim(capsys, broker, "reload")
        assert (status != 0, "not a regular file" in out + error) == (True, True)
        file.unlink()
    kept.rename(file)
    assert brim(capsys, broker, "reload")[0] == 0


def test_a_reload_reports_files_and_settings_that_need_a_restart(
    broker: BrimProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    acl, config = tmp_path / "acl", tmp_path / "brim.toml"
    published = ["pub", "other/x", "1", "-q", "1", "--protocol", "5", "--port", str(broker.port)]
    assert main(published) == Exit.REFUSED
    capsys.readouterr()
    acl.write_text("topic readwrite other/#\n")
    assert brim(capsys, broker, "reload") == (0, f"in force       {acl}\n", "")
    assert main(published) == 0
    acl.write_text("nonsense\n")
    status, out, _ = brim(capsys, broker, "reload", "--json")
    assert status == Exit.INCOMPLETE
    assert str(acl) in json.loads(out)["failed"][0]
    assert main(published) == 0  # the earlier rules stay in force
    acl.write_text("topic readwrite other/#\n")
    config.write_text(config.read_text().replace("qos_max = 1", "qos_max = 2"))
    expected = f"in force       {acl}\nneeds restart  limits.qos_max\n"
    assert brim(capsys, broker, "reload")[1] == expected
    assert brim(capsys, broker, "reload", "--config", str(config))[1] == expected
    status, out, _ = brim(capsys, broker, "config", "diff", str(config), "--json")
    assert status == Exit.INCOMPLETE
    assert json.loads(out) == {"name": "limits.qos_max", "running": 1, "file": 2}


def test_the_configuration_in_effect_is_shown_with_its_sources(
    broker: BrimProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {
        row["name"]: row for row in map(json.loads, brim(capsys, broker, "config", "--json")[1].splitlines())
    }
    assert (rows["limits.topics_max"]["value"], rows["limits.topics_max"]["source"]) == (5000, "configured")
    assert rows["limits.connect_timeout_s"]["source"] == "default"
    assert rows["stream.press.topics"]["value"] == ["press/#"]
    assert rows["bridge.lake.to"]["source"] == "configured"
    out = brim(capsys, broker, "config", "show", "topics_max", "--set")[1].splitlines()
    assert out[1].split() == ["limits.topics_max", "5000", "configured"]
    status, _, error = brim(capsys, broker, "config", "show", "topics_mx")
    assert (status, error.splitlines()[0]) == (
        Exit.USAGE,
        "brim config: no setting has 'topics_mx' in its name",
    )
    assert brim(capsys, broker, "config", "diff", str(tmp_path / "brim.toml"))[0] == 0
    assert brim(capsys, broker, "config", "diff")[0] == Exit.USAGE


def test_secrets_are_not_shown() -> None:
    config = loader.parse(
        '[[bridge]]\nname = "k"\nto = "kafka://user:p4ss@host:9092/t"\n'
        'options = { "sasl.password" = "p4ss", "ssl.key.password" = "p4ss", "client.id" = "me" }\n'
    )
    settings = flat_settings(public_settings(config))
    assert "p4ss" not in str(settings)
    assert settings["bridge.k.options.client.id"] == "me"


def test_a_section_that_only_one_configuration_has_is_one_change() -> None:
    tenant = '[[tenant]]\nname = "acme"\nusers = ["a"]\n[tenant.quota]\nsessions_max = 5\n'
    port = "[[listener]]\nport = 1883\n[[listener]]\nport = 1884\n"
    before, after = loader.parse(""), loader.parse(f"{tenant}{port}")
    values = {"name": "acme", "users": ["a"], "quota.sessions_max": 5}
    assert list(setting_changes(before, after)) == [
        ("listener.1", "(not set)", {"port": 1884}),
        ("tenant.acme", "(not set)", values),
    ]
    assert list(setting_changes(after, before)) == [
        ("listener.1", {"port": 1884}, "(not set)"),
        ("tenant.acme", values, "(not set)"),
    ]
    raised = loader.parse(f"{tenant}{port}".replace("= 5", "= 6"))
    assert list(setting_changes(after, raised)) == [("tenant.acme.quota.sessions_max", 5, 6)]


def test_the_runtime_directory_is_no_change(tmp_path: Path) -> None:
    before, after = loader.parse(""), loader.parse(f'runtime_dir = "{tmp_path}"\nedge_id = "other"\n')
    assert [name for name, _, _ in setting_changes(before, after)] == ["edge_id"]


def test_default_settings_of_a_section_are_defaults() -> None:
    text = '[[listener]]\nport = 1884\n[[bridge]]\nname = "k"\nto = "file:///a"\noptions = { a = 1 }\n'
    settings = public_settings(loader.parse(text))
    defaults = default_settings(settings, loader.parse(""))
    own = {name for name, value in flat_settings(settings).items() if defaults.get(name, "") != value}
    assert own == {"listener.0.port", "bridge.k.name", "bridge.k.to", "bridge.k.options.a"}


@pytest.mark.parametrize(
    ("name", "value", "command"),
    [
        ("limits.topics_max", "6000", "`brim reload`"),
        ("log_level", "debug", "`brim reload`"),
        ("limits.qos_max", "1", "a restart"),
        ("edge_id", "other", "a restart"),
    ],
)
def test_a_changed_file_names_the_command_that_applies_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: str, command: str
) -> None:
    (tmp_path / "brim.toml").touch()
    assert main(["config", "set", name, value, "--config", str(tmp_path / "brim.toml")]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(command)


def test_a_changed_secret_is_named_and_not_shown() -> None:
    text = (
        '[[bridge]]\nname = "m"\nto = "mqtt://edge:OLD@host"\n'
        '[[bridge]]\nname = "k"\nto = "kafka://host:9092/t"\noptions = { "sasl.password" = "OLD" }\n'
    )
    before, after = loader.parse(text), loader.parse(text.replace("OLD", "NEW"))
    hidden = (HIDDEN, HIDDEN)
    assert list(setting_changes(before, after)) == [
        ("bridge.k.options.sasl.password", *hidden),
        ("bridge.m.to", *hidden),
    ]
    moved = loader.parse(text.replace("edge:OLD@host", "edge:NEW@other"))
    assert list(setting_changes(before, moved)) == [("bridge.m.to", "mqtt://host", "mqtt://other")]
    assert list(setting_changes(before, before)) == []


def test_the_first_file_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "init"]) == 0
    assert capsys.readouterr().out == FIRST_FILE
    assert loader.parse(FIRST_FILE).edge_id == "edge-1"
    examples = "\n".join(line.removeprefix("# ") for line in FIRST_FILE.splitlines()[3:])
    assert [stream.name for stream in loader.parse(examples).stream] == ["important", "default"]
    for words, wanted in (
        (("init", "brim.toml"), "init takes no file: it prints one\n  brim config init > brim.toml"),
        (("show", "--config", "brim.toml"), "--config is for `brim config set`"),
    ):
        assert main(["config", *words]) == Exit.USAGE
        assert wanted in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
@pytest.mark.parametrize(
    "message", [Reload(), Settings(), LogLines()], ids=["reload", "settings", "log_lines"]
)
async def test_another_user_may_neither_reload_nor_read_configuration_and_log_lines(
    broker: BrimProcess, message: Message
) -> None:
    broker.runtime_dir.chmod(0o777)
    path = control_socket(broker.runtime_dir)
    path.chmod(0o777)
    with Child(FOREIGN, path, request_bytes(message).hex()) as foreign:
        assert "may not re" in await asyncio.to_thread(foreign.line)


def test_without_a_broker_the_verbs_end_with_3(tmp_path: Path) -> None:
    for words in (["reload"], ["config"], ["config", "show", "x"]):
        assert main([*words, "--runtime-dir", str(tmp_path)]) == Exit.CANNOT_CONNECT
