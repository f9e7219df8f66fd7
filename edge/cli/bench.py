"""Measure an MQTT broker: this one or any other, on TCP or a Unix socket, MQTT 3.1.1 or 5.

  brim bench mqtt                              a short tour of everything, as a table
  brim bench mqtt publish -q 1 --connections 50
  brim bench mqtt fanout --subscribers 1000 --size 256
  brim bench mqtt latency --rate 5000 --duration 10
  brim bench mqtt connect --connections 10000 --hold 30
  brim bench mqtt --self-test                  what the generator itself can do here

Each message carries its number, its topic's and when it was due: what is lost, doubled or out of order is
seen, and a broker that is late makes the times longer, not fewer.  Beside each figure stands what the
generator did against a server that does nothing: what is close to that, the broker may do better.

Exit status: 0 done, 1 something was lost, refused or broken, 2 it cannot be measured, 3 no broker is there,
4 the broker refuses clients.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

from edge.cli import EXIT_ATTENTION, EXIT_INTERRUPTED
from edge.cli.argument_types import port, seconds, size
from edge.load import (
    SCENARIOS,
    TOUR,
    Generator,
    LoadError,
    Result,
    Scenario,
    Target,
    calibrate,
    measure,
    qos_pattern,
)
from edge.load.histogram import time_in_words
from edge.mqtt import Version
from edge.terminal import escaped

__all__ = ["add_arguments", "run"]

VERSIONS = {"3.1.1": Version.V311, "5": Version.V5}
TOUR_DURATION_S = 1.0
PROGRESS_S = 0.2

# Option -> field of Scenario.
FIELDS = {
    "connections": "publishers", "subscribers": "subscribers", "size": "payload_bytes", "window": "window",
    "outstanding": "outstanding", "rate": "rate", "topics": "topics", "prefix": "prefix",
    "filter": "topic_filter", "subscribe_qos": "subscribe_qos", "messages": "messages",
    "duration": "duration_s", "connect_rate": "connect_rate", "connecting": "connecting", "hold": "hold_s",
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `brim bench` takes."""
    parser.add_argument("what", choices=("mqtt",), help="the protocol")
    names = ", ".join(SCENARIOS)
    parser.add_argument("scenario", nargs="?", default="tour", help=f"tour (default), {names}")
    parser.add_argument("--json", action="store_true", help="everything, as one JSON object")
    parser.add_argument("--self-test", action="store_true", help="measure the generator instead of a broker")
    parser.add_argument("--no-calibration", action="store_true", help="do not measure the generator as well")
    _add_load(parser.add_argument_group("load"))
    broker = parser.add_argument_group("broker")
    broker.add_argument("--host", default="127.0.0.1", help="name or address (default: %(default)s)")
    broker.add_argument("-p", "--port", type=port, default=1883, help="its port (default: %(default)s)")
    broker.add_argument("--unix", metavar="PATH", type=Path, help="a Unix socket instead")
    broker.add_argument("--protocol", choices=VERSIONS, default="3.1.1", help="(default: %(default)s)")
    broker.add_argument("--username", metavar="NAME")
    broker.add_argument("--password-file", type=Path, metavar="FILE", help="the password is its first line")


def _add_load(group: Any) -> None:
    def add(name: str, kind: Any, about: str) -> None:
        group.add_argument(f"--{name}", type=kind, metavar="N" if kind is not str else "TEXT", help=about)

    group.add_argument("-q", "--qos", metavar="QOS", help="0, 1, 2, or a mix: 0:90,1:9,2:1")
    add("connections", int, "publishers, or clients of `connect`")
    add("subscribers", int, "clients that subscribe")
    add("subscribe-qos", int, "of their subscriptions (the highest of --qos)")
    add("filter", str, "what they subscribe to (what is published)")
    add("size", size, "bytes of a payload (64); below 24 nothing but counts is known")
    add("topics", int, "of each publisher (1)")
    add("prefix", str, "of topics (bench/ and four digits)")
    add("window", int, "QoS 1 and 2 of one publisher in flight (100)")
    add("outstanding", int, "of one publisher not yet delivered; 0: no limit")
    add("rate", float, "messages a second, of all together; 0: as fast as it goes")
    add("duration", seconds, "of a run (5 s)")
    add("messages", int, "of each publisher, instead of a duration")
    add("connect-rate", float, "connections a second (as fast as it goes)")
    add("connecting", int, "connections that are made at once (64)")
    add("hold", seconds, "time that `connect` keeps connections idle (0)")


def run(arguments: argparse.Namespace) -> int:
    """Measures, and tells."""
    target, scenarios = _target(arguments), _scenarios(arguments)
    results: list[tuple[str, Result]] = []
    for title, scenario in scenarios:
        result = _one(arguments, target, scenario, title)
        results.append((title, result))
        if result.interrupted:
            break
    if arguments.json:
        found = [{"title": title, **result.as_dict()} for title, result in results]
        print(json.dumps(found if len(scenarios) > 1 else found[0], indent=2))
    elif len(scenarios) > 1:
        _print_table(results, str(target) if not arguments.self_test else "the generator itself")
    else:
        _print_result(scenarios[0][1], results[0][1])
    if any(result.interrupted for _, result in results):
        return EXIT_INTERRUPTED
    return 0 if all(result.clean for _, result in results) else EXIT_ATTENTION


