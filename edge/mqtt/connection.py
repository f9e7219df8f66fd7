"""Protocol state of one network connection, from either side: bytes in, packets out, and their allowed order.

Owns the receive buffer, the state of the connection, its limits and its keep-alive. Does no I/O, reads no
clock, and keeps nothing that outlives the connection (inflight.py does). The caller does this:

    connection.receive_data(chunk)                      b"" at end of file
    while (packet := connection.next_packet()): ...     may raise ProtocolError
    connection.send(answer)
    transport.writelines(connection.data_to_send())     also after an error: it may contain DISCONNECT
    connection.handle_deadline(now)                     after each batch, and when next_deadline() is due
    close the transport when connection.state is State.CLOSED

Both sides go through the same states; the table defines the packets that each may send in them.

    OPENING     nothing was sent
    CONNECTING  CONNECT was sent. The client may send more at once; its server returns no packet
                until it has answered, so that packets after a refused CONNECT have no effect [MQTT-3.1.4-5].
                Stop reading from the network meanwhile: arriving bytes are kept.
    CONNECTED   CONNACK accepted
    CLOSED      CONNACK refused, DISCONNECT, end of file, or an error. Later bytes are dropped
"""

from __future__ import annotations

from enum import Enum

from msgspec.structs import replace

from edge.mqtt import packets as p
from edge.mqtt.decode import decode_packet
from edge.mqtt.encode import encode, encode_publish_head, refusal
from edge.mqtt.errors import ProtocolError, Rule, Version
from edge.mqtt.packet_types import REASONS, PacketType, check_flags
from edge.mqtt.primitives import Buffer, decode_variable_integer, variable_integer_bytes

MAX_CONNECT_BYTES = 65_536  # memory before authentication: client identifier, will, credentials
MAX_PACKET_BYTES = 1_048_576  # mosquitto 2.1 accepts 2 MB; the specification allows 256 MiB
HANDSHAKE_TIMEOUT_S = 5.0  # for the whole CONNECT or CONNACK, however slowly its bytes arrive
COPY_MAX_BYTES = 4096  # a larger payload is queued without a copy

# Parts of the keep alive: the client pings, and the server gives up [MQTT-3.1.2-24].
PING_AFTER, PEER_IS_GONE_AFTER = 0.75, 1.5


