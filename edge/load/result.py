"""Result of a measurement: figures, losses, and the generator's own limit.

A value: created once from a Generator that has ended, then shown or written as JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from edge.load.generator import Generator
from edge.load.histogram import Histogram, time_in_words
from edge.load.scenario import STAMP_BYTES
from ringbuf.native import lib

NEAR_LIMIT = 0.8  # share of the generator's own limit, above which the broker may do more than was measured
NO_TIMES = Histogram((), 0, 0)


@dataclass(slots=True)
class Result:
    """Counts are messages. `lost` is of QoS 1 and 2 on both sides; `missing` is loss that QoS 0 allows."""

    scenario: str
    target: str
    version: str
    connections: int
    connect_s: float
    seconds: float
    sent: int = 0
    acknowledged: int = 0
    unacknowledged: int = 0
    unsent: int = 0
    refused: int = 0
    received: int = 0
    foreign: int = 0
    expected: int = 0
    delivered: int = 0
    lost: int = 0
    missing: int = 0
    duplicates: int = 0
    disordered: int = 0
    stalls: int = 0
    disconnects: int = 0
    protocol_errors: int = 0
    generator_busy: float = 0.0  # share of one core
    generator_limit: float | None = None  # `rate` of the same scenario against the sink
    generator_p50_us: float | None = None  # p50 latency against the sink
    interrupted: bool = False
    latency: Histogram = field(default=NO_TIMES)
    acknowledged_in: Histogram = field(default=NO_TIMES)
    connected_in: Histogram = field(default=NO_TIMES)

    @property
    def rate(self) -> float:
        """The scenario's main figure per second: deliveries, or messages received or sent, or connections."""
        if self.expected:
            return self.delivered / self.seconds
        if self.sent or self.received:
            return (self.sent or self.received) / self.seconds
        return self.connections / self.connect_s if self.connect_s else 0.0

    @property
    def rate_of(self) -> str:
        """The unit of `rate`."""
        if self.expected:
            return "deliveries"
        return "messages" if self.sent or self.received else "connections"

    @property
    def clean(self) -> bool:
        """True if nothing happened that QoS or order forbids."""
        wrong = (self.lost, self.duplicates, self.disordered, self.unacknowledged, self.refused, self.unsent)
        return not any((*wrong, self.disconnects, self.protocol_errors))

    def as_dict(self) -> dict[str, Any]:
        """All figures, for JSON."""
        times = ("latency", "acknowledged_in", "connected_in")
        plain = {name: getattr(self, name) for name in self.__slots__ if name not in times}
        histograms = {name: getattr(self, name).as_dict() for name in times if getattr(self, name).total}
        return {**plain, "rate": self.rate, "rate_of": self.rate_of, "clean": self.clean, **histograms}

    def remarks(self) -> list[str]:
        """Sentences about losses and limits of the measurement."""
        counts = {
            f"{self.lost:,} lost": self.lost,
            f"{self.missing:,} not delivered, as QoS 0 allows": self.missing,
            f"{self.duplicates:,} delivered twice": self.duplicates,
            f"{self.disordered:,} out of order": self.disordered,
            f"{self.unacknowledged:,} never acknowledged": self.unacknowledged,
            f"{self.refused:,} refused": self.refused,
            f"{self.unsent:,} due and not sent: the broker does not keep up": self.unsent,
            f"{self.disconnects:,} connections broken": self.disconnects,
            f"{self.protocol_errors:,} packets that should not have come": self.protocol_errors,
            f"{self.foreign:,} messages of others": self.foreign if self.expected else 0,
        }
        remarks = [text for text, count in counts.items() if count]
        if self.interrupted:
            remarks.append("interrupted: the result so far")
        if self.generator_limit and self.rate > NEAR_LIMIT * self.generator_limit:
            remarks.append("close to the limit of the generator: the broker may be faster")
        return remarks

    def limit_in_words(self) -> str:
        """Text: `generator limit X, measured Y`."""
        measured = f"measured {self.rate:,.0f} {self.rate_of}/s"
        if self.generator_p50_us is not None:
            floor = time_in_words(self.generator_p50_us * 1000)
            return f"{measured}; p50 of the generator alone {floor}"
        if self.generator_limit:
            return f"generator limit {self.generator_limit:,.0f}/s, {measured}"
        return f"{measured}, the generator {self.generator_busy:.0%} busy"


def result_of(crowd: Generator, *, interrupted: bool = False) -> Result:
    """Result of a generator so far."""
    counters, scenario = crowd.counters, crowd.scenario
    failed = counters.failed
    seconds = crowd.seconds
    result = Result(
        scenario=scenario.name,
        target=str(crowd.target),
        version="5" if crowd.target.version == 5 else "3.1.1",
        connections=scenario.publishers + scenario.subscribers,
        connect_s=crowd.connect_s,
        seconds=seconds,
        sent=sum(counters.sent),
        acknowledged=counters.acknowledged,
        unacknowledged=counters.unacknowledged,
        unsent=counters.unsent,
        refused=failed[lib.LD_FAIL_PUBLISH],
        received=counters.received,
        foreign=counters.foreign,
        expected=counters.expected,
        delivered=counters.delivered,
        stalls=counters.stalls,
        disconnects=failed[lib.LD_FAIL_CLOSED] + failed[lib.LD_FAIL_RESET],
        protocol_errors=failed[lib.LD_FAIL_PROTOCOL],
        generator_busy=crowd.cpu_ns / 1e9 / seconds if seconds else 0.0,
        interrupted=interrupted,
        latency=crowd.histogram(lib.LD_LATENCY),
        acknowledged_in=crowd.histogram(lib.LD_ACKNOWLEDGED),
        connected_in=crowd.histogram(lib.LD_CONNECTED),
    )
    if scenario.payload_bytes < STAMP_BYTES or not scenario.fan:
        result.missing = max(0, result.expected - result.delivered)
    else:
        _audit(crowd, result)
    return result


def _audit(crowd: Generator, result: Result) -> None:
    """Compare the messages that each group of subscribers got with those sent to it."""
    scenario = crowd.scenario
    publishers = range(scenario.publishers)
    sent = [[crowd.sent_by(publisher, qos) for qos in range(3)] for publisher in publishers]
    together = [sum(column) for column in zip(*sent, strict=True)]
    for place, group in enumerate(crowd.groups):
        tally = crowd.tally(group)
        expected = sent[place] if scenario.pairing == "pairs" else together
        for qos in range(3):
            absent = max(0, expected[qos] - tally.received[qos])
            if qos and scenario.granted_qos:
                result.lost += absent
            else:
                result.missing += absent
            result.duplicates += tally.duplicates[qos]
            if scenario.pairing != "shared":
                result.disordered += tally.disordered[qos]
