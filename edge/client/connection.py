"""Connection to a broker: asyncio streams around the protocol state of edge.mqtt.

Owns the socket, the edge.mqtt.Connection and the timer for its deadlines. Knows no sessions: the client owns
the state that outlives the connection. Packets of one turn of the event loop are sent in one write.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from contextlib import suppress
from typing import Self

from edge.client.errors import CannotConnect, ClientError, ConnectionLost, ConnectRefused, ConnectTimeout
from edge.client.options import Address, Options
from edge.errors import FILES_REMEDY
from edge.mqtt import ConnAck, Connect, Disconnect, Packet, ProtocolError
from edge.mqtt.connection import Connection, Role, State, disconnect_packet

READ_BYTES = 65_536
FLUSH_BYTES = 65_536  # with more queued, a writer's turn ends, so that the socket limits its speed
CLOSE_TIMEOUT_S = 2.0  # for the last bytes to be sent


class Link:
    """An accepted connection. Created by open()."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connection: Connection,
        address: Address,
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = connection
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._flush_is_due = False
        self._turn_is_over = False
        self._after_connack: list[Packet] = []  # received in one chunk with CONNACK
        self._error: ProtocolError | None = None
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    async def open(
        cls, address: Address, tls: ssl.SSLContext | None, options: Options, connect: Connect
    ) -> tuple[Self, ConnAck]:
        """Connect; returns the accepted connection and CONNACK. Raises CannotConnect, ConnectRefused."""
        try:
            async with asyncio.timeout(options.connect_timeout_s):
                reader, writer = await _open_streams(address, tls)
                connection = Connection(
                    Role.CLIENT,
                    max_packet_bytes=options.max_packet_bytes,
                    handshake_timeout_s=options.connect_timeout_s,
                )
                link = cls(reader, writer, connection, address)
                try:
                    return link, await link._handshake(connect)
                except BaseException:
                    link.abort()
                    raise
        except ClientError:
            raise
        except OSError as error:
            raise _explained(error, address, options.connect_timeout_s, secure=tls is not None) from error

    async def _handshake(self, connect: Connect) -> ConnAck:
        self.send(connect)
        self.flush()
        try:
            connack, *self._after_connack = await self.receive()
        except ConnectionLost as error:
            raise _no_answer(error, self._address) from error
        # the only other packet that the protocol state accepts here is AUTH
        if not isinstance(connack, ConnAck):
            raise CannotConnect(
                f"{self._address} requires enhanced authentication, which this client does not support"
            )
        if connack.reason_code.failed:
            raise ConnectRefused(
                str(self._address),
                connack.reason_code,
                connack.properties.reason_string or "",
                connack.properties.server_reference or "",
            )
        self._arm()
        return connack

    def send(self, packet: Packet, *, soon: bool = True) -> None:
        """Queue `packet`; it is sent with others at the end of this turn of the event loop, or, if not
        `soon`, at the next flush().

        Raises ProtocolError if the packet must not be sent; nothing has changed then. On an ended connection
        it is dropped; receive() reports the end.
        """
        if self._connection.state is State.CLOSED:
            return
        self._connection.send(packet)
        if self._connection.bytes_to_send >= FLUSH_BYTES:
            self.flush()
            self._turn_is_over = True
        elif soon and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Write queued bytes to the socket."""
        self._flush_is_due = False
        data = self._connection.data_to_send()
        if data and not self._writer.is_closing():
            self._writer.writelines(data)

    async def drain(self) -> None:
        """Wait until there is room for more: immediately, unless much was sent in this turn."""
        if self._turn_is_over:
            self._turn_is_over = False
            with suppress(ConnectionError):  # receive() reports it
                await self._writer.drain()
            # drain() returns at once while the kernel accepts everything: let other tasks run
            await asyncio.sleep(0)

    async def receive(self) -> list[Packet]:
        """The next packets, at least one. Raises ConnectionLost at the end."""
        if self._after_connack:
            packets, self._after_connack = self._after_connack, []
            return packets
        while True:
            self._raise_if_over()
            try:
                data = await self._reader.read(READ_BYTES)
            except OSError as error:
                raise ConnectionLost(f"the connection to {self._address} broke: {error}") from error
            packets = self._received(data)
            if packets:
                return packets

    def _received(self, data: bytes) -> list[Packet]:
        packets = []
        self._connection.receive_data(data)
        try:
            while (packet := self._connection.next_packet()) is not None:
                packets.append(packet)
            self._connection.handle_deadline(self._loop.time())
        except ProtocolError as error:
            self._error = self._error or error  # raised by the next receive(), after the packets before it
        self.flush()
        return packets

    def _raise_if_over(self) -> None:
        if self._error is not None:
            raise ConnectionLost(f"the connection to {self._address} ended: {self._error}") from self._error
        if self._connection.state is State.CLOSED:
            raise ConnectionLost(
                f"{self._address} closed the connection",
                hint="the broker's log has the reason; connect again",
            )

    def _arm(self) -> None:
        """Set the timer for the next deadline. Received packets postpone it; the timer checks that."""
        due = self._connection.next_deadline()
        self._timer = None if due is None else self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        try:
            self._connection.handle_deadline(self._loop.time())
        except ProtocolError as error:
            self._error = error
            self.abort()  # ends receive(), which reports the error
        else:
            self.flush()
            self._arm()

    def refuse(self, error: ProtocolError) -> None:
        """Send the protocol error to the broker, in MQTT 5. Call abort() afterwards."""
        goodbye = disconnect_packet(error, self._connection.state, Role.CLIENT)
        if goodbye is not None:
            self.send(goodbye)
            self.flush()

    async def close(self) -> None:
        """Send DISCONNECT and close, waiting CLOSE_TIMEOUT_S for the last bytes."""
        if self._connection.state is State.CONNECTED:
            self.send(Disconnect())
        self.flush()
        self._stop_timer()
        self._writer.close()
        closing = asyncio.ensure_future(self._writer.wait_closed())
        try:
            # not wait_for(): it loses a cancellation that comes together with the end of `closing`
            await asyncio.wait((closing,), timeout=CLOSE_TIMEOUT_S)
            if not closing.done() or closing.exception() is not None:
                self.abort()  # the broker does not read, or has gone
        finally:
            closing.cancel()

    def abort(self) -> None:
        """Close at once; queued bytes may be lost. May be called twice."""
        self._stop_timer()
        self._writer.transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


async def _open_streams(
    address: Address, tls: ssl.SSLContext | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if address.path:
        return await asyncio.open_unix_connection(address.path)
    reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
    peer: socket.socket = writer.get_extra_info("socket")
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # packets are batched here already
    return reader, writer


# Errors of a TLS handshake with a port of plain MQTT: the connection is closed, or the answer is not TLS.
_NO_TLS = {None, "UNEXPECTED_EOF_WHILE_READING", "WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"}
_OTHER_NAME = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
_TRUST = "trust its authority (--cafile; ssl.create_default_context(cafile=...)), and check the clock"
_PLAIN = (
    "a port of plain MQTT (usually 1883) needs mqtt://, or `brim` without --tls; TLS is usually port 8883"
)


def _explained(error: OSError, address: Address, timeout_s: float, *, secure: bool) -> CannotConnect:
    """Error with an explanation and a remedy."""
    text = f"cannot connect to {address}"
    if isinstance(error, TimeoutError):
        silent = "check the address; a firewall, or a listener of another protocol, does not answer"
        return ConnectTimeout(
            f"{text}: no answer within {timeout_s:g} s", hint=f"{silent}; {_PLAIN}" if secure else silent
        )
    if isinstance(error, socket.gaierror):
        return CannotConnect(
            f"{text}: host {address.host!a} is not known", hint="check the spelling, or the DNS"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        is_other_name = error.verify_code in _OTHER_NAME
        return CannotConnect(
            f"{text}: its certificate does not verify: {error.verify_message.rstrip('.')}",
            hint="connect by a name or address in its subjectAltName" if is_other_name else _TRUST,
        )
    if isinstance(error, ssl.SSLError) and error.reason not in _NO_TLS:
        return CannotConnect(f"{text} by TLS: {error.reason or error}", hint=_PLAIN)
    if secure and (isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)):
        return CannotConnect(f"{text} by TLS: that port has no TLS", hint=_PLAIN)
    if error.errno == errno.ECONNREFUSED or f"[Errno {errno.ECONNREFUSED}]" in str(error):
        return CannotConnect(
            f"{text}: connection refused, no program listens there",
            hint="start a broker there (`brim run`), or name another host and port",
        )
    if error.errno in {errno.EMFILE, errno.ENFILE}:
        return CannotConnect(f"{text}: {error.strerror}", hint=FILES_REMEDY)
    hint = "" if secure else "check that the port is one of plain MQTT; for TLS use mqtts://, or --tls"
    if address.path:
        hint = "name the socket of a listener (`path` in [[listener]]), which this user may open"
    return CannotConnect(f"{text}: {error.strerror or error}", hint=hint)


def _no_answer(error: ConnectionLost, address: Address) -> CannotConnect:
    if isinstance(error.__cause__, ProtocolError):
        return CannotConnect(
            f"{address} does not answer as an MQTT broker: {error.__cause__}",
            hint="check the port; MQTT is usually 1883",
        )
    return CannotConnect(
        f"{address} closed the connection instead of answering",
        hint="check the MQTT version and the broker's log; for TLS use mqtts://, or --tls",
    )
