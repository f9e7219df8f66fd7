"""Engine and broker against a model of their conversation: whatever the order, no request is lost.

In the broker's thread a poll is followed by events(), handling, calls of other threads, ticks, and the next
poll.  Here clients send, rings of other processes grow and Python publishes, retains, notes, closes and ends
sessions at each point between these.  After any history, with the clock standing still, so that nothing is
repeated by a timer, all that was requested is done: each packet is answered, each record of a producer is
routed, each session has what waited for it, the journal needs no snapshot, what is retained is written.

ForgetfulMachine has the mistake that such a model is for: what arises between events() and the next poll is
dropped there.
"""

from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edge.auth.interfaces import ClientInfo
from edge.config.schema import Durability
from edge.engine.engine import EngineLimits, Event
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    Will,
    encode,
)
from tests.support.examples import examples
from tests.support.frames import packets_of
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_producer import Producer
from tests.support.waiting import wait_until

NAMES = st.sampled_from(["ann", "bob", "cy"])
TOPICS = st.sampled_from(["a", "a/b", "b", "c", "will/ann"])
DEAD = ClientInfo("dead", None, "127.0.0.1:1", 0)
BYTES = st.sampled_from([1, 300, 3_000])
CLOSED_BY_MODEL = {"server", "peer", "reset"}  # any other cause is an event that was lost
ROUNDS_MAX = 5_000  # more than any history needs to come to rest


