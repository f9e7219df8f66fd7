"""Color of output: the option --color, and the variables NO_COLOR and FORCE_COLOR, which rich reads too.

--color always|never     colors always, or never
--color auto             FORCE_COLOR: always; NO_COLOR: never; otherwise only on a terminal
"""

from __future__ import annotations

import argparse
import os
import sys

_CHOICES = ("auto", "always", "never")
_CODES = {"red": 31, "green": 32, "yellow": 33, "bold": 1}


def add_color(parser: argparse.ArgumentParser) -> None:
    """Add --color to a parser, or to the parsers of its subcommands."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for one in action.choices.values():
            add_color(one)
    if not below and "--color" not in parser._option_string_actions:
        parser.add_argument(
            "--color",
            choices=_CHOICES,
            default="auto",
            help="color of the output; auto: on a terminal, if NO_COLOR is not set (default: %(default)s)",
        )


def apply_color(choice: str) -> None:
    """Keep the choice in the environment of this process, where rich finds it as well."""
    if choice != "auto":
        os.environ.pop("NO_COLOR", None)
        os.environ.pop("FORCE_COLOR", None)
        os.environ["FORCE_COLOR" if choice == "always" else "NO_COLOR"] = "1"


def colored(text: str, color: str) -> str:
    """`text` in a color, if standard output shows colors. `text` must be escaped already."""
    forced, off = os.environ.get("FORCE_COLOR"), os.environ.get("NO_COLOR")
    shown = bool(forced) or (not off and sys.stdout.isatty())
    return f"\x1b[{_CODES[color]}m{text}\x1b[0m" if shown and text else text
