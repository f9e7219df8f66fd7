"""Name brokers once, and use them without options: host, user, password file and TLS.

    brim context add plant --host edge-1 --tls --username ann --password-file ~/.brim-ann
    brim context use plant               pub, sub, request, reply, replay and bench use it from now on
    brim context ls                      all contexts; the one in use has a *
    brim context use none                the broker of this machine again
    brim context rm plant

`--context NAME` of these verbs uses another context once. A command with --host, --port, --unix or --url uses
no context. The file, ~/.config/brim/contexts.json, has mode 0600 and no password.

Exit status: 0 done, 2 wrong arguments, or no such context.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import asdict

from edge.cli.argument_types import port as port_argument
from edge.cli.listing import table, text_column
from edge.cli.saved_contexts import Context, Contexts
from edge.errors import EdgeError

NONE = "none"  # not a name
_COLUMNS = tuple(text_column(key, key) for key in ("name", "host", "port", "user", "tls"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim context`."""
    verbs = parser.add_subparsers(dest="what", required=True, metavar="add | use | ls | rm")
    adding = verbs.add_parser("add", help="add or replace a context")
    adding.add_argument("name", help="name of the context")
    adding.add_argument("--host", default="127.0.0.1", help="name or address of the broker")
    adding.add_argument("-p", "--port", type=port_argument, help="port of the broker (default: 1883 or 8883)")
    adding.add_argument("-u", "--username", metavar="NAME", help="user name")
    adding.add_argument("--password-file", type=_file, metavar="FILE", help="file with the password")
    adding.add_argument("--tls", action="store_true", help="connect with TLS")
    adding.add_argument("--cafile", type=_file, metavar="FILE", help="authority to trust, PEM")
    adding.add_argument("--cert", type=_file, metavar="FILE", help="client certificate, PEM")
    adding.add_argument("--key", type=_file, metavar="FILE", help="private key of the client certificate")
    adding.add_argument("--use", action="store_true", help="use it from now on")
    using = verbs.add_parser("use", help="use a context from now on")
    using.add_argument("name", help=f"name of the context; {NONE}: no context")
    listing = verbs.add_parser("ls", help="list the contexts")
    listing.add_argument("--json", action="store_true", help="print one JSON object")
    removing = verbs.add_parser("rm", help="remove a context")
    removing.add_argument("name", help="name of the context")


def _file(text: str) -> Path:
    """A file, as it is found from every directory."""
    return Path(text).expanduser().absolute()


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    contexts = Contexts.read()
    {"add": _add, "use": _use, "ls": _list, "rm": _remove}[arguments.what](contexts, arguments)
    return 0


def _add(contexts: Contexts, arguments: argparse.Namespace) -> None:
    if arguments.name in {NONE, ""}:
        raise EdgeError(f"invalid name {arguments.name!r}", hint=f"choose another name than {NONE!r}")
    fields = {key: getattr(arguments, key) for key in Context.__struct_fields__}
    fields["tls"] |= arguments.cafile is not None or arguments.cert is not None
    contexts.contexts[arguments.name] = Context(**fields)
    if arguments.use:
        contexts.current = arguments.name
    contexts.write()


def _use(contexts: Contexts, arguments: argparse.Namespace) -> None:
    if arguments.name != NONE:
        contexts.named(arguments.name)
    contexts.current = "" if arguments.name == NONE else arguments.name
    contexts.write()


def _remove(contexts: Contexts, arguments: argparse.Namespace) -> None:
    contexts.named(arguments.name)
    del contexts.contexts[arguments.name]
    if contexts.current == arguments.name:
        contexts.current = ""
    contexts.write()


def _list(contexts: Contexts, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(msgspec.json.encode(contexts, enc_hook=str).decode())
        return
    rows = [_row(contexts, name, context) for name, context in contexts.contexts.items()]
    print("\n".join(table(rows, _COLUMNS)) if rows else "there are no contexts")


def _row(contexts: Contexts, name: str, context: Context) -> dict[str, Any]:
    facts = asdict(context)
    mark = " *" if name == contexts.current else ""
    user, port = facts["username"] or "-", facts["port"] or "-"
    return {**facts, "name": name + mark, "user": user, "port": port, "tls": "yes" if context.tls else "no"}
