"""MQTT brokers side by side, by the same generator: Brim, Mosquitto, nats-server, amqtt, aedes, and others.

    python -m benchmarks.mqtt [--rounds 3] [--quick] [--only ingest,latency] [--rows new_topics,connects]
                              [--peers mosquitto,nats] [--peer name=command]

Each broker is a process on loopback ports of its own; in each round they take turns at every row. Prints a
table of medians with the broker's processor time per message in microseconds, and the generator's own limit.
The last line is one JSON object. Under the name of each row it has the ratio of Brim to Mosquitto as the
median of the rounds' ratios: Brim's rate over Mosquitto's, or Mosquitto's time over Brim's, so greater is
better for Brim. start_ms, rss_mb_without_rings, the rows storm_* and those of Brim only are figures of Brim.
Under cpu_ratios it has the ratio of Mosquitto's processor time per message to Brim's, which other work on
the machine disturbs less; under ratios, the other peers; under brim and peers, all medians.

Other brokers: --peer fast='/opt/fast/bin/broker --port {port} --data {dir}', or another build of Mosquitto:
--peer newer='/opt/mosquitto/sbin/mosquitto -c {mosquitto_conf}'. Rows by TLS and WebSocket need {tls_port}
with {certificate} and {key}, {ws_port}, or {mosquitto_conf} in the command; otherwise they leave it out, as
they leave out nats-server, amqtt and aedes.

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

from benchmarks import _mqtt_own as own
from benchmarks._mqtt_brokers import BRIM, BUSY_BRIM, PEERS, one, other, started
from benchmarks._mqtt_process import Broker, Program
from benchmarks._mqtt_rows import QUICK, ROWS, Size
from benchmarks._mqtt_tests import Figure

Round = dict[tuple[str, str], Figure]

STARTED_SHARE = 0.01  # of a processor; Brim touches the pages of its rings in small steps after its start


def one_round(
    programs: dict[str, Program], running: list[Broker], names: list[str], size: Size, place: Path
) -> Round:
    """Measure every row on every broker, in turn."""
    found: Round = {}
    for row in names:
        for broker in running:
            lacks = ROWS[row].listeners - programs[broker.name].listeners
            if lacks or broker.name in ROWS[row].too_slow:
                continue
            try:
                found[row, broker.name] = one_figure(programs, broker, row, size, place)
            except Exception as error:
                # A row that a peer cannot run does not end the measurement of others.
                if broker.name == "brim":
                    raise
                print(f"   {row} on {broker.name}: {error}", flush=True)
    return found


def one_figure(programs: dict[str, Program], broker: Broker, row: str, size: Size, place: Path) -> Figure:
    """Measure a row on the running broker, or on a fresh one."""
    if not ROWS[row].fresh:
        return ROWS[row].measure(broker, size)
    with one(broker.name, programs[broker.name], place, ROWS[row].listeners) as fresh:
        fresh.settle(STARTED_SHARE)
        return ROWS[row].measure(fresh, size)


def better(found: Round, row: str, peer: str) -> float:
    """Ratio of Brim to a peer in one round; NaN without a value to compare."""
    if (row, peer) not in found or (row, "brim") not in found:
        return math.nan
    ours, theirs = found[row, "brim"].value, found[row, peer].value
    return theirs / ours if ROWS[row].less_is_better else ours / theirs


def median(values: list[float]) -> float:
    """Median of the values that are numbers; otherwise NaN."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median(numbers) if numbers else math.nan


def figure(rounds: list[Round], row: str, name: str) -> tuple[float, float]:
    """Medians of value and processor time."""
    found = [it[row, name] for it in rounds if (row, name) in it]
    if not found:
        return math.nan, math.nan
    return statistics.median(it.value for it in found), statistics.median(it.cpu_us for it in found)


def cell(rounds: list[Round], row: str, name: str) -> str:
    """A figure as text, with the processor's us per message in brackets."""
    value, cpu_us = figure(rounds, row, name)
    if math.isnan(value):
        return "-"
    costs = cpu_us and "cpu" not in ROWS[row].unit
    return ROWS[row].text(value) + (f" ({cpu_us:.3g})" if costs else "")


def table(rounds: list[Round], names: list[str], who: list[str], limits: dict[str, float]) -> None:
    """Medians by broker."""
    print(f"{'':24}" + "".join(f"{name:>21}" for name in who) + f"{'generator':>14}")
    for row in names:
        limit = ROWS[row].text(limits[row]) if row in limits else "-"
        print(f"{row:24}" + "".join(f"{cell(rounds, row, name):>21}" for name in who) + f"{limit:>14}")
    remarks = {
        (row, name, remark) for found in rounds for (row, name), it in found.items() for remark in it.remarks
    }
    for row, name, remark in sorted(remarks):
        print(f"   {row} on {name}: {remark}")


def generator_limits(names: list[str]) -> dict[str, float]:
    """Limits of the generator, measured against a sink."""
    found = {row: ROWS[row].limit() for row in names}
    return {row: limit for row, limit in found.items() if limit is not None}


def own_figures(names: list[str], place: Path, rounds: int, *, quick: bool) -> dict[str, float]:
    """Figures of Brim only, each on a broker that was just started."""
    found: dict[str, float] = {}
    for name in names:
        print(f"   {name} ...", flush=True)
        with one("brim", BUSY_BRIM if name == "half_busy" else BRIM, place) as broker:
            duration_s = (QUICK if quick else Size()).duration_s
            found |= own.measure(broker, name, duration_s, rounds, 10 if quick else 1)
    return found


