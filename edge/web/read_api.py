"""Endpoints that read: state, clients, topics, messages, configuration. They change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from edge.config.public_settings import flat_settings
from edge.errors import BrokerUnreachable, EdgeError, Refused
from edge.local.filters import checked_filters
from edge.local.payloads import payload_fields
from edge.local.protocol import (
    LogLines,
    LogPage,
    Retained,
    RetainedList,
    Session,
    SessionDetails,
    SettingList,
    Settings,
)
from edge.mqtt.topic_filters import split_share
from edge.web.api_model import PREFIX, ApiError, Call, EndlessAnswer, Endpoint, Nothing, Result
from edge.web.client_list import SORTS as CLIENT_SORTS
from edge.web.roles import ConsoleRole
from edge.web.topic_series import topic_series

if TYPE_CHECKING:
    from edge.web.console import Console

TAP_S = 600.0  # of one answer; the page requests the next one
PAGE_MAX = 500

First = Annotated[int, Meta(ge=0, le=10_000_000)]
Count = Annotated[int, Meta(ge=1, le=PAGE_MAX)]
Text = Annotated[str, Meta(max_length=256)]
Topic = Annotated[str, Meta(min_length=1, max_length=1_024)]


class Since(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a history."""

    since: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """Number of the last sample that the page has; 0: all samples."""


