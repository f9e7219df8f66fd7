"""Errors of a connection before MQTT."""

from __future__ import annotations


class HandshakeError(Exception):
    """The peer does not use the protocol of this listener; its connection is closed."""
