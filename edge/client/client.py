"""Client: publishes, subscribes, keeps messages in flight, and reconnects when the connection breaks.

One task serves the connection; the caller's tasks publish and iterate. Everything runs on one event loop,
without threads.

Owns the state that outlives a connection: the two windows (edge.mqtt.inflight), the messages that wait for
room in one, requests without an answer, and the router of subscriptions. After a reconnect the order is:
unacknowledged messages with DUP and their old identifiers, then lost subscriptions, then open requests, then
new messages.
"""

from __future__ import annotations

import asyncio
import logging
import random
import ssl
from collections import deque
from dataclasses import dataclass, replace
from typing import Self, TypeVar, Unpack

import msgspec

from edge.client.connection import Link
from edge.client.errors import (
    CannotConnect,
    ClientError,
    ConnectionLost,
    ConnectRefused,
    DeliveryUnknown,
    InvalidOption,
    InvalidRequest,
    PublishRefused,
    SubscribeRefused,
    TakenOver,
)
from edge.client.options import DEFAULT_URL, OptionFields, Options, parse_url, random_client_id
from edge.client.subscriptions import Subscription, SubscriptionRouter, message_of
from edge.errors import NoAnswer, check_seconds
from edge.logging_setup import pairs
from edge.mqtt import (
    ConnAck,
    Disconnect,
    Packet,
    Properties,
    ProtocolError,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Version,
    check_filter,
    check_name,
    encode,
    payload_bytes,
)
from edge.mqtt import Subscription as Wanted
from edge.mqtt.inflight import Completed, PacketIdentifiers, Receipt, ReceiveWindow, SendWindow
from edge.mqtt.properties import NO_PROPERTIES

log = logging.getLogger(__name__)

Payload = bytes | bytearray | memoryview | str
_T = TypeVar("_T")

STEADY_S = 10.0  # a connection that lived so long resets the delays of reconnecting


def connect(url: str = DEFAULT_URL, **options: Unpack[OptionFields]) -> Client:
    """Create a client of the broker at `url`, which connects inside `async with`.

    mqtt://[user[:password]@]host[:port], mqtts:// for TLS, unix:///path. Options: see Options. Entering
    raises CannotConnect or ConnectRefused.
    """
    return Client(url, Options(**options))


@dataclass(slots=True)
class _Outgoing:
    """A message at QoS 1 or 2 in flight."""

    packet: Publish
    # done when it has room in the window, and was sent if there is a connection
    admitted: asyncio.Future[None]
    delivered: asyncio.Future[None]


@dataclass(slots=True)
class _Request:
    """A SUBSCRIBE or UNSUBSCRIBE without an answer yet."""

    packet: Subscribe | Unsubscribe
    answer: asyncio.Future[SubAck | UnsubAck]


