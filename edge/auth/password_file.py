"""Password file: one user a line, `name:stored password`, as mosquitto_passwd writes it.

    ann:$argon2id$v=19$m=19456,t=2,p=1$...$...        see edge.auth.password_hash for the kinds
    ann:SCRAM-SHA-256$4096:SALT$STORED:SERVER         see edge.auth.scram; in addition, or instead

Empty lines and lines that begin with # are skipped. A name has no colon and no control character, and at most
one line of each kind. Owns the parser, which reports all mistakes, and changes of one user. A change replaces
the file in one step. Its owner may read it, and its group if the group could read the earlier one. Never
quotes the text after the colon.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from edge.auth.errors import AuthFileError, text_of
from edge.auth.password_hash import PasswordHash, parse_hash
from edge.auth.scram_keys import PREFIX, ScramKeys, parse_keys
from edge.errors import EdgeError
from edge.logging_setup import pairs
from persistence.durable_file import NewFile
from persistence.files import OsFiles

log = logging.getLogger(__name__)

NAME_MAX_BYTES = 65_535  # limit of an MQTT string
_BAD_IN_NAME = re.compile(r"[:\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class User:
    """Credentials of one user."""

    password: PasswordHash | None = None
    scram: ScramKeys | None = None


Users = dict[str, User]


def read_users(file: Path) -> Users:
    """Read the users in `file`; warn if others may read it. Raises AuthFileError with every mistake."""
    text = text_of(file, missing=f"`brim passwd {file} NAME` makes it")
    if file.stat().st_mode & stat.S_IROTH:
        log.warning("password file is readable by all users; run chmod o-r %s", pairs(file=file))
    return parse_users(text, str(file))


def parse_users(text: str, name: str) -> Users:
    """Parse the users in `text`; `name` is the file name in messages. Raises AuthFileError."""
    users: Users = {}
    problems: list[str] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r")
        if not line.strip() or line.startswith("#"):
            continue
        try:
            _add(users, line)
        except ValueError as error:
            problems.append(f"{name}:{number}: {error}")
    if problems:
        raise AuthFileError(problems)
    return users


def _add(users: Users, line: str) -> None:
    username, colon, stored = line.partition(":")
    if not colon:
        raise ValueError("no colon; a line is name:hash, made with `brim passwd`")
    check_name(username)
    user = users.get(username, User())
    if stored.startswith(PREFIX):
        if user.scram:
            raise ValueError(f"user {username!r} has a {PREFIX[:-1]} line already; remove one")
        users[username] = replace(user, scram=parse_keys(stored))
    else:
        if user.password:
            raise ValueError(f"user {username!r} has a line already; remove one")
        users[username] = replace(user, password=parse_hash(stored))


def check_name(name: str) -> None:
    """Check that a user may have the name `name`. Raises ValueError."""
    if not name:
        raise ValueError("a user name has at least one character")
    if bad := _BAD_IN_NAME.search(name):
        raise ValueError(f"the character {bad.group()!a} is not allowed in a user name")
    if len(name.encode("utf-8", "surrogatepass")) > NAME_MAX_BYTES:
        raise ValueError(f"a user name has at most {NAME_MAX_BYTES} bytes")


def change_user(file: Path, name: str, stored: str) -> bool:
    """Store a credential of `name`, in place of one of the same kind. True if there was one."""
    is_scram = stored.startswith(PREFIX)
    return _rewrite(file, name, lambda old: old.startswith(PREFIX) == is_scram, f"{name}:{stored}")


def delete_user(file: Path, name: str) -> bool:
    """Remove all lines of `name`. True if there were any."""
    return _rewrite(file, name, lambda _: True, None)


def _rewrite(file: Path, name: str, is_old: Callable[[str], bool], line: str | None) -> bool:
    lines = text_of(file).split("\n") if file.exists() else []
    new_lines: list[str] = []
    place: int | None = None
    for old in lines:
        username, _, stored = old.partition(":")
        if username == name and is_old(stored):
            place = len(new_lines) if place is None else place
        else:
            new_lines.append(old)
    if line is not None:
        while place is None and new_lines and not new_lines[-1]:
            new_lines.pop()
        new_lines.insert(len(new_lines) if place is None else place, line)
    if line is not None or place is not None:
        _replace(file, "\n".join(new_lines).rstrip("\n") + "\n")
    return place is not None


def _replace(file: Path, text: str) -> None:
    """Write a temporary file in the same directory and rename it: no reader ever sees half a file."""
    try:
        target = file.resolve()
        with NewFile(OsFiles(), str(target), mode=0o600, shared=True) as new:
            new.write(text.encode())
            _keep_access(target, new.handle)
            new.publish(sync_name=False)
        with suppress(PermissionError):  # the directory may not be readable; the change is made
            OsFiles().dirsync(str(target.parent))
    except OSError as error:
        raise EdgeError(
            f"{file} cannot be written: {error.strerror}", hint="check the directory and its owner"
        ) from error


def _keep_access(target: Path, descriptor: int) -> None:
    """Keep owner, group and the right of the group to read: root changes the file, the broker reads it.

    A first file that root writes into a directory of a group, such as /etc/brim, is readable for that group.
    """
    is_root, created = os.geteuid() == 0, os.fstat(descriptor)
    user, group, group_reads = created.st_uid, created.st_gid, False
    if target.exists():
        earlier = target.stat()
        user, group, group_reads = earlier.st_uid, earlier.st_gid, bool(earlier.st_mode & stat.S_IRGRP)
    elif is_root and (directory := target.parent.stat()).st_gid:
        readable = stat.S_IRGRP | stat.S_IXGRP
        group, group_reads = directory.st_gid, directory.st_mode & readable == readable
    if is_root:
        os.fchown(descriptor, user, group)
    elif group_reads:
        with suppress(PermissionError):  # not a member of that group, which loses the right to read
            os.fchown(descriptor, -1, group)
    if group_reads and os.fstat(descriptor).st_gid == group:
        os.fchmod(descriptor, 0o640)
