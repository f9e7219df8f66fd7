"""The MQTT engine and broker without sockets and threads: bytes in, packets out, time as the test sets it.

    with Bench() as bench:
        client = bench.client("c")
        client.send(Subscribe(1, (Subscription("a/#"),)))
        assert client.received() == [...]

A Wire is a client's side of a connection that has no socket: the C parser is fed its bytes, and pulled for
answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from msgspec.structs import replace

from edge.auth.interfaces import ListenerPolicy
from edge.broker.counters import Counters
from edge.broker.dispatcher import Broker, BrokerLimits
from edge.config.schema import Durability
from edge.engine.engine import Engine, EngineLimits, EventKind, engine_of
from edge.mqtt import (
    ConnAck,
    Connect,
    Packet,
    Properties,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from edge.mqtt.properties import NO_PROPERTIES
from ringbuf import Ring, Writer
from ringbuf.ring import ring_file
from tests.support.directories import memory_directory
from tests.support.frames import packets_of
from tests.support.waiting import wait_until

BEGIN_MS = 1_000_000
BEGIN_NS = 1_700_000_000_000_000_000


@dataclass
class OwnPartition:
    """A partition with a ring of its own."""

    name: str
    ring: Ring
    writer: Writer
    durability: Durability = Durability.PROCESS


class Wire:
    """One connection, from the client's side."""

    def __init__(self, bench: Bench, version: Version = Version.V311, listener: int = 0) -> None:
        self.bench = bench
        self.version = version
        self.handle = bench.engine.open(listener)
        self.unread = b""  # sent, and not read by the broker yet

    @property
    def is_open(self) -> bool:
        """True if the broker has not closed the connection."""
        return self.bench.engine.is_open(self.handle)

    def raw(self, data: bytes) -> None:
        """Send bytes after those that are unread; the broker takes them while it reads the connection."""
        data, self.unread = self.unread + data, b""
        while data:
            taken = self.bench.engine.feed(self.handle, data)
            data = data[taken:]
            if self.bench.settle() == 0 and taken == 0:
                self.unread = data
                return
        self.bench.settle()

    def send(self, *packets: Packet) -> None:
        """Send packets."""
        self.raw(b"".join(encode(packet, self.version) for packet in packets))

    def subscribe(self, *filters: str, qos: int = 0) -> None:
        """Subscribe, and look at the answer; what was retained is thrown away."""
        self.send(Subscribe(7, tuple(Subscription(topic_filter, qos) for topic_filter in filters)))
        (answer,) = self.received()[:1]
        assert answer == SubAck(7, (ReasonCode(qos),) * len(filters)), answer

    def bytes_received(self) -> bytes:
        """All that the broker has for it now."""
        found = b""
        while more := self.bench.engine.pull(self.handle):
            found += more
        return found

    def received(self) -> list[Packet]:
        """All packets that the broker has for it now."""
        return packets_of(self.bytes_received(), self.version)

    def answer(self) -> Packet:
        """The one packet that the broker has for it now."""
        (packet,) = self.received()
        return packet

    def publishes(self) -> list[tuple[str, bytes, int]]:
        """(topic, payload, QoS) of every PUBLISH there is for it now; nothing else may be there."""
        found = []
        for packet in self.received():
            assert isinstance(packet, Publish), packet
            found.append((packet.topic, bytes(packet.payload), packet.qos))
        return found

    def drop(self) -> None:
        """The network connection breaks: as the loop would see it."""
        self.bench.lose(self)


