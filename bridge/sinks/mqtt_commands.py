"""Command path of the MQTT sink: a message upstream for this edge becomes a local publish.

Owns the subscription upstream, the connection to the local broker, and the rule against loops. A command is
acknowledged upstream when the local broker has it. The broker upstream sends all others again, after a
reconnect or a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec.structs import replace

from bridge.errors import SinkUnavailable
from bridge.sinks.mqtt_link import UpstreamBroker, explained, open_link, received
from edge.client.connection import Link
from edge.client.errors import ConnectionLost
from edge.mqtt import (
    Connect,
    ProtocolError,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
)
from edge.mqtt.inflight import Receipt, ReceiveWindow

log = logging.getLogger(__name__)

FROM = "brim-from"  # user property of a command: the edge that has published it locally
SOURCE = "brim-source"
WAITING_MAX = 1000  # commands; above this number those at QoS 0 are dropped
# sent up by this edge; refused by the local broker; at QoS 0, while WAITING_MAX wait
OMITTED = ("command_echo", "command_refused", "command_full")
ANSWER_TIMEOUT_S = 20.0  # of the broker upstream, as for acknowledgements
LOCAL_TIMEOUT_S = 10.0
RETRY_S = 1.0


class Commands:
    """Commands that match `filters` below `prefix`, to `local`. Belongs to the event loop of the sink."""

    def __init__(self, filters: Sequence[str], prefix: str, local: UpstreamBroker) -> None:
        self.delivered = 0
        self.omitted = dict.fromkeys(OMITTED, 0)  # commands that were not delivered, by cause
        self._filters, self._prefix, self._target = tuple(filters), prefix, local
        self._edge = ""
        self._window = ReceiveWindow(WAITING_MAX)
        self._waiting: asyncio.Queue[tuple[Publish, Receipt | None, Link]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._local: Link | None = None

    async def subscribe(self, link: Link, edge: str, *, resumes: bool) -> None:
        """Subscribe on a new connection, before any other step. `resumes`: the broker has kept the session.

        Raises SinkUnavailable, ConnectionLost, ProtocolError.
        """
        await self._stop()
        self._edge = edge
        self._waiting = asyncio.Queue()
        self._window.reconnected(session_present=resumes)
        link.send(
            Subscribe(
                1,
                tuple(
                    Subscription(
                        self._prefix + topic_filter,
                        1,
                        no_local=True,
                        retain_as_published=True,
                        retain_handling=1,
                    )
                    for topic_filter in self._filters
                ),
            )
        )
        codes = (await self._answer(link)).reason_codes
        if len(codes) != len(self._filters):
            hint = "update the broker there, or ask its makers"
            text = f"SUBACK has {len(codes)} reason codes for {len(self._filters)} filter(s)"
            raise SinkUnavailable(text, hint=hint)
        for one, code in zip(self._filters, codes, strict=True):
            if code.failed:
                text = f"{self._prefix}{one}: {code.words}"
                raise SinkUnavailable(text, hint="allow the bridge to subscribe to its commands there")
        self._task = asyncio.create_task(self._deliver(), name="mqtt commands")

    async def _answer(self, link: Link) -> SubAck:
        """The answer to the subscription. Raises SinkUnavailable: there is none in time."""
        until = asyncio.get_running_loop().time() + ANSWER_TIMEOUT_S
        while packets := await received(link, until):
            answer = None
            for packet in packets:
                if isinstance(packet, SubAck):
                    answer = packet
                elif isinstance(packet, Publish):
                    self.take(packet, link)
            if answer is not None:
                return answer
        text = f"no answer to the subscription of commands in {ANSWER_TIMEOUT_S:g} s"
        raise SinkUnavailable(text, hint="check the network and the broker")

    def take(self, packet: Publish, link: Link) -> None:
        """Handle a message from upstream. Raises ProtocolError: more messages than allowed."""
        if packet.qos == 0 and self._waiting.qsize() >= WAITING_MAX:
            self.omitted["command_full"] += 1
            return
        receipt = self._window.accept(packet, Version.V5) if packet.qos else None
        self._waiting.put_nowait((replace(packet, payload=bytes(packet.payload)), receipt, link))

    def check(self) -> None:
        """Raise the error that has ended the delivery of commands, if any."""
        if self._task is not None and self._task.done():
            self._task.result()

    async def _deliver(self) -> None:
        """Deliver the commands one after the other."""
        while True:
            packet, receipt, link = await self._waiting.get()
            if any(
                name == SOURCE and value.startswith(f"{self._edge}/")
                for name, value in packet.properties.user
            ):
                self.omitted["command_echo"] += 1
            else:
                await self._publish(packet)
            if receipt is not None:
                self._window.done(receipt)
                for acknowledgement in self._window.acknowledgements():
                    link.send(acknowledgement)
                link.flush()

    async def _publish(self, packet: Publish) -> None:
        """Publish a command until the local broker has it, or refuses it; no time limit."""
        request_properties = packet.properties
        response = request_properties.response_topic
        if response is not None and response.startswith(self._prefix):
            response = response.removeprefix(self._prefix)
        properties = replace(
            request_properties,
            subscription_identifiers=(),
            topic_alias=None,
            response_topic=response,
            user=(*request_properties.user, (FROM, self._edge)),
        )
        topic = packet.topic.removeprefix(self._prefix)
        local = Publish(topic, packet.payload, 1, packet.retain, packet_id=1, properties=properties)
        while True:
            try:
                code = await self._acknowledged(local)
            except SinkUnavailable as error:
                log.warning("command delayed: local broker not reachable topic=%s reason=%s", topic, error)
                await asyncio.sleep(RETRY_S)
                continue
            if code.failed:
                self.omitted["command_refused"] += 1
                log.warning("command refused by the local broker topic=%s reason=%s", topic, code.words)
            else:
                self.delivered += 1
            return

    async def _acknowledged(self, packet: Publish) -> ReasonCode:
        """The reason code of the local broker. Raises SinkUnavailable."""
        loop = asyncio.get_running_loop()
        link = self._local or await self._open()
        self._local = None  # unless the publish succeeds
        try:
            try:
                link.send(packet)
            except ProtocolError as error:
                log.warning(
                    "command refused: above a limit of the local broker topic=%s reason=%s",
                    packet.topic,
                    error,
                )
                self._local = link
                return ReasonCode.PACKET_TOO_LARGE
            until = loop.time() + LOCAL_TIMEOUT_S
            with explained(self._target):
                while packets := await received(link, until):
                    for answer in packets:
                        if isinstance(answer, PubAck):
                            self._local = link
                            return answer.reason_code
                raise ConnectionLost("no acknowledgement")
        finally:
            if self._local is None:
                link.abort()

    async def _open(self) -> Link:
        connect = Connect(
            client_id=f"brim-down-{self._edge}",
            keep_alive_s=0,
            username=self._target.username,
            password=self._target.password,
            version=Version.V5,
        )
        link, _ = await open_link(self._target, connect)
        return link

    async def close(self) -> None:
        """Close the connection to the local broker."""
        await self._stop()

    async def _stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        local, self._local = self._local, None
        if local is not None:
            await local.close()
