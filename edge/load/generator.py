"""Load generator: a set of clients, created here and run by C, phase after phase.

    with Generator(target, scenario) as crowd:
        crowd.connect()
        crowd.publish(duration_s)
        crowd.drain(patience_s)

Owns only the C run. A phase is worked on in slices; between them `tick` is called and Ctrl-C is handled. One
thread.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import socket
import time
from array import array
from collections.abc import Callable
from typing import Any, Self

from edge.load.errors import ClientsRefused, LoadError, NothingListens
from edge.load.histogram import Histogram
from edge.load.scenario import LoadTarget, Scenario
from edge.mqtt import Connect, ReasonCode, Subscribe, Subscription, Version, encode
from ringbuf.native import ffi, lib

SLICE_MS = 100
SPIN_US = 50  # active waiting before each scheduled message, if there is a spare core
DESCRIPTORS_BESIDE = 64
SLOW_S = 5.0

Tick = Callable[["Generator"], object]


class Generator:
    """The clients of one scenario. Raises LoadError, NothingListens, if they cannot be created or connect."""

    def __init__(self, target: LoadTarget, scenario: Scenario, tick: Tick | None = None) -> None:
        scenario.check(target.version)
        self.target = target
        self.scenario = scenario
        self.number = random.getrandbits(32)
        self.connect_s = 0.0
        self._begun_ns = 0
        self.cpu_ns = 0  # of this thread, while publishing and draining
        self._tick = tick or (lambda crowd: None)
        _allow_descriptors(scenario.publishers + scenario.subscribers + DESCRIPTORS_BESIDE)
        settings = self._settings()
        host = target.path or _numeric(target.host, target.port)
        self._run = lib.ld_open(settings, host.encode(), target.port)
        if self._run == ffi.NULL:
            raise LoadError(f"the generator cannot be made: {os.strerror(ffi.errno)}")
        try:
            self.publishers = [self._publisher(number) for number in range(scenario.publishers)]
            self.groups = self._subscribers()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect all clients. May be called twice; no other method may be called afterwards."""
        run, self._run = self._run, ffi.NULL
        if run != ffi.NULL:
            lib.ld_close(run)

    # ---- setup ----

    def _settings(self) -> Any:
        scenario = self.scenario
        spins = len(os.sched_getaffinity(0)) > 1
        return ffi.new(
            "ld_settings *",
            {
                "run": self.number,
                "version": int(self.target.version),
                "payload_bytes": scenario.payload_bytes,
                "window": scenario.window,
                "outstanding": scenario.outstanding if scenario.fan else 0,
                "connecting_max": scenario.connecting,
                "spin_us": SPIN_US if spins else 0,
                "retain": scenario.retain,
                "random_topics": scenario.random_topics,
                "latency": scenario.rate > 0,
                "pattern_length": len(scenario.qos),
                "pattern": bytes(scenario.qos),
                "messages_max": scenario.messages or self._messages_of_schedule(),
                "connects_per_s": scenario.connect_rate,
                "messages_per_s": scenario.rate,
            },
        )

    def _messages_of_schedule(self) -> int:
        """Messages of each publisher, which bound a schedule; 0: no bound."""
        if not self.scenario.rate or not self.scenario.publishers:
            return 0
        return max(1, round(self.scenario.rate * self.scenario.duration_s / self.scenario.publishers))

    def _hello(self, kind: str, number: int) -> bytes:
        target = self.target
        client_id = f"bench-{self.number & 0xFFFF:04x}-{kind}{number:06}"
        return encode(
            Connect(
                client_id,
                keep_alive_s=0,
                username=target.username,
                password=target.password,
                version=target.version,
            )
        )

    def _client(self, hello: bytes, group: int, subscribe: bytes, subacks: int) -> int:
        return _checked(
            lib.ld_client_add(self._run, hello, len(hello), group, subscribe, len(subscribe), subacks)
        )

    def _publisher(self, number: int) -> int:
        client = self._client(self._hello("p", number), lib.LD_NO_GROUP, b"", 0)
        names = [name.encode() for name in self.scenario.topic_names(number)]
        lengths = ffi.from_buffer("uint16_t[]", array("H", map(len, names)))
        joined = b"".join(names)
        _checked(lib.ld_topics_add(self._run, client, joined, lengths, len(names), self.scenario.fan))
        return client

    def _subscribers(self) -> list[int]:
        scenario, version = self.scenario, self.target.version
        groups: list[int] = []
        shared = scenario.pairing == "shared"
        for number in range(scenario.subscribers):
            if not groups or not shared:
                groups.append(_checked(lib.ld_group_add(self._run, shared)))
            # Before MQTT 5 a shared filter is an extension with the same bytes.
            packets = [
                _subscribe(place, some, scenario.granted_qos, version)
                for place, some in enumerate(scenario.filters_of(number, self.number), 1)
            ]
            self._client(self._hello("s", number), groups[-1], b"".join(packets), len(packets))
        return groups

    # ---- phases ----

    def connect(self, patience_s: float = 30.0) -> None:
        """Connect and subscribe all clients. Raises NothingListens, LoadError if one cannot."""
        scenario = self.scenario
        clients = scenario.publishers + scenario.subscribers
        if scenario.connect_rate:
            patience_s += clients / scenario.connect_rate
        begun = time.monotonic()
        done = self._work(lib.LD_CONNECTING, patience_s)
        self.connect_s = time.monotonic() - begun
        self._check_connected(clients)
        if not done:
            raise LoadError(
                f"{self.counters.connected} of {clients} clients were connected after {patience_s:.0f} s",
                hint="check that a broker listens there; give fewer connections, or a --connect-rate",
            )

    def _check_connected(self, clients: int) -> None:
        counters = self.counters
        if counters.failed[lib.LD_FAIL_CONNECT]:
            self._raise_unconnected(counters, clients)
        for kind, packet_name in ((lib.LD_FAIL_REFUSED, "CONNECT"), (lib.LD_FAIL_SUBSCRIBE, "SUBSCRIBE")):
            if counters.failed[kind]:
                raise ClientsRefused(
                    f"{self.target} refuses {packet_name} of {counters.failed[kind]} of {clients} clients: "
                    f"{_reason(counters.detail[kind], self.target.version, packet_name)}",
                    hint="see --username, --protocol, and the broker's access rules",
                )
        broken = sum(counters.failed[kind] for kind in (lib.LD_FAIL_CLOSED, lib.LD_FAIL_RESET))
        if broken or counters.failed[lib.LD_FAIL_PROTOCOL]:
            raise LoadError(
                f"{self.target} broke {broken} of {clients} connections while they were made",
                hint="look for its limit on connections, and in its log; or it is no MQTT broker, or not of "
                "this version",
            )

    def _raise_unconnected(self, counters: Any, clients: int) -> None:
        number, count = counters.detail[lib.LD_FAIL_CONNECT], counters.failed[lib.LD_FAIL_CONNECT]
        if number in {errno.ECONNREFUSED, errno.ENOENT} and not counters.connected:
            raise NothingListens(
                f"no broker listens on {self.target}",
                hint="start one: `brim run`; or name another one by --host, --port or --unix",
            )
        hints = {
            errno.EADDRNOTAVAIL: "all local ports towards this address are in use: wait a minute, or see "
            "net.ipv4.ip_local_port_range",
            errno.EMFILE: "raise `ulimit -n`",
        }
        text = f"{count} of {clients} clients cannot connect to {self.target}: {os.strerror(number)}"
        raise LoadError(text, hint=hints.get(number, ""))

    def publish(self, duration_s: float) -> None:
        """Publish until `duration_s` is over, or all publishers have sent all of their messages."""
        if self.scenario.rate:
            duration_s += SLOW_S  # the schedule ends by itself; a slow broker gets additional time
        self._begun_ns = self._begin_ns(lib.LD_PUBLISHING)
        self._poll(time.monotonic() + duration_s)
        self.cpu_ns += self.counters.cpu_ns

    def drain(self, patience_s: float = 5.0) -> bool:
        """Wait for all outstanding packets; True if all came. `patience_s` counts from the last packet."""
        begun_ns = self._begin_ns(lib.LD_DRAINING)
        done = False
        while not done and time.monotonic() < max(self.counters.moved_ns, begun_ns) / 1e9 + patience_s:
            done = self._poll(time.monotonic() + SLICE_MS / 1000)
        self.cpu_ns += self.counters.cpu_ns
        return done

    def idle(self, duration_s: float) -> None:
        """Keep the connections, and count those that break."""
        self._work(lib.LD_IDLE, duration_s)

    def listen(self, duration_s: float) -> None:
        """Count the messages of other publishers."""
        self._begun_ns = self._begin_ns(lib.LD_IDLE)
        self._poll(time.monotonic() + duration_s)
        self.cpu_ns += self.counters.cpu_ns

    @property
    def seconds(self) -> float:
        """Seconds from the first message to the last packet; 0 before."""
        return max(1, self.counters.moved_ns - self._begun_ns) / 1e9 if self._begun_ns else 0.0

    def _begin_ns(self, phase: int) -> int:
        lib.ld_begin(self._run, phase)
        return int(self.counters.begun_ns)

    def _work(self, phase: int, limit_s: float) -> bool:
        self._begin_ns(phase)
        return self._poll(time.monotonic() + limit_s)

    def _poll(self, until: float) -> bool:
        """Work until the phase is done (True), or until `until` (time.monotonic(); False)."""
        while (left_ms := int((until - time.monotonic()) * 1000)) > 0:
            result = lib.ld_poll(self._run, min(SLICE_MS, left_ms))
            if result < 0:
                raise LoadError(f"load generator failed: {os.strerror(-result)}")
            self._tick(self)
            if result:
                return True
        return False

    # ---- results ----

    @property
    def counters(self) -> Any:
        """`ld_counters` of load_api.h: live, and invalid after close()."""
        return lib.ld_counters_of(self._run)

    def sent_by(self, publisher: int, qos: int) -> int:
        """Number of messages of a publisher, numbered from 0."""
        return int(lib.ld_client_sent(self._run, self.publishers[publisher], qos))

    def tally(self, group: int) -> Any:
        """`ld_tally` of load_api.h."""
        return lib.ld_tally_of(self._run, group)

    def histogram(self, which: int) -> Histogram:
        """A copy of one of LD_LATENCY, LD_ACKNOWLEDGED, LD_CONNECTED."""
        counts = ffi.unpack(lib.ld_histogram(self._run, which), lib.LD_BUCKETS + 2)
        return Histogram(counts[:-2], counts[-2], counts[-1])


