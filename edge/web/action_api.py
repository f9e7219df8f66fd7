"""Endpoints that change something: each needs a role and a CSRF token, and is written to the audit log."""

from __future__ import annotations

import asyncio
import base64
import binascii
from typing import TYPE_CHECKING, Annotated, Literal

from msgspec import Meta, Struct

from edge.config.directories import runtime_directory
from edge.consumers import protocol as consumers
from edge.local.protocol import (
    Cleared,
    ClearRetained,
    Disconnect,
    Done,
    Reload,
    Reloaded,
    RemoveSession,
)
from edge.mqtt.errors import ProtocolError
from edge.mqtt.topic_filters import check_name
from edge.web.api_model import PREFIX, ApiError, Call, Endpoint, Nothing, Result
from edge.web.read_api import OneClient, Topic
from edge.web.roles import ConsoleRole

if TYPE_CHECKING:
    from edge.consumers.client_socket import RequestClient
    from edge.web.console import Console

PAYLOAD_MAX = 48 << 10  # below the limit of a request's body, also as base64
CLEARED_PAGES_MAX = 4_096

GroupName = Annotated[str, Meta(min_length=1, max_length=64)]
BridgeName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]{0,23}\Z")]


class OneFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """A topic filter."""

    filter: Topic
    """Topic filter."""


class OneBridge(Struct, frozen=True, forbid_unknown_fields=True):
    """A bridge."""

    bridge: BridgeName
    """Name of the bridge."""


class SkippedPart(Struct, frozen=True, forbid_unknown_fields=True):
    """The records of a bridge to pass over."""

    bridge: BridgeName
    """Name of the bridge."""
    stream: str | None = None
    """Stream; null: all streams."""
    partition: Annotated[int, Meta(ge=0, le=63)] | None = None
    """Partition; null: all partitions."""


class OneGroup(Struct, frozen=True, forbid_unknown_fields=True):
    """A consumer group."""

    group: GroupName
    """Name of the group."""


class GroupOffset(Struct, frozen=True, forbid_unknown_fields=True):
    """New offsets of a consumer group."""

    group: GroupName
    """Name of the group."""
    to: Literal["oldest", "latest", "offset", "time"]
    """Place to continue from."""
    value: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """The offset, or the time in ns since 1970."""
    rings: tuple[str, ...] = ()
    """Partitions; empty: all of the group."""


class OneMessage(Struct, frozen=True, forbid_unknown_fields=True):
    """A message to publish."""

    topic: Topic
    """Topic without wildcards."""
    payload: Annotated[str, Meta(max_length=PAYLOAD_MAX)] = ""
    """Payload, as text or as base64."""
    encoding: Literal["text", "base64"] = "text"
    """Form of `payload`."""
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    """Quality of service."""
    retain: bool = False
    """Retain the message; with an empty payload the retained message of the topic is removed."""


async def disconnect(console: Console, call: Call, body: OneClient) -> Result:
    """End the connection of a client. Its session stays, and it may connect again."""
    await console.link.request(Disconnect(body.client_id), Done)
    console.record(call, "disconnect", client=body.client_id)
    console.clients.forget()
    return {}


async def forget(console: Console, call: Call, body: OneClient) -> Result:
    """Remove the session of a client with its subscriptions and queue, and end its connection."""
    await console.link.request(RemoveSession(body.client_id), Done)
    console.record(call, "forget", client=body.client_id)
    console.clients.forget()
    return {}


async def clear_retained(console: Console, call: Call, body: OneFilter) -> Result:
    """Remove the retained messages that a filter matches; `count` is their number.

    `refused` is the number of those that stay, because no ring can store their topic.
    """
    count, after, refused = 0, 0, 0
    for _ in range(CLEARED_PAGES_MAX):
        answer = await console.link.request(ClearRetained(body.filter, after), Cleared)
        count += answer.count
        refused += len(answer.refused)
        if answer.after is None:
            break
        after = answer.after
    console.record(call, "clear retained", filter=body.filter, count=count, refused=refused)
    return {"count": count, "refused": refused}


async def publish(console: Console, call: Call, body: OneMessage) -> Result:
    """Publish a message. The answer comes when the message is as durable as its stream promises."""
    try:
        check_name(body.topic)
    except ProtocolError as error:
        raise ApiError(400, error.detail, "name a topic without wildcards") from error
    payload = _payload(body)

    def send(client: RequestClient) -> consumers.Published:
        letter = consumers.Letter(body.topic, body.qos, body.retain)
        request = consumers.Publish(client.number(), consumers.VERSION, (letter,))
        return client.request(request, consumers.Published, (payload,))[0]

    answer = await console.link.of_consumers(send)
    console.record(call, "publish", topic=body.topic, bytes=len(payload), qos=body.qos, retain=body.retain)
    if not answer.stored:
        reason = "its ring is full" if answer.full else "it was refused"
        raise ApiError(
            409, f"the message of {body.topic} was not stored: {reason}", "see the log of the broker"
        )
    return {"stored": answer.stored}


