"""MQTT brokers side by side, by the same generator: Brim, Mosquitto, nats-server, amqtt, aedes.

    python -m benchmarks.mqtt [--rounds 5] [--quick] [--only ingest,latency] [--peers mosquitto,nats]

Each broker is a process on a loopback port of its own; in each round they take turns at every test. Prints
a table of medians with the broker's processor time per message and the generator's own limit. The last line
is one JSON object. Under the name of each test it has the ratio of Brim to Mosquitto, in rate or in time, as
the median of the rounds' ratios; and some figures of Brim only. Under cpu_ratios it has the ratio of
Mosquitto's processor time per message to Brim's, which other work on the machine disturbs less.

    ingest_q0_1, _50       1 and 50 publishers, QoS 0, no subscriber
    ingest_q1_window100    1 publisher, QoS 1, 100 in flight
    ingest_q1_100x1        100 publishers with 1 in flight each
    devices_200x1_sub1     200 of those, and one subscriber to all
    deliver_1_1            1 publisher, 1 subscriber, QoS 0, as fast as all is delivered
    fanout_10, _100        1 publisher, 10 and 100 subscribers: deliveries
    latency_p50_1k         one way at 1,000 a second, from when a message was due
    latency_p99_20k        at 20,000 a second of 100 publishers to one subscriber
    connects_per_cpu_s     connections made and ended in a second of the broker's processor

    latency_p90_half_busy_us   latency_p50_1k while a thread of Brim's process computes 5 ms of every 10
    idle_kib_per_connection    of 10,000 that do nothing
    match_100k_filters_us      what 100,000 filters add to a publish to one of 20,000 topics

One machine, loopback, both sides on the same cores: ratios mean more than rates.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks import _mqtt_tests as tests
from benchmarks._mqtt_brokers import PEERS, Broker, brim, started
from benchmarks._mqtt_tests import LATENCIES, RATES, TESTS, Figure
from edge.load import calibrate

DURATION_S, QUICK_S = 1.0, 0.3
OWN = ("half_busy", "idle", "match", "wildcards", "retained")

Round = dict[tuple[str, str], Figure]


def one_round(brokers: list[Broker], names: list[str], duration_s: float) -> Round:
    """Run every test on every broker, in turn."""
    found: Round = {}
    for test in names:
        for broker in brokers:
            if (test, broker.name) in tests.TOO_SLOW:
                continue
            try:
                found[test, broker.name] = tests.measure(broker, test, duration_s)
            except Exception as error:
                # A test that a peer cannot run does not end the measurement of others.
                if broker.name in PEERS:
                    print(f"   {test} on {broker.name}: {error}", flush=True)
                    continue
                raise
    return found


def better(found: Round, test: str, peer: str) -> float:
    """Ratio of Brim to a peer in one round; NaN without a value to compare."""
    if (test, peer) not in found:
        return math.nan
    ours, theirs = found[test, "brim"].value, found[test, peer].value
    return theirs / ours if test in LATENCIES else ours / theirs


def median(values: list[float]) -> float:
    """Median of the values that are numbers; otherwise NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median(numbers) if numbers else math.nan


def figure(rounds: list[Round], test: str, name: str) -> tuple[float, float]:
    """Medians of value and processor time."""
    found = [it[test, name] for it in rounds if (test, name) in it]
    if not found:
        return math.nan, math.nan
    return statistics.median(it.value for it in found), statistics.median(it.cpu_us for it in found)


def told(test: str, value: float) -> str:
    """A figure as text."""
    if math.isnan(value):
        return "-"
    if test in LATENCIES:
        return f"{value / 1000:,.0f} us"
    return f"{value / 1000:,.0f} k/s"


def table(rounds: list[Round], names: list[str], who: list[str], limits: dict[str, float]) -> None:
    """Medians by broker, with the processor's us per message in brackets."""
    print(f"{'':22}" + "".join(f"{name:>21}" for name in who) + f"{'generator':>14}")
    for test in names:
        cells = []
        for name in who:
            value, cpu_us = figure(rounds, test, name)
            cells.append(f"{told(test, value)} ({cpu_us:.3g})" if not math.isnan(value) else "-")
        print(
            f"{test:22}" + "".join(f"{cell:>21}" for cell in cells) + f"{limits_in_words(test, limits):>14}"
        )
    remarks = {
        (test, name, remark)
        for found in rounds
        for (test, name), it in found.items()
        for remark in it.remarks
    }
    for test, name, remark in sorted(remarks):
        print(f"   {test} on {name}: {remark}")


