"""Random clients, kills and restarts against a model of what must be delivered.

The model is a list for each client: what was published to it and not acknowledged, in order.  QoS 1 may come
again after a kill, with DUP; QoS 2 comes once; nothing is lost, nothing comes out of order the first time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edge.mqtt import ConnAck, Connect, Packet, PubAck, PubComp, Publish, PubRec, PubRel
from tests.support.examples import examples
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire

NAMES = ("one", "two", "three")
clients = st.sampled_from(NAMES)


@dataclass
class Person:
    """A client that keeps its side of its session."""

    name: str
    wire: Wire | None = None
    subscribed: bool = False
    expected: list[bytes] = field(default_factory=list)  # not delivered for the first time yet
    unacknowledged: dict[int, bytes] = field(default_factory=dict)  # QoS 1, by identifier
    half: dict[int, bytes] = field(default_factory=dict)  # QoS 2, until PUBREL comes
    answered: set[int] = field(default_factory=set)  # of those: PUBREC was sent, and no PUBLISH may come
    released: set[int] = field(default_factory=set)  # and PUBCOMP is still to be sent


class Restarts(RuleBasedStateMachine):
    capacity_bytes = 1 << 20

    def __init__(self) -> None:
        super().__init__()
        self.lives = Lives(journal_bytes=1 << 20, capacity_bytes=self.capacity_bytes)
        self.bench: Bench = self.lives.start()
        self.people = {name: Person(name) for name in NAMES}
        self.number = 0

    def teardown(self) -> None:
        self.lives.__exit__()

    def payload_of(self, number: int) -> bytes:
        return b"%d" % number

    @initialize(subscribers=st.dictionaries(clients, st.sampled_from((1, 2)), min_size=1))
    def everybody_comes(self, subscribers: dict[str, int]) -> None:
        for name in NAMES:
            self.comes(name)
        for name, qos in subscribers.items():
            self.client_subscribes(name, qos)

    def comes(self, name: str) -> None:
        person = self.people[name]
        if person.wire is not None:
            return
        wire = person.wire = self.bench.wire()
        wire.send(Connect(name, clean_start=False))
        first, *rest = wire.received()
        assert isinstance(first, ConnAck)
        self.hears(person, rest)

    def hears(self, person: Person, packets: Sequence[Packet]) -> None:
        for packet in packets:
            if isinstance(packet, PubRel):
                person.half.pop(packet.packet_id, None)
                person.answered.discard(packet.packet_id)
                person.released.add(packet.packet_id)
            if not isinstance(packet, Publish):
                continue
            payload, identifier = bytes(packet.payload), packet.packet_id
            assert identifier is not None
            if packet.qos == 1:
                known = person.unacknowledged.get(identifier)
                if known != payload or not packet.dup:
                    assert person.expected, f"{person.name} got {payload!r} once too often"
                    assert person.expected.pop(0) == payload
                person.unacknowledged[identifier] = payload
            elif identifier in person.half:
                assert packet.dup
                assert person.half[identifier] == payload
                assert identifier not in person.answered, "PUBLISH again behind PUBREC [MQTT-4.3.3-5]"
            else:
                assert person.expected, f"{person.name} got {payload!r} once too often"
                assert person.expected.pop(0) == payload
                person.half[identifier] = payload

    @rule(name=clients)
    def client_comes(self, name: str) -> None:
        self.comes(name)

    @rule(name=clients)
    def client_leaves(self, name: str) -> None:
        person = self.people[name]
        if person.wire is not None:
            person.wire.drop()
            person.wire = None

    @rule(name=clients, qos=st.sampled_from((1, 2)))
    def client_subscribes(self, name: str, qos: int) -> None:
        person = self.people[name]
        if person.wire is not None and not person.subscribed:
            person.wire.subscribe("t/#", qos=qos)
            person.subscribed = True

    @rule(count=st.integers(1, 30), qos=st.sampled_from((1, 2)))
    def somebody_publishes(self, count: int, qos: int) -> None:
        publisher = self.bench.client("publisher")
        for identifier in range(1, count + 1):
            self.number += 1
            payload = self.payload_of(self.number)
            publisher.send(Publish(f"t/{self.number % 3}", payload, qos, packet_id=identifier))
            if qos == 2:
                publisher.send(PubRel(identifier))
            for person in self.people.values():
                if person.subscribed:
                    person.expected.append(payload)
        publisher.drop()

    @rule(name=clients)
    def client_reads(self, name: str) -> None:
        person = self.people[name]
        if person.wire is not None:
            self.hears(person, person.wire.received())

    @rule(name=clients, share=st.floats(0, 1), data=st.data())
    def client_acknowledges(self, name: str, share: float, data: st.DataObject) -> None:
        """Some of what it has, in an order of its own."""
        self.client_reads(name)
        person = self.people[name]
        if person.wire is None:
            return
        for identifier in data.draw(st.permutations(sorted(person.unacknowledged)))[
            : int(len(person.unacknowledged) * share) + 1
        ]:
            del person.unacknowledged[identifier]
            person.wire.send(PubAck(identifier))
        for identifier in sorted(person.half)[: int(len(person.half) * share) + 1]:
            person.wire.send(PubRec(identifier))
            person.answered.add(identifier)
        for identifier in sorted(person.released)[: int(len(person.released) * share)]:
            person.released.discard(identifier)
            person.wire.send(PubComp(identifier))

    @rule(cleanly=st.booleans(), back=st.sets(clients))
    def broker_ends(self, cleanly: bool, back: set[str]) -> None:
        if cleanly:
            self.lives.stop()
        else:
            self.lives.kill()
        self.bench = self.lives.start()
        for person in self.people.values():
            person.wire = None
        for name in sorted(back):
            self.comes(name)

    @rule()
    def snapshot(self) -> None:
        self.bench.broker.journal.save_snapshot(at_once=True)

    @invariant()
    def nobody_is_cut_off(self) -> None:
        for person in self.people.values():
            assert person.wire is None or person.wire.is_open


class ToTheEnd(Restarts):
    def teardown(self) -> None:
        try:
            self.everybody_gets_everything()
        finally:
            super().teardown()

    def everybody_gets_everything(self) -> None:
        for person in self.people.values():
            self.comes(person.name)
            assert person.wire is not None
            for _ in range(1000):
                if not (person.expected or person.unacknowledged or person.half or person.released):
                    break
                while person.released:
                    person.wire.send(PubComp(person.released.pop()))
                for identifier in list(person.unacknowledged):
                    del person.unacknowledged[identifier]
                    person.wire.send(PubAck(identifier))
                for identifier in list(person.half):
                    person.wire.send(PubRec(identifier))
                    person.answered.add(identifier)
                self.hears(person, person.wire.received())
            assert (person.expected, person.half) == ([], {})


ToTheEnd.TestCase.settings = settings(
    max_examples=examples(30),
    stateful_step_count=30,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ),  # to make an example small takes minutes of restarts
)
test_nothing_is_lost_and_qos_2_comes_once = ToTheEnd.TestCase


class Spilled(ToTheEnd):
    """With a ring so small that what clients wait for is mostly in the spill file."""

    capacity_bytes = 128 << 10

    def payload_of(self, number: int) -> bytes:
        """Of all lengths; some of those that have an extent of their own."""
        length = 20_000 if number % 13 == 5 else number * 7_919 % 3_000
        return b"%d " % number + bytes([number % 251]) * length

    @rule()
    def publisher_laps_the_ring(self) -> None:
        for _ in range(4):
            self.somebody_publishes(count=25, qos=1)

    def teardown(self) -> None:
        spilled = self.bench.stats.gauges()
        assert spilled["spilled_bytes"] <= spilled["spill_file_bytes"]
        super().teardown()


Spilled.TestCase.settings = settings(
    max_examples=examples(15),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # as for the model that this is one of
)
test_what_rings_have_overwritten_is_delivered_after_any_restart = Spilled.TestCase
