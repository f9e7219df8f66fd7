"""Show or clear retained messages of the broker of this machine.

    brim retained [ls [FILTER ...]]     topics with a retained message, with size, age and the first bytes
    brim retained get TOPIC ...         payload of a retained message
    brim retained clear FILTER ...      remove retained messages

FILTER is a topic filter (plant/+/temp); without one, ls shows all topics. Clearing publishes an empty
retained message to each topic, as MQTT requires, so subscribers are notified. Only the broker's own user and
root may clear. Topics of the broker ($SYS) are shown if the filter names them, and never cleared.

Exit status: 0 done, 1 a topic has no retained message, its payload is cut, or it cannot be cleared, 2 wrong
arguments, 3 no broker is reachable, 4 refused, with the reason.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator

import msgspec

from edge.cli.config_options import add_broker_arguments
from edge.cli.error_text import error_text
from edge.cli.exit_status import Exit
from edge.cli.humanize import bytes_in_words, counted, seconds_in_words
from edge.cli.listing import TOPIC_COLUMN, Column, Row, add_listing_arguments, print_listing
from edge.errors import EdgeError
from edge.local.filters import checked_filters
from edge.local.payloads import payload_fields, record_property_fields, short_payload
from edge.local.protocol import Cleared, ClearRetained, Connection, Retained, RetainedList
from edge.terminal_escape import escaped, escaped_payload

WHOLE_BYTES = 64 << 10  # longest payload of one answer
NAMED_MAX, NAME_MAX = 10, 200  # topics that an error names, and characters of each


def _age_s(row: Row) -> float:
    return max(time.time() - float(row["timestamp_ns"]) / 1e9, 0)


def _value(row: Row) -> str:
    return ("(withheld) " if row["withheld"] else "") + short_payload(row["payload"])


COLUMNS = (
    TOPIC_COLUMN,
    Column("qos", lambda row: str(row["qos"]), lambda row: row["qos"]),
    Column("size", lambda row: bytes_in_words(row["size_bytes"]), lambda row: row["size_bytes"]),
    Column("age", lambda row: seconds_in_words(_age_s(row)), lambda row: row["timestamp_ns"]),
    Column("value", _value, lambda row: short_payload(row["payload"])),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim retained`."""
    parser.add_argument(
        "what",
        nargs="?",
        choices=("ls", "get", "clear"),
        default="ls",
        help="ls: list (default); get: print payloads; clear: remove",
    )
    parser.add_argument("filters", nargs="*", metavar="FILTER", help="topic filter; of get: topic")
    add_listing_arguments(parser, COLUMNS, "messages")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    filters = arguments.filters or (["#"] if arguments.what == "ls" else [])
    if not filters:
        if arguments.what == "get":
            raise EdgeError("get needs a topic", hint="brim retained get plant/1/setpoint")
        raise EdgeError("clear needs a topic filter", hint="brim retained clear 'plant/#'")
    checked_filters(filters)
    with Connection(arguments.runtime_dir) as connection:
        if arguments.what == "clear":
            return _clear(connection, filters, as_json=arguments.json)
        if arguments.what == "get":
            return max(_get(connection, topic, as_json=arguments.json) for topic in filters)
        messages = (row for topic_filter in filters for row in retained_messages(connection, topic_filter))
        print_listing(messages, COLUMNS, arguments, _facts)
    return 0


def retained_messages(connection: Connection, topic_filter: str, payload_max: int = 256) -> Iterator[Row]:
    """Retained messages that a filter matches, a page at a time."""
    after: int | None = 0
    while after is not None:
        page = connection.request(Retained(topic_filter, after, payload_max), RetainedList)
        yield from page.messages
        after = page.after


def _facts(row: Row) -> Row:
    """The row for JSON, whose keys are those of `brim sub --json`."""
    facts = {name: row[name] for name in ("topic", "qos", "timestamp_ns", "size_bytes", "withheld")}
    return facts | payload_fields(row["payload"]) | record_property_fields(row["properties"])


def _get(connection: Connection, topic: str, *, as_json: bool) -> int:
    rows: Iterable[Row] = retained_messages(connection, topic, WHOLE_BYTES)
    shown = cut = 0
    for row in rows:
        shown += 1
        cut += row["size_bytes"] > len(row["payload"])
        if as_json:
            print(msgspec.json.encode(_facts(row)).decode())
        elif sys.stdout.isatty():
            print(escaped_payload(row["payload"]))
        else:
            sys.stdout.flush()
            sys.stdout.buffer.write(row["payload"] + b"\n")
    if not shown:
        text = f"{escaped(topic)} has no retained message"
        hint = "`brim retained ls` lists the topics that have one"
        print(error_text("retained", text, hint, as_json=as_json), file=sys.stderr)
    if cut:
        text = f"payloads are cut at {bytes_in_words(WHOLE_BYTES)}"
        hint = "use `brim sub -C 1` for a longer one"
        print(error_text("retained", text, hint, as_json=as_json), file=sys.stderr)
    return Exit.OK if shown and not cut else Exit.INCOMPLETE


def _clear_all(connection: Connection, topic_filter: str) -> tuple[int, list[str]]:
    """Clear the messages of one filter, a page at a time. Returns their number, and the topics that stay."""
    count = 0
    refused: list[str] = []
    after: int | None = 0
    while after is not None:
        answer = connection.request(ClearRetained(topic_filter, after), Cleared)
        count += answer.count
        refused += answer.refused
        if answer.count == 0 and answer.after == after:
            text = f"the ring is full, or its log takes no records; cleared: {counted(count, 'message')}"
            raise EdgeError(text, hint="see `brim status`, and clear again")
        after = answer.after
    return count, refused


def _clear(connection: Connection, filters: list[str], *, as_json: bool) -> int:
    status = Exit.OK
    for topic_filter in filters:
        count, refused = _clear_all(connection, topic_filter)
        if as_json:
            row = {"filter": topic_filter, "cleared": count, "refused": len(refused)}
            print(msgspec.json.encode(row).decode())
        else:
            print(escaped(f"{counted(count, 'retained message')} of {topic_filter} cleared"))
        if refused:
            names = ", ".join(escaped(topic[:NAME_MAX]) for topic in refused[:NAMED_MAX])
            text = f"{counted(len(refused), 'message')} not cleared, no ring can store the topic: {names}"
            hint = "raise ring_bytes of the stream, or the limits of topics in [limits], and clear again"
            print(error_text("retained", text, hint, as_json=as_json), file=sys.stderr)
            status = Exit.INCOMPLETE
    return status
