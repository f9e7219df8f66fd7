"""No way from one tenant to another: random attempts, and an oracle that knows nothing of full names.

Clients of the tenants a and b, and clients without a tenant, publish, subscribe, connect and answer requests
by names that are chosen to reach others, while reloads remove tenants, add them again, and change their order
and limits. The oracle keeps a model of each of the three, with visible names
only, and compares each message that a client gets, and each session, with it. A message too many is a way
across, or a duplicate; a message too few is one that a name space has lost.
"""

import os
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from edge.auth.interfaces import ListenerPolicy
from edge.auth.tenants import Tenants
from edge.broker.delayed_topics import delayed_target
from edge.config.quota import TenantQuota
from edge.config.tenant import Tenant
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Packet,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Version,
    Will,
    split_share,
)
from edge.mqtt.topic_filters import matches
from ringbuf import Reader
from tests.support.mqtt_bench import Bench, Wire
from tests.support.tenant_bench import change_to

ATTEMPTS = int(os.environ.get("BRIM_TENANT_ATTEMPTS", "10000"))
DELAY_MAX_S = 60
OWNERS = ("a", "b", "")  # tenants; "": clients without one
PREFIXES = (
    "", "$tenant/a/", "$tenant/b/", "$tenant/", "tenant/a/", "a/", "/", "$delayed/1/", "$SYS/", "$share/g/",
    "$delayed/1/$tenant/b/", "$delayed/9/$tenant/a/", "$delayed/1/$delayed/1/", "$tenant/a/$tenant/b/",
)  # fmt: skip
RESTS = ("x", "x/y", "y", "a/x", "x/$tenant", "$tenant", "/", "")
WILD = ("#", "+", "+/#", "x/#", "x/+", "+/+", "+/x", "+/+/x", "+/+/#", "a/#", "+/a/#", "/#")
GROUPS = ("", "", "", "$share/g/", "$share/h/", "$share/$tenant/", "$share/a/")
CLIENTS = ("one", "two", "a/one", "a", "tenant/a/one", "$tenant/a/one")


def is_visible(name: str) -> bool:
    """A topic that clients may use."""
    return name != "" and name[0] != "$"


def target_of(name: str) -> str | None:
    """The topic to which a message of a client goes in the end; None: nowhere."""
    if name.startswith("$delayed/"):
        seconds, _, name = name.removeprefix("$delayed/").partition("/")
        if not seconds.isdigit() or int(seconds) > DELAY_MAX_S:
            return None
    return name if is_visible(name) else None


@dataclass
class Peer:
    """A connected client and what it should have."""

    wire: Wire
    owner: str
    client_id: str
    filters: dict[str, int] = field(default_factory=dict)
    will: Will | None = None
    kept: bool = False
    aliases: dict[int, str] = field(default_factory=dict)  # of messages to it
    due: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    learned: list[str] = field(default_factory=list)  # response topics of messages to it


