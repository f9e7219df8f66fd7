"""Show streams: their partitions, rings, fill level, rate, durability, retention and readers.

    brim streams                        one row per ring, with its rate, measured for --window
    brim streams --readers              and the readers of each ring, with lag and losses

Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable, 4 refused by the broker.
"""

from __future__ import annotations

import argparse
import time

from edge.cli import rate_columns
from edge.cli.argument_types import positive_seconds
from edge.cli.config_options import add_broker_arguments
from edge.cli.humanize import bytes_in_words, seconds_in_words
from edge.cli.listing import Column, Row, add_listing_arguments, print_listing, text_column
from edge.local.protocol import Connection, Overview, Report
from edge.observe.rates import sample

WINDOW_S = 0.5


def _retention(row: Row) -> str:
    if not row["is_logged"]:
        return "memory"
    limits = [bytes_in_words(row["retain_bytes"])] if row["retain_bytes"] else []
    limits += [seconds_in_words(row["retain_s"])] if row["retain_s"] else []
    return " or ".join(limits) or "as [log]"


_COLUMNS = (
    *rate_columns.RING_COLUMNS,
    text_column("full", "when_full"),
    Column("retention", _retention, lambda row: row["retain_bytes"] or row["retain_s"]),
    Column("topics", lambda row: " ".join(row["topics"]), lambda row: " ".join(row["topics"])),
)
_UNKNOWN: Row = {"when_full": "", "is_logged": True, "retain_bytes": 0, "retain_s": 0, "topics": []}
_READERS = (
    text_column("ring", "ring"),
    Column("reader", lambda row: row["name"] or "reader", lambda row: row["name"]),
    Column("pid", lambda row: str(row["pid"]), lambda row: row["pid"]),
    text_column("state", "state"),
    Column("lag", lambda row: str(row["lag"]), lambda row: row["lag"]),
    Column("lost", lambda row: str(row["lost"]), lambda row: row["lost"]),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim streams`."""
    parser.add_argument("--readers", action="store_true", help="list the readers of the rings instead")
    parser.add_argument(
        "--window",
        type=positive_seconds,
        default=WINDOW_S,
        metavar="TIME",
        help="time of the rate (default: 0.5 s)",
    )
    add_listing_arguments(parser, _COLUMNS, "rings")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    with Connection(arguments.runtime_dir) as connection:
        before, before_s = connection.request(Overview(), Report).report, time.monotonic()
        time.sleep(0 if arguments.readers else arguments.window)
        now = connection.request(Overview(), Report).report
    if arguments.readers:
        readers = ({"ring": ring["name"]} | reader for ring in now["rings"] for reader in ring["readers"])
        print_listing(readers, _READERS, argparse.Namespace(**{**vars(arguments), "sort": "ring"}))
        return 0
    streams = {stream["name"]: stream for stream in now["streams"]}
    rings = sample(before, now, time.monotonic() - before_s)["rings"]
    print_listing((streams.get(ring["stream"], _UNKNOWN) | ring for ring in rings), _COLUMNS, arguments)
    return 0
