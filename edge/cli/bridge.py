"""Run a bridge as a process of its own; show and control bridges of this machine.

    brim bridge run lake --config brim.toml     the [[bridge]] of that name, with in_broker = false
    brim bridge run --to file:///srv/lake       all streams of the local broker, without a configuration file
    brim bridge status                          lag, losses, errors
    brim bridge pause lake; brim bridge resume lake
    brim bridge skip lake --stream cameras      skip waiting records; drained files declare them as skipped
    brim bridge skip lake --dry-run             only show the number of records and their offsets
    brim bridge backfill lake --stream default --partition 0 --from 5000
    brim bridge rename-edge press-1 press-7 --config brim.toml    after a change of edge_id

A bridge reads the rings and the log of the broker and writes neither: it may be started and killed at any
time.

Exit status: 0 done, 1 a bridge needs attention or has failed, 2 wrong arguments, 3 no broker or bridge is
reachable, 4 refused, 6 a bridge has lost records (`status`).
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import re
import signal
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from edge import logging_setup
from edge.cli.config_options import (
    add_broker_arguments,
    add_config_arguments,
    add_logging_arguments,
    configured,
)
from edge.cli.exit_status import Exit
from edge.cli.humanize import bytes_in_words, count_in_words, counted, seconds_in_words
from edge.cli.standard_streams import limit_waits
from edge.cli.status import does_not_answer, loss_lines
from edge.config.directories import runtime_directory
from edge.config.schema import NAME_PATTERN, NAME_RULE, Config
from edge.config.schema import Bridge as BridgeConfig
from edge.errors import BrokerUnreachable, EdgeError
from edge.local.protocol import Connection, Report, Status
from edge.local.upstream_reporter import UpstreamReporter
from edge.logging_setup import pairs
from edge.observe.health import TROUBLED
from edge.server.sd_notify import notify
from edge.terminal_escape import escaped

if TYPE_CHECKING:
    from bridge.drain.bridge import Bridge

YEAR_S = 365 * 86_400  # longer times are shown as no inflow

log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim bridge`."""
    verbs = parser.add_subparsers(
        dest="what", required=True, metavar="run | status | pause | resume | skip | backfill | rename-edge"
    )
    running = verbs.add_parser("run", help="run a bridge until SIGTERM")
    running.add_argument(
        "name", type=_name, nargs="?", metavar="NAME", help="name of the [[bridge]] (default: the only one)"
    )
    running.add_argument("--to", metavar="URL", help="drain all streams to this URL, without a [[bridge]]")
    add_logging_arguments(running)
    add_config_arguments(running)
    status = verbs.add_parser("status", help="show the bridges of this machine")
    status.add_argument(
        "name", type=_name, nargs="?", metavar="NAME", help="name of one bridge (default: all)"
    )
    _add_json(status)
    add_broker_arguments(status)
    _add_commands(verbs)
    renaming = verbs.add_parser(
        "rename-edge", help="change the edge id in the checkpoints of this machine's bridges"
    )
    renaming.add_argument("old", metavar="OLD", help="edge id under which the bridges have drained")
    renaming.add_argument("new", metavar="NEW", help="edge id of the present configuration")
    _add_json(renaming)
    add_config_arguments(renaming)


