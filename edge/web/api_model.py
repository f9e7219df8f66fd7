"""Model of the management API: endpoints, parameters, requests and errors. No I/O, no HTTP library.

An endpoint is a function of (Console, Call, parameters). Its docstring and its class of parameters are its
documentation: docs/reference/web-api.md is made of them (`./dev docs`). Paths begin with /api/v1; rule for
change: further endpoints, keys of answers and parameters with defaults are added freely, anything else needs
/api/v2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from edge.errors import AccessDenied, BrokerUnreachable, EdgeError, InvalidArgument, NoAnswer
from edge.web.roles import ConsoleRole

PREFIX: Final = "/api/v1"

Result = dict[str, Any]


class Call(Struct):
    """A request that the guard has let through. `login`: token of the session, "" without one."""

    user: str
    role: ConsoleRole
    peer: str  # address and port
    cookie: str = ""  # of the session, or of a visitor
    login: str = ""
    is_secure: bool = False  # the browser used https
    new_cookie: str | None = None  # set by an endpoint: value of the cookie from now on; "": remove


class Nothing(Struct, frozen=True, forbid_unknown_fields=True):
    """No parameters."""


class EndlessAnswer(NamedTuple):
    """Endless answer: one JSON object per line."""

    rows: Any  # an asynchronous iterator of dictionaries


class ApiError(Exception):
    """An answer with another status than 200."""

    def __init__(self, status: int, error: str, hint: str = "", *, retry_s: float = 0.0) -> None:
        super().__init__(error)
        self.status = status
        self.hint = hint
        self.retry_s = retry_s


Handler = Callable[[Any, Call, Any], Awaitable[Result | EndlessAnswer]]  # the first argument is the Console


class Endpoint(NamedTuple):
    """An operation of the API. `role`: the least role; None: no role is needed, as for a log-in."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    role: ConsoleRole | None
    handler: Handler
    parameters: type[Struct] = Nothing  # of the query for GET, otherwise of the JSON body
    ends_with_client: bool = False  # the handler is cancelled if the client leaves


def parameters_of(kind: type[Struct], query: dict[str, str] | None, body: bytes) -> Struct:
    """Parameters from a query, or from a JSON body. Raises ApiError."""
    try:
        if query is not None:
            return msgspec.convert(query, kind, strict=False)
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ApiError(400, f"invalid parameters: {error}", "see docs/reference/web-api.md") from error


def error_of(error: Exception) -> ApiError | None:
    """The answer for an error of the broker; None: a defect."""
    hint = getattr(error, "hint", "")
    match error:
        case ApiError():
            return error
        case AccessDenied() | NoAnswer() | BrokerUnreachable():
            return ApiError(503, str(error), hint)
        case InvalidArgument():
            return ApiError(400, str(error), hint)
        case EdgeError():
            return ApiError(409, str(error), hint)
    return ApiError(409, str(error), hint) if isinstance(hint, str) and hint else None
