"""Keys of a program for a ZeroMQ endpoint of the broker that other machines reach."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import zmq

from edge.config.directories import is_socket_file
from edge.errors import ControlError, InvalidArgument


class Curve(msgspec.Struct, frozen=True):
    """Keys for a tcp:// endpoint: the client's secret certificate, and the broker's public one.

    A socket file (ipc://) takes no keys: its permissions guard it.
    """

    secret_key_file: Path
    server_key_file: Path


def encrypt(socket: zmq.Socket[Any], endpoint: str, curve: Curve) -> None:
    """Give the keys to a socket that is not connected yet. Raises ControlError, InvalidArgument."""
    if is_socket_file(endpoint):
        text = (
            f"keys {curve.secret_key_file} for {endpoint}: a socket file takes none, its permissions guard it"
        )
        raise InvalidArgument(text, hint="remove the keys, or name a tcp:// endpoint")
    public_key, secret_key = _certificate(curve.secret_key_file)
    if secret_key is None:
        raise ControlError(f"{curve.secret_key_file} has no secret key", hint="name the file .key_secret")
    socket.curve_publickey, socket.curve_secretkey = public_key, secret_key
    socket.curve_serverkey = _certificate(curve.server_key_file)[0]


def _certificate(file: Path) -> tuple[bytes, bytes | None]:
    """(public, secret) key of a file."""
    from zmq.auth import load_certificate

    try:
        return load_certificate(file)
    except (OSError, ValueError) as error:
        raise InvalidArgument(
            f"{file}: {error}", hint="make one with zmq.auth.create_certificates()"
        ) from error
