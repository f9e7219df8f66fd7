"""The listening sockets of ZeroMQ endpoints: bound addresses, their files, and errors."""

import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from edge.errors import EdgeError, PortTaken
from edge.local.zmq_listener import ZmqListener


@pytest.mark.parametrize(
    ("written", "bound"),
    [
        ("tcp://127.0.0.1:*", "tcp://127.0.0.1:"),
        ("tcp://localhost:0", "tcp://127.0.0.1:"),
        ("tcp://[::1]:*", "tcp://[::1]:"),
        ("tcp://lo:*", "tcp://127.0.0.1:"),
        ("tcp://*:*", "tcp://0.0.0.0:"),
    ],
)
def test_addresses_of_zeromq_are_bound_and_named(written: str, bound: str) -> None:
    with closing(ZmqListener("zmq", written)) as listener:
        assert listener.endpoint.startswith(bound)
        assert int(listener.endpoint.removeprefix(bound)) == listener.socket.getsockname()[1] > 0


def test_a_peer_that_vanishes_is_probed_and_its_connection_ends() -> None:
    with closing(ZmqListener("zmq", "tcp://127.0.0.1:*")) as listener:
        listener.socket.setblocking(True)
        with socket.create_connection(listener.socket.getsockname()), listener.socket.accept()[0] as peer:
            assert peer.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
            assert [peer.getsockopt(socket.IPPROTO_TCP, option) for option in options] == [60, 15, 4]


@pytest.mark.parametrize("table", ["zmq", "consumers"])
def test_a_port_that_is_taken_is_an_error_with_its_setting(table: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(PortTaken, match=f"{table}.endpoint {endpoint} is in use") as caught:
            ZmqListener(table, endpoint)
    assert f"set {table}.endpoint" in caught.value.hint


@pytest.mark.parametrize(
    "endpoint", [f"ipc:///{'x' * 200}", "tcp://127.0.0.1", "udp://127.0.0.1:1", "ipc:///no/such/place"]
)
def test_an_endpoint_that_cannot_be_bound_is_an_error(endpoint: str) -> None:
    with pytest.raises(EdgeError, match=r"zmq\.endpoint"):
        ZmqListener("zmq", endpoint)


def test_a_socket_of_a_killed_broker_is_replaced_and_another_file_is_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    with closing(ZmqListener("zmq", f"ipc://{path}")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert not path.exists()
    path.write_text("kept")
    with pytest.raises(PortTaken):
        ZmqListener("zmq", f"ipc://{path}")
    assert path.read_text() == "kept"


def test_a_socket_that_another_broker_serves_is_left_to_it(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with closing(ZmqListener("zmq", f"ipc://{path}")):
        with pytest.raises(PortTaken, match="in use") as caught:
            ZmqListener("zmq", f"ipc://{path}")
        assert "set zmq.endpoint" in caught.value.hint
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
    assert not path.exists()


def test_a_socket_with_a_full_backlog_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as waiting:
        busy.bind(str(path))
        busy.listen(0)
        waiting.connect(str(path))
        with pytest.raises(PortTaken):
            ZmqListener("zmq", f"ipc://{path}")
        assert path.exists()


def test_a_file_that_another_process_has_put_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with closing(ZmqListener("zmq", f"ipc://{path}")), socket.socket(socket.AF_UNIX) as other:
        path.unlink()
        other.bind(str(path))
    assert path.exists()
