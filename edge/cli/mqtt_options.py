"""Common options, exit statuses and errors of the verbs that receive or publish messages."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import ssl
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

from edge.cli.argument_types import port as port_argument
from edge.cli.argument_types import whole_seconds
from edge.cli.exit_status import Exit
from edge.client import (
    Client,
    ClientError,
    ConnectRefused,
    Options,
    PublishRefused,
    Reconnect,
    SubscribeRefused,
)
from edge.errors import AccessDenied, EdgeError, InvalidArgument, Refused
from edge.mqtt import ProtocolError, Version
from edge.terminal_escape import escaped

__all__ = ["UsageError", "add_broker_arguments", "add_connection_arguments", "client_of", "run_verb"]

VERSIONS = {"3.1": Version.V31, "3.1.1": Version.V311, "5": Version.V5}
PORT, TLS_PORT = 1883, 8883


class UsageError(EdgeError):
    """The request is impossible, independent of the broker."""


def add_broker_arguments(group: argparse._ArgumentGroup, port: str) -> None:
    """Add --host, --port (`port`: its default, in words), --unix, --username and --password-file."""
    group.add_argument(
        "--host", default="127.0.0.1", help="name or address of the broker (default: %(default)s)"
    )
    group.add_argument("-p", "--port", type=port_argument, help=f"port of the broker (default: {port})")
    group.add_argument(
        "--unix", type=Path, metavar="PATH", help="Unix socket to connect to, in place of host and port"
    )
    group.add_argument("--username", metavar="NAME", help="user name (default: none)")
    group.add_argument(
        "--password-file", type=Path, metavar="FILE", help="file with the password in its first line"
    )


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the broker's address and this client's identity."""
    group = parser.add_argument_group("broker")
    add_broker_arguments(group, f"{PORT}, with --tls {TLS_PORT}")
    group.add_argument(
        "--password",
        metavar="TEXT",
        help='password; "-" prompts for it; other users can see a command line: prefer --password-file',
    )
    group.add_argument("--id", default="", metavar="TEXT", help="client identifier (default: a random one)")
    group.add_argument("--tls", action="store_true", help="connect with TLS")
    group.add_argument(
        "--cafile",
        type=Path,
        metavar="FILE",
        help="certificate of the authority to trust, PEM; implies --tls",
    )
    group.add_argument("--cert", type=Path, metavar="FILE", help="client certificate, PEM; implies --tls")
    group.add_argument(
        "--key",
        type=Path,
        metavar="FILE",
        help="private key of the client certificate, if it is in another file",
    )
    group.add_argument(
        "--protocol", choices=VERSIONS, default="3.1.1", help="version of MQTT (default: %(default)s)"
    )
    group.add_argument(
        "--keep-alive",
        type=whole_seconds,
        default=60,
        metavar="TIME",
        help="keep-alive interval in seconds, or 1min; 0: off (default: %(default)s)",
    )
    group.add_argument("--reconnect", action="store_true", help="connect again when the connection breaks")


def client_of(args: argparse.Namespace, **more: Any) -> Client:
    """Create a client from the options, not yet connected. Raises UsageError, ClientError."""
    tls = args.tls or args.cafile is not None or args.cert is not None
    if args.unix is not None and tls:
        raise UsageError("--unix: there is no TLS on a Unix socket; leave one of them out")
    if args.key is not None and args.cert is None:
        raise UsageError(f"--key {args.key} has no certificate; add --cert")
    host = f"[{args.host}]" if ":" in args.host else args.host
    port = args.port if args.port is not None else TLS_PORT if tls else PORT
    options = Options(
        client_id=args.id,
        username=args.username,
        password=_password(args),
        tls=_context(args) if tls else None,
        version=VERSIONS[args.protocol],
        keep_alive_s=args.keep_alive,
        reconnect=Reconnect() if args.reconnect else None,
        **more,
    )
    at = f"mqtt://{host}:{port}" if args.unix is None else f"unix://{quote(str(args.unix.absolute()))}"
    return Client(at, options)


def _password(args: argparse.Namespace) -> str | None:
    if args.password_file is not None:
        try:
            password: str = args.password_file.read_text().split("\n", 1)[0]
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"--password-file {args.password_file}: {error}") from error
        return password
    if args.password == "-":  # noqa: S105  not a password
        return getpass.getpass(f"password of {args.username or args.host}: ")
    argument: str | None = args.password
    return argument


def _context(args: argparse.Namespace) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=args.cafile)
    except OSError as error:
        raise UsageError(f"--cafile {args.cafile}: {error}") from error
    if args.cert is not None:
        try:
            context.load_cert_chain(args.cert, args.key)
        except OSError as error:
            raise UsageError(f"--cert {args.cert}, --key {args.key or args.cert}: {error}") from error
    return context


def run_verb(verb: str, work: Coroutine[Any, Any, Exit]) -> int:
    """Run `work`, print errors to standard error, and return the exit status."""
    try:
        return asyncio.run(work)
    except ProtocolError as error:
        return _report(verb, error.detail, "", Exit.USAGE)
    except EdgeError as error:
        return _report(verb, str(error), error.hint, _exit_of(error))


def _exit_of(error: EdgeError) -> Exit:
    if isinstance(error, UsageError):
        return Exit.USAGE
    if isinstance(error, ConnectRefused | SubscribeRefused | PublishRefused | Refused | AccessDenied):
        return Exit.REFUSED
    if isinstance(error, InvalidArgument) or type(error) in {ClientError, EdgeError}:
        return Exit.USAGE
    return Exit.CANNOT_CONNECT


def _report(verb: str, message: str, hint: str, code: Exit) -> Exit:
    print(f"brim {verb}: {escaped(message)}", file=sys.stderr)
    if hint:
        print(f"  {escaped(hint)}", file=sys.stderr)
    return code