def ratios(rounds: list[Round], names: list[str], peer: str) -> dict[str, float]:
    """Ratio of Brim to a peer, by row; greater is better for Brim."""
    found = {row: median([better(it, row, peer) for it in rounds]) for row in names}
    return {row: round(ratio, 3) for row, ratio in found.items() if not math.isnan(ratio)}


def medians(rounds: list[Round], names: list[str], name: str) -> dict[str, dict[str, float]]:
    """Value and processor time of a broker, by row."""
    found = {row: figure(rounds, row, name) for row in names}
    return {
        row: {"value": value, "cpu_us": cpu_us}
        for row, (value, cpu_us) in found.items()
        if not math.isnan(value)
    }


def summary(
    rounds: list[Round], names: list[str], who: list[str], own_found: dict[str, float]
) -> dict[str, Any]:
    """The last line."""
    figures = {name: medians(rounds, names, name) for name in who}
    ours, theirs = figures.get("brim", {}), figures.get("mosquitto", {})
    by_peer = {
        peer: ratios(rounds, [row for row in names if not ROWS[row].absolute], peer) for peer in who[1:]
    }
    cpu = {
        row: round(theirs[row]["cpu_us"] / ours[row]["cpu_us"], 3)
        for row in by_peer.get("mosquitto", ())
        if ours[row]["cpu_us"]
    }
    return {
        **by_peer.pop("mosquitto", {}),
        **{row: round(it["value"], 2) for row, it in ours.items() if ROWS[row].absolute},
        **{name: round(value, 3) for name, value in own_found.items()},
        "cpu_ratios": cpu,
        "ratios": by_peer,
        "brim": ours,
        "peers": {name: figures[name] for name in who[1:]},
    }


def rows_in_words() -> str:
    """Meaning of each row, for the help."""
    lines = [f"  {name:24} {row.about}" for name, row in ROWS.items()]
    lines += [f"  {name:24} Brim only: {about}" for name, about in own.OWN.items()]
    return "rows:\n" + "\n".join(lines)


def arguments() -> tuple[argparse.Namespace, dict[str, Program], list[str], list[str]]:
    """Options, brokers, rows, and figures of Brim only."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=rows_in_words(), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="shorter and smaller: to see that it works")
    parser.add_argument("--only", default="", help="rows whose names begin so, separated by commas")
    parser.add_argument("--rows", default="", help="rows with these names, separated by commas")
    parser.add_argument("--peers", default=",".join(PEERS), help="of " + ", ".join(PEERS))
    parser.add_argument(
        "--peer", action="append", default=[], metavar="NAME=COMMAND", help="another broker, by its command"
    )
    options = parser.parse_args()
    wanted, exact = tuple(options.only.split(",")), [it for it in options.rows.split(",") if it]
    names = [row for row in (*ROWS, *own.OWN) if (row in exact if exact else row.startswith(wanted))]
    peers = [name for name in options.peers.split(",") if name]
    if unknown := [it for it in exact if it not in names] + [it for it in peers if it not in PEERS]:
        parser.error(f"no such row or peer: {', '.join(unknown)}")
    if options.rounds < 1:
        parser.error(f"--rounds {options.rounds} is less than 1")
    programs: dict[str, Program] = {"brim": BRIM} | {name: PEERS[name] for name in peers}
    for text in options.peer:
        name, separator, command = text.partition("=")
        if not (name.isidentifier() and separator and command) or name in programs:
            parser.error(f"--peer {text!r} is not NAME=COMMAND with a new name of letters, digits and _")
        try:
            programs[name] = other(name, command)
        except ValueError as wrong:
            parser.error(str(wrong))
    return options, programs, [it for it in names if it in ROWS], [it for it in names if it in own.OWN]


def main() -> None:
    """Run the command."""
    options, programs, names, own_names = arguments()
    if (os.cpu_count() or 1) < 2:
        raise SystemExit("two cores are needed: one for each side")
    size = QUICK if options.quick else Size()
    rounds: list[Round] = []
    who = ["brim"]
    with tempfile.TemporaryDirectory(prefix="brim-bench-", dir="/dev/shm") as root:
        fresh = Path(root) / "fresh"
        fresh.mkdir()
        if names:
            with ExitStack() as stack:
                limits = generator_limits(names)
                running = started(programs, Path(root), stack)
                who = [broker.name for broker in running]
                for number in range(options.rounds + 1):  # the first warms up
                    remark = "" if number else " (warming up)"
                    print(f"   round {number} of {options.rounds}{remark} ...", flush=True)
                    rows = [row for row in names if number or not ROWS[row].fresh]
                    turn = running[number % len(running) :] + running[: number % len(running)]
                    rounds.append(one_round(programs, turn, rows, size if number else QUICK, fresh))
            table(rounds[1:], names, who, limits)
        own_found = own_figures(own_names, fresh, options.rounds, quick=options.quick)
        for name, value in own_found.items():
            print(f"{name:32}{value:12,.3f}")
    print(json.dumps(summary(rounds[1:], names, who, own_found)))


if __name__ == "__main__":
    main()
