"""Audit log: each event of security has a record of the logger brim.audit, with real fields."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.auth.password_file import change_user, delete_user
from edge.auth.password_hash import make_hash
from edge.cli import main
from edge.logging_setup import AUDIT_BURST
from edge.mqtt import ConnAck, Connect, Disconnect, Properties, PubAck, Publish, Version
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import RawClient, SocketClient
from tests.support.mqtt_transports import authority
from tests.support.ports import free_port
from tests.support.waiting import wait_until

OPERATOR = {"uid": os.getuid(), "pid": os.getpid()}
FLOOD = 3 * AUDIT_BURST


class Desk:
    """A broker with users, access rules and TLS, and its audit log."""

    def __init__(self, runtime_dir: Path, directory: Path) -> None:
        self.runtime_dir, self.directory, self.port = runtime_dir, directory, free_port()
        self.config, self.users, self.acl = directory / "brim.toml", directory / "users", directory / "acl"
        for name in ("ann", "bob"):
            change_user(self.users, name, make_hash(name.encode(), "pbkdf2"))
        self.acl.write_text("pattern readwrite #\n")
        tls = authority()
        self.config.write_text(f"""
runtime_dir = "{runtime_dir}"
state_dir = "{directory / "state"}"
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

    def one(self, message: str, **wanted: object) -> dict[str, Any]:
        """Fields of the only such record with these values, once there is one."""

        def matching() -> list[dict[str, Any]]:
            return [it["fields"] for it in self.events(message) if wanted.items() <= it["fields"].items()]

        wait_until(matching)
        (fields,) = matching()
        return fields

    def brim(self, *words: str) -> int:
        return main([*words, "--runtime-dir", str(self.runtime_dir)])


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("runtime"), tmp_path_factory.mktemp("desk"))
    with desk.broker:
        yield desk
        assert desk.broker.stop()[0] == 0


def test_a_connection_is_recorded_with_user_and_address(
    desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    with desk.client("ann", "press-1"):
        fields = desk.one("client connected", client="press-1")
    assert fields["user"] == "ann"
    assert fields["peer"].startswith("127.0.0.1")
    assert desk.brim("logs", "--text", "client=press-1") == 0
    assert all(line == line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert desk.one("connection ended", client="press-1") == {**fields, "cause": "peer"}


def test_the_end_of_a_connection_is_recorded_with_its_cause(desk: Desk) -> None:
    with desk.client("ann", "press-5") as client:
        client.send(Disconnect())
        assert desk.one("connection ended", client="press-5")["cause"] == "DISCONNECT"
    with desk.client("ann", "press-6"), desk.client("ann", "press-6"):
        assert desk.one("connection ended", client="press-6")["cause"] == "session taken over"


@pytest.mark.parametrize("version", [Version.V311, Version.V5])
def test_a_refusal_is_recorded_with_user_and_cause(desk: Desk, version: Version) -> None:
    with RawClient(desk.port, version) as client:
        client.send(Connect(f"thief-{version}", username="ann", password=b"guess", version=version))
        fields = desk.one("client refused", client=f"thief-{version}")
    assert (fields["user"], fields["peer"].split(":")[0]) == ("ann", "127.0.0.1")
    assert "not authorized" in fields["reason"] or "password" in fields["reason"]
    assert "guess" not in desk.broker.log()


def test_a_kick_and_a_forgotten_session_are_recorded(desk: Desk) -> None:
    with desk.client("ann", "press-2"):
        assert desk.brim("clients", "kick", "press-2") == 0
        kicked = desk.one("client disconnected by an operator", client="press-2")
    assert desk.brim("clients", "forget", "press-2") == 0
    removed = desk.one("session removed by an operator", client="press-2")
    assert kicked == removed == {"client": "press-2", **OPERATOR}


def test_cleared_retained_messages_are_recorded(desk: Desk) -> None:
    with desk.client("ann", "press-3") as client:
        client.send(Publish("kept/1", b"1", retain=True, qos=1, packet_id=1))
        assert isinstance(client.receive(), PubAck)
    assert desk.brim("retained", "clear", "kept/#") == 0
    cleared = desk.one("retained messages cleared by an operator", filter="kept/#")
    assert cleared == {"filter": "kept/#", "count": 1, **OPERATOR}


def test_a_connect_that_breaks_a_rule_is_recorded_with_address_and_cause(desk: Desk) -> None:
    with RawClient(desk.port, Version.V311) as client:
        client.socket.sendall(b"\x10\x0c\0\4MQTT\4\1\0\0\0\0")  # the reserved flag is set
        fields = desk.one("connection refused")
    assert fields["peer"].startswith("127.0.0.1")
    assert "bit 0 of the connect flags is set" in fields["reason"]


def test_text_of_a_client_cannot_forge_a_line(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    name = 'x\x1b[2J\r\n2026-01-01 00:00:00.000 INFO brim.audit: client connected client="boss"'
    with RawClient(desk.port, Version.V311) as client:
        client.send(Connect("forger", username=name, password=b"guess", version=Version.V311))
        assert desk.one("client refused", client="forger")["user"] == name
    assert desk.brim("logs") == 0
    (line,) = [line for line in capsys.readouterr().out.split("\n") if "boss" in line]
    assert "client=forger" in line
    assert line.isprintable()


def test_a_flood_of_refusals_is_counted_and_not_recorded_one_by_one(desk: Desk) -> None:
    refused = 0

    def refuse(client_id: str) -> None:
        nonlocal refused
        method = Properties(authentication_method="unknown")  # refused at once, without a hash
        with RawClient(desk.port, Version.V5) as client:
            client.send(Connect(client_id, username="ann", properties=method, version=Version.V5))
            assert isinstance(client.packet(), ConnAck)
        refused += 1

    def recorded() -> list[dict[str, Any]]:
        fields = [it["fields"] for it in desk.events("client refused")]
        return [it for it in fields if it["client"].startswith("flood")]

    def all_are_counted() -> bool:
        """True if the last refusal has a record: it has the number of those without."""
        refuse("flood")
        time.sleep(0.1)  # the thread of the log writes it
        return counted() == refused

    def counted() -> int:
        return len(recorded()) + sum(int(it.get("lines_left_out", 0)) for it in recorded())

    for _ in range(FLOOD):
        refuse("flood")
    wait_until(all_are_counted)
    fields = recorded()
    assert len(fields) < FLOOD
    assert {it["user"] for it in fields} == {"ann"}


def test_a_reload_is_recorded_with_all_that_has_changed(desk: Desk) -> None:
    desk.config.write_text(desk.config.read_text() + "[limits]\ntopics_max = 7000\n")
    with desk.client("bob", "press-4"):
        delete_user(desk.users, "bob")
        assert desk.brim("reload") == 0
        ended = desk.one("client disconnected: no longer authorized")
    assert (ended["client"], ended["user"]) == ("press-4", "bob")
    changed = {"name": "limits.topics_max", "before": "1000000", "now": "7000"}
    assert desk.event("setting changed") == changed
    assert desk.event("password and ACL files reloaded") == {"users": 1, "changed": 1, "rules": True}
    assert desk.event("certificate reloaded") == {"file": str(authority().certificate_file)}
    assert desk.one("configuration reloaded") == {"applied": 4, "failed": 0, "needs_restart": 0}
    assert desk.one("reload requested by an operator") == OPERATOR


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
        wait_until(lambda: "bridge.lake" in {it["fields"]["name"] for it in desk.events("setting changed")})
        assert "p4ss" not in desk.broker.log()
    finally:
        desk.config.write_text(before)
