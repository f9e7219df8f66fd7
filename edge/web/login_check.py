"""Login check: the session of a request's cookie, and the decision by its role and CSRF token.

Owns the name of the cookie. login_sessions.py has the table of sessions, session_api.py log-in and log-out.
No I/O, no HTTP library.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from edge.logging_setup import AUDIT, pairs
from edge.web.api_model import ApiError, Call, Endpoint
from edge.web.console import Logins
from edge.web.roles import ConsoleRole

audit = logging.getLogger(AUDIT)

COOKIE_MAX_CHARACTERS = 128


def cookie_name(call: Call) -> str:
    """Name of the cookie. Browsers accept the prefix __Host- only over https."""
    return "__Host-brim" if call.is_secure else "brim"


def find_login(logins: Logins | None, call: Call, cookies: Mapping[str, str]) -> None:
    """Give `call` the user and the role of the session that its cookie names, if there is one."""
    if logins is None:
        return
    logins.refresh()
    call.cookie = cookies.get(cookie_name(call), "")[:COOKIE_MAX_CHARACTERS]
    login = logins.sessions.find(call.cookie) if call.cookie else None
    if login is not None:
        call.user, call.role, call.login = login.user, login.role, call.cookie


def check(logins: Logins | None, call: Call, endpoint: Endpoint, csrf_token: str) -> None:
    """Raise ApiError unless role and CSRF token of the request are sufficient."""
    changes = endpoint.method != "GET"
    if changes and logins is not None and not logins.sessions.is_csrf_token(call.cookie, csrf_token):
        hint = "get /api/v1/session, and send its `csrf` in the header X-CSRF-Token with its cookie"
        raise ApiError(403, "the CSRF token is missing or wrong", hint)
    if endpoint.role is None:
        return
    if logins is not None and call.role is ConsoleRole.ANONYMOUS:
        raise ApiError(401, "not signed in", "sign in")
    if call.role >= endpoint.role:
        return
    role = call.role.name.lower()
    if changes:
        refused = pairs(path=endpoint.path, user=call.user, role=role, peer=call.peer)
        audit.warning("console action refused %s", refused)
    needs = endpoint.role.name.lower()
    if logins is None:
        hint = "set web.users_file and web.admins, or start with --users FILE --admin NAME"
        raise ApiError(403, f"the console has no users, and this needs the role {needs}", hint)
    raise ApiError(403, f"{call.user} has the role {role}, which may not do that", f"sign in as {needs}")
