"""Roles of the web console: its users with their passwords and rights, from the password file.

    anonymous   reads, also all records by SQL, if there is no password file
    viewer      the same with a log-in; also the configuration
    operator    reads the log lines of the broker; disconnects, forgets, clears, publishes, pauses and resumes
    admin       in addition, all that loses data or changes rights: skip, reset of groups, reload

Each endpoint has the role that it requires (action_api.py, read_api.py, sql_api.py, session_api.py).

Owns the file as it was last read. A changed file is read again; a file that is not valid stays without
effect.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection
from enum import IntEnum
from pathlib import Path

from edge.auth.password_file import User, read_users
from edge.errors import EdgeError
from edge.logging_setup import pairs

log = logging.getLogger(__name__)

LOOK_S = 1.0  # between two checks of the file

_Seen = tuple[int, int, int]  # modification time, size, inode


class ConsoleRole(IntEnum):
    """Rights of a request; a higher role has those of the lower ones."""

    ANONYMOUS = 0
    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3


class UserFile:
    """Users of a password file. `admins` and `operators` are names; all others are viewers."""

    def __init__(
        self,
        path: Path,
        admins: Collection[str] = (),
        operators: Collection[str] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the file. Raises AuthFileError, EdgeError."""
        self._path = path
        self._admins, self._operators = frozenset(admins), frozenset(operators)
        self._clock = clock
        self._looked_s = clock()
        self._seen = self._state()
        self.users = read_users(path)
        if unknown := sorted((self._admins | self._operators) - self.users.keys()):
            hint = f"add each with `brim passwd {path} NAME`"
            raise EdgeError(f"{path} has no user {', '.join(unknown)}", hint=hint)

    def role(self, name: str) -> ConsoleRole:
        """The role of a user."""
        if name in self._admins:
            return ConsoleRole.ADMIN
        return ConsoleRole.OPERATOR if name in self._operators else ConsoleRole.VIEWER

    def get(self, name: str) -> User | None:
        """Credentials of a user; None: no such user."""
        return self.users.get(name)

    def refresh(self) -> bool:
        """Read the file again if it has changed. True if `users` is new."""
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        state = self._state()
        if state == self._seen:
            return False
        self._seen = state
        try:
            self.users = read_users(self._path)
        except (EdgeError, OSError) as error:
            log.error("web users not read %s", pairs(file=self._path, reason=error))
            return False
        log.info("web users read %s", pairs(file=self._path, users=len(self.users)))
        return True

    def _state(self) -> _Seen | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino
