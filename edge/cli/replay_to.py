"""Where `brim replay` puts records: standard output, an MQTT broker, or ZeroMQ subscribers."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO, Protocol, Self
from urllib.parse import urlsplit

from edge.cli.arrivals import Arrival, property_facts
from edge.cli.mqtt_options import UsageError, client_of
from edge.cli.sub import line_form
from edge.client import Client
from edge.config_listener import is_loopback
from edge.directories import default_runtime_dir
from edge.log_view import LogRecord
from edge.mqtt import Properties, Version
from edge.mqtt.codec import Body
from edge.mqtt.properties import NO_PROPERTIES, In, decode_properties
from ringbuf import FLAG_QOS, FLAG_RETAIN

__all__ = ["Lines", "Target", "target"]

SUBSCRIBING_S = 0.1  # a subscriber that has come may have more to subscribe to
LINGER_MS = 10_000  # at the end, for what is queued


class Target(Protocol):
    """What takes records, in their order."""

    async def send(self, record: LogRecord) -> None:
        """Returns when the next may come."""

    async def settle(self) -> None:
        """Returns when all that was sent is where it belongs."""


@asynccontextmanager
async def target(arguments: argparse.Namespace) -> AsyncIterator[Target]:
    """What --to says.  Raises UsageError, and what connecting raises."""
    to: str = arguments.to
    scheme = to.partition(":")[0]
    if to == "stdout":
        form = line_form(as_json=arguments.format == "json", verbose=arguments.verbose)
        yield Lines(form, sys.stdout.buffer)
    elif scheme in {"mqtt", "mqtts"}:
        _take_address(arguments, to)
        async with client_of(arguments, window=arguments.window) as client:
            yield _Mqtt(client, arguments)
    elif to == "zmq" or scheme in {"ipc", "tcp"}:
        with _Zmq(_endpoint(arguments, to)) as subscribers:
            await subscribers.wait()
            yield subscribers
    else:
        hint = "write stdout, mqtt://HOST:PORT, zmq, ipc:///PATH or tcp://127.0.0.1:PORT"
        raise UsageError(f"--to {to!r} is nothing that records can go to", hint=hint)


def _properties_of(record: LogRecord) -> Properties:
    if not record.properties:
        return NO_PROPERTIES
    return decode_properties(Body(record.properties, Version.V5), In.PUBLISH)


class Lines:
    """A file, a record a line."""

    def __init__(self, form: Callable[[Arrival], bytes], out: IO[bytes]) -> None:
        self._form = form
        self._out = out

    async def send(self, record: LogRecord) -> None:
        """See Target."""
        facts = {
            "qos": record.flags & FLAG_QOS,
            "retain": bool(record.flags & FLAG_RETAIN),
            "ring": record.ring,
            "epoch": record.epoch,
            "offset": record.offset,
            "timestamp_ns": record.timestamp_ns,
            **property_facts(_properties_of(record)),
        }
        topic = record.topic.decode(errors="replace")
        self._out.write(self._form(Arrival(topic, bytes(record.payload), facts)) + b"\n")

    async def settle(self) -> None:
        """See Target."""
        self._out.flush()


class _Mqtt:
    """A broker; a whole window of messages is under way."""

    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self._client = client
        self._prefix: str = arguments.prefix
        self._qos: int | None = arguments.qos
        self._retained: bool = arguments.retain
        self._with_properties = arguments.protocol == "5"
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def send(self, record: LogRecord) -> None:
        """See Target."""
        topic = self._prefix + record.topic.decode()
        qos = record.flags & FLAG_QOS if self._qos is None else self._qos
        retain = self._retained and bool(record.flags & FLAG_RETAIN)
        properties = _properties_of(record) if self._with_properties else NO_PROPERTIES
        sent = await self._client.submit(topic, bytes(record.payload), qos, retain, properties=properties)
        self._waiting.append(sent)
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    async def settle(self) -> None:
        """See Target."""
        while self._waiting:
            await self._waiting.popleft()


def _take_address(arguments: argparse.Namespace, to: str) -> None:
    """Put the host and port of a URL where the options have them."""
    try:
        parts = urlsplit(to)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--to {to!r}: {error}", hint="write mqtt://HOST:PORT") from error
    if parts.path not in {"", "/"} or parts.query or parts.username:
        raise UsageError(
            f"--to {to!r} has more than host and port", hint="write mqtt://HOST:PORT; see --username"
        )
    arguments.host = host or arguments.host
    arguments.port = port or arguments.port
    arguments.tls = arguments.tls or parts.scheme == "mqtts"


def _endpoint(arguments: argparse.Namespace, to: str) -> str:
    if to == "zmq":
        runtime_dir: Path = arguments.runtime_dir or default_runtime_dir()
        return f"ipc://{runtime_dir / 'replay.sock'}"
    if to.startswith("tcp:") and not is_loopback(urlsplit(to).hostname or ""):
        raise UsageError(
            f"--to {to} is reached from other machines, by anybody", hint="write tcp://127.0.0.1:PORT"
        )
    return to


class _Zmq:
    """Whoever subscribes, as the broker would have sent it (edge/frames.py); nobody's queue is overrun."""

    def __init__(self, endpoint: str) -> None:
        import zmq
        import zmq.asyncio

        from edge.frames import PreviousOffsets

        self._endpoint = endpoint
        self._previous = PreviousOffsets()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.XPUB)
        self._socket.set(zmq.XPUB_NODROP, 1)
        self._socket.set(zmq.LINGER, LINGER_MS)
        try:
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.__exit__()
            raise UsageError(f"--to {endpoint}: {error.strerror}", hint="take another endpoint") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()

    async def wait(self) -> None:
        """Until somebody has subscribed: what is sent before is lost."""
        print(f"brim replay: waiting for a subscriber at {self._endpoint}", file=sys.stderr)
        await self._socket.recv()
        while await self._socket.poll(int(SUBSCRIBING_S * 1000)):
            await self._socket.recv()

    async def send(self, record: LogRecord) -> None:
        """See Target."""
        from edge.frames import VERSION, Header, encode_header

        flags = record.flags & (FLAG_QOS | FLAG_RETAIN)
        before = self._previous.replace(record.ring, record.topic, record.offset)
        header = Header(VERSION, record.ring, record.epoch, record.offset, record.timestamp_ns, flags, before)
        await self._socket.send_multipart([record.topic, encode_header(header), record.payload])

    async def settle(self) -> None:
        """See Target.  The socket lingers for what is queued."""
