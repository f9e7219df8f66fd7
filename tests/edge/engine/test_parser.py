"""The C parser against the Python codec: any bytes, cut anywhere, mean the same to both.

The model is edge.mqtt's decoder and a few lines that say what a broker does with each packet.  The subject is
the engine with a broker behind it, fed the same bytes in pieces.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.mqtt import (
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
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
    decode_packet,
    encode,
)
from edge.mqtt.primitives import decode_variable_integer
from tests.support.examples import examples
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_packets import cut, packets, publishes

PACKET_MAX_BYTES = 1 << 20
# The connection stays after these.
FROM_CLIENTS = (Publish, PubAck, PubRec, PubRel, PubComp, Subscribe, Unsubscribe, PingReq)


@dataclass
class Meaning:
    """Meaning of a stream of bytes after CONNECT."""

    records: list[tuple[str, bytes, int, bool]] = field(default_factory=list)
    answers: list[Packet] = field(default_factory=list)
    is_open: bool = True


def next_packet(data: bytes) -> tuple[Packet, bytes] | None:
    """The first packet and what is behind it; None: it is not whole."""
    if not data:
        return None
    found = decode_variable_integer(data, 1, len(data))
    if found is None:
        return None
    length, size = found
    if 1 + size + length > PACKET_MAX_BYTES:
        raise ValueError("too large")
    end = 1 + size + length
    return None if len(data) < end else (decode_packet(data[0], data[1 + size : end]), data[end:])


def model_of(data: bytes) -> Meaning:
    """Effects of `data` that a client sends, without deliveries to the client itself."""
    meaning, held = Meaning(), set[int]()
    while meaning.is_open:
        try:
            found = next_packet(data)
        except (ProtocolError, ValueError):
            meaning.is_open = False
            break
        if found is None:
            break
        packet, data = found
        if isinstance(packet, Publish):
            publish(meaning, packet, held)
        elif isinstance(packet, PubRel):
            held.discard(packet.packet_id)
        if (answer := answer_to(packet)) is not None:
            meaning.answers.append(answer)
        meaning.is_open = isinstance(packet, FROM_CLIENTS)
    return meaning


def publish(meaning: Meaning, packet: Publish, held: set[int]) -> None:
    """It is stored, unless it is the server's topic or was stored before."""
    again = packet.qos == 2 and packet.packet_id in held
    if again or packet.topic.startswith("$"):
        return
    meaning.records.append((packet.topic, bytes(packet.payload), packet.qos, packet.retain))
    if packet.qos == 2:
        held.add(packet.packet_id)


def answer_to(packet: Packet) -> Packet | None:
    """Answer of the broker to a packet."""
    match packet:
        case Publish(qos=1):
            return PubAck(packet.packet_id)
        case Publish(qos=2):
            return PubRec(packet.packet_id)
        case PubRec():
            return PubRel(packet.packet_id)
        case PubRel():
            return PubComp(packet.packet_id)
        case PingReq():
            return PingResp()
        case Subscribe():
            return SubAck(packet.packet_id, tuple(ReasonCode(s.qos) for s in packet.subscriptions))
        case Unsubscribe():
            return UnsubAck(packet.packet_id)
        case _:
            return None


def meaning_of(data: bytes, cuts: list[int]) -> Meaning:
    """The same, from the engine and the broker, fed the pieces between `cuts`."""
    with Bench() as bench:
        client = bench.client("c")
        answers: list[Packet] = []
        for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            client.raw(data[begin:end])
            answers += client.received()
        reader = bench.partition.ring.reader(start="oldest")
        records = []
        while (record := reader.poll()) is not None:
            records.append((record.key.decode(), record.bytes(), record.flags & 3, bool(record.flags & 4)))
        del record
        reader.close()
        answers = [answer for answer in answers if not isinstance(answer, Publish)]
        return Meaning(records, answers, client.is_open)


ANY = (*FROM_CLIENTS, Disconnect, Connect)
SMALL = publishes(Version.V311).filter(lambda packet: len(packet.payload) < 100)
CLIENT_PACKETS = st.one_of(
    SMALL,
    publishes(Version.V311),
    packets(Version.V311).filter(lambda packet: isinstance(packet, ANY)),
)
STREAMS = st.lists(CLIENT_PACKETS.map(encode), max_size=8)


@st.composite
def spoiled(draw: st.DrawFn) -> list[bytes]:
    """A stream in which one packet is no longer what it was: its type, flags, length, or any of its bytes."""
    parts = draw(st.lists(st.one_of(SMALL.map(encode), CLIENT_PACKETS.map(encode)), min_size=1, max_size=5))
    at = draw(st.integers(0, len(parts) - 1))
    data = bytearray(parts[at])
    how = draw(st.integers(0, 3))
    if how == 0:
        data[0] ^= draw(st.integers(1, 15))
    elif how == 1:
        data[0] = draw(st.integers(0, 255))
    elif how == 2:
        data[1] = draw(st.integers(0, 255))
    else:
        place = draw(st.integers(1, len(data)))
        data[place : place + draw(st.integers(0, 2))] = draw(st.binary(max_size=2))
    return [*parts[:at], bytes(data), *parts[at + 1 :]]


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(cut(STREAMS))
def test_every_cut_of_a_stream_means_what_the_codec_says(stream: tuple[bytes, list[int]]) -> None:
    data, cuts = stream
    assert meaning_of(data, cuts) == model_of(data)


@settings(max_examples=examples(120), deadline=None, suppress_health_check=list(HealthCheck))
@given(cut(spoiled()))
def test_spoiled_bytes_end_a_connection_exactly_where_the_codec_refuses_them(
    stream: tuple[bytes, list[int]],
) -> None:
    data, cuts = stream
    assert meaning_of(data, cuts) == model_of(data)


@settings(max_examples=examples(50), deadline=None, suppress_health_check=list(HealthCheck))
@given(cut(st.lists(st.binary(max_size=60), max_size=4)))
def test_any_bytes_at_all_are_survived(stream: tuple[bytes, list[int]]) -> None:
    data, cuts = stream
    assert meaning_of(data, cuts) == model_of(data)


def test_a_packet_longer_than_the_shared_buffer_is_put_together_from_its_pieces() -> None:
    payload = bytes(range(256)) * 2500  # 640,000 bytes: beyond what is carried in the shared buffer
    data = (
        encode(Publish("before", b"x")) + encode(Publish("long", payload, 1, packet_id=7)) + encode(PingReq())
    )
    for step in (1_000, 60_000, 65_536, 300_000):
        with Bench(capacity_bytes=1 << 23) as bench:
            client = bench.client("c")
            for begin in range(0, len(data), step):
                client.raw(data[begin : begin + step])
            assert client.received() == [PubAck(7), PingResp()]
            assert bench.records() == [("before", b"x"), ("long", payload)]
