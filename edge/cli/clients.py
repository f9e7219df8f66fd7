"""Show, disconnect or forget MQTT clients.

    brim clients [ls [PATTERN ...]]     every client; PATTERN: a part of its identifier, user or address
    brim clients show CLIENT_ID ...     one client in detail, with its subscriptions
    brim clients kick CLIENT_ID ...     disconnect a client (MQTT 5: reason 0x98); its session stays
    brim clients forget CLIENT_ID ...   remove a session with its connection and its queue

In a PATTERN `*` stands for any text, and the pattern must then match the whole value. Only the broker's own
user and root may kick and forget. A client that was kicked may connect again: remove its user or its rights,
and run `brim reload`, to keep it away. The former name of this verb, `sessions`, works too.

A client of a tenant has the identifier $tenant/NAME/CLIENT_ID here.

Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable, 4 refused, with the reason.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from edge.cli.config_options import add_broker_arguments
from edge.cli.humanize import count_in_words, seconds_in_words
from edge.cli.listing import (
    Column,
    Row,
    add_listing_arguments,
    number_column,
    print_listing,
    text_column,
)
from edge.errors import EdgeError
from edge.local.protocol import (
    Connection,
    Disconnect,
    Done,
    Overview,
    RemoveSession,
    Report,
    Session,
    SessionDetails,
    SessionList,
    Sessions,
)
from edge.terminal_escape import escaped

_MATCHED = ("client_id", "username", "address")


def _since(row: Row) -> str:
    if row["since_s"] is None:
        return "-"
    return seconds_in_words(max(time.time() - row["since_s"], 0))


def _dropped(row: Row) -> str:
    return ", ".join(f"{count_in_words(count)} {cause}" for cause, count in row["dropped"].items())


COLUMNS = (
    text_column("client", "client_id"),
    Column("tenant", lambda row: row["tenant"] or "-", lambda row: row["tenant"]),
    Column("user", lambda row: row["username"] or "-", lambda row: row["username"]),
    Column(
        "address",
        lambda row: f"{row['transport']} {row['address'] or 'local'}",
        lambda row: row["address"],
    ),
    Column("mqtt", lambda row: row["protocol"] or "away", lambda row: row["protocol"]),
    Column("since", _since, lambda row: row["since_s"]),
    Column("keepalive", lambda row: f"{row['keep_alive_s'] or '-'}", lambda row: row["keep_alive_s"]),
    number_column("subscriptions", "subscriptions"),
    number_column("queued", "queued"),
    number_column("inflight", "in_flight"),
    number_column("delivered", "delivered"),
    Column("dropped", _dropped, lambda row: sum(row["dropped"].values())),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim clients`."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("ls", "show", "kick", "forget", "rm"),
        default="ls",
        help="ls: list clients (default); show: details; kick: disconnect; forget, or rm: remove the session",
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="CLIENT_ID",
        help="client identifiers; of ls: patterns, of which one matches",
    )
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--connected", action="store_true", help="ls: only connected clients")
    state.add_argument("--away", action="store_true", help="ls: only sessions of absent clients")
    parser.add_argument("--tenant", metavar="NAME", help="ls: only clients of this tenant")
    parser.add_argument("--dropping", action="store_true", help="ls: only clients that have lost messages")
    add_listing_arguments(parser, COLUMNS, "clients")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    if arguments.what != "ls" and not arguments.names:
        hint = f"brim clients {arguments.what} CLIENT_ID"
        raise EdgeError(f"{arguments.what} needs a client identifier", hint=hint)
    with Connection(arguments.runtime_dir) as connection:
        if arguments.what == "ls":
            if arguments.tenant is not None:
                _check_tenant(connection, arguments.tenant)
            print_listing(_chosen(connection, arguments), COLUMNS, arguments)
        for name in arguments.names if arguments.what != "ls" else ():
            if arguments.what == "show":
                _show(connection.request(Session(name), SessionDetails), as_json=arguments.json)
            else:
                _end(connection, name, arguments)
    return 0


def _check_tenant(connection: Connection, name: str) -> None:
    status = connection.request(Overview(), Report).report
    tenants = [row["name"] for row in status["tenants"]]
    if name not in tenants and "tenants" not in status.get("shortened", ()):
        hint = (
            f"choose one of: {', '.join(tenants)}" if tenants else "leave --tenant out: the broker has none"
        )
        raise EdgeError(f"there is no tenant {name!r}", hint=hint)


def all_clients(connection: Connection) -> Iterator[Row]:
    """Rows of all sessions, a page at a time."""
    first, more = 0, True
    while more:
        page = connection.request(Sessions(first), SessionList)
        yield from page.sessions
        first, more = first + len(page.sessions), page.more and bool(page.sessions)


def _chosen(connection: Connection, arguments: argparse.Namespace) -> Iterator[Row]:
    patterns = [name if "*" in name else f"*{name}*" for name in arguments.names]
    for row in all_clients(connection):
        texts = [row[name] or "" for name in _MATCHED]
        if arguments.tenant is not None and row["tenant"] != arguments.tenant:
            continue
        if patterns and not any(fnmatchcase(text, pattern) for text in texts for pattern in patterns):
            continue
        state = arguments.connected or arguments.away
        if (not state or row["connected"] == arguments.connected) and (
            row["dropped"] or not arguments.dropping
        ):
            yield row


def _end(connection: Connection, name: str, arguments: argparse.Namespace) -> None:
    kick = arguments.what == "kick"
    connection.request(Disconnect(name) if kick else RemoveSession(name), Done)
    done = "disconnected" if kick else "forgotten"
    if arguments.json:
        print(msgspec.json.encode({"client_id": name, done: True}).decode())
    else:
        print(escaped(f"client {name} is {done}" if kick else f"session of {name} removed"))


def _show(details: SessionDetails, *, as_json: bool) -> None:
    row = details.session
    if as_json:
        print(msgspec.json.encode(row | {"filters_not_shown": details.not_shown}).decode())
        return
    for line in _lines(row):
        print(escaped(line))
    if details.not_shown:
        print(f"  and {count_in_words(details.not_shown)} more")


def _lines(row: dict[str, Any]) -> Iterator[str]:
    state = f"connected by MQTT {row['protocol']}" if row["connected"] else "away"
    if row["since_s"] is not None:
        at = datetime.fromtimestamp(row["since_s"]).astimezone().isoformat(" ", "seconds")
        state += f" since {at} ({_since(row)})"
    yield f"client         {row['client_id']}, {state}"
    yield f"address        {row['transport']} {row['address'] or 'local'}"
    names = f"certificate {row['certificate']}" if row["certificate"] else ""
    yield f"user           {', '.join(filter(None, (row['username'], names))) or 'none'}"
    if row["connected"]:
        yield f"keep alive     {row['keep_alive_s'] or 'none'}{' s' if row['keep_alive_s'] else ''}"
    kept = ", restored after a restart" if row["kept"] else ""
    expiry = row["expiry_s"]
    yield f"session        ends {seconds_in_words(expiry) if expiry else '0 s'} after the connection{kept}"
    queued, in_flight = count_in_words(row["queued"]), count_in_words(row["in_flight"])
    yield f"queue          {queued} queued, {in_flight} in flight"
    yield f"delivered      {count_in_words(row['delivered'])}, dropped: {_dropped(row) or 'none'}"
    if row["will"]:
        yield f"will           {row['will']['topic']}, QoS {row['will']['qos']}"
    yield f"subscriptions  {count_in_words(row['subscriptions'])}"
    for subscription in row["filters"]:
        further = "".join(
            f", {name.replace('_', ' ')}" for name in subscription if name not in {"filter", "qos"}
        )
        yield f"  QoS {subscription['qos']}{further}  {subscription['filter']}"
