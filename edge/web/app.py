"""Application: routes of the management API and of the pages, for an ASGI server.

Owns the form of answers and of their cookies; login_check.py decides about requests. Pages are files next to
this one; they are read at the start.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from edge.logging_setup import pairs
from edge.web.action_api import ACTIONS
from edge.web.api_model import ApiError, Call, EndlessAnswer, Endpoint, error_of, parameters_of
from edge.web.console import Console
from edge.web.guard import Guard
from edge.web.login_check import check, cookie_name, find_login
from edge.web.read_api import READS
from edge.web.roles import ConsoleRole
from edge.web.session_api import SESSIONS
from edge.web.sql_api import QUERIES

log = logging.getLogger(__name__)

ENDPOINTS = (*SESSIONS, *READS, *QUERIES, *ACTIONS)
PAGES = Path(__file__).parent / "pages"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
COOKIE_S = 12 * 3600
CLIENT_LEFT = 499  # of an answer that has no reader


def application(console: Console, bound: str) -> Guard:
    """The guarded application of a console that listens at the address `bound`."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        console.start()
        try:
            yield
        finally:
            await console.stop()

    by_path: dict[str, dict[str, Endpoint]] = {}
    for endpoint in ENDPOINTS:
        by_path.setdefault(endpoint.path, {})[endpoint.method] = endpoint
    routes = [_api_route(console, path, methods) for path, methods in by_path.items()]
    app = Starlette(
        routes=[*routes, *_page_routes()],
        exception_handlers={HTTPException: _http_error, Exception: _defect},
        lifespan=lifespan,
    )
    return Guard(app, bound, console.settings.host_names)


def _api_route(console: Console, path: str, methods: dict[str, Endpoint]) -> Route:
    async def serve(request: Request) -> Response:
        call = _call(console, request)
        try:
            endpoint = methods["GET" if request.method == "HEAD" else request.method]
            check(console.logins, call, endpoint, request.headers.get("x-csrf-token", ""))
            query = dict(request.query_params) if endpoint.method == "GET" else None
            parameters = parameters_of(endpoint.parameters, query, await request.body())
            work = endpoint.handler(console, call, parameters)
            result = await (_while_connected(request, work) if endpoint.ends_with_client else work)
        except Exception as error:
            answer = error_of(error)
            if answer is None:
                raise
            return _error(answer)
        if isinstance(result, EndlessAnswer):
            return StreamingResponse(_lines(result), media_type="application/x-ndjson", headers=_NO_STORE)
        response = Response(msgspec.json.encode(result), media_type="application/json", headers=_NO_STORE)
        _set_cookie(response, call)
        return response

    return Route(path, serve, methods=list(methods))


async def _while_connected(request: Request, work: Any) -> Any:
    """Result of the coroutine `work`, which is cancelled if the client leaves. Raises ApiError: it left."""
    task = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(request.receive())  # the body is read: the next message is the end
    try:
        await asyncio.wait((task, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(CLIENT_LEFT, "the client has left")
        return task.result()
    finally:
        leaving.cancel()
        task.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)


_NO_STORE = {"cache-control": "no-store"}


def _call(console: Console, request: Request) -> Call:
    """The request, with the user of its session."""
    host, port = (request.client.host, request.client.port) if request.client is not None else ("", 0)
    peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    hostname: str = request.url.hostname or ""
    is_secure = request.url.scheme == "https" or hostname in console.settings.host_names
    call = Call("", ConsoleRole.ANONYMOUS, peer, is_secure=is_secure)
    find_login(console.logins, call, request.cookies)
    return call


def _set_cookie(response: Response, call: Call) -> None:
    if call.new_cookie is None:
        return
    age_s = COOKIE_S if call.new_cookie else 0
    response.set_cookie(
        cookie_name(call),
        call.new_cookie,
        max_age=age_s,
        httponly=True,
        secure=call.is_secure,
        samesite="strict",
    )


async def _lines(stream: EndlessAnswer) -> AsyncIterator[bytes]:
    async for row in stream.rows:
        yield msgspec.json.encode(row) + b"\n"


def _error(error: ApiError) -> Response:
    body = msgspec.json.encode({"error": str(error), "hint": error.hint})
    headers = dict(_NO_STORE)
    if error.retry_s:
        headers["retry-after"] = str(int(error.retry_s) + 1)
    return Response(body, error.status, headers, media_type="application/json")


async def _http_error(_: Request, error: Exception) -> Response:
    status = int(getattr(error, "status_code", 500))
    return _error(ApiError(status, str(getattr(error, "detail", "")) or "error"))


async def _defect(_: Request, error: Exception) -> Response:
    log.error("console request failed %s", pairs(error=repr(error)), exc_info=error)
    return _error(ApiError(500, "the console has a defect", "see its log"))


def _page_routes() -> Iterable[Route]:
    for path in sorted(PAGES.iterdir()):
        if path.suffix in TYPES:
            served = _file(path.read_bytes(), TYPES[path.suffix])
            yield Route("/" if path.name == "index.html" else f"/{path.name}", served, methods=["GET"])


def _file(content: bytes, kind: str) -> Callable[[Request], Any]:
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}

    async def serve(request: Request) -> Response:
        await asyncio.sleep(0)
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)

    return serve
