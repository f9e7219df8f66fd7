"""Load scenarios: the number of clients, their messages and rates, and the receivers.

A Scenario is a value; SCENARIOS names the usual ones, whose fields options can change. Topics are
PREFIX/PUBLISHER/TOPIC, 20 bytes with the default prefix. Never touches a socket.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from edge.load.errors import LoadError
from edge.mqtt import ProtocolError, Version
from edge.mqtt.topic_filters import check_filter, check_name
from ringbuf.native import lib

STAMP_BYTES = int(lib.LD_STAMP_BYTES)
CLIENTS_MAX = 1_000_000
STREAMS_MAX = 100_000_000  # (subscriber, topic) pairs with a stored sequence number, if all are used

Pairing = Literal["nobody", "everybody", "pairs", "shared"]


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The broker: an address and a port, or `path`, a Unix socket ("@name": an abstract one)."""

    host: str = "127.0.0.1"
    port: int = 1883
    path: str = ""
    version: Version = Version.V311
    username: str | None = None
    password: bytes | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.path or f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One measurement. Per publisher: `topics`, `window`, `outstanding`, `messages`.

    `pairing`: every subscriber gets all messages, or those of one publisher, or its share. `qos` is a pattern
    that repeats message by message. `rate` is of all publishers together; 0: as fast as possible.
    """

    name: str
    about: str = ""
    publishers: int = 1
    subscribers: int = 0
    pairing: Pairing = "everybody"
    qos: tuple[int, ...] = (0,)
    subscribe_qos: int | None = None  # None: the highest of `qos`
    topic_filter: str = ""  # filter of the subscribers instead of the publishers' topics
    filters_at_once: int = 0  # subscribe to each topic by its name, by packets of so many; 0: one filter
    payload_bytes: int = 64
    topics: int = 1
    random_topics: bool = False
    window: int = 100  # QoS 1 and 2, not yet acknowledged
    outstanding: int = 0  # not yet delivered to all; 0: no limit
    rate: float = 0.0  # messages a second
    messages: int = 0  # of one publisher; 0: until duration_s is over
    duration_s: float = 5.0
    retain: bool = False
    connect_rate: float = 0.0  # connections a second
    connecting: int = 64  # at once between connect() and CONNACK
    hold_s: float = 0.0  # keep all connections idle before they end
    prefix: str = field(default_factory=lambda: f"bench/{random.getrandbits(16):04x}")

    @property
    def granted_qos(self) -> int:
        """QoS that subscribers request."""
        return max(self.qos) if self.subscribe_qos is None else self.subscribe_qos

    def topic_names(self, publisher: int) -> list[str]:
        """Topics of a publisher, numbered from 0."""
        return [f"{self.prefix}/{publisher:05}/t{topic:02}" for topic in range(self.topics)]

    def filter_of(self, subscriber: int, run: int) -> str:
        """Filter of a subscriber, numbered from 0."""
        topic_filter_text = self.topic_filter or f"{self.prefix}/#"
        if not self.topic_filter and self.pairing == "pairs":
            topic_filter_text = f"{self.prefix}/{subscriber:05}/" + ("t00" if self.topics == 1 else "#")
        elif not self.topic_filter and self.publishers == self.topics == 1:
            topic_filter_text = self.topic_names(0)[0]
        return f"$share/bench-{run:x}/{topic_filter_text}" if self.pairing == "shared" else topic_filter_text

    def filters_of(self, subscriber: int, run: int) -> list[list[str]]:
        """Filters of a subscriber, numbered from 0, by SUBSCRIBE packet."""
        if not self.filters_at_once:
            return [[self.filter_of(subscriber, run)]]
        names = [name for number in range(self.publishers) for name in self.topic_names(number)]
        return [names[at : at + self.filters_at_once] for at in range(0, len(names), self.filters_at_once)]

    @property
    def fan(self) -> int:
        """Number of subscriber groups that get each message."""
        if self.topic_filter:
            return 0  # its matches are unknown
        return {"nobody": 0, "everybody": self.subscribers}.get(self.pairing, min(self.subscribers, 1))

    def check(self, version: Version) -> None:
        """Check the scenario. Raises LoadError if it cannot be measured."""
        limits = {
            "publishers": (0, CLIENTS_MAX), "subscribers": (0, CLIENTS_MAX), "topics": (1, 10_000_000),
            "payload_bytes": (0, (1 << 28) - 70_000), "window": (1, 65535), "connecting": (1, CLIENTS_MAX),
            "filters_at_once": (0, 10_000), "outstanding": (0, 10_000_000), "rate": (0, 1e9),
            "connect_rate": (0, 1e7),
            "duration_s": (0, 86_400 * 365), "hold_s": (0, 86_400 * 365), "messages": (0, 1 << 40),
        }  # fmt: skip
        for name, (least, maximum) in limits.items():
            value = getattr(self, name)
            if not least <= value <= maximum:
                raise LoadError(f"{name} {value:g} is not in {least:,} .. {maximum:,}")
        if not self.publishers + self.subscribers:
            raise LoadError("there is no client", hint="give --connections or --subscribers")
        if self.pairing == "pairs" and self.subscribers != self.publishers:
            text = f"{self.subscribers} subscribers for {self.publishers} publishers"
            raise LoadError(f"{text} are not pairs", hint="give both the same number")
        if self.outstanding and self.payload_bytes < STAMP_BYTES:
            text = f"payloads of {self.payload_bytes} bytes cannot say whose they are"
            raise LoadError(f"{text}, as outstanding needs", hint=f"--size {STAMP_BYTES} or more")
        if self.fan and self.publishers * self.topics * self.subscribers > STREAMS_MAX:
            raise LoadError(
                f"{self.publishers} publishers x {self.topics} topics x {self.subscribers} subscribers "
                f"exceed {STREAMS_MAX:,} streams to keep count of"
            )
        try:
            check_name(self.topic_names(0)[0], version)
            check_filter(self.filter_of(0, 1), Version.V5 if self.pairing == "shared" else version)
        except ProtocolError as error:
            raise LoadError(f"topic or filter: {error.detail}", hint="see --prefix and --filter") from error


def qos_pattern(text: str) -> tuple[int, ...]:
    """Parse `1` -> (1,); `0:90,1:10` -> nine of QoS 0 for one of QoS 1, evenly mixed. Raises LoadError."""
    parts = [part.partition(":") for part in text.split(",")]
    try:
        shares = {int(qos): int(share or 1) for qos, _, share in parts}
    except ValueError:
        shares = {-1: 0}
    total = sum(shares.values())
    if len(shares) != len(parts) or not set(shares) <= {0, 1, 2} or min(shares.values()) < 1:
        raise LoadError(f"invalid QoS {text!r}", hint="write 0, 1, 2, or a mix such as 0:90,1:9,2:1")
    if total > lib.LD_PATTERN_MAX:
        raise LoadError(
            f"the shares of {text!r} are {total} together, more than {lib.LD_PATTERN_MAX}",
            hint="write them as per cent",
        )
    return _evenly(shares) if len(shares) > 1 else tuple(shares)


def _evenly(shares: dict[int, int]) -> tuple[int, ...]:
    """Mix the values so that equal ones are as far apart as possible."""
    places = [((turn + 0.5) / share, qos) for qos, share in shares.items() for turn in range(share)]
    return tuple(qos for _, qos in sorted(places))


def _named(scenarios: Sequence[Scenario]) -> dict[str, Scenario]:
    return {scenario.name: scenario for scenario in scenarios}


SCENARIOS = _named(
    [
        Scenario("publish", "publishers, as fast as the broker takes it", pairing="nobody"),
        Scenario("subscribe", "subscribers to topics of other clients", publishers=0, subscribers=1),
        Scenario("pair", "one to one, as fast as it is delivered", subscribers=1, outstanding=20_000),
        Scenario("fanout", "one to many, as fast as it is delivered", subscribers=100, outstanding=2_000),
        Scenario(
            "devices",
            "many with one QoS 1 message in flight each, and one who gets all",
            publishers=200,
            subscribers=1,
            qos=(1,),
            subscribe_qos=0,
            window=1,
        ),
        Scenario(
            "shared",
            "one to a shared subscription",
            subscribers=4,
            pairing="shared",
            qos=(1,),
            outstanding=5_000,
        ),
        Scenario("connect", "a storm of connections, held idle", publishers=1_000, pairing="nobody"),
        Scenario("latency", "one way, at a steady rate", subscribers=1, rate=1_000.0),
    ]
)

TOUR = (
    ("publish, QoS 0", SCENARIOS["publish"]),
    ("publish, QoS 1, 100 in flight", dataclasses.replace(SCENARIOS["publish"], qos=(1,))),
    ("publish, QoS 2, 100 in flight", dataclasses.replace(SCENARIOS["publish"], qos=(2,))),
    ("200 devices, one in flight", SCENARIOS["devices"]),
    ("1 to 1", SCENARIOS["pair"]),
    ("1 to 100", SCENARIOS["fanout"]),
    ("latency at 1,000/s", SCENARIOS["latency"]),
    ("1,000 connections", SCENARIOS["connect"]),
)
