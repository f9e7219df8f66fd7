"""Targets of `brim replay`: standard output as lines or a plot, an MQTT broker, or ZeroMQ subscribers."""

from __future__ import annotations

import argparse
import asyncio
import math
import shutil
import socket
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import IO, Protocol, Self
from urllib.parse import urlsplit

import msgspec

from edge.auth.tenant_names import is_of_tenants, prefix_in
from edge.cli.humanize import counted
from edge.cli.message_format import line_form
from edge.cli.mqtt_options import PORT, TLS_PORT, UsageError, client_of
from edge.cli.plot import LABEL, Plot
from edge.client import Client
from edge.config.directories import runtime_directory
from edge.config.listener import is_loopback
from edge.errors import EdgeError
from edge.local.arrivals import Arrival
from edge.local.filters import filters_meet
from edge.local.payloads import properties_of, property_fields
from edge.log.offline_reader import LogRecord
from edge.mqtt.properties import NO_PROPERTIES
from edge.server.port_owner import port_owner_writes
from edge.terminal_escape import escaped
from ringbuf import FLAG_QOS, FLAG_RETAIN

SUBSCRIBING_S = 0.1  # a new subscriber may have further subscriptions
PLOT_LINES_MAX = 20
TOPICS_COUNTED = 10_000  # more are shown as 10000+
LINGER_MS = 10_000  # at the end, for queued messages


class ReplayTarget(Protocol):
    """Receiver of records, in their order."""

    async def send(self, record: LogRecord) -> None:
        """Send a record. Returns when the next may follow."""

    async def flush(self) -> None:
        """Wait until all sent records have arrived."""


@asynccontextmanager
async def target(arguments: argparse.Namespace, directory: Path) -> AsyncIterator[ReplayTarget]:
    """Target that --to names; `directory` is the log's. Raises UsageError, and the errors of connecting."""
    to: str = arguments.to
    scheme = to.partition(":")[0]
    if arguments.plot:
        yield PlotTarget(arguments.plot)
    elif to == "stdout":
        form = line_form(as_json=arguments.format == "json", verbose=arguments.verbose)
        yield Lines(form, sys.stdout.buffer)
    elif scheme in {"mqtt", "mqtts"}:
        _take_address(arguments, to)
        if arguments.follow:
            _check_no_loop(arguments, directory)
        async with client_of(arguments, window=arguments.window) as client:
            yield _Mqtt(client, arguments)
    elif to == "zmq" or scheme in {"ipc", "tcp"}:
        with _Zmq(_endpoint(arguments, to)) as subscribers:
            await subscribers.wait()
            yield subscribers
    else:
        hint = "write stdout, mqtt://HOST:PORT, zmq, ipc:///PATH or tcp://127.0.0.1:PORT"
        raise UsageError(f"invalid --to {to!r}", hint=hint)


class Lines:
    """Standard output: one line per record."""

    def __init__(self, form: Callable[[Arrival], bytes], out: IO[bytes]) -> None:
        self._form = form
        self._out = out

    async def send(self, record: LogRecord) -> None:
        """See ReplayTarget."""
        fields = {
            "qos": record.flags & FLAG_QOS,
            "retain": bool(record.flags & FLAG_RETAIN),
            "ring": record.ring,
            "epoch": record.epoch,
            "offset": record.offset,
            "timestamp_ns": record.timestamp_ns,
            **property_fields(properties_of(record.properties)),
        }
        topic = record.topic.decode(errors="replace")
        self._out.write(self._form(Arrival(topic, bytes(record.payload), fields)) + b"\n")

    async def flush(self) -> None:
        """See ReplayTarget."""
        self._out.flush()


class PlotTarget:
    """Plot of a number of each record's payload, printed at the end.

    `name`: fields of a JSON object, outer ones first, separated by dots; ".": the payload is the number.
    """

    def __init__(self, name: str) -> None:
        size = shutil.get_terminal_size()
        self._name, self._path = name, [part for part in name.split(".") if part]
        self._plot = Plot(size.columns - LABEL, min(size.lines - 6, PLOT_LINES_MAX))
        self._records = 0
        self._topics: set[bytes] = set()

    async def send(self, record: LogRecord) -> None:
        """See ReplayTarget."""
        self._records += 1
        value = number_in(record.payload, self._path)
        if value is not None:
            self._plot.add(record.timestamp_ns, value)
            if len(self._topics) < TOPICS_COUNTED:
                self._topics.add(bytes(record.topic))

    async def flush(self) -> None:
        """See ReplayTarget."""
        count, name = self._plot.count, escaped(self._name)
        if not count:
            text = f"no number in field {name} of {counted(self._records, 'record')}"
            raise EdgeError(text, hint="see a record by `brim replay -C 1`, or choose others by --topic")
        try:
            "│•".encode(sys.stdout.encoding or "ascii")
            lines = self._plot.lines()
        except UnicodeEncodeError:
            lines = self._plot.lines(("|", "*"))
        number = len(self._topics)
        topics = f"{number}+ topics" if number == TOPICS_COUNTED else counted(number, "topic")
        counts = f"{counted(count, 'value')}, {topics}"
        left = self._records - count
        without = f", {counted(left, 'record')} without a number" if left else ""
        print("\n".join([f"{name}: {counts}{without}", *lines]))


def number_in(payload: memoryview, path: Sequence[str]) -> float | None:
    """The finite number at `path` of a JSON payload; None if there is none."""
    try:
        value = msgspec.json.decode(payload)
        for part in path:
            value = value[part] if isinstance(value, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError, OverflowError):
        pass
    return None