class Bench:
    """An engine and a broker with rings of their own, and a clock that stands still."""

    def __init__(
        self,
        *,
        engine: EngineLimits | None = None,
        limits: BrokerLimits | None = None,
        durability: Durability = Durability.PROCESS,
        capacity_bytes: int = 1 << 20,
        writer: dict[str, Any] | None = None,
        directory: Path | None = None,
        now_ms: int = BEGIN_MS,
        step_ns: int = 0,
        by_rules: bool = True,
        **broker: Any,
    ) -> None:
        """`directory`: where its rings are, and perhaps were before; its own by default, gone with it.

        `by_rules`: the engine makes new topics, all in one partition; otherwise `partition_of` decides.
        """
        self._stack = ExitStack()
        self.now_ms = now_ms
        self.step_ns = step_ns  # by which the wall clock was set
        if directory is None:
            directory = self._stack.enter_context(memory_directory())
        self.partition = self.add_partition(directory, "t-0", durability, capacity_bytes, writer or {})
        self.directory = directory
        self.calls: deque[Callable[[], object]] = deque()
        self.engine: Engine = engine_of(engine)
        self.partition_of: Callable[[str], OwnPartition] = lambda topic: self.partition
        self.broker = Broker(
            self.engine,
            self._partition_of,
            limits=limits,
            call=self.calls.append,
            clock=lambda: self.now_ms / 1000,
            wall_ns=lambda: self.now_ns,
            **{"streams": [(["#"], [self.partition])] if by_rules else (), **broker},
        )
        self.broker.policies[0] = ListenerPolicy(allow_anonymous=True)
        self.broker.policies[1] = ListenerPolicy(allow_anonymous=False)
        self.stats = Counters(self.engine)
        self.settle()

    def _partition_of(self, topic: str) -> OwnPartition:
        return self.partition_of(topic)

    def add_partition(
        self,
        directory: Path,
        name: str,
        durability: Durability = Durability.PROCESS,
        capacity_bytes: int = 1 << 20,
        writer: dict[str, Any] | None = None,
    ) -> OwnPartition:
        """A ring that lives as long as the bench, or longer: an existing one is continued."""
        path = directory / name
        is_there = ring_file(path).exists()
        ring = self._stack.enter_context(
            Ring.reattach(path) if is_there else Ring.create(path, capacity_bytes=capacity_bytes, epoch=1)
        )
        return OwnPartition(name, ring, ring.writer(**(writer or {})), durability)

    def settle(self, ms: int = 0) -> int:
        """Let `ms` pass, and everything happen that then does, snapshots on their thread as well; how many
        events there were.
        """
        self.now_ms += ms
        total = 0
        while True:
            events = self.engine.events()
            self.broker.handle(events)
            calls = len(self.calls)
            for _ in range(calls):
                self.calls.popleft()()
            self.broker.tick()
            total += len(events) + calls
            overdue = self.broker.sessions.next_s * 1000 <= self.now_ms
            if self.engine.step(self.now_ms, self.now_ns) or self.calls or overdue:
                continue
            if not self.broker.journal.writing:
                return total
            wait_until(lambda: bool(self.calls))

    @property
    def now_ns(self) -> int:
        """The wall clock."""
        return BEGIN_NS + (self.now_ms - BEGIN_MS) * 1_000_000 + self.step_ns

    def wire(self, version: Version = Version.V311, listener: int = 0) -> Wire:
        """A connection on which nothing was said."""
        return Wire(self, version, listener)

    def client(
        self, client_id: str = "c", *, present: bool = False, listener: int = 0, **fields: Any
    ) -> Wire:
        """A client that was accepted; `fields` of Connect."""
        connect = Connect(client_id, **fields)
        wire = self.wire(connect.version, listener)
        wire.send(connect)
        (answer,) = wire.received()[:1]
        assert isinstance(answer, ConnAck), answer
        assert (answer.session_present, answer.reason_code) == (present, ReasonCode.SUCCESS), answer
        return wire

    def client5(
        self, client_id: str = "c", *, wants: Properties = NO_PROPERTIES, expiry_s: int = 0, **fields: Any
    ) -> Wire:
        """A client of MQTT 5 that was accepted, whose session lasts `expiry_s` without it."""
        if expiry_s:
            wants = replace(wants, session_expiry_interval_s=expiry_s)
        return self.client(client_id, version=Version.V5, properties=wants, **fields)

    def lose(self, wire: Wire) -> None:
        """As the loop after a failed socket: the connection is closed, and Python is notified."""
        self.engine.close(wire.handle)
        self.broker.handle([(int(EventKind.CLOSED), wire.handle, 1, b"")])
        self.settle()

    def records(self) -> list[tuple[str, bytes]]:
        """(topic, payload) of all that the ring still holds."""
        reader = self.partition.ring.reader(start="oldest")
        found = []
        while (record := reader.poll()) is not None:
            found.append((record.key.decode(), record.bytes()))
        reader.close()
        return found

    def close(self) -> None:
        """Free everything."""
        self.broker.stop()
        self.crash()

    def crash(self) -> None:
        """Free everything, without a DISCONNECT to any client: memory files stay as they are."""
        self.broker.backfill.stop()
        stack = self._stack
        self.__dict__.clear()  # the engine keeps the writers, and they their mappings
        stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
