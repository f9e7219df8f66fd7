"""Add, change or delete a user of a password file.

Prompts for the password, or reads it from standard input (one line). The file is that of
`auth.password_file`. It is replaced atomically, so that a running broker may read it at any time. It keeps
its owner and group. A first file is readable by its owner only; one that root makes in the directory of a
group, such as /etc/brim, also by that group. The broker reads it again after `brim reload`.
mosquitto_passwd writes such files too, and Mosquitto reads those with --hash pbkdf2.

Exit status: 0 done, 2 not done.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from edge.auth.password_file import change_user, check_name, delete_user, read_users
from edge.auth.password_hash import HASH_KINDS, make_hash
from edge.auth.scram_keys import check_scram_name, make_keys
from edge.cli.mqtt_options import UsageError, prompt_password
from edge.terminal_escape import escaped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim passwd`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="password file")
    parser.add_argument("user", metavar="USER", help="user name")
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--delete", action="store_true", help="delete the user")
    source.add_argument(
        "--hash",
        choices=HASH_KINDS,
        default=HASH_KINDS[0],
        help="hash of the password (default: %(default)s)",
    )
    source.add_argument(
        "--scram",
        action="store_true",
        help="store keys for SCRAM-SHA-256 (MQTT 5), in addition to the hash for login by password",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Change the file and return 0. After an error in file, name or password it is unchanged."""
    file, user = arguments.file, arguments.user
    try:
        check_name(user)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if arguments.scram:
        try:
            check_scram_name(user)
        except ValueError as error:
            raise UsageError(f"the user name cannot be used for SCRAM: {error}") from None
    if file.exists():
        read_users(file)  # reports mistakes now, not at the next start of the broker
    if arguments.delete:
        if not file.exists():
            raise UsageError(f"{file} does not exist", hint="check the path")
        if not delete_user(file, user):
            raise UsageError(f"there is no user {user!r} in {file}", hint="check the spelling")
        done = "deleted"
    else:
        done = "changed" if change_user(file, user, _stored(arguments)) else "added"
    if arguments.json:
        print(json.dumps({"file": str(file), "user": user, "done": done}))
    else:
        print(escaped(f"{user}: {done}"))
    return 0


def _stored(arguments: argparse.Namespace) -> str:
    password = _password(from_stdin=arguments.password_stdin)
    if not password:
        raise UsageError("the password is empty", hint="nothing was changed")
    if not arguments.scram:
        return make_hash(password.encode("utf-8", "surrogateescape"), arguments.hash)
    try:
        return str(make_keys(password))
    except ValueError as error:
        raise UsageError(f"the password cannot be used for SCRAM: {error}") from None


def _password(*, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise UsageError("there is no terminal to enter the password", hint="use --password-stdin")
    password = prompt_password("Password: ")
    if prompt_password("Again: ") != password:
        raise UsageError("the two passwords differ", hint="nothing was changed")
    return password
