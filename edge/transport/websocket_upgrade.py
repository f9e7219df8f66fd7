"""HTTP upgrade to WebSocket (RFC 6455 section 4, MQTT section 6), the server's side, without I/O.

The library `websockets` parses. This module adds the rules of MQTT: the paths, the pages that may connect,
and the subprotocol "mqtt" [MQTT-6.0.0-3, -4], or "mqttv3.1" for clients of MQTT 3.1. No compression:
inflating a single message could use unbounded memory. ringbuf/c/mqtt/transport/ has the frames that follow.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.exceptions import NegotiationError
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Origin, Subprotocol

from edge.transport.host_names import HostNames, host_of

PATHS = frozenset({"/", "/mqtt"})
SUBPROTOCOLS = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))

_log = logging.getLogger(__name__)
_log.setLevel(logging.CRITICAL)  # the library logs every refused request, with a traceback


@dataclass(frozen=True, slots=True)
class UpgradeAnswer:
    """HTTP answer to a request.

    `refusal`: the reason, or "" if the client is accepted; `hint`: the operator's remedy, or "".
    """

    response: bytes
    refusal: str = ""
    hint: str = ""


class WebSocketUpgrade:
    """The rules of one listener for HTTP requests."""

    def __init__(self, origins: Sequence[str], names: HostNames) -> None:
        """Create the rules. `origins`: web pages that may connect; () pages of this host, "*" any page.

        This host has the `names`. A request without an Origin comes from a program, not from a browser, and
        is accepted.
        """
        self._same_host = not origins
        self._names = names
        self._origins = (
            [Origin(origin) for origin in origins] + [None] if origins and "*" not in origins else None
        )

    def answer(self, request: bytes) -> UpgradeAnswer:
        """Answer to a complete request, which ends with an empty line."""
        try:
            return self._answer(request)
        except UnicodeError:
            return UpgradeAnswer(b"", "a header of the request has bytes beyond ASCII")

    def _answer(self, request: bytes) -> UpgradeAnswer:
        protocol = ServerProtocol(
            origins=self._origins, subprotocols=SUBPROTOCOLS, select_subprotocol=_select, logger=_log
        )
        protocol.receive_data(request)
        refusal, hint = "", ""
        for event in protocol.events_received():
            assert isinstance(event, Request)
            refusal, hint = self._respond(protocol, event)
        error = protocol.handshake_exc
        if error is not None:
            refusal = refusal or str(error.__cause__ or error)
        return UpgradeAnswer(b"".join(protocol.data_to_send()), refusal, hint)

    def _respond(self, protocol: ServerProtocol, request: Request) -> tuple[str, str]:
        """Send the response. Returns the reason of a refusal and the hint, if the rules are those of MQTT."""
        why = hint = ""
        if request.path.partition("?")[0] not in PATHS:
            why = f"no such path: {request.path!a}"
            response = protocol.reject(HTTPStatus.NOT_FOUND, "MQTT is at /mqtt.\n")
        elif self._same_host and (host := _other_host(request, self._names)) is not None:
            why = f"a page reached this listener as {host[:100]!a}, which is not a name of it"
            hint = "if the name is this machine's, add it to host_names of the [[listener]]"
            response = protocol.reject(
                HTTPStatus.MISDIRECTED_REQUEST, "The broker does not have this host name.\n"
            )
        elif self._same_host and not _is_of_host(request):
            why = f"a page of {request.headers.get('Origin')!a}, which is not in origins of the listener"
            hint = "if the page is yours, add its origin to origins of the [[listener]]"
            response = protocol.reject(HTTPStatus.FORBIDDEN, "The broker does not list this page's origin.\n")
        else:
            response = protocol.accept(request)
        protocol.send_response(response)
        return why, hint


def _other_host(request: Request, names: HostNames) -> str | None:
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
        return all(host is not None and urlsplit(origin).hostname == host for origin in origins)
    except ValueError:  # not an address
        return False


def _select(protocol: ServerProtocol, offered: Sequence[Subprotocol]) -> Subprotocol:
    for known in SUBPROTOCOLS:
        if known in offered:
            return known
    raise NegotiationError("the subprotocol mqtt is not offered")
