"""Tests of every MQTT broker, and of Brim only.

Payloads of 64 bytes, topics of 20. PINGRESP or the last acknowledgement shows when a publish was handled. For
a broker that answers too early, the end of its processor's work shows it.
"""

from __future__ import annotations

import dataclasses
import socket
import statistics
import time
from dataclasses import dataclass

from benchmarks._mqtt_brokers import Broker
from edge.load import Generator, Histogram, LoadTarget, Result, Scenario
from edge.load.result import result_of
from edge.mqtt import Connect, Subscribe, Subscription, encode

PREFIX = "bench/0000"  # for all the same: topics are known after the first round
SLOW_MESSAGES = 20_000  # a second of work for a broker that takes 50 us for each
SLOW_OUTSTANDING = 100
PATIENCE_S = 15.0


def scenario(**fields: object) -> Scenario:
    """A scenario with the common topics."""
    return Scenario("bench", prefix=PREFIX, **fields)  # type: ignore[arg-type]


RATES = {
    "ingest_q0_1": scenario(pairing="nobody"),
    "ingest_q0_50": scenario(pairing="nobody", publishers=50),
    "ingest_q1_window100": scenario(pairing="nobody", qos=(1,)),
    "ingest_q1_100x1": scenario(pairing="nobody", qos=(1,), publishers=100, window=1),
    "devices_200x1_sub1": scenario(qos=(1,), publishers=200, window=1, subscribers=1, subscribe_qos=0),
    "deliver_1_1": scenario(subscribers=1, outstanding=20_000),
    "fanout_10": scenario(subscribers=10, outstanding=5_000),
    "fanout_100": scenario(subscribers=100, outstanding=2_000),
}
LATENCIES = {
    "latency_p50_1k": (scenario(subscribers=1, rate=1_000.0), 50),
    "latency_p99_20k": (scenario(publishers=100, subscribers=1, rate=20_000.0), 99),
}
LATENCY_LONGER = 4  # so that the first message of each publisher is less than one percent
CONNECTS = "connects_per_cpu_s"
TESTS = [*RATES, *LATENCIES, CONNECTS]
TOO_SLOW = {("latency_p99_20k", "amqtt")}  # it needs 50 us of processor time per message


@dataclass(frozen=True)
class Figure:
    """Figure. `value`: messages per second, ns, or connections per second of the broker's processor."""

    value: float
    cpu_us: float  # of the broker, per message
    remarks: tuple[str, ...] = ()


def run(broker: Broker, of: Scenario, duration_s: float) -> tuple[Result, float, float]:
    """The result; seconds and the broker's processor seconds, from the first message to the last."""
    if broker.slow and not of.rate:
        few = SLOW_MESSAGES // max(1, of.subscribers) // of.publishers
        of = dataclasses.replace(of, messages=max(10, few), outstanding=min(of.outstanding, SLOW_OUTSTANDING))
    of = dataclasses.replace(of, duration_s=duration_s)
    with Generator(LoadTarget(port=broker.port), of) as crowd:
        crowd.connect()
        cpu_s, begun = broker.cpu_s(), time.monotonic()
        crowd.publish(60.0 if broker.slow and not of.rate else duration_s)
        crowd.drain(PATIENCE_S)
        result, seconds = result_of(crowd), crowd.seconds
        if broker.slow and not of.rate:
            seconds = max(seconds, broker.settle() - begun)
        return result, seconds, broker.cpu_s() - cpu_s


def measure(broker: Broker, test: str, duration_s: float) -> Figure:
    """One figure."""
    if test == CONNECTS:
        return connects(broker, 100 if broker.slow else 1_000)
    of, rank = LATENCIES.get(test, (RATES.get(test, Scenario("none")), 0))
    result, seconds, cpu_s = run(broker, of, duration_s * LATENCY_LONGER if rank else duration_s)
    count = result.delivered if of.fan else result.sent
    cpu_us = cpu_s / max(1, count) * 1e6
    remarks = tuple(it for it in result.remarks() if "generator" not in it)
    return Figure(result.latency.percentile(rank) if rank else count / seconds, cpu_us, remarks)


def connects(broker: Broker, count: int) -> Figure:
    """Connections made and ended, per second of the broker's processor."""
    cpu_s = broker.cpu_s()
    with Generator(LoadTarget(port=broker.port), scenario(publishers=count, pairing="nobody")) as crowd:
        crowd.connect()
    broker.settle()
    cpu_s = broker.cpu_s() - cpu_s
    return Figure(count / cpu_s, cpu_s / count * 1e6)


# ---- large ones ----