class ClientPage(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a page of clients."""

    first: First = 0
    """Number of the first row."""
    count: Count = 100
    """Rows of the page."""
    sort: Literal[
        "client",
        "user",
        "tenant",
        "address",
        "since",
        "subscriptions",
        "queued",
        "in_flight",
        "delivered",
        "dropped",
    ] = "client"
    """Column to sort by; numbers downwards."""
    text: Text = ""
    """Part of the client identifier, user, address or tenant."""
    state: Literal["all", "connected", "away", "dropping"] = "all"
    """Only connected clients, only sessions of absent clients, or only clients that have lost messages."""


class LinesAfter(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the log lines."""

    after: Annotated[int, Meta(ge=0, le=1 << 53)] = 0
    """`last` of the previous answer; 0: all lines that the broker keeps."""


class OneClient(Struct, frozen=True, forbid_unknown_fields=True):
    """A client."""

    client_id: Annotated[str, Meta(max_length=65_535)]
    """Client identifier."""


class TopicPage(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a page of topics."""

    prefix: Annotated[str, Meta(max_length=1_024)] = ""
    """Levels above the rows, such as plant/1; empty: the first levels."""
    text: Text = ""
    """Part of a topic; searches all topics instead of one level."""
    first: First = 0
    """Number of the first row."""
    count: Count = 100
    """Rows of the page."""
    sort: Literal["topic", "rate", "count", "age"] = "topic"
    """Column to sort by."""


class OneTopic(Struct, frozen=True, forbid_unknown_fields=True):
    """A topic."""

    topic: Topic
    """Topic without wildcards."""


class RetainedPage(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a page of retained messages."""

    filter: Topic = "#"
    """Topic filter."""
    first: First = 0
    """0, then `after` of the previous page."""


class TapFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of a tap."""

    filter: Topic = "#"
    """Topic filter."""
    client_id: Annotated[str, Meta(max_length=65_535)] = ""
    """Topics that this client subscribes to, instead of the filter."""


async def overview(console: Console, call: Call, query: Since) -> Result:
    """State of the broker, figures since the last request for the charts, and troubles with their reasons.

    The latest state is that of `brim top --json`.
    """
    number, samples = console.monitor.since(query.since)
    return {
        "number": number,
        "samples": samples,
        "state": console.monitor.state(),
        "error": console.monitor.error,
    }


async def clients(console: Console, call: Call, query: ClientPage) -> Result:
    """A page of the MQTT clients and sessions, as `brim clients --json` has them; `total` of them match."""
    assert query.sort in CLIENT_SORTS
    rows, total, every = await console.clients.page(
        query.first, query.count, query.sort, query.text, query.state
    )
    return {"rows": rows, "total": total, "clients": every}


async def client(console: Console, call: Call, query: OneClient) -> Result:
    """One client with its subscriptions and its will."""
    answer = await console.link.request(Session(query.client_id), SessionDetails)
    return answer.session | {"filters_not_shown": answer.not_shown}


async def topics(console: Console, call: Call, query: TopicPage) -> Result:
    """A page of one level of the topic tree, or of the topics that contain a text.

    A row has the number of `topics` and messages (`count`) at and below it, the rate per second, the time and
    value of the last message. A value is base64 of at most 256 bytes. `estimated`: counts are estimates from
    a sample.
    """
    if query.text:
        return await asyncio.to_thread(console.topics.search, query.text, query.first, query.count)
    return await asyncio.to_thread(
        console.topics.children, query.prefix, query.first, query.count, query.sort
    )


async def topic(console: Console, call: Call, query: OneTopic) -> Result:
    """The newest messages of one topic in memory, and the values of each numeric field for a chart."""
    if {"+", "#"} & set(query.topic):
        raise ApiError(400, f"topic {query.topic} has a wildcard", "name one topic")
    return await asyncio.to_thread(topic_series, console.runtime_dir, query.topic)


async def retained(console: Console, call: Call, query: RetainedPage) -> Result:
    """A page of the retained messages that a filter matches; `after`: None at the end."""
    answer = await console.link.request(Retained(query.filter, query.first), RetainedList)
    rows = [
        {name: row[name] for name in ("topic", "qos", "timestamp_ns", "size_bytes", "withheld")}
        | payload_fields(row["payload"])
        for row in answer.messages
    ]
    return {"rows": rows, "after": answer.after}


async def tap(console: Console, call: Call, query: TapFilter) -> EndlessAnswer:
    """Messages as they pass: one JSON object per line, four times a second, for ten minutes.

    Each has at most 50 `messages`, and the number of messages that were `skipped`.
    """
    filters = checked_filters(query.filter)
    if query.client_id:
        session = (await console.link.request(Session(query.client_id), SessionDetails)).session
        filters = tuple(split_share(row["filter"])[1] for row in session["filters"])
        if not filters:
            raise Refused(f"client {query.client_id!r} has no subscription")
    try:
        console.taps.check_room(call.user)
    except Refused as error:
        raise ApiError(429, str(error), error.hint, retry_s=5) from error
    return EndlessAnswer(_tapped(console, filters, call.user))


async def _tapped(console: Console, filters: tuple[str, ...], user: str) -> AsyncIterator[dict[str, Any]]:
    try:
        async for row in console.taps.messages(filters, TAP_S, user):
            yield row
    except EdgeError as error:
        yield {"messages": [], "skipped": 0, "error": str(error)}


async def streams(console: Console, call: Call, query: Nothing) -> Result:
    """Streams with their settings, and rings with fill level, rate and readers with their lag."""
    report = await console.monitor.overview()
    rates = {ring["ring"]: ring for ring in console.monitor.state().get("rings", ())}
    rings = [ring | {"rate": rates.get(ring["name"], {}).get("rate", 0)} for ring in report["rings"]]
    return {"streams": report["streams"], "rings": rings}


async def log(console: Console, call: Call, query: Nothing) -> Result:
    """The segment log: segments, syncs and their times, use of the disk, maintenance; null without a log."""
    report = await console.monitor.overview()
    return {"log": report["log"], "rates": console.monitor.state().get("log"), "missing": report["missing"]}


async def bridges(console: Console, call: Call, query: Nothing) -> Result:
    """Bridges with their condition, lag, losses, last error and remedy, those in other processes included."""
    from bridge.drain.control_socket import names, state_of
    from bridge.errors import BridgeUnreachable
    from edge.config.directories import runtime_directory

    directory = runtime_directory(console.runtime_dir)

    def separate(known: set[str]) -> list[dict[str, Any]]:
        states = []
        for name in names(directory):
            if name not in known:
                try:
                    states.append(state_of(directory, name, timeout_s=2.0))
                except BridgeUnreachable:  # killed: only its socket file is left
                    continue
        return states

    try:
        states = {row["name"]: row for row in (await console.monitor.overview())["bridges"]}
    except BrokerUnreachable:
        states = {}
    served = {name for name, row in states.items() if row["condition"] != "stopped"}
    states |= {row["name"]: row for row in await asyncio.to_thread(separate, served)}
    rates = {row["bridge"]: row["rate"] for row in console.monitor.state().get("bridges", ())}
    return {"bridges": [row | {"rate": rates.get(name, 0)} for name, row in sorted(states.items())]}


async def consumers(console: Console, call: Call, query: Nothing) -> Result:
    """Consumer groups with their partitions, committed offsets and lag."""
    return {"consumers": (await console.monitor.overview())["consumers"]}


async def settings(console: Console, call: Call, query: Nothing) -> Result:
    """The configuration in effect, one value per setting, and its defaults. Passwords and keys are hidden."""
    from edge.config import loader
    from edge.config.public_settings import public_settings

    running = (await console.link.request(Settings(), SettingList)).settings
    defaults = flat_settings(public_settings(loader.parse("")))
    rows = [
        {"name": name, "value": value, "is_default": name in defaults and defaults[name] == value}
        for name, value in flat_settings(running).items()
    ]
    return {"settings": rows}


async def log_lines(console: Console, call: Call, query: LinesAfter) -> Result:
    """The newest log lines of the broker's process, the oldest first, as `brim logs --json` has them.

    `skipped`: lines that the broker no longer keeps. `more`: True if further lines follow at once. The lines
    name clients, users and addresses, and have the text of errors, so they are for operators.
    """
    page = await console.link.request(LogLines(query.after), LogPage)
    return {"lines": page.lines, "last": page.last, "skipped": page.skipped, "more": page.more}


READS = (
    Endpoint("GET", f"{PREFIX}/overview", ConsoleRole.ANONYMOUS, overview, Since),
    Endpoint("GET", f"{PREFIX}/clients", ConsoleRole.ANONYMOUS, clients, ClientPage),
    Endpoint("GET", f"{PREFIX}/client", ConsoleRole.ANONYMOUS, client, OneClient),
    Endpoint("GET", f"{PREFIX}/topics", ConsoleRole.ANONYMOUS, topics, TopicPage),
    Endpoint("GET", f"{PREFIX}/topic", ConsoleRole.ANONYMOUS, topic, OneTopic),
    Endpoint("GET", f"{PREFIX}/retained", ConsoleRole.ANONYMOUS, retained, RetainedPage),
    Endpoint("GET", f"{PREFIX}/tap", ConsoleRole.ANONYMOUS, tap, TapFilter),
    Endpoint("GET", f"{PREFIX}/streams", ConsoleRole.ANONYMOUS, streams),
    Endpoint("GET", f"{PREFIX}/log", ConsoleRole.ANONYMOUS, log),
    Endpoint("GET", f"{PREFIX}/bridges", ConsoleRole.ANONYMOUS, bridges),
    Endpoint("GET", f"{PREFIX}/consumers", ConsoleRole.ANONYMOUS, consumers),
    Endpoint("GET", f"{PREFIX}/settings", ConsoleRole.VIEWER, settings),
    Endpoint("GET", f"{PREFIX}/log-lines", ConsoleRole.OPERATOR, log_lines, LinesAfter),
)
