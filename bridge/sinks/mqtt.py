"""MQTT sink: records to another MQTT 5 broker, and commands from that broker, which are published here.

    mqtt://[user:password@]host[:1883], mqtts://host[:8883]; options: OPTIONS

Up: QoS 1, with the record's retain flag and properties, and the rest of its expiry. An expired record is not
sent. User properties carry the identity: brim-source EDGE/STREAM/PARTITION/EPOCH, and brim-record OFFSET
TIMESTAMP_NS FLAGS.

Down: at least once. The session upstream is kept for a week. A command is acknowledged when the local broker
has it; commands are processed one after the other.

Loop prevention: a command carries the user property brim-from, and a message with it never goes up. A message
that this edge has sent up (brim-source) does not come down. In addition the subscription sets no-local.

One thread with an event loop, for any number of records. When the connection is lost, all records that are
not acknowledged fail, and the drain sends them again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec.structs import replace

from bridge.backoff import Backoff
from bridge.errors import BadName, SinkUnavailable
from bridge.format.sink_batch import Rejected, SinkBatch, SinkRecord
from bridge.sinks.mqtt_commands import FROM, WAITING_MAX, Commands
from bridge.sinks.mqtt_link import UpstreamBroker, explained, open_link, received
from bridge.sinks.resolver_loop import ResolverLoop
from edge.client.connection import Link
from edge.client.errors import ConnectionLost
from edge.mqtt import Connect, Properties, ProtocolError, PubAck, Publish, ReasonCode, Version, check_filter
from edge.mqtt.inflight import PacketIdentifiers
from edge.mqtt.primitives import Body
from edge.mqtt.properties import NO_PROPERTIES, In, decode_properties
from ringbuf import FLAG_PROPERTIES, FLAG_RETAIN
from ringbuf.constants import CLOCK_SET_NS

log = logging.getLogger(__name__)

SOURCE, RECORD = "brim-source", "brim-record"
FROM_BYTES = FROM.encode()

IN_FLIGHT = 1000
IN_FLIGHT_BYTES = 8 << 20
OPTIONS: Mapping[str, str] = {
    "prefix": "Text in front of each topic on the way up; removed on the way down.",
    "commands": "Topic filters, separated by commas, without `prefix`: a message that is published there "
    "below `prefix` and matches is published here. Needs `local`.",
    "local": "Broker for these publishes: mqtt://user:password@127.0.0.1:1883. Needs `commands`.",
    "in_flight": f"Records in flight, 1 to 65535 (default: {IN_FLIGHT}); the broker may allow fewer.",
    "client_id": "Client identifier (default: brim-EDGE).",
    "username": "User name, if it is not in the URL.",
    "password_file": "File with the password, if it is not in the URL.",
    "ca": "mqtts: file of the authority that signs the broker's certificate, PEM (default: the system's).",
    "certificate": "mqtts: file of the client certificate, PEM.",
    "key": "mqtts: file of the private key of the client certificate, PEM.",
}
KEEP_ALIVE_S = 20
ACK_TIMEOUT_S = 20.0
PATIENCE_MAX = 16  # times as long for a record that is alone in flight: 320 s
TICK_S = 5.0
RETRY_MIN_S, RETRY_MAX_S = 1.0, 30.0  # between connections for which only commands wait
BEGIN_TIMEOUT_S = 30.0
LASTING = Properties(session_expiry_interval_s=7 * 86_400, receive_maximum=WAITING_MAX)
OF_A_RECORD = {
    ReasonCode.TOPIC_NAME_INVALID,
    ReasonCode.PACKET_TOO_LARGE,
    ReasonCode.PAYLOAD_FORMAT_INVALID,
}
_T = TypeVar("_T")


@dataclass(slots=True, eq=False)
class _MqttBatch:
    """Records that were passed to send()."""

    records: SinkBatch
    future: Future[Sequence[Rejected]]
    messages: Iterator[SinkRecord]
    source: tuple[str, str]
    waiting: int = 0  # sent, and not acknowledged
    all_sent: bool = False
    rejected: list[Rejected] = field(default_factory=list)


class MqttSink:
    """Sink that sends each record as one message to another MQTT broker."""

    def __init__(
        self, target: UpstreamBroker, *, prefix: str = "", in_flight: int = IN_FLIGHT, client_id: str = ""
    ) -> None:
        self.url = target.address
        self._omitted = {"echo": 0, "expired": 0}  # records that came from there; that had expired
        self.commands: Commands | None = None
        self._target, self._prefix, self._window = target, prefix, in_flight
        self._client_id, self._edge = client_id, ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._link: Link | None = None
        self._limit = in_flight
        self._retain_available = True
        self._queue: deque[_MqttBatch] = deque()
        self._in_flight: dict[int, tuple[_MqttBatch, int, int]] = {}  # sending, offset, bytes
        self._in_flight_bytes = 0
        self._identifiers = PacketIdentifiers(random.randint(1, 65_535))
        self._answered_at = 0.0  # time of the latest acknowledgement, or when the wait for the first began
        self._patience = 1  # factor of the time that a record may take
        self._late_bytes = 0  # length of the record for which it grew
        self._called: asyncio.Event  # a connection was requested
        self._callers: list[asyncio.Future[None]] = []

    @property
    def omitted(self) -> dict[str, int]:
        """See Omitting."""
        return self._omitted | (self.commands.omitted if self.commands is not None else {})

    @classmethod
    def of_url(cls, url: str, options: Mapping[str, str]) -> MqttSink:
        """The sink of an mqtt:// or mqtts:// URL. Raises BadName."""
        if unknown := options.keys() - OPTIONS.keys():
            text = f"{url}: no option {', '.join(sorted(unknown))}"
            raise BadName(text, hint=f"options: {', '.join(OPTIONS)}")
        rest = dict(options)
        prefix, client_id = rest.pop("prefix", ""), rest.pop("client_id", "")
        filters = [
            topic_filter.strip()
            for topic_filter in rest.pop("commands", "").split(",")
            if topic_filter.strip()
        ]
        local, in_flight = rest.pop("local", ""), rest.pop("in_flight", str(IN_FLIGHT))
        if not in_flight.isdecimal() or not 1 <= int(in_flight) <= 65_535:
            raise BadName(f"{url}: in_flight is {in_flight!r}, and must be 1 to 65535")
        if bool(filters) != bool(local):
            raise BadName(f"{url}: commands and local go together", hint='local = "mqtt://127.0.0.1:1883"')
        try:
            for one in filters:
                check_filter(prefix + one, Version.V5)
        except ProtocolError as error:
            raise BadName(f"{url}: commands: {error}") from error
        sink = cls(
            UpstreamBroker.of(url, **rest), prefix=prefix, in_flight=int(in_flight), client_id=client_id
        )
        if filters:
            sink.commands = Commands(filters, prefix, UpstreamBroker.of(local))
        return sink

    # ---- calls of the drain ----

    def begin(self, edge: str) -> None:
        """See RecordSink."""
        self._edge = edge
        if self._loop is None:
            self._loop = ResolverLoop()
            self._thread = threading.Thread(
                target=self._run, args=(self._loop,), name="brim-mqtt", daemon=True
            )
            self._thread.start()
        try:
            self._submit(self._connected()).result(BEGIN_TIMEOUT_S)
        except TimeoutError:
            raise SinkUnavailable(f"{self.url}: no connection in {BEGIN_TIMEOUT_S:g} s") from None

    def send(self, records: SinkBatch) -> Future[Sequence[Rejected]]:
        """See RecordSink."""
        if self._loop is None:
            raise SinkUnavailable(f"{self.url}: not begun")
        source = f"{records.edge}/{records.stream}/{records.partition}/{records.epoch}"
        sending = _MqttBatch(records, Future(), iter(records), (SOURCE, source))
        self._loop.call_soon_threadsafe(self._take, sending)
        return sending.future

    def close(self) -> None:
        """See RecordSink."""
        loop, self._loop = self._loop, None
        if loop is not None and self._thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            self._thread.join()
            loop.close()

    def _submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    # ---- the thread ----

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        self._called = asyncio.Event()
        task = loop.create_task(self._stay_connected())
        loop.run_forever()
        task.cancel()
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.run_until_complete(loop.shutdown_asyncgens())

    async def _connected(self) -> None:
        """Wait for a connection. Raises SinkUnavailable: the next try has failed."""
        if self._link is None:
            self._callers.append(asyncio.get_running_loop().create_future())
            self._called.set()
            await self._callers[-1]

    async def _stay_connected(self) -> None:
        """Keep one connection after the other, while the drain requests one or commands may arrive."""
        backoff = Backoff(RETRY_MIN_S, RETRY_MAX_S)
        try:
            while True:
                # Commands need a connection without a request of the drain. The pause grows with each
                # failure.
                pause_s = backoff.next_s() if self.commands else None
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._called.wait()
                self._called.clear()
                try:
                    await self._serve(await self._open())
                except SinkUnavailable as error:
                    if self._link is not None:
                        backoff.reset()
                    self._fail(error)
                except Exception as error:
                    log.exception("MQTT connection failed url=%s", self.url)
                    self._fail(error)
        finally:
            self._fail(SinkUnavailable(f"{self.url}: closed"))
            if self.commands is not None:
                await self.commands.close()

    async def _open(self) -> Link:
        lasting = self.commands is not None
        connect = Connect(
            client_id=self._client_id or f"brim-{self._edge}",
            clean_start=not lasting,
            keep_alive_s=KEEP_ALIVE_S * self._patience,  # a packet that is not complete is no sign of life
            username=self._target.username,
            password=self._target.password,
            version=Version.V5,
            properties=LASTING if lasting else NO_PROPERTIES,
        )
        link, accepted = await open_link(self._target, connect)
        try:
            limits = accepted.properties
            if limits.maximum_qos == 0:
                raise SinkUnavailable(
                    f"{self.url}: takes QoS 0 only", hint="a bridge needs QoS 1: allow it there"
                )
            if self.commands is not None:
                with explained(self._target):
                    await self.commands.subscribe(link, self._edge, resumes=accepted.session_present)
        except BaseException:
            link.abort()
            raise
        self._limit = min(self._window, limits.receive_maximum or 65_535)
        self._retain_available = limits.retain_available != 0
        return link

    async def _serve(self, link: Link) -> None:
        """Serve a connection until it ends. Raises SinkUnavailable."""
        loop = asyncio.get_running_loop()
        self._link = link
        callers, self._callers = self._callers, []
        for caller in callers:
            caller.set_result(None)
        try:
            with explained(self._target):
                while True:
                    if self.commands is not None:
                        self.commands.check()
                    for packet in await received(link, loop.time() + TICK_S):
                        if isinstance(packet, PubAck):
                            self._acknowledged(packet)
                        elif isinstance(packet, Publish) and self.commands is not None:
                            self.commands.take(packet, link)
                    self._pump()
                    link.flush()
                    await link.drain()
                    if self._in_flight and loop.time() - self._answered_at > self._timeout_s:
                        raise ConnectionLost(f"no acknowledgement for {self._timeout_s:g} s")
        except asyncio.CancelledError:
            await link.close()
            raise
        finally:
            link.abort()

    def _fail(self, error: Exception) -> None:
        """Fail all records in flight: this side does not know whether they arrived."""
        error = self._late() or error
        self._link = None
        waiting = {
            id(batch): batch for batch in (*(batch for batch, _, _ in self._in_flight.values()), *self._queue)
        }
        for packet_id in self._in_flight:
            self._identifiers.free(packet_id)
        self._in_flight.clear()
        self._in_flight_bytes = 0
        self._queue.clear()
        for sending in waiting.values():
            sending.future.set_exception(error)
        callers, self._callers = self._callers, []
        for caller in callers:
            caller.set_exception(error)

    @property
    def _timeout_s(self) -> float:
        return ACK_TIMEOUT_S * self._patience

    def _late(self) -> SinkUnavailable | None:
        """The error if one record was sent alone and is late; the next connection waits longer."""
        late_s = asyncio.get_running_loop().time() - self._answered_at
        if len(self._in_flight) != 1 or late_s < self._timeout_s:
            return None
        ((sending, offset, length),) = self._in_flight.values()
        self._patience, self._late_bytes = min(2 * self._patience, PATIENCE_MAX), length
        return SinkUnavailable(
            f"{self.url}: record {offset} of {sending.source[1]}, with {length} bytes, was not acknowledged "
            f"in {late_s:.0f} s although it was sent alone",
            hint=f"it gets {self._timeout_s:g} s now; if that is not enough, check the broker, use a faster "
            "line, or leave its topic out with topics_not",
        )

    # ---- records ----

    def _take(self, sending: _MqttBatch) -> None:
        if self._link is None:
            sending.future.set_exception(SinkUnavailable(f"{self.url}: not connected"))
            return
        self._queue.append(sending)
        try:
            self._pump()
            self._link.flush()
        except Exception as error:  # noqa: BLE001  the drain needs every error; a record must not be left out
            self._link.abort()
            self._fail(error)

    def _pump(self) -> None:
        """Send while the window has room."""
        link = self._link
        while (
            link is not None
            and self._queue
            and len(self._in_flight) < self._limit
            and self._in_flight_bytes < IN_FLIGHT_BYTES
        ):
            sending = self._queue[0]
            message = next(sending.messages, None)
            if message is None:
                self._queue.popleft()
                sending.all_sent = True
                self._finish_if_acknowledged(sending)
            else:
                self._send(link, sending, message)

    def _send(self, link: Link, sending: _MqttBatch, message: SinkRecord) -> None:
        packet_id = self._identifiers.take()
        assert packet_id is not None  # the window is smaller than the number of packet identifiers
        try:
            publish = self._publish(sending, message, packet_id)
            if publish is not None:
                link.send(publish, soon=False)  # the caller of _pump() flushes: one turn of the loop less
        except (ProtocolError, UnicodeDecodeError) as error:
            sending.rejected.append(Rejected(message.offset, str(error)))
            publish = None
        if publish is None:
            self._identifiers.free(packet_id)
            return
        if not self._in_flight:
            self._answered_at = asyncio.get_running_loop().time()
        self._in_flight[packet_id] = (sending, message.offset, len(publish.payload))
        self._in_flight_bytes += len(publish.payload)
        sending.waiting += 1

    def _publish(self, sending: _MqttBatch, message: SinkRecord, packet_id: int) -> Publish | None:
        """The record as a message; None: it is not sent. Raises ProtocolError, UnicodeDecodeError."""
        properties = self._properties(sending, message)
        if properties is None:
            return None
        topic = self._prefix + sending.records.topic_of(message.key).decode()
        retain = bool(message.flags & FLAG_RETAIN) and self._retain_available
        return Publish(topic, message.bytes(), 1, retain, packet_id=packet_id, properties=properties)

    def _properties(self, sending: _MqttBatch, message: SinkRecord) -> Properties | None:
        """Properties of the message; None: the record is not sent."""
        offset, stamp, flags = message.offset, message.timestamp_ns, message.flags
        user = (sending.source, (RECORD, f"{offset} {stamp} {flags & 7}"))
        if not flags & FLAG_PROPERTIES:
            return Properties(user=user)
        data = message.properties
        properties = decode_properties(Body(data, Version.V5), In.PUBLISH)
        if FROM_BYTES in data and any(name == FROM for name, _ in properties.user):
            self._omitted["echo"] += 1
            return None
        left_s = properties.message_expiry_interval_s
        if left_s is not None:
            age_ns = max(time.time_ns() - stamp, 0) if stamp >= CLOCK_SET_NS else 0
            left_s -= age_ns // 1_000_000_000
            if left_s <= 0:
                self._omitted["expired"] += 1
                return None
        response = properties.response_topic
        return replace(
            properties,
            user=(*properties.user, *user),
            message_expiry_interval_s=left_s,
            response_topic=self._prefix + response if response is not None else None,
        )

    def _acknowledged(self, packet: PubAck) -> None:
        known = self._in_flight.pop(packet.packet_id, None)
        if known is None:
            return
        sending, offset, length = known
        self._identifiers.free(packet.packet_id)
        self._in_flight_bytes -= length
        before_s, self._answered_at = self._answered_at, asyncio.get_running_loop().time()
        if length >= self._late_bytes and self._answered_at - before_s < ACK_TIMEOUT_S:
            self._patience = 1  # the line was not slow, it was broken: the next break must not take minutes
        sending.waiting -= 1
        if packet.reason_code in OF_A_RECORD:
            sending.rejected.append(Rejected(offset, packet.reason_code.words))
        elif packet.reason_code.failed:
            hint = (
                "allow the bridge to publish there" if packet.reason_code == ReasonCode.NOT_AUTHORIZED else ""
            )
            raise SinkUnavailable(f"{self.url}: offset {offset}: {packet.reason_code.words}", hint=hint)
        self._finish_if_acknowledged(sending)

    def _finish_if_acknowledged(self, sending: _MqttBatch) -> None:
        if sending.all_sent and not sending.waiting:
            sending.future.set_result(sending.rejected)
