"""Options of a connection, each with its default and reason; and URLs."""

from __future__ import annotations

import math
import random
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypedDict
from urllib.parse import unquote, urlsplit

from msgspec.structs import replace

from edge.client.errors import InvalidOption
from edge.mqtt import Connect, Properties, Version, Will, payload_bytes

DEFAULT_URL = "mqtt://127.0.0.1:1883"
NEVER_S = 0xFFFFFFFF  # a Session Expiry Interval without end
PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconnect:
    """Delays between reconnects: random times up to a growing limit.

    Random from 0, so that a thousand clients of a restarted broker do not all connect at once.
    """

    first_s: float = 0.5  # limit of the first delay; doubled by each failure
    max_s: float = 30.0  # upper bound of the limit
    attempts: int | None = None  # in a row; None: no bound
    at_start: bool = False  # True if the first connect is repeated too

    def delays(self) -> Iterator[float]:
        """Seconds to wait before each attempt in a row."""
        limit, left = self.first_s, self.attempts
        while left is None or left > 0:
            yield random.uniform(0.0, min(limit, self.max_s))
            limit = min(2 * limit, self.max_s)
            left = None if left is None else left - 1


@dataclass(frozen=True, slots=True)
class Address:
    """Address of the broker: a host and port, or the path of a Unix socket."""

    host: str
    port: int
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return self.path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything about a client except its address. Passed to edge.client.connect() as keywords."""

    client_id: str = ""  # "": a random one, of the characters that every broker must accept
    clean_start: bool = True  # False: the broker keeps the session of this client_id, and resumes it
    keep_alive_s: int = 60  # 0: off
    username: str | None = None
    password: str | bytes | None = None
    will: Will | None = None
    version: Version | int = Version.V311  # or its number: 3 (MQTT 3.1), 4 (3.1.1), 5
    # MQTT 5: seconds that the broker keeps the session after the connection ends; NEVER_S: no limit. None: no
    # limit with clean_start=False, as in MQTT 3.1.1, otherwise 0. The broker may keep it for less.
    session_expiry_s: int | None = None
    properties: Properties | None = None  # of CONNECT, MQTT 5; fields that are None are filled in from here
    tls: ssl.SSLContext | None = None  # None with mqtts://: the system's certificate authorities
    connect_timeout_s: float = 10.0  # for everything: name, TCP, TLS, CONNACK
    # QoS 1 and 2 messages sent and not yet acknowledged, at most; in MQTT 5 also at most the broker's limit.
    # Other brokers have a limit too, 20 by default in mosquitto, whose version 2.0.11 acknowledges QoS 2
    # messages above it and loses them (observed). At QoS 1 more is safe, and faster over long lines.
    window: int = 20
    receive_maximum: int = 4096  # the same for received messages
    queue_limit: int = 10_000  # messages waiting in one subscription
    queue_limit_bytes: int = 64 << 20
    max_packet_bytes: int = 16 << 20  # received; large enough for a camera's picture
    reconnect: Reconnect | None = None

    def __post_init__(self) -> None:
        """Check the options before there is a connection."""
        if self.version not in list(Version):
            hint = "3 is MQTT 3.1, 4 is MQTT 3.1.1, 5 is MQTT 5"
            raise InvalidOption(f"invalid version {self.version!r} (allowed: 3, 4, 5)", hint=hint)
        if self.will is not None:
            payload_bytes(self.will.payload)  # raises TypeError here, and not inside `async with`
        expiry_s = self.session_expiry_s
        if expiry_s is not None and not 0 <= expiry_s <= NEVER_S:
            raise InvalidOption(f"session_expiry_s {expiry_s} is not in 0..{NEVER_S}")
        if expiry_s is not None and self.version != Version.V5:
            hint = "add version=5, or use clean_start"
            raise InvalidOption("session_expiry_s needs MQTT 5", hint=hint)
        for name, low, high in (
            ("connect_timeout_s", 0, math.inf),
            ("keep_alive_s", 0, 65_535),
            ("window", 1, 65_535),
            ("receive_maximum", 1, 65_535),
            ("queue_limit", 1, 1 << 30),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise InvalidOption(f"{name} {value} is not in {low}..{high}")

    def connect_packet(self, client_id: str) -> Connect:
        """CONNECT packet of these options."""
        return Connect(
            client_id=client_id,
            clean_start=self.clean_start,
            keep_alive_s=self.keep_alive_s,
            username=self.username,
            password=self.password.encode() if isinstance(self.password, str) else self.password,
            will=self.will and replace(self.will, payload=payload_bytes(self.will.payload)),
            version=Version(self.version),
            properties=self._connect_properties(),
        )

    def _connect_properties(self) -> Properties:
        """`properties`, with the fields that the user left out."""
        properties = self.properties or Properties()
        if self.version != Version.V5:
            return properties
        expiry_s = self.session_expiry_s
        if expiry_s is None and not self.clean_start:
            expiry_s = NEVER_S  # without an interval the session would end with the connection
        return replace(
            properties,
            session_expiry_interval_s=_given(properties.session_expiry_interval_s, expiry_s or None),
            receive_maximum=_given(properties.receive_maximum, self.receive_maximum),
            maximum_packet_size_bytes=_given(properties.maximum_packet_size_bytes, self.max_packet_bytes),
        )


def _given(value: int | None, otherwise: int | None) -> int | None:
    return otherwise if value is None else value


class OptionFields(TypedDict, total=False):
    """The fields of Options, as keywords of connect()."""

    client_id: str
    clean_start: bool
    keep_alive_s: int
    username: str | None
    password: str | bytes | None
    will: Will | None
    version: Version | int
    session_expiry_s: int | None
    properties: Properties | None
    tls: ssl.SSLContext | None
    connect_timeout_s: float
    window: int
    receive_maximum: int
    queue_limit: int
    queue_limit_bytes: int
    max_packet_bytes: int
    reconnect: Reconnect | None


def random_client_id() -> str:
    """Random client identifier of 20 letters and digits; every broker accepts up to 23 [MQTT-3.1.3-5]."""
    return f"brim{secrets.token_hex(8)}"


@dataclass(frozen=True, slots=True)
class Target:
    """Content of a URL."""

    address: Address
    tls: bool
    username: str | None
    password: str | None


def parse_url(url: str) -> Target:
    """Parse mqtt://[user[:password]@]host[:port], mqtts:// for TLS, unix:///path. Raises InvalidOption."""
    usual = "write it like mqtt://127.0.0.1:1883, mqtts://broker.example or unix:///run/brim/mqtt.sock"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidOption(f"{url!a} is not an address: {error}", hint=usual) from None
    if parts.scheme == "unix" and parts.path and not parts.netloc:
        return Target(Address("", 0, unquote(parts.path)), False, None, None)
    if parts.scheme not in PORTS or not parts.hostname or parts.path.strip("/") or parts.query:
        raise InvalidOption(f"{url!a} is not the address of an MQTT broker", hint=usual)
    return Target(
        Address(parts.hostname, port if port is not None else PORTS[parts.scheme]),
        parts.scheme == "mqtts",
        unquote(parts.username) if parts.username is not None else None,
        unquote(parts.password) if parts.password is not None else None,
    )