class Voice:
    """A connection, from the client's side: bytes that the engine has not taken, answers that are owed."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.handle = bench.engine.open(0)
        self.unsent = b""
        self.owed: Counter[object] = Counter()

    def say(self, packet: Packet, answer: type[Packet] | None = None) -> None:
        self.unsent += encode(packet, Version.V5)
        self.owed[answer or Packet] += answer is not None
        self.push()

    def push(self) -> bool:
        """Give the engine what it takes."""
        taken = self.bench.engine.feed(self.handle, self.unsent) if self.unsent else 0
        self.unsent = self.unsent[taken:]
        return taken > 0

    def hear(self) -> bool:
        """Take what there is; deliveries are acknowledged."""
        data = b""
        while more := self.bench.engine.pull(self.handle):
            data += more
        for packet in packets_of(data, Version.V5):
            if isinstance(packet, Publish):
                if packet.qos:
                    self.unsent += encode(PubAck(packet.packet_id), Version.V5)
            else:
                self.owed[type(packet)] -= 1
        return bool(data)

    @property
    def is_open(self) -> bool:
        return self.bench.engine.is_open(self.handle)


class EventsMachine(RuleBasedStateMachine):
    """step() may come only when what events() gave was handled: that is the broker's thread's promise."""

    @initialize()
    def begin(self) -> None:
        self.lives = Lives(
            journal_bytes=1 << 16,
            capacity_bytes=1 << 16,
            durability=Durability.INTERVAL,
            engine=EngineLimits(spill_max_bytes=1 << 20),
        )
        self.bench = self.lives.start()
        self.broker, self.engine = self.bench.broker, self.bench.engine
        self.broker.backfill.read_from(lambda *_: ())  # a log that has nothing any more
        self.broker.on_retained_due = self.sweep
        self.engine.begin_retained_save(False)
        self.producer = Producer(self.bench)
        self.produced = self.numbers = 0
        self.taken: deque[Event] = deque()
        self.voices: dict[str, Voice] = {}

    def teardown(self) -> None:
        if hasattr(self, "lives"):
            try:
                self.rest()
            finally:
                self.producer.close()
                self.broker.backfill.stop()
                self.lives.stop()

    def sweep(self) -> None:
        self.engine.begin_retained_save(False)
        while self.engine.retained_changes(1 << 16)[2]:
            pass

    # ---- clients ----

    @rule(name=NAMES, kept=st.booleans(), clean=st.booleans(), will=st.sampled_from([0, 100, 9_000]))
    def connect(self, name: str, kept: bool, clean: bool, will: int) -> None:
        voice = self.voices[name] = Voice(self.bench)
        expiry = Properties(session_expiry_interval_s=3_600 if kept else 0)
        last_will = Will(f"will/{name}", bytes(will), 1) if will else None
        words = Connect(name, clean, 0, will=last_will, version=Version.V5, properties=expiry)
        voice.say(words, ConnAck)

    @rule(name=NAMES, topic_filter=st.sampled_from(["#", "a/#", "b", "+"]), qos=st.sampled_from([0, 1]))
    def subscribe(self, name: str, topic_filter: str, qos: int) -> None:
        if voice := self.voices.get(name):
            voice.say(Subscribe(1, (Subscription(topic_filter, qos),)), SubAck)

    @rule(name=NAMES, topic=TOPICS, size=BYTES, count=st.integers(1, 12), retain=st.booleans())
    def publish(self, name: str, topic: str, size: int, count: int, retain: bool) -> None:
        if voice := self.voices.get(name):
            for identifier in range(1, count + 1):
                voice.say(Publish(topic, bytes(size), 1, retain, packet_id=identifier), PubAck)

    @rule(name=NAMES)
    def ping(self, name: str) -> None:
        if voice := self.voices.get(name):
            voice.say(PingReq(), PingResp)

    @rule(name=NAMES, goodbye=st.booleans())
    def leave(self, name: str, goodbye: bool) -> None:
        if voice := self.voices.pop(name, None):
            if goodbye:
                voice.say(Disconnect())
            else:  # as the loop does when a socket fails
                self.engine.close(voice.handle)
                self.broker.handle([(3, voice.handle, 1, b"")])

    @rule(topic=TOPICS | st.sampled_from([f"new/{n}" for n in range(20)]), count=st.integers(1, 5))
    def produce(self, topic: str, count: int) -> None:
        """Another process writes into its ring."""
        for _ in range(count):
            assert self.producer.writer.publish(bytes(10), key=topic) is not None
        self.produced += count
        self.engine.read_producers()

    # ---- the broker's thread ----

    @rule()
    def take(self) -> None:
        self.taken.extend(self.engine.events())

    @rule(count=st.integers(1, 5))
    def handle(self, count: int) -> None:
        self.broker.handle(self.taken.popleft() for _ in range(min(count, len(self.taken))))

    @rule()
    def call(self) -> None:
        if self.bench.calls:
            self.bench.calls.popleft()()

    @rule()
    def tick(self) -> None:
        self.broker.tick()

    @rule()
    def poll(self) -> None:
        self.broker.handle(self.taken)
        self.taken.clear()
        self.step()

    def step(self) -> int:
        return self.engine.step(self.bench.now_ms, self.bench.now_ns)

    # ---- Python, between them ----

    @rule(size=BYTES, count=st.integers(1, 30), retain=st.booleans())
    def publish_own(self, size: int, count: int, retain: bool) -> None:
        for _ in range(count):
            self.broker.publish("own", bytes(size), 1, retain)

    @rule(topic=TOPICS, size=BYTES)
    def retain(self, topic: str, size: int) -> None:
        if (found := self.broker.own_messages.topic_of(topic)) is not None:
            self.engine.retain(found, bytes(size), 0, b"", 0, b"", b"")

    @precondition(lambda self: self.broker.journal.is_open)
    @rule(count=st.integers(1, 12), size=st.sampled_from([100, 2_000, 7_000]))
    def note(self, count: int, size: int) -> None:
        """Write a note of any kind into the journal, here a will: twelve large ones fill it."""
        for _ in range(count):
            self.broker.journal.will(DEAD, Will("w", bytes(size)), self.bench.now_ms / 1_000 + 1_000)

    @rule(name=NAMES)
    def disconnect(self, name: str) -> None:
        self.broker.disconnect(name)

    @rule()
    def acl_changed(self) -> None:
        self.broker.acl_changed(None)

    # ---- at rest ----

    @rule()
    def rest(self) -> None:
        """Until nothing happens any more; then nothing may be owed."""
        for _ in range(ROUNDS_MAX):
            if not self.round():
                break
        else:
            raise AssertionError(f"no rest after {ROUNDS_MAX} rounds: {self.engine.state()}")
        self.nothing_is_owed()

    def round(self) -> bool:
        """One turn of everybody; whether something happened."""
        self.taken.extend(self.engine.events())
        happened = len(self.taken) + len(self.bench.calls)
        self.broker.handle(self.taken)
        self.taken.clear()
        while self.bench.calls:
            self.bench.calls.popleft()()
        self.broker.tick()
        happened += self.step()
        for voice in self.voices.values():
            happened += voice.is_open and (voice.hear() + voice.push())
        if not happened and (self.broker.journal.writing or self.broker.backfill.reading):
            wait_until(lambda: bool(self.bench.calls))
            return True
        return happened > 0 or bool(self.bench.calls)

    def nothing_is_owed(self) -> None:
        state = self.engine.state()
        stuck = ("python", "deferred", "events", "events_taken", "journal_full", "journal_stalled")
        needs = ("snapshot_needed", "retained_save_needed", "journal_torn", "journal_collected")
        assert not {name: state[name] for name in (*stuck, *needs) if state[name]}
        closed = self.bench.stats.closed()
        assert not {cause: count for cause, count in closed.items() if count and cause not in CLOSED_BY_MODEL}
        totals = self.bench.stats.totals()
        assert totals["from_producers"] + totals["producer_lost"] == self.produced
        for name, voice in self.voices.items():
            if voice.is_open:
                assert not voice.unsent, name
                assert not +voice.owed, name
        for session in self.broker.sessions.all():
            facts = self.engine.session_stats(session.handle)
            assert facts is not None
            assert not session.connection or facts[:2] == (0, 0), session.client_id


class ForgetfulMachine(EventsMachine):
    """Drops what arises between events() and the next poll."""

    def step(self) -> int:
        self.engine.events()
        return super().step()


def histories(count: int, **more: Any) -> settings:
    checks = list(HealthCheck)
    return settings(
        max_examples=count, stateful_step_count=30, deadline=None, suppress_health_check=checks, **more
    )


EventsMachine.TestCase.settings = histories(examples(60))
TestNoRequestIsLost = EventsMachine.TestCase


def test_the_model_sees_a_lost_request() -> None:
    finding = histories(60, database=None, derandomize=True, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        run_state_machine_as_test(ForgetfulMachine, settings=finding)
