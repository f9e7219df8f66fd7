"""Rows of the MQTT benchmark: latency of one pair while other clients bring new names or handshakes.

The paced pair is the generator in C. The storm is a second one in a thread, whose priority is lower, so that
the broker and the paced pair get a processor first. Handshakes are made by a process that runs in the time
that no other process needs (SCHED_IDLE): they cost their clients more than the broker, and such clients are
other machines in real life. With a lower priority only, on two cores, the pair waited up to 4 ms until one of
their threads had ended its slice.

The broker's part, by its own clocks on a quiet machine of two cores: the longest turn of its thread takes
0.8 ms of processor time with new filters, and 1.1 ms with new topics. A higher p99 of these rows is time in
which the broker, or the pair, had no processor: a turn of 2.6 ms had 0.2 ms of processor time and waited for
2.4 ms. A storm has about 200 messages of the pair, so the p99 is the wait of two of them. It varies from
round to round between 0.3 and 5 ms with filters, and between 0.9 and 7 ms with topics.
"""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from benchmarks import _mqtt_first as first
from benchmarks._mqtt_process import Broker
from benchmarks._mqtt_tests import LATENCIES, PATIENCE_S, Figure
from benchmarks._mqtt_tls import HandshakeProcess
from edge.load import Generator, LoadTarget, Scenario
from edge.load.result import result_of

STORM_S = 60.0
NICER = 5
SLOW_SHARE = 10

Storm = Callable[[], object]


class StormOver(Exception):
    """The storm has ended."""


def during(broker: Broker, storm: Storm) -> Figure:
    """p99 of the paced pair in ms, from the start of the storm to its end."""
    of = dataclasses.replace(LATENCIES["latency_p50_1k"][0], duration_s=STORM_S)
    worker = threading.Thread(target=_as_nicer, args=(storm,))

    def tick(_: Generator) -> None:
        if worker.ident is not None and not worker.is_alive():
            raise StormOver

    with Generator(LoadTarget(port=broker.port), of, tick) as pair:
        pair.connect()
        cpu_s = broker.cpu_s()
        worker.start()
        with suppress(StormOver):
            pair.publish(STORM_S)
        worker.join()
        result = result_of(pair)
    cpu_us = (broker.cpu_s() - cpu_s) / max(1, result.sent) * 1e6
    return Figure(result.latency.percentile(99) / 1e6, cpu_us)


def _as_nicer(storm: Storm) -> None:
    thread = threading.get_native_id()
    os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICER)
    storm()


def _stranger(broker: Broker, of: Scenario, count: int) -> Generator:
    count = count // SLOW_SHARE if broker.slow else count
    return Generator(
        LoadTarget(port=broker.port), dataclasses.replace(first.sized(of, count), prefix="storm/0000")
    )


def topics(broker: Broker, count: int) -> Figure:
    """Another client publishes to `count` new topics."""

    def storm() -> None:
        crowd.publish(STORM_S)
        crowd.drain(PATIENCE_S)

    with _stranger(broker, first.NEW_TOPICS, count) as crowd:
        crowd.connect()
        return during(broker, storm)


def filters(broker: Broker, count: int) -> Figure:
    """Another client subscribes to `count` exact filters."""
    with _stranger(broker, first.EXACT, count) as crowd:
        return during(broker, lambda: crowd.connect(STORM_S))


def handshakes(broker: Broker, count: int) -> Figure:
    """Other clients make `count` TLS handshakes."""
    return during(broker, HandshakeProcess(broker.ports.tls, count, idle=True).run)