def _add_commands(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    helps = {
        "pause": "stop draining until `resume`; records stay in ring and log",
        "resume": "continue: after `pause`, during a back-off, or when the cause of a block is removed",
        "skip": "skip all waiting records; drained files declare them as skipped",
        "backfill": "drain again from an offset, together with new records",
    }
    for command, about in helps.items():
        verb = verbs.add_parser(command, help=about)
        verb.add_argument(
            "name", type=_name, nargs="?", metavar="NAME", help="name of the bridge (default: the only one)"
        )
        if command in {"skip", "backfill"}:
            required = command == "backfill"
            verb.add_argument(
                "--stream",
                required=required,
                metavar="NAME",
                help="stream; of a local producer STREAM@PRODUCER",
            )
            which = "partition (default: 0)" if required else "partition (default: all)"
            verb.add_argument(
                "--partition", type=int, metavar="N", default=0 if required else None, help=which
            )
        if command == "skip":
            verb.add_argument("--dry-run", action="store_true", help="only show what would be skipped")
        if command == "backfill":
            verb.add_argument(
                "--from", dest="first_offset", type=int, required=True, metavar="OFFSET", help="first offset"
            )
        _add_json(verb)
        add_broker_arguments(verb)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def _name(text: str) -> str:
    """Name of a bridge, which names of files and sockets contain."""
    if not re.fullmatch(NAME_PATTERN, text):
        raise argparse.ArgumentTypeError(f"invalid bridge name {text[:40]!r}; {NAME_RULE}")
    return text


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    verbs = {"run": _drain, "status": _show, "rename-edge": _rename_edge}
    return verbs.get(arguments.what, _send_command)(arguments)


def _drain(arguments: argparse.Namespace) -> int:
    from bridge.drain.bridge import Bridge
    from edge.server.bridge_settings import bridge_settings

    limit_waits()
    logging_setup.configure(arguments.log_level, arguments.log_format)
    config = configured(arguments)
    selection = _chosen(arguments, config)
    report_state = UpstreamReporter(selection.name, config.runtime_dir)
    with logging_setup.detached():
        bridge = Bridge(bridge_settings(selection, config), on_progress=report_state.report_progress)
        asyncio.run(_serve(bridge, report_state))
        bridge.stop()
        report_state.stop()
    return 0


async def _serve(bridge: Bridge, report_state: UpstreamReporter) -> None:
    """Run the bridge and its command socket until a signal."""
    from bridge.drain.control_socket import ControlSocket

    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, _stop, stopping, number)
    bridge.start()
    control = ControlSocket(bridge)
    await control.start()
    report_state.start()
    notify("READY=1")
    await stopping.wait()
    notify("STOPPING=1")
    await control.stop()


def _stop(stopping: asyncio.Event, number: int) -> None:
    """Handle the first signal; the next one has its default effect."""
    for other in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(other, signal.SIG_DFL)
    log.info("signal received %s", pairs(name=signal.Signals(number).name))
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


def _rename_edge(arguments: argparse.Namespace) -> int:
    from bridge.drain.rename import rename_edge
    from edge.server.bridge_settings import bridge_settings

    config = configured(arguments)
    if not config.bridge:
        raise EdgeError("there is no [[bridge]]", hint="name the --config of the broker")

    def effects() -> Iterator[str]:
        for bridge in config.bridge:
            yield rename_edge(bridge_settings(bridge, config), arguments.old, arguments.new)
        if config.edge_id != arguments.new:
            yield f'set edge_id = "{arguments.new}" in the configuration before the broker starts'

    return _print_done(effects(), as_json=arguments.json)


def _send_command(arguments: argparse.Namespace) -> int:
    from bridge.drain.control_socket import Backfill, Command, Pause, PreviewSkip, Resume, Skip, names, send

    directory = runtime_directory(arguments.runtime_dir)
    command: Command
    match arguments.what:
        case "pause":
            command = Pause()
        case "resume":
            command = Resume()
        case "skip":
            request = PreviewSkip if arguments.dry_run else Skip
            command = request(arguments.stream, arguments.partition)
        case _:
            command = Backfill(arguments.stream, arguments.partition, arguments.first_offset)
    name = arguments.name or _only(directory)
    if name not in (known := names(directory)):
        raise _not_running(name, known)
    return _print_done(send(directory, name, command), as_json=arguments.json)


def _not_running(name: str, known: Collection[str]) -> BrokerUnreachable:
    hint = f"choose one of: {', '.join(known)}" if known else "start one: `brim bridge run`"
    return BrokerUnreachable(f"no bridge {name} runs here", hint=hint)


def _print_done(effects: Iterable[str], *, as_json: bool) -> int:
    """Print the effects of a command. As text, each effect is printed as soon as it is known."""
    if as_json:
        print(msgspec.json.encode({"done": list(effects)}).decode())
    else:
        for effect in effects:
            print(escaped(effect), flush=True)
    return Exit.OK


def _only(directory: Path) -> str:
    from bridge.drain.control_socket import names

    bridge_names = names(directory)
    if len(bridge_names) == 1:
        return bridge_names[0]
    if not bridge_names:
        raise BrokerUnreachable("no bridges run here", hint="start one: `brim bridge run`")
    raise EdgeError(f"{len(bridge_names)} bridges run here", hint=f"name one of {', '.join(bridge_names)}")


