"""Rows of the MQTT benchmark on a broker that was just started: its start, and work on new names.

The broker has seen no topic, filter or client of these rows before, as after a restart.
"""

from __future__ import annotations

import dataclasses

from benchmarks._mqtt_process import Broker
from benchmarks._mqtt_tests import PATIENCE_S, Figure, rate, scenario
from edge.load import Generator, LoadTarget, Scenario

MIB = 1 << 20
FILTERS_AT_ONCE = 100
PENDING = 50
CONNECTS_SHARE = 20  # one connection for so many topics of the other rows
SLOW_SHARE = 10  # a slow broker gets one of so many
BOUND = "a connection cost the generator more than the broker, so it bounds the rate; compare cpu_ratios"

NEW_TOPICS = scenario(pairing="nobody")
RETAINED = scenario(pairing="nobody", retain=True)
EXACT = scenario(subscribers=1, filters_at_once=FILTERS_AT_ONCE, outstanding=20_000)
CONNECTS = dataclasses.replace(
    scenario(pairing="nobody", publishers=5_000, connecting=PENDING), name="connect"
)


def sized(of: Scenario, count: int) -> Scenario:
    """The scenario with a message to each of `count` topics."""
    return dataclasses.replace(of, topics=count, messages=count)


def new_topics(broker: Broker, count: int) -> Figure:
    """Topics never seen, per second: one message to each."""
    return rate(broker, sized(NEW_TOPICS, count), PATIENCE_S)


def retained_store(broker: Broker, count: int) -> Figure:
    """Retained messages stored, per second."""
    return rate(broker, sized(RETAINED, count), PATIENCE_S)


def subscribe_exact(broker: Broker, count: int) -> Figure:
    """Filters of one client, per second, until the last SUBACK."""
    count = count // SLOW_SHARE if broker.slow else count
    cpu_s = broker.cpu_s()
    with Generator(LoadTarget(port=broker.port), sized(EXACT, count)) as crowd:
        crowd.connect(PATIENCE_S * 4)
        return Figure(count / crowd.connect_s, (broker.cpu_s() - cpu_s) / count * 1e6)


def first_delivery(broker: Broker, count: int) -> Figure:
    """First publishes to the topics of subscribe_exact, delivered, per second."""
    return rate(broker, sized(EXACT, count), PATIENCE_S)


def connects(broker: Broker, count: int) -> Figure:
    """Connections made, per second; they stay until all are made.

    The kernel makes both sides of a loopback connection within connect(), in the time of the generator. So a
    connection costs the generator as much as the broker, and on two cores it may bound the rate; a remark
    says so. The processor time is of the broker only.
    """
    count = count // CONNECTS_SHARE // (SLOW_SHARE if broker.slow else 1)
    cpu_s = broker.cpu_s()
    with Generator(LoadTarget(port=broker.port), dataclasses.replace(CONNECTS, publishers=count)) as crowd:
        crowd.connect(PATIENCE_S * 4)
        cpu_us = (broker.cpu_s() - cpu_s) / count * 1e6
        own_us = crowd.counters.cpu_ns / count / 1e3
        remarks = (BOUND,) if own_us > cpu_us else ()
        return Figure(count / crowd.connect_s, cpu_us, remarks)


def connects_per_cpu_s(broker: Broker) -> Figure:
    """Connections made and ended, per second of the broker's processor."""
    count = 100 if broker.slow else 1_000
    cpu_s = broker.cpu_s()
    with Generator(LoadTarget(port=broker.port), scenario(publishers=count, pairing="nobody")) as crowd:
        crowd.connect()
    broker.settle()
    cpu_s = broker.cpu_s() - cpu_s
    return Figure(count / cpu_s, cpu_s / count * 1e6)


def start(broker: Broker) -> Figure:
    """Milliseconds from exec to the first CONNACK."""
    return Figure(broker.start_ms, 0.0)


def memory(broker: Broker) -> Figure:
    """Resident MiB after the first client, without shared memory."""
    broker.settle()
    return Figure(broker.resident_bytes() / MIB, 0.0)
