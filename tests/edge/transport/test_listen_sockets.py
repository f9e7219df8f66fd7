"""Addresses of listeners: Unix sockets left by a killed broker, IPv4 and IPv6, sockets of systemd."""

import fcntl
import os
import socket
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from edge.config.listener import Listener
from edge.errors import EdgeError, PortTaken
from edge.mqtt import ConnAck, Connect, encode
from edge.transport.listen_sockets import bind, remove_socket
from edge.transport.passed_sockets import PassedSockets
from tests.support.children import Child
from tests.support.mqtt_served import served
from tests.support.mqtt_transports import transports
from tests.support.recording_authenticator import RecordingAuthenticator
from tests.support.waiting import PATIENCE_S


def test_a_unix_socket_is_for_user_and_group_and_goes_with_the_broker() -> None:
    with transports("unix") as there:
        path = Path(there.path())
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with there.client("unix"):
            assert there.there.listener.broker.policies[1].transport == "unix"
    assert not path.exists()


def test_a_socket_that_nobody_answers_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "mqtt.sock"
    left_behind, _ = bind(Listener(path=path))
    left_behind.close()
    server, address = bind(Listener(path=path))
    with closing(server):
        assert str(address) == f"unix://{path}"
        with pytest.raises(PortTaken, match="in use"):
            bind(Listener(path=path))
        path.unlink()
        other, _ = bind(Listener(path=path))
        remove_socket(address)  # is not ours any more
        assert path.exists()
        other.close()


def test_what_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine")
    with pytest.raises(EdgeError, match="is not a socket"):
        bind(Listener(path=path))
    assert path.read_text() == "mine"
    with pytest.raises(EdgeError, match="cannot be made"):
        bind(Listener(path=tmp_path / "nowhere" / "mqtt.sock"))


def test_every_address_means_ipv4_as_well() -> None:
    both = Listener(host="::", port=0, allow_anonymous=True)
    with served(listeners=(both, Listener(host="::1", port=0))) as there:
        _, every, six = there.listener.addresses
        for port, hosts in ((every.port, ("127.0.0.1", "::1")), (six.port, ("::1",))):
            for host in hosts:
                with closing(socket.create_connection((host, port), 20.0)) as client:
                    client.sendall(encode(Connect("c")))
                    assert client.recv(100) == encode(ConnAck())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", six.port), 20.0)


def test_an_ipv4_client_of_both_has_its_own_address() -> None:
    recorder = RecordingAuthenticator()
    both = Listener(host="::", port=0, allow_anonymous=True)
    with served(listeners=(both,), authenticator=recorder) as there:
        place = ("127.0.0.1", there.listener.addresses[1].port)
        with closing(socket.create_connection(place, 20.0)) as client:
            client.sendall(encode(Connect("c", username="u")))
            assert client.recv(100) == encode(ConnAck())
            assert recorder.seen[0].address == f"127.0.0.1:{client.getsockname()[1]}"


# ---- sockets of the service manager --------------------------------------------------------------------

ACTIVATED = """
import os, sys
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=sys.argv.pop(1))
sys.argv = ["brim", *sys.argv[1:]]
from brim._command import main
sys.exit(main())
"""


class Activated(Child):
    """`brim run` that gets these sockets as descriptors 3, 4, ... as systemd passes them."""

    def __init__(self, sockets: list[socket.socket], *arguments: object) -> None:
        self._sockets = sockets
        super().__init__(ACTIVATED, len(sockets), *arguments)

    def _options(self) -> dict[str, Any]:
        def put() -> None:
            high = [fcntl.fcntl(it, fcntl.F_DUPFD_CLOEXEC, 100) for it in self._sockets]
            for index, number in enumerate(high):
                os.dup2(number, 3 + index)

        return {"preexec_fn": put, "close_fds": False}


@pytest.fixture
def places(runtime_directory: Path, tmp_path: Path) -> list[object]:
    return ["--runtime-dir", runtime_directory, "--state-dir", tmp_path / "state"]


def test_clients_of_a_passed_socket_wait_for_the_start_and_over_a_restart(places: list[object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        port = passed.getsockname()[1]
        for _ in range(2):
            early = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)  # without a broker
            early.sendall(encode(Connect(client_id="early")))
            with early, Activated([passed], "run", "--port", port, *places) as broker:
                assert early.recv(4) == encode(ConnAck())
                assert broker.stop()[0] == 0


def test_a_passed_unix_socket_stays_with_systemd(places: list[object], tmp_path: Path) -> None:
    config = tmp_path / "brim.toml"
    config.write_text(f'[[listener]]\npath = "{tmp_path / "mqtt.sock"}"\n')
    with socket.socket(socket.AF_UNIX) as passed:
        passed.bind(str(tmp_path / "mqtt.sock"))
        passed.listen()
        with Activated([passed], "run", "--config", config, *places) as broker:
            broker.lines_until("ready")
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(tmp_path / "mqtt.sock"))
                client.sendall(encode(Connect(client_id="a")))
                assert client.recv(4) == encode(ConnAck())
            assert broker.stop()[0] == 0
    assert (tmp_path / "mqtt.sock").exists()


def test_a_passed_socket_without_a_listener_is_closed_and_reported(places: list[object]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as passed:
        address = passed.getsockname()
        with Activated([passed], "run", "--port", "0", *places) as broker:
            broker.lines_until("ready")
            assert "passed socket closed" in broker.log()
            passed.close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            assert broker.stop()[0] == 0


@pytest.mark.parametrize("pid", ["1", ""])
def test_sockets_of_another_process_are_not_taken(pid: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LISTEN_PID", pid)
    monkeypatch.setenv("LISTEN_FDS", "1")
    with closing(PassedSockets()) as passed, socket.create_server(("127.0.0.1", 0)) as other:
        assert passed.take(other.getsockname()) is None
    assert "LISTEN_FDS" not in os.environ
