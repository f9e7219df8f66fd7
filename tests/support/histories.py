"""Random histories of MQTT clients: steps that follow from a seed, and do not depend on a broker.

A history has two to six clients of MQTT 3.1.1 and 5 with few topics, so that their subscriptions overlap.
At the end all clients come back and acknowledge everything, so that nothing stays unseen.

One client of a history has wills: several wills at the end of all connections would come in any order. A
message that is sent again has the identifiers of the current subscriptions: so a history with identifiers
changes no subscription after its begin.

In every third history the clients of MEMBERS share a subscription to SHARED_TOPICS, and have no other one to
them. Their sessions do not end, because the messages in flight of a session that ends are lost.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal, NamedTuple

from edge.mqtt import Properties, Subscription, Version, Will
from edge.mqtt.properties import NO_PROPERTIES

TOPICS = ("a", "a/b", "a/b/c", "a/c", "b", "b/b", "/a", "a/")
FILTERS = (*TOPICS[:3], "#", "+", "a/#", "a/+", "+/b", "+/+/#", "/+", "b", "b/#", "+/#", "a/+/c", "/a", "+/")
WILL = b"will "  # begin of the payload of each will
WILLS_OF = "c0"
MEMBERS = ("c0", "c1")
SHARED_TOPICS = ("s/a", "s/b")
STEPS = 40
KEPT_S = 600

Acks = Literal["at once", "PUBREC only", "none"]
Amount = Literal["all", "oldest", "PUBREC only"]
Breaks = Literal["", "before the acknowledgement", "before PUBREL"]


class Connects(NamedTuple):
    """A connection, which takes over an older one."""

    client: str
    clean_start: bool
    will: Will | None
    properties: Properties
    acks: Acks


class Subscribes(NamedTuple):
    """One SUBSCRIBE."""

    client: str
    subscriptions: tuple[Subscription, ...]
    properties: Properties


class Unsubscribes(NamedTuple):
    """One UNSUBSCRIBE."""

    client: str
    filters: tuple[str, ...]


class Publishes(NamedTuple):
    """One message. `breaks`: when the client closes its connection during the exchange."""

    client: str
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties
    breaks: Breaks


class Acknowledges(NamedTuple):
    """Acknowledge what has arrived: all of it, the oldest, or QoS 2 by PUBREC only."""

    client: str
    amount: Amount


class Leaves(NamedTuple):
    """The end of a connection. `code`: of a DISCONNECT; None: without one."""

    client: str
    code: int | None
    properties: Properties


class CutAll(NamedTuple):
    """The end of all connections at once, by the clients or by a kill of the broker."""


ClientStep = Connects | Subscribes | Unsubscribes | Publishes | Acknowledges | Leaves
Step = ClientStep | CutAll


@dataclass
class _Writer:
    """Generator of one history."""

    random: Random
    versions: dict[str, Version]
    identifiers: bool
    shares: bool
    connected: set[str] = field(default_factory=set)
    number: int = 0

    def steps(self) -> Iterator[Step]:
        """All steps of the history."""
        for client in self.versions:
            yield self._connects(client)
            if self._is_member(client):
                yield Subscribes(client, (Subscription("$share/g/s/#", 2),), NO_PROPERTIES)
            for _ in range(self.random.randint(0, 3)):
                yield self._subscribes(client)
        for at in range(STEPS):
            yield self._cut() if at % 10 == 9 else self._step()
        for client in self.versions:
            yield Connects(
                client, False, None, self._of_5(client, session_expiry_interval_s=KEPT_S), "at once"
            )
        for client in self.versions:
            yield Acknowledges(client, "all")

    def _is(self, probability: float) -> bool:
        return self.random.random() < probability

    def _is_member(self, client: str) -> bool:
        return self.shares and client in MEMBERS

    def _of_5(self, client: str, **properties: Any) -> Properties:
        return Properties(**properties) if self.versions[client] is Version.V5 else NO_PROPERTIES

    def _cut(self) -> CutAll:
        self.connected.clear()
        return CutAll()

    def _step(self) -> Step:
        client = self.random.choice(sorted(self.versions))
        if client not in self.connected:
            return self._connects(client)
        makers: dict[Callable[[str], ClientStep], int] = {
            self._publishes: 46,
            self._acknowledges: 12,
            self._leaves: 10,
            self._connects: 6,
        }
        if not self.identifiers:
            makers |= {self._subscribes: 10, self._unsubscribes: 4}
        return self.random.choices([*makers], [*makers.values()])[0](client)

    def _connects(self, client: str) -> Connects:
        is_member = self._is_member(client)
        expiry_s = KEPT_S if is_member else self.random.choice([0, *[KEPT_S] * 5])
        properties: dict[str, Any] = {"session_expiry_interval_s": expiry_s}
        for name, values in (("receive_maximum", (1, 2, 3, 10)), ("topic_alias_maximum", (1, 2, 10))):
            if self._is(0.3):
                properties[name] = self.random.choice(values)
        self.connected.add(client)
        will = self._will(client) if client == WILLS_OF and self._is(0.7) else None
        acks: Acks = self.random.choice(["at once", "at once", "PUBREC only", "none"])
        return Connects(client, self._is(0.1) and not is_member, will, self._of_5(client, **properties), acks)

    def _will(self, client: str) -> Will:
        self.number += 1
        payload = WILL + str(self.number).encode()
        properties = self._of_5(client, content_type="x") if self._is(0.2) else NO_PROPERTIES
        return Will(self.random.choice(TOPICS), payload, self._qos(), self._is(0.3), properties)

    def _qos(self) -> int:
        return self.random.choice([0, 1, 2])

    def _subscribes(self, client: str) -> Subscribes:
        known = [name for name in FILTERS if not (self._is_member(client) and name[0] in "#+")]
        filters = self.random.sample(known, self.random.choice([1, 1, 1, 2, 3]))
        is_5 = self.versions[client] is Version.V5
        subscriptions = tuple(
            Subscription(name, self._qos(), self._is(0.3), self._is(0.3), self.random.choice([0, 0, 1, 2]))
            if is_5
            else Subscription(name, self._qos())
            for name in filters
        )
        numbers = (self.random.choice([1, 2, 200, 268_435_455]),) if self.identifiers else ()
        return Subscribes(client, subscriptions, self._of_5(client, subscription_identifiers=numbers))

    def _unsubscribes(self, client: str) -> Unsubscribes:
        return Unsubscribes(client, tuple(self.random.sample(FILTERS, self.random.choice([1, 1, 2]))))

    def _publishes(self, client: str) -> Publishes:
        self.number += 1
        retain = self._is(0.25)
        payload = b"" if retain and self._is(0.25) else f"message {self.number}".encode()
        values: dict[str, Any] = {
            "content_type": "text",
            "response_topic": "r/x",
            "correlation_data": b"\0\1",
            "user": (("a", "1"), ("a", "2")),
            "payload_format_indicator": 1,
            "message_expiry_interval_s": KEPT_S,
            "topic_alias": self.random.choice([1, 2]),
        }
        properties = self._of_5(client, **{name: value for name, value in values.items() if self._is(0.1)})
        breaks: Breaks = self.random.choice(["", "", "", "", "before the acknowledgement", "before PUBREL"])
        topics = SHARED_TOPICS if self.shares and self._is(0.4) else TOPICS
        return Publishes(client, self.random.choice(topics), payload, self._qos(), retain, properties, breaks)

    def _acknowledges(self, client: str) -> Acknowledges:
        return Acknowledges(client, self.random.choice(["all", "all", "oldest", "PUBREC only"]))

    def _leaves(self, client: str) -> Leaves:
        self.connected.discard(client)
        code = self.random.choice([None, 0, 0, 4 if self.versions[client] is Version.V5 else 0])
        return Leaves(client, code, NO_PROPERTIES)


def history(seed: int) -> tuple[dict[str, Version], list[Step]]:
    """The version of each client, and all steps."""
    random = Random(seed)
    names = [f"c{number}" for number in range(random.randint(2, 6))]
    versions = {name: random.choice([Version.V311, Version.V5, Version.V5]) for name in names}
    return versions, list(_Writer(random, versions, identifiers=seed % 2 == 0, shares=seed % 3 == 0).steps())
