"""Guard: checks every HTTP request before the application gets it, and adds the headers of security.

    Host        one header, and a name of this console (DNS rebinding)
    body        at most BODY_MAX_BYTES, within BODY_S
    change      any method but GET: same origin by Origin and Sec-Fetch-Site, and a body of JSON
    time        REQUEST_S for a request, except those that have a limit of their own

An ASGI application around another one. Decides nothing about users: login_check.py does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from edge.transport.host_names import HostNames, host_of

BODY_MAX_BYTES = 64 << 10
BODY_S = 10.0
REQUEST_S = 60.0
OWN_LIMIT = frozenset({"/api/v1/sql", "/api/v1/tap"})

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SECURITY_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
HSTS = "max-age=31536000"


class Guard:
    """The application `app`, guarded. `bound` is the address of the console, `names` further host names."""

    def __init__(self, app: App, bound: str, names: Iterable[str] = ()) -> None:
        self._app = app
        self._names = HostNames(bound, names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        send = _with_headers(send, is_secure=scope["scheme"] == "https")
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1"), []).append(value.decode("latin-1"))
        refusal = self._refusal(scope, headers)
        body = b""
        if refusal is None:
            body, refusal = await _body(headers, receive)
        if refusal is not None:
            await _answer(send, *refusal)
            return
        limit_s = None if scope["path"] in OWN_LIMIT else REQUEST_S
        try:
            async with asyncio.timeout(limit_s):
                await self._app(scope, _replay(body, receive), send)
        except TimeoutError:
            return  # the server closes a connection without a whole answer

    def _refusal(self, scope: Scope, headers: dict[str, list[str]]) -> tuple[int, str, str] | None:
        """Status, error and hint for a request that is refused by its headers."""
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._names.accept(host_of(hosts[0])):
            shown = ", ".join(hosts) or "(none)"
            return 421, f"host {shown[:253]} is not a name of this console", "add it to web.host_names"
        if scope["method"] in {"GET", "HEAD"}:
            return None
        sites = headers.get("sec-fetch-site", ["same-origin"])
        origins = headers.get("origin", [])
        if sites != ["same-origin"] or any(urlsplit(origin).netloc != hosts[0] for origin in origins):
            return 403, "a change from another site is refused", ""
        kinds = [kind.partition(";")[0].strip().lower() for kind in headers.get("content-type", [])]
        if kinds != ["application/json"]:
            return 415, "a change needs Content-Type: application/json", ""
        return None


async def _body(headers: dict[str, list[str]], receive: Receive) -> tuple[bytes, tuple[int, str, str] | None]:
    """The whole body, or the refusal of a request with a body that is too long or too slow."""
    too_long = (413, f"the body is above the limit of {BODY_MAX_BYTES} bytes", "")
    length = headers.get("content-length", ["0"])[0]
    if not length.isdecimal() or int(length) > BODY_MAX_BYTES:
        return b"", too_long
    body = b""
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                body += message.get("body", b"")
                if len(body) > BODY_MAX_BYTES:
                    return b"", too_long
                if not message.get("more_body"):
                    return body, None
    except TimeoutError:
        return b"", (408, f"the body took longer than {BODY_S:.0f} s", "")


def _replay(body: bytes, receive: Receive) -> Receive:
    """A channel that gives the body, and then the end of the connection."""
    rest: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return rest.pop() if rest else await receive()

    return replayed


def _with_headers(send: Send, *, is_secure: bool) -> Send:
    added = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
    if is_secure:
        added.append((b"strict-transport-security", HSTS.encode()))

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *added]
        await send(message)

    return sent


async def _answer(send: Send, status: int, error: str, hint: str) -> None:
    body = msgspec.json.encode({"error": error, "hint": hint})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
