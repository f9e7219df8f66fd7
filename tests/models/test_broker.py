"""The broker against a model: who must get what, in which order, after anything that can happen.

Clients of MQTT 3.1.1 and 5, with clean and with lasting sessions, connect, are lost, take each other over,
subscribe, publish, retain, leave messages unacknowledged.  The topic table is tiny, so topics are forgotten
and found again all the time.
"""

from array import array
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    matches,
)
from edge.mqtt.properties import NO_PROPERTIES
from tests.support.examples import examples
from tests.support.mqtt_bench import Bench, Wire

CLIENTS = st.sampled_from(["ann", "bob", "cy"])
TOPICS = st.sampled_from(["a", "a/b", "a/b/c", "b", "b/b", "/a", "c", "d", "e"])
FILTERS = st.sampled_from(["#", "+", "a", "a/#", "a/+", "+/b", "a/b/c", "+/+/#", "/+", "b", "c", "d/#"])
QOS = st.integers(0, 2)

Message = tuple[str, bytes, int]  # topic, payload, QoS of the delivery


@dataclass
class ModelSession:
    """Messages to deliver, with and without an acknowledgement."""

    clean: bool
    filters: dict[str, int] = field(default_factory=dict)
    waiting: list[Message] = field(default_factory=list)
    unacked: list[tuple[int, Message]] = field(default_factory=list)  # with the packet identifier