class _Mqtt:
    """An MQTT broker, with a whole window of messages in flight."""

    def __init__(self, client: Client, arguments: argparse.Namespace) -> None:
        self._client = client
        self._prefix: str = arguments.prefix
        self._remap: list[tuple[str, str]] = sorted(arguments.remap, key=lambda pair: -len(pair[0]))
        self._qos: int | None = arguments.qos
        self._retained: bool = arguments.retain
        self._with_properties = arguments.protocol == "5"
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def send(self, record: LogRecord) -> None:
        """See ReplayTarget."""
        topic = self._topic(record.topic.decode())
        qos = record.flags & FLAG_QOS if self._qos is None else self._qos
        retain = self._retained and bool(record.flags & FLAG_RETAIN)
        properties = properties_of(record.properties) if self._with_properties else NO_PROPERTIES
        sent = await self._client.submit(topic, bytes(record.payload), qos, retain, properties=properties)
        self._waiting.append(sent)
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft().result()

    def _topic(self, name: str) -> str:
        """The new topic. Raises UsageError: no client may publish to it, and QoS 0 has no answer."""
        topic = self._prefix + next(
            (new + name[len(old) :] for old, new in self._remap if name.startswith(old)), name
        )
        if not topic or is_of_tenants(topic):
            prefix = prefix_in(name) or name
            raise UsageError(
                f"no client may publish to {topic!r}, the topic of a record",
                hint=f"--remap '{prefix}=' with the user of that tenant, or --remap '{prefix}=OTHER/'",
            )
        return topic

    async def flush(self) -> None:
        """See ReplayTarget."""
        while self._waiting:
            await self._waiting.popleft()


def _take_address(arguments: argparse.Namespace, to: str) -> None:
    """Copy host and port of a URL to the options."""
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


def _check_no_loop(arguments: argparse.Namespace, directory: Path) -> None:
    """Refuse to send records to the broker of this log if they would be read and sent again."""
    filters: list[str] = arguments.topic or ["#"]
    sent = [_prefixed(topic_filter, arguments.prefix) for topic_filter in filters]
    sent += [_prefixed("#", arguments.prefix + new) for _, new in arguments.remap]
    if not any(filters_meet(one, other) for one in sent for other in filters):
        return
    port = arguments.port or (TLS_PORT if arguments.tls else PORT)
    if _is_here(arguments.host) and port_owner_writes(port, directory):
        raise UsageError(
            f"--follow --to {arguments.to}: that broker writes this log, so sent records come again",
            hint="name the topics with --topic, and a --prefix that ends the match; or leave out --follow",
        )


def _prefixed(topic_filter: str, prefix: str) -> str:
    """A filter that matches the prefixed topics."""
    level, _, last = ("/" + prefix).rpartition("/")
    # a level is whole or a wildcard: this filter matches more than necessary
    if last and topic_filter[0] in "+#":
        last, topic_filter = "", "+" + (topic_filter[1:] if topic_filter[0] == "+" else "/#")
    return f"{level}/{last}{topic_filter}"[1:]


def _is_here(host: str) -> bool:
    """True if `host` is an address of this machine."""
    try:
        addresses = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _, _, address in addresses:
        with suppress(OSError), socket.socket(family, kind) as probe:
            probe.bind(address)
            return True
    return False


def _endpoint(arguments: argparse.Namespace, to: str) -> str:
    if to == "zmq":
        runtime_dir: Path = runtime_directory(arguments.runtime_dir)
        return f"ipc://{runtime_dir / 'replay.sock'}"
    if to.startswith("tcp:") and not is_loopback(urlsplit(to).hostname or ""):
        raise UsageError(
            f"--to {to} is reached from other machines, by anybody", hint="write tcp://127.0.0.1:PORT"
        )
    return to


def _is_listened_to(endpoint: str) -> bool:
    """True if a process listens at an ipc:// endpoint; for others ZeroMQ itself reports that."""
    if not endpoint.startswith("ipc:///"):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(endpoint.removeprefix("ipc://"))
        except OSError:
            return False
    return True


class _Zmq:
    """ZeroMQ subscribers, in the broker's format (edge/local/zmq_frames.py); waits for slow ones."""

    def __init__(self, endpoint: str) -> None:
        import zmq
        import zmq.asyncio

        from edge.local.zmq_frames import PreviousOffsets

        self._endpoint = endpoint
        self._previous = PreviousOffsets()
        self._context = zmq.asyncio.Context()
        if _is_listened_to(endpoint):  # otherwise ZeroMQ would replace the other's socket
            self._context.term()
            text = f"--to {endpoint} is in use, perhaps by another `brim replay`"
            raise UsageError(text, hint="wait for its end, or take another endpoint: ipc:///PATH")
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
        """Wait for the first subscriber: earlier records would be lost."""
        print(f"brim replay: waiting for a subscriber at {self._endpoint}", file=sys.stderr)
        await self._socket.recv()
        while await self._socket.poll(int(SUBSCRIBING_S * 1000)):
            await self._socket.recv()

    async def send(self, record: LogRecord) -> None:
        """See ReplayTarget."""
        from edge.local.zmq_frames import VERSION, Header, encode_header

        flags = record.flags & (FLAG_QOS | FLAG_RETAIN)
        before = self._previous.replace(record.ring, record.topic, record.offset)
        header = Header(VERSION, record.ring, record.epoch, record.offset, record.timestamp_ns, flags, before)
        await self._socket.send_multipart([record.topic, encode_header(header), record.payload])

    async def flush(self) -> None:
        """See ReplayTarget.  The socket lingers for what is queued."""
