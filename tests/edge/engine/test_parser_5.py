"""The C parser against the Python codec in MQTT 5: any bytes, cut anywhere, mean the same to both.

The model reads with edge.mqtt's codec and properties, and says in a few lines what a broker does with each
packet: what is stored, in which form, what is answered, and with which reason it ends.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    ProtocolError,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Version,
    decode_packet,
    encode,
    matches,
)
from edge.mqtt.packet_types import PacketType, check_flags
from edge.mqtt.primitives import (
    Body,
    decode_variable_integer,
    encode_string,
    encode_variable_integer,
    variable_integer_bytes,
)
from edge.mqtt.properties import In, decode_properties
from edge.mqtt.topic_filters import check_name
from ringbuf import FLAG_EXPIRY, FLAG_QOS, FLAG_RETAIN
from tests.support.examples import examples
from tests.support.frames import packets_of
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_packets import binaries, cut, names, packets, payloads, publishes, strings

V5 = Version.V5
PACKET_MAX_BYTES, RECEIVE_MAX, ALIAS_MAX = 20_000, 3, 4
HEARD = "heard/#"  # what somebody subscribes to
NOT_DECODED = {
    PacketType.CONNECT,  # a second one
    *(PacketType.CONNACK, PacketType.SUBACK, PacketType.UNSUBACK, PacketType.PINGRESP),  # of servers
}
LEFT_OUT = {PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.AUTH}  # what they do is another matter

Record = tuple[str, bytes, bytes, int, bool, bool]  # topic, properties, payload, QoS, RETAIN, expires


@dataclass
class Meaning:
    """Meaning of a stream of bytes after CONNECT."""

    records: list[Record] = field(default_factory=list)
    answers: list[Packet] = field(default_factory=list)
    ended: ReasonCode | None = None  # SUCCESS: without a word


class Ended(Exception):
    """The connection is closed."""

    def __init__(self, reason: ReasonCode) -> None:
        self.reason = reason


class Model:
    """A broker for one client that sends `data`."""

    def __init__(self, data: bytes) -> None:
        self.meaning = Meaning()
        self.data = data
        self.aliases: dict[int, str] = {}
        self.held: set[int] = set()
        try:
            while (found := self.frame()) is not None:
                self.serve(*found)
        except Ended as ended:
            self.meaning.ended = ended.reason
        except ProtocolError as error:
            self.meaning.ended = error.reason_code

    def frame(self) -> tuple[int, bytes] | None:
        """First byte and body of the next packet; None: it is not whole."""
        data = self.data
        found = decode_variable_integer(data, 1, len(data), V5) if data else None
        if found is None:
            return None
        length, size = found
        if size > variable_integer_bytes(length):
            raise Ended(ReasonCode.MALFORMED_PACKET)
        if 1 + size + length > PACKET_MAX_BYTES:
            raise Ended(ReasonCode.PACKET_TOO_LARGE)
        end = 1 + size + length
        if len(data) < end:
            return None
        self.data = data[end:]
        return data[0], data[1 + size : end]

    def serve(self, first: int, body: bytes) -> None:
        if first >> 4 == PacketType.PUBLISH:
            self.publish(first, Body(body, V5))
            return
        assume(first >> 4 not in LEFT_OUT)
        if first >> 4 in NOT_DECODED:
            raise Ended(ReasonCode.PROTOCOL_ERROR)
        packet = decode_packet(first, body, V5)
        match packet:
            case PingReq():
                self.meaning.answers.append(PingResp())
            case PubRec():
                if not packet.reason_code.failed:
                    self.meaning.answers.append(
                        PubRel(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
                    )
            case PubRel():
                known = packet.packet_id in self.held
                self.held.discard(packet.packet_id)
                self.meaning.answers.append(
                    PubComp(packet.packet_id)
                    if known
                    else PubComp(packet.packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND)
                )
            case PubAck() | PubComp():
                pass
            case Disconnect():
                raise Ended(ReasonCode.SUCCESS)
            case _:
                raise Ended(ReasonCode.PROTOCOL_ERROR)

    def publish(self, first: int, body: Body) -> None:
        check_flags(first, V5)
        qos = first >> 1 & 3
        name = body.string()
        identifier = body.uint16() if qos else 0
        if qos and not identifier:
            raise Ended(ReasonCode.MALFORMED_PACKET)
        section = bytes(body.rest())
        body = Body(section, V5)
        properties = decode_properties(body, In.PUBLISH)
        payload = bytes(body.rest())
        self.check(properties)
        topic = self.topic_of(name, properties.topic_alias)
        if qos and len(self.held) >= RECEIVE_MAX and identifier not in self.held:
            raise Ended(ReasonCode.RECEIVE_MAXIMUM_EXCEEDED)
        check_name(topic, V5)
        self.answer(qos, identifier, self.store(first, topic, payload, identifier, section, properties))

    def check(self, properties: Properties) -> None:
        if (properties.topic_alias or 0) > ALIAS_MAX:
            raise Ended(ReasonCode.TOPIC_ALIAS_INVALID)
        if properties.subscription_identifiers:
            raise Ended(ReasonCode.PROTOCOL_ERROR)

    def topic_of(self, name: str, alias: int | None) -> str:
        if name and alias is not None:
            self.aliases[alias] = name
        topic = name or self.aliases.get(alias or 0)
        if topic is None:
            raise Ended(ReasonCode.PROTOCOL_ERROR)
        return topic

    def store(
        self, first: int, topic: str, payload: bytes, identifier: int, section: bytes, properties: Properties
    ) -> ReasonCode:
        """Why it is not stored, or that it is."""
        qos = first >> 1 & 3
        reason = refusal(topic, payload, properties)
        if reason is not None:
            if qos == 2:
                self.held.discard(identifier)
            return reason
        if qos == 2 and identifier in self.held:
            return ReasonCode.SUCCESS
        if qos == 2:
            self.held.add(identifier)
        expires = properties.message_expiry_interval_s is not None
        self.meaning.records.append((topic, stored_form(section), payload, qos, bool(first & 1), expires))
        is_plain = qos == 2 or matches(HEARD, topic)  # PUBREC does not report that there is no subscriber
        return ReasonCode.SUCCESS if is_plain else ReasonCode.NO_MATCHING_SUBSCRIBERS

    def answer(self, qos: int, identifier: int, reason: ReasonCode) -> None:
        if qos:
            self.meaning.answers.append((PubAck, PubRec)[qos - 1](identifier, reason))


def refusal(topic: str, payload: bytes, properties: Properties) -> ReasonCode | None:
    if topic.startswith("$"):
        return ReasonCode.NOT_AUTHORIZED
    if properties.payload_format_indicator:
        try:
            payload.decode()
        except UnicodeDecodeError:
            return ReasonCode.PAYLOAD_FORMAT_INVALID
    return None


_READ = {1: Body.byte, 2: Body.uint32, 3: Body.string, 8: Body.string, 9: Body.binary, 0x23: Body.uint16}


def stored_form(section: bytes) -> bytes:
    """Valid properties as a record has them: the expiry interval in front, no alias, the rest as it came."""
    body = Body(section, V5)
    part = body.part(body.variable_integer())
    whole = section[len(section) - len(body) - len(part) : len(section) - len(body)]
    expiry, rest = b"", b""
    while part:
        begin = len(whole) - len(part)
        identifier = part.variable_integer()
        if identifier == 0x26:
            part.string()
            part.string()
        else:
            _READ[identifier](part)
        piece = whole[begin : len(whole) - len(part)]
        if identifier == 2:
            expiry = piece
        elif identifier != 0x23:
            rest += piece
    kept = expiry + rest
    return encode_variable_integer(len(kept), V5) + kept if kept else b""


def meaning_of(data: bytes, cuts: list[int]) -> Meaning:
    """The same, from the engine and the broker, fed the pieces between `cuts`."""
    limits = EngineLimits(packet_max_bytes=PACKET_MAX_BYTES, receive_max=RECEIVE_MAX, alias_max=ALIAS_MAX)
    with Bench(engine=limits) as bench:
        bench.client("listens").subscribe(HEARD)
        client = bench.wire(V5)
        client.send(Connect("c", version=V5))
        assert isinstance(client.received()[0], ConnAck)
        out = b""
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            client.raw(data[begin:end])
            out += client.bytes_received()
        meaning = Meaning(records_of(bench), packets_of(out, V5))
        if not client.is_open:
            last = meaning.answers[-1] if meaning.answers else None
            meaning.ended = last.reason_code if isinstance(last, Disconnect) else ReasonCode.SUCCESS
        meaning.answers = [answer for answer in meaning.answers if not isinstance(answer, Disconnect)]
        return meaning


def records_of(bench: Bench) -> list[Record]:
    reader = bench.partition.ring.reader(start="oldest")
    found = []
    while (record := reader.poll()) is not None:
        flags = record.flags
        found.append(
            (record.key.decode(), record.properties, record.bytes(), flags & FLAG_QOS,
             bool(flags & FLAG_RETAIN), bool(flags & FLAG_EXPIRY))
        )  # fmt: skip
    del record
    reader.close()
    return found


# ---- streams ----


def string(text: str) -> bytes:
    return encode_string(text, V5)


TOPICS = st.one_of(st.sampled_from(["t", "heard", "heard/t", "$no"]), names)
SMALL_IDS = st.integers(1, 5)
UINT32 = st.binary(min_size=4, max_size=4)
PIECES = st.one_of(
    st.integers(0, 1).map(lambda value: bytes((1, value))),
    UINT32.map(lambda value: b"\2" + value),
    strings.map(lambda text: b"\3" + string(text)),
    names.map(lambda text: b"\x08" + string(text)),
    binaries.map(lambda data: b"\x09" + len(data).to_bytes(2) + data),
    st.tuples(strings, strings).map(lambda pair: b"\x26" + string(pair[0]) + string(pair[1])),
    st.integers(1, ALIAS_MAX).map(lambda alias: b"\x23\0" + bytes((alias,))),
)
BAD_PIECES = st.one_of(
    st.integers(2, 255).map(lambda value: bytes((1, value))),
    st.sampled_from([0, ALIAS_MAX + 1, 65_535]).map(lambda alias: b"\x23" + alias.to_bytes(2)),
    st.integers(0, 0xFFF_FFFF).map(lambda value: b"\x0b" + encode_variable_integer(value, V5)),
    st.sampled_from(["+", "a/#", "#/b", "a+b"]).map(lambda text: b"\x08" + string(text)),
    st.tuples(st.sampled_from(b"\3\x08\x26\x1f"), binaries).map(
        lambda pair: bytes((pair[0],)) + len(pair[1]).to_bytes(2) + pair[1]
    ),
    st.binary(min_size=1, max_size=6),
)


def once(pieces: list[bytes]) -> list[bytes]:
    """The first of each that may stand once."""
    users = [piece for piece in pieces if piece[0] == 0x26]
    others = {piece[0]: piece for piece in reversed(pieces) if piece[0] != 0x26}
    return [piece for piece in pieces if piece in users or others[piece[0]] is piece]


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A PUBLISH whose properties come in any order, with an alias or without, mostly right."""
    pieces = once(draw(st.lists(PIECES, max_size=6)))
    if draw(st.integers(0, 9)) == 0:
        pieces.insert(draw(st.integers(0, len(pieces))), draw(BAD_PIECES))
    if pieces and draw(st.integers(0, 14)) == 0:
        pieces.append(draw(st.sampled_from(pieces)))
    aliased = any(piece[0] == 0x23 for piece in pieces)
    name = "" if aliased and draw(st.booleans()) else draw(TOPICS)
    qos = draw(st.integers(0, 2))
    section = b"".join(pieces)
    body = string(name) + (draw(SMALL_IDS).to_bytes(2) if qos else b"")
    body += encode_variable_integer(len(section), V5) + section
    body += draw(st.one_of(strings.map(str.encode), payloads))
    first = 0x30 | qos << 1 | draw(st.integers(0, 1)) | (8 if qos and draw(st.booleans()) else 0)
    return bytes((first,)) + encode_variable_integer(len(body), V5) + body