class BrokerMachine(RuleBasedStateMachine):
    """Rules are what clients do; each ends with what the client must see."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench(engine=EngineLimits(topics_max=6))
        self.wires: dict[str, Wire] = {}
        self.sessions: dict[str, ModelSession] = {}
        self.retained: dict[str, tuple[bytes, int]] = {}
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.wires.clear()
            self.bench.close()

    # ---- what the model says ----

    def lost(self, client: str) -> None:
        """The connection of `client` has ended."""
        self.wires.pop(client, None)
        session = self.sessions.get(client)
        if session is None:
            return
        if session.clean:
            del self.sessions[client]
        else:
            session.waiting[:0] = [message for _, message in session.unacked]
            session.unacked.clear()

    def routed(self, topic: str, payload: bytes, qos: int) -> None:
        """A message was published."""
        for client, session in self.sessions.items():
            granted = [its for topic_filter, its in session.filters.items() if matches(topic_filter, topic)]
            lower = min(qos, max(granted, default=0))
            if granted and (lower or client in self.wires):
                session.waiting.append((topic, payload, lower))

    def sees(self, client: str, *, among: list[Packet] | None = None) -> None:
        """`client` gets what waits for it, in order; other packets go to `among`."""
        session = self.sessions[client]
        got: list[Message] = []
        for packet in self.wires[client].received():
            if isinstance(packet, Publish):
                message = (packet.topic, bytes(packet.payload), packet.qos)
                got.append(message)
                if packet.qos:
                    session.unacked.append((packet.packet_id, message))
            else:
                assert among is not None, packet
                among.append(packet)
        assert got == session.waiting
        session.waiting.clear()

    # ---- what clients do ----

    @rule(client=CLIENTS, clean=st.booleans(), version=st.sampled_from([Version.V311, Version.V5]))
    def connect(self, client: str, clean: bool, version: Version) -> None:
        """Connect, perhaps in place of a connection that is there."""
        self.come(client, clean, version)

    def come(self, client: str, clean: bool, version: Version = Version.V311) -> None:
        """Connect, and see what waited."""
        if client in self.wires:
            self.lost(client)
        known = self.sessions.get(client)
        present = known is not None and not clean
        if not present:
            self.sessions[client] = ModelSession(clean)
        self.sessions[client].clean = clean
        wire = self.wires[client] = self.bench.wire(version)
        wants = NO_PROPERTIES if clean else Properties(session_expiry_interval_s=3600)
        wire.send(Connect(client, clean_start=clean, version=version, properties=wants))
        answers: list[Packet] = []
        self.sees(client, among=answers)
        (answer,) = answers
        assert isinstance(answer, ConnAck)
        assert (answer.session_present, answer.reason_code) == (present, ReasonCode.SUCCESS)

    @rule(client=CLIENTS, goodbye=st.booleans())
    def leave(self, client: str, goodbye: bool) -> None:
        """Say goodbye, or be lost."""
        if client not in self.wires:
            self.come(client, False)
        if goodbye:
            self.wires[client].send(Disconnect())
        else:
            self.wires[client].drop()
        self.lost(client)

    @rule(client=CLIENTS, topic_filter=FILTERS, qos=QOS)
    def subscribe(self, client: str, topic_filter: str, qos: int) -> None:
        """Subscribe for the first time or again: retained messages follow the answer, in any order."""
        if client not in self.wires:
            self.come(client, False)
        self.sees(client)
        session = self.sessions[client]
        session.filters[topic_filter] = qos
        self.wires[client].send(Subscribe(1, (Subscription(topic_filter, qos),)))
        answer, *rest = self.wires[client].received()
        assert answer == SubAck(1, (ReasonCode(qos),))
        expected = sorted(
            (topic, payload, min(qos, its))
            for topic, (payload, its) in self.retained.items()
            if matches(topic_filter, topic)
        )
        got = []
        for packet in rest:
            assert isinstance(packet, Publish)
            assert packet.retain
            got.append((packet.topic, bytes(packet.payload), packet.qos))
            if packet.qos:
                session.unacked.append((packet.packet_id, got[-1]))
        assert sorted(got) == expected

    @rule(client=CLIENTS, topic_filter=FILTERS)
    def unsubscribe(self, client: str, topic_filter: str) -> None:
        """Unsubscribe, also from what was never subscribed to."""
        if client not in self.wires:
            self.come(client, False)
        known = self.sessions[client].filters.pop(topic_filter, None) is not None
        self.wires[client].send(Unsubscribe(1, (topic_filter,)))
        answers: list[Packet] = []
        self.sees(client, among=answers)
        code = ReasonCode.SUCCESS if known else ReasonCode.NO_SUBSCRIPTION_EXISTED
        is_5 = self.wires[client].version is Version.V5
        assert answers == [UnsubAck(1, (code,) if is_5 else ())]

    @rule(client=CLIENTS, topic=TOPICS, qos=QOS, retain=st.sampled_from(["", "", "set", "clear"]))
    def publish(self, client: str, topic: str, qos: int, retain: str) -> None:
        """Publish; at most three topics retain something, so that others can be forgotten."""
        if client not in self.wires:
            self.come(client, False)
        if len({*self.retained, topic}) > 3:
            retain = ""
        self.count += 1
        payload = b"" if retain == "clear" else b"%d" % self.count
        wire = self.wires[client]
        wire.send(Publish(topic, payload, qos, retain=bool(retain), packet_id=1 if qos else 0))
        if retain:
            self.retained.pop(topic, None)
        if retain == "set":
            self.retained[topic] = (payload, qos)
        self.routed(topic, payload, qos)
        answers: list[Packet] = []
        self.sees(client, among=answers)
        if qos == 2:
            wire.send(PubRel(1))
            self.sees(client, among=answers)
        known = any(matches(its, topic) for session in self.sessions.values() for its in session.filters)
        is_5 = wire.version is Version.V5
        code = ReasonCode.SUCCESS if known or not is_5 else ReasonCode.NO_MATCHING_SUBSCRIBERS
        assert answers == [[], [PubAck(1, code)], [PubRec(1), PubComp(1)]][qos]

    @rule(client=CLIENTS, share=st.integers(1, 3))
    def acknowledge(self, client: str, share: int) -> None:
        """Acknowledge some of what was delivered, from the front."""
        if client not in self.wires:
            self.come(client, False)
        session, wire = self.sessions[client], self.wires[client]
        self.sees(client)
        for _ in range(len(session.unacked) // share):
            identifier, (_, _, qos) = session.unacked.pop(0)
            if qos == 1:
                wire.send(PubAck(identifier))
                continue
            wire.send(PubRec(identifier))
            assert wire.received() == [PubRel(identifier)]
            wire.send(PubComp(identifier))
        assert wire.received() == []

    @invariant()
    def books_balance(self) -> None:
        """The counts of the engine equal its content."""
        if not hasattr(self, "bench"):
            return
        now = self.bench.stats.gauges()
        assert now["sessions"] == len(self.sessions)
        assert now["retained"] == len(self.retained)
        assert now["topics"] == len(array("I", self.bench.engine.topics())) <= 6
        assert sum(self.bench.stats.dropped().values()) == 0


BrokerMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


TestBrokerIsItsModel = BrokerMachine.TestCase
