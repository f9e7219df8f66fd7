"""Client of a history: it acknowledges as its history says, and notes each packet as an event.

An event has all values of a packet that the same broker must repeat. Packet identifiers are not among them,
because a broker may choose them.
"""

import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
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
    encode,
)
from edge.mqtt.properties import NO_PROPERTIES
from tests.support.frames import first_packet
from tests.support.histories import (
    Acknowledges,
    Acks,
    Amount,
    ClientStep,
    Connects,
    Leaves,
    Publishes,
    Subscribes,
    Unsubscribes,
)
from tests.support.waiting import PATIENCE_S

MATCHES_NONE = 16  # reason code of an acknowledgement


class Arrival(NamedTuple):
    """A PUBLISH from the broker."""

    topic: str
    payload: bytes
    qos: int
    retain: bool = False
    dup: bool = False
    properties: str = ""
    is_repeated: bool = False  # at QoS 2, before its PUBREL


class Control(NamedTuple):
    """Another packet, or the end of the connection."""

    text: str


class Wrong(NamedTuple):
    """A mistake of the broker."""

    text: str


Event = Arrival | Control | Wrong


class _Link:
    """One connection."""

    def __init__(self, port: int, version: Version) -> None:
        self._version = version
        self._socket = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""
        self.is_open = True

    def send(self, *packets: Packet) -> None:
        try:
            self._socket.sendall(b"".join(encode(packet, self._version) for packet in packets))
        except OSError:
            self.close()

    def close(self) -> None:
        self._socket.close()
        self.is_open = False

    def packets(self, timeout_s: float) -> Iterator[Packet]:
        """The packets of one read, if any; closes the connection that the broker has closed."""
        if not select.select([self._socket], [], [], max(timeout_s, 0))[0]:
            return
        try:
            data = self._socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.close()
        self._rest += data
        while (first := first_packet(self._rest, self._version)) is not None:
            packet, self._rest = first
            yield packet


@dataclass
class _Sent:
    """A message of this client that is not acknowledged to its end."""

    message: Publish
    is_received: bool = False  # PUBREC has arrived
    releases: bool = True  # False: the connection ends before PUBREL