class Plain:
    """Blocking client for work that needs no speed: connections, and large numbers of subscriptions."""

    def __init__(self, port: int, client_id: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 120)
        self.socket.sendall(encode(Connect(client_id, keep_alive_s=0)))
        self.take(4)

    def take(self, count: int) -> None:
        """Wait for this number of bytes."""
        while count:
            data = self.socket.recv(min(count, 1 << 20))
            if not data:
                raise SystemExit("the broker has closed the connection of a subscriber; see its limits")
            count -= len(data)

    def subscribe(self, filters: list[str], at_once: int = 500) -> float:
        """Seconds until all are acknowledged."""
        begun = time.monotonic()
        for at in range(0, len(filters), at_once):
            some = tuple(Subscription(it) for it in filters[at : at + at_once])
            self.socket.sendall(encode(Subscribe(1, some)))
            length = 2 + len(some)
            self.take(1 + (1 if length < 128 else 2) + length)
        return time.monotonic() - begun


def idle(broker: Broker, count: int) -> dict[str, float]:
    """Idle connections: KiB of each, and the time to make them."""
    broker.settle()
    before = broker.memory_bytes()
    with Generator(LoadTarget(port=broker.port), scenario(publishers=count, pairing="nobody")) as crowd:
        crowd.connect(60.0)
        broker.settle()
        return {
            "idle_kib_per_connection": (broker.memory_bytes() - before) / 1024 / count,
            f"connect_{count}_s": crowd.connect_s,
        }


def match(broker: Broker, count: int, topics: int, rounds: int) -> dict[str, float]:
    """Cost of `count` filters without a match for a publish to a known topic, in us."""
    of = scenario(pairing="nobody", topics=topics, random_topics=True)
    warm = dataclasses.replace(of, random_topics=False, messages=topics)
    run(broker, warm, 60.0)
    without = statistics.median(warm_us(broker, of) for _ in range(rounds))
    filters = [f"{PREFIX}/00000/x{it}" for it in range(count // 2)]
    filters += [f"{PREFIX}/+/y{it}" for it in range(count // 4)]
    filters += [f"{PREFIX}/z{it}/#" for it in range(count // 4)]
    subscriber = Plain(broker.port, "filters")
    subscriber.subscribe(filters)
    run(broker, warm, 60.0)
    with_them = statistics.median(warm_us(broker, of) for _ in range(rounds))
    subscriber.socket.close()
    broker.settle()
    return {"match_100k_filters_us": with_them - without, "publish_20k_topics_us": without}


def warm_us(broker: Broker, of: Scenario) -> float:
    """Processor time of the broker per message."""
    result, _, cpu_s = run(broker, of, 0.5)
    return cpu_s / result.sent * 1e6


def wildcards(broker: Broker, count: int) -> dict[str, float]:
    """Subscriptions of one client, half with `+` and half with `#`: seconds, and bytes of each."""
    broker.settle()
    before = broker.memory_bytes()
    filters = [f"w/+/{it}" for it in range(count // 2)] + [f"w/{it}/#" for it in range(count // 2)]
    subscriber = Plain(broker.port, "wildcards")
    seconds = subscriber.subscribe(filters)
    found = (broker.memory_bytes() - before) / count
    subscriber.socket.close()
    broker.settle()
    return {f"subscribe_{count}_wildcards_s": seconds, "wildcard_bytes": found}


def retained(broker: Broker, count: int) -> dict[str, float]:
    """Retained topics: bytes of each, seconds to store them, and to deliver them to a late subscriber."""
    broker.settle()
    before = broker.memory_bytes()
    of = dataclasses.replace(
        scenario(pairing="nobody", topics=count, messages=count), retain=True, prefix="retained"
    )
    begun = time.monotonic()
    run(broker, of, 300.0)
    stored_s = time.monotonic() - begun
    memory = broker.memory_bytes() - before
    late = Scenario("late", publishers=0, subscribers=1, topic_filter="retained/#")
    with Generator(LoadTarget(port=broker.port), late) as crowd:
        begun = time.monotonic()
        crowd.connect(60.0)
        while crowd.counters.received < count and time.monotonic() - begun < 120:
            crowd.listen(0.1)
        seconds, got = time.monotonic() - begun, crowd.counters.received
    return {
        "retained_topics": count,
        "retained_received": got,
        "retained_store_s": stored_s,
        "retained_bytes": memory / count,
        "retained_deliver_s": seconds,
    }


def half_busy(broker: Broker, duration_s: float) -> Histogram:
    """Latency at 1,000 a second, one to one."""
    return run(broker, LATENCIES["latency_p50_1k"][0], duration_s)[0].latency
