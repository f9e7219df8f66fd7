"""A broker that does what the test says, packet by packet: for what a real one cannot be made to do.

async with scripted() as broker:
    ... a client connects to broker.url ...
    peer = await broker.accepted(session_present=True)
    publish = await peer.expect(Publish)
    peer.send(PubAck(publish.packet_id))
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import edge.client
from edge.mqtt import ConnAck, Connect, Packet, Properties, ReasonCode, Version
from edge.mqtt.connection import Connection, Role
from edge.mqtt.properties import NO_PROPERTIES
from tests.support.waiting import PATIENCE_S

_Packet = TypeVar("_Packet")


class Peer:
    """The broker's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._connection = Connection(Role.SERVER)
        self._packets: deque[Packet] = deque()

    async def expect(self, kind: type[_Packet]) -> _Packet:
        """The next packet, which is a `kind`."""
        packet = await self.next()
        assert isinstance(packet, kind), f"expected {kind.__name__}, got {packet}"
        return packet

    async def next(self) -> Packet | None:
        """The next packet; None at the end of the file."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                packet = self._connection.next_packet()
                if packet is not None:
                    return packet
                data = await self._reader.read(65_536)
                if not data:
                    return None
                self._connection.receive_data(data)

    def send(self, *packets: Packet) -> None:
        """In one write."""
        for packet in packets:
            self._connection.send(packet)
        self._writer.writelines(self._connection.data_to_send())

    def send_bytes(self, data: bytes) -> None:
        """Whatever they mean."""
        self._writer.write(data)

    def close(self) -> None:
        """In order; what was sent arrives."""
        self._writer.close()

    def abort(self) -> None:
        """The connection breaks."""
        self._writer.transport.abort()


ACCEPT_TURNS = 4  # of the loop, after which a connection that was being accepted has arrived


class ScriptedBroker:
    """Hands out the connections it gets."""

    def __init__(self) -> None:
        self.port = 0
        self._arrived: asyncio.Queue[Peer] = asyncio.Queue()
        self._peers: list[Peer] = []

    @property
    def url(self) -> str:
        """For a client."""
        return f"mqtt://127.0.0.1:{self.port}"

    def arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """For asyncio: a connection."""
        peer = Peer(reader, writer)
        self._peers.append(peer)
        self._arrived.put_nowait(peer)

    async def connection(self) -> Peer:
        """The next connection; nothing was read of it."""
        async with asyncio.timeout(PATIENCE_S):
            return await self._arrived.get()

    async def accepted(
        self,
        *,
        session_present: bool = False,
        reason_code: ReasonCode = ReasonCode.SUCCESS,
        properties: Properties = NO_PROPERTIES,
    ) -> Peer:
        """The next connection, its CONNECT answered."""
        peer = await self.connection()
        await peer.expect(Connect)
        peer.send(ConnAck(session_present, reason_code, properties))
        return peer

    def close(self) -> None:
        """Breaks all connections."""
        for peer in self._peers:
            peer.abort()


@asynccontextmanager
async def scripted() -> AsyncIterator[ScriptedBroker]:
    """A broker that listens on a loopback port, and is gone afterwards."""
    broker = ScriptedBroker()
    server = await asyncio.start_server(broker.arrive, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield broker
    finally:
        for listener in server.sockets:
            asyncio.get_running_loop().remove_reader(listener.fileno())  # accept no more
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        server.close()
        broker.close()
        await server.wait_closed()
        await asyncio.sleep(0)


async def connect_packet(broker: ScriptedBroker, url: str, **options: object) -> Connect:
    async def connect() -> None:
        async with edge.client.connect(url, **options):  # type: ignore[arg-type]
            pass

    connecting = asyncio.create_task(connect())
    peer = await broker.connection()
    connect_packet = await peer.expect(Connect)
    peer.send_bytes(bytes.fromhex("20020000" if connect_packet.version < Version.V5 else "2003000000"))
    await connecting
    return connect_packet
