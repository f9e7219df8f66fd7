"""Services of ZeroMQ: loaded for the first peer; their ports are bound before clients are served."""

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from brim import consumer, subscribe_zmq
from edge.local.zmq_listener import ZmqListener
from edge.mqtt import PubAck, Publish
from edge.server import on_demand
from edge.server.on_demand import OnDemand
from tests.support.brim_process import BrimProcess
from tests.support.children import ModuleChild
from tests.support.mqtt_socket import SocketClient
from tests.support.ports import free_port
from tests.support.project import ROOT
from tests.support.waiting import until, wait_until


def loaded(broker: BrimProcess) -> str:
    """Names of the files that the broker has mapped."""
    return Path(f"/proc/{broker.pid}/maps").read_text()


def publish(broker: BrimProcess) -> None:
    with SocketClient(broker.port, "c") as client:
        client.send(Publish("t", b"x", 1, packet_id=1))
        assert isinstance(client.receive(), PubAck)


def status(broker: BrimProcess) -> dict[str, Any]:
    command = [sys.executable, "-m", "edge", "status", "--json", "--runtime-dir", str(broker.runtime_dir)]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def test_libzmq_is_loaded_for_its_first_peer_and_openssl_for_tls_only(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        publish(broker)
        assert status(broker)["zmq"]["sent"] == 0
        assert not {it for it in ("libzmq", "libssl", "libcrypto") if it in loaded(broker)}
        with subscribe_zmq("t", runtime_dir=runtime_directory) as records:
            wait_until(lambda: status(broker)["zmq"]["prefixes"] == 1)
            publish(broker)
            assert bytes(next(iter(records))[2]) == b"x"
        assert "libzmq" in loaded(broker)
        assert "pyroaring" not in loaded(broker)


def test_consumers_are_loaded_for_their_first_peer_and_with_groups_at_the_start(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        publish(broker)
        with consumer("g", "t", start="oldest", runtime_dir=runtime_directory) as records:
            batch = records.read(20.0)
            assert batch is not None
            records.commit(batch)
        broker.stop()
        broker.start()
        assert [it["name"] for it in status(broker)["consumers"]] == ["g"]


@pytest.mark.parametrize(
    ("table", "key", "scheme"),
    [("zmq", "endpoint", "tcp://"), ("consumers", "endpoint", "tcp://"), ("metrics", "listen", "")],
)
def test_a_taken_port_is_an_error_before_clients_are_served(
    runtime_directory: Path, tmp_path: Path, table: str, key: str, scheme: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"{scheme}127.0.0.1:{taken.getsockname()[1]}"
        config = tmp_path / "brim.toml"
        config.write_text(
            f'runtime_dir = "{runtime_directory}"\nstate_dir = "{tmp_path / "state"}"\n'
            f'[[listener]]\nport = {free_port()}\n[{table}]\n{key} = "{endpoint}"\n'
        )
        with ModuleChild("edge", "run", "--config", config) as child:
            code, out, error = child.wait()
    assert (code, out) == (2, "")
    assert f"brim run: {table}.{key} {endpoint} is in use\n" in error
    assert f"or set {table}.{key}" in error
    assert "edge.cli.run_loop" not in error  # the module of all that follows the first clients


class FakeService:
    """A service that is stopped."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


async def test_a_service_that_cannot_start_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(on_demand, "RETRY_S", 0.0)
    failures = [OSError("no descriptor"), OSError("none yet")]

    def start() -> FakeService:
        if failures:
            raise failures.pop()
        return FakeService()

    with closing(ZmqListener("zmq", "tcp://127.0.0.1:*")) as listener:
        service = OnDemand(listener, "json", start)
        service.watch()
        await asyncio.sleep(0)
        assert service.service is None
        with socket.create_connection(listener.socket.getsockname()):
            await until(lambda: service.service is not None)
        await service.stop()
        assert service.service is not None
        assert service.service.stopped
    assert [it.message.startswith("ZeroMQ service not started") for it in caplog.records] == [True, True]