class Role(Enum):
    """The side of the connection."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def peer(self) -> Role:
        """The other side."""
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


class State(Enum):
    """Progress of the connection."""

    OPENING = "opening"
    CONNECTING = "connecting"
    CONNECTED = "connected"
    CLOSED = "closed"


_CLIENT_PACKETS: tuple[type[p.Packet], ...] = (
    p.Publish, p.PubAck, p.PubRec, p.PubRel, p.PubComp, p.Subscribe, p.Unsubscribe, p.PingReq, p.Auth,
)  # fmt: skip
_SERVER_PACKETS: tuple[type[p.Packet], ...] = (
    p.Publish, p.PubAck, p.PubRec, p.PubRel, p.PubComp, p.SubAck, p.UnsubAck, p.PingResp, p.Auth,
)  # fmt: skip

_ANSWERS = {PacketType.CONNACK, PacketType.AUTH}  # to CONNECT

# (state, sender) -> allowed packets -> the state after each. Everything else is an error.
_TABLE: dict[tuple[State, Role], dict[type[p.Packet], State]] = {
    (State.OPENING, Role.CLIENT): {p.Connect: State.CONNECTING},
    (State.OPENING, Role.SERVER): {},
    (State.CONNECTING, Role.CLIENT): {
        **dict.fromkeys(_CLIENT_PACKETS, State.CONNECTING),
        p.Disconnect: State.CLOSED,
    },
    (State.CONNECTING, Role.SERVER): {p.ConnAck: State.CONNECTED, p.Auth: State.CONNECTING},
    (State.CONNECTED, Role.CLIENT): {
        **dict.fromkeys(_CLIENT_PACKETS, State.CONNECTED),
        p.Disconnect: State.CLOSED,
    },
    (State.CONNECTED, Role.SERVER): {
        **dict.fromkeys(_SERVER_PACKETS, State.CONNECTED),
        p.Disconnect: State.CLOSED,
    },
    (State.CLOSED, Role.CLIENT): {},
    (State.CLOSED, Role.SERVER): {},
}


class Connection:
    """Protocol state of one connection. Not thread-safe; every method returns at once.

    `max_connect_bytes` limits a received packet until CONNECT is accepted, `max_packet_bytes` from then on;
    both count the fixed header. `handshake_timeout_s` runs from the first handle_deadline().
    """

    def __init__(
        self,
        role: Role,
        *,
        max_packet_bytes: int = MAX_PACKET_BYTES,
        max_connect_bytes: int = MAX_CONNECT_BYTES,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:
        self.role = role
        self.state = State.OPENING
        self.version = Version.V311  # until CONNECT sets it
        self.keep_alive_s = 0
        self.max_packet_bytes = max_packet_bytes
        self.max_connect_bytes = min(max_connect_bytes, max_packet_bytes)
        self.bytes_to_send = 0
        self._chunk = b""  # received bytes from _position on, whole packets first; payloads are views of it
        self._position = 0
        self._partial = bytearray()  # beginning of a packet that continues in later chunks
        self._needed = 2  # number of bytes at which _partial is examined again
        self._end_of_file = False
        self._out: list[Buffer] = []
        self._peer_max_packet_bytes = 0  # MQTT 5; 0: only the protocol's limit
        self._peer_alias_maximum = 0
        self._authenticating = False
        self._alias_maximum = 0  # announced by this side
        self._aliases: dict[int, str] = {}
        self._timing = _Timing(handshake_timeout_s)

    # ---- bytes in, packets out ------------------------------------------------------------------

    def receive_data(self, data: Buffer) -> None:
        """Add bytes from the peer; b"" is the end of the file.

        Copied unless `data` is a `bytes`. Call next_packet() until it returns None before adding more,
        otherwise the buffer grows.
        """
        if not data:
            self._end_of_file = True
        elif self.state is State.CLOSED:
            pass
        elif self._partial:
            self._partial += data
        elif self._position < len(self._chunk):
            self._partial = bytearray(memoryview(self._chunk)[self._position :]) + data
            self._chunk, self._position, self._needed = b"", 0, 2
        else:
            self._chunk, self._position = bytes(data), 0

    def next_packet(self) -> p.Packet | None:
        """The next packet from the peer; None: more bytes are needed, or this side must answer CONNECT first.

        Raises ProtocolError, after which the connection is CLOSED; data_to_send() may still return bytes.
        """
        if self.state is State.CLOSED or self._holds_back():
            return None
        try:
            frame = self._next_frame()
            if frame is not None:
                return self._received(decode_packet(*frame, self.version))
        except ProtocolError as error:
            self._fail(error)
            raise
        if self._end_of_file:
            self.state = State.CLOSED
        return None

    def _holds_back(self) -> bool:
        return self.role is Role.SERVER and self.state is State.CONNECTING and not self._authenticating

    def _next_frame(self) -> tuple[int, memoryview] | None:
        """(first byte, body) of the next packet if it is complete."""
        if self._partial:
            if len(self._partial) < self._needed:
                return None
            self._chunk, self._position = bytes(self._partial), 0
            self._partial.clear()
        chunk, start, end = self._chunk, self._position, len(self._chunk)
        length = decode_variable_integer(chunk, start + 1, end, self.version)
        if length is None:
            self._set_aside(start, end - start + 1)
            return None
        remaining, length_bytes = length
        if self.version == Version.V5 and length_bytes > variable_integer_bytes(remaining):
            raise ProtocolError(
                Rule.VARIABLE_INTEGER_IS_SHORTEST, f"{remaining} takes {length_bytes} bytes", self.version
            )
        self._check_header(chunk[start], 1 + length_bytes + remaining)
        body = start + 1 + length_bytes
        if body + remaining > end:
            self._set_aside(start, 1 + length_bytes + remaining)
            return None
        self._position = body + remaining
        return chunk[start], memoryview(chunk)[body : body + remaining]

    def _set_aside(self, start: int, needed: int) -> None:
        """Keep the beginning of a packet until `needed` bytes of it are there."""
        self._partial += memoryview(self._chunk)[start:]
        self._chunk, self._position, self._needed = b"", 0, max(needed, 2)

    def _check_header(self, first_byte: int, size: int) -> None:
        """Refuse a packet by its header if its body would be refused anyway."""
        packet_type = check_flags(first_byte, self.version)
        if self.state is State.OPENING and packet_type is not PacketType.CONNECT:
            raise ProtocolError(Rule.CONNECT_IS_FIRST, f"{packet_type.name} before CONNECT", self.version)
        if self.state is State.CONNECTING and self.role is Role.CLIENT and packet_type not in _ANSWERS:
            raise ProtocolError(Rule.CONNACK_IS_FIRST, f"{packet_type.name} before CONNACK", self.version)
        limit = self.max_packet_bytes if self.state is State.CONNECTED else self.max_connect_bytes
        if size > limit:
            name = "max_packet_bytes" if self.state is State.CONNECTED else "max_connect_bytes"
            raise ProtocolError(
                Rule.PACKET_IS_NOT_TOO_LARGE,
                f"{packet_type.name} of {size} bytes exceeds {limit} ({name})",
                self.version,
            )

    def _received(self, packet: p.Packet) -> p.Packet:
        self._check(packet, self.role.peer)
        if isinstance(packet, p.Publish) and packet.properties.topic_alias is not None:
            packet = self._resolved(packet, packet.properties.topic_alias)
        self._advance(packet, self.role.peer)
        self._timing.received = True
        return packet

    def _resolved(self, packet: p.Publish, alias: int) -> p.Publish:
        """Add the topic to a PUBLISH with an alias: learn it, or look it up from an earlier PUBLISH."""
        if packet.topic:
            self._aliases[alias] = packet.topic
            return packet
        topic = self._aliases.get(alias)
        if topic is None:
            raise ProtocolError(
                Rule.TOPIC_ALIAS_IS_KNOWN, f"topic alias {alias} stands for nothing", self.version
            )
        return replace(packet, topic=topic)

    # ---- packets in, bytes out ------------------------------------------------------------------

    def send(self, packet: p.Packet) -> None:
        """Queue the bytes of `packet`.

        Raises ProtocolError if this side must not send it, now or at all; nothing has changed then. A large
        payload is queued without a copy: do not change it until data_to_send() has been written.
        """
        self._check(packet, self.role)
        payload: Buffer = b""
        if isinstance(packet, p.Publish) and len(packet.payload) > COPY_MAX_BYTES:
            head, payload = encode_publish_head(packet, self.version), packet.payload
        else:
            head = encode(packet, self.version)
        size = len(head) + len(payload)
        if self._peer_max_packet_bytes and size > self._peer_max_packet_bytes:
            raise ProtocolError(
                Rule.PEER_TAKES_THE_SIZE,
                f"{type(packet).__name__} of {size} bytes exceeds the peer's {self._peer_max_packet_bytes}",
                self.version,
            )
        self._out.append(head)
        if payload:
            self._out.append(payload)
        self.bytes_to_send += size
        self._advance(packet, self.role)
        self._timing.sent = True

    def data_to_send(self) -> list[Buffer]:
        """Return queued bytes for writelines(), and empty the queue."""
        out, self._out, self.bytes_to_send = self._out, [], 0
        return out

    # ---- state ----------------------------------------------------------------------------------

    def _check(self, packet: p.Packet, sender: Role) -> None:
        if type(packet) not in _TABLE[self.state, sender]:
            raise ProtocolError(*_rejection(self.state, sender, packet), self.version)
        if self.version == Version.V5:
            self._check_5(packet, sender)
        elif isinstance(packet, p.Disconnect) and sender is Role.SERVER:
            raise ProtocolError(Rule.DIRECTION, "a server sends DISCONNECT in MQTT 5 only", self.version)

    def _check_5(self, packet: p.Packet, sender: Role) -> None:
        if isinstance(packet, p.Publish):
            alias = packet.properties.topic_alias or 0
            maximum = self._peer_alias_maximum if sender is self.role else self._alias_maximum
            if alias > maximum:
                raise ProtocolError(
                    Rule.TOPIC_ALIAS_IS_ALLOWED, f"topic alias {alias} exceeds {maximum}", self.version
                )
            if sender is Role.CLIENT and packet.properties.subscription_identifiers:
                raise ProtocolError(
                    Rule.NO_SUBSCRIPTION_IDENTIFIER_TO_SERVER,
                    "a client sends no subscription identifier",
                    self.version,
                )
        expiry_s = packet.properties.session_expiry_interval_s if isinstance(packet, p.Disconnect) else None
        if expiry_s is not None and sender is Role.SERVER:
            raise ProtocolError(
                Rule.NO_SESSION_EXPIRY_FROM_SERVER, "a server sends no session expiry", self.version
            )
        if self._authenticating and sender is Role.CLIENT and not isinstance(packet, p.Auth | p.Disconnect):
            raise ProtocolError(
                Rule.AUTHENTICATION_COMES_FIRST, f"{type(packet).__name__} before CONNACK", self.version
            )

    def _advance(self, packet: p.Packet, sender: Role) -> None:
        """Apply a checked packet to the state."""
        self.state = _TABLE[self.state, sender][type(packet)]
        if isinstance(packet, p.Connect):
            self.version = packet.version
            self.keep_alive_s = packet.keep_alive_s
            self._authenticating = packet.properties.authentication_method is not None
            self._learn_limits(packet, sender)
        elif isinstance(packet, p.ConnAck):
            self._authenticating = False
            if packet.reason_code.failed:
                self.state = State.CLOSED
            if packet.properties.server_keep_alive_s is not None:
                self.keep_alive_s = packet.properties.server_keep_alive_s
            self._learn_limits(packet, sender)
        elif isinstance(packet, p.PingReq | p.PingResp):
            self._timing.pinged(awaits_answer=isinstance(packet, p.PingReq))
        if self.state is State.CLOSED:
            self._drop_received()

    def _learn_limits(self, packet: p.Connect | p.ConnAck, sender: Role) -> None:
        if sender is self.role:
            self._alias_maximum = packet.properties.topic_alias_maximum or 0
        else:
            self._peer_max_packet_bytes = packet.properties.maximum_packet_size_bytes or 0
            self._peer_alias_maximum = packet.properties.topic_alias_maximum or 0

    def _fail(self, error: ProtocolError) -> None:
        goodbye = disconnect_packet(error, self.state, self.role)
        if goodbye is not None:
            self._out.append(encode(goodbye, error.version))
            self.bytes_to_send += len(self._out[-1])
        self.state = State.CLOSED
        self._drop_received()

    def _drop_received(self) -> None:
        self._chunk, self._position = b"", 0
        self._partial = bytearray()

    # ---- time -----------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Time at which handle_deadline() must be called at the latest; None while nothing is timed.

        In seconds, on the clock of handle_deadline().
        """
        return None if self.state is State.CLOSED else self._timing.deadline(self)

    def handle_deadline(self, now: float) -> None:
        """Apply the current time: any monotonic clock, in seconds. Early calls are harmless.

        Packets count as sent or received at the following call, so call it after each batch. Call it once
        when the connection opens, which starts the handshake timeout. A client queues PINGREQ here. Raises
        ProtocolError when the peer is gone [MQTT-3.1.2-24] or never answered; the connection is CLOSED then.
        """
        if self.state is State.CLOSED:
            return
        try:
            if self._timing.handle(self, now):
                self.send(p.PingReq())
                self._timing.sent_at, self._timing.sent = now, False
        except ProtocolError as error:
            self._fail(error)
            raise


