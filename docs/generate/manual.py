"""Manual pages brim.1 and brim-VERB.1 in mdoc, from the argument parsers in edge/cli.

    python -m docs.generate.manual DIRECTORY     writes them; packages call it

They are no part of the repository. The date is that of SOURCE_DATE_EPOCH, or today.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from pathlib import Path

from edge import cli
from edge.cli.exit_status import Exit

_SENTENCE_END = re.compile(r"(?<=[A-Za-z0-9)\]\"`][.!?])\s+(?=[A-Z`\"])")


def manuals() -> Mapping[str, str]:
    """Text of each page by file name."""
    pages = {"brim.1": _overview()}
    for verb, about in cli.VERBS.items():
        pages[f"brim-{verb}.1"] = _page(verb, about)
    return pages


def _head(name: str, about: str) -> Iterator[str]:
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    date = time.strftime("%B %d, %Y", time.gmtime(seconds)).replace(" 0", " ")
    yield from (f".Dd {date}", f".Dt {name.upper()} 1", f".Os brim {cli.VERSION}")
    yield from (".Sh NAME", f".Nm {name}", f".Nd {_text(about)}")


def _overview() -> str:
    lines = [*_head("brim", "low-latency in-memory edge MQTT broker"), ".Sh SYNOPSIS", ".Nm", ".Ar verb",
             ".Op Ar argument ...", ".Sh DESCRIPTION", "The verbs:", ".Bl -tag -width consumers"]  # fmt: skip
    for verb, about in cli.VERBS.items():
        lines += [f".It Cm {verb}", f"{_text(about[:1].upper() + about[1:])}.", "See", f".Xr brim-{verb} 1 ."]
    lines += [".El", *_statuses()]
    lines += [".Sh SEE ALSO", *_references([f"brim-{verb}" for verb in sorted(cli.VERBS)])]
    return "\n".join(lines) + "\n"


def _page(verb: str, about: str) -> str:
    parser = cli.parser_of(verb)
    lines = [*_head(f"brim-{verb}", about), ".Sh SYNOPSIS", f".Nm brim {verb}", *_synopsis(parser)]
    lines += [
        ".Sh DESCRIPTION",
        *_paragraphs(parser.description or about),
        *_arguments(parser, f"brim {verb}"),
    ]
    lines += [*_statuses(), ".Sh SEE ALSO", ".Xr brim 1"]
    return "\n".join(lines) + "\n"


def _synopsis(parser: argparse.ArgumentParser) -> Iterator[str]:
    if any(action.option_strings for action in parser._actions):
        yield ".Op Ar option ..."
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from (".Ar command", ".Op Ar argument ...")
        elif not action.option_strings:
            dots = " ..." if action.nargs in {"*", "+"} else ""
            value = f"{_word(_value(action))}{dots}"
            yield f".Op Ar {value}" if action.nargs in {"?", "*"} else f".Ar {value}"


def _arguments(parser: argparse.ArgumentParser, path: str) -> Iterator[str]:
    """Lists of the arguments, and a subsection for each subcommand."""
    shown = [
        it
        for it in parser._actions
        if not isinstance(it, argparse._SubParsersAction | argparse._HelpAction)
        and it.help != argparse.SUPPRESS
    ]
    if shown:
        yield ".Bl -tag -width Ds"
        for action in shown:
            fields = {**vars(action), "prog": path}
            text = (action.help or "") % fields if "%" in (action.help or "") else action.help or ""
            yield from (_item(action), *_sentences(f"{text[:1].upper() + text[1:]}."))
        yield ".El"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for it in action._choices_actions:
                about = it.help or ""
                yield from (f".Ss {path} {it.dest}", *_sentences(f"{about[:1].upper() + about[1:]}."))
                yield from _arguments(action.choices[it.dest], f"{path} {it.dest}")


def _item(action: argparse.Action) -> str:
    if not action.option_strings:
        return f".It Ar {_word(_value(action))}"
    value = "" if action.nargs == 0 else f" Ar {_word(_value(action))}"
    return ".It " + " , ".join(f"Fl {_word(name[1:])}{value}" for name in action.option_strings)


def _value(action: argparse.Action) -> str:
    if action.choices is not None and action.metavar is None:
        return "|".join(map(str, action.choices))
    return str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))


def _paragraphs(text: str) -> Iterator[str]:
    """A docstring: indented lines stay as they are."""
    first = True
    for paragraph in re.split(r"\n\n+", text.strip("\n")):
        for indented, found in groupby(paragraph.splitlines(), key=lambda line: line.startswith(" ")):
            lines = list(found)
            if indented:
                yield from (".Bd -literal -offset indent", *(_text(it.strip()) for it in lines), ".Ed")
            else:
                yield from ([] if first else [".Pp"])
                yield from _sentences(" ".join(lines))
            first = False


def _sentences(text: str) -> Iterable[str]:
    """Each sentence on a line of its own, as mdoc wants it."""
    sentences = _SENTENCE_END.split(" ".join(text.split()).replace("..", "."))
    return [_text(line) for it in sentences for line in textwrap.wrap(it, 76)]


def _statuses() -> Iterator[str]:
    yield from (".Sh EXIT STATUS", ".Bl -tag -width Ds")
    for status in Exit:
        yield from (f".It {int(status)}", _text(f"{status.meaning[:1].upper() + status.meaning[1:]}."))
    yield ".El"


def _references(names: list[str]) -> Iterator[str]:
    for name in names:
        yield f".Xr {name} 1" + (" ," if name != names[-1] else "")


def _text(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("`", "")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


def _word(text: str) -> str:
    """An argument of a macro."""
    escaped = text.replace("\\", "\\e").replace('"', '""')
    return f'"{escaped}"' if " " in escaped or (len(escaped) == 1 and not escaped.isalnum()) else escaped


def main() -> None:
    """Write the pages to the directory of the command line."""
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in manuals().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
