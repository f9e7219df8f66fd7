"""Figures of Brim only: idle connections, matching, many filters, many retained messages."""

from __future__ import annotations

import dataclasses
import socket
import statistics
import time

from benchmarks._mqtt_process import Broker
from benchmarks._mqtt_tests import LATENCIES, PREFIX, run, scenario
from edge.load import Generator, Histogram, LoadTarget, Scenario
from edge.mqtt import Connect, Subscribe, Subscription, encode


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


def measure(broker: Broker, name: str, duration_s: float, rounds: int, small: int) -> dict[str, float]:
    """Figures of one name of OWN; large numbers are divided by `small`."""
    if name == "half_busy":
        times = [half_busy(broker, duration_s) for _ in range(rounds)]
        medians = {
            rank: statistics.median(it.percentile(rank) for it in times) / 1000 for rank in (50, 90, 99)
        }
        return {f"latency_p{rank}_half_busy_us": value for rank, value in medians.items()}
    if name == "idle":
        return idle(broker, 10_000 // small)
    if name == "match":
        return match(broker, 100_000 // small, 20_000 // small, rounds)
    if name == "wildcards":
        return wildcards(broker, 100_000 // small)
    return retained(broker, 1_000_000 // small)


OWN = {
    "half_busy": "latency at 1 k/s while a thread of Brim's process computes 5 ms of every 10",
    "idle": "memory of 10,000 connections that do nothing, and the time to make them",
    "match": "cost of 100,000 filters for a publish to one of 20,000 topics",
    "wildcards": "100,000 subscriptions with `+` and `#` of one client",
    "retained": "1,000,000 retained messages, stored and delivered to a late subscriber",
}
