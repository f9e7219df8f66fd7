"""List or remove sessions of MQTT clients.

    brim sessions [ls]                  every session: client, user, address and number of queued records
    brim sessions rm CLIENT_ID          remove a session with its connection and its queue

Removing a session frees its client identifier. Only the broker's own user and root may remove sessions.
Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable, 4 refused, with the reason.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec

from edge.cli.config_options import add_runtime_argument
from edge.cli.humanize import count_in_words
from edge.errors import EdgeError
from edge.local.protocol import Connection, Done, RemoveSession, SessionList, Sessions
from edge.terminal_escape import escaped

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `brim sessions`."""
    add_runtime_argument(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument(
        "what",
        nargs="?",
        choices=("ls", "rm"),
        default="ls",
        help="ls: list sessions (default); rm: remove a session",
    )
    parser.add_argument(
        "client_id", nargs="?", metavar="CLIENT_ID", help="client identifier of the session to remove"
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    if (arguments.what == "rm") != (arguments.client_id is not None):
        raise EdgeError("rm takes a client identifier, ls takes none", hint="brim sessions rm CLIENT_ID")
    with Connection(arguments.runtime_dir) as connection:
        if arguments.what == "rm":
            connection.ask(RemoveSession(arguments.client_id), Done)
            print(escaped(f"session of {arguments.client_id} removed"))
            return 0
        for row in _all(connection):
            print(msgspec.json.encode(row).decode() if arguments.json else escaped(_line(row)))
    return 0


def _all(connection: Connection) -> Iterator[dict[str, Any]]:
    first, more = 0, True
    while more:
        page = connection.ask(Sessions(first), SessionList)
        yield from page.sessions
        first, more = first + len(page.sessions), page.more and bool(page.sessions)


def _line(row: dict[str, Any]) -> str:
    user = f", user {row['username']}" if row["username"] is not None else ""
    return (
        f"{row['client_id']}: {'connected' if row['connected'] else 'away'}{user}, {row['transport']} "
        f"{row['address'] or 'local'}, {count_in_words(row['subscriptions'])} subscriptions, "
        f"{count_in_words(row['queued'])} queued, {count_in_words(row['in_flight'])} in flight"
    )
