"""MQTT inside WebSocket (RFC 6455, MQTT section 6), the server's side, without I/O.

The library `websockets` parses; this says what MQTT asks for: binary frames and no others [MQTT-6.0.0-1],
packets that begin and end anywhere in them [MQTT-6.0.0-2], and the subprotocol "mqtt" [MQTT-6.0.0-3, -4], or
"mqttv3.1", which clients of MQTT 3.1 ask for.  No compression: one message inflated without bound is enough.
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

from edge.host_names import HostNames, host_of
from edge.transports.errors import HandshakeError

__all__ = ["WebSocket"]

PATHS = frozenset({"/", "/mqtt"})
SUBPROTOCOLS = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
REQUEST_MAX_BYTES = 16_384  # browsers send cookies, too

_log = logging.getLogger(__name__)
_log.setLevel(logging.WARNING)  # the library tells of every frame and connection


class WebSocket:
    """One connection.  Bytes of the network in and out, bytes of MQTT out and in."""

    def __init__(self, origins: Sequence[str], frame_max_bytes: int, names: HostNames) -> None:
        """`origins`: of web pages that may connect; () those of this host, under one of its `names`, "*" any.

        A request without an Origin comes from a program, not from a browser, and is accepted.
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
        self.refusal = ""  # why the request was refused
        self.hint = ""  # the operator's remedy, where there is one
        self.frames = 0  # in the last receive()

    @property
    def is_open(self) -> bool:
        """Whether the request was accepted, and nobody has said goodbye."""
        return self._protocol.state is State.OPEN

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes in: refused, failed or closed; output() may still have something."""
        return self._protocol.eof_sent or self._protocol.state in {State.CLOSING, State.CLOSED}

    def refuse_frames(self) -> None:
        """Close with 1008: the client sends frames without MQTT in them.  To be followed by output()."""
        if self.is_open:
            self._protocol.fail(CloseCode.POLICY_VIOLATION, "too many frames before CONNECT was answered")

    def allow(self, frame_max_bytes: int) -> None:
        """The longest frame and message from now on; the next larger one closes with 1009."""
        self._protocol.max_size = frame_max_bytes

    def receive(self, data: bytes) -> bytes:
        """Bytes of the network; the bytes of MQTT in them.  To be followed by output()."""
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
        """Bytes of MQTT, as what is to be sent; nothing once it is over."""
        if self.is_open:
            self._protocol.send_binary(data)
        return self.output()

    def close(self) -> bytes:
        """What says goodbye, if that was not said yet."""
        if self.is_open:
            self._protocol.send_close(CloseCode.NORMAL_CLOSURE)
        return self.output()

    def output(self) -> bytes:
        """What the protocol itself has to say: the answer to the request, pongs, goodbyes."""
        return b"".join(self._protocol.data_to_send())


def _foreign_host(request: Request, names: HostNames) -> str | None:
    """The Host of a page's request if it is not a name of the listener; None: it is, or no page asks.

    A page that has resolved its own name to this machine is of one host with the broker otherwise.
    """
    if not request.headers.get_all("Origin"):
        return None
    hosts = request.headers.get_all("Host")
    return None if len(hosts) == 1 and names.accept(host_of(hosts[0])) else ", ".join(hosts)


def _is_of_host(request: Request) -> bool:
    """Whether the page comes from the host that it connects to, at whatever port, or is none.

    Else any page that somebody on this machine looks at could be a client of its broker.
    """
    try:
        origins, hosts = request.headers.get_all("Origin"), request.headers.get_all("Host")
        host = urlsplit(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
        return all(host is not None and urlsplit(it).hostname == host for it in origins)
    except ValueError:  # no address
        return False


def _select(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol:
    for known in SUBPROTOCOLS:
        if known in offered:
            return known
    raise NegotiationError("the subprotocol mqtt is not offered")
