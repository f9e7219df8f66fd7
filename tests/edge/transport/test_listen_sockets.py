"""Addresses of listeners: Unix sockets left by a killed broker, IPv4 and IPv6."""

from __future__ import annotations

import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from edge.config.listener import Listener
from edge.errors import EdgeError, PortTaken
from edge.mqtt import ConnAck, Connect, encode
from edge.transport.listen_sockets import bind, remove_socket
from tests.support.mqtt_served import served
from tests.support.mqtt_transports import transports
from tests.support.recording_authenticator import RecordingAuthenticator


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
