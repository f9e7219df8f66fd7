"""Serve the web console of a broker: state, clients, topics, messages and bridges, and a management API.

    brim web                                   read only, on http://127.0.0.1:8080
    brim web --users web.users --admin ann     with log-in; `brim passwd web.users ann` adds the user
    brim web --config brim.toml                with the settings of [web]

The console is a process of its own, and uses the broker of this machine. It can change something only if it
runs as the user of the broker, and with --users. Other machines reach it only with users and TLS, which [web]
of the configuration sets. With `listen` in [web] the broker starts the console itself. Needs the extra `web`.

Exit status: 0 stopped, 2 wrong arguments, or not started.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec

from edge import logging_setup
from edge.cli.config_options import add_config_arguments, add_logging_arguments, configured
from edge.cli.standard_streams import limit_waits
from edge.config import loader
from edge.config.schema import Web
from edge.errors import EdgeError
from ringbuf.extras import install_extra

LISTEN = "127.0.0.1:8080"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim web`."""
    parser.add_argument(
        "--listen", metavar="HOST:PORT", help=f"address of the pages; port 0: a free one (default: {LISTEN})"
    )
    parser.add_argument("--users", type=Path, metavar="FILE", help="password file of `brim passwd`")
    parser.add_argument(
        "--admin", action="append", metavar="NAME", help="user who may do everything; may be repeated"
    )
    parser.add_argument(
        "--operator",
        action="append",
        metavar="NAME",
        help="user who may disconnect clients, publish and control bridges; all other users only read",
    )
    add_logging_arguments(parser)
    parser.add_argument(
        "--with-parent",
        action="store_true",
        help=argparse.SUPPRESS,  # the broker uses it: [web] is a line of JSON on standard input
    )
    add_config_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal."""
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise EdgeError("the web console is not installed", hint=install_extra("web"))
    web, runtime_dir = _settings(arguments)
    limit_waits()
    logging_setup.configure(arguments.log_level, arguments.log_format)
    from edge.web.run import run as serve

    def ready(url: str) -> None:
        if not arguments.with_parent:
            print(f"the console is at {url}", flush=True)

    with logging_setup.detached():
        return serve(web, runtime_dir, ready, with_parent=arguments.with_parent)


def _settings(arguments: argparse.Namespace) -> tuple[Web, Path | None]:
    """Settings of the console, and the runtime directory; None: the default one. Raises ConfigError."""
    if arguments.with_parent:
        line = sys.stdin.buffer.readline()
        web = msgspec.json.decode(line, type=Web, dec_hook=lambda kind, value: kind(value))
        return web, arguments.runtime_dir
    config = configured(arguments)
    changes: dict[str, object] = {"listen": arguments.listen or config.web.listen or LISTEN}
    if arguments.users is not None:
        changes["users_file"] = arguments.users.absolute()
    for option, key in (("admin", "admins"), ("operator", "operators")):
        if (names := getattr(arguments, option)) is not None:
            changes[key] = tuple(names)
    web = msgspec.structs.replace(config.web, **changes)
    config = loader.checked(msgspec.structs.replace(config, web=web), "the command line")
    chosen = arguments.runtime_dir is not None or arguments.config is not None
    return config.web, config.runtime_dir if chosen else None
