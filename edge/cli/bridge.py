"""Run a bridge as a process of its own, or look at the bridges of a running broker.

    brim bridge run lake --config brim.toml     the [[bridge]] of that name, which has in_broker = false
    brim bridge run --to file:///srv/lake       every stream of this machine's broker, without a file
    brim bridge status

A bridge reads the broker's rings and its log, and writes neither: it may be started and killed at any time.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading

import msgspec

from edge import logs
from edge.cli import EXIT_ATTENTION
from edge.cli.configuration import add_config_arguments, add_runtime_argument, configured
from edge.cli.notify import notify
from edge.cli.words import count_in_words, seconds_in_words
from edge.config import Bridge as BridgeConfig
from edge.config import Config
from edge.control import Connection, Report, Status
from edge.errors import EdgeError
from edge.logs import pairs
from edge.telling import Telling
from edge.terminal import escaped

__all__ = ["add_arguments", "run"]

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `brim bridge` takes."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="run | status")
    running = verbs.add_parser("run", help="drain until it is told to stop")
    running.add_argument("name", nargs="?", help="of the [[bridge]]; not needed when there is one")
    running.add_argument("--to", metavar="URL", help="instead of a [[bridge]]: drain all streams there")
    running.add_argument("--log-level", choices=logs.LEVELS, default="info")
    running.add_argument("--log-format", choices=logs.FORMATS, default="text")
    add_config_arguments(running)
    status = verbs.add_parser("status", help="the bridges of a running broker")
    status.add_argument("--json", action="store_true")
    add_runtime_argument(status)


def run(arguments: argparse.Namespace) -> int:
    """The exit status."""
    return _drain(arguments) if arguments.what == "run" else _show(arguments)


def _drain(arguments: argparse.Namespace) -> int:
    from bridge.runner import Bridge
    from edge.cli.assembly import bridge_settings

    logs.configure(arguments.log_level, arguments.log_format)
    config = configured(arguments)
    chosen = _chosen(arguments, config)
    telling = Telling(chosen.name, config.runtime_dir)
    bridge = Bridge(bridge_settings(chosen, config), moved=telling.moved)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: _stop(stopping, number))
    bridge.start()
    telling.start()
    notify("READY=1")
    while not stopping.wait(1.0) and bridge.state().condition != "failed":
        pass
    notify("STOPPING=1")
    bridge.stop()
    telling.stop()
    return EXIT_ATTENTION if bridge.state().condition == "failed" else 0


def _stop(stopping: threading.Event, number: int) -> None:
    """The first signal; the next one has its default effect."""
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_DFL)
    log.info("signal %s", pairs(name=signal.Signals(number).name))
    stopping.set()


def _chosen(arguments: argparse.Namespace, config: Config) -> BridgeConfig:
    if arguments.to is not None:
        return BridgeConfig(name=arguments.name or "bridge", to=arguments.to)
    names = [bridge.name for bridge in config.bridge]
    if arguments.name is None and len(names) == 1:
        return config.bridge[0]
    for bridge in config.bridge:
        if bridge.name == arguments.name:
            return bridge
    hint = (
        f"the [[bridge]]s are {', '.join(names)}"
        if names
        else "name a --config with a [[bridge]], or use --to URL"
    )
    raise EdgeError(f"there is no bridge {arguments.name or ''}".rstrip(), hint=hint)


def _show(arguments: argparse.Namespace) -> int:
    from edge.cli.status import TROUBLED

    with Connection(arguments.runtime_dir) as connection:
        bridges = connection.ask(Status(), Report).report["bridges"]
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(bridges), indent=2).decode() + "\n")
    elif not bridges:
        print("this broker runs no bridge")
    for it in bridges if not arguments.json else ():
        behind = f"{count_in_words(it['lag_records'])} records behind"
        waits = f", the oldest for {seconds_in_words(it['lag_s'])}" if it["lag_records"] else ""
        done = (
            f"{count_in_words(it['totals']['records'])} drained, {it['totals']['lost_records']} declared lost"
        )
        print(escaped(f"{it['name']}: {it['condition']}, {behind}{waits}; {done}; to {it['to']}"))
        if it["last_error"]:
            print(escaped(f"  {it['last_error']}; {it['remedy']}"))
    return EXIT_ATTENTION if any(it["condition"] in TROUBLED for it in bridges) else 0
