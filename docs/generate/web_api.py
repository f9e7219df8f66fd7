"""Page of the management API over HTTP: endpoints with their role, parameters and answer, from edge/web."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec import inspect

import edge.web.roles
from docs.generate import MissingDescription
from docs.generate.commands import help_text
from docs.generate.configuration import default_of, type_and_range
from docs.generate.markdown import code, prose, table
from docs.generate.source import doc_of, field_docs
from edge.web.api_model import Endpoint
from edge.web.app import ENDPOINTS

_INTRODUCTION = """\
# Web API

`brim web`, or `listen` in `[web]`, serves the web console and this API: JSON over HTTP. A parameter of `GET`
is in the query; those of other methods are a JSON object in the body, with `Content-Type: application/json`.
An error has the keys `error` and `hint`. Paths with `v1` keep their meaning: keys are added, and none is
removed or changed.

| status | meaning |
|---|---|
| 400, 413, 415 | invalid parameters, an invalid query, a body that is too long, another content type |
| 401 | no session, or wrong user or password |
| 403 | the role is not sufficient, or the CSRF token is missing |
| 409 | the broker refuses, with its reason |
| 421 | the host name is not one of the console |
| 429 | too many failed log-ins, taps or queries |
| 503 | the broker does not answer |
| 504 | the query took longer than its limit |

A program signs in with `POST /api/v1/session`, keeps the cookie, and sends the `csrf` of the answer in the
header `X-CSRF-Token` of each change.
"""


def page() -> str:
    """Text of web-api.md."""
    roles = doc_of(edge.web.roles, "edge.web.roles").split("\n\n")[1]
    return "\n".join([_INTRODUCTION, "## Roles\n", help_text(roles), *map(_endpoint, ENDPOINTS)])


def _endpoint(endpoint: Endpoint) -> str:
    name = endpoint.handler.__name__
    role = "no role" if endpoint.role is None else f"role {endpoint.role.name.lower()}"
    parts = [
        f"## {endpoint.method} {endpoint.path}\n",
        f"Needs: {role}.\n",
        prose(doc_of(endpoint.handler, name)) + "\n",
    ]
    if rows := list(_rows(endpoint.parameters)):
        parts.append(table(("Parameter", "Type", "Default", "Allowed", "Meaning"), rows))
    return "\n".join(parts)


def _rows(cls: type[msgspec.Struct]) -> Iterator[tuple[str, ...]]:
    docs = field_docs(cls)
    for field in msgspec.structs.fields(cls):
        if field.name not in docs:
            raise MissingDescription(
                f"{field.name} of {cls.__name__} has no description; write a string below it"
            )
        name, allowed = type_and_range(inspect.type_info(field.type), field.type, "")
        yield code(field.encode_name), name, default_of(field, ""), allowed, prose(docs[field.name])
