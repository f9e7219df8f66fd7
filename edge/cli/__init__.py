"""The command `brim`: one module for each verb, loaded when it is used.

A verb's module has a docstring, which is its help, add_arguments(parser), and run(arguments), which returns
the exit status. Errors with a `hint` are for users: they are printed with that hint.

Exit statuses are those of edge/cli/exit_status.py.
"""

from __future__ import annotations

import argparse
import errno
import gc
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

from edge.cli.color import add_color, apply_color
from edge.cli.error_text import code_of, error_text
from edge.cli.exit_status import Exit
from edge.cli.standard_streams import prepare_streams
from edge.errors import AccessDenied, BrokerUnreachable, InvalidFile, Refused

__all__ = ["VERBS", "VERSION", "main", "parser_of", "usage"]

VERSION = "0.1.0"  # as in pyproject.toml: metadata of distributions take longer to read than a start may

# A full collection visits every topic and session, 0.3 s for a million, on the thread that happens to
# allocate. On the MQTT thread every client would wait. So run_loop.py does it, on a thread that may wait,
# while C serves everything that needs no Python. During imports each one takes 5 ms and finds nothing.
COLLECT = (10_000, 20, 1_000_000_000)

VERBS = {
    "run": "start the broker",
    "check": "check a configuration file",
    "config": "show the configuration in effect, compare, begin or edit a file",
    "reload": "apply changes of the configuration and its files",
    "pub": "publish messages",
    "sub": "show messages as they arrive",
    "context": "name brokers, and choose the one that pub, sub and others use",
    "request": "publish a request and print its responses",
    "reply": "answer requests",
    "status": "show the state of a running broker, and losses",
    "top": "show rates, lag, losses and clients live",
    "tap": "show messages as they pass, or rates of topics",
    "logs": "show the newest log lines of a running broker",
    "streams": "show streams with their rings, rates and readers",
    "topics": "show topics with rates, age and last value",
    "retained": "list, print or clear retained messages",
    "delayed": "list or cancel delayed messages",
    "clients": "list, show, disconnect or forget MQTT clients",
    "web": "serve the web console of a broker",
    "explain": "explain an error by its code",
    "doctor": "check the machine, files and network of a broker",
    "passwd": "add, change or delete a user of a password file",
    "bench": "measure an MQTT broker",
    "sim": "simulate devices that publish, with drifting values and faults",
    "segments": "list, verify, repair and export segments of the log",
    "replay": "send records of the log again",
    "schema": "infer a payload schema, which makes fields columns",
    "sql": "query the records of rings, log and archive with SQL",
    "consumers": "show and change the offsets of consumer groups",
    "spark": "run a Spark job on drained files",
    "bridge": "run and control bridges",
    "completion": "print the completion script of a shell",
    "backup": "copy the state and the log of a broker",
    "restore": "copy a backup back into empty directories",
    "service": "install, remove or show a service of systemd",
}
ALIASES = {"sessions": "clients"}
_MAY_NOT = "run as a user who may do that, or name another file"
_REMEDIES = {
    errno.EACCES: _MAY_NOT, errno.EPERM: _MAY_NOT, errno.EROFS: "name a file on another file system",
    errno.ENOENT: "check the path", errno.ENOTDIR: "check the path", errno.EISDIR: "name a file",
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    prepare_streams()
    try:
        status = _run(words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:  # `brim sub ... | head` has closed its end
        _discard_output()
        return 0
    except Exception as error:
        failed = _status_of_error(words, error)
        if failed is None:
            raise
        return failed
    return status


def _run(words: list[str]) -> int:
    """Run the verb, or print the help of all verbs."""
    if not words or words[0] in {"-h", "--help", "help"}:
        print(usage(), file=sys.stdout if words else sys.stderr)
        return 0 if words else Exit.USAGE
    if words[0] in {"-V", "--version"}:
        print(f"brim {VERSION}")
        return 0
    words[0] = ALIASES.get(words[0], words[0])
    if words[0] not in VERBS:
        import difflib

        from edge.cli.spark import JOBS

        is_job = words[0] in JOBS
        near = [f"spark {words[0]}"] if is_job else difflib.get_close_matches(words[0], VERBS, n=1)
        hint = f"did you mean `brim {near[0]}`?" if near else f"it is one of {', '.join(VERBS)}"
        error = f"there is no verb {words[0]!r}"
        as_json = error_text(words[0], error, hint, as_json=True)
        print(as_json if "--json" in words else f"brim: {error}; {hint}", file=sys.stderr)
        return Exit.USAGE
    if words[0] == "run":  # before anything is loaded: SIGHUP would end the process
        from edge.server.sighup import sighup

        sighup.install()
        from edge.cli.light_imports import import_msgspec

        import_msgspec()
        gc.set_threshold(*COLLECT)
    return _run_verb(words[0], words[1:])


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Argument parser of a verb; the docstring of its module is its description."""
    from edge.cli.verb_parser import VerbParser

    module = _module(verb)
    parser = VerbParser(prog=f"brim {verb}", description=module.__doc__, formatter_class=_help_formatter)
    module.add_arguments(parser)
    add_color(parser)
    return parser


def _help_formatter(prog: str) -> argparse.HelpFormatter:
    """Formatter with the width of the terminal. argparse would import shutil for it, also without --help."""
    with suppress(OSError, ValueError):
        columns = int(os.environ.get("COLUMNS", "0")) or os.get_terminal_size().columns
        if columns > 0:  # a serial console does not know its size
            return argparse.RawDescriptionHelpFormatter(prog, width=columns - 2)
    return argparse.RawDescriptionHelpFormatter(prog, width=78)


def _module(verb: str) -> ModuleType:
    return importlib.import_module(f"edge.cli.{verb}")


def _run_verb(verb: str, words: list[str]) -> int:
    arguments = parser_of(verb).parse_args(words)
    apply_color(arguments.color)
    if getattr(arguments, "instance", None):
        os.environ["BRIM_INSTANCE"] = arguments.instance  # for the default directories
    if getattr(arguments, "config_of_broker", None):
        from edge.cli.config_options import use_config_of_broker

        use_config_of_broker(arguments)
    status: int = _module(verb).run(arguments)
    return status


def _status_of_error(words: list[str], error: Exception) -> int | None:
    """Exit status of an error for people, which is printed; None: a defect."""
    verb = words[0] if words else ""
    hint = getattr(error, "hint", None)  # of the errors of all four packages that are for people
    if isinstance(hint, str):
        _print_error(verb, error, hint, str(error), as_json="--json" in words)
        return _status_of(verb, error)
    if isinstance(error, MemoryError):
        hint = "free memory, or raise the limit: `ulimit -v`, or MemoryMax= of a service"
        _print_error(verb, error, hint, f"not enough memory ({_address_space()})", as_json="--json" in words)
        return Exit.USAGE
    if not isinstance(error, OSError) or (verb == "run" and error.filename is not None):
        return None
    remedy = _remedy_of_file(error)
    if remedy is None:
        return None
    place = "its output cannot be written" if error.filename is None else error.filename
    _print_error(verb, error, remedy, f"{place}: {error.strerror}", as_json="--json" in words)
    if error.filename is None:
        _discard_output()
    return Exit.USAGE


def _address_space() -> str:
    """The limit of the address space of this process, in words."""
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return "no limit" if limit == resource.RLIM_INFINITY else f"limit of this process: {limit} bytes"


def _discard_output() -> None:
    """Replace standard output, which cannot be written: the end of the process would write the rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_error(verb: str, error: Exception, hint: str, message: str, *, as_json: bool) -> None:
    """Print an error for people, or with --json for programs, with the code that `brim explain` takes."""
    print(error_text(verb, message, hint, code_of(error), as_json=as_json), file=sys.stderr)


def _remedy_of_file(error: OSError) -> str | None:
    """Remedy for a file that the user named, or for a full standard output; None: another error."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:  # standard output has no name
        return "free space there, or write elsewhere"
    return None if error.filename is None else _REMEDIES.get(error.errno or 0)


def _status_of(verb: str, error: Exception) -> int:
    from bridge.errors import BridgeUnreachable, InvalidCommand

    if verb == "run" and isinstance(error, InvalidFile) and not error.unreadable:
        return Exit.CONFIGURATION  # service managers do not start it again
    if isinstance(error, Refused | AccessDenied | InvalidCommand):
        return Exit.REFUSED
    return Exit.CANNOT_CONNECT if isinstance(error, BrokerUnreachable | BridgeUnreachable) else Exit.USAGE


def usage() -> str:
    """Help text of `brim` without a verb."""
    verbs = "\n".join(f"  {verb:<10} {description}" for verb, description in VERBS.items())
    statuses = "\n".join(f"  {status:<10} {status.meaning}" for status in Exit)
    more = (
        "`brim spark JOB` has statuses of its own; `brim spark JOB --help` lists them.\n\n"
        "`brim VERB --help` shows the options of a verb, `brim --version` the version."
    )
    return f"brim VERB ...\n\n{verbs}\n\nExit status:\n{statuses}\n\n{more}"
