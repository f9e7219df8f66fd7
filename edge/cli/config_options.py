"""Configuration options of the command line, equal for every verb that has them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from edge.cli.argument_types import directory, instance
from edge.logging_setup import FORMATS, LEVELS

if TYPE_CHECKING:
    from edge.config.schema import Config


def add_logging_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --log-level and --log-format of a process next to the broker."""
    parser.add_argument(
        "--log-level",
        choices=LEVELS,
        default="info",
        help="lowest level logged (default: %(default)s)",
    )
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="form of log lines (default: %(default)s)",
    )


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --config and the options that override it."""
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="configuration file (default: none)",
    )
    parser.add_argument(
        "--state-dir",
        type=directory,
        metavar="DIR",
        help="directory of log, sessions and checkpoints, on disk (default: state_dir of the configuration)",
    )
    add_runtime_argument(parser)


def add_broker_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of verbs that need only the runtime directory of a broker of this machine."""
    parser.add_argument(
        "-c",
        "--config",
        dest="config_of_broker",
        type=Path,
        metavar="FILE",
        help="configuration file of the broker, which names its runtime directory (default: none)",
    )
    add_runtime_argument(parser)


def add_runtime_argument(parser: argparse.ArgumentParser) -> None:
    """Add --runtime-dir and --instance, which select a broker of this machine."""
    parser.add_argument(
        "--runtime-dir", type=directory, metavar="DIR",
        help="directory of rings and sockets, in memory (default: $RUNTIME_DIRECTORY, otherwise "
        "/dev/shm/brim-UID, otherwise /run/brim of a system service)",
    )  # fmt: skip
    parser.add_argument(
        "--instance",
        type=instance,
        metavar="NAME",
        help="one of several brokers of this machine: -NAME ends the default directories and edge_id "
        "(default: $BRIM_INSTANCE)",
    )


def use_config_of_broker(arguments: argparse.Namespace) -> None:
    """Set runtime_dir from --config of add_broker_arguments(), if it is not given. Raises ConfigError."""
    file = getattr(arguments, "config_of_broker", None)
    if file is not None and arguments.runtime_dir is None:
        from edge.config import loader  # not needed without --config

        arguments.runtime_dir = loader.load(file).runtime_dir


def configured(arguments: argparse.Namespace, *, again: bool = False) -> Config:
    """Configuration with the overrides of the command line. `again`: see load(). Raises ConfigError."""
    from edge.config import loader  # not needed for --help

    settings = loader.load(arguments.config, again=again) if arguments.config else loader.parse("")
    values: dict[str, object] = {}
    for key in ("runtime_dir", "state_dir", "host", "port", "log_level"):
        value = getattr(arguments, key, None)
        if value is not None:
            values[key] = str(value) if isinstance(value, Path) else value
    return loader.overridden(settings, values, "the command line")
