"""Loads of the MQTT benchmark: rates and latencies of one broker.

Payloads of 64 bytes, topics of 20. PINGRESP or the last acknowledgement shows when a publish was handled. For
a broker that answers too early, the end of its processor's work shows it.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from benchmarks._mqtt_process import Broker
from edge.load import Generator, LoadTarget, Result, Scenario
from edge.load.result import result_of

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
LATENCIES: dict[str, tuple[Scenario, float]] = {
    "latency_p50_1k": (scenario(subscribers=1, rate=1_000.0), 50),
    "latency_p99_20k": (scenario(publishers=100, subscribers=1, rate=20_000.0), 99),
}
LATENCIES["p999_1k"] = (LATENCIES["latency_p50_1k"][0], 99.9)
LATENCIES["p999_20k"] = (LATENCIES["latency_p99_20k"][0], 99.9)
LATENCY_LONGER = 4  # so that the first message of each publisher is less than one percent


@dataclass(frozen=True)
class Figure:
    """Figure. `value`: in the unit of its row; rates per second, times in ns."""

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
        crowd.connect(PATIENCE_S * 4)
        cpu_s, begun = broker.cpu_s(), time.monotonic()
        crowd.publish(60.0 if of.messages and not of.rate else duration_s)
        crowd.drain(PATIENCE_S)
        result, seconds = result_of(crowd), crowd.seconds
        if broker.slow and not of.rate:
            seconds = max(seconds, broker.settle() - begun)
        return result, seconds, broker.cpu_s() - cpu_s


def rate(broker: Broker, of: Scenario, duration_s: float) -> Figure:
    """Messages, or deliveries if there are subscribers, per second."""
    result, seconds, cpu_s = run(broker, of, duration_s)
    count = result.delivered if of.fan else result.sent
    return Figure(count / seconds, cpu_s / max(1, count) * 1e6, remarks(result))


def latency(broker: Broker, of: Scenario, rank: float, duration_s: float) -> Figure:
    """Percentile of the time from the moment when a message was due to its delivery."""
    result, _, cpu_s = run(broker, of, duration_s * LATENCY_LONGER)
    cpu_us = cpu_s / max(1, result.delivered) * 1e6
    return Figure(result.latency.percentile(rank), cpu_us, remarks(result))


def remarks(result: Result) -> tuple[str, ...]:
    """Remarks about losses."""
    return tuple(it for it in result.remarks() if "generator" not in it)
