"""Argument parser of a verb: an error names the mistake and the remedy, in place of a list of all options."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

from edge.cli.error_text import error_text
from edge.cli.exit_status import Exit

UNKNOWN = "unrecognized arguments: "  # of argparse


class VerbParser(argparse.ArgumentParser):
    """Parser with errors of two lines, as those of the verbs."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._as_json = False
        self.color = False  # Python 3.14 would colour the help, whatever --color requests

    def parse_known_args(self, *words: Any, **options: Any) -> Any:
        """Parse the arguments of a verb, or of a verb in a verb.

        An argument that it does not know is an error here: argparse would leave it to the outer verb, which
        has other options.
        """
        if words and words[0] is not None:
            self._as_json = "--json" in words[0]
        arguments, unknown = super().parse_known_args(*words, **options)
        if unknown:
            self.error(UNKNOWN + " ".join(unknown))
        return arguments, unknown

    def print_help(self, file: Any = None) -> None:
        """Print the help. argparse ignores an output that cannot be written."""
        print(self.format_help(), end="", file=file)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End the process after the help is written: errors of standard output are reported."""
        sys.stdout.flush()
        super().exit(status, message)

    def error(self, message: str) -> NoReturn:
        """Print the error and end the process."""
        verb, message = self.prog.removeprefix("brim "), f"{message}{self._nearest(message)}"
        hint = f"`{self.prog} --help` shows the arguments"
        print(error_text(verb, message, hint, as_json=self._as_json), file=sys.stderr)
        self.exit(Exit.USAGE)

    def _nearest(self, message: str) -> str:
        """The option that was probably meant."""
        import difflib  # only here: a start does not wait for it

        word, *_ = message.removeprefix(UNKNOWN).split()
        known = [option for option in self._option_string_actions if option.startswith("--")]
        near = difflib.get_close_matches(word, known, n=1) if message.startswith(UNKNOWN) else []
        return f"; did you mean {near[0]}?" if near else ""
