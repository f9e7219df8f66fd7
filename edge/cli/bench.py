"""Measure an MQTT broker: this one or another one, over TCP or a Unix socket, with MQTT 3.1.1 or 5.

    brim bench mqtt                              all scenarios, short, as a table
    brim bench mqtt publish -q 1 --connections 50
    brim bench mqtt fanout --subscribers 1000 --size 256
    brim bench mqtt latency --rate 5000 --duration 10
    brim bench mqtt connect --connections 10000 --hold 30
    brim bench mqtt --self-test                  limit of the load generator on this machine

Each message carries its number, its topic and the time at which it was due. Lost, duplicated and reordered
messages are counted. If the broker is slow, the generator sends the same number of messages, and measures
longer times. Next to each figure is the limit: the same figure with a server that does nothing. If both are
close, the load generator is the limit, and the broker may be faster than its figure.

Exit status: 0 done, 1 messages or connections were lost or refused, 2 not measured, 3 no broker is reachable,
4 the broker refuses clients.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from typing import Any

from edge.cli.argument_types import seconds, size
from edge.cli.exit_status import Exit
from edge.cli.mqtt_options import PORT, add_broker_arguments
from edge.cli.saved_contexts import apply_context
from edge.load import (
    SCENARIOS,
    TOUR,
    Generator,
    LoadError,
    LoadTarget,
    Result,
    Scenario,
    calibrate,
    measure,
    qos_pattern,
)
from edge.load.histogram import time_in_words
from edge.mqtt import Version
from edge.terminal_escape import escaped

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
    """Add the arguments of `brim bench`."""
    parser.add_argument("what", choices=("mqtt",), help="protocol to measure")
    names = ", ".join(SCENARIOS)
    parser.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", default="tour", help=f"scenario: tour (default), {names}"
    )
    parser.add_argument("--json", action="store_true", help="print all results as one JSON object")
    parser.add_argument("--self-test", action="store_true", help="measure only the load generator")
    parser.add_argument(
        "--no-calibration", action="store_true", help="do not measure the load generator in addition"
    )
    _add_load(parser.add_argument_group("load"))
    broker = parser.add_argument_group("broker")
    add_broker_arguments(broker, f"{PORT}")
    broker.add_argument(
        "--protocol", choices=VERSIONS, default="3.1.1", help="version of MQTT (default: %(default)s)"
    )


def _add_load(group: Any) -> None:
    metavars = {str: "TEXT", seconds: "TIME"}

    def add(name: str, kind: Any, about: str) -> None:
        group.add_argument(f"--{name}", type=kind, metavar=metavars.get(kind, "N"), help=about)

    group.add_argument(
        "-q", "--qos", metavar="QOS", help="QoS 0, 1, 2, or a mix: 0:90,1:9,2:1 (default: of the scenario)"
    )
    add("connections", int, "number of publishers, or of clients of `connect` (default: of the scenario)")
    add("subscribers", int, "number of subscribers (default: of the scenario)")
    add("subscribe-qos", int, "QoS of subscriptions (default: the highest of --qos)")
    add("filter", str, "topic filter of subscribers (default: the published topics)")
    add("size", size, "bytes of a payload; below 24 only counts are measured (default: 64)")
    add("topics", int, "topics of each publisher (default: 1)")
    add("prefix", str, "prefix of topics (default: bench/ and four digits)")
    add("window", int, "QoS 1 and 2 messages of one publisher in flight (default: 100)")
    add(
        "outstanding",
        int,
        "messages of one publisher not yet delivered; 0: no limit (default: of the scenario)",
    )
    add("rate", float, "messages per second of all publishers; 0: no limit (default: of the scenario)")
    add("duration", seconds, "duration of a run (default: 5s)")
    add("messages", int, "messages of each publisher, in place of --duration")
    add("connect-rate", float, "connections per second (default: no limit)")
    add("connecting", int, "connections opened at the same time (default: 64)")
    add("hold", seconds, "time that `connect` keeps connections idle (default: 0)")


def run(arguments: argparse.Namespace) -> int:
    """Run the measurements and print the results."""
    target, scenarios = _target(arguments), _scenarios(arguments)
    results: list[tuple[str, Result]] = []
    for title, scenario in scenarios:
        result = _one(arguments, target, scenario, title)
        results.append((title, result))
        if result.interrupted:
            break
    if arguments.json:
        rows = [{"title": title, **result.as_dict()} for title, result in results]
        print(json.dumps(rows if len(scenarios) > 1 else rows[0], indent=2))
    elif len(scenarios) > 1:
        _print_table(results, str(target) if not arguments.self_test else "the generator itself")
    else:
        _print_result(scenarios[0][1], results[0][1])
    if any(result.interrupted for _, result in results):
        return Exit.INTERRUPTED
    return 0 if all(result.clean for _, result in results) else Exit.INCOMPLETE


def _one(arguments: argparse.Namespace, target: LoadTarget, scenario: Scenario, title: str) -> Result:
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


def _target(arguments: argparse.Namespace) -> LoadTarget:
    apply_context(arguments)
    password = None
    if arguments.password_file is not None:
        try:
            password = arguments.password_file.read_bytes().split(b"\n", 1)[0]
        except OSError as error:
            raise LoadError(
                f"--password-file {arguments.password_file} cannot be read: {error.strerror}",
                hint="name a file with the password in its first line",
            ) from error
    path = arguments.unix
    return LoadTarget(
        arguments.host,
        arguments.port or PORT,
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
            raise LoadError("the tour has a fixed load", hint=f"name one of {', '.join(SCENARIOS)}")
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
        scenario = dataclasses.replace(scenario, outstanding=0)  # the number of deliveries is unknown
    return [(scenario.name, scenario)]


class _Progress:
    """One line on standard error, rewritten for each update."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._begun = self._shown_s = time.monotonic()

    def __call__(self, crowd: Generator) -> None:
        now = time.monotonic()
        if now - self._shown_s < PROGRESS_S:
            return
        self._shown_s = now
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
        """Clear the line."""
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
            print(f"  {name}: {', '.join(figures)}, max {time_in_words(times.max_ns)}")
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
            times = result.latency  # empty without a rate: queued messages have no meaningful latency
        limit = f"{result.generator_limit:,.0f}" if result.generator_limit else "-"
        p50, p99 = (time_in_words(times.percentile(at)) if times.total else "-" for at in (50, 99))
        print(f"{title:32}{result.rate:>12,.0f}  {result.rate_of:12}{limit:>12}{p50:>10}{p99:>10}")
        for remark in result.remarks():
            print(f"    {remark}")
    print("generator: its limit, with a server that does nothing; times: latency, or until acknowledged")
