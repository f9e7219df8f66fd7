"""Sessions of signed-in users: random tokens in cookies, known to the server by their digest only.

A session ends after IDLE_S without a request, LIFETIME_S after the log-in, with the log-out, and as soon as
the user is removed or gets another password. Owns the table, which is bounded; the oldest session of a user
makes room. The CSRF token of a page is a keyed digest of its cookie: no other site can read either.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable

from msgspec import Struct

from edge.auth.password_file import User
from edge.web.roles import ConsoleRole, UserFile

IDLE_S = 30 * 60.0
LIFETIME_S = 12 * 3600.0
SESSIONS_MAX = 256
OF_USER_MAX = 8
TOKEN_BYTES = 32


class ConsoleLogin(Struct):
    """A session. `credentials`: of the user at the log-in."""

    user: str
    role: ConsoleRole
    credentials: User
    began_s: float
    used_s: float


class LoginSessions:
    """Table of sessions by the digest of their token."""

    def __init__(self, users: UserFile, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._clock = clock
        self._key = secrets.token_bytes(TOKEN_BYTES)
        self._sessions: dict[bytes, ConsoleLogin] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, user: str, credentials: User) -> str:
        """Create a session, and return its token."""
        now_s = self._clock()
        self._drop_ended(now_s)
        own = [digest for digest, login in self._sessions.items() if login.user == user]
        for digest in own[: max(len(own) - OF_USER_MAX + 1, 0)]:
            del self._sessions[digest]
        if len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        token = secrets.token_urlsafe(TOKEN_BYTES)
        login = ConsoleLogin(user, self._users.role(user), credentials, now_s, now_s)
        self._sessions[_digest(token)] = login
        return token

    def find(self, token: str) -> ConsoleLogin | None:
        """The session of a token, which is used now. None: it has ended, or never was."""
        digest = _digest(token)
        login = self._sessions.get(digest)
        if login is None:
            return None
        now_s = self._clock()
        if _has_ended(login, now_s) or self._users.get(login.user) != login.credentials:
            del self._sessions[digest]
            return None
        login.used_s = now_s
        return login

    def end(self, token: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(token), None)

    def csrf_token(self, cookie: str) -> str:
        """CSRF token that belongs to a cookie."""
        return hmac.new(self._key, cookie.encode("utf-8", "replace"), hashlib.sha256).hexdigest()

    def is_csrf_token(self, cookie: str, token: str) -> bool:
        """True if `token` belongs to the cookie. In constant time."""
        return bool(cookie) and hmac.compare_digest(
            self.csrf_token(cookie).encode(), token.encode("utf-8", "replace")
        )

    def _drop_ended(self, now_s: float) -> None:
        for digest in [digest for digest, login in self._sessions.items() if _has_ended(login, now_s)]:
            del self._sessions[digest]


def _has_ended(login: ConsoleLogin, now_s: float) -> bool:
    return now_s - login.used_s >= IDLE_S or now_s - login.began_s >= LIFETIME_S


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()
