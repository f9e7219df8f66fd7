"""Show topics: messages, rates, age and last value, counted in the rings of the broker of this machine.

    brim topics                         tree of all topics that have a record in memory, or a retained message
    brim topics 'plant/#' --depth 2     the first two levels only, with sums of the levels below
    brim topics --sort rate             list of topics, the busiest first
    brim topics --window 10s            count new messages for ten seconds, instead of those in memory

The records are read in shared memory, which costs the broker nothing; the broker gives the list of retained
messages. COUNT is the number of records in memory, or in the window.

Exit status: 0 done, 1 some topics are not shown, 2 wrong arguments, 3 no broker is reachable, 4 refused.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Iterator

from edge.cli.argument_types import at_least_one, positive_seconds
from edge.cli.config_options import add_broker_arguments
from edge.cli.exit_status import Exit
from edge.cli.humanize import bytes_in_words, count_in_words, counted, seconds_in_words
from edge.cli.listing import (
    TOPIC_COLUMN,
    Column,
    Row,
    add_listing_arguments,
    number_column,
    print_listing,
)
from edge.cli.retained import retained_messages
from edge.local.payloads import payload_fields, short_payload
from edge.local.protocol import Connection
from edge.local.shm_subscription import ShmSubscription, Start
from edge.local.topic_census import TOPICS_MAX, TopicCensus
from ringbuf import FLAG_QOS

SHOWN_BYTES = 256  # of the last payload
BATCH = 4_096


def _text(row: Row) -> str:
    value = row["value"]
    return "" if value is None else short_payload(value)


def _age(row: Row) -> str:
    return (
        "-"
        if row["timestamp_ns"] is None
        else seconds_in_words(max(time.time() - row["timestamp_ns"] / 1e9, 0))
    )


COLUMNS = (
    TOPIC_COLUMN,
    number_column("topics", "topics"),
    number_column("count", "count"),
    number_column("rate", "rate", "/s"),
    Column("bytes", lambda row: f"{bytes_in_words(row['byte_rate'])}/s", lambda row: row["byte_rate"]),
    Column("age", _age, lambda row: row["timestamp_ns"]),
    Column(
        "retained",
        lambda row: count_in_words(row["retained"]) if row["retained"] else "",
        lambda row: row["retained"],
    ),
    Column("value", _text, _text),
)
_TREE = (Column("topic", lambda row: "  " * row["level"] + row["name"], TOPIC_COLUMN.order), *COLUMNS[1:])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim topics`."""
    parser.add_argument("filters", nargs="*", metavar="FILTER", help="topic filter (default: #)")
    parser.add_argument("--flat", action="store_true", help="one row per topic, no tree; as with --sort")
    parser.add_argument(
        "--depth", type=at_least_one, metavar="N", help="only N levels; deeper topics are added up"
    )
    parser.add_argument(
        "--window",
        type=positive_seconds,
        metavar="TIME",
        help="count new messages for this time (5, 500ms, 1h)",
    )
    add_listing_arguments(parser, COLUMNS, "topics")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    filters = arguments.filters or ["#"]
    census = TopicCensus()
    start: Start = "oldest" if arguments.window is None else "latest"
    with ShmSubscription(
        filters, runtime_dir=arguments.runtime_dir, start=start, name="brim topics", limit=BATCH
    ) as subscription:
        if arguments.window is None:
            census.read_all(subscription)
        else:
            observe(census, subscription, arguments.window)
        rows = census_rows(census)
        _add_retained(rows, filters, arguments)
    tree = not (arguments.flat or arguments.json or arguments.sort != "topic")
    nodes = _nodes(rows.values(), arguments.depth) if tree else _flat(rows.values(), arguments.depth)
    print_listing(nodes, _TREE if tree else COLUMNS, arguments, _facts)
    if census.others:
        text = f"{counted(census.others, 'record')} of topics above the limit of {TOPICS_MAX:,}"
        print(f"brim topics: {text}\n  name a narrower filter", file=sys.stderr)
        return Exit.INCOMPLETE
    return 0


def observe(census: TopicCensus, subscription: ShmSubscription, window_s: float) -> None:
    """Count the records that arrive within `window_s`."""
    census.begin(subscription.places())
    deadline = time.monotonic() + window_s
    while (left_s := deadline - time.monotonic()) > 0:
        batch = subscription.read(left_s)
        if batch is not None:
            census.add(batch)


def census_rows(census: TopicCensus) -> dict[str, Row]:
    """A row for each counted topic."""
    now_ns = time.time_ns()
    rows = {}
    for topic, count in census.items():
        elapsed_s = census.seconds(count.ring, now_ns)
        payload = count.payload()
        rows[topic] = {
            "topic": topic,
            "topics": 1,
            "count": count.count,
            "rate": count.count / elapsed_s,
            "byte_rate": count.size_bytes / elapsed_s,
            "timestamp_ns": count.last.timestamp_ns,
            "qos": count.last.flags & FLAG_QOS,
            "retained": 0,
            "value": None if payload is None else payload[:SHOWN_BYTES],
        }
    return rows


def _add_retained(rows: dict[str, Row], filters: Iterable[str], arguments: argparse.Namespace) -> None:
    """Mark topics with a retained message, and add those that have no record in memory."""
    with Connection(arguments.runtime_dir) as connection:
        for message in (
            row
            for topic_filter in filters
            for row in retained_messages(connection, topic_filter, SHOWN_BYTES)
        ):
            topic = message["topic"]
            if topic not in rows and len(rows) < TOPICS_MAX:
                rows[topic] = {
                    "topic": topic,
                    "topics": 1,
                    "count": 0,
                    "rate": 0.0,
                    "byte_rate": 0.0,
                    "timestamp_ns": message["timestamp_ns"],
                    "qos": message["qos"],
                    "value": message["payload"],
                }
            if topic in rows:
                rows[topic]["retained"] = 1


def _sum_into(node: Row, row: Row) -> None:
    for name in ("topics", "count", "rate", "byte_rate", "retained"):
        node[name] += row[name]
    node["timestamp_ns"] = max(node["timestamp_ns"], row["timestamp_ns"])


def _flat(rows: Iterable[Row], depth: int | None) -> Iterator[Row]:
    """Rows of topics; those below `depth` levels are added up as `prefix/#`."""
    sums: dict[str, Row] = {}
    for row in rows:
        levels = row["topic"].split("/")
        if depth is None or len(levels) <= depth:
            yield row
            continue
        name = "/".join(levels[:depth]) + "/#"
        if name in sums:
            _sum_into(sums[name], row)
        else:
            sums[name] = {**row, "topic": name, "value": None}
    yield from sums.values()


def _facts(row: Row) -> Row:
    value = row["value"]
    facts = {name: row[name] for name in row if name not in {"value", "retained"}}
    return facts | {"retained": bool(row["retained"])} | ({} if value is None else payload_fields(value))


def _nodes(rows: Iterable[Row], depth: int | None) -> Iterator[Row]:
    """Rows of a tree: each topic, and each prefix of topics with the sums of the levels below."""
    nodes: dict[str, Row] = {}
    for row in rows:
        levels = row["topic"].split("/")
        end = len(levels) if depth is None else min(depth, len(levels))
        for level in range(end):
            prefix = "/".join(levels[: level + 1])
            if prefix in nodes:
                _sum_into(nodes[prefix], row)
            else:
                nodes[prefix] = {**row, "topic": prefix, "name": levels[level], "level": level, "value": None}
            if level == len(levels) - 1:
                nodes[prefix]["value"] = row["value"]
    return iter(nodes.values())
