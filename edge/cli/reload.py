"""Read passwords, access rules and certificates again, in a running broker.

    brim reload                         as SIGHUP, and reports which files are in force
    brim reload --config brim.toml      and names the settings of that file that need a restart

A file that is not valid changes nothing: its earlier content stays in force. Only the broker's own user and
root may reload.

Exit status: 0 done, 1 a file is not valid, 2 wrong arguments, 3 no broker is reachable, 4 refused.
"""

from __future__ import annotations

import argparse

import msgspec

from edge.cli.config import changes
from edge.cli.config_options import add_config_arguments, configured
from edge.cli.exit_status import Exit
from edge.local.protocol import Connection, Reload, Reloaded, SettingList, Settings
from edge.terminal_escape import escaped

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim reload`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    wanted = configured(arguments) if arguments.config else None
    with Connection(arguments.runtime_dir or (wanted.runtime_dir if wanted else None)) as connection:
        answer = connection.request(Reload(), Reloaded)
        running = connection.request(Settings(), SettingList).settings
    restart = [] if wanted is None else [name for name, _, _ in changes(running, wanted)]
    if arguments.json:
        facts = {"applied": answer.applied, "failed": answer.failed, "needs_restart": restart}
        print(msgspec.json.encode(facts).decode())
    else:
        lines = [f"in force       {name}" for name in answer.applied]
        lines += [f"not valid      {problem}" for problem in answer.failed]
        lines += [f"needs restart  {name}" for name in restart]
        print("\n".join(map(escaped, lines or ["there are no files to read again"])))
    return Exit.INCOMPLETE if answer.failed else 0
