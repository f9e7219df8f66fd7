"""What the command lines of the jobs have in common."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

from bridge.errors import BridgeError, SourceOptionError

__all__ = ["add_spark_arguments", "pairs", "run"]


def add_spark_arguments(parser: argparse.ArgumentParser) -> None:
    """--master and --conf, for who does not come by spark-submit."""
    parser.add_argument(
        "--master", default="", help="where Spark runs; default: on this machine, or as submitted"
    )
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    parser.add_argument("--json", action="store_true", help="print the outcome as one JSON object")


def pairs(given: Sequence[str], what: str) -> dict[str, str]:
    """KEY=VALUE arguments.  Raises SourceOptionError."""
    found = {}
    for pair in given:
        key, sign, value = pair.partition("=")
        if not sign or not key:
            raise SourceOptionError(f"{what} {pair!r} is not KEY=VALUE")
        found[key] = value
    return found


def run(job: Callable[[Sequence[str] | None], int], argv: Sequence[str] | None) -> int:
    """The exit status of a job; errors that a person can mend are one line each, status 2."""
    try:
        return job(argv)
    except BridgeError as error:
        print(f"error: {error}" + (f"\n  {error.hint}" if error.hint else ""), file=sys.stderr)
        return 2
