"""Sessions and wills against a model: who is remembered for how long, and which wills are published when.

Clients of MQTT 5 connect with and without a clean start, with all kinds of expiry and will delay, are lost,
say goodbye, and take each other over, while time passes in jumps.
"""

from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edge.mqtt import ConnAck, Connect, Disconnect, Properties, Publish, ReasonCode, Version, Will
from tests.support.examples import examples
from tests.support.mqtt_bench import Bench, Wire

CLIENTS = st.sampled_from(["ann", "bob"])
SECONDS = st.sampled_from([0, 1, 3, 10])


@dataclass
class ModelSession:
    """A session: of a client that is connected, or away until `ends_s`."""

    expiry_s: int
    will: tuple[int, bytes] | None  # delay, payload; of the connection there is
    ends_s: float | None = None
    due: tuple[float, bytes] | None = None  # a will that waits


class SessionMachine(RuleBasedStateMachine):
    """The wills that were published are compared after each step."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench()
        self.watcher = self.bench.client5("watcher", keep_alive_s=0)
        self.watcher.subscribe("will")
        self.wires: dict[str, Wire] = {}
        self.sessions: dict[str, ModelSession] = {}
        self.published: list[bytes] = []
        self.now_s = 0
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "bench"):
            self.wires.clear()
            self.bench.close()

    def ended(self, client: str) -> None:
        """The session is no more; a will of it does not wait."""
        session = self.sessions.pop(client)
        if session.due is not None:
            self.published.append(session.due[1])

    def left(self, client: str, *, will: bool) -> None:
        """The connection has ended."""
        del self.wires[client]
        session = self.sessions[client]
        session.ends_s = self.now_s + session.expiry_s
        if will and session.will is not None:
            delay_s, payload = session.will
            if delay_s:
                session.due = (self.now_s + delay_s, payload)
            else:
                self.published.append(payload)
        self.passed()

    def passed(self) -> None:
        """Events due by now."""
        for client, session in list(self.sessions.items()):
            if session.ends_s is None:
                continue
            if session.due is not None and session.due[0] <= self.now_s:
                self.published.append(session.due[1])
                session.due = None
            if session.ends_s <= self.now_s:
                self.ended(client)

    @rule(client=CLIENTS, clean=st.booleans(), expiry_s=SECONDS, delay_s=st.none() | SECONDS)
    def connect(self, client: str, clean: bool, expiry_s: int, delay_s: int | None) -> None:
        """Connect, perhaps in place of a connection that is there."""
        if client in self.wires:
            self.left(client, will=True)
        if clean and client in self.sessions:
            self.ended(client)
        present = client in self.sessions
        self.count += 1
        payload = b"%d" % self.count
        will = None
        if delay_s is not None:
            will = Will("will", payload, properties=Properties(will_delay_interval_s=delay_s))
        self.sessions[client] = ModelSession(expiry_s, None if delay_s is None else (delay_s, payload))
        wire = self.wires[client] = self.bench.wire(Version.V5)
        wants = Properties(session_expiry_interval_s=expiry_s)
        wire.send(Connect(client, clean, 0, will=will, version=Version.V5, properties=wants))
        answer = wire.answer()
        assert isinstance(answer, ConnAck)
        assert answer.session_present == present

    @rule(client=CLIENTS, how=st.sampled_from(["lost", "goodbye", "with will"]))
    def leave(self, client: str, how: str) -> None:
        """Go, in one of three ways."""
        wire = self.wires.get(client)
        if wire is None:
            return
        if how == "lost":
            wire.drop()
        else:
            wire.send(
                Disconnect(ReasonCode.DISCONNECT_WITH_WILL if how == "with will" else ReasonCode.SUCCESS)
            )
        self.left(client, will=how != "goodbye")

    @rule(client=CLIENTS, expiry_s=SECONDS)
    def change_of_mind(self, client: str, expiry_s: int) -> None:
        """Go, and say how long to be remembered; a session that was to end cannot be kept."""
        wire = self.wires.get(client)
        if wire is None:
            return
        wire.send(Disconnect(properties=Properties(session_expiry_interval_s=expiry_s)))
        assert not wire.is_open
        wrong = expiry_s > 0 and self.sessions[client].expiry_s == 0
        if not wrong:
            self.sessions[client].expiry_s = expiry_s
        self.left(client, will=wrong)

    @rule(seconds=st.sampled_from([1, 2, 5, 20]))
    def time_passes(self, seconds: int) -> None:
        """A jump; what is due in it happens at its end."""
        self.now_s += seconds
        self.bench.settle(seconds * 1000)
        self.passed()

    @invariant()
    def all_is_as_the_model_says(self) -> None:
        """Sessions, those away, wills that wait, and wills that were published."""
        if not hasattr(self, "bench"):
            return
        sessions = self.bench.broker.sessions
        assert {its.client_id for its in sessions} == {*self.sessions, "watcher"}
        assert sessions.away == sum(its.ends_s is not None for its in self.sessions.values())
        assert len(self.bench.broker.wills) == sum(its.due is not None for its in self.sessions.values())
        got = [bytes(it.payload) for it in self.watcher.received() if isinstance(it, Publish)]
        assert sorted(got) == sorted(self.published)
        self.published.clear()


SessionMachine.TestCase.settings = settings(
    max_examples=examples(50), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


TestSessionsAreTheirModel = SessionMachine.TestCase