class HistoryClient:
    """A client with its session, over one connection after the other. `events`: since the last take()."""

    def __init__(self, port: int, name: str, version: Version) -> None:
        self.name, self.version, self._port = name, version, port
        self.events: list[Event] = []
        self._link: _Link | None = None
        self._acks: Acks = "at once"
        self._sent: dict[int, _Sent] = {}
        self._packet_id = 0
        self._held: list[tuple[int, int]] = []  # (identifier, QoS) of messages without an acknowledgement
        self._uncompleted: list[int] = []  # identifiers whose PUBREL has no PUBCOMP
        self._received: set[int] = set()  # identifiers of QoS 2 until their PUBREL
        self._names: dict[int, str] = {}  # of aliases from the broker
        self._aliases: dict[int, str] = {}  # to the broker
        self._alias_max, self._receive_max = 0, 65_535
        self._answers: list[Packet] = []  # CONNACK, SUBACK, UNSUBACK and PINGRESP

    @property
    def _open_link(self) -> _Link | None:
        """The connection, if the client has not seen its end."""
        return self._link if self._link is not None and self._link.is_open else None

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events

    def cut(self) -> None:
        """Close the connection without DISCONNECT."""
        if self._link is not None:
            self._link.close()

    def ping(self) -> None:
        """Wait until the broker has answered all that was sent."""
        if self._open_link is not None:
            self._request(PingReq(), PingResp)

    # ---- steps of a history ----

    def do(self, step: ClientStep) -> None:
        """Do one step."""
        match step:
            case Connects():
                self._connect(step)
            case Subscribes():
                self._request(Subscribe(9, step.subscriptions, step.properties), SubAck)
            case Unsubscribes():
                self._request(Unsubscribe(9, step.filters), UnsubAck)
            case Publishes():
                self._publish(step)
            case Acknowledges():
                self._acknowledge(step.amount)
            case Leaves():
                self._leave(step)

    def _connect(self, step: Connects) -> None:
        """Connect, and repeat what is not acknowledged, as a session requires."""
        old = self._open_link
        self._acks = step.acks
        self._names, self._aliases = {}, {}
        self._held, self._uncompleted = [], []
        self._alias_max = step.properties.topic_alias_maximum or 0
        self._receive_max = step.properties.receive_maximum or 65_535
        self._link = _Link(self._port, self.version)
        connect = Connect(
            self.name, step.clean_start, 0, will=step.will, version=self.version, properties=step.properties
        )
        answer = self._request(connect, ConnAck)
        if old is not None:
            self._see_end(old)
        if not isinstance(answer, ConnAck) or not answer.session_present:
            self._sent.clear()
        for packet_id, sent in self._sent.items():
            sent.releases = True
            self._send(PubRel(packet_id) if sent.is_received else replace(sent.message, dup=True))
        self._until(lambda: not self._sent)

    def _see_end(self, old: _Link) -> None:
        """The broker must close the connection that was taken over."""
        deadline = time.monotonic() + PATIENCE_S
        while old.is_open and time.monotonic() < deadline:
            for packet in old.packets(1.0):
                is_end = isinstance(packet, Disconnect) and self.version is Version.V5
                self.events.append(Control(repr(packet)) if is_end else Wrong(f"after the end: {packet}"))
        if old.is_open:
            self.events.append(Wrong("the old connection stays"))
        old.close()

    def _publish(self, step: Publishes) -> None:
        """Publish, and wait for the end of the exchange if the connection does not break."""
        packet_id = self._next_id() if step.qos else 0
        message = Publish(step.topic, step.payload, step.qos, step.retain, False, packet_id, step.properties)
        if step.qos:
            kept = replace(message, properties=replace(step.properties, topic_alias=None))
            self._sent[packet_id] = _Sent(kept, releases=step.breaks != "before PUBREL")
        self._send(self._with_alias(message))
        if not step.qos:
            return
        if step.breaks == "before the acknowledgement":
            self.cut()
        elif step.breaks == "before PUBREL" and step.qos == 2:
            self._until(lambda: packet_id not in self._sent or self._sent[packet_id].is_received)
            self.cut()
        else:
            self._until(lambda: packet_id not in self._sent)

    def _with_alias(self, message: Publish) -> Publish:
        """The message without its topic, if the broker knows the alias."""
        alias = message.properties.topic_alias
        if alias is None:
            return message
        is_known = self._aliases.get(alias) == message.topic
        self._aliases[alias] = message.topic
        return replace(message, topic="") if is_known else message

    def _next_id(self) -> int:
        self._packet_id = self._packet_id % 65_535 + 1
        return self._packet_id

    def _acknowledge(self, amount: Amount) -> None:
        """Acknowledge messages that were held."""
        for packet_id, qos in list(self._held):
            if qos == 2 or amount != "PUBREC only":
                self._held.remove((packet_id, qos))
                self._send(PubAck(packet_id) if qos == 1 else PubRec(packet_id))
            if amount == "oldest":
                return
        while amount == "all" and self._uncompleted:
            self._send(PubComp(self._uncompleted.pop(0)))

    def _leave(self, step: Leaves) -> None:
        """End the connection."""
        if step.code is None:
            self.cut()
            return
        self._send(Disconnect(ReasonCode(step.code), NO_PROPERTIES))
        self._until(lambda: False)  # the broker closes the connection

    # ---- packets ----

    def _receive(self, timeout_s: float) -> None:
        """Handle the packets that arrive within that time."""
        link = self._open_link
        if link is None:
            return
        for packet in link.packets(timeout_s):
            self._handle(packet)
        if not link.is_open:
            self.events.append(Control("closed"))

    def _send(self, *packets: Packet) -> None:
        if self._open_link is not None:
            self._open_link.send(*packets)

    def _request(self, packet: Packet, kind: type[Packet]) -> Packet | None:
        self._answers.clear()
        self._send(packet)
        self._until(lambda: any(isinstance(it, kind) for it in self._answers))
        return next((it for it in self._answers if isinstance(it, kind)), None)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition() and self._open_link is not None:
            if time.monotonic() > deadline:
                self.events.append(Wrong("no answer"))
                return
            self._receive(1.0)

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._arrives(packet)
            case PubRel(packet_id=packet_id):
                self._received.discard(packet_id)
                if self._acks != "PUBREC only":
                    self._send(PubComp(packet_id))
                elif packet_id not in self._uncompleted:
                    self._uncompleted.append(packet_id)
            case PubAck() | PubRec() | PubComp():
                self._acknowledged(packet)
            case ConnAck():
                self._answers.append(packet)
                self.events.append(Control(f"CONNACK {packet.session_present} {packet.reason_code}"))
                if not packet.session_present:
                    self._received.clear()
            case SubAck() | UnsubAck():
                self._answers.append(packet)
                self.events.append(Control(f"{type(packet).__name__} {packet.reason_codes}"))
            case PingResp():
                self._answers.append(packet)
            case _:
                self.events.append(Control(repr(packet)))

    def _acknowledged(self, packet: PubAck | PubRec | PubComp) -> None:
        code = 0 if packet.reason_code == MATCHES_NONE else packet.reason_code
        self.events.append(Control(f"{type(packet).__name__} {code}"))
        sent = self._sent.get(packet.packet_id)
        if sent is None:
            self.events.append(Wrong(f"acknowledges nothing: {packet}"))
        elif isinstance(packet, PubRec) and code < 128:
            sent.is_received = True
            if sent.releases:
                self._send(PubRel(packet.packet_id))
        else:
            del self._sent[packet.packet_id]

    def _arrives(self, message: Publish) -> None:
        is_repeated = message.qos == 2 and message.packet_id in self._received
        expires = message.properties.message_expiry_interval_s is not None
        properties = replace(message.properties, topic_alias=None, message_expiry_interval_s=int(expires))
        flags = message.qos, message.retain, message.dup
        topic, payload = self._topic_of(message), bytes(message.payload)
        self.events.append(Arrival(topic, payload, *flags, repr(properties), is_repeated))
        if message.qos:
            self._hold(message.packet_id, message.qos)

    def _hold(self, packet_id: int, qos: int) -> None:
        """Acknowledge a message now or later."""
        if qos == 2:
            self._received.add(packet_id)
        if (packet_id, qos) not in self._held:
            self._held.append((packet_id, qos))
        if len(self._held) + len(self._uncompleted) > self._receive_max:
            self.events.append(Wrong(f"{len(self._held)} messages exceed Receive Maximum"))
        if self._acks != "none":
            self._acknowledge("all" if self._acks == "at once" else "PUBREC only")

    def _topic_of(self, message: Publish) -> str:
        alias = message.properties.topic_alias
        if alias is None:
            return message.topic
        topic = message.topic or self._names.get(alias, "")
        if alias > self._alias_max or not topic:
            self.events.append(Wrong(f"topic alias {alias} is not known"))
        self._names[alias] = topic
        return topic
