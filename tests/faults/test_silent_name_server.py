"""A name server that does not answer, while bridges look up their upstreams: the broker can be stopped."""

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.children import Child
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

UPSTREAMS = {
    "one": "mqtt://one.example:1883",
    "two": "kafka://two.example/t",
    "three": "kafka://three.example/t",
}
BROKER = """
import ctypes, runpy, subprocess, sys
CLONE_NEWNS = 0x20000
assert ctypes.CDLL(None).unshare(CLONE_NEWNS) == 0
subprocess.run(["mount", "--make-rprivate", "/"], check=True)
subprocess.run(["mount", "--bind", sys.argv[1], "/etc/resolv.conf"], check=True)
sys.argv = ["brim", *sys.argv[2:]]
runpy.run_module("edge", run_name="__main__")
"""


@pytest.fixture
def name_server() -> Iterator[socket.socket]:
    """A name server that receives queries and answers none."""
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: needs root, for port 53 and a mount of /etc/resolv.conf")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((f"127.{os.getpid() >> 16}.{os.getpid() >> 8 & 255}.{os.getpid() & 255}", 53))
        server.settimeout(PATIENCE_S)
        yield server


def test_a_broker_stops_while_its_bridges_wait_for_a_name_server(
    runtime_directory: Path, tmp_path: Path, name_server: socket.socket
) -> None:
    """The lookup of one name takes 150 s, and no client is served until the broker has ended."""
    pytest.importorskip("confluent_kafka")
    resolver, config, port = tmp_path / "resolv.conf", tmp_path / "brim.toml", free_port()
    resolver.write_text(f"nameserver {name_server.getsockname()[0]}\noptions timeout:30 attempts:5\n")
    lines = [f"runtime_dir = {json.dumps(str(runtime_directory))}", 'state_dir = "state"']
    lines += ["[[listener]]", f"port = {port}"]
    for name, url in UPSTREAMS.items():
        lines += ["[[bridge]]", f'name = "{name}"', f'to = "{url}"']
    config.write_text("\n".join(lines))
    with Child(BROKER, resolver, "run", "--config", config) as broker:
        broker.lines_until("ready")
        waiting = set(UPSTREAMS)
        while waiting:
            query = name_server.recv(512)
            waiting = {name for name in waiting if name.encode() + b"\x07example" not in query}
        with SocketClient(port, "c") as client:
            client.ping()
        status, _, log = broker.stop()
        assert status == 0, log
        assert "stopped" in log
