"""Clients that others wrote, through every kind of listener."""

import queue
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from tests.support.mqtt_transports import Transports, authority, transports
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def there() -> Iterator[Transports]:
    with transports() as there:
        yield there


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv311, MQTTProtocolVersion.MQTTv5])
@pytest.mark.parametrize("kind", ["tcp", "tls", "mtls", "ws", "wss", "unix"])
def test_paho(there: Transports, kind: str, version: MQTTProtocolVersion) -> None:
    transport: Any = {"ws": "websockets", "wss": "websockets", "unix": "unix"}.get(kind, "tcp")
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=version, transport=transport)
    if kind in {"tls", "mtls", "wss"}:
        client.tls_set_context(authority().context(certificate=kind == "mtls"))
    found: queue.Queue[tuple[str, bytes]] = queue.Queue()
    client.on_connect = lambda client, *_: client.subscribe("paho/#", 1)
    client.on_subscribe = lambda client, *_: client.publish("paho/1", b"hello" * 50_000, 1)
    client.on_message = lambda _client, _data, message: found.put((message.topic, bytes(message.payload)))
    if kind == "unix":
        client.connect(there.path())
    else:
        client.connect("127.0.0.1", there.port(kind))
    client.loop_start()
    try:
        assert found.get(timeout=PATIENCE_S) == ("paho/1", b"hello" * 50_000)
    finally:
        client.disconnect()
        client.loop_stop()


def place(there: Transports, kind: str) -> list[str]:
    """The arguments that take mosquitto's clients there."""
    if kind == "unix":
        return ["--unix", there.path()]
    arguments = ["-h", "127.0.0.1", "-p", str(there.port(kind)), "--cafile", str(authority().ca_file)]
    if kind == "mtls":
        arguments += ["--cert", str(authority().client_certificate_file)]
        arguments += ["--key", str(authority().client_key_file)]
    return arguments


@pytest.mark.mosquitto
@pytest.mark.parametrize("kind", ["tls", "mtls", "unix"])
def test_mosquitto(there: Transports, kind: str) -> None:
    where = place(there, kind)
    command = ["mosquitto_pub", *where, "-t", f"kept/{kind}", "-r", "-q", "1", "-m", "hello"]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    command = ["mosquitto_sub", *where, "-t", f"kept/{kind}", "-C", "1", "-W", "15"]
    found = subprocess.run(command, check=True, timeout=PATIENCE_S, capture_output=True)
    assert found.stdout == b"hello\n"


@pytest.mark.mosquitto
def test_mosquitto_without_a_certificate_where_one_is_wanted(there: Transports) -> None:
    arguments = ["-h", "127.0.0.1", "-p", str(there.port("mtls")), "--cafile", str(authority().ca_file)]
    command = ["mosquitto_pub", *arguments, "-t", "t", "-m", "1", "-q", "1"]
    assert subprocess.run(command, check=False, timeout=PATIENCE_S, capture_output=True).returncode != 0


@pytest.mark.parametrize("kind", ["tls", "mtls", "unix"])
def test_brim_itself(there: Transports, kind: str) -> None:
    where = place(there, kind)[2:] if kind != "unix" else place(there, kind)
    where = [{"-p": "--port"}.get(argument, argument) for argument in where]
    for verb, *more in (("pub", f"own/{kind}", "hello", "--retain"), ("sub", f"own/{kind}", "--count", "1")):
        command = [sys.executable, "-m", "edge", verb, *more, *where]
        found = subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE_S, capture_output=True)
    assert b"hello" in found.stdout
