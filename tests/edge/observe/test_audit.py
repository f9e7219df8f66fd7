"""Audit log: each event of security has a record of the logger brim.audit, with real fields."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.auth.password_file import change_user, delete_user
from edge.auth.password_hash import make_hash
from edge.cli import main
from edge.mqtt import Connect, Version
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import RawClient, SocketClient
from tests.support.mqtt_transports import authority
from tests.support.ports import free_port
from tests.support.waiting import wait_until

Audit = Callable[[str], dict[str, Any]]


class Desk:
    """A broker with users, access rules and TLS, and its audit log."""

    def __init__(self, runtime_dir: Path, directory: Path) -> None:
        self.runtime_dir, self.directory, self.port = runtime_dir, directory, free_port()
        self.config, self.users, self.acl = directory / "brim.toml", directory / "users", directory / "acl"
        for name in ("ann", "bob"):
            change_user(self.users, name, make_hash(name.encode(), "pbkdf2"))
        self.acl.write_text("topic readwrite #\n")
        tls = authority()
        self.config.write_text(f"""
runtime_dir = "{runtime_dir}"
state_dir = "{directory / "state"}"
log_level = "debug"
[auth]
password_file = "{self.users}"
acl_file = "{self.acl}"
[[listener]]
port = {self.port}
[[listener]]
port = 0
tls = {{ certificate_file = "{tls.certificate_file}", key_file = "{tls.key_file}" }}
""")
        self.broker = ModuleChild("edge", "run", "--config", self.config, "--log-format", "json")
        self.broker.lines_until("ready")

    def client(self, name: str, client_id: str) -> SocketClient:
        return SocketClient(
            self.port, client_id, Version.V311, username=name, password=name.encode(), clean_start=False
        )

    def events(self, message: str) -> list[dict[str, Any]]:
        """Records of the audit log whose message begins so."""
        lines = [json.loads(line) for line in self.broker.log().splitlines() if line.endswith("}")]
        return [it for it in lines if it["logger"] == "brim.audit" and it["message"].startswith(message)]

    def event(self, message: str) -> dict[str, Any]:
        """Fields of the last such record, once there is one."""
        wait_until(lambda: self.events(message))
        fields: dict[str, Any] = self.events(message)[-1]["fields"]
        return fields

    def brim(self, *words: str) -> int:
        return main([*words, "--runtime-dir", str(self.runtime_dir)])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("runtime"), tmp_path_factory.mktemp("desk"))
    with desk.broker:
        yield desk
        assert desk.broker.stop()[0] == 0


def test_a_connection_is_recorded_with_user_and_address(desk: Desk) -> None:
    with desk.client("ann", "press-1"):
        fields = desk.event("client connected")
    assert (fields["client"], fields["user"]) == ("press-1", "ann")
    assert fields["peer"].startswith("127.0.0.1")


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
def test_a_refusal_is_recorded_with_user_and_cause(desk: Desk, version: Version) -> None:
    with RawClient(desk.port, version) as client:
        client.send(Connect(f"thief-{version}", username="ann", password=b"guess", version=version))
        wait_until(
            lambda: any(it["fields"]["client"] == f"thief-{version}" for it in desk.events("client refused"))
        )
    wait_until(lambda: desk.event("client refused")["client"] == f"thief-{version}")
    fields = desk.event("client refused")
    assert (fields["user"], fields["peer"].split(":")[0]) == ("ann", "127.0.0.1")
    assert "not authorized" in fields["reason"] or "password" in fields["reason"]
    assert "guess" not in desk.broker.log()


def test_a_kick_and_a_forgotten_session_are_recorded(desk: Desk) -> None:
    with desk.client("ann", "press-2"):
        assert desk.brim("clients", "kick", "press-2") == 0
        assert desk.event("client disconnected by an operator") == {"client": "press-2"}
    assert desk.brim("clients", "forget", "press-2") == 0
    assert desk.event("session removed by an operator") == {"client": "press-2"}


def test_a_reload_is_recorded_with_all_that_has_changed(desk: Desk) -> None:
    desk.config.write_text(desk.config.read_text() + "[limits]\ntopics_max = 7000\n")
    delete_user(desk.users, "bob")
    assert desk.brim("reload") == 0
    changed = {"name": "limits.topics_max", "before": "1000000", "now": "7000"}
    assert desk.event("setting changed") == changed
    assert desk.event("password and ACL files reloaded") == {"users": 1, "changed": 1, "rules": True}
    assert desk.event("certificate reloaded") == {"file": str(authority().certificate_file)}
    assert desk.event("configuration reloaded") == {"applied": 4, "failed": 0, "needs_restart": 0}


def test_a_refused_reload_is_recorded_with_its_cause(desk: Desk) -> None:
    before = desk.acl.read_text()
    desk.acl.write_text("topik x\n")
    try:
        assert desk.brim("reload") == 1
        assert "topik" in desk.event("reload refused")["problem"]
    finally:
        desk.acl.write_text(before)


def test_a_secret_of_a_changed_setting_is_not_recorded(desk: Desk) -> None:
    before = desk.config.read_text()
    sink = f'[[bridge]]\nname = "lake"\nto = "file://{desk.directory}/lake"\nin_broker = false\n'
    desk.config.write_text(f'{before}{sink}options = {{ password = "p4ss" }}\n')
    try:
        desk.brim("reload")
        assert {it["fields"]["name"] for it in desk.events("setting changed")} >= {"bridge.lake.to"}
        assert "p4ss" not in desk.broker.log()
    finally:
        desk.config.write_text(before)