class World:
    """The broker, and for each owner what it should be by itself."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.reader: Reader = bench.partition.ring.reader(start="latest")
        self.peers: list[Peer] = []
        self.away: dict[tuple[str, str], Peer] = {}
        self.retained: dict[str, dict[str, bytes]] = {owner: {} for owner in OWNERS}
        self.configured = {"a", "b"}
        self.number = 0
        self.got = 0

    # ---- what should happen ----

    def delivered(self, owner: str, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """A message goes to `topic` of an owner."""
        if retain and payload:
            self.retained[owner][topic] = payload
        elif retain:
            self.retained[owner].pop(topic, None)
        for peer in self.peers:
            if peer.owner == owner and any(matches(one, topic) for one in peer.filters if not _is_group(one)):
                peer.due[topic, payload] += 1

    def groups_of(self, owner: str, topic: str) -> int:
        """Copies that groups of an owner get at most."""
        filters = {
            one for peer in self.peers if peer.owner == owner for one in peer.filters if _is_group(one)
        }
        return sum(matches(split_share(one)[1], topic) for one in filters)

    # ---- what happens ----

    def settle(self) -> None:
        """Publish what was delayed, and compare everything that clients got with what they should have."""
        while (record := self.reader.poll()) is not None:
            target = delayed_target(record.key.decode(), DELAY_MAX_S)
            if target is not None:
                flags, payload = record.flags, record.bytes()
                self.bench.broker.own_messages.offer(target[1], payload, flags & 7, b"")
        self.bench.settle()
        extra: dict[str, Counter[tuple[str, bytes]]] = {owner: Counter() for owner in OWNERS}
        for peer in list(self.peers):
            assert peer.wire.is_open, f"{peer.owner!r} {peer.client_id!r} lost its connection"
            found = Counter(self.messages(peer, peer.wire.received()))
            missing, more = peer.due - found, found - peer.due
            assert not missing, f"{peer.owner!r} {peer.client_id!r} did not get {missing}"
            extra[peer.owner] += more
            peer.due.clear()
        for owner, more in extra.items():
            for (topic, payload), count in more.items():
                assert self.belongs(owner, topic, payload), f"{owner!r} got {topic} {payload!r}"
                assert count <= self.groups_of(owner, topic), f"{owner!r} got {count} times {topic}"

    def belongs(self, owner: str, topic: str, payload: bytes) -> bool:
        """True if the payload was published by a client of `owner`, to this topic."""
        return payload == b"" or payload.startswith(f"{owner}|{target_of(topic)}|".encode())

    def messages(self, peer: Peer, packets: Iterable[Packet]) -> list[tuple[str, bytes]]:
        """The messages in packets that a client has got."""
        found = []
        for packet in packets:
            if not isinstance(packet, Publish):
                continue
            alias = packet.properties.topic_alias
            if alias and packet.topic:
                peer.aliases[alias] = packet.topic
            if packet.properties.response_topic:
                peer.learned.append(packet.properties.response_topic)
            if packet.qos:
                peer.wire.send(PubAck(packet.packet_id))
            self.got += 1
            found.append((packet.topic or peer.aliases[alias or 0], bytes(packet.payload)))
        return found

    # ---- attempts ----

    def name(self) -> str:
        while not (name := self.random.choice(PREFIXES) + self.random.choice(RESTS)):
            pass
        return name

    def topic_filter(self) -> str:
        rest = self.random.choice(WILD) if self.random.random() < 0.6 else self.random.choice(RESTS) or "z"
        prefix = self.random.choice(PREFIXES) if self.random.random() < 0.6 else ""
        return self.random.choice(GROUPS) + prefix + rest

    def connect(self) -> None:
        owner, client_id = self.random.choice(OWNERS), self.random.choice(CLIENTS)
        known = next((one for one in self.peers if (one.owner, one.client_id) == (owner, client_id)), None)
        clean, version = self.random.random() < 0.5, self.random.choice((Version.V311, Version.V5))
        wants = Properties()
        if version == Version.V5:
            wants = Properties(session_expiry_interval_s=60, topic_alias_maximum=3)
        payload, topic = b"", self.name()
        will = None
        if self.random.random() < 0.4:
            self.number += 1
            payload = f"{owner}|{topic}|{self.number}".encode()
            will = Will(topic, payload, 0, retain=self.random.random() < 0.3)
        if known is not None:
            self.end(known, taken_over=True)
        wire = self.bench.wire(version, OWNERS.index(owner))
        wire.send(Connect(client_id, clean_start=clean, will=will, version=version, properties=wants))
        answer, *rest = wire.received()
        assert isinstance(answer, ConnAck)
        if client_id.startswith("$tenant/"):
            assert answer.reason_code == ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            return
        if owner and owner not in self.configured:
            assert answer.reason_code == ReasonCode.NOT_AUTHORIZED
            return
        if will is not None and not is_visible(will.topic):
            assert answer.reason_code == ReasonCode.NOT_AUTHORIZED
            if known is not None:  # an earlier connection stays
                self.peers.append(known)
            return
        assert answer.reason_code == ReasonCode.SUCCESS, answer
        peer = Peer(wire, owner, client_id, will=will, kept=not clean or version == Version.V5)
        before = self.away.pop((owner, client_id), None)
        if known is not None:
            self.published_will(known)
            before = known if known.kept else None
        assert answer.session_present == (before is not None and not clean), (owner, client_id)
        if before is not None and not clean:
            peer.filters = before.filters
        self.peers.append(peer)
        waited = self.messages(peer, rest)
        assert all(self.belongs(owner, *pair) for pair in waited), (owner, client_id, waited)

    def reload(self) -> None:
        """Remove a tenant, which ends its clients, or add one; change the order and the limits of all."""
        names = self.configured ^ {self.random.choice("ab")}
        tenants = [
            Tenant(name, quota=TenantQuota(retained_max=self.random.randrange(1_000, 2_000)))
            for name in (*sorted(names), f"extra-{self.random.randrange(3)}")
        ]
        self.random.shuffle(tenants)
        change_to(self.bench, *tenants)
        self.configured = names
        for peer in [peer for peer in self.peers if peer.owner and peer.owner not in names]:
            assert not peer.wire.is_open
            self.end(peer)

    def end(self, peer: Peer, *, taken_over: bool = False) -> None:
        self.peers.remove(peer)
        if not taken_over:
            if peer.wire.is_open:
                peer.wire.drop()
            if peer.kept:
                self.away[peer.owner, peer.client_id] = peer
            self.published_will(peer)

    def published_will(self, peer: Peer) -> None:
        if peer.will is not None:
            self.delivered(peer.owner, peer.will.topic, bytes(peer.will.payload), retain=peer.will.retain)

    def publish(self, peer: Peer) -> None:
        version = peer.wire.version
        learned = peer.learned and self.random.random() < 0.3
        name = self.random.choice(peer.learned) if learned else self.name()
        if "+" in name or "#" in name:
            return
        target, self.number = target_of(name), self.number + 1
        retain, qos = self.random.random() < 0.3, self.random.choice((0, 1))
        payload = f"{peer.owner}|{target}|{self.number}".encode()
        if retain and self.random.random() < 0.2:
            payload = b""
        properties = Properties()
        if version == Version.V5:
            response = self.name() if self.random.random() < 0.3 else None
            alias = self.random.randrange(1, 4) if self.random.random() < 0.5 else None
            properties = Properties(response_topic=response, topic_alias=alias)
        peer.wire.send(Publish(name, payload, qos, retain, packet_id=qos, properties=properties))
        self.published(peer.owner, name, payload, retain=retain)
        if properties.topic_alias:  # again, by its alias only
            self.settle()
            payload = f"{peer.owner}|{target}|again {self.number}".encode()
            peer.wire.send(Publish("", payload, properties=Properties(topic_alias=properties.topic_alias)))
            self.published(peer.owner, name, payload)

    def published(self, owner: str, name: str, payload: bytes, *, retain: bool = False) -> None:
        """A client has published to `name`, if it may."""
        target = target_of(name)
        if target is None:
            return
        if target != name and not owner:  # without tenants, filters see delayed messages at once, too
            self.delivered(owner, name, payload)
        self.delivered(owner, target, payload, retain=retain)

    def subscribe(self, peer: Peer) -> None:
        made = [self.topic_filter() for _ in range(self.random.randrange(1, 4))]
        filters = {one: self.random.choice((0, 1)) for one in made if _is_valid(one)}
        if not filters:
            return
        peer.due.clear()
        peer.wire.send(Subscribe(9, tuple(Subscription(one, qos) for one, qos in filters.items())))
        packets = peer.wire.received()
        (answer,) = (packet for packet in packets if isinstance(packet, SubAck))
        found: Counter[tuple[str, bytes]] = Counter(self.messages(peer, packets))
        for topic_filter, code in zip(filters, answer.reason_codes, strict=True):
            allowed = _may_subscribe(peer.owner, topic_filter)
            assert code.failed != allowed, (peer.owner, topic_filter, code)
            if allowed:
                peer.filters[topic_filter] = filters[topic_filter]
                if not _is_group(topic_filter):
                    retained = self.retained[peer.owner].items()
                    peer.due.update(pair for pair in retained if matches(topic_filter, pair[0]))
        more = found - peer.due  # what has waited for a group whose members were away
        assert not peer.due - found, (peer.owner, list(filters), peer.due - found)
        assert not more or any(map(_is_group, filters)), (peer.owner, filters, more)
        assert all(self.belongs(peer.owner, *pair) for pair in more), (peer.owner, filters, more)
        peer.due.clear()

    def unsubscribe(self, peer: Peer) -> None:
        known = peer.filters and self.random.random() < 0.6
        asked = self.random.choice(list(peer.filters)) if known else self.topic_filter()
        if not _is_valid(asked):
            return
        peer.wire.send(Unsubscribe(8, (asked,)))
        if peer.wire.version == Version.V5:
            (answer,) = (packet for packet in peer.wire.received() if isinstance(packet, UnsubAck))
            assert (answer.reason_codes[0] == ReasonCode.SUCCESS) == (asked in peer.filters), asked
        peer.filters.pop(asked, None)

    def attempt(self) -> None:
        choice = self.random.random()
        if len(self.peers) < 4 or choice < 0.1:
            self.connect()
        elif choice < 0.14:
            self.end(self.random.choice(self.peers))
        elif choice < (0.145 if len(self.configured) == 2 else 0.24):  # a removed tenant comes back soon
            self.reload()
        elif choice < 0.3:
            self.subscribe(self.random.choice(self.peers))
        elif choice < 0.36:
            self.unsubscribe(self.random.choice(self.peers))
        else:
            self.publish(self.random.choice(self.peers))
        self.settle()


def _is_group(topic_filter: str) -> bool:
    return topic_filter.startswith("$share/")


def _is_valid(topic_filter: str) -> bool:
    """A filter without an error of the protocol, in every version."""
    group, rest = split_share(topic_filter)
    return rest != "" and (group is None or group != "") and "//#" not in rest


def _may_subscribe(owner: str, topic_filter: str) -> bool:
    inner = split_share(topic_filter)[1]
    if owner:
        return inner[0] != "$"
    return inner.split("/")[0] != "$tenant"


def world_of(bench: Bench, seed: int) -> World:
    for number, owner in enumerate(OWNERS):
        bench.broker.policies[number] = ListenerPolicy(allow_anonymous=True, tenant=owner)
    bench.broker.router.delay_max_s = DELAY_MAX_S
    return World(bench, seed)


@pytest.mark.parametrize("seed", [1, 2])
def test_no_way_across_is_found_by_random_attempts(seed: int) -> None:
    limits = EngineLimits(topics_max=100_000)
    with Bench(engine=limits, tenants=Tenants([Tenant("a"), Tenant("b")])) as bench:
        world = world_of(bench, seed)
        for _ in range(ATTEMPTS // 2):
            world.attempt()
        assert world.got > ATTEMPTS // 4  # most attempts reached somebody of the same name space
        world.reader.close()
