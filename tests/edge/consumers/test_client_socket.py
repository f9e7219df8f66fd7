"""The socket of consumers and readers: a loss of the broker is seen, however late the program looks."""

from pathlib import Path

import zmq
import zmq.auth

from edge.consumers.client_socket import ClientSocket
from edge.consumers.protocol import VERSION, Rings
from edge.local.curve_keys import Curve
from tests.support.waiting import PATIENCE_S, wait_until


def test_a_broker_that_was_replaced_between_two_looks_is_a_loss_once(runtime_directory: Path) -> None:
    endpoint = f"ipc://{runtime_directory}/consumers.sock"
    context = zmq.Context()
    client = ClientSocket(context, endpoint, None)
    request = Rings(1, VERSION, ("#",))
    for _ in range(3):
        with context.socket(zmq.ROUTER) as broker:
            broker.bind(endpoint)
            assert client.socket.poll(int(PATIENCE_S * 1000), zmq.POLLOUT)
            wait_until(lambda: client.connected)
            assert client.send(request)
            assert broker.poll(int(PATIENCE_S * 1000))
        wait_until(lambda: not client.socket.poll(0, zmq.POLLOUT))
    with context.socket(zmq.ROUTER) as broker:
        broker.bind(endpoint)
        assert client.socket.poll(int(PATIENCE_S * 1000), zmq.POLLOUT)
        assert not client.connected
        assert client.connected
        client.close()
    client.close()
    context.term()


def test_a_broker_that_has_the_right_key_and_does_not_answer_is_not_reported_as_another(
    tmp_path: Path,
) -> None:
    for name in ("server", "app"):
        zmq.auth.create_certificates(tmp_path, name)
    context = zmq.Context()
    with context.socket(zmq.ROUTER) as broker:
        _, broker.curve_secretkey = zmq.auth.load_certificate(tmp_path / "server.key_secret")
        broker.curve_server = True
        port = broker.bind_to_random_port("tcp://127.0.0.1")
        keys = Curve(tmp_path / "app.key_secret", tmp_path / "server.key")
        client = ClientSocket(context, f"tcp://127.0.0.1:{port}", keys)
        wait_until(lambda: client.connected and "no broker serves" in str(client.unreachable()))
        client.close()
    context.term()
