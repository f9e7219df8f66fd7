"""Options of the verbs that read logs: the log, and the part of it."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.argument_types import directory
from edge.cli.config_options import add_config_arguments, configured
from edge.cli.exit_status import Exit
from edge.cli.humanize import counted
from edge.errors import EdgeError
from edge.local.running_log import log_directory_of
from edge.log.log_place import PLACE_HELP
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_filter
from edge.streams.ring_files import stream_of

if TYPE_CHECKING:
    from edge.log.offline_reader import LogView, ScanPosition

_NEGATIVE_PLACE = re.compile(r"-\.?\d")


def accept_negative_places(parser: argparse.ArgumentParser) -> None:
    """Let options take values like `-15m`; by default argparse accepts only plain negative numbers."""
    parser._negative_number_matcher = _NEGATIVE_PLACE


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --log, --config and --state-dir."""
    parser.add_argument(
        "--log",
        type=directory,
        metavar="DIR",
        help="directory of the log (default: that of the configuration, otherwise of the running broker)",
    )
    add_config_arguments(parser)


def add_part_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --from (--since), --until, --topic, --stream and --ring."""
    accept_negative_places(parser)
    parser.add_argument(
        "--from", "--since", dest="first", metavar="PLACE", default="", help=f"first record: {PLACE_HELP}"
    )
    parser.add_argument(
        "--until", metavar="PLACE", default="", help="end, as --from; exclusive (default: end of the log)"
    )
    add_filter_arguments(parser)


def add_filter_arguments(group: argparse._ActionsContainer) -> None:
    """Add --topic, --stream and --ring."""
    group.add_argument(
        "-t",
        "--topic",
        action="append",
        default=[],
        metavar="FILTER",
        help="topic filter; may be repeated (default: all)",
    )
    for name in ("stream", "ring"):
        group.add_argument(
            f"--{name}",
            action="append",
            default=[],
            metavar="NAME",
            help=f"only this {name}; may be repeated",
        )


def log_directory(arguments: argparse.Namespace) -> Path:
    """Directory of the logs: of --log, of the configuration, or of the running broker.

    Raises ConfigError, NoAnswer, AccessDenied.
    """
    directory: Path | None = arguments.log
    if directory is not None:
        return directory.absolute()
    if arguments.config is None and arguments.state_dir is None:
        running = log_directory_of(arguments.runtime_dir)
        if running is not None:
            return running
    ours = {key: getattr(arguments, key) for key in ("config", "state_dir", "runtime_dir")}
    return configured(argparse.Namespace(**ours)).log_directory


def chosen_rings(arguments: argparse.Namespace, rings: Sequence[str]) -> list[str]:
    """Rings that the options select from `rings`. Raises EdgeError for an unknown name."""
    streams = {stream_of(ring) for ring in rings}
    for option, names, known in (
        ("stream", arguments.stream, streams),
        ("ring", arguments.ring, set(rings)),
    ):
        if unknown := [name for name in names if name not in known]:
            hint = f"the log has {', '.join(sorted(known))}" if known else "the log has no records"
            raise EdgeError(f"--{option} {unknown[0]}: the log has no such name", hint=hint)
    for topic_filter in arguments.topic:
        try:
            check_filter(topic_filter)
        except ProtocolError as error:
            raise EdgeError(f"--topic: {error.detail}", hint="correct the filter") from error
    if not arguments.stream and not arguments.ring:
        return list(rings)
    return [ring for ring in rings if ring in arguments.ring or stream_of(ring) in arguments.stream]


def status_of(view: LogView, position: ScanPosition, verb: str) -> Exit:
    """Exit status of a verb that has read up to `position`; reports the records that were missing."""
    damage = list(view.damage())
    if not position.missing and not damage:
        return Exit.OK
    for place, reason in damage:
        print(f"brim {verb}: {place}: {reason}", file=sys.stderr)
    for ring, epoch, first, last in position.gaps:
        print(f"brim {verb}: ring {ring}, epoch {epoch}: offsets {first} to {last} missing", file=sys.stderr)
    if position.missing:
        text = f"{counted(position.missing, 'record')} missing: damaged, or removed meanwhile"
        print(f"brim {verb}: {text}", file=sys.stderr)
    print("  see `brim segments verify`", file=sys.stderr)
    return Exit.INCOMPLETE
