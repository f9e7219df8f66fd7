"""Common options, exit statuses and errors of the verbs that receive or publish messages."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import ssl
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import quote

from edge.cli.argument_types import port as port_argument
from edge.cli.argument_types import whole_seconds
from edge.cli.error_text import code_of, error_text
from edge.cli.exit_status import Exit
from edge.cli.saved_contexts import apply_context
from edge.client import Client, Options, Reconnect
from edge.client.errors import ClientError, ConnectRefused, PublishRefused, SubscribeRefused
from edge.errors import AccessDenied, EdgeError, InvalidArgument, NoLog, Refused
from edge.mqtt import ProtocolError, Version, Will
from edge.terminal_escape import escaped

VERSIONS = {"3.1": Version.V31, "3.1.1": Version.V311, "5": Version.V5}
# As mosquitto_pub names them.
OTHER_NAMES = {"31": "3.1", "mqttv31": "3.1", "311": "3.1.1", "mqttv311": "3.1.1", "mqttv5": "5"}
PORT, TLS_PORT = 1883, 8883


class UsageError(EdgeError):
    """The request is impossible, independent of the broker."""


def add_broker_arguments(group: argparse._ArgumentGroup, port: str, *, short: bool = False) -> None:
    """Add --host, --port (`port`: its default, in words), --unix, --username and --password-file.

    `short`: also -h and -u, as in mosquitto_pub; help is then --help only.
    """
    group.conflict_handler = "resolve"  # -h is the host
    group.add_argument(
        *(["-h"] if short else []),
        "--host",
        help="name or address of the broker (default: that of the context, otherwise 127.0.0.1)",
    )
    group.conflict_handler = "error"
    group.add_argument("-p", "--port", type=port_argument, help=f"port of the broker (default: {port})")
    group.add_argument(
        "--unix", type=Path, metavar="PATH", help="Unix socket to connect to, in place of host and port"
    )
    group.add_argument(
        "--context", metavar="NAME", help="context with the broker (default: the one of `brim context use`)"
    )
    user = ["-u"] if short else []
    group.add_argument(*user, "--username", metavar="NAME", help="user name (default: none)")
    group.add_argument(
        "--password-file", type=Path, metavar="FILE", help="file with the password in its first line"
    )


def add_connection_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options for the broker's address and this client's identity."""
    group = parser.add_argument_group("broker")
    add_broker_arguments(group, f"{PORT}, with --tls {TLS_PORT}", short=True)
    group.add_argument(
        "-L",
        "--url",
        metavar="URL",
        help="broker and topic, mqtt://[USER[:PASSWORD]@]HOST[:PORT]/TOPIC or mqtts://..., in place of host, "
        "port and topic",
    )
    group.add_argument(
        "-P",
        "--password",
        "--pw",
        metavar="TEXT",
        help='password; "-" prompts for it; other users can see a command line: prefer --password-file',
    )
    group.add_argument(
        "-i", "--id", default="", metavar="TEXT", help="client identifier (default: a random one)"
    )
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
        "-V",
        "--protocol",
        "--protocol-version",
        type=lambda text: OTHER_NAMES.get(text, text),
        choices=VERSIONS,
        default="3.1.1",
        help="version of MQTT, also as mqttv5, mqttv311 (default: %(default)s)",
    )
    group.add_argument(
        "-k",
        "--keep-alive",
        "--keepalive",
        type=whole_seconds,
        default=60,
        metavar="TIME",
        help="keep-alive interval in seconds, or 1min; 0: off (default: %(default)s)",
    )
    group.add_argument("--reconnect", action="store_true", help="connect again when the connection breaks")


