"""The codec as a whole: what it writes it reads, and nothing it reads can make it fail in another way."""

from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edge.mqtt import (
    ConnAck,
    Connect,
    Packet,
    Properties,
    ProtocolError,
    Publish,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Version,
    Will,
    decode_packet,
    encode,
    encode_publish_head,
)
from edge.mqtt.connection import Connection, Role
from edge.mqtt.primitives import decode_variable_integer, encode_variable_integer, variable_integer_bytes
from tests.support.mqtt_packets import packets, publishes
from tests.support.mqtt_vectors import vectors

VERSIONS = [Version.V31, Version.V311, Version.V5]
versions = st.sampled_from(VERSIONS)
any_packet: st.SearchStrategy[tuple[Version, Packet]] = versions.flatmap(
    lambda version: st.tuples(st.just(version), packets(version))
)
MALFORMED_SEEDS = [(vector.version, vector.frame) for vector in vectors()]


def split(frame: bytes) -> tuple[int, bytes]:
    length = decode_variable_integer(frame, 1, len(frame))
    assert length is not None
    return frame[0], frame[1 + length[1] :]


@given(any_packet)
@settings(max_examples=300)
def test_what_is_written_is_read_back(drawn: tuple[Version, Packet]) -> None:
    version, packet = drawn
    frame = encode(packet, version)
    first_byte, body = split(frame)
    length = decode_variable_integer(frame, 1, len(frame))
    assert length is not None
    assert length == (len(body), variable_integer_bytes(len(body)))
    assert decode_packet(first_byte, body, version) == packet


@given(st.data(), versions)
@settings(max_examples=150)
def test_every_split_of_a_stream_gives_the_same_packets(data: st.DataObject, version: Version) -> None:
    sent: list[Packet] = [Connect("c", version=version), *data.draw(st.lists(publishes(version), max_size=4))]
    stream = b"".join(encode(packet, version) for packet in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    connection = Connection(Role.SERVER, max_connect_bytes=1 << 20)
    received: list[Packet] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if start < end:
            connection.receive_data(stream[start:end])
        while (packet := connection.next_packet()) is not None:
            received.append(packet)
            if isinstance(packet, Connect):
                connection.send(ConnAck())
    assert received == sent


@given(versions, st.binary(min_size=1, max_size=1), st.binary(max_size=60))
@settings(max_examples=500)
def test_random_bodies_raise_nothing_but_protocol_errors(version: Version, first: bytes, body: bytes) -> None:
    with suppress(ProtocolError):
        packet = decode_packet(first[0], body, version)
        unused = 0
        if isinstance(packet, Connect) and packet.version is Version.V31:
            unused = 0xF
        elif isinstance(packet, PubRel | Subscribe | Unsubscribe) and version is Version.V31:
            unused = 9
        assert split(encode(packet, version))[0] == first[0] & ~unused


@given(st.data())
@settings(max_examples=500)
def test_damaged_packets_raise_nothing_but_protocol_errors(data: st.DataObject) -> None:
    version, frame = data.draw(st.sampled_from(MALFORMED_SEEDS))
    damaged = bytearray(frame)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        damaged[position : position + data.draw(st.integers(0, 1))] = data.draw(st.binary(max_size=2))
        if not damaged:
            return
    with suppress(ProtocolError):
        decode_packet(damaged[0], bytes(damaged[2:]), version)


@given(st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=8))
def test_random_streams_end_in_packets_or_protocol_errors(chunks: list[bytes]) -> None:
    connection = Connection(Role.SERVER)
    try:
        for chunk in chunks:
            connection.receive_data(chunk)
            assert connection.next_packet() is None or connection.version in VERSIONS
    except ProtocolError:
        assert connection.next_packet() is None


@given(st.integers(0, 268_435_455))
@example(127)
@example(128)
@example(16_383)
@example(16_384)
@example(2_097_151)
@example(2_097_152)
@example(268_435_455)
def test_variable_integers_are_read_back_in_as_many_bytes(value: int) -> None:
    encoded = encode_variable_integer(value)
    assert decode_variable_integer(encoded, 0, len(encoded)) == (value, len(encoded))
    assert len(encoded) == variable_integer_bytes(value)
    for short in range(len(encoded)):
        assert decode_variable_integer(encoded, 0, short) is None


def test_the_boundaries_of_variable_integers_are_those_of_the_table_in_the_specification() -> None:
    table = {0: "00", 127: "7f", 128: "8001", 16_383: "ff7f", 16_384: "808001", 2_097_151: "ffff7f"}
    table |= {2_097_152: "80808001", 268_435_455: "ffffff7f", 321: "c102"}
    assert {value: encode_variable_integer(value).hex() for value in table} == table


@pytest.mark.parametrize("value", [-1, 268_435_456])
def test_numbers_that_do_not_fit_are_refused(value: int) -> None:
    with pytest.raises(ProtocolError, match=r"not in 0\.\.268435455"):
        encode_variable_integer(value)


def test_a_payload_is_a_view_of_what_was_received() -> None:
    first_byte, body = split(encode(Publish("a/b", b"hello")))
    packet = decode_packet(first_byte, body)
    assert isinstance(packet, Publish)
    assert isinstance(packet.payload, memoryview)
    assert packet.payload.obj is body
    assert bytes(packet.payload) == b"hello"


