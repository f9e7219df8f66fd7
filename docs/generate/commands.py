"""Page of the command `brim`: verbs, options and exit statuses, from the argument parsers in edge/cli."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from docs.generate import MissingDescription
from docs.generate.markdown import code, prose, table
from edge import cli
from edge.cli.exit_status import Exit

_HEADER = ("Argument", "Default", "Meaning")
_DEFAULT = re.compile(r"\s*\((?:default: )?%\(default\)s[^)]*\)")


def page() -> str:
    """Text of commands.md."""
    parts = ["# Commands\n", f"```\n{cli.usage()}\n```\n", "## Exit statuses\n", _statuses()]
    for verb, about in cli.VERBS.items():
        parser = cli.parser_of(verb)
        parts += [
            f"## brim {verb}\n",
            help_text(parser.description or about),
            *_parser(parser, f"brim {verb}"),
        ]
    return "\n".join(parts)


def help_text(text: str) -> str:
    """A docstring as Markdown: examples and tables, which are indented, become blocks of code."""
    parts = []
    for paragraph in re.split(r"\n\n+", text.strip("\n")):
        if paragraph.startswith(">>> "):  # a session of the interpreter
            parts.append(f"```\n{paragraph}\n```")
            continue
        for indented, lines in groupby(paragraph.splitlines(), key=lambda line: line.startswith(" ")):
            part = "\n".join(lines)
            parts.append(f"```\n{part}\n```" if indented else prose(part))
    return "\n\n".join(parts) + "\n"


def _statuses() -> str:
    if missing := [status.name for status in Exit if not status.meaning]:
        raise MissingDescription(f"edge/cli/exit_status.py: {', '.join(missing)} without a meaning")
    return table(("Status", "Meaning"), ((str(int(one)), prose(one.meaning)) for one in Exit))


def _parser(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    """Tables of a parser and of its subcommands, which have headings of their own."""
    yield arguments_table(parser, path)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            abouts = {choice.dest: choice.help for choice in action._choices_actions}
            for name, sub in action.choices.items():
                if not (about := abouts.get(name) or ""):
                    raise MissingDescription(f"{path} {name}: no help text")
                yield f"### {path} {name}\n\n{prose(about[:1].upper() + about[1:])}.\n"
                yield from _parser(sub, f"{path} {name}")


def arguments_table(parser: argparse.ArgumentParser, path: str) -> str:
    """The arguments of a parser without those of its subcommands; "" if there is none."""
    hidden = (argparse._SubParsersAction, argparse._HelpAction)
    rows = [
        _row(action, path)
        for action in parser._actions
        if not isinstance(action, hidden) and action.help != argparse.SUPPRESS
    ]
    return table(_HEADER, rows) if rows else ""


def _row(action: argparse.Action, path: str) -> tuple[str, str, str]:
    name = "/".join(action.option_strings) or str(action.metavar or action.dest)
    text = _DEFAULT.sub("", action.help or "")
    if not text:
        raise MissingDescription(f"{path}: {name} has no help text")
    default = "" if action.default in (None, [], argparse.SUPPRESS) or action.nargs == 0 else action.default
    shown = code(str(default)) if default != "" else ""
    if action.required and action.option_strings:
        shown = "required"
    elif action.nargs == "?" and not shown:
        shown = "optional"
    expanded = text % {**vars(action), "prog": path} if "%" in text else text
    return ", ".join(_forms(action)), shown, prose(expanded)


def _forms(action: argparse.Action) -> Iterable[str]:
    """The argument as it is written: `-q N`, `--qos N`; choices in braces."""
    value = str(action.metavar or (action.dest if not action.option_strings else action.dest.upper()))
    if action.choices is not None and action.metavar is None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        return [code(value)]
    suffix = "" if action.nargs == 0 else f" {value}"
    return [code(option + suffix) for option in action.option_strings]
