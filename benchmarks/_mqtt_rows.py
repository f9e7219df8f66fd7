"""Rows of the MQTT benchmark: a name, a meaning, a unit, and the function that measures one broker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from benchmarks import _mqtt_first as first
from benchmarks import _mqtt_storms as storms
from benchmarks import _mqtt_tls as tls
from benchmarks._mqtt_process import Broker
from benchmarks._mqtt_tests import LATENCIES, RATES, Figure, latency, rate, scenario
from edge.load import Scenario, calibrate

HANDSHAKES_SHARE = 100  # one handshake for so many topics of the other rows
CPU_RATE = 20_000.0
CPU_LOAD = scenario(publishers=100, pairing="nobody", rate=CPU_RATE)


@dataclass(frozen=True)
class Size:
    """Seconds of a row by time, and number of topics or filters of a row by number."""

    duration_s: float = 1.0
    count: int = 100_000


QUICK = Size(0.3, 10_000)


@dataclass(frozen=True)
class Row:
    """One row. `fresh`: it needs a broker that was just started. `absolute`: its figure is no ratio."""

    about: str
    measure: Callable[[Broker, Size], Figure]
    unit: str = "k/s"
    fresh: bool = False
    listeners: frozenset[str] = frozenset()  # that it needs, of "tls" and "ws"; then it is fresh
    absolute: bool = False
    load: Scenario | None = None  # of the generator against a sink
    rank: float = 0.0  # percentile of its latency
    too_slow: frozenset[str] = field(default=frozenset())  # brokers that it takes minutes

    @property
    def less_is_better(self) -> bool:
        """True for times, processor time and memory."""
        return self.unit != "k/s"

    def text(self, value: float) -> str:
        """A figure with its unit."""
        shown = value / 1000 if self.unit in {"k/s", "us"} else value
        return f"{shown:,.{0 if shown >= 100 else 1 if shown >= 10 else 2}f} {self.unit}"

    def limit(self) -> float | None:
        """Figure of the generator against a sink."""
        if self.load is None:
            return None
        result = calibrate(self.load)
        return float(result.latency.percentile(self.rank)) if self.rank else result.rate


def _rate(name: str, about: str) -> Row:
    of = RATES[name]
    return Row(about, lambda broker, size: rate(broker, of, size.duration_s), load=of)


def _latency(name: str, about: str) -> Row:
    of, rank = LATENCIES[name]
    slow = frozenset({"amqtt"} if of.rate > 1_000 else ())  # 50 us of processor time per message
    measured = partial(latency, of=of, rank=rank)
    return Row(
        about,
        lambda broker, size: measured(broker, duration_s=size.duration_s),
        "us",
        load=of,
        rank=rank,
        too_slow=slow,
    )


def _first(
    about: str, measure: Callable[[Broker, int], Figure], load: Scenario | None, *too_slow: str
) -> Row:
    return Row(
        about,
        lambda broker, size: measure(broker, size.count),
        fresh=True,
        load=load,
        too_slow=frozenset(too_slow),
    )


def _front(about: str, measure: Callable[[Broker, float], Figure], listener: str, unit: str = "k/s") -> Row:
    return Row(
        about,
        lambda broker, size: measure(broker, size.duration_s * 2),
        unit,
        fresh=True,
        listeners=frozenset({listener}),
    )


def _storm(about: str, measure: Callable[[Broker, int], Figure], share: int = 1, listener: str = "") -> Row:
    return Row(
        f"p99 of one pair at 1 k/s while {about}",
        lambda broker, size: measure(broker, size.count // share),
        "ms",
        fresh=True,
        listeners=frozenset({listener} if listener else ()),
        absolute=True,
        too_slow=frozenset({"nats"}),
    )


def _cpu(broker: Broker, size: Size) -> Figure:
    measured = rate(broker, CPU_LOAD, size.duration_s * 2)
    return Figure(measured.cpu_us, measured.cpu_us, measured.remarks)


ROWS: dict[str, Row] = {
    "ingest_q0_1": _rate("ingest_q0_1", "1 publisher, QoS 0, no subscriber"),
    "ingest_q0_50": _rate("ingest_q0_50", "50 publishers, QoS 0, no subscriber"),
    "ingest_q1_window100": _rate("ingest_q1_window100", "1 publisher, QoS 1, 100 in flight"),
    "ingest_q1_100x1": _rate("ingest_q1_100x1", "100 publishers, QoS 1, 1 in flight each"),
    "devices_200x1_sub1": _rate("devices_200x1_sub1", "200 of those, and one subscriber to all"),
    "deliver_1_1": _rate("deliver_1_1", "1 publisher, 1 subscriber, QoS 0, as fast as all is delivered"),
    "fanout_10": _rate("fanout_10", "1 publisher, 10 subscribers: deliveries"),
    "fanout_100": _rate("fanout_100", "1 publisher, 100 subscribers: deliveries"),
    "latency_p50_1k": _latency("latency_p50_1k", "one way at 1 k/s, from when a message was due"),
    "latency_p99_20k": _latency("latency_p99_20k", "at 20 k/s of 100 publishers to one subscriber"),
    "p999_1k": _latency("p999_1k", "p99.9 of latency_p50_1k"),
    "p999_20k": _latency("p999_20k", "p99.9 of latency_p99_20k"),
    "connects_per_cpu_s": Row(
        "connections made and ended in a second of the broker's processor",
        lambda broker, _: first.connects_per_cpu_s(broker),
    ),
    "cpu_20k": Row(
        "processor time per message at 20 k/s, QoS 0, 100 publishers, no subscriber", _cpu, "us cpu"
    ),
    "new_topics": _first(
        "100,000 topics never seen, QoS 0", first.new_topics, first.sized(first.NEW_TOPICS, 10_000)
    ),
    "retained_store": _first(
        "100,000 retained messages stored", first.retained_store, first.sized(first.RETAINED, 10_000), "nats"
    ),
    "subscribe_exact": _first(
        "100,000 exact filters of one client, 100 in a packet, all packets at once",
        first.subscribe_exact,
        None,
        "nats",
    ),
    "first_delivery": _first(
        "first publish to each of these 100,000 topics, and its delivery",
        first.first_delivery,
        first.sized(first.EXACT, 10_000),
        "nats",
        "amqtt",
    ),
    "connects": _first("5,000 connections made, 50 pending", first.connects, first.CONNECTS),
    "tls_p50": _front(
        "1 publisher, 1 subscriber, 1 k/s by TLS: from the sending of a message to its delivery",
        tls.tls_p50,
        "tls",
        "us",
    ),
    "tls_cpu": _front("processor time per message of that load", tls.tls_cpu, "tls", "us cpu"),
    "tls_handshakes": Row(
        "TLS handshakes with CONNECT, 16 pending, ECDSA P-256, no session resumed",
        lambda broker, size: tls.tls_handshakes(broker, size.count // HANDSHAKES_SHARE),
        fresh=True,
        listeners=frozenset({"tls"}),
    ),
    "tls_handshakes_per_cpu_s": Row(
        "those in a second of the broker's processor",
        lambda broker, size: tls.tls_handshakes_per_cpu_s(broker, size.count // HANDSHAKES_SHARE),
        fresh=True,
        listeners=frozenset({"tls"}),
    ),
    "tls_ingest": _front("1 publisher by TLS, QoS 0, no subscriber", tls.tls_ingest, "tls"),
    "ws_ingest": _front(
        "1 publisher by WebSocket, QoS 0, no subscriber, a frame for each", tls.ws_ingest, "ws"
    ),
    "storm_topics_p99": _storm("another client publishes to 100,000 new topics", storms.topics),
    "storm_filters_p99": _storm("another client subscribes to 100,000 exact filters", storms.filters),
    "storm_handshakes_p99": _storm(
        "1,000 clients make TLS handshakes", storms.handshakes, HANDSHAKES_SHARE, "tls"
    ),
    "start_ms": Row(
        "milliseconds from exec to the first CONNACK, of Brim; with bytecode, which ./dev build writes",
        lambda broker, _: first.start(broker),
        "ms",
        fresh=True,
        absolute=True,
    ),
    "rss_mb_without_rings": Row(
        "resident MiB after the first client, without shared memory, of Brim",
        lambda broker, _: first.memory(broker),
        "MiB",
        fresh=True,
        absolute=True,
    ),
}
