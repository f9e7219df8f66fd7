"""Endpoints of the session: the page's own facts, log-in and log-out."""

from __future__ import annotations

import asyncio
import logging
import secrets
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from edge.auth.fair_executor import origin
from edge.auth.interfaces import ClientInfo
from edge.logging_setup import AUDIT, pairs
from edge.web.api_model import PREFIX, ApiError, Call, Endpoint, Nothing, Result
from edge.web.roles import ConsoleRole

if TYPE_CHECKING:
    from edge.web.console import Console, Logins

audit = logging.getLogger(AUDIT)


class LogIn(Struct, frozen=True, forbid_unknown_fields=True):
    """Credentials."""

    user: Annotated[str, Meta(min_length=1, max_length=256)]
    """User of the password file of the console."""
    password: Annotated[str, Meta(min_length=1, max_length=1_024)]
    """Password of the user."""


async def session(console: Console, call: Call, query: Nothing) -> Result:
    """User and role of the request, and the CSRF token that each change needs in the header X-CSRF-Token.

    `login`: True if the console has users. `reads`: True if the request may read.
    """
    logins = console.logins
    token = ""
    if logins is not None:
        if not call.cookie:
            call.cookie = call.new_cookie = secrets.token_urlsafe(16)
        token = logins.sessions.csrf_token(call.cookie)
    return {
        "user": call.user,
        "role": call.role.name.lower(),
        "login": logins is not None,
        "reads": logins is None or call.role > ConsoleRole.ANONYMOUS,
        "csrf": token,
    }


async def log_in(console: Console, call: Call, body: LogIn) -> Result:
    """Begin a session: sets its cookie. Failures are limited: 429 has the header Retry-After."""
    logins = console.logins
    if logins is None:
        raise ApiError(409, "the console has no users", "set web.users_file, or start with --users")
    source = origin(call.peer)
    if wait_s := logins.limit.wait_s(source):
        audit.warning("console log-in limited %s", pairs(user=body.user, peer=call.peer))
        raise ApiError(429, "too many failed log-ins", "wait a minute", retry_s=wait_s)
    logins.limit.failed(source)  # counted before the check: many at once are one more each
    if not await _is_password(logins, call, body):
        audit.warning("console log-in refused %s", pairs(user=body.user, peer=call.peer))
        raise ApiError(401, "wrong user or password")
    logins.limit.succeeded(source)
    credentials = logins.users.get(body.user)
    if credentials is None:  # removed meanwhile
        raise ApiError(401, "wrong user or password")
    if call.login:
        logins.sessions.end(call.login)
    call.cookie = call.new_cookie = logins.sessions.begin(body.user, credentials)
    call.user, call.role = body.user, logins.users.role(body.user)
    audit.info("console log-in %s", pairs(user=call.user, role=call.role.name.lower(), peer=call.peer))
    return await session(console, call, Nothing())


async def _is_password(logins: Logins, call: Call, body: LogIn) -> bool:
    client = ClientInfo("web console", body.user, call.peer, 0)
    verdict = logins.checker.authenticate(client, body.password.encode("utf-8", "surrogatepass"))
    return verdict if isinstance(verdict, bool) else await asyncio.wrap_future(verdict)


async def log_out(console: Console, call: Call, body: Nothing) -> Result:
    """End the session."""
    if console.logins is not None and call.login:
        console.logins.sessions.end(call.login)
        audit.info("console log-out %s", pairs(user=call.user, peer=call.peer))
        call.new_cookie = ""
    return {}


SESSIONS = (
    Endpoint("GET", f"{PREFIX}/session", None, session),
    Endpoint("POST", f"{PREFIX}/session", None, log_in, LogIn),
    Endpoint("DELETE", f"{PREFIX}/session", None, log_out),
)
