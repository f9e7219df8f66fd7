"""Added streams: a reload gives a running broker the streams that a restart would give it.

    refusal()   streams of a configuration that need a restart, with the reason
    prepare()   rings and logs of the added streams; an error takes everything back
    apply()     streams in engine, router and local programs; then known topics move to the added streams

Owns this order. Until apply() nothing uses the new rings, so that a failed reload has changed nothing. The
engine and the router change in one step on the MQTT thread; an error there undoes the step.

A topic keeps its order for MQTT subscribers: its later records are routed after its earlier ones, and queues
are lists of positions in rings. Removed, changed or reordered streams need a restart.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from edge.config.schema import Config, Durability, Stream
from edge.errors import EdgeError
from edge.logging_setup import pairs
from edge.streams.ring_sizes import fitted
from edge.streams.streams import Streams
from edge.transport.descriptors import OF_RING
from ringbuf.errors import RingError
from ringbuf.free_memory import memory_limit_bytes

if TYPE_CHECKING:
    from edge.server.mqtt_startup import MqttServer
    from edge.server.services import Services


log = logging.getLogger(__name__)

MOVE_MAX_S = 20.0  # a reload waits so long: the move pauses while the session journal has little room


class PreparedStreams(Struct):
    """Added streams, not in use yet. `config`: the configuration with them, with ring sizes that fit."""

    config: Config
    streams: Streams


def added_to(running: Config, wanted: Config) -> list[Stream]:
    """Streams that only `wanted` has; empty if its others are not the streams of `running` in their order."""
    known = {stream.name for stream in running.stream}
    kept = tuple(stream for stream in wanted.stream if stream.name in known)
    return [stream for stream in wanted.stream if stream.name not in known] if kept == running.stream else []


def refusal(core: MqttServer, running: Config, wanted: Config) -> str:
    """Reason why the streams that `wanted` adds need a restart; "": they do not. For any thread."""
    added = added_to(running, wanted)
    reasons = [reason for stream in added if (reason := _refused(core, stream, wanted))]
    if added and not reasons and core.config.sessions.keep and _changes_sessions(running, wanted):
        reasons.append("the session journal would be synced more often or for the first time")
    return f"{reasons[0]}; restart the broker for [[stream]]" if reasons else ""


def _refused(core: MqttServer, stream: Stream, wanted: Config) -> str:
    later = wanted.stream[wanted.stream.index(stream) + 1 :]
    if hiding := [other.name for other in later if other.visible == "durable"]:
        return (
            f'stream {stream.name!r} takes topics from stream {hiding[0]!r}, which has visible = "durable": '
            "its hidden records would become visible after later ones"
        )
    if stream.durability.is_logged and core.logs is None:
        return f"stream {stream.name!r} is the first with a log"
    if file := next(_earlier_rings(core.config, stream), ""):
        return f"{file} of an earlier run of the broker belongs to stream {stream.name!r}"
    return ""


def _earlier_rings(config: Config, stream: Stream) -> Iterator[str]:
    """Ring files of an earlier run, of the broker and of local producers: only a start opens them."""
    ring_name = re.compile(rf"{re.escape(stream.name)}(-[0-9]+|@.+)\.ring")
    yield from (str(file) for file in config.runtime_dir.glob("*.ring") if ring_name.fullmatch(file.name))


def _changes_sessions(running: Config, wanted: Config) -> bool:
    """True if the journal of sessions would be logged in another way (edge/recovery/state_files.py)."""
    before, after = running.sessions_durability, wanted.sessions_durability
    return before is not after or (after is Durability.INTERVAL and _syncs(running) != _syncs(wanted))


def _syncs(config: Config) -> tuple[int, int]:
    return (
        min(stream.sync_interval_ms for stream in config.stream),
        min(stream.synced_after_bytes for stream in config.stream),
    )


def prepare(core: MqttServer, live: Config) -> PreparedStreams:
    """Create the rings and logs of the streams that `live` adds. Raises EdgeError: nothing has changed.

    May take long: not for the event loop.
    """
    known = {stream.name: stream for stream in core.config.stream}  # in the sizes that fitted at their start
    all_streams = tuple(known.get(stream.name, stream) for stream in live.stream)
    config = fitted(replace(live, stream=all_streams), memory_limit_bytes())
    new = tuple(stream for stream in config.stream if stream.name not in known)
    try:
        streams = Streams.open(replace(config, stream=new), core.epochs, core.log_ends, core.past)
    except OSError as error:
        raise EdgeError(f"epochs of new rings not written: {error}", hint="check state_dir") from error
    prepared = PreparedStreams(config, streams)
    try:
        _log(core, streams)
    except BaseException:
        discard(core, prepared)
        raise
    return prepared


def _log(core: MqttServer, streams: Streams) -> None:
    for stream, partitions in streams.groups():
        for partition in partitions:
            if core.logs is not None and stream.durability.is_logged:
                core.logs.add_ring(partition.ring, stream)


def discard(core: MqttServer, prepared: PreparedStreams) -> None:
    """Remove prepared rings, also from their logs."""
    for partition in prepared.streams.all():
        if core.logs is not None and partition.durability.is_logged:
            core.logs.remove_ring(partition.name)
    prepared.streams.close()


async def apply(core: MqttServer, services: Services, prepared: PreparedStreams) -> None:
    """Use the streams from now on. Raises EdgeError: nothing has changed."""
    groups = list(prepared.streams.groups())
    count = sum(len(partitions) for _, partitions in groups)
    try:
        await asyncio.wrap_future(
            core.listener.submit(lambda: core.add_streams(prepared.streams, prepared.config))
        )
    except (OverflowError, MemoryError) as error:
        await asyncio.to_thread(discard, core, prepared)
        raise EdgeError(
            f"streams not added: {type(error).__name__} {error}", hint="restart the broker"
        ) from error
    core.descriptors_open += count * OF_RING
    try:
        services.add_streams(groups)
    except (OSError, RingError) as error:  # no free descriptor, although the budget counts them
        log.error("added streams not served to all programs; restart the broker %s", pairs(reason=error))
    await _move_topics(core)


async def _move_topics(core: MqttServer) -> None:
    loop, moved = asyncio.get_running_loop(), asyncio.Event()

    def done(_: int) -> None:
        with suppress(RuntimeError):  # the loop has ended, and the broker with it
            loop.call_soon_threadsafe(moved.set)

    router = core.listener.broker.router
    core.listener.call(lambda: router.run_later(router.rings.moving_topics(done)))
    try:
        await asyncio.wait_for(moved.wait(), MOVE_MAX_S)
    except TimeoutError:
        log.warning(
            "topics not all moved to added streams yet, session journal has no room; the move continues"
        )
