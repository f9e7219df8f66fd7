"""Show or cancel delayed messages of the broker of this machine.

    brim delayed [ls]           waiting messages, with number, topic, time and the first bytes
    brim delayed cancel ID ...  remove messages by number

A client publishes to $delayed/SECONDS/TOPIC; the broker publishes the message to TOPIC after SECONDS. Only
the broker's own user and root may cancel.

Exit status: 0 done, 1 no message with one of the numbers waits, 2 wrong arguments, 3 no broker is reachable,
4 refused, with the reason.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import msgspec

from edge.cli.config_options import add_broker_arguments
from edge.cli.exit_status import Exit
from edge.cli.humanize import bytes_in_words, counted, seconds_in_words
from edge.cli.listing import TOPIC_COLUMN, Column, Row, add_listing_arguments, print_listing
from edge.errors import EdgeError
from edge.local.payloads import payload_fields, short_payload
from edge.local.protocol import CancelDelayed, Cancelled, Connection, Delayed, DelayedList

IDS_MAX = 1_000  # of one request


def _due_in_s(row: Row) -> float:
    return max(float(row["due_unix_ns"]) / 1e9 - time.time(), 0)


COLUMNS = (
    Column("due", lambda row: seconds_in_words(_due_in_s(row)), lambda row: -row["due_unix_ns"]),
    Column("id", lambda row: str(row["id"]), lambda row: row["id"]),
    TOPIC_COLUMN,
    Column("size", lambda row: bytes_in_words(row["size_bytes"]), lambda row: row["size_bytes"]),
    Column("value", lambda row: short_payload(row["payload"]), lambda row: short_payload(row["payload"])),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim delayed`."""
    parser.add_argument(
        "what", nargs="?", choices=("ls", "cancel"), default="ls", help="ls: list (default); cancel: remove"
    )
    parser.add_argument("ids", nargs="*", type=int, metavar="ID", help="number of a message, as ls shows it")
    add_listing_arguments(parser, COLUMNS, "messages")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run `brim delayed` and return its exit status."""
    if (arguments.what == "cancel") != bool(arguments.ids):
        hint = "write `brim delayed cancel 17 18`, or `brim delayed ls`"
        raise EdgeError("cancel needs numbers of messages, and ls has none", hint=hint)
    with Connection(arguments.runtime_dir) as connection:
        if arguments.what == "cancel":
            return _cancel(connection, arguments.ids, as_json=arguments.json)
        print_listing(_messages(connection), COLUMNS, arguments, _facts)
    return 0


def _messages(connection: Connection) -> Iterator[Row]:
    after: tuple[int, int] | None = (-1, 0)
    while after is not None:
        page = connection.request(Delayed(after), DelayedList)
        yield from page.messages
        after = (page.messages[-1]["due_ns"], page.messages[-1]["id"]) if page.more else None


def _facts(row: Row) -> Row:
    """The row for --json, with the keys of `brim sub --json`."""
    facts = {
        "id": row["id"],
        "topic": row["topic"],
        "qos": row["flags"] & 3,
        "retain": bool(row["flags"] & 4),
    }
    return facts | {
        "due_unix_ns": row["due_unix_ns"],
        "size_bytes": row["size_bytes"],
        **payload_fields(row["payload"]),
    }


def _cancel(connection: Connection, ids: list[int], *, as_json: bool) -> int:
    cancelled: list[int] = []
    for first in range(0, len(ids), IDS_MAX):
        cancelled += connection.request(CancelDelayed(tuple(ids[first : first + IDS_MAX])), Cancelled).ids
    missing = sorted({*ids} - {*cancelled})
    if as_json:
        print(msgspec.json.encode({"cancelled": cancelled, "missing": missing}).decode())
    else:
        print(f"{counted(len(cancelled), 'message')} cancelled")
        if missing:
            print(f"not waiting: {' '.join(map(str, missing))}")
    return Exit.INCOMPLETE if missing else Exit.OK
