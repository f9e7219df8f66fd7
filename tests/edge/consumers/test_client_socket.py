"""The socket of consumers and readers: a loss of the broker is seen, however late the program looks."""

from pathlib import Path

import zmq

from edge.consumers.client_socket import ClientSocket
from edge.consumers.protocol import VERSION, Rings
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