def _show(arguments: argparse.Namespace) -> int:
    bridges = _states(arguments)
    if arguments.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(bridges), indent=2).decode() + "\n")
    elif not bridges:
        print("no bridge runs here")
    for bridge in bridges if not arguments.json else ():
        for line in _lines(bridge):
            print(escaped(line))
    troubled = any(bridge["condition"] in TROUBLED or bridge["stalled_s"] for bridge in bridges)
    if troubled:
        return Exit.INCOMPLETE
    return Exit.LOST if any(bridge["verdict"] == "lost" for bridge in bridges) else 0


def _states(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """State of the bridges that answer, and of those that never started, which only the broker knows."""
    from bridge.drain.control_socket import names, state_of
    from bridge.errors import BridgeUnreachable

    directory = runtime_directory(arguments.runtime_dir)
    states: dict[str, dict[str, Any]] = {}
    try:
        with Connection(arguments.runtime_dir) as connection:
            states = {
                state["name"]: state for state in connection.request(Status(), Report).report["bridges"]
            }
    except BrokerUnreachable:
        if not names(directory):
            raise
    for name in names(directory):
        with suppress(BridgeUnreachable):  # killed: only its socket file is left
            states[name] = state_of(directory, name)
    if arguments.name is not None and arguments.name not in states:
        raise _not_running(arguments.name, states)
    return [state for name, state in sorted(states.items()) if arguments.name in {None, name}]


def _lines(bridge: dict[str, Any]) -> Iterator[str]:
    if does_not_answer(bridge):
        yield f"{bridge['name']}: {bridge['condition']}; to {bridge['to']}"
        yield f"  {bridge['last_error']}; {bridge['remedy']}"
        return
    totals = bridge["totals"]
    behind = f"{counted(bridge['lag_records'], 'record')} behind"
    waits = f", the oldest for {seconds_in_words(bridge['lag_s'])}" if bridge["lag_records"] else ""
    lost = f"{count_in_words(bridge['lost_records'])} LOST" if bridge["lost_records"] else "0 lost"
    done = f"{count_in_words(totals['records'])} drained, {lost}"
    yield f"{bridge['name']}: {bridge['condition']}, {behind}{waits}; {done}; to {bridge['to']}"
    if bridge["backlog_records"]:
        yield f"  {count_in_words(bridge['backlog_records'])} of them wait until newer records are drained"
    yield from loss_lines(bridge)
    rate = (
        f"{bytes_in_words(bridge['bytes_s'])}/s by the last files"
        if bridge["bytes_s"]
        else "no file since its start"
    )
    left = bridge["buffer_left_s"]
    room = (
        "nothing comes in"
        if left is None or left > YEAR_S
        else f"the buffer lasts {seconds_in_words(left)} at the present rate"
    )
    yield f"  {rate}; {room}"
    if totals["damaged_records"]:
        yield f"  {count_in_words(totals['damaged_records'])} did not verify in memory, and were passed over"
    if totals["dead_letters"]:
        yield f"  {count_in_words(totals['dead_letters'])} dead letters"
    if rescued := totals.get("rescued_records"):  # absent: the broker is older
        yield f"  {counted(rescued, 'record')} with values that do not fit the payload schema"
    if any((omitted := bridge.get("omitted", {})).values()):
        causes = ", ".join(f"{count_in_words(count)} {cause}" for cause, count in omitted.items() if count)
        yield f"  not passed on: {causes}"
    if (merging := bridge.get("merging", {})) and merging["merged_files"]:
        merged, written = merging["merged_files"], merging["written_files"]
        yield f"  {merged} small files of closed days were merged into {written}"
    if merging and merging["error"]:
        yield f"  files are not merged: {merging['error']}"
    if bridge["stalled_s"]:
        yield f"  stalled: records wait, and none was drained for {seconds_in_words(bridge['stalled_s'])}"
    if bridge["last_error"]:
        yield (
            f"  {bridge['last_error']}; {bridge['remedy']}"
            if bridge["remedy"]
            else f"  {bridge['last_error']}"
        )
