"""Client of a history: it acknowledges as its history says, and notes each packet as an event.

An event is a tuple: the kind of packet, and all values that the same broker must repeat. Packet identifiers
are not among them, because a broker may choose them.
"""

import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
from tests.support.histories import Acknowledges, Acks, Connects, Leaves, Publishes, Subscribes, Unsubscribes
from tests.support.waiting import PATIENCE_S

Event = tuple[object, ...]
MESSAGE, AGAIN = "message", "message again"  # followed by topic, payload, QoS, RETAIN, DUP, properties
MATCHES_NONE = 16  # reason code of an acknowledgement


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
    def is_connected(self) -> bool:
        """True if the client has not seen the end of its connection."""
        return self._link is not None and self._link.is_open

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
        if self._link is not None and self._link.is_open:
            self._request(PingReq(), PingResp)

    # ---- steps of a history ----

    def connects(self, step: Connects) -> None:
        """Connect, and repeat what is not acknowledged, as a session requires."""
        old = self._link if self.is_connected else None
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
                self.events.append(("end" if is_end else "WRONG after the end", repr(packet)))
        if old.is_open:
            self.events.append(("WRONG: the old connection stays",))
        old.close()

    def subscribes(self, step: Subscribes) -> None:
        """Wait for the SUBACK."""
        self._request(Subscribe(9, step.subscriptions, step.properties), SubAck)

    def unsubscribes(self, step: Unsubscribes) -> None:
        """Wait for the UNSUBACK."""
        self._request(Unsubscribe(9, step.filters), UnsubAck)

    def publishes(self, step: Publishes) -> None:
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

    def acknowledges(self, step: Acknowledges) -> None:
        """Acknowledge messages that were held."""
        for packet_id, qos in list(self._held):
            if qos == 2 or step.amount != "PUBREC only":
                self._held.remove((packet_id, qos))
                self._send(PubAck(packet_id) if qos == 1 else PubRec(packet_id))
            if step.amount == "oldest":
                return
        while step.amount == "all" and self._uncompleted:
            self._send(PubComp(self._uncompleted.pop(0)))

    def leaves(self, step: Leaves) -> None:
        """End the connection."""
        if step.code is None or self._link is None:
            self.cut()
            return
        self._send(Disconnect(ReasonCode(step.code), NO_PROPERTIES))
        link = self._link
        self._until(lambda: not link.is_open)

    # ---- packets ----

    def receive(self, timeout_s: float = 0.0) -> None:
        """Handle the packets that have arrived."""
        if self._link is None or not self._link.is_open:
            return
        for packet in self._link.packets(timeout_s):
            self._handle(packet)
        if not self._link.is_open:
            self.events.append(("closed",))

    def _send(self, *packets: Packet) -> None:
        if self._link is not None and self._link.is_open:
            self._link.send(*packets)

    def _request(self, packet: Packet, kind: type[Packet]) -> Packet | None:
        self._answers.clear()
        self._send(packet)
        self._until(lambda: any(isinstance(it, kind) for it in self._answers))
        return next((it for it in self._answers if isinstance(it, kind)), None)

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition() and self._link is not None and self._link.is_open:
            if time.monotonic() > deadline:
                self.events.append(("WRONG: no answer",))
                return
            self.receive(1.0)

    def _handle(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._arrives(packet)
            case PubRel(packet_id=packet_id):
                self._received.discard(packet_id)
                if self._acks == "PUBREC only":
                    self._uncompleted += [packet_id] * (packet_id not in self._uncompleted)
                else:
                    self._send(PubComp(packet_id))
            case PubAck() | PubRec() | PubComp():
                self._acknowledged(packet)
            case ConnAck():
                self._answers.append(packet)
                self.events.append(("CONNACK", packet.session_present, packet.reason_code))
                if not packet.session_present:
                    self._received.clear()
            case SubAck() | UnsubAck():
                self._answers.append(packet)
                self.events.append((type(packet).__name__, packet.reason_codes))
            case PingResp():
                self._answers.append(packet)
            case _:
                self.events.append((repr(packet),))

    def _acknowledged(self, packet: PubAck | PubRec | PubComp) -> None:
        code = 0 if packet.reason_code == MATCHES_NONE else packet.reason_code
        self.events.append((type(packet).__name__, code))
        sent = self._sent.get(packet.packet_id)
        if sent is None:
            self.events.append(("WRONG: acknowledges nothing", packet))
        elif isinstance(packet, PubRec) and code < 128:
            sent.is_received = True
            if sent.releases:
                self._send(PubRel(packet.packet_id))
        else:
            del self._sent[packet.packet_id]

    def _arrives(self, message: Publish) -> None:
        is_again = message.qos == 2 and message.packet_id in self._received
        expires = message.properties.message_expiry_interval_s is not None
        properties = replace(message.properties, topic_alias=None, message_expiry_interval_s=int(expires))
        topic, payload = self._topic_of(message), bytes(message.payload)
        event = topic, payload, message.qos, message.retain, message.dup
        self.events.append((AGAIN if is_again else MESSAGE, *event, repr(properties)))
        if not message.qos:
            return
        assert message.packet_id
        if message.qos == 2:
            self._received.add(message.packet_id)
        self._held += [(message.packet_id, message.qos)] * (
            (message.packet_id, message.qos) not in self._held
        )
        if len(self._held) + len(self._uncompleted) > self._receive_max:
            self.events.append(("WRONG: more than Receive Maximum", len(self._held)))
        if self._acks != "none":
            self.acknowledges(Acknowledges(self.name, "all" if self._acks == "at once" else "PUBREC only"))

    def _topic_of(self, message: Publish) -> str:
        alias = message.properties.topic_alias
        if alias is None:
            return message.topic
        topic = message.topic or self._names.get(alias, "")
        if alias > self._alias_max or not topic:
            self.events.append(("WRONG alias", alias))
        self._names[alias] = topic
        return topic
