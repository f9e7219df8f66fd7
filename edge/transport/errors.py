"""Errors of a connection before MQTT."""

from __future__ import annotations

__all__ = ["HandshakeError"]


class HandshakeError(Exception):
    """The peer does not use the protocol of this listener; its connection is closed.

    `hint`: the operator's remedy if the peer is legitimate, or "".
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