class Client:
    """A connection to a broker that survives reconnects. Created by connect()."""

    def __init__(self, url: str, options: Options) -> None:
        target = parse_url(url)
        self._address = target.address
        self._version = Version(options.version)
        self._tls = options.tls or (ssl.create_default_context() if target.tls else None)
        self._options = replace(
            options,
            username=target.username if options.username is None else options.username,
            password=target.password if options.password is None else options.password,
        )
        self.client_id = options.client_id or random_client_id()
        try:  # a text that is too long, for example
            encode(self._options.connect_packet(self.client_id), self._version)
        except ProtocolError as error:
            raise InvalidRequest(error) from error
        self.session_present = False  # True if the broker knew this client at the last connect
        self.reconnects = 0
        self._identifiers = PacketIdentifiers(random.randint(1, 65_535))
        self._sending = SendWindow(options.window, self._identifiers)
        self._receiving = ReceiveWindow(options.receive_maximum)
        self._router = SubscriptionRouter(self._taken, self._version)
        self._waiting: deque[_Outgoing] = deque()
        self._outgoing: dict[int, _Outgoing] = {}
        self._requests: dict[int, _Request] = {}
        self._link: Link | None = None
        self._changed = asyncio.Event()  # set when there is a link, or never will be again
        self._delays = iter(options.reconnect.delays() if options.reconnect else ())
        self._over: Exception | None = None
        self._task: asyncio.Task[None] | None = None

    # ---- API -------------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        properties: Properties = NO_PROPERTIES,
        timeout_s: float | None = None,
    ) -> None:
        """Publish a message. Returns when it was sent (QoS 0) or acknowledged (QoS 1, 2).

        Waits for room in the window and, while reconnecting, for the connection, `timeout_s` at most.
        Text is sent as UTF-8.  Raises InvalidRequest, PublishRefused, DeliveryUnknown,
        ConnectionLost, NoAnswer.
        """
        if timeout_s is None:
            await (await self.submit(topic, payload, qos, retain, properties=properties))
            return
        check_seconds("timeout_s", timeout_s)
        try:
            async with asyncio.timeout(timeout_s) as waiting:
                await (await self.submit(topic, payload, qos, retain, properties=properties))
        except TimeoutError as error:
            if not waiting.expired():
                raise
            raise NoAnswer(f"no acknowledgement of a message to {topic!a} in {timeout_s:g} s") from error

    async def submit(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 1,
        retain: bool = False,
        *,
        properties: Properties = NO_PROPERTIES,
    ) -> asyncio.Future[None]:
        """As publish(), but returns when the message is in the window.

        The future ends with the acknowledgement, and need not be awaited: so one task can keep a whole window
        in flight. Later errors are in the future.
        """
        try:
            check_name(topic, self._version)
            packet = Publish(topic, payload_bytes(payload), qos, retain, properties=properties)
            return await self._submit(packet)
        except ProtocolError as error:
            raise InvalidRequest(error) from error

    async def _submit(self, packet: Publish) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        outgoing = _Outgoing(packet, loop.create_future(), loop.create_future())
        if packet.qos == 0:
            (await self._connected_link()).send(packet)
            outgoing.delivered.set_result(None)
        else:
            await self._admit(outgoing)
        if self._link is not None:
            await self._link.drain()
        return outgoing.delivered

    def subscribe(self, *filters: str, qos: int = 0) -> Subscription:
        """Subscribe to new messages that match one of `filters`, at most at `qos`: an asynchronous iterator.

        Retained messages come first. A message that matches two subscriptions of one client may reach each of
        them as often as the broker sends it. Raises InvalidRequest for an invalid filter.
        """
        if not filters:
            raise InvalidOption("no topic filter", hint='name at least one, such as "#"')
        try:
            for topic_filter in filters:
                check_filter(topic_filter, self._version)
        except ProtocolError as error:
            raise InvalidRequest(error) from error
        return Subscription(self, filters, qos, self._options.queue_limit, self._options.queue_limit_bytes)

    # ---- opening and closing --------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        link, connack = await self._open_first()
        self._adopt(link, connack)
        self._task = asyncio.create_task(self._run(link), name=f"mqtt client {self.client_id}")
        self._task.add_done_callback(self._ended)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect: the broker discards the will. Subscriptions end; unacknowledged messages fail."""
        self._finish(None)
        try:
            if self._link is not None:
                await self._link.close()
        finally:
            if self._task is not None:
                self._task.cancel()
                await asyncio.wait([self._task])

    def abort(self) -> None:
        """Break the connection, as a lost line does: the broker publishes the will. Otherwise as close()."""
        link, self._link = self._link, None
        self._finish(None)
        if link is not None:
            link.abort()

    @property
    def connected(self) -> bool:
        """True if there is a connection at the moment."""
        return self._link is not None

    @property
    def in_flight(self) -> int:
        """Number of messages at QoS 1 and 2 that the broker has not acknowledged."""
        return len(self._sending) + len(self._waiting)

    @property
    def dropped(self) -> int:
        """Number of received messages without room in a subscription, or without a subscription."""
        return self._router.dropped

    async def _open_first(self) -> tuple[Link, ConnAck]:
        again = self._options.reconnect
        if again is None or not again.at_start:
            return await self._open()
        opened = await self._open_again(None)
        if opened is None:
            assert self._over is not None
            raise self._over
        return opened

    async def _open(self) -> tuple[Link, ConnAck]:
        connect_packet = self._options.connect_packet(self.client_id)
        return await Link.open(self._address, self._tls, self._options, connect_packet)

    async def _open_again(self, lost: Exception | None) -> tuple[Link, ConnAck] | None:
        """Connect, with all necessary attempts; None: the client has ended. `lost`: cause of a reconnect."""
        for delay_s in self._delays:
            if lost is not None:
                details = pairs(broker=self._address, retry_in_s=f"{delay_s:.2f}", error=lost)
                log.info("mqtt connection lost %s", details)
                await asyncio.sleep(delay_s)
            try:
                return await self._open()
            except ConnectRefused as error:
                lost = error
                if not error.temporary:
                    break
            except CannotConnect as error:
                lost = error
        self._finish(lost or ConnectionLost("not one attempt to connect was allowed"))
        return None

    async def _run(self, link: Link) -> None:
        """Serve one connection after the other, until the client ends."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                lost = await self._serve(link)
            finally:
                link.abort()
                self._link = None
                self._changed.clear()
            again = self._options.reconnect
            if self._over is not None or again is None or isinstance(lost, TakenOver):
                self._finish(lost)
                return
            if loop.time() - began >= STEADY_S:
                self._delays = again.delays()
            opened = await self._open_again(lost)
            if opened is None:
                return
            self.reconnects += 1
            link = opened[0]
            self._resume(*opened)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Pass an exception of the task to waiting callers: no other code awaits the task."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._finish(
                error if isinstance(error, Exception) else ConnectionLost(f"the client ended: {error!r}")
            )

    def _finish(self, error: Exception | None) -> None:
        """End the client: with `error`, or None if this side has closed. Only the first call counts."""
        if self._over is not None:
            return
        over = self._over = error or ConnectionLost("the client is closed")
        self._router.finish(error)
        for outgoing in (*self._waiting, *self._outgoing.values()):
            _fail(outgoing.admitted, over)
            _fail(outgoing.delivered, over)
        for request in self._requests.values():
            _fail(request.answer, over)
        self._changed.set()

    # ---- a connection and its packets -----------------------------------------------------------

    def _adopt(self, link: Link, connack: ConnAck) -> None:
        self.session_present = connack.session_present
        if connack.properties.assigned_client_identifier is not None:
            self.client_id = connack.properties.assigned_client_identifier
        self._sending.limit = min(self._options.window, connack.properties.receive_maximum or 65_535)
        self._link = link
        self._changed.set()

    def _resume(self, link: Link, connack: ConnAck) -> None:
        """Continue the work of the last connection."""
        self._receiving.reconnected(session_present=connack.session_present)
        self._router.reconnected(session_present=connack.session_present)
        if not connack.session_present:
            for packet_id in self._sending.session_lost():
                unknown = DeliveryUnknown("the broker lost the session while it took over a QoS 2 message")
                _fail(self._outgoing.pop(packet_id).delivered, unknown)
            self._subscribe_again()
        for packet in self._sending.resend():
            link.send(packet)
        for request in self._requests.values():
            link.send(request.packet)
        self._adopt(link, connack)
        self._pump()

    async def _serve(self, link: Link) -> Exception:
        """Handle received packets until the connection ends. Returns the cause."""
        try:
            while True:
                for packet in await link.receive():
                    self._handle(packet, link)
                    if isinstance(packet, Publish) and self._router.crowded:
                        await asyncio.sleep(0)
        except ConnectionLost as error:
            return error
        except ProtocolError as error:
            link.refuse(error)
            return ConnectionLost(f"{self._address} broke the protocol: {error}")

    def _handle(self, packet: Packet, link: Link) -> None:
        if isinstance(packet, Publish):
            self._receive(packet)
        elif isinstance(packet, PubAck | PubRec | PubComp):
            self._acknowledged(packet, link)
        elif isinstance(packet, PubRel):
            link.send(self._receiving.release(packet))
        elif isinstance(packet, SubAck | UnsubAck):
            request = self._requests.pop(packet.packet_id, None)
            if request is not None:
                self._identifiers.free(packet.packet_id)
                if not request.answer.done():
                    request.answer.set_result(packet)
        elif isinstance(packet, Disconnect):
            kind = TakenOver if packet.reason_code == ReasonCode.SESSION_TAKEN_OVER else ConnectionLost
            raise kind(f"{self._address} ended the connection: {packet.reason_code.words}")

    def _receive(self, packet: Publish) -> None:
        if packet.qos == 0:
            self._router.deliver(message_of(packet), None)
            return
        receipt = self._receiving.accept(packet, self._version)
        if receipt is not None:
            self._router.deliver(message_of(packet), receipt)
        self._acknowledge()

    def _taken(self, receipt: Receipt) -> None:
        """Acknowledge a message at QoS 1 or 2. Called by subscriptions."""
        self._receiving.done(receipt)
        self._acknowledge()

    def _acknowledge(self) -> None:
        if self._link is not None:
            for packet in self._receiving.acknowledgements():
                self._link.send(packet)

    # ---- sending messages ------------------------------------------------------------------------

    async def _connected_link(self) -> Link:
        """The connection, as soon as there is one."""
        while True:
            if self._over is not None:
                raise self._over
            if self._link is not None:
                return self._link
            if self._task is None:
                raise ConnectionLost("not connected yet", hint="use the client inside `async with`")
            await self._changed.wait()

    async def _admit(self, outgoing: _Outgoing) -> None:
        """Wait until the message is in the window."""
        if self._over is not None or self._task is None:
            await self._connected_link()  # raises
        self._waiting.append(outgoing)
        self._pump()
        if not outgoing.admitted.done():
            try:
                await outgoing.admitted
            except asyncio.CancelledError:
                if outgoing in self._waiting:
                    self._waiting.remove(outgoing)
                raise
        elif outgoing.admitted.exception() is not None:
            await outgoing.admitted

    def _pump(self) -> None:
        """Move waiting messages into the window while there is room, and send them."""
        while self._waiting and self._link is not None and not self._sending.full:
            outgoing = self._waiting.popleft()
            packet = self._sending.admit(outgoing.packet)
            assert packet is not None, "the window is not full"
            try:
                self._link.send(packet)
            except ProtocolError as error:  # larger than the broker accepts, for example
                self._sending.withdraw(packet.packet_id)
                _fail(outgoing.admitted, error)
                continue
            self._outgoing[packet.packet_id] = outgoing
            if not outgoing.admitted.done():
                outgoing.admitted.set_result(None)

    def _acknowledged(self, packet: PubAck | PubRec | PubComp, link: Link) -> None:
        outcome = self._sending.acknowledge(packet, self._version)
        if isinstance(outcome, PubRel):
            link.send(outcome)
        elif isinstance(outcome, Completed):
            outgoing = self._outgoing.pop(outcome.packet_id)
            if outcome.reason_code.failed:
                _fail(outgoing.delivered, PublishRefused(outgoing.packet.topic, outcome.reason_code))
            elif not outgoing.delivered.done():
                outgoing.delivered.set_result(None)
            self._pump()

    # ---- subscriptions --------------------------------------------------------------------------

    async def _begin(self, subscription: Subscription) -> None:
        """Wait until the broker has granted all filters. Raises SubscribeRefused. Called by subscriptions."""
        await self._connected_link()
        additions = tuple(Wanted(one, qos) for one, qos in self._router.add(subscription).items())
        try:
            answer = await self._request(Subscribe(0, additions))
        except BaseException:
            self._router.remove(subscription)
            raise
        refused = self._refused(additions, answer)
        if refused is not None:
            subscription._finish(refused)
            await self._end(subscription)
            raise refused

    async def _end(self, subscription: Subscription) -> None:
        """Wait until the broker sends no more for a subscription, or has gone. Called by subscriptions."""
        filters = tuple(self._router.remove(subscription))
        if not filters or self._over is not None:
            return
        request = self._new_request(Unsubscribe(0, filters))
        if self._link is not None:
            self._link.send(request.packet)
            try:
                await request.answer
            except ConnectionLost:
                return

    async def _request(self, packet: Subscribe) -> SubAck | UnsubAck:
        link = await self._connected_link()
        request = self._new_request(packet)
        try:
            link.send(request.packet)
        except ProtocolError as error:
            del self._requests[request.packet.packet_id]
            self._identifiers.free(request.packet.packet_id)
            raise InvalidRequest(error) from error
        return await request.answer

    def _new_request(self, packet: Subscribe | Unsubscribe) -> _Request:
        """Give `packet` an identifier. It is sent again after a reconnect, until it is answered."""
        packet_id = self._identifiers.take()
        if packet_id is None:
            raise ClientError(
                "65535 messages and requests are unanswered", hint="check the broker: it does not answer"
            )
        request = _Request(
            msgspec.structs.replace(packet, packet_id=packet_id), asyncio.get_running_loop().create_future()
        )
        self._requests[packet_id] = request
        return request

    def _subscribe_again(self) -> None:
        """Queue a request for all filters that no open request contains."""
        packets = [request.packet for request in self._requests.values()]
        queued_filters = {
            one.topic_filter for p in packets if isinstance(p, Subscribe) for one in p.subscriptions
        }
        filters = tuple(
            Wanted(one, qos) for one, qos in self._router.filters().items() if one not in queued_filters
        )
        if filters:
            request = self._new_request(Subscribe(0, filters))
            request.answer.add_done_callback(lambda answer: self._subscribed_again(filters, answer))

    def _subscribed_again(
        self, filters: tuple[Wanted, ...], answer: asyncio.Future[SubAck | UnsubAck]
    ) -> None:
        if answer.cancelled() or answer.exception() is not None:
            return
        refused = self._refused(filters, answer.result())
        if refused is not None:
            self._router.refuse(refused)

    def _refused(self, filters: tuple[Wanted, ...], answer: SubAck | UnsubAck) -> SubscribeRefused | None:
        for one, code in zip(filters, answer.reason_codes, strict=False):
            if code.failed:
                return SubscribeRefused(one.topic_filter, code)
        return None


def _fail(future: asyncio.Future[_T], error: Exception) -> None:
    """End `future` with `error`; no caller needs to retrieve it."""
    if not future.done():
        future.set_exception(error)
        future.exception()
