"""A broker on a real port, in this process, and clients that are plain sockets."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from edge.broker.counters import Counters
from edge.broker.dispatcher import Broker
from edge.config.listener import Listener as Settings
from edge.config.schema import Durability
from edge.engine.engine import engine_of
from edge.mqtt import ConnAck, Connect, Version
from edge.transport.listener import Listener
from ringbuf import Ring
from tests.support.directories import memory_directory
from tests.support.mqtt_bench import OwnPartition
from tests.support.mqtt_socket import RawClient
from tests.support.waiting import PATIENCE_S


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
        return self.listener.submit(function).result(PATIENCE_S)

    def records(self) -> list[tuple[str, bytes]]:
        """(topic, payload) of all that the ring still holds."""
        reader = self.partition.ring.reader(start="oldest")
        found = []
        while (record := reader.poll()) is not None:
            found.append((record.key.decode(), record.bytes()))
        reader.close()
        return found


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
