"""A broker on a real port, in this process, and clients that are plain sockets."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from edge.broker.counters import Counters
from edge.broker.dispatcher import Broker
from edge.config.listener import Listener as Settings
from edge.config.schema import Durability
from edge.engine.engine import engine_of
from edge.mqtt import ConnAck, Connect, Packet, Publish, Version, decode_packet, encode
from edge.mqtt.primitives import decode_variable_integer
from edge.transport.listener import Listener
from ringbuf import Ring
from tests.support.directories import memory_directory
from tests.support.mqtt_bench import OwnPartition
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.support.mqtt_transports import Stream

__all__ = ["RawClient", "Served", "served"]


class Served:
    """A started Listener with one partition."""

    def __init__(self, partition: OwnPartition, listeners: Iterable[Settings] = (), **broker: Any) -> None:
        self.partition = partition
        engine = engine_of(broker.pop("engine", None))
        self.engine = engine
        self.stats = Counters(engine)
        self.listener = Listener(engine, Broker(engine, self.partition_of, **broker))
        self.port = self.listener.listen("127.0.0.1", 0)[1]
        try:
            for settings in listeners:
                self.listener.add(settings)
            self.listener.start()
        except BaseException:
            self.listener.stop()
            raise

    def partition_of(self, topic: str) -> OwnPartition:
        """All topics are in one ring."""
        return self.partition

    def stop(self) -> None:
        """Stop it, and release the ring's mapping."""
        self.listener.stop()
        self.__dict__.clear()

    def client(self, client_id: str = "c", **fields: Any) -> RawClient:
        """A socket whose CONNECT was accepted."""
        client = RawClient(self.port, fields.get("version", Version.V311))
        client.send(Connect(client_id, **fields))
        answer = client.packet()
        assert isinstance(answer, ConnAck)
        assert not answer.reason_code.failed
        client.session_present = answer.session_present
        return client

    def ask(self, function: Callable[[], Any]) -> Any:
        """The result of `function`, run on the broker's thread."""
        return self.listener.ask(function).result(PATIENCE_S)

    def records(self) -> list[tuple[str, bytes]]:
        """(topic, payload) of all that the ring still holds."""
        reader = self.partition.ring.reader(start="oldest")
        found = []
        while (record := reader.poll()) is not None:
            found.append((record.key.decode(), record.bytes()))
        reader.close()
        return found


class RawClient:
    """A blocking socket that speaks packets.  Nothing of a client library is between it and the broker.

    `stream`: instead of a new socket to `port`, one of tests.support.mqtt_transports.
    """

    def __init__(self, port: int, version: Version = Version.V311, *, stream: Stream | None = None) -> None:
        self.version = version
        self.stream = stream
        self.socket = stream.socket if stream else socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self.session_present = False
        self._rest = b""

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        data = b"".join(encode(packet, self.version) for packet in packets)
        (self.stream.send if self.stream else self.socket.sendall)(data)

    def packet(self) -> Packet | None:
        """The next packet; None: the broker has closed the connection."""
        while True:
            found = decode_variable_integer(self._rest, 1, len(self._rest)) if self._rest else None
            if found is not None:
                head = 1 + found[1]
                end = head + found[0]
                if len(self._rest) >= end:
                    data, self._rest = self._rest[:end], self._rest[end:]
                    return decode_packet(data[0], data[head:], self.version)
            try:
                more = (self.stream or self.socket).recv(1 << 16)
            except ConnectionResetError:
                return None
            if not more:
                return None
            self._rest += more

    def publish(self) -> Publish:
        """The next packet, which must be a PUBLISH."""
        packet = self.packet()
        assert isinstance(packet, Publish), packet
        return packet

    def is_silent(self) -> bool:
        """True if no packet has come that the test has not read."""
        return not self._rest and not select.select([self.socket], [], [], 0)[0]

    def close(self) -> None:
        """Close the socket, without DISCONNECT."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def served(
    *,
    durability: Durability = Durability.PROCESS,
    capacity_bytes: int = 1 << 22,
    **broker: Any,
) -> Iterator[Served]:
    """A broker that accepts on 127.0.0.1, until the end of the block; `broker`: engine=, limits= ..."""
    with (
        memory_directory() as directory,
        Ring.create(directory / "t-0", capacity_bytes=capacity_bytes, epoch=1) as ring,
    ):
        there = Served(OwnPartition("t-0", ring, ring.writer(), durability), **broker)
        try:
            yield there
        finally:
            there.stop()
