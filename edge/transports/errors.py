"""What can be wrong with a peer before it speaks MQTT.  For whoever asks why nobody gets in."""

from __future__ import annotations

__all__ = ["HandshakeError"]


class HandshakeError(Exception):
    """The peer does not speak what this listener expects; its connection is closed.

    `hint`: the operator's remedy if the peer is honest, or "".
    """

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
