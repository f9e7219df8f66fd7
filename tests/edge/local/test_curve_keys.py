"""Keys of a program for an endpoint that other machines reach: a wrong file is named."""

from pathlib import Path

import pytest
import zmq.auth

from brim.asyncio import subscribe_zmq
from edge.errors import ControlError, EdgeError, InvalidArgument
from edge.local.curve_keys import Curve

ENDPOINT = "tcp://127.0.0.1:1"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    for name in ("app", "server"):
        zmq.auth.create_certificates(tmp_path, name)
    (tmp_path / "empty").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("secret", "server", "kind", "message"),
    [
        ("app.key", "server.key", ControlError, "app.key has no secret key"),
        ("missing", "server.key", InvalidArgument, "missing"),
        ("empty", "server.key", InvalidArgument, "empty"),
        ("app.key_secret", "missing", InvalidArgument, "missing"),
        ("app.key_secret", "empty", InvalidArgument, "empty"),
    ],
)
def test_a_file_without_the_key_is_named(
    keys: Path, secret: str, server: str, kind: type[EdgeError], message: str
) -> None:
    with pytest.raises(kind, match=message) as error:
        subscribe_zmq("b", endpoint=ENDPOINT, curve=Curve(keys / secret, keys / server))
    assert error.value.hint


def test_a_socket_file_takes_no_keys(keys: Path) -> None:
    curve = Curve(keys / "app.key_secret", keys / "server.key")
    with pytest.raises(InvalidArgument, match="a socket file takes none"):
        subscribe_zmq("b", runtime_dir=keys, curve=curve)