ACKS = packets(V5).filter(lambda packet: isinstance(packet, PubAck | PubRec | PubRel | PubComp | PingReq))
RELEASES = SMALL_IDS.map(PubRel)
ANY = packets(V5).filter(lambda packet: PacketType(encode(packet, V5)[0] >> 4) not in LEFT_OUT)
PARTS = st.one_of(
    frames(),
    frames(),
    frames(),
    st.one_of(ACKS, RELEASES, publishes(V5), ANY).map(lambda packet: encode(packet, V5)),
)
STREAMS = st.lists(PARTS, max_size=8)


@st.composite
def spoiled(draw: st.DrawFn) -> list[bytes]:
    """A stream in which some bytes of one packet are not what they were."""
    parts = draw(st.lists(PARTS, min_size=1, max_size=5))
    at = draw(st.integers(0, len(parts) - 1))
    data = bytearray(parts[at])
    how = draw(st.integers(0, 3))
    if how == 0:
        data[0] = draw(st.one_of(st.integers(0, 255), st.integers(0x30, 0x7F)))
    elif how == 1:
        data[1] = draw(st.integers(0, 255))
    else:
        place = draw(st.integers(1, min(len(data), 40)))
        data[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return [*parts[:at], bytes(data), *parts[at + 1 :]]


ALL = settings(deadline=None, suppress_health_check=list(HealthCheck))


@settings(ALL, max_examples=examples(60))
@given(cut(STREAMS))
def test_every_cut_of_a_stream_means_what_the_codec_says(stream: tuple[bytes, list[int]]) -> None:
    data, cuts = stream
    expected = Model(data).meaning
    assert meaning_of(data, cuts) == expected


@settings(ALL, max_examples=examples(80))
@given(cut(spoiled()))
def test_spoiled_bytes_end_a_connection_where_and_for_what_the_codec_refuses_them(
    stream: tuple[bytes, list[int]],
) -> None:
    data, cuts = stream
    expected = Model(data).meaning
    assert meaning_of(data, cuts) == expected


@settings(ALL, max_examples=examples(50))
@given(st.binary(max_size=80))
def test_what_utf8_is_the_parser_knows_like_python(payload: bytes) -> None:
    properties = Properties(payload_format_indicator=1)
    data = encode(Publish("t", payload, 1, packet_id=1, properties=properties), V5)
    assert meaning_of(data, []) == Model(data).meaning
