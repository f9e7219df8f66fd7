"""Sources of `brim sub`: messages from MQTT, shared memory or ZeroMQ, in one form.

Each source is an asynchronous iterator of Arrivals, and closes everything that it opened.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edge.cli.mqtt_options import UsageError, client_of, will_of
from edge.local.arrivals import Arrival, messages_of_batch
from edge.local.payloads import property_fields
from edge.log.log_place import place_of
from edge.mqtt import matches

if TYPE_CHECKING:
    from edge.local.shm_subscription import Start
    from edge.log.log_place import LogPlace


@dataclass(slots=True)
class Arrivals:
    """Messages that arrived together. `lost`: number missing before them, if the source knows."""

    count: int
    size_bytes: int  # of all payloads
    messages: Iterator[Arrival]
    lost: int = 0


async def from_mqtt(args: argparse.Namespace) -> AsyncIterator[Arrivals]:
    """Subscribe at a broker. Never unsubscribes: the session ends here, or keeps its subscriptions."""
    dropped = 0
    async with client_of(args, clean_start=not args.keep_session, will=will_of(args)) as client:
        messages = client.subscribe(*args.filters, qos=args.qos)
        async for message in messages:
            fields_shown: dict[str, Any] = {"qos": message.qos, "retain": message.retain}
            fields_shown |= property_fields(message.properties)
            if args.remove_retained and message.retain and not _is_left_out(args, message.topic):
                await client.publish(message.topic, retain=True)
            one = Arrival(message.topic, message.payload, fields_shown)
            lost, dropped = messages.dropped - dropped, messages.dropped
            yield Arrivals(1, len(message.payload), iter((one,)), lost)


async def chosen(source: AsyncIterator[Arrivals], args: argparse.Namespace) -> AsyncIterator[Arrivals]:
    """The messages of `source` that -T, -R and --retained-only leave."""
    async with aclosing(source) as arrivals:  # type: ignore[type-var]
        async for some in arrivals:
            kept = [
                arrival
                for arrival in some.messages
                if not (_is_left_out(args, arrival.topic) or (arrival.fields["retain"] and args.no_retained))
                and (arrival.fields["retain"] or not args.retained_only)
            ]
            size_bytes = sum(len(message.payload) for message in kept)
            if kept or some.lost:
                yield Arrivals(len(kept), size_bytes, iter(kept), some.lost)


def _is_left_out(args: argparse.Namespace, topic: str) -> bool:
    return any(matches(topic_filter, topic) for topic_filter in args.filter_out)


async def from_memory(args: argparse.Namespace) -> AsyncIterator[Arrivals]:
    """Read the rings of a broker on this machine: new messages, after earlier ones with --from or --last."""
    from edge.local.shm_subscription import ShmSubscription as PresentMessages
    from edge.local.shm_subscription_asyncio import ShmSubscription

    start: Start = "latest"
    source = {"runtime_dir": args.runtime_dir, "name": "brim sub"}
    if args.first or args.last is not None:
        place = place_of("" if args.first == "oldest" else args.first, "--from")
        last: deque[Arrival] = deque(maxlen=args.last)
        with PresentMessages(args.filters, start="oldest", **source) as present:
            for batch in present.present_batches():
                messages = [message for message in messages_of_batch(batch) if _is_after(message, place)]
                if args.last is None:
                    yield _arrivals(messages, batch.lost)
                else:
                    last.extend(messages)
            start = present.places()
        yield _arrivals(list(last))
    async with ShmSubscription(args.filters, start=start, **source) as batches:
        async for batch in batches:
            size_bytes = sum(batch.records.payload_lengths)
            yield Arrivals(len(batch), size_bytes, messages_of_batch(batch), batch.lost)


def _arrivals(messages: Sequence[Arrival], lost: int = 0) -> Arrivals:
    return Arrivals(len(messages), sum(len(message.payload) for message in messages), iter(messages), lost)


def _is_after(message: Arrival, place: LogPlace) -> bool:
    """True if a message is at the place or after it."""
    after = place.offset is None or message.fields["offset"] >= place.offset
    return after and (place.timestamp_ns is None or message.fields["timestamp_ns"] >= place.timestamp_ns)


async def from_zeromq(args: argparse.Namespace) -> AsyncIterator[Arrivals]:
    """Subscribe to the ZeroMQ endpoint of the broker on this machine."""
    from edge.local.protocol import Connection, Report, Status
    from edge.local.zmq_subscription_asyncio import ZmqSubscription

    with Connection(args.runtime_dir) as connection:  # ZeroMQ itself would wait for a broker without a word
        zmq = connection.request(Status(), Report).report["zmq"]
    if zmq is None:
        raise UsageError("this broker has no ZeroMQ endpoint", hint="set zmq.enabled = true, or use --shm")
    if zmq["needs_keys"]:  # without them, too, ZeroMQ would wait
        raise UsageError("ZeroMQ of this broker requires keys, and this command has none", hint="use --shm")
    gaps = 0
    async with ZmqSubscription(args.filters, endpoint=zmq["endpoint"]) as messages:
        async for topic, header, payload in messages:
            fields = {
                "qos": header.qos,
                "retain": header.retain,
                "ring": header.ring,
                "epoch": header.epoch,
                "offset": header.offset,
                "timestamp_ns": header.timestamp_ns,
            }
            one = Arrival(topic, bytes(payload), fields)
            lost, gaps = messages.gaps - gaps, messages.gaps
            yield Arrivals(1, len(payload), iter((one,)), lost)
