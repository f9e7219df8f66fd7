"""MQTT 5 connection to a broker, for the MQTT sink: asyncio streams around the engine of edge.mqtt.

Owns socket, engine and keep alive of one connection. Knows nothing of records; the caller owns all state that
must outlive the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import unquote, urlsplit

from bridge.errors import BadName, SinkUnavailable
from bridge.sink import shown
from edge.mqtt import ConnAck, Connect, Connection, Disconnect, Packet, ProtocolError, ReasonCode, Role, State

__all__ = ["Link", "Target"]

CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 2.0
READ_BYTES = 1 << 16
# Of a command: the maximum of MQTT; the broker there is configured by the operator.
PACKET_MAX_BYTES = 256 << 20
PORTS = {"mqtt": 1883, "mqtts": 8883}
WRONG_CREDENTIALS = {
    ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ReasonCode.NOT_AUTHORIZED,
    ReasonCode.BAD_AUTHENTICATION_METHOD,
    ReasonCode.BANNED,
}


@dataclass(frozen=True, slots=True)
class Target:
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
    ) -> Target:
        """The target of mqtt://[user:password@]host[:port], or mqtts://, which requires a certificate that
        `ca` (or the system) knows.

        `certificate` and `key` are the client's own. Raises BadName.
        """
        parts = urlsplit(url)
        try:
            port = parts.port or PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise BadName(
                f"{shown(url)!r} is no broker", hint="write mqtt://host:1883 or mqtts://host:8883"
            ) from None
        if not parts.hostname or parts.path.strip("/"):
            raise BadName(f"{shown(url)!r} is no broker", hint="write mqtt://host:1883, without a path")
        if parts.scheme == "mqtt" and (ca or certificate or key):
            raise BadName(f"{shown(url)!r}: ca, certificate and key are for mqtts://")
        try:
            secret = Path(password_file).read_bytes().strip() if password_file else None
            tls = _context(ca, certificate, key) if parts.scheme == "mqtts" else None
        except (OSError, ValueError) as error:
            raise BadName(
                f"{shown(url)!r}: {error}", hint="check password_file, ca, certificate, key"
            ) from error
        if secret is None and parts.password is not None:
            secret = unquote(parts.password).encode()
        name = username or (unquote(parts.username) if parts.username else None)
        return cls(parts.hostname, port, name, secret, tls)

    @property
    def address(self) -> str:
        """Address for people."""
        return f"mqtt{'s' if self.tls else ''}://{self.host}:{self.port}"


def _context(ca: str | None, certificate: str | None, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca)
    if certificate:
        context.load_cert_chain(certificate, key)
    return context


class Link:
    """A connection that the broker has accepted. Created by open(), belongs to one event loop."""

    def __init__(self, target: Target, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted = ConnAck()
        self._target = target
        self._reader, self._writer = reader, writer
        self._engine = Connection(
            Role.CLIENT, max_packet_bytes=PACKET_MAX_BYTES, handshake_timeout_s=CONNECT_TIMEOUT_S
        )
        self._early: list[Packet] = []

    @classmethod
    async def open(cls, target: Target, connect: Connect) -> Self:
        """Connect to the target. Raises SinkUnavailable, with the remedy."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                streams = await asyncio.open_connection(target.host, target.port, ssl=target.tls)
        except ssl.SSLCertVerificationError as error:
            hint = "name the certificate authority of the broker as option ca"
            raise SinkUnavailable(f"{target.address}: {error.verify_message}", hint=hint) from error
        except (OSError, ssl.SSLError, TimeoutError) as error:
            text = f"{target.address}: {str(error) or 'no answer'}"
            raise SinkUnavailable(text, hint="check the network, and that the broker runs") from error
        link = cls(target, *streams)
        try:
            link.send(connect)
            while not isinstance(answer := (await link.receive())[0], ConnAck):
                raise link.lost(f"{type(answer).__name__} instead of CONNACK")
        except BaseException:
            link.abort()
            raise
        link.accepted = answer
        if answer.reason_code.failed:
            link.abort()
            wrong = answer.reason_code in WRONG_CREDENTIALS
            hint = "check user, password and what the broker allows" if wrong else ""
            raise SinkUnavailable(f"{target.address}: {_words(answer)}", hint=hint)
        return link

    def send(self, packet: Packet) -> None:
        """Queue a packet; drain() or receive() sends it. Raises ProtocolError: it may not be sent."""
        self._engine.send(packet)

    async def drain(self) -> None:
        """Write the queue; wait while the socket takes no more. Raises SinkUnavailable."""
        if self.flush():
            try:
                await self._writer.drain()
            except OSError as error:
                raise self.lost(str(error)) from error

    def flush(self) -> bool:
        """Write the queue, or leave it to the event loop. True if the queue had bytes."""
        if not self._engine.bytes_to_send:
            return False
        self._writer.writelines(self._engine.data_to_send())
        return True

    async def receive(self, until: float | None = None) -> list[Packet]:
        """The next packets, at least one; empty: the time `until`, by the loop's clock, is over.

        Raises SinkUnavailable: the connection is over.
        """
        loop = asyncio.get_running_loop()
        if self._early:
            early, self._early = self._early, []
            return early
        while True:
            try:
                self._engine.handle_deadline(loop.time())
                await self.drain()
                deadlines = [at for at in (until, self._engine.next_deadline()) if at is not None]
                try:
                    async with asyncio.timeout_at(min(deadlines, default=None)):
                        data = await self._reader.read(READ_BYTES)
                except TimeoutError:
                    if until is not None and loop.time() >= until:
                        return []
                    continue
                self._engine.receive_data(data)
                packets: list[Packet] = []
                while (packet := self._engine.next_packet()) is not None:
                    packets.append(packet)
            except ProtocolError as error:
                raise self.lost(str(error)) from error
            except OSError as error:
                raise self.lost(str(error)) from error
            if packets and isinstance(packets[0], ConnAck):
                self._early = packets[1:]
                return packets[:1]
            for packet in packets:
                if isinstance(packet, Disconnect):
                    raise self.lost(_words(packet))
            if packets:
                return packets
            if self._engine.state is State.CLOSED:
                raise self.lost("it has closed the connection")

    def lost(self, why: str) -> SinkUnavailable:
        """The error for a connection that is over."""
        return SinkUnavailable(f"{self._target.address}: {why}", hint="check the network and the broker")

    async def close(self) -> None:
        """Send DISCONNECT, and wait for a short time until it is sent."""
        with suppress(ProtocolError, SinkUnavailable, OSError, TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                self.send(Disconnect())
                await self.drain()
                self._writer.close()
                await self._writer.wait_closed()
        self.abort()

    def abort(self) -> None:
        """Close the connection at once."""
        self._writer.transport.abort()


def _words(packet: ConnAck | Disconnect) -> str:
    code = packet.reason_code.words
    return f"{code}: {packet.properties.reason_string}" if packet.properties.reason_string else code
