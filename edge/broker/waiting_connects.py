"""Waiting CONNECTs: bounds the memory of the CONNECT packets whose clients wait for their authentication.

Owns the bytes, by connection and by address. The senders have not logged in, and a packet is up to
`connect_max_bytes` long, which may be four times as much memory as text. Never holds a packet.

An address may take more while its bytes are then at most SHARE times the free bytes. Usual packets are always
accepted: their number is bounded by `connections_max`.
"""

from __future__ import annotations

from collections import Counter

from edge.auth.fair_executor import origin

WAITING_MAX_BYTES = 16 << 20  # of packets as they were received
USUAL_MAX_BYTES = 1_024
SHARE = 3


class WaitingConnects:
    """The bytes of packets that wait. On the broker's thread."""

    def __init__(self) -> None:
        self.bytes = 0
        self._by_connection: dict[int, tuple[str, int]] = {}
        self._by_origin: Counter[str] = Counter()

    def take(self, connection: int, address: str, packet_bytes: int) -> bool:
        """Count a packet that begins to wait. False if there is no room for it."""
        source = origin(address)
        own, free = self._by_origin[source] + packet_bytes, WAITING_MAX_BYTES - self.bytes - packet_bytes
        if packet_bytes > USUAL_MAX_BYTES and own > SHARE * free:
            return False
        self._by_connection[connection] = source, packet_bytes
        self._by_origin[source] = own
        self.bytes += packet_bytes
        return True

    def give(self, connection: int) -> None:
        """Forget the packet of a connection, if it has one that waits."""
        source, packet_bytes = self._by_connection.pop(connection, ("", 0))
        self.bytes -= packet_bytes
        self._by_origin[source] -= packet_bytes
        if not self._by_origin[source]:
            del self._by_origin[source]
