"""Brokers of the MQTT sink: address and credentials, and errors of a connection as those of a sink.

The connection is the Link of edge.client. Knows nothing of records; the caller owns all state that must
outlive the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bridge.errors import BadName, SinkUnavailable
from bridge.sinks.interface import shown
from edge.client.connection import Link
from edge.client.errors import CannotConnect, ConnectionLost, ConnectRefused, InvalidOption
from edge.client.options import Address, Options, parse_url
from edge.mqtt import ConnAck, Connect, Disconnect, Packet, ProtocolError

# Of a command: the maximum of MQTT; the broker there is configured by the operator.
PACKET_MAX_BYTES = 256 << 20
OPTIONS = Options(connect_timeout_s=10.0, max_packet_bytes=PACKET_MAX_BYTES)
NO_CONNECTION = "check the network, and that the broker runs"
UNKNOWN_AUTHORITY = "name the certificate authority of the broker as option ca"


@dataclass(frozen=True, slots=True)
class UpstreamBroker:
    """A broker, and the client's credentials there."""

    host: str
    port: int
    username: str | None = None
    password: bytes | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def of(
        cls,
        url: str,
        *,
        username: str | None = None,
        password_file: str | None = None,
        ca: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
    ) -> UpstreamBroker:
        """The target of mqtt://[user:password@]host[:port], or mqtts://, which requires a certificate that
        `ca` (or the system) knows.

        `certificate` and `key` are the client's own. Raises BadName.
        """
        parsed = None
        with suppress(InvalidOption):
            parsed = parse_url(url)
        if parsed is None or not parsed.address.host:  # a Unix socket has none
            hint = "write mqtt://host:1883 or mqtts://host:8883, without a path"
            raise BadName(f"{shown(url)!r} is not an MQTT URL", hint=hint)
        if not parsed.tls and (ca or certificate or key):
            raise BadName(f"{shown(url)!r}: ca, certificate and key are for mqtts://")
        try:
            secret = Path(password_file).read_bytes().strip() if password_file else None
            tls = _context(ca, certificate, key) if parsed.tls else None
        except (OSError, ValueError) as error:
            raise BadName(
                f"{shown(url)!r}: {error}", hint="check password_file, ca, certificate, key"
            ) from error
        if secret is None and parsed.password is not None:
            secret = parsed.password.encode()
        return cls(parsed.address.host, parsed.address.port, username or parsed.username or None, secret, tls)

    @property
    def address(self) -> str:
        """Address for people."""
        return f"mqtt{'s' if self.tls else ''}://{self.host}:{self.port}"


def _context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


async def open_link(target: UpstreamBroker, connect: Connect) -> tuple[Link, ConnAck]:
    """Connect to `target`; return the connection and the answer. Raises SinkUnavailable, with the remedy."""
    try:
        return await Link.open(Address(target.host, target.port), target.tls, OPTIONS, connect)
    except ConnectRefused as error:
        raise SinkUnavailable(str(error), hint=error.hint) from error
    except CannotConnect as error:
        unknown = isinstance(error.__cause__, ssl.SSLCertVerificationError)
        raise SinkUnavailable(str(error), hint=UNKNOWN_AUTHORITY if unknown else NO_CONNECTION) from error


async def received(link: Link, until: float | None = None) -> list[Packet]:
    """The next packets, at least one; empty: the time `until`, by the loop's clock, is over.

    Raises ConnectionLost: the connection is over.
    """
    try:
        async with asyncio.timeout_at(until):
            packets = await link.receive()
    except TimeoutError:
        return []
    for packet in packets:
        if isinstance(packet, Disconnect):
            why = (packet.reason_code.words, packet.properties.reason_string)
            raise ConnectionLost(f"the broker disconnected: {': '.join(filter(None, why))}")
    return packets


@contextmanager
def explained(target: UpstreamBroker) -> Iterator[None]:
    """Raise SinkUnavailable, with the remedy, in place of an error of the connection to `target`."""
    try:
        yield
    except (ConnectionLost, ProtocolError) as error:
        text = f"{target.address}: {error}"
        raise SinkUnavailable(text, hint="check the network and the broker") from error
