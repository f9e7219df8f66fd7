"""QoS 2 at durability "upstream" against a model: what is acknowledged is in the sinks, once.

Two clients publish, lose their connections, and repeat what was not acknowledged. The sinks take records, and
lose some for good. The broker is killed at any moment. A bridge reports its losses again after each start.
"""

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from edge.config.schema import Durability
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    Properties,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Version,
)
from tests.support.examples import examples
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Wire

CLIENTS = st.sampled_from(["old", "new"])
VERSIONS = {"old": Version.V311, "new": Version.V5}
RECEIVE_MAX = 4
IDENTIFIERS = range(1, 7)  # more than may wait


@dataclass
class ModelClient:
    """Memory of a client: messages by identifier, and whether PUBREC has come."""

    wire: Wire | None = None
    unacknowledged: dict[int, bytes] = field(default_factory=dict)
    received: dict[int, bytes] = field(default_factory=dict)


class UpstreamMachine(RuleBasedStateMachine):
    """Every PUBREC is checked when it comes; at the end everything is sent until it is acknowledged."""

    @initialize()
    def begin(self) -> None:
        self.lives = Lives(durability=Durability.UPSTREAM, engine=EngineLimits(receive_max=RECEIVE_MAX))
        self.bench = self.lives.start()
        self.clients = {name: ModelClient() for name in VERSIONS}
        self.drained = 0
        self.lost: set[int] = set()
        self.count = 0

    def teardown(self) -> None:
        if not hasattr(self, "lives"):
            return
        try:
            self.all_arrive()
        finally:
            self.clients.clear()
            with self.lives:
                del self.bench

    # ---- the clients ----

    @rule(name=CLIENTS)
    def connect(self, name: str) -> None:
        client = self.clients[name]
        if client.wire is not None:
            return
        client.wire = self.bench.wire(VERSIONS[name])
        properties = Properties(session_expiry_interval_s=3600 if name == "new" else None)
        client.wire.send(Connect(name, clean_start=False, version=VERSIONS[name], properties=properties))
        again = client.unacknowledged.items()
        client.wire.send(*(Publish("t", payload, 2, dup=True, packet_id=number) for number, payload in again))
        client.wire.send(*(PubRel(number) for number in client.received))
        self.collect(name)

    @rule(name=CLIENTS)
    def drop(self, name: str) -> None:
        wire, self.clients[name].wire = self.clients[name].wire, None
        if wire is not None:
            wire.drop()

    @rule(name=CLIENTS, identifier=st.sampled_from(IDENTIFIERS))
    def publish(self, name: str, identifier: int) -> None:
        client = self.clients[name]
        if client.wire is None or identifier in {*client.unacknowledged, *client.received}:
            return
        if name == "new" and len(client.unacknowledged) + len(client.received) >= RECEIVE_MAX:
            return
        self.count += 1
        client.unacknowledged[identifier] = b"%d" % self.count
        client.wire.send(Publish("t", client.unacknowledged[identifier], 2, packet_id=identifier))
        self.collect(name)

    @rule(name=CLIENTS)
    def collect(self, name: str) -> None:
        client = self.clients[name]
        if client.wire is None:
            return
        client.wire.raw(b"")  # what the broker did not read while too many acknowledgements waited
        for packet in client.wire.received():
            self.take(client, packet)
        if not client.wire.is_open:
            client.wire = None

    def take(self, client: ModelClient, packet: Packet) -> None:
        if isinstance(packet, PubComp):
            client.received.pop(packet.packet_id, None)
            return
        if not isinstance(packet, PubRec):
            assert isinstance(packet, ConnAck | Disconnect), packet
            return
        payload = client.unacknowledged.pop(packet.packet_id)
        if not packet.reason_code.failed:
            assert payload in self.arrived(), "a message that no sink has was acknowledged"
            client.received[packet.packet_id] = payload
            assert client.wire is not None
            client.wire.send(PubRel(packet.packet_id))

    # ---- the sinks ----

    def stored(self) -> list[bytes]:
        return [payload for _, payload in self.bench.records()]

    def arrived(self) -> list[bytes]:
        """Payloads that the sinks have."""
        return [
            payload for at, payload in enumerate(self.stored()) if at < self.drained and at not in self.lost
        ]

    @rule(count=st.integers(0, 3), lost=st.sets(st.integers(0, 2)), told=st.booleans())
    def drain(self, count: int, lost: set[int], told: bool) -> None:
        end = min(self.drained + count, len(self.stored()))
        fresh = {self.drained + number for number in lost if self.drained + number < end}
        self.drained = end
        self.lost |= fresh
        if told:
            self.report(fresh)

    @rule()
    def report_all(self) -> None:
        self.report(self.lost)

    def report(self, lost: set[int]) -> None:
        """Untold losses come with the next report of all, but before an offset that is above them."""
        offset = self.drained if lost == self.lost else 0
        self.bench.broker.router.durability.upstream(
            "t-0", offset, [(number, number) for number in sorted(lost)]
        )
        self.bench.settle()
        live = Counter(payload for at, payload in enumerate(self.stored()) if at not in self.lost)
        assert max(live.values(), default=0) <= 1, "a message was stored twice"

    # ---- the broker ----

    @rule()
    def restart(self) -> None:
        for client in self.clients.values():
            client.wire = None
        self.bench = self.lives.restart()

    def all_arrive(self) -> None:
        """The sinks take all from now on, and the clients repeat what was refused."""
        for _ in range(12):
            for name in self.clients:
                self.connect(name)
            self.drained = len(self.stored())
            self.report(self.lost)
            for name in self.clients:
                self.collect(name)
        assert not any(client.unacknowledged or client.received for client in self.clients.values())


UpstreamMachine.TestCase.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestUpstream = UpstreamMachine.TestCase
