"""The command `brim`: one module for each verb, loaded when it is used.

A verb's module has a docstring, which is its help, add_arguments(parser), and run(arguments), which returns
the exit status.  Errors with a `hint` are for people: they are printed, with what to do.

    0   done
    1   done, and something needs attention
    2   not done: the arguments, the configuration or the machine do not allow it, and the message says why
    3   no broker is reachable (or no bridge, of `brim bridge`), or the connection broke
    4   the broker (or bridge) answered, and refused
    5   of `brim sub -W`: the time is over
    6   of `brim status` and `brim bridge status`: all runs, and records were lost before they were drained
    130 interrupted

Verbs that judge what is stored, such as `brim spark gaps`, have verdicts of their own; their help has them.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from edge.errors import AccessDenied, BrokerUnreachable, Refused

__all__ = ["VERBS", "main", "version"]

VERBS = {
    "run": "start the broker",
    "check": "look a configuration file over",
    "pub": "publish messages",
    "sub": "show messages as they come",
    "status": "what a running broker is doing, and what is being lost",
    "sessions": "sessions of MQTT clients: list them, remove one",
    "passwd": "add, change or delete a user of a password file",
    "bench": "measure an MQTT broker, this one or another",
    "segments": "look at the log, check and mend it, copy records out of it",
    "replay": "send again what the log holds",
    "consumers": "groups of consumers: how far behind they are, and put one somewhere else",
    "spark": "run a Spark job over what bridges have drained",
    "bridge": "run a bridge as a process of its own, or look at bridges",
}

EXIT_ATTENTION, EXIT_UNUSABLE, EXIT_NO_BROKER, EXIT_REFUSED, EXIT_TIMEOUT, EXIT_LOST = 1, 2, 3, 4, 5, 6
EXIT_INTERRUPTED = 130


_STATUSES = (
    "Exit status: 0 done, 1 done with something missing, 2 not done, 3 no broker reachable,\n"
    "4 refused by the broker, 5 time over (sub -W), 6 records lost (status), 130 interrupted."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in {"-h", "--help", "help"}:
        print(_usage(), file=sys.stdout if words else sys.stderr)
        return 0 if words else EXIT_UNUSABLE
    if words[0] in {"-V", "--version"}:
        print(f"brim {version()}")
        return 0
    if words[0] not in VERBS:
        near = difflib.get_close_matches(words[0], VERBS, n=1)
        hint = f"did you mean `brim {near[0]}`?" if near else f"it is one of {', '.join(VERBS)}"
        print(f"brim: there is no verb {words[0]!r}; {hint}", file=sys.stderr)
        return EXIT_UNUSABLE
    if words[0] == "run":  # Before anything is loaded: SIGHUP would end the process.
        from edge.cli.hangup import hangup

        hangup.install()
    return _run(words[0], words[1:])


def version() -> str:
    """Of the installed distribution."""
    from importlib import metadata

    try:
        return metadata.version("brim")
    except metadata.PackageNotFoundError:  # a checkout, which is not installed
        import tomllib

        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
        return str(project["version"])


def _run(verb: str, words: list[str]) -> int:
    module = importlib.import_module(f"edge.cli.{verb}")
    parser = argparse.ArgumentParser(
        prog=f"brim {verb}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.add_arguments(parser)
    try:
        status: int = module.run(parser.parse_args(words))
        sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # `brim sub ... | head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} or error.filename is not None:
            raise
        print(f"brim {verb}: its output cannot be written: {error.strerror}", file=sys.stderr)
        print("  make room there, or write elsewhere", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNUSABLE
    except Exception as error:
        hint = getattr(error, "hint", None)  # of the errors of all four packages that are for people
        if not isinstance(hint, str):
            raise
        print(f"brim {verb}: {error}" + (f"\n  {hint}" if hint else ""), file=sys.stderr)
        return _status_of(error)
    return status


def _status_of(error: Exception) -> int:
    from bridge.errors import BadOrder, BridgeUnreachable

    if isinstance(error, Refused | AccessDenied | BadOrder):
        return EXIT_REFUSED
    return EXIT_NO_BROKER if isinstance(error, BrokerUnreachable | BridgeUnreachable) else EXIT_UNUSABLE


def _usage() -> str:
    verbs = "\n".join(f"  {verb:<9} {what}" for verb, what in VERBS.items())
    more = "`brim VERB --help` tells more, `brim --version` which Brim this is."
    return f"brim VERB ...\n\n{verbs}\n\n{_STATUSES}\n\n{more}"
