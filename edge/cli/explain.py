"""Explain an error by its code, the name of its class, without a network.

    brim explain CannotConnect        meaning, messages and remedies
    brim explain                      all codes

Commands print the code of an error below its remedy. The page "Errors" of the reference has the same texts.

Exit status: 0 done, 2 unknown code.
"""

from __future__ import annotations

import argparse
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from edge.cli.error_catalog import ErrorClass, catalog, error_classes
from edge.errors import EdgeError

WIDTH = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim explain`."""
    parser.add_argument(
        "code", nargs="?", default="", metavar="CODE", help="code of an error (default: list all)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON array with an object for each code")


def run(arguments: argparse.Namespace) -> int:
    """Print the meaning of the code, or all codes."""
    errors = catalog(arguments.code) if arguments.code or arguments.json else error_classes()
    if not errors:
        raise EdgeError(f"unknown error code {arguments.code!r}", hint=_near(arguments.code))
    if arguments.json:
        print(json.dumps([_as_dict(error) for error in errors.values()]))
    elif arguments.code:
        print("\n".join(_lines(errors[arguments.code])))
    else:
        for error in errors.values():
            print(f"{error.name:<24} {_first_sentence(error.about)}")
    return 0


def _first_sentence(about: str) -> str:
    """The text up to a period that ends a sentence: names of files have periods, too."""
    return re.split(r"\.(?:\s|$)", " ".join(about.split()), maxsplit=1)[0]


def _near(code: str) -> str:
    import difflib

    names = {name.lower(): name for name in error_classes()}
    near = difflib.get_close_matches(code.lower(), names, n=1)
    return f"did you mean `brim explain {names[near[0]]}`?" if near else "`brim explain` lists all"


def _lines(error: ErrorClass) -> Iterator[str]:
    yield f"{error.name}  ({error.module})"
    yield ""
    yield textwrap.fill(" ".join(error.about.replace("`", "").split()), WIDTH)
    for message, remedy in sorted(error.messages):
        yield ""
        yield message
        yield f"  {remedy}"


def _as_dict(error: ErrorClass) -> dict[str, Any]:
    return {
        "code": error.name,
        "module": error.module,
        "bases": error.bases,
        "about": error.about,
        "messages": [{"message": message, "remedy": remedy} for message, remedy in sorted(error.messages)],
    }