class _Timing:
    """Times of the last sent and received packets, and deadlines; on the clock of handle_deadline()."""

    def __init__(self, handshake_timeout_s: float) -> None:
        self.handshake_timeout_s = handshake_timeout_s
        self.started_at: float | None = None
        self.received = self.sent = False  # since the last handle()
        self.received_at = self.sent_at = 0.0
        self.asking = False  # True while PINGREQ is unanswered
        self.asked_at = 0.0

    def pinged(self, *, awaits_answer: bool) -> None:
        self.asking = awaits_answer

    def deadline(self, connection: Connection) -> float | None:
        if self.started_at is None:
            return None
        if connection.state is not State.CONNECTED:
            return self.started_at + self.handshake_timeout_s
        keep_alive_s = connection.keep_alive_s
        if not keep_alive_s:
            return None
        if connection.role is Role.SERVER:
            return self.received_at + PEER_IS_GONE_AFTER * keep_alive_s
        if self.asking:
            return max(self.asked_at, self.received_at) + PING_AFTER * keep_alive_s
        return min(self.sent_at, self.received_at) + PING_AFTER * keep_alive_s

    def handle(self, connection: Connection, now: float) -> bool:
        """True if the client must ping now. Raises ProtocolError when the peer was silent for too long."""
        if self.started_at is None:
            self.started_at = self.received_at = self.sent_at = now
        if self.received:
            self.received_at, self.received = now, False
        if self.sent:
            self.sent_at, self.sent = now, False
        due = self.deadline(connection)
        if due is None or now < due:
            return False
        if connection.state is not State.CONNECTED:
            packet_name = "CONNECT" if connection.role is Role.SERVER else "CONNACK"
            raise ProtocolError(
                Rule.CONNECT_COMES_SOON,
                f"no {packet_name} within {self.handshake_timeout_s:g} s",
                connection.version,
            )
        if connection.role is Role.CLIENT and not self.asking:
            self.asked_at = now
            return True
        rule = Rule.KEEP_ALIVE if connection.role is Role.SERVER else Rule.PING_IS_ANSWERED
        silence = f"nothing received for {now - self.received_at:.1f} s"
        raise ProtocolError(rule, f"{silence} (keep alive {connection.keep_alive_s} s)", connection.version)


