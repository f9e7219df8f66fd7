"""Simulate devices that publish: values that drift, rates, faults, thousands of clients.

    brim sim --init > devices.toml       a commented plan to begin with
    brim sim devices.toml                until Ctrl-C, which prints the counts
    brim sim devices.toml --duration 1min --json

The plan is a TOML file: devices with their number, topics, payloads with $values, rates, QoS and faults
(messages left out, outliers, broken connections). Each device is an MQTT client of its own.

Exit status: 0 done, 1 messages or connections failed, 2 the plan or an argument is not valid, 3 no device
could connect.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from edge.cli.argument_types import positive, seconds
from edge.cli.exit_status import Exit
from edge.cli.humanize import count_in_words, counted
from edge.cli.mqtt_options import add_connection_arguments, client_of, run_verb
from edge.client import Client
from edge.errors import EdgeError
from edge.sim.device import FleetCounts
from edge.sim.fleet import simulate
from edge.sim.plan import FIRST_PLAN, FleetPlan, load
from edge.terminal_escape import escaped

CONNECT_RATE = 500.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim sim`."""
    parser.add_argument("plan", nargs="?", type=Path, metavar="FILE", help="plan of the devices, in TOML")
    parser.add_argument("--init", action="store_true", help="print a commented plan")
    parser.add_argument(
        "--duration", type=seconds, metavar="TIME", help="end after this time (default: never)"
    )
    parser.add_argument(
        "--connect-rate",
        type=positive,
        default=CONNECT_RATE,
        metavar="N",
        help="connections opened per second (default: 500)",
    )
    parser.add_argument("--json", action="store_true", help="print the counts as one JSON object")
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    if arguments.init:
        print(FIRST_PLAN, end="")
        return 0
    if arguments.plan is None:
        raise EdgeError("sim needs a plan", hint="`brim sim --init > devices.toml` writes one")
    plan = load(arguments.plan)
    return run_verb("sim", _simulate(arguments, plan), as_json=arguments.json)


async def _simulate(arguments: argparse.Namespace, plan: FleetPlan) -> Exit:
    client_of(arguments)  # so that a wrong option is an error before anything starts
    counts = await simulate(
        plan,
        _connect(arguments),
        duration_s=arguments.duration,
        connect_rate=arguments.connect_rate,
        tick=_show if sys.stderr.isatty() else lambda _: None,
    )
    if arguments.json:
        print(msgspec.json.encode(counts).decode())
    else:
        print(_words(counts))
        if counts.last_error:
            print(f"last error: {escaped(counts.last_error)}")
    if counts.refused and not counts.published:
        return Exit.CANNOT_CONNECT
    return Exit.INCOMPLETE if counts.failed or counts.refused else Exit.OK


def _connect(arguments: argparse.Namespace) -> Callable[[str], Client]:
    def connect(name: str) -> Client:
        own = copy.copy(arguments)
        own.id = name
        return client_of(own)

    return connect


def _show(counts: FleetCounts) -> None:
    print(f"\r\x1b[K{counts.connected} connected, {_words(counts)}", end="", file=sys.stderr, flush=True)


def _words(counts: FleetCounts) -> str:
    return (
        f"{count_in_words(counts.published)} published, {count_in_words(counts.failed)} failed, "
        f"{counts.missing} missing, {counted(counts.outliers, 'outlier')}, {counted(counts.cuts, 'cut')}, "
        f"{counts.refused} refused"
    )
