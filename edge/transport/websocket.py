"""MQTT in WebSocket (RFC 6455, MQTT section 6), the server's side, without I/O.

The library `websockets` parses. This module adds the rules of MQTT: only binary frames [MQTT-6.0.0-1],
packets that begin and end anywhere in them [MQTT-6.0.0-2], and the subprotocol "mqtt" [MQTT-6.0.0-3, -4], or
"mqttv3.1" for clients of MQTT 3.1. No compression: inflating a single message could use unbounded memory.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.exceptions import NegotiationError
from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from edge.transport.errors import HandshakeError
from edge.transport.host_names import HostNames, host_of

__all__ = ["WebSocket"]

PATHS = frozenset({"/", "/mqtt"})
SUBPROTOCOLS = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
REQUEST_MAX_BYTES = 16_384  # browsers also send cookies

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)  # the library logs every frame and connection


class WebSocket:
    """One connection. Converts between bytes of the network and bytes of MQTT."""

    def __init__(self, origins: Sequence[str], frame_max_bytes: int, names: HostNames) -> None:
        """Create a connection. `origins`: web pages that may connect; () pages of this host, "*" any page.

        This host has the `names`. A request without an Origin comes from a program, not from a browser, and
        is accepted.
        """
        self._same_host = not origins
        self._names = names
        self._protocol = ServerProtocol(
            origins=[Origin(it) for it in origins] + [None] if origins and "*" not in origins else None,
            subprotocols=SUBPROTOCOLS,
            select_subprotocol=_select,
            max_size=frame_max_bytes,
            logger=_log,
        )
        self._request_bytes = 0
        self.refusal = ""  # reason of the refused request
        self.hint = ""  # the operator's remedy, if there is one
        self.frames = 0  # in the last receive()

    @property
    def is_open(self) -> bool:
        """True if the request was accepted, and neither side has begun to close."""
        return self._protocol.state is State.OPEN

    @property
    def is_over(self) -> bool:
        """True if no more input follows: refused, failed or closed. output() may still have bytes."""
        return self._protocol.eof_sent or self._protocol.state in {State.CLOSING, State.CLOSED}

    def refuse_frames(self) -> None:
        """Close with 1008: the client sends frames without MQTT in them. Call output() afterwards."""
        if self.is_open:
            self._protocol.fail(CloseCode.POLICY_VIOLATION, "too many frames before CONNECT was answered")

    def allow(self, frame_max_bytes: int) -> None:
        """Set the limit of later frames and messages; a larger one closes with 1009."""
        self._protocol.max_size = frame_max_bytes

    def receive(self, data: bytes) -> bytes:
        """Bytes of MQTT in bytes of the network. Call output() afterwards."""
        protocol = self._protocol
        self.frames = 0
        if self.is_over:
            return b""
        if protocol.state is State.CONNECTING:
            self._request_bytes += len(data)
            if self._request_bytes > REQUEST_MAX_BYTES and b"\r\n\r\n" not in data[:REQUEST_MAX_BYTES]:
                raise HandshakeError(f"a request of more than {REQUEST_MAX_BYTES} bytes")
        protocol.receive_data(data)
        if protocol.state is State.CONNECTING and protocol.handshake_exc is not None:
            self.refusal = str(protocol.handshake_exc.__cause__ or protocol.handshake_exc)
        found = []
        for event in protocol.events_received():
            if isinstance(event, Request):
                self._answer(event)
            elif isinstance(event, Frame):
                self.frames += 1
                if event.opcode is Opcode.TEXT:
                    if self.is_open:
                        protocol.fail(CloseCode.UNSUPPORTED_DATA, "MQTT is binary")
                    break
                if event.opcode in {Opcode.BINARY, Opcode.CONT} and not self.refusal:
                    found.append(event.data)
        return b"".join(found)

    def _answer(self, request: Request) -> None:
        protocol = self._protocol
        why = ""
        if request.path.partition("?")[0] not in PATHS:
            why = f"no such path: {request.path!a}"
            response = protocol.reject(HTTPStatus.NOT_FOUND, "MQTT is at /mqtt.\n")
        elif self._same_host and (host := _foreign_host(request, self._names)) is not None:
            why = f"a page reached this listener as {host[:100]!a}, which is not a name of it"
            self.hint = "if the name is this machine's, add it to host_names of the [[listener]]"
            response = protocol.reject(
                HTTPStatus.MISDIRECTED_REQUEST, "The broker does not have this host name.\n"
            )
        elif self._same_host and not _is_of_host(request):
            self.hint = "if the page is yours, add its origin to origins of the [[listener]]"
            why = f"a page of {request.headers.get('Origin')!a}, which is not in origins of the listener"
            response = protocol.reject(HTTPStatus.FORBIDDEN, "The broker does not list this page's origin.\n")
        else:
            response = protocol.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self.refusal = why or str(protocol.handshake_exc)
        protocol.send_response(response)

    def send(self, data: bytes) -> bytes:
        """Bytes of the network for bytes of MQTT; empty after the close."""
        if self.is_open:
            self._protocol.send_binary(data)
        return self.output()

    def close(self) -> bytes:
        """Bytes of a close frame, unless one was sent already."""
        if self.is_open:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        return self.output()

    def output(self) -> bytes:
        """Bytes of the protocol itself: the answer to the request, pongs, close frames."""
        return b"".join(self._protocol.data_to_send())


def _foreign_host(request: Request, names: HostNames) -> str | None:
    """Host of a browser's request if it is not a name of the listener; None if it is, or without a browser.

    Otherwise a page whose own name resolves to this machine would have the same host as the broker.
    """
    if not request.headers.get_all("Origin"):
        return None
    hosts = request.headers.get_all("Host")
    return None if len(hosts) == 1 and names.accept(host_of(hosts[0])) else ", ".join(hosts)


def _is_of_host(request: Request) -> bool:
    """True if a page connects to the host that it comes from, on any port, or if no page is involved.

    Otherwise any page in a browser on this machine could be a client of its broker.
    """
    try:
        origins, hosts = request.headers.get_all("Origin"), request.headers.get_all("Host")
        host = urlsplit(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
        return all(host is not None and urlsplit(it).hostname == host for it in origins)
    except ValueError:  # not an address
        return False


def _select(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol:
    for known in SUBPROTOCOLS:
        if known in offered:
            return known
    raise NegotiationError("the subprotocol mqtt is not offered")