def disconnect_packet(error: ProtocolError, state: State, role: Role) -> p.ConnAck | p.Disconnect | None:
    """The packet to send, in error.version, before closing because of `error`; None if there is none.

    Before it has accepted, a server answers with CONNACK. Later both sides send DISCONNECT, in MQTT 5.
    """
    code, is_5 = error.reason_code, error.version == Version.V5
    if state in {State.OPENING, State.CONNECTING} and role is Role.SERVER:
        return refusal(error)
    if state is State.CONNECTED and is_5 and code in REASONS[PacketType.DISCONNECT].codes:
        return p.Disconnect(code)
    return None


def _rejection(state: State, sender: Role, packet: p.Packet) -> tuple[Rule, str]:
    """The rule that `packet` breaks in `state`, and a description."""
    name = type(packet).__name__
    if state is State.CLOSED:
        return Rule.NOTHING_AFTER_DISCONNECT, f"{name} on a closed connection"
    if state is State.OPENING:
        return Rule.CONNECT_IS_FIRST, f"{name} from the {sender.value} before CONNECT"
    if isinstance(packet, p.Connect) and sender is Role.CLIENT:
        return Rule.CONNECT_IS_SENT_ONCE, "a second CONNECT"
    if isinstance(packet, p.ConnAck) and sender is Role.SERVER:
        return Rule.CONNACK_IS_SENT_ONCE, "a second CONNACK"
    if state is State.CONNECTING and sender is Role.SERVER:
        return Rule.CONNACK_IS_FIRST, f"{name} before CONNACK"
    return Rule.DIRECTION, f"a {sender.value} does not send {name}"
