"""The core of a broker: clients are served before modules are imported that only other parts need, and a
start waits for a backup."""

import subprocess
import sys
import time

import pytest

from edge.config.directory_lock import DirectoryLock
from edge.errors import DirectoryBusy
from edge.server import mqtt_startup
from tests.support.project import ROOT

# Modules that the default configuration needs later, or not at all.
LATE = """
argon2 asyncio difflib email hashlib hmac importlib.metadata msgpack
pyroaring secrets ssl tomllib websockets zmq
bridge.drain bridge.format.drained_file bridge.sinks
edge.auth.acl_file edge.auth.amqtt_compat edge.auth.password_checker edge.auth.password_hash edge.auth.scram
edge.cli.run_loop edge.client edge.config.toml_positions edge.consumers edge.load edge.local.control_server
edge.local.zmq_publisher edge.log edge.observe edge.rpc edge.server.services
edge.transport.tls edge.transport.websocket_upgrade
persistence.archive persistence.log persistence.read persistence.segment
"""

SERVED = """
import os, pathlib, socket, sys
from edge.cli import parser_of
from edge.cli.config_options import configured
import edge.cli.run_process
from edge.server.server import BrokerServer

arguments = parser_of("run").parse_args(sys.argv[1:])
broker = BrokerServer(configured(arguments), "test", print)
broker.serve_clients()
with socket.create_connection(("127.0.0.1", broker.listener.addresses[0].port)) as client:
    client.sendall(bytes.fromhex("100d00044d5154540402003c000161"))  # CONNECT of client "a"
    assert client.recv(4) == bytes.fromhex("20020000")
print(*sys.modules)
sys.stdout.flush()
os._exit(0)
"""


def test_the_first_client_is_served_before_modules_of_other_parts_are_imported(
    runtime_directory, tmp_path
) -> None:
    options = ["--port", "0", "--runtime-dir", runtime_directory, "--state-dir", tmp_path / "state"]
    options += ["--log-level", "warning"]  # a valid word of a list needs no search for similar ones
    command = [sys.executable, "-c", SERVED, *map(str, options)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    loaded = set(run.stdout.split())
    assert "edge.broker.connect" in loaded
    assert loaded.intersection(LATE.split()) == set()


def test_a_start_waits_for_the_end_of_a_backup_of_the_stopped_broker(tmp_path, monkeypatch, caplog) -> None:
    backup = DirectoryLock(tmp_path, "backup")
    monkeypatch.setattr(time, "sleep", lambda _: backup.close())
    mqtt_startup._locked_after_backup(tmp_path).close()
    assert "start waits for the end of brim backup" in caplog.text


@pytest.mark.parametrize(("holder", "named"), [("backup", "brim backup"), ("", "another broker")])
def test_a_start_names_the_holder_of_its_directory(tmp_path, monkeypatch, holder: str, named: str) -> None:
    monkeypatch.setattr(mqtt_startup, "BACKUP_WAIT_MAX_S", -1.0)
    with DirectoryLock(tmp_path, holder), pytest.raises(DirectoryBusy, match=f"is in use by {named} \\(pid"):
        mqtt_startup._locked_after_backup(tmp_path)
