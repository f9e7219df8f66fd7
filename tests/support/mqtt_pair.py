"""Two engines, client and server, joined by a wire that is a list: no sockets, no clock but a number."""

from __future__ import annotations

from edge.mqtt import ConnAck, Connect, Packet
from edge.mqtt.connection import Connection, Role


class Pair:
    """`pair.client` and `pair.server`; send() carries a packet across and returns what came out."""

    def __init__(self, **limits: float) -> None:
        self.client = Connection(Role.CLIENT, **limits)  # type: ignore[arg-type]
        self.server = Connection(Role.SERVER, **limits)  # type: ignore[arg-type]

    def other(self, side: Connection) -> Connection:
        """The peer of `side`."""
        return self.server if side is self.client else self.client

    def send(self, side: Connection, *packets: Packet) -> list[Packet]:
        """Packets that the peer of `side` receives: `packets`, and all that were queued."""
        for packet in packets:
            side.send(packet)
        return self.carry(side)

    def carry(self, side: Connection) -> list[Packet]:
        """Packets that the peer receives of those that `side` has queued."""
        peer = self.other(side)
        for data in side.data_to_send():
            peer.receive_data(data)
        return received(peer)

    def connect(self, connect: Connect | None = None, connack: ConnAck | None = None) -> Pair:
        """Itself, with CONNECT and CONNACK exchanged."""
        self.send(self.client, connect or Connect("c"))
        self.send(self.server, connack or ConnAck())
        return self

    def tell(self, now: float) -> None:
        """The time, to both."""
        self.client.handle_deadline(now)
        self.server.handle_deadline(now)


def received(connection: Connection) -> list[Packet]:
    """All packets that are there."""
    found = []
    while (packet := connection.next_packet()) is not None:
        found.append(packet)
    return found
