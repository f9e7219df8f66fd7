"""Auth backend: combines all that decides about clients, as [auth] configures it, and reloads its files.

    password file, plug-ins  ->  authenticator, enhanced     authentication
    ACL file, plug-ins       ->  access                      authorization

Only the password file decides about its users; plug-ins, if any, decide about all other clients. A topic must
be allowed by the ACL file and by the plug-ins, if configured.

Reloading takes two steps, so that the broker's thread reads no file. read(), on any other thread, returns the
new content and changes nothing. apply(), on the broker's thread, puts it in force.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from edge.auth.errors import AuthFileError
from edge.auth.interfaces import (
    AccessList,
    Answer,
    Authenticator,
    ClientInfo,
    EnhancedAuthenticator,
    PlugIns,
    Watcher,
)
from edge.logging_setup import AUDIT, pairs
from persistence.durable_file import UnreadableFile, read_file
from persistence.files import OsFiles

if TYPE_CHECKING:
    from edge.auth.acl import AccessRules
    from edge.auth.password_checker import PasswordChecker
    from edge.auth.password_file import User, Users
    from edge.auth.scram import ScramAuthenticator

SECRET_BYTES = 32

log = logging.getLogger(__name__)


class AuthFiles(Struct, frozen=True):
    """Content of the files. None: the file is not configured."""

    users: Users | None = None
    rules: AccessRules | None = None

    @classmethod
    def read(cls, password_file: Path | None, acl_file: Path | None) -> AuthFiles:
        """Read both files. Raises AuthFileError with the mistakes of both."""
        errors: list[AuthFileError] = []
        users = rules = None
        if password_file:
            from edge.auth.password_file import read_users

            try:
                users = read_users(password_file)
            except AuthFileError as error:
                errors.append(error)
        if acl_file:
            from edge.auth.acl_file import read_rules

            try:
                rules = read_rules(acl_file)
            except AuthFileError as error:
                errors.append(error)
        if errors:
            problems = [problem for error in errors for problem in error.problems]
            raise AuthFileError(problems, unreadable=all(error.unreadable for error in errors))
        return cls(users, rules)


class AuthBackend:
    """Implementation of the protocols of interfaces.py; each is None if nothing is configured for it."""

    def __init__(
        self,
        password_file: Path | None = None,
        acl_file: Path | None = None,
        *,
        secret: bytes = b"",
    ) -> None:
        """Read the files. `secret` is for SCRAM (scram_secret). Raises AuthFileError."""
        self._paths = (password_file, acl_file)
        self.files = AuthFiles.read(password_file, acl_file)
        self._plugins: PlugIns | None = None
        self._passwords: PasswordChecker | None = None
        self._scram: ScramAuthenticator | None = None
        if (users := self.files.users) is not None:
            from edge.auth.password_checker import PasswordChecker
            from edge.auth.scram import ScramAuthenticator

            self._passwords, self._scram = PasswordChecker(users), ScramAuthenticator(users, secret)

    def load(self, plugins: PlugIns) -> None:
        """Use these plug-ins from now on; close() closes them. Called once, before the first request."""
        self._plugins = plugins

    @property
    def has_files(self) -> bool:
        """True if there is a file to reload."""
        return any(self._paths)

    @property
    def authenticator(self) -> Authenticator | None:
        """Authenticator of CONNECT packets with a password; None if nothing is configured."""
        plugins = self._plugins.authenticator if self._plugins else None
        if self._passwords is None or plugins is None:
            return self._passwords or plugins
        assert self._plugins is not None
        return _FileFirst(self._passwords, plugins, self._plugins.delay_refusal)

    @property
    def watcher(self) -> Watcher | None:
        """Receiver of client events; None if no plug-in listens."""
        return self._plugins.watcher if self._plugins else None

    @property
    def enhanced(self) -> EnhancedAuthenticator | None:
        """Authenticator by AUTH packets (MQTT 5); None if there is no password file."""
        return self._scram

    @property
    def access(self) -> AccessList | None:
        """Access list; a new object after apply()."""
        plugins = self._plugins.access if self._plugins else None
        if self.files.rules is None or plugins is None:
            return self.files.rules or plugins
        return _Both(self.files.rules, plugins)

    def read(self) -> AuthFiles:
        """The files as they are now, not in force yet. Raises AuthFileError. Any thread.

        Rules of the same text as those in force are the same object.
        """
        files, present = AuthFiles.read(*self._paths), self.files.rules
        if present is not None and files.rules is not None and files.rules.text_hash == present.text_hash:
            return replace(files, rules=present)
        return files

    def apply(self, files: AuthFiles, judge: Callable[[bool], object]) -> None:
        """Put the files in force, and call `judge`, which checks every client again, with True if the rules
        have changed, or plug-ins decide too. On the broker's thread.

        Users who were removed, or have another password, are disconnected by `judge`. Afterwards they are
        accepted again, because they have authenticated with the new files then.
        """
        before, self.files = self.files, files
        changed = changed_users(before.users or {}, files.users or {})
        if files.users is not None and self._passwords is not None and self._scram is not None:
            self._passwords.replace(files.users, revoked=changed)
            self._scram.replace(files.users)
        by_plugins = self._plugins is not None and self._plugins.access is not None
        judge(by_plugins or files.rules is not before.rules)
        if self._passwords is not None:
            self._passwords.revoked = frozenset()
        logging.getLogger(AUDIT).info(
            "password and ACL files reloaded %s",
            pairs(users=len(files.users or ()), changed=len(changed), rules=files.rules is not None),
        )
        if before.users and not files.users and (self._plugins is None or not self._plugins.authenticator):
            log.warning(
                "password file has no users, every login is refused %s",
                pairs(file=self._paths[0], remedy="add users with brim passwd, then run brim reload"),
            )

    def close(self) -> None:
        """End the threads. Clients that wait for an answer are refused."""
        if self._passwords is not None:
            self._passwords.close()
        if self._plugins is not None:
            self._plugins.close()


def changed_users(before: Mapping[str, User], after: Mapping[str, User]) -> frozenset[str]:
    """Users whose password or SCRAM keys were removed or changed."""

    def kept(old: User, new: User | None) -> bool:
        password, scram = (new.password, new.scram) if new is not None else (None, None)
        return old.password in (None, password) and old.scram in (None, scram)

    return frozenset(name for name, old in before.items() if not kept(old, after.get(name)))


class _FileFirst(Struct, frozen=True):
    """An Authenticator: the file decides about its users, plug-ins about all others.

    The time of a refusal does not reveal which of the two refused.
    """

    passwords: PasswordChecker
    others: Authenticator
    delay_refusal: Callable[[Answer], Answer]

    def authenticate(self, client: ClientInfo, password: bytes | None) -> Answer:
        if client.username is not None and self.passwords.knows(client.username):
            return self.delay_refusal(self.passwords.authenticate(client, password))
        return self.others.authenticate(client, password)

    def is_still_authorized(self, client: ClientInfo) -> bool:
        return self.passwords.is_still_authorized(client) and self.others.is_still_authorized(client)


class _Both(Struct, frozen=True):
    """An AccessList: both the rules and the plug-ins must allow."""

    rules: AccessRules
    others: AccessList

    def may_publish(self, client: ClientInfo, topic: str) -> bool | Future[bool]:
        return self.rules.may_publish(client, topic) and self.others.may_publish(client, topic)

    def may_subscribe(self, client: ClientInfo, topic_filter: str) -> bool | Future[bool]:
        return self.rules.may_subscribe(client, topic_filter) and self.others.may_subscribe(
            client, topic_filter
        )

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        return self.rules.may_receive(client, topic) and self.others.may_receive(client, topic)


def scram_secret(file: Path) -> bytes:
    """Secret from which the salts of unknown users are made, stored in `file`: the same after every start."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        with suppress(UnreadableFile):
            if len(saved := read_file(OsFiles(), str(file))) == SECRET_BYTES:
                return saved
        file.rename(f"{file}.bad")  # truncated by a crash, or by the disk
        return scram_secret(file)
    with os.fdopen(descriptor, "wb") as output:
        output.write(secret := os.urandom(SECRET_BYTES))
    return secret