def _payload(body: OneMessage) -> bytes:
    if body.encoding == "text":
        return body.payload.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(body.payload, validate=True)
    except binascii.Error as error:
        raise ApiError(400, f"payload is not base64: {error}", 'set encoding to "text"') from error


async def pause_bridge(console: Console, call: Call, body: OneBridge) -> Result:
    """Stop draining until the bridge is resumed. Records wait in ring and log."""
    from bridge.drain.control_socket import Pause

    return await _command(console, call, body.bridge, "pause bridge", Pause())


async def resume_bridge(console: Console, call: Call, body: OneBridge) -> Result:
    """Drain again: after a pause, during a back-off, or when the cause of a block is removed."""
    from bridge.drain.control_socket import Resume

    return await _command(console, call, body.bridge, "resume bridge", Resume())


async def skip_records(console: Console, call: Call, body: SkippedPart) -> Result:
    """Pass over all records that wait. They are never drained, and drained files declare them as skipped."""
    from bridge.drain.control_socket import Skip

    return await _command(
        console, call, body.bridge, "skip records", Skip(stream=body.stream, partition=body.partition)
    )


async def _command(console: Console, call: Call, bridge: str, action: str, command: object) -> Result:
    from bridge.drain.control_socket import send

    directory = runtime_directory(console.runtime_dir)
    effects = await asyncio.to_thread(send, directory, bridge, command)  # type: ignore[arg-type]
    console.record(call, action, bridge=bridge)
    return {"effects": effects}


async def reset_group(console: Console, call: Call, body: GroupOffset) -> Result:
    """Set the committed offsets of a group without running consumers."""

    def send(client: RequestClient) -> None:
        request = consumers.Reset(
            client.number(), consumers.VERSION, body.group, body.to, body.value, body.rings
        )
        client.request(request, consumers.Done)

    await console.link.of_consumers(send)
    console.record(call, "reset group", group=body.group, to=body.to, value=body.value)
    return {}


async def forget_group(console: Console, call: Call, body: OneGroup) -> Result:
    """Remove a group without running consumers, and its offsets."""

    def send(client: RequestClient) -> None:
        client.request(consumers.Forget(client.number(), consumers.VERSION, body.group), consumers.Done)

    await console.link.of_consumers(send)
    console.record(call, "forget group", group=body.group)
    return {}


async def reload(console: Console, call: Call, body: Nothing) -> Result:
    """Read the configuration of the broker and its files again, and apply their changes, as `brim reload`.

    `failed`: mistakes. `needs_restart`: names of settings that only a restart applies.
    """
    answer = await console.link.request(Reload(), Reloaded)
    console.record(call, "reload", applied=len(answer.applied), failed=len(answer.failed))
    return {"applied": answer.applied, "failed": answer.failed, "needs_restart": answer.needs_restart}


ACTIONS = (
    Endpoint("POST", f"{PREFIX}/client/disconnect", ConsoleRole.OPERATOR, disconnect, OneClient),
    Endpoint("POST", f"{PREFIX}/client/forget", ConsoleRole.OPERATOR, forget, OneClient),
    Endpoint("POST", f"{PREFIX}/retained/clear", ConsoleRole.OPERATOR, clear_retained, OneFilter),
    Endpoint("POST", f"{PREFIX}/publish", ConsoleRole.OPERATOR, publish, OneMessage),
    Endpoint("POST", f"{PREFIX}/bridge/pause", ConsoleRole.OPERATOR, pause_bridge, OneBridge),
    Endpoint("POST", f"{PREFIX}/bridge/resume", ConsoleRole.OPERATOR, resume_bridge, OneBridge),
    Endpoint("POST", f"{PREFIX}/bridge/skip", ConsoleRole.ADMIN, skip_records, SkippedPart),
    Endpoint("POST", f"{PREFIX}/group/reset", ConsoleRole.ADMIN, reset_group, GroupOffset),
    Endpoint("POST", f"{PREFIX}/group/forget", ConsoleRole.ADMIN, forget_group, OneGroup),
    Endpoint("POST", f"{PREFIX}/reload", ConsoleRole.ADMIN, reload),
)
