"""Show the newest log lines of a running broker, which keeps the last 1,000 in memory.

    brim logs                           the last 50 lines
    brim logs -f --level warning        warnings and errors, and new ones until Ctrl-C
    brim logs -n 1000 --text plc-1      lines that contain a text
    brim logs --json                    one JSON object per line, with fields

Works however the broker was started. Older lines are where standard error of the broker goes: the journal for
a service of systemd. Processes of bridges and of the web console have their own log. Only the broker's own
user and root may read the lines, since they name clients, users and addresses.

Exit status: 0 done, 2 wrong arguments, 3 no broker is reachable, 4 refused by the broker.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable
from typing import Any

from edge.cli.argument_types import at_least_one
from edge.cli.config_options import add_broker_arguments
from edge.local.protocol import Connection, LogLines, LogPage
from edge.logging_setup import LEVELS, text_of

SHOWN = 50
CHECK_S = 0.5  # between two checks for new lines, with --follow

Line = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim logs`."""
    parser.add_argument(
        "-n", "--lines", type=at_least_one, default=SHOWN, metavar="N", help="the last N lines (default: 50)"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="continue with new lines until Ctrl-C")
    parser.add_argument(
        "--level", choices=LEVELS, default=LEVELS[0], help="lowest level shown (default: %(default)s)"
    )
    parser.add_argument("--text", default="", help="only lines that contain this text, in any case")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    add_broker_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    with Connection(arguments.runtime_dir) as connection:
        lines, last = _lines(connection, 0, arguments)
        _print(lines[-arguments.lines :], arguments)
        while arguments.follow:
            time.sleep(CHECK_S)
            lines, last = _lines(connection, last, arguments)
            _print(lines, arguments)
    return 0


def _lines(connection: Connection, last: int, arguments: argparse.Namespace) -> tuple[list[Line], int]:
    """The chosen lines after number `last`, and the number of the newest line."""
    lines: list[Line] = []
    more = True
    while more:
        page = connection.request(LogLines(last), LogPage)
        if page.skipped:
            print(f"brim logs: {page.skipped} lines skipped, the broker no longer has them", file=sys.stderr)
        lines += [line for line in page.lines if _is_chosen(line, arguments)]
        last, more = page.last, page.more
    return lines, last


def _print(lines: Iterable[Line], arguments: argparse.Namespace) -> None:
    for line in lines:
        print(json.dumps(line) if arguments.json else text_of(line))
    sys.stdout.flush()


def _is_chosen(line: Line, arguments: argparse.Namespace) -> bool:
    level = line["level"]
    if level in LEVELS and LEVELS.index(level) < LEVELS.index(arguments.level):
        return False
    text = arguments.text.casefold()
    return not text or text in line["message"].casefold() or text in line["logger"].casefold()