def _one(arguments: argparse.Namespace, target: Target, scenario: Scenario, title: str) -> Result:
    if arguments.self_test:
        return calibrate(scenario, target)
    tick = _Progress(title) if sys.stderr.isatty() else None
    result = measure(target, scenario, tick)
    if tick is not None:
        tick.clear()
    if not arguments.no_calibration and not result.interrupted:
        own = calibrate(scenario, target)
        if own.latency.total:
            result.generator_p50_us = own.latency.percentile(50) / 1000
        else:
            result.generator_limit = own.rate
    return result


def _target(arguments: argparse.Namespace) -> Target:
    password = None
    if arguments.password_file is not None:
        try:
            password = arguments.password_file.read_bytes().split(b"\n", 1)[0]
        except OSError as error:
            raise LoadError(f"--password-file {arguments.password_file}: {error.strerror}") from error
    path = arguments.unix
    return Target(
        arguments.host,
        arguments.port,
        path="" if path is None else str(path) if str(path).startswith("@") else str(path.absolute()),
        version=VERSIONS[arguments.protocol],
        username=arguments.username,
        password=password,
    )


def _scenarios(arguments: argparse.Namespace) -> list[tuple[str, Scenario]]:
    changes: dict[str, Any] = {
        field: getattr(arguments, option)
        for option, field in FIELDS.items()
        if getattr(arguments, option) is not None
    }
    if arguments.scenario == "tour":
        if set(changes) - {"duration_s", "prefix"} or arguments.qos is not None:
            raise LoadError("the tour takes its load as it is", hint=f"name one of {', '.join(SCENARIOS)}")
        changes = {"duration_s": TOUR_DURATION_S, **changes}
        return [(title, dataclasses.replace(scenario, **changes)) for title, scenario in TOUR]
    if arguments.scenario not in SCENARIOS:
        raise LoadError(
            f"there is no scenario {arguments.scenario!r}",
            hint=f"it is tour, or one of {', '.join(SCENARIOS)}",
        )
    if arguments.qos is not None:
        changes["qos"] = qos_pattern(arguments.qos)
    if changes.get("subscribe_qos") not in {None, 0, 1, 2}:
        raise LoadError(f"--subscribe-qos {changes['subscribe_qos']} is not 0, 1 or 2")
    scenario = dataclasses.replace(SCENARIOS[arguments.scenario], **changes)
    if scenario.topic_filter and scenario.outstanding:
        scenario = dataclasses.replace(scenario, outstanding=0)  # nobody knows how often it is delivered
    return [(scenario.name, scenario)]


class _Progress:
    """One line on standard error, written anew."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begun = self._told = time.monotonic()

    def __call__(self, crowd: Generator) -> None:
        now = time.monotonic()
        if now - self._told < PROGRESS_S:
            return
        self._told = now
        counters = crowd.counters
        figures = f"{counters.connected:,} connected, {sum(counters.sent):,} sent"
        if counters.received:
            figures += f", {counters.received:,} received"
        print(
            f"\r\x1b[K{self._title}: {now - self._begun:.0f} s, {figures}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    def clear(self) -> None:
        """The line is gone."""
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _print_result(scenario: Scenario, result: Result) -> None:
    print(escaped(f"{scenario.name} on {result.target}, MQTT {result.version}: {_shape(scenario)}"))
    if result.sent or result.received:
        print(f"  {result.rate:,.0f} {result.rate_of}/s for {result.seconds:.2f} s")
        print(f"  sent {result.sent:,}, acknowledged {result.acknowledged:,}, received {result.received:,}")
    else:
        print(f"  {result.connections:,} connections in {result.connect_s:.2f} s: {result.rate:,.0f}/s")
    for name, times in (
        ("latency", result.latency),
        ("acknowledged in", result.acknowledged_in),
        ("connected in", result.connected_in),
    ):
        if times.total and (times is not result.connected_in or scenario.name == "connect"):
            ranks = {"p50": 50, "p90": 90, "p99": 99, "p99.9": 99.9}
            figures = [f"{rank} {time_in_words(times.percentile(at))}" for rank, at in ranks.items()]
            print(f"  {name}: {', '.join(figures)}, max {time_in_words(times.most)}")
    for line in result.latency.lines():
        print(line)
    print(f"  {result.limit_in_words()}")
    for remark in result.remarks():
        print(f"  {remark}")
    if result.clean:
        print("  nothing lost, doubled or out of order" if result.expected else "  nothing went wrong")


def _shape(scenario: Scenario) -> str:
    mix = "/".join(str(qos) for qos in sorted(set(scenario.qos)))
    parts = [f"{scenario.publishers} publishers"] if scenario.publishers else []
    parts += [f"{scenario.subscribers} subscribers"] if scenario.subscribers else []
    if scenario.name != "connect":
        parts.append(f"QoS {mix}, {scenario.payload_bytes} bytes")
    return ", ".join(parts)


def _print_table(results: list[tuple[str, Result]], where: str) -> None:
    version = results[0][1].version
    print(escaped(f"MQTT {version} on {where}; rates a second"))
    print(f"{'':32}{'rate':>12}  {'of':12}{'generator':>12}{'p50':>10}{'p99':>10}")
    for title, result in results:
        times = result.acknowledged_in if result.sent else result.connected_in
        if result.expected:
            times = result.latency  # none, if it goes as fast as it goes: what is queued says nothing
        limit = f"{result.generator_limit:,.0f}" if result.generator_limit else "-"
        p50, p99 = (time_in_words(times.percentile(at)) if times.total else "-" for at in (50, 99))
        print(f"{title:32}{result.rate:>12,.0f}  {result.rate_of:12}{limit:>12}{p50:>10}{p99:>10}")
        for remark in result.remarks():
            print(f"    {remark}")
    print("generator: what it does against a server that does nothing; times: latency, or until acknowledged")
