"""Show the configuration that a running broker uses, compare it with a file, edit or print a file.

    brim config [show [TEXT ...]]       every setting with its value and its source; TEXT: part of a name
    brim config diff FILE               settings of FILE that a running broker does not use yet
    brim config set NAME VALUE -c FILE  change a setting of FILE; comments and order stay
    brim config init                    a commented configuration file, on standard output

SOURCE is `default`, `configured` for a value of the file or of the command line, or `lowered` for a default
that the start has lowered to fit the memory. Passwords and keys are not shown, and diff does not compare
them. Only the broker's own user and root may read the configuration.

Exit status: 0 done, 1 diff: the file has other settings, 2 wrong arguments, 3 no broker is reachable,
4 refused.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edge.cli.config_options import add_runtime_argument
from edge.cli.exit_status import Exit
from edge.cli.listing import Column, add_listing_arguments, print_listing
from edge.config import loader
from edge.config.live_settings import is_live, public_changes
from edge.config.public_settings import default_settings, flat_settings
from edge.errors import EdgeError
from edge.local.protocol import Connection, SettingList, Settings
from edge.terminal_escape import escaped

FIRST_FILE = """\
# Configuration of Brim. Every setting is optional; docs/reference/configuration.md has all of them.
# Check the file with `brim check FILE`, and start with `brim run --config FILE`.

edge_id = "edge-1"                   # name of this machine, in each record of the lake
# state_dir = "/var/lib/brim"        # log, sessions and checkpoints, on disk

[[listener]]
host = "127.0.0.1"                   # programs of this machine; "::" for every address
port = 1883

# [[listener]]                       # devices of the network, with TLS
# host = "::"
# port = 8883
# tls = { certificate_file = "edge.pem", key_file = "edge.key" }

# [auth]
# password_file = "users"            # `brim passwd users NAME` adds a user
# acl_file = "acl"

# [[stream]]                         # topics that must survive a power cut
# name = "important"
# topics = ["plant/#"]
# durability = "disk"
# retain_s = 604800

# [[bridge]]                         # drain everything to an object store or a directory
# name = "lake"
# to = "file:///var/lib/brim/lake"

# [metrics]
# listen = "127.0.0.1:9464"          # for Prometheus
"""


def _column(name: str) -> Column:
    return Column(name, lambda row: _text(row[name]), lambda row: _text(row[name]))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


_SHOWN = tuple(map(_column, ("name", "value", "source")))
_CHANGED = tuple(map(_column, ("name", "running", "file")))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim config`."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("show", "diff", "set", "init"),
        default="show",
        help="show: settings in effect (default); diff: compare with a file; set: change a setting of "
        "a file; init: print a first file",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="TEXT",
        help="show: part of a name; diff: the file; set: name, as shown, and value",
    )
    parser.add_argument("-c", "--config", type=Path, metavar="FILE", help="set: the file to change")
    parser.add_argument("--set", action="store_true", help="show: only settings that are not the default")
    add_listing_arguments(parser, _SHOWN, "settings")
    add_runtime_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    if arguments.what == "set":
        return _set(arguments)
    if arguments.config is not None:
        raise EdgeError("--config is for `brim config set`", hint="`brim config diff FILE` reads a file")
    if arguments.what == "init":
        if arguments.names:
            raise EdgeError("init takes no file: it prints one", hint="brim config init > brim.toml")
        print(FIRST_FILE, end="")
        return 0
    if arguments.what == "diff" and len(arguments.names) != 1:
        raise EdgeError("diff needs one file", hint="brim config diff brim.toml")
    config = loader.load(Path(arguments.names[0])) if arguments.what == "diff" else None
    directory = arguments.runtime_dir or (config.runtime_dir if config is not None else None)
    with Connection(directory) as connection:
        answer = connection.request(Settings(), SettingList)
    if config is None:
        return _show(answer, arguments)
    changes = public_changes(answer.settings, config, answer.lowered)
    rows = [{"name": name, "running": now, "file": then} for name, now, then in changes]
    print_listing(rows, _CHANGED, arguments)
    return Exit.INCOMPLETE if rows else 0


def _show(answer: SettingList, arguments: argparse.Namespace) -> int:
    names = flat_settings(answer.settings)
    for text in arguments.names:
        if not any(text in name for name in names):
            raise EdgeError(f"no setting has {text!r} in its name", hint="`brim config show` has all names")
    print_listing(_settings(answer, arguments), _SHOWN, arguments)
    return 0


def _set(arguments: argparse.Namespace) -> int:
    if arguments.config is None or len(arguments.names) != 2:
        hint = "brim config set limits.topics_max 50000 --config brim.toml"
        raise EdgeError("set needs a name, a value and a file", hint=hint)
    from edge.cli.config_file import set_value

    changed = set_value(arguments.config, *arguments.names)
    for name, before, now in changed:
        print(escaped(f"{name} = {_text(now)} (before: {_text(before)})"))
    print(_next_step(changed))
    return 0


def _next_step(changed: Sequence[tuple[str, Any, Any]]) -> str:
    """The command that applies the changes."""
    if not changed:
        return "the file has that value already"
    if all(is_live(name) for name, _, _ in changed):
        return "`brim reload` applies the change"
    return "a restart of the broker applies the change"


def _settings(answer: SettingList, arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    defaults = default_settings(answer.settings, loader.parse(""))
    for name, value in flat_settings(answer.settings).items():
        is_default = name in defaults and defaults[name] == value
        source = "lowered" if name in answer.lowered else "default" if is_default else "configured"
        chosen = not arguments.names or any(text in name for text in arguments.names)
        if chosen and (source == "configured" or not arguments.set):
            yield {"name": name, "value": value, "source": source}
