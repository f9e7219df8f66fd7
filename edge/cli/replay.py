"""Send records of a log again: to standard output, an MQTT broker or ZeroMQ subscribers.

    brim replay --from -15m --topic 'plant/+/temp'                    lines of JSON
    brim replay --from 2026-11-21T14:00 --stream press --to mqtt://127.0.0.1:1883 --prefix again/
    brim replay --from -1h --topic 'plant/+/temp' --plot value         a plot in the terminal
    brim replay --to zmq --speed 10                                   ten times the original rate

The broker of the log may run: replay locks nothing and reads durable records. Records of several rings are
merged by time. Exit status: 0 done, 1 done, but records were missing (damaged, unreadable or deleted by
retention), 2 no such log or place, 3 no broker is reachable or the connection broke, 4 refused by the broker.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

from edge.cli.argument_types import at_least_one, positive, remap, speed
from edge.cli.exit_status import Exit
from edge.cli.humanize import counted
from edge.cli.log_options import (
    add_log_arguments,
    add_part_arguments,
    chosen_rings,
    log_directory,
    status_of,
)
from edge.cli.mqtt_options import UsageError, add_connection_arguments, run_verb
from edge.cli.progress import progress
from edge.cli.replay_targets import ReplayTarget, target
from edge.log.log_place import place_of
from edge.log.offline_reader import LogRecord, LogView, ScanPosition

LOOK_S = 0.2  # between two checks for new records, with --follow
TURN_RECORDS = 256  # then other tasks run: keep-alives, acknowledgements
LATE_ENOUGH_S = 0.001  # shorter times are not worth a sleep


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim replay`."""
    add_part_arguments(parser)
    parser.add_argument(
        "--to",
        metavar="TARGET",
        default="stdout",
        help="target: stdout (default), mqtt://HOST:PORT, zmq, ipc://PATH, tcp://HOST:PORT",
    )
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue with new records until interrupted"
    )
    parser.add_argument("-C", "--count", type=at_least_one, metavar="N", help="end after N records")
    parser.add_argument(
        "--plot",
        metavar="FIELD",
        help="plot a number over time: a field of JSON payloads such as motor.temp; .: the payload itself",
    )
    pace = parser.add_mutually_exclusive_group()
    pace.add_argument(
        "--rate", type=positive, metavar="N", help="highest rate in records per second (default: no limit)"
    )
    pace.add_argument(
        "--speed",
        type=speed,
        metavar="X",
        help="X times the original rate, 0.001 to 1,000,000; 1: the original rate",
    )
    parser.add_argument(
        "--format", choices=("json", "raw"), default="json", help="form of lines (default: %(default)s)"
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="with --format raw: print the topic before each payload"
    )
    mqtt = parser.add_argument_group("to MQTT")
    mqtt.add_argument("--prefix", default="", metavar="TEXT", help="prefix of the new topics, such as again/")
    mqtt.add_argument(
        "--remap",
        type=remap,
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="new beginning of topics that begin with OLD, such as '$tenant/acme/=acme/'; may be repeated",
    )
    mqtt.add_argument(
        "-q", "--qos", type=int, choices=(0, 1, 2), help="QoS of all records (default: as published)"
    )
    mqtt.add_argument("-r", "--retain", action="store_true", help="publish retained messages as retained")
    mqtt.add_argument(
        "--window",
        type=at_least_one,
        default=100,
        metavar="N",
        help="messages in flight (default: %(default)s)",
    )
    add_log_arguments(parser)
    add_connection_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `brim replay` and return its exit status."""
    return run_verb("replay", _replay(arguments, log_directory(arguments)))


async def _replay(arguments: argparse.Namespace, directory: Path) -> Exit:
    _check(arguments)
    first, until = place_of(arguments.first, "--from"), place_of(arguments.until, "--until")
    view = LogView(directory)
    rings = chosen_rings(arguments, view.rings())
    cursor = ScanPosition(view, rings, first, until, arguments.topic)
    sent = 0
    is_quiet = arguments.plot is not None or arguments.to != "stdout"
    async with target(arguments, directory) as to:
        with progress("replaying", cursor.ahead(), unit="records", shown=is_quiet) as advance:
            pace, reported = _Pace(arguments), 0
            try:
                async for record in _records(view, cursor, to, follow=arguments.follow):
                    await pace.wait(record)
                    await to.send(record)
                    sent += 1
                    if sent == arguments.count:
                        break
                    if sent % TURN_RECORDS == 0:
                        advance(cursor.passed - reported)
                        reported = cursor.passed
                        await asyncio.sleep(0)
            except asyncio.CancelledError:  # Ctrl-C is the normal end of --follow
                if not arguments.follow:
                    raise
            await to.flush()
    _report(arguments, sent, cursor.missing)
    return status_of(view, cursor, "replay")


async def _records(
    view: LogView, cursor: ScanPosition, to: ReplayTarget, *, follow: bool
) -> AsyncIterator[LogRecord]:
    """Existing records, and new ones with `follow`."""
    while True:
        for record in cursor.records():
            yield record
        if not follow:
            return
        await to.flush()
        await asyncio.sleep(LOOK_S)
        view.refresh()


def _report(arguments: argparse.Namespace, sent: int, missing: int) -> None:
    if arguments.to != "stdout":
        print(f"{counted(sent, 'record')} sent", file=sys.stderr)
    elif not sent and not missing:
        print("brim replay: no records in this part of the log", file=sys.stderr)
        print("  a new record is there when its sync has ended, at most a second later", file=sys.stderr)


def _check(arguments: argparse.Namespace) -> None:
    if arguments.follow and arguments.until:
        raise UsageError("--follow and --until exclude each other", hint="leave one of them out")
    if arguments.plot and (arguments.to != "stdout" or arguments.follow):
        raise UsageError("--plot excludes --to and --follow", hint="leave one of them out")


class _Pace:
    """Time at which each record is due."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._gap_s = 1 / arguments.rate if arguments.rate else 0.0
        self._speed: float = arguments.speed or 0.0
        self._begun_ns = 0
        self._due = time.monotonic()

    async def wait(self, record: LogRecord) -> None:
        """Wait until the record is due. After a delay records follow without a pause."""
        if self._speed:
            self._begun_ns = self._begun_ns or record.timestamp_ns
            await self._until(self._due + (record.timestamp_ns - self._begun_ns) / 1e9 / self._speed)
        elif self._gap_s:
            await self._until(self._due)
            self._due += self._gap_s

    @staticmethod
    async def _until(due: float) -> None:
        delay_s = due - time.monotonic()
        if delay_s > LATE_ENOUGH_S:
            await asyncio.sleep(delay_s)