def add_will_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the will."""
    group = parser.add_argument_group("will, which the broker publishes if the connection breaks")
    group.add_argument("--will-topic", metavar="TOPIC", help="topic of the will")
    group.add_argument("--will-payload", metavar="TEXT", default="", help="payload of the will")
    group.add_argument(
        "--will-qos", type=int, choices=(0, 1, 2), default=0, help="QoS of the will (default: %(default)s)"
    )
    group.add_argument("--will-retain", action="store_true", help="retain the will")


def will_of(args: argparse.Namespace) -> Will | None:
    """The will of the options. Raises UsageError."""
    if args.will_topic is None:
        if args.will_payload or args.will_qos or args.will_retain:
            raise UsageError("a will without a topic", hint="add --will-topic")
        return None
    payload = args.will_payload.encode("utf-8", "surrogateescape")
    return Will(args.will_topic, payload, args.will_qos, args.will_retain)


def topic_of_url(args: argparse.Namespace) -> str:
    """Topic in --url, as it is written: + and # too; "" if there is none."""
    return str(args.url or "").partition("://")[2].partition("/")[2]


def client_of(args: argparse.Namespace, **more: Any) -> Client:
    """Create a client from the options, not yet connected. Raises UsageError, ClientError, EdgeError."""
    apply_context(args)
    tls = args.tls or args.cafile is not None or args.cert is not None
    if args.url is not None and args.unix is not None:
        raise UsageError("--url and --unix are two brokers", hint="leave one of them out")
    if args.unix is not None and tls:
        raise UsageError("--unix: there is no TLS on a Unix socket", hint="leave one of them out")
    if args.key is not None and args.cert is None:
        raise UsageError(f"--key {args.key} has no certificate", hint="add --cert")
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
    if args.url is not None:
        scheme, _, rest = args.url.partition("://")
        at = f"{scheme}://{rest.partition('/')[0]}"
    return Client(at, options)


def _password(args: argparse.Namespace) -> str | None:
    if args.password_file is not None:
        try:
            password: str = args.password_file.read_text().split("\n", 1)[0]
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
            raise UsageError(
                f"--password-file {args.password_file} cannot be read: {reason}",
                hint="name a file with the password in its first line",
            ) from error
        return password
    if args.password == "-":  # noqa: S105  not a password
        if not _has_terminal():
            raise UsageError("there is no terminal to enter the password", hint="use --password-file")
        return prompt_password(f"password of {args.username or args.host}: ")
    argument: str | None = args.password
    return argument


def prompt_password(prompt: str) -> str:
    """The password that a user enters on the terminal. Raises UsageError: the input ended before."""
    try:
        return getpass.getpass(prompt)
    except EOFError:
        print(file=sys.stderr)  # ends the line of the prompt
        raise UsageError("no password was entered", hint="enter it, and end it with Enter") from None


def _has_terminal() -> bool:
    """True if a password can be entered, also if standard input has payloads."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return sys.stdin.isatty()
    return True


def _context(args: argparse.Namespace) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=args.cafile)
    except OSError as error:
        reason = error.strerror or error
        hint = "name a PEM file with the certificate of the authority"
        raise UsageError(f"--cafile {args.cafile} cannot be read: {reason}", hint=hint) from error
    if args.cert is not None:
        try:
            context.load_cert_chain(args.cert, args.key)
        except OSError as error:
            files = f"--cert {args.cert}, --key {args.key or args.cert}"
            raise UsageError(
                f"{files} cannot be read: {error.strerror or error}",
                hint="name PEM files of one certificate and its key",
            ) from error
    return context


def run_verb(verb: str, work: Coroutine[Any, Any, Exit], *, as_json: bool = False) -> int:
    """Run `work`, print errors to standard error, and return the exit status."""
    try:
        return asyncio.run(work)
    except ProtocolError as error:
        failed: Exception = error
        message, hint, status = error.detail, "", Exit.USAGE
    except EdgeError as error:
        failed = error
        message, hint, status = str(error), error.hint, _exit_of(error)
    text = error_text(verb, message, hint, code_of(failed), as_json=as_json)
    print("\n".join(map(escaped, text.split("\n"))), file=sys.stderr)
    return status


def _exit_of(error: EdgeError) -> Exit:
    if isinstance(error, UsageError):
        return Exit.USAGE
    if isinstance(error, ConnectRefused | SubscribeRefused | PublishRefused | Refused | AccessDenied):
        return Exit.REFUSED
    if isinstance(error, InvalidArgument | NoLog) or type(error) in {ClientError, EdgeError}:
        return Exit.USAGE
    return Exit.CANNOT_CONNECT
