"""The arguments that say where a broker is and what it is told: the same for every verb that has them."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from edge import config
from edge.config import Config, Listener

__all__ = ["add_config_arguments", "add_runtime_argument", "configured"]


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """--config and what overrides it."""
    parser.add_argument(
        "-c", "--config", type=Path, metavar="FILE", help="TOML; without it every default holds"
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="log, checkpoints and epochs: a disk")
    add_runtime_argument(parser)


def add_runtime_argument(parser: argparse.ArgumentParser) -> None:
    """--runtime-dir: which broker of this machine."""
    parser.add_argument(
        "--runtime-dir", type=Path, metavar="DIR",
        help="rings and sockets: memory ($RUNTIME_DIRECTORY, else /dev/shm/brim-UID)",
    )  # fmt: skip


def configured(arguments: argparse.Namespace) -> Config:
    """The configuration, with what the command line overrides.  Raises ConfigError."""
    settings = config.load(arguments.config) if arguments.config else config.parse("")
    changes: dict[str, object] = {}
    for key in ("runtime_dir", "state_dir"):
        if getattr(arguments, key) is not None:
            changes[key] = getattr(arguments, key).absolute()
    if getattr(arguments, "port", None) is not None or getattr(arguments, "host", None) is not None:
        first = settings.listener[0] if settings.listener else Listener()
        port = first.port if arguments.port is None else arguments.port
        first = msgspec.structs.replace(first, host=arguments.host or first.host, port=port)
        changes["listener"] = (first, *settings.listener[1:])
    return config.checked(msgspec.structs.replace(settings, **changes), "the command line")
