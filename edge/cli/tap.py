"""Show messages as they pass, with all their properties: read from the rings in shared memory.

    brim tap 'plant/#'                  each message: time, topic, QoS, size, age, payload
    brim tap --client plc-1             messages of the topics that a client subscribes to
    brim tap --rate                     messages and bytes per second of each topic, once a second
    brim tap --payload hex -C 1         one message, with its payload in hexadecimal digits

The broker does no work for it. If the output is slow, messages are left out and counted. `R` marks a message
that was published as retained.

Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable, 4 refused by the broker, 5 the time of -W
is over.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from edge.cli.argument_types import at_least_one, positive_seconds
from edge.cli.config_options import add_broker_arguments
from edge.cli.exit_status import Exit
from edge.cli.humanize import counted, micros_in_words
from edge.cli.listing import add_listing_arguments, print_listing
from edge.cli.topics import COLUMNS, census_rows, observe
from edge.errors import EdgeError
from edge.local.arrivals import Arrival, messages_of_batch
from edge.local.payloads import payload_fields
from edge.local.protocol import Connection, RingList, Rings, Session, SessionDetails
from edge.local.shm_subscription import ShmSubscription
from edge.local.topic_census import TopicCensus
from edge.mqtt.topic_filters import split_share
from edge.terminal_escape import escaped, escaped_payload

PAYLOAD_MAX = 1_024  # bytes shown of one payload, except with --json
CHECK_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim tap`."""
    parser.add_argument("filters", nargs="*", metavar="FILTER", help="topic filter (default: #)")
    parser.add_argument("--client", metavar="CLIENT_ID", help="topics that this client subscribes to")
    parser.add_argument("--stream", metavar="NAME", help="only messages of this stream")
    parser.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), help="only messages of this QoS")
    parser.add_argument("--retained", action="store_true", help="only messages published as retained")
    parser.add_argument(
        "--payload",
        choices=("text", "hex", "none"),
        default="text",
        help="form of payloads (default: %(default)s)",
    )
    parser.add_argument("--rate", action="store_true", help="print rates of topics, no messages")
    parser.add_argument(
        "--interval",
        type=positive_seconds,
        default=1.0,
        metavar="TIME",
        help="with --rate: time of one table (default: 1s)",
    )
    parser.add_argument(
        "-C", "--count", type=at_least_one, metavar="N", help="end after N messages or tables"
    )
    parser.add_argument(
        "-W", "--wait", type=positive_seconds, metavar="TIME", help="end after this time, with status 5"
    )
    add_listing_arguments(parser, COLUMNS, "topics")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    filters = _filters(arguments)
    if arguments.stream is not None:
        _check_stream(arguments)
    with ShmSubscription(filters, runtime_dir=arguments.runtime_dir, name="brim tap") as subscription:
        if arguments.rate:
            return _rates(subscription, arguments)
        return _messages(subscription, arguments)


def _filters(arguments: argparse.Namespace) -> Sequence[str]:
    if arguments.client is None:
        return arguments.filters or ["#"]
    if arguments.filters:
        raise EdgeError("--client and FILTER exclude each other", hint="leave one of them out")
    with Connection(arguments.runtime_dir) as connection:
        session = connection.request(Session(arguments.client), SessionDetails).session
    filters = [split_share(row["filter"])[1] for row in session["filters"]]
    if not filters:
        raise EdgeError(f"client {arguments.client!r} has no subscription", hint="see `brim clients show`")
    return filters


def _check_stream(arguments: argparse.Namespace) -> None:
    with Connection(arguments.runtime_dir) as connection:
        streams = {ring.stream for ring in connection.request(Rings(("#",)), RingList).rings}
    if arguments.stream not in streams:
        hint = f"choose one of: {', '.join(sorted(streams))}"
        raise EdgeError(f"there is no stream {arguments.stream!r}", hint=hint)


def _messages(subscription: ShmSubscription, arguments: argparse.Namespace) -> Exit:
    form = _as_json if arguments.json else _line_form(arguments.payload)
    deadline = None if arguments.wait is None else time.monotonic() + arguments.wait
    shown = 0
    while deadline is None or time.monotonic() < deadline:
        batch = subscription.read(CHECK_S)
        if batch is None:
            continue
        if batch.lost:
            print(
                f"brim tap: {counted(batch.lost, 'message')} lost: the output is too slow",
                file=sys.stderr,
            )
        if arguments.stream not in {None, batch.stream}:
            continue
        for message in messages_of_batch(batch):
            if _is_chosen(message, arguments):
                print(form(message))
                shown += 1
                if shown == arguments.count:
                    return Exit.OK
        sys.stdout.flush()
    return Exit.TIMEOUT


def _is_chosen(message: Arrival, arguments: argparse.Namespace) -> bool:
    facts = message.fields
    return arguments.qos in {None, facts["qos"]} and (facts["retain"] or not arguments.retained)


def _rates(subscription: ShmSubscription, arguments: argparse.Namespace) -> Exit:
    census = TopicCensus()
    deadline = None if arguments.wait is None else time.monotonic() + arguments.wait
    printed = 0
    while deadline is None or time.monotonic() < deadline:
        observe(census, subscription, arguments.interval)
        print_listing(census_rows(census).values(), COLUMNS, arguments, _rate_facts)
        sys.stdout.flush()
        printed += 1
        if printed == arguments.count:
            return Exit.OK
    return Exit.TIMEOUT


def _rate_facts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("topic", "count", "rate", "byte_rate")}


def _as_json(message: Arrival) -> str:
    size = {"size_bytes": len(message.payload), "age_s": round(_age_s(message), 6)}
    return json.dumps({"topic": message.topic} | payload_fields(message.payload) | size | message.fields)


def _age_s(message: Arrival) -> float:
    return max((time.time_ns() - int(message.fields["timestamp_ns"])) / 1e9, 0.0)


def _line_form(payload: str) -> Callable[[Arrival], str]:
    """Function that formats a message as one line, safe for a terminal."""

    def line(message: Arrival) -> str:
        facts = message.fields
        at = facts["timestamp_ns"]
        clock = time.strftime("%H:%M:%S", time.localtime(at // 10**9)) + f".{at // 1_000_000 % 1_000:03}"
        mark = "R" if facts["retain"] else " "
        parts = [
            clock,
            f"QoS {facts['qos']}{mark}",
            f"{len(message.payload):>7,} B",
            f"{micros_in_words(_age_s(message) * 1e6):>7}",
        ]
        return "  ".join(
            [*parts, escaped(message.topic), *_properties(facts), _payload(message.payload, payload)]
        )

    return line


def _properties(facts: dict[str, Any]) -> Iterator[str]:
    for name, value in facts.get("properties", {}).items():
        yield escaped(f"{name}={value}")


def _payload(payload: bytes, form: str) -> str:
    more = "..." if len(payload) > PAYLOAD_MAX else ""
    if form == "none":
        return ""
    return (
        payload[:PAYLOAD_MAX].hex(" ") if form == "hex" else escaped_payload(payload[:PAYLOAD_MAX])
    ) + more
