"""Apply changes of the configuration and its files to a running broker, as SIGHUP does.

    brim reload                         reports what is in effect now, and settings that need a restart
    brim reload --config brim.toml      compares with that file, if the broker uses another one

The broker reads its configuration file, passwords, access rules and certificates again. Applied at once:
limits, quotas, tenants, added streams, bridges, log_level, and the content of the files, with the payload
schemas of bridges. A mistake in any of them changes nothing. Only the broker's own user and root may reload.

Exit status: 0 done, 1 a file is not valid, a stream not added or a bridge not changed, 2 wrong arguments,
3 no broker is reachable, 4 refused.
"""

from __future__ import annotations

import argparse

import msgspec

from edge.cli.config_options import add_config_arguments, configured
from edge.cli.exit_status import Exit
from edge.config.live_settings import public_changes
from edge.local.protocol import Connection, Reload, Reloaded, SettingList, Settings
from edge.terminal_escape import escaped

RELOAD_S = 60.0  # a bridge completes its files in flight, which takes up to 30 s


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim reload`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_config_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    wanted = configured(arguments) if arguments.config else None
    directory = arguments.runtime_dir or (wanted.runtime_dir if wanted else None)
    with Connection(directory, timeout_s=RELOAD_S) as connection:
        answer = connection.request(Reload(), Reloaded)
        running = connection.request(Settings(), SettingList)
    restart = list(answer.needs_restart)
    if wanted is not None:
        differ = (name for name, _, _ in public_changes(running.settings, wanted, running.lowered))
        restart = sorted({*restart, *differ})
    if arguments.json:
        facts = {"applied": answer.applied, "failed": answer.failed, "needs_restart": restart}
        print(msgspec.json.encode(facts).decode())
    else:
        lines = [f"in force       {name}" for name in answer.applied]
        lines += [f"not applied    {problem}" for problem in answer.failed]
        lines += [f"needs restart  {name}" for name in restart]
        print("\n".join(map(escaped, lines or ["there are no changes"])))
    return Exit.INCOMPLETE if answer.failed else 0
