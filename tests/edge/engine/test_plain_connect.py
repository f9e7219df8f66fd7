"""The decoder of CONNECT in C agrees with the one in Python, for every packet that it accepts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edge.engine.connect_calls import connect_of
from edge.engine.engine import engine_of
from edge.mqtt import Connect, Properties, ProtocolError, Version, Will, decode_packet, encode

V5 = Version.V5
ENGINE = engine_of()
CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=["Cs"])
TEXTS = st.text(CHARACTERS, max_size=20)
NAMES = st.text(st.characters(exclude_characters="\0+#", exclude_categories=["Cs"]), min_size=1, max_size=20)
WILLS = st.builds(Will, NAMES, st.binary(max_size=20), st.integers(0, 2), st.booleans())
UINT16, UINT32, BITS = st.integers(0, 0xFFFF), st.integers(0, 0xFFFF_FFFF), st.integers(0, 1)
PROPERTIES = st.builds(
    Properties,
    session_expiry_interval_s=st.none() | UINT32,
    receive_maximum=st.none() | st.integers(1, 0xFFFF),
    maximum_packet_size_bytes=st.none() | st.integers(1, 0xFFFF_FFFF),
    topic_alias_maximum=st.none() | UINT16,
    request_response_information=st.none() | BITS,
    request_problem_information=st.none() | BITS,
)


def packets(version: Version, properties: st.SearchStrategy[Properties]) -> st.SearchStrategy[Connect]:
    def build(
        username: str | None, password: bytes | None, will: Will | None, properties: Properties, name: str
    ) -> Connect:
        if username is None and version != V5:
            password = None
        return Connect(name, True, 300, username, password, will, version, properties)

    return st.builds(
        build, st.none() | TEXTS, st.none() | st.binary(max_size=20), st.none() | WILLS, properties, TEXTS
    )


PLAIN = packets(Version.V311, st.just(Properties())) | packets(V5, PROPERTIES)


def plain(packet: bytes) -> Connect | None:
    fields = ENGINE.plain_connect(packet)
    return None if fields is None else connect_of(fields)


def decoded(packet: bytes) -> Connect | None:
    """The packet by the decoder in Python; None: it is invalid."""
    try:
        found = decode_packet(packet[0], packet[2 if packet[1] < 0x80 else 3 :])
    except ProtocolError:
        return None
    assert isinstance(found, Connect)
    return found


@given(PLAIN)
def test_every_usual_packet_is_accepted(packet: Connect) -> None:
    data = encode(packet, packet.version)
    assert plain(data) == packet == decoded(data)


@given(PLAIN, st.data())
@example(Connect("a", version=V5), None)
def test_a_changed_or_cut_packet_is_decoded_equally_or_left_to_python(
    packet: Connect, data: st.DataObject | None
) -> None:
    whole = bytearray(encode(packet, packet.version))
    if data is not None:
        for _ in range(data.draw(st.integers(0, 3))):
            whole[data.draw(st.integers(2, len(whole) - 1))] = data.draw(st.integers(0, 255))
    # a packet of another length than its header says is never handed over by the parser
    found = plain(bytes(whole))
    assert found is None or found == decoded(bytes(whole))


@pytest.mark.parametrize(
    "packet",
    [
        Connect("a", version=Version.V31),
        Connect("a", will=Will("t", b"", properties=Properties(will_delay_interval_s=1)), version=V5),
        Connect("a", version=V5, properties=Properties(user=(("a", "b"),))),
        Connect("a", version=V5, properties=Properties(authentication_method="SCRAM-SHA-256")),
    ],
    ids=["MQTT 3.1", "properties of a will", "a user property", "an authentication method"],
)
def test_other_forms_are_left_to_python(packet: Connect) -> None:
    data = encode(packet, packet.version)
    assert plain(data) is None
    assert decoded(data) == packet


@pytest.mark.parametrize("version", [Version.V311, V5])
def test_a_packet_that_is_cut_is_left_to_python(version: Version) -> None:
    properties = Properties(receive_maximum=5) if version == V5 else Properties()
    packet = Connect("abc", True, 60, "ann", b"x", Will("t", b"gone"), version, properties)
    data = encode(packet, version)
    assert plain(data) == packet
    for length in range(3, len(data)):
        assert plain(data[:length]) is None
        assert plain(bytes((data[0], length - 2)) + data[2:length]) is None
    assert plain(data + b"x") is None


HEAD = b"\0\4MQTT\4\2\0\0"


@pytest.mark.parametrize(
    "body",
    [
        HEAD + b"\0\3a\0b",
        HEAD + b"\0\1\xff",
        HEAD + b"\0\3\xed\xa0\x80",
        b"\0\4MQTT\4\0\0\0\0\0",
        b"\0\4MQTT\4\3\0\0\0\1a",
        b"\0\4MQTT\4\x42\0\0\0\1a\0\1x",
        b"\0\4MQTT\4\x0a\0\0\0\1a",
        b"\0\4MQTT\4\x22\0\0\0\1a",
        b"\0\4MQTT\4\x1e\0\0\0\1a\0\1t\0\0",
        b"\0\4MQTT\4\6\0\0\0\1a\0\1+\0\0",
        b"\0\4MQTT\4\6\0\0\0\1a\0\0\0\0",
        b"\0\4MQTT\6\2\0\0\0\1a",
        b"\0\4MQTS\4\2\0\0\0\1a",
        b"\0\4MQTT\5\2\0\0\3\x21\0\0\0\1a",
        b"\0\4MQTT\5\2\0\0\5\x27\0\0\0\0\0\1a",
        b"\0\4MQTT\5\2\0\0\2\x17\2\0\1a",
        b"\0\4MQTT\5\2\0\0\4\x17\1\x17\1\0\1a",
        b"\0\4MQTT\5\2\0\0\x82\0\x17\1\0\1a",
        b"\0\4MQTT\5\2\0\0\1\x17\0\1a",
    ],
    ids=[
        "NUL", "no UTF-8", "surrogate", "no identifier", "reserved flag", "password without user",
        "Will QoS without will", "Will Retain without will", "Will QoS 3", "wildcard in will topic",
        "empty will topic", "level", "name", "Receive Maximum 0", "Maximum Packet Size 0",
        "Request Problem Information 2", "property twice", "long length", "cut property",
    ],
)  # fmt: skip
def test_an_invalid_packet_is_left_to_python(body: bytes) -> None:
    data = bytes((0x10, len(body))) + body
    assert plain(data) is None
    assert decoded(data) is None