def _subscribe(packet_id: int, filters: list[str], qos: int, version: Version) -> bytes:
    return encode(
        Subscribe(packet_id, tuple(Subscription(topic_filter, qos) for topic_filter in filters)), version
    )


def _checked(result: int) -> int:
    if result < 0:
        raise LoadError(f"a client cannot be made: {os.strerror(-result)}")
    return int(result)


def _numeric(host: str, port: int) -> str:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NothingListens(f"no host {host!r}: {error.strerror}", hint="check --host") from error
    return str(addresses[0][4][0])


def _reason(code: int, version: Version, packet_name: str) -> str:
    if version == Version.V5:
        known = {code_known.value: code_known.words for code_known in ReasonCode}
        return known.get(code, f"reason code {code:#x}")
    words = {
        1: "unacceptable protocol version",
        2: "identifier rejected",
        3: "server unavailable",
        4: "bad user name or password",
        5: "not authorized",
    }
    return words.get(code, f"code {code:#x}") if packet_name == "CONNECT" else "failure"


def _allow_descriptors(descriptors: int) -> None:
    """Raise the soft limit on open files if necessary."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= descriptors:
        return
    if hard != resource.RLIM_INFINITY and hard < descriptors:
        raise LoadError(
            f"{descriptors} open files are needed, {hard} are allowed",
            hint="raise `ulimit -Hn`, or connect fewer clients",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard))
