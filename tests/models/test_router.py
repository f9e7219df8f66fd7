"""The routes of every topic are what its name and all subscriptions say, whatever has happened to either.

Sessions subscribe with all options and identifiers, unsubscribe several at once, share, come and go; rules
change; the topic table is tiny, so topics are forgotten and found again.  The model has no cache: it
evaluates every subscription for every topic each time.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edge.auth.interfaces import AllowedFilters, ClientInfo
from edge.broker import router as router_module
from edge.broker import session_routes
from edge.broker.sessions import Session
from edge.engine.engine import EngineLimits
from edge.engine.subscription_options import NO_LOCAL, OF_GROUP, OWN_ONLY, RETAIN_AS_PUBLISHED
from edge.mqtt import Subscription, matches, split_share
from tests.support.examples import examples
from tests.support.mqtt_bench import Bench

NAMES = st.sampled_from(["ann", "bob", "cy"])
TOPICS = st.sampled_from(["a", "a/b", "a/b/c", "b", "b/b", "/a", "$a", "$a/b"])
FILTERS = st.sampled_from(["#", "+", "a", "a/#", "a/+", "+/b", "a/b/c", "+/+/#", "/+", "b", "$a/#", "$a"])
SHARED = st.sampled_from(["$share/g/#", "$share/h/#", "$share/g/a/+", "$share/g/$a/b"])

Route = tuple[int, int, bytes]  # session, options, identifiers


@dataclass
class Subscribed:
    """One subscription, as the client requested it."""

    asked: Subscription
    identifier: int


@dataclass
class Client:
    """A session, and what it subscribed to."""

    session: Session
    subscriptions: dict[str, Subscribed] = field(default_factory=dict)


def options_of(subscriptions: list[Subscribed], mark: int) -> int:
    """Of them all together."""
    as_published = any(its.asked.retain_as_published for its in subscriptions)
    return max(its.asked.qos for its in subscriptions) | (RETAIN_AS_PUBLISHED if as_published else 0) | mark


def identifiers_of(subscriptions: list[Subscribed]) -> list[int]:
    return sorted(its.identifier for its in subscriptions if its.identifier)


class RouterMachine(RuleBasedStateMachine):
    """Rules are what can happen; after each, all routes are compared."""

    many, age_min = session_routes.PYTHON_WALK_MAX, router_module.IDLE_TABLE_MIN

    @initialize()
    def begin(self) -> None:
        self.bench = Bench(engine=EngineLimits(topics_max=5))
        self.router = self.bench.broker.router
        self.clients: dict[str, Client] = {}
        self.denied: set[tuple[str, str]] = set()
        session_routes.PYTHON_WALK_MAX, router_module.IDLE_TABLE_MIN = self.many, 1
        self.now_s = 1.0

    def teardown(self) -> None:
        session_routes.PYTHON_WALK_MAX, router_module.IDLE_TABLE_MIN = (
            RouterMachine.many,
            RouterMachine.age_min,
        )
        if hasattr(self, "bench"):
            self.clients.clear()
            del self.router
            self.bench.close()

    def client(self, name: str) -> Client:
        if name not in self.clients:
            session = self.bench.broker.sessions.open(ClientInfo(name, None, "", 0), 999)
            self.clients[name] = Client(session)
        return self.clients[name]

    @rule(
        name=NAMES,
        topic_filter=FILTERS | SHARED,
        qos=st.integers(0, 2),
        no_local=st.sampled_from([False, False, False, True]),
        as_published=st.booleans(),
        identifier=st.sampled_from([0, 0, 0, 0, 0, 1, 2, 127, 128, 268_435_455]),
    )
    def subscribe(
        self, name: str, topic_filter: str, qos: int, no_local: bool, as_published: bool, identifier: int
    ) -> None:
        client = self.client(name)
        no_local &= not topic_filter.startswith("$share")
        asked = Subscription(topic_filter, qos, no_local, as_published)
        is_new = self.router.subscribe(client.session, asked, identifier)
        assert is_new == (topic_filter not in client.subscriptions)
        client.subscriptions[topic_filter] = Subscribed(asked, identifier)

    @rule(name=NAMES, topic_filters=st.lists(FILTERS | SHARED, min_size=1, max_size=6))
    def unsubscribe(self, name: str, topic_filters: list[str]) -> None:
        client = self.client(name)
        expected = [client.subscriptions.pop(its, None) is not None for its in topic_filters]
        assert self.router.unsubscribe(client.session, topic_filters) == expected

    @rule(topic=TOPICS)
    def publish(self, topic: str) -> None:
        """A topic is seen, and another is perhaps forgotten."""
        assert self.router.topic_of(topic) is not None

    @rule(twice=st.booleans())
    def wait(self, twice: bool) -> None:
        """Topics without use are forgotten, and their memory is freed."""
        for _ in range(2 * 256 if twice else 1):  # twice around the smallest table
            self.now_s += 2 * self.router.limits.topics_idle_s
            self.router.forget_idle_topics(self.now_s)
        assert not (twice and len(self.bench.engine.topics()))

    @rule(name=NAMES)
    def end(self, name: str) -> None:
        client = self.clients.pop(name, None)
        if client is not None:
            self.router.forget(client.session)
            self.bench.broker.sessions.close(client.session)

    @rule(
        denied=st.sets(st.tuples(NAMES, TOPICS), max_size=6),
        on=st.booleans(),
        reach=st.integers(0, 2),
        few=st.booleans(),
    )
    def change_rules(self, denied: set[tuple[str, str]], on: bool, reach: int, few: bool) -> None:
        before, self.denied = self.denied, denied if on else set()
        names = {name for name, _ in before ^ self.denied}
        changed = [client.session for name, client in self.clients.items() if name in names]
        self.router.may_receive = self.may_receive if on else None
        self.router.routes.allowed_filters = (None, self.reach, self.narrow_reach)[reach]
        every = (client.session for client in self.clients.values())
        self.router.acl_changed(every, changed if few else None)

    def may_receive(self, session: Session, topic: str) -> bool:
        return (session.client_id, topic) not in self.denied

    def reach(self, session: Session, topic_filter: str) -> AllowedFilters:
        """All of the filter, perhaps less."""
        denied = any(matches(topic_filter, topic) for name, topic in self.denied if name == session.client_id)
        return AllowedFilters((topic_filter,), certain=not denied)

    def narrow_reach(self, session: Session, topic_filter: str) -> AllowedFilters | None:
        """Topic by topic."""
        topics = self.router.routes.walked(topic_filter)
        assert topics is not None
        known = [self.bench.engine.topic_name(topic).decode() for topic in topics]
        return AllowedFilters(
            tuple(topic for topic in known if self.may_receive(session, topic)), certain=True
        )

    # ---- what the model says ----

    def expected(self, topic: str) -> list[Route]:
        routes: list[Route] = []
        for name, client in self.clients.items():
            matching = [
                its for topic_filter, its in client.subscriptions.items() if matches(topic_filter, topic)
            ]
            if matching and (name, topic) not in self.denied:
                routes += self.routes_to(client.session.handle, matching)
        return routes + self.routes_to_groups(topic)

    def routes_to(self, handle: int, matching: list[Subscribed]) -> list[Route]:
        own = [its for its in matching if not its.asked.no_local]
        if len(own) == len(matching):
            return [self.route(handle, matching, 0)]
        others = [self.route(handle, matching, NO_LOCAL)]
        return others + ([self.route(handle, own, OWN_ONLY)] if own else [])

    def route(self, handle: int, subscriptions: list[Subscribed], mark: int) -> Route:
        wire = b"".join(b"\x0b" + variable(its) for its in identifiers_of(subscriptions))
        return handle, options_of(subscriptions, mark), wire

    def routes_to_groups(self, topic: str) -> list[Route]:
        shares = {its for client in self.clients.values() for its in client.subscriptions if "$share" in its}
        return [
            (self.router._groups[share].handle, OF_GROUP, b"")
            for share in shares
            if matches(split_share(share)[1], topic)
            and all(
                (name, topic) not in self.denied
                for name, client in self.clients.items()
                if share in client.subscriptions
            )
        ]

    @invariant()
    def routes_are_what_subscriptions_say(self) -> None:
        if not hasattr(self, "bench"):
            return
        engine = self.bench.engine
        for name in ("a", "a/b", "a/b/c", "b", "b/b", "/a", "$a", "$a/b"):
            topic = engine.topic_find(name.encode())
            if topic not in set(memoryview(engine.topics()).cast("I")):
                continue
            got = [
                (session, tag & 0xFF, b"".join(sorted(split(engine.subscription_ids_of(tag >> 8)))))
                for session, tag in engine.routes_of(topic)
            ]
            wanted = [
                (handle, options, b"".join(sorted(split(ids))))
                for handle, options, ids in self.expected(name)
            ]
            assert sorted(got) == sorted(wanted), name

    @invariant()
    def nothing_is_left_over(self) -> None:
        """Grants are those of live routes, of dead ones until their topic is next walked, and of members."""
        if hasattr(self, "bench") and not self.clients:
            for name in ("a", "a/b", "a/b/c", "b", "b/b", "/a", "$a", "$a/b"):
                topic = self.bench.engine.topic_find(name.encode())
                if topic in set(memoryview(self.bench.engine.topics()).cast("I")):
                    self.bench.engine.routes_clear(topic)
            assert self.bench.engine.subscription_ids_count() == 0
            assert not self.router._groups


def variable(value: int) -> bytes:
    """A Variable Byte Integer."""
    wire = b""
    while value > 127:
        wire += bytes((value % 128 + 128,))
        value //= 128
    return wire + bytes((value,))


def split(identifiers: bytes) -> list[bytes]:
    """Each Subscription Identifier property."""
    found: list[bytes] = []
    while identifiers:
        end = next(i for i in range(1, len(identifiers)) if identifiers[i] < 128) + 1
        found.append(identifiers[:end])
        identifiers = identifiers[end:]
    return found


SETTINGS = settings(
    max_examples=examples(80), stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


class FilterwiseMachine(RouterMachine):
    """The same, where routes are worked out filter by filter, as for many topics."""

    many = 0


RouterMachine.TestCase.settings = SETTINGS
FilterwiseMachine.TestCase.settings = SETTINGS

TestRoutesAreWhatSubscriptionsSay = RouterMachine.TestCase
TestRoutesFoundByFilterAreTheSame = FilterwiseMachine.TestCase