def limits_in_words(test: str, limits: dict[str, float]) -> str:
    """Limits of the generator, for one test."""
    return told(test, limits[test]) if test in limits else "-"


def generator_limits(names: list[str]) -> dict[str, float]:
    """Limits of the generator, measured against a sink."""
    found = {}
    for test in names:
        if test in RATES:
            found[test] = calibrate(RATES[test]).rate
        elif test in LATENCIES:
            of, rank = LATENCIES[test]
            found[test] = float(calibrate(of).latency.percentile(rank))
    return found


def own_figures(names: list[str], directory: Path, rounds: int, *, quick: bool) -> dict[str, float]:
    """Figures of Brim only, each on a broker that was just started."""
    small = 10 if quick else 1
    found: dict[str, float] = {}
    for name in names:
        print(f"   {name} ...", flush=True)
        with brim(directory, busy=name == "half_busy") as broker:
            if name == "half_busy":
                times = [tests.half_busy(broker, QUICK_S if quick else DURATION_S) for _ in range(rounds)]
                for rank in (50, 90, 99):
                    value = statistics.median(it.percentile(rank) for it in times) / 1000
                    found[f"latency_p{rank}_half_busy_us"] = value
            elif name == "idle":
                found |= tests.idle(broker, 10_000 // small)
            elif name == "match":
                found |= tests.match(broker, 100_000 // small, 20_000 // small, rounds)
            elif name == "wildcards":
                found |= tests.wildcards(broker, 100_000 // small)
            else:
                found |= tests.retained(broker, 1_000_000 // small)
    return found


def summary(rounds: list[Round], names: list[str], who: list[str], own: dict[str, float]) -> dict[str, Any]:
    """The last line."""
    by_peer = {
        peer: {
            test: round(ratio, 3)
            for test in names
            if not math.isnan(ratio := median([better(found, test, peer) for found in rounds]))
        }
        for peer in who[1:]
    }
    figures = {
        test: {"value": value, "cpu_us": cpu_us}
        for test in names
        for value, cpu_us in [figure(rounds, test, "brim")]
    }
    cpu = {
        test: round(figure(rounds, test, "mosquitto")[1] / figure(rounds, test, "brim")[1], 3)
        for test in by_peer.get("mosquitto", ())
    }
    others = {peer: ratios for peer, ratios in by_peer.items() if peer != "mosquitto"}
    return {
        **by_peer.get("mosquitto", {}),
        **{name: round(value, 3) for name, value in own.items()},
        "cpu_ratios": cpu,
        "ratios": others,
        "brim": figures,
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="shorter and smaller: to see that it works")
    parser.add_argument("--only", default="", help="tests whose names begin so, separated by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="of " + ", ".join(PEERS))
    options = parser.parse_args()
    wanted = tuple(options.only.split(","))
    names = [test for test in TESTS if test.startswith(wanted)]
    own_names = [test for test in OWN if test.startswith(wanted)]
    peers = [name for name in options.peers.split(",") if name]
    if unknown := [name for name in peers if name not in PEERS]:
        parser.error(f"no such peer: {', '.join(unknown)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} is less than 1")
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("two cores are needed: one for each side")
    duration_s = QUICK_S if options.quick else DURATION_S
    rounds: list[Round] = []
    who = ["brim"]
    with tempfile.TemporaryDirectory(prefix="brim-bench-", dir="/dev/shm") as place, ExitStack() as stack:
        if names:
            limits = generator_limits(names)
            brokers = started(peers, Path(place), stack)
            who = [broker.name for broker in brokers]
            for number in range(options.rounds + 1):  # the first warms up
                what = "" if number else " (warming up)"
                print(f"   round {number} of {options.rounds}{what} ...", flush=True)
                rounds.append(one_round(brokers, names, duration_s if number else QUICK_S))
            stack.close()
            table(rounds[1:], names, who, limits)
        own = own_figures(own_names, Path(place), options.rounds, quick=options.quick)
        for name, value in own.items():
            print(f"{name:32}{value:12,.3f}")
    print(json.dumps(summary(rounds[1:], names, who, own)))


if __name__ == "__main__":
    main()
