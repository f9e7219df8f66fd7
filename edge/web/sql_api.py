"""Endpoint of SQL: a query on all records of the broker, as `brim sql` runs it. It changes nothing.

A query costs processor, memory and disk, so QUERIES_MAX run at once, one of a user, with a limit of time.
Each is written to the audit log.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from edge.local.filters import checked_filters
from edge.local.protocol import SettingList, Settings
from edge.logging_setup import pairs
from edge.web.api_model import PREFIX, ApiError, Call, Endpoint, Result
from edge.web.query_process import QueryOutput, run_query
from edge.web.roles import ConsoleRole

if TYPE_CHECKING:
    from edge.web.console import Console

log = logging.getLogger(__name__)

QUERIES_MAX = 2
MEMORY_PERCENT = 10
GRACE_S = 10.0  # after the time limit, until a child that gets no processor is ended
DIGITS_MAX = 15  # of a whole number that JavaScript keeps
NAME = "brim sql: "  # before each text on its standard error
TAKES_PART = (0, 1)  # exit statuses with rows: complete, and with records that are missing
REFUSED, TOO_LATE = 2, 5  # exit statuses without rows

Time = Annotated[str, Meta(max_length=64, pattern=r"^[-+:.@\w ]*\Z")]


class RecordQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A query on the records."""

    query: Annotated[str, Meta(min_length=1, max_length=8_192)]
    """SQL of DuckDB on the relation `records`."""
    topic: Annotated[str, Meta(max_length=1_024)] = ""
    """Topic filter; empty: all records."""
    since: Time = ""
    """Records from this time on: -15m, @SECONDS, 2026-11-21T14:00 (local), 2026-11-21T14:00Z; empty: all."""
    until: Time = ""
    """Records before this time; empty: all."""
    rows: Annotated[int, Meta(ge=1, le=10_000)] = 1_000
    """Rows of the answer at most."""
    limit_s: Annotated[int, Meta(ge=1, le=300)] = 60
    """Seconds after which the query is ended."""


async def sql(console: Console, call: Call, body: RecordQuery) -> Result:
    """Rows of a query on the records of rings, log and archive, with the names of its `columns`.

    The query can read all records that the broker has, and nothing else. The fields of the first payload
    schema of a bridge are columns. An answer has at most 2 MiB. `is_cut`: the limit of rows or bytes has
    ended the query. `warning`: records that could not be read; empty: none. A whole number of more than 15
    digits, NaN and Infinity are texts. One query of a user runs at a time, and two of all users: 429. A query
    that takes too long is answered by 504. A query ends with the connection of its client.
    """
    if body.topic:
        checked_filters(body.topic)
    _check_places(console, call.user)
    console.querying.add(call.user)
    console.record(call, "sql", query=body.query, topic=body.topic, since=body.since, until=body.until)
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(body.limit_s + GRACE_S):
            output = await run_query(await _options(console, body), body.query, body.rows)
    except TimeoutError as error:
        raise ApiError(
            504, f"the query took longer than {body.limit_s} s", "narrow it by topic and time"
        ) from error
    finally:
        console.querying.discard(call.user)
    warning = _checked(output)
    columns, rows = _rows(output.lines)
    seconds = time.monotonic() - began_s
    return {"columns": columns, "rows": rows, "is_cut": output.is_cut, "seconds": seconds, "warning": warning}


def _check_places(console: Console, user: str) -> None:
    """Raise ApiError if the user, or the console, has no place for a query."""
    if user in console.querying:
        error = f"a query of {user} runs" if user else "a query runs"
        raise ApiError(429, error, "cancel it, or wait for its end", retry_s=1)
    if len(console.querying) >= QUERIES_MAX:
        raise ApiError(429, f"{QUERIES_MAX} queries of other users run", "wait for the end of one", retry_s=5)


async def _options(console: Console, body: RecordQuery) -> list[str]:
    """Options of `brim sql`. Each is one word: no text of a user can be another option."""
    settings = (await console.link.request(Settings(), SettingList)).settings
    options = {
        "log": settings["log"]["directory"] or f"{settings['state_dir']}/log",
        "runtime-dir": settings["runtime_dir"],
        "payloads": next(filter(None, (one["options"].get("payloads") for one in settings["bridge"])), ""),
        "topic": body.topic,
        "since": body.since,
        "until": body.until,
        "memory": MEMORY_PERCENT,
        "time-limit": body.limit_s,
    }
    return [f"--{name}={value}" for name, value in options.items() if value]


def _checked(output: QueryOutput) -> str:
    """Records that could not be read, as text. Raises ApiError for a query that failed."""
    text = output.errors.rstrip()
    is_message = text.startswith(NAME)
    if output.status == 0 or (output.status in TAKES_PART and is_message):
        return text.replace(NAME, "") if is_message else ""
    if output.status in {REFUSED, TOO_LATE} and is_message:
        error, _, hint = text.removeprefix(NAME).rpartition("\n  ")
        raise ApiError(400 if output.status == REFUSED else 504, error or hint, hint if error else "")
    log.error("query failed %s", pairs(status=output.status, error=text[-1_000:]))
    hint = "narrow it by topic and time; see the log of the console"
    raise ApiError(500, f"the query ended with status {output.status}", hint)


def _rows(lines: list[bytes]) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows of lines of JSON, with numbers that JavaScript keeps. Raises ApiError."""
    try:
        rows = [json.loads(line, parse_int=_whole) for line in lines]
    except (ValueError, RecursionError) as error:
        hint = "select a part of it, or cast it to VARCHAR"
        raise ApiError(400, f"a value of the result cannot be decoded: {error}", hint) from error
    return list(rows[0]) if rows else [], [list(row.values()) for row in rows]


def _whole(digits: str) -> int | str:
    return int(digits) if len(digits) <= DIGITS_MAX else digits


QUERIES = (Endpoint("POST", f"{PREFIX}/sql", ConsoleRole.ANONYMOUS, sql, RecordQuery, ends_with_client=True),)