def test_bodies_may_be_any_buffer() -> None:
    first_byte, body = split(encode(Connect("id", username="u", password=b"p", will=Will("w", b"x"))))
    expected = decode_packet(first_byte, body)
    assert decode_packet(first_byte, bytearray(body)) == expected
    assert decode_packet(first_byte, memoryview(body)) == expected


def test_the_head_of_a_publish_and_its_payload_make_the_packet() -> None:
    packet = Publish("a/b", memoryview(b"x" * 5000), qos=1, packet_id=9)
    assert encode_publish_head(packet) + packet.payload == encode(packet)


BAD_PACKETS: list[tuple[str, Packet, Version]] = [
    ("MQTT-3.3.2-2", Publish("a/#"), Version.V311),
    ("MQTT-4.7.3-1", Publish(""), Version.V311),
    ("MQTT-1.5.3-2", Publish("a\0b"), Version.V311),
    ("MQTT-1.5.3-1", Publish("a\ud800b"), Version.V311),
    ("MQTT-4.7.3-3", Publish("a" * 65_536), Version.V311),
    ("MQTT-3.3.1-4", Publish("a", qos=3, packet_id=1), Version.V311),
    ("MQTT-3.3.1-2", Publish("a", dup=True), Version.V311),
    ("MQTT-2.3.1-1", Publish("a", qos=1), Version.V311),
    ("MQTT-2.3.1-5", Publish("a", packet_id=1), Version.V311),
    ("MQTT-4.8.0-1", Publish("a", qos=1, packet_id=65_536), Version.V311),
    ("MQTT-3.1.3-8", Connect("", clean_start=False), Version.V311),
    ("MQTT-3.1.3-8", Connect("", version=Version.V31), Version.V311),
    ("MQTT-3.1.2-22", Connect("c", password=b"p"), Version.V311),
    ("MQTT-3.1.2-14", Connect("c", will=Will("w", qos=3)), Version.V311),
    ("MQTT-3.3.2-2", Connect("c", will=Will("+")), Version.V311),
    ("MQTT-4.8.0-1", Connect("c", keep_alive_s=65_536), Version.V311),
    ("MQTT-4.7.3-3", Connect("c", username="u", password=bytes(65_536)), Version.V311),
    ("MQTT-3.2.2-4", ConnAck(True, ReasonCode.NOT_AUTHORIZED), Version.V311),
    ("MQTT-3.8.3-3", Subscribe(1, ()), Version.V311),
    ("MQTT-3.8.3-4", Subscribe(1, (Subscription("a", 3),)), Version.V311),
    ("MQTT-4.7.1-2", Subscribe(1, (Subscription("#/a"),)), Version.V311),
    ("MQTT-3.8.3-5", Subscribe(1, (Subscription("a", retain_handling=3),)), Version.V5),
    ("MQTT-3.8.3-4", Subscribe(1, (Subscription("$share/g/a", no_local=True),)), Version.V5),
    ("MQTT-3.9.3-2", SubAck(1, (ReasonCode.BANNED,)), Version.V5),
    ("MQTT-3.3.2-8", Publish("a", properties=Properties(topic_alias=0)), Version.V5),
    ("MQTT-4.13.1-1", Publish("a", properties=Properties(server_keep_alive_s=1)), Version.V5),
    ("MQTT-4.13.1-1", ConnAck(properties=Properties(maximum_qos=2)), Version.V5),
    ("MQTT-4.13.1-1", Connect(version=Version.V5, properties=Properties(receive_maximum=65_536)), Version.V5),
]


@pytest.mark.parametrize(("statement", "packet", "version"), BAD_PACKETS)
def test_what_may_not_be_sent_is_not_written(statement: str, packet: Packet, version: Version) -> None:
    with pytest.raises(ProtocolError) as refused:
        encode(packet, version)
    assert refused.value.statement == f"[{statement}]"


def test_what_a_version_does_not_have_is_left_out() -> None:
    rich = Publish("a", b"x", properties=Properties(content_type="text"))
    assert encode(rich, Version.V311) == encode(Publish("a", b"x"), Version.V311)
    assert encode(ConnAck(True), Version.V31) == bytes.fromhex("20020000")
    assert encode(SubAck(1, (ReasonCode.NOT_AUTHORIZED,)), Version.V311) == bytes.fromhex("9003000180")


@pytest.mark.parametrize(
    ("reason", "code"),
    [
        (ReasonCode.SERVER_BUSY, 3),
        (ReasonCode.BANNED, 5),
        (ReasonCode.NOT_AUTHORIZED, 5),
        (ReasonCode.QUOTA_EXCEEDED, 3),
    ],
)
def test_a_refusal_becomes_the_nearest_return_code(reason: ReasonCode, code: int) -> None:
    assert encode(ConnAck(False, reason))[3] == code


def test_properties_show_only_what_is_given() -> None:
    assert repr(Properties(topic_alias=3)) == "Properties(topic_alias=3)"
    assert repr(Properties()) == "Properties()"
