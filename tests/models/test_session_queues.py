"""Sessions against a model, with rings so small that what they wait for is overwritten all the time.

Two rings take turns, one client has QoS 1 and one QoS 2; they come, leave, and acknowledge some of what
they have.  What the rings overwrite is copied out, or read back from a log, or (no room for copies) lost:
then the losses are exactly what was counted.
"""

import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.config.schema import Durability
from edge.engine.engine import EngineLimits
from edge.mqtt import Connect, PubAck, PubComp, Publish, PubRec, PubRel
from tests.support.cold_log import ColdLog
from tests.support.examples import examples
from tests.support.mqtt_bench import Bench, Wire

RING_BYTES = 64 << 10
BODY = 1_500  # some 40 to a ring
CLIENTS = {"ann": 1, "bob": 2}  # with what they want

Keep = Literal["copies", "log", "nothing"]


@dataclass
class Subscriber:
    """Messages that a client has seen, and the last one that it has acknowledged."""

    qos: int
    wire: Wire | None = None
    seen: list[int] = field(default_factory=list)  # in the order of first delivery
    pending: list[tuple[int, int]] = field(default_factory=list)  # (packet id, number), not acknowledged
    done: set[int] = field(default_factory=set)  # acknowledged: PUBACK or PUBREC was sent


class World:
    """The bench, its log, the subscribers and all that was published."""

    def __init__(self, stack: ExitStack, keep: Keep) -> None:
        self.keep = keep
        self.bench = stack.enter_context(
            Bench(
                capacity_bytes=RING_BYTES,
                durability=Durability.INTERVAL if keep == "log" else Durability.PROCESS,
                engine=EngineLimits(spill_max_bytes=0 if keep == "nothing" else 1 << 26),
                limits=BrokerLimits(sessions=SessionLimits(in_flight_max=9)),
                by_rules=False,
            )
        )
        first = self.bench.partition
        second = self.bench.add_partition(self.bench.directory, "t-1", first.durability, RING_BYTES)
        self.bench.partition_of = lambda topic: second if topic.endswith("1") else first
        self.cold: ColdLog | None = None
        if keep == "log":
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            self.cold = stack.enter_context(
                ColdLog.behind(self.bench, directory, first, second, segment_bytes=128 << 10)
            )
        self.publisher = self.bench.client("p")
        self.published = 0
        self.subscribers = {name: Subscriber(qos) for name, qos in CLIENTS.items()}
        for name, subscriber in self.subscribers.items():
            subscriber.wire = self.bench.client(name, clean_start=False)
            subscriber.wire.subscribe("t/#", qos=2 if subscriber.qos == 2 else 1)

    def publish(self, count: int, both: bool) -> None:
        for n in range(self.published, self.published + count):
            topic = f"t/{n % 2 if both else 0}"
            self.publisher.send(Publish(topic, n.to_bytes(4, "big") + bytes(BODY), 2, packet_id=1), PubRel(1))
            if self.cold is not None and n % 8 == 0:
                self.cold.write()
        if self.cold is not None:
            self.cold.write()
        self.publisher.bytes_received()
        self.published += count

    def come(self, name: str) -> None:
        subscriber = self.subscribers[name]
        if subscriber.wire is None:
            subscriber.wire = self.bench.wire()
            subscriber.wire.send(Connect(name, clean_start=False))

    def leave(self, name: str) -> None:
        subscriber = self.subscribers[name]
        if subscriber.wire is not None:
            subscriber.wire.drop()
            subscriber.wire = None
            subscriber.pending.clear()  # what is not acknowledged will come again

    def interrupt(self, name: str) -> None:
        """It reads, leaves without a word, and comes back after more than a ring."""
        self.come(name)
        self.take(name, 3)
        self.take(name, 0)
        self.leave(name)
        self.publish(50, False)
        self.come(name)

    def take(self, name: str, most: int) -> int:
        """Reads what is there, acknowledges up to `most` of what is pending; how many packets there were."""
        subscriber = self.subscribers[name]
        if subscriber.wire is None:
            return 0
        packets = subscriber.wire.received()
        for packet in packets:
            if isinstance(packet, Publish):
                self._took(subscriber, packet)
            elif isinstance(packet, PubRel):
                subscriber.wire.send(PubComp(packet.packet_id))
        for packet_id, number in subscriber.pending[:most]:
            subscriber.done.add(number)
            subscriber.wire.send(PubAck(packet_id) if subscriber.qos == 1 else PubRec(packet_id))
        del subscriber.pending[:most]
        if self.cold is not None:
            self.cold.settle()
        return len(packets)

    def _took(self, subscriber: Subscriber, packet: Publish) -> None:
        number = int.from_bytes(packet.payload[:4], "big")
        assert packet.qos == subscriber.qos
        assert number not in subscriber.done, "acknowledged, and delivered again"
        assert packet.dup == (number in subscriber.seen)
        if not packet.dup:
            subscriber.seen.append(number)
        subscriber.pending.append((packet.packet_id, number))

    def finish(self) -> None:
        """Everybody reads everything; then the books must balance."""
        for name, subscriber in self.subscribers.items():
            self.come(name)
            quiet = 0
            while quiet < 3:
                quiet = 0 if self.take(name, 1_000) else quiet + 1
            (row,) = [
                it for it in self.bench.stats.clients(self.bench.broker.sessions) if it.client_id == name
            ]
            lost = row.dropped.get("overrun", 0)
            assert row.queued == row.in_flight == 0
            assert set(row.dropped) <= {"overrun"}
            assert len(subscriber.done) + lost == self.published
            assert subscriber.seen == sorted(subscriber.seen)
            assert lost == 0 or self.keep == "nothing"
        now = self.bench.stats.gauges()
        assert (now["spilled_records"], now["spilled_bytes"]) == (0, 0)


NAMES = st.sampled_from(sorted(CLIENTS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 90), st.booleans()),
        st.tuples(st.just("come"), NAMES),
        st.tuples(st.just("leave"), NAMES),
        st.tuples(st.just("interrupt"), NAMES),
        st.tuples(st.just("take"), NAMES, st.integers(0, 12)),
    ),
    max_size=40,
)


@pytest.mark.parametrize("keep", ["copies", "log", "nothing"])
@settings(max_examples=examples(25), deadline=None)
@given(steps=STEPS)
def test_nothing_is_lost_or_comes_twice_but_what_was_counted(
    keep: Keep, steps: list[tuple[str, int | str, int | bool]]
) -> None:
    with ExitStack() as stack:
        world = World(stack, keep)
        for step, *arguments in steps:
            getattr(world, step)(*arguments)
        world.finish()
