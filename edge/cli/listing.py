"""Listings: rows as a table with sorting, or as one JSON object per line. For all verbs that list things.

Cells may be untrusted text: they are escaped. Memory is bounded by --limit, however many rows there are.
"""

from __future__ import annotations

import argparse
import heapq
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple, TypeAlias

import msgspec

from edge.cli.argument_types import at_least_one
from edge.cli.humanize import count_in_words
from edge.terminal_escape import escaped

LIMIT = 1_000  # rows of a table without --limit
GAP = "  "

Row: TypeAlias = dict[str, Any]


class Column(NamedTuple):
    """Column of a table. `order`: sort key of a row; numbers and times are sorted downwards."""

    title: str
    text: Callable[[Row], str]
    order: Callable[[Row], Any]

    def rank(self, row: Row) -> Any:
        """Sort key: the largest number first, text in ascending order, rows without a value last."""
        value = self.order(row)
        if value is None:
            return (1, 0)
        return (0, value if isinstance(value, str) else -value)


def number_column(title: str, key: str, suffix: str = "") -> Column:
    """Column of the number `key` of a row."""
    return Column(title, lambda row: count_in_words(row[key]) + suffix, lambda row: row[key])


def text_column(title: str, key: str) -> Column:
    """Column of the text `key` of a row."""
    return Column(title, lambda row: str(row[key]), lambda row: str(row[key]))


TOPIC_COLUMN = Column("topic", lambda row: row["topic"], lambda row: row["topic"].replace("/", "\0"))


def add_listing_arguments(parser: argparse.ArgumentParser, columns: Sequence[Column], rows: str) -> None:
    """Add --json, --sort and --limit."""
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    titles = [column.title for column in columns]
    parser.add_argument(
        "--sort", choices=titles, default=titles[0], help=f"column to sort {rows} by (default: %(default)s)"
    )
    parser.add_argument(
        "--limit",
        type=at_least_one,
        metavar="N",
        help=f"highest number of {rows} shown (default: {LIMIT:,}; with --json: all)",
    )


def print_listing(
    rows: Iterable[Row],
    columns: Sequence[Column],
    arguments: argparse.Namespace,
    facts: Callable[[Row], Row] = lambda row: row,
) -> None:
    """Print rows as --json, --sort and --limit require. JSON without a limit is not sorted.

    `facts`: the JSON object of a row.
    """
    if arguments.json:
        some = rows if arguments.limit is None else ordered(rows, columns, arguments.sort, arguments.limit)
        for row in some:
            print(msgspec.json.encode(facts(row)).decode())
        return
    seen = count()
    limit = arguments.limit or LIMIT
    shown = ordered((row for row, _ in zip(rows, seen, strict=False)), columns, arguments.sort, limit)
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for line in table(shown, columns, width):
        print(line)
    if (left := next(seen) - len(shown)) > 0:
        print(f"and {left:,} more; see --limit")


def ordered(rows: Iterable[Row], columns: Sequence[Column], title: str, limit: int) -> list[Row]:
    """The first `limit` rows in the order of a column."""
    (column,) = (column for column in columns if column.title == title)
    return heapq.nsmallest(limit, rows, key=column.rank)


def table(
    rows: Sequence[Row], columns: Sequence[Column], width: int = 0, *, titles: Sequence[str] = ()
) -> list[str]:
    """Lines of a table with its heading, cut to `width` characters; 0: not cut. Numbers are aligned right.

    `titles`: headings to show as they are (default: those of the columns, in capital letters).
    """
    cells = [[escaped(column.text(row)) for column in columns] for row in rows]
    right = [all(cell[:1].isdigit() or cell == "-" for cell in some) for some in zip(*cells, strict=True)]
    cells.insert(0, list(map(escaped, titles)) or [column.title.upper() for column in columns])
    widths = [max(map(len, some)) for some in zip(*cells, strict=True)]
    lines = []
    for line in cells:
        padded = [
            cell.rjust(size) if number else cell.ljust(size)
            for cell, size, number in zip(line, widths, right or [False] * len(line), strict=True)
        ]
        text = GAP.join(padded).rstrip()
        lines.append(text[:width] if width else text)
    return lines
