"""Connection without I/O: packets permitted in each state, limits, and packets sent before closing."""

from typing import Any

import pytest

from edge.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Properties,
    ProtocolError,
    PubAck,
    Publish,
    PubRel,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    connection,
    encode,
    primitives,
)
from edge.mqtt.connection import Connection, Role, State
from tests.support.mqtt_pair import Pair, received

SUBSCRIBE = Subscribe(1, (Subscription("a/#", 1),))


def test_both_sides_walk_through_the_same_states() -> None:
    pair = Pair()
    assert (pair.client.state, pair.server.state) == (State.OPENING, State.OPENING)
    assert pair.send(pair.client, Connect("c")) == [Connect("c")]
    assert (pair.client.state, pair.server.state) == (State.CONNECTING, State.CONNECTING)
    assert pair.send(pair.server, ConnAck()) == [ConnAck()]
    assert (pair.client.state, pair.server.state) == (State.CONNECTED, State.CONNECTED)
    assert pair.send(pair.client, Disconnect()) == [Disconnect()]
    assert (pair.client.state, pair.server.state) == (State.CLOSED, State.CLOSED)


def test_packets_travel_both_ways() -> None:
    pair = Pair().connect()
    assert pair.send(pair.client, SUBSCRIBE, PingReq()) == [SUBSCRIBE, PingReq()]
    granted = SubAck(1, (ReasonCode.GRANTED_QOS_1,))
    message = Publish("a/b", b"x", qos=1, packet_id=7)
    assert pair.send(pair.server, granted, PingResp(), message) == [granted, PingResp(), message]
    assert pair.send(pair.client, PubAck(7)) == [PubAck(7)]


def refusal(connection: Connection, *data: bytes) -> ProtocolError:
    for chunk in data:
        connection.receive_data(chunk)
    with pytest.raises(ProtocolError) as refused:
        received(connection)
    assert connection.state is State.CLOSED
    assert connection.next_packet() is None, "nothing is handed out after an error"
    return refused.value


def refused_to_send(connection: Connection, packet: Packet) -> str:
    state = connection.state
    with pytest.raises(ProtocolError) as refused:
        connection.send(packet)
    assert connection.state is state
    assert connection.data_to_send() == []
    return refused.value.statement


def test_the_first_packet_is_connect() -> None:
    assert refusal(Connection(Role.SERVER), encode(PingReq())).statement == "[MQTT-3.1.0-1]"
    assert refused_to_send(Connection(Role.CLIENT), PingReq()) == "[MQTT-3.1.0-1]"


def test_another_first_packet_is_refused_by_its_header_alone() -> None:
    assert refusal(Connection(Role.SERVER), b"\x30\xff\x7f").statement == "[MQTT-3.1.0-1]"


def test_a_server_of_another_kind_is_told_by_its_first_bytes() -> None:
    client = Connection(Role.CLIENT)
    client.send(Connect("c"))
    assert refusal(client, b"220 mail.example ESMTP\r\n").statement == "[MQTT-3.2.0-1]"


def test_a_browser_at_the_door_is_told_by_its_first_byte() -> None:
    assert refusal(Connection(Role.SERVER), b"GET / HTTP/1.1\r\n").statement == "[MQTT-2.2.2-2]"


def test_a_tls_client_on_a_plain_port_is_named_in_the_error() -> None:
    """A TLS record begins as a CONNECT of three bytes would."""
    client_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    assert "a TLS handshake instead of CONNECT" in str(refusal(Connection(Role.SERVER), client_hello))


def test_a_second_connect_is_refused() -> None:
    pair = Pair().connect()
    assert refused_to_send(pair.client, Connect("c")) == "[MQTT-3.1.0-2]"
    assert refusal(pair.server, encode(Connect("c"))).statement == "[MQTT-3.1.0-2]"


def test_the_servers_first_packet_is_connack() -> None:
    pair = Pair()
    pair.send(pair.client, Connect("c"))
    assert refused_to_send(pair.server, Publish("a")) == "[MQTT-3.2.0-1]"
    assert refusal(pair.client, encode(Publish("a"))).statement == "[MQTT-3.2.0-1]"


def test_a_second_connack_is_refused() -> None:
    pair = Pair().connect(Connect("c", version=Version.V5))
    assert refused_to_send(pair.server, ConnAck()) == "[MQTT-3.2.0-2]"
    assert refusal(pair.client, encode(ConnAck(), Version.V5)).statement == "[MQTT-3.2.0-2]"


@pytest.mark.parametrize("packet", [ConnAck(), SubAck(1, (ReasonCode.SUCCESS,)), PingResp()], ids=repr)
def test_a_client_does_not_send_what_servers_send(packet: Packet) -> None:
    pair = Pair().connect()
    assert refused_to_send(pair.client, packet) == "[MQTT-4.8.0-1]"
    assert refusal(pair.server, encode(packet)).statement == "[MQTT-4.8.0-1]"


@pytest.mark.parametrize("packet", [SUBSCRIBE, PingReq(), Disconnect()], ids=lambda p: type(p).__name__)
def test_a_server_does_not_send_what_clients_send(packet: Packet) -> None:
    pair = Pair().connect()
    assert refused_to_send(pair.server, packet) == "[MQTT-4.8.0-1]"
    assert refusal(pair.client, encode(packet)).statement == "[MQTT-4.8.0-1]"


def test_nothing_is_sent_after_disconnect() -> None:
    pair = Pair().connect()
    pair.send(pair.client, Disconnect())
    assert refused_to_send(pair.client, PingReq()) == "[MQTT-3.14.4-2]"


def test_what_follows_a_disconnect_has_no_effect() -> None:
    pair = Pair().connect()
    pair.server.receive_data(encode(Disconnect()) + encode(Publish("a", b"late")))
    assert received(pair.server) == [Disconnect()]


def test_what_follows_connect_waits_for_the_answer() -> None:
    pair = Pair()
    pair.server.receive_data(encode(Connect("c")) + encode(SUBSCRIBE))
    pair.server.receive_data(encode(PingReq()))
    assert received(pair.server) == [Connect("c")]
    pair.server.send(ConnAck())
    assert received(pair.server) == [SUBSCRIBE, PingReq()]


def test_what_follows_a_refused_connect_has_no_effect() -> None:
    pair, no = Pair(), ConnAck(False, ReasonCode.NOT_AUTHORIZED)
    pair.client.send(Connect("c"))
    assert pair.send(pair.client, Publish("a", b"sneaky")) == [Connect("c")]
    assert pair.send(pair.server, no) == [no]
    assert (pair.client.state, pair.server.state) == (State.CLOSED, State.CLOSED)
    assert received(pair.server) == []


def test_a_client_need_not_wait_for_connack() -> None:
    pair = Pair()
    pair.client.send(Connect("c"))
    pair.client.send(Publish("a", b"x"))
    assert pair.carry(pair.client) == [Connect("c")]
    pair.server.send(ConnAck())
    assert received(pair.server) == [Publish("a", b"x")]


def test_the_end_of_the_file_closes_once_all_was_handed_out() -> None:
    pair = Pair().connect()
    pair.server.receive_data(encode(PingReq()) + b"\x30\x09half")
    pair.server.receive_data(b"")
    assert received(pair.server) == [PingReq()]
    assert pair.server.state is State.CLOSED


# ---- limits --------------------------------------------------------------------------------------


def test_a_stranger_may_send_less_than_a_client() -> None:
    server = Connection(Role.SERVER, max_connect_bytes=100, max_packet_bytes=1000)
    assert "exceeds 100 (max_connect_bytes)" in refusal(server, b"\x10\x63").detail


def test_a_packet_is_refused_by_its_header_before_its_body_is_kept() -> None:
    pair = Pair(max_packet_bytes=1000).connect()
    error = refusal(pair.server, b"\x30\xe6\x07")
    assert error.detail == "PUBLISH of 1001 bytes exceeds 1000 (max_packet_bytes)"
    assert error.reason_code is ReasonCode.PACKET_TOO_LARGE


def test_a_packet_of_the_largest_size_passes() -> None:
    pair = Pair(max_packet_bytes=1000).connect()
    largest = Publish("a", bytes(994))
    assert len(encode(largest)) == 1000
    assert pair.send(pair.client, largest) == [largest]


def test_the_limit_for_strangers_is_never_above_that_for_clients() -> None:
    assert Connection(Role.SERVER, max_packet_bytes=50).max_connect_bytes == 50


def test_the_peers_maximum_packet_size_is_respected() -> None:
    limited = Connect("c", version=Version.V5, properties=Properties(maximum_packet_size_bytes=100))
    pair = Pair().connect(limited)
    assert refused_to_send(pair.server, Publish("a", bytes(100))) == "[MQTT-3.2.2-15]"
    assert len(pair.send(pair.server, Publish("a", bytes(90)))) == 1


# ---- what is said before closing -------------------------------------------------------------------


def goodbye(connection: Connection) -> bytes:
    return b"".join(connection.data_to_send())


def test_an_unknown_version_is_answered_before_closing() -> None:
    server = Connection(Role.SERVER)
    refusal(server, bytes.fromhex("10 0c 0004 4d515454 06 02 003c 0000"))
    assert goodbye(server) == bytes.fromhex("20 02 00 01")


def test_a_refused_client_identifier_is_answered_before_closing() -> None:
    server = Connection(Role.SERVER)
    refusal(server, bytes.fromhex("10 0c 0004 4d515454 04 00 003c 0000"))
    assert goodbye(server) == bytes.fromhex("20 02 00 02")


def test_3_1_1_has_no_words_for_other_mistakes() -> None:
    server = Connection(Role.SERVER)
    refusal(server, bytes.fromhex("10 0c 0004 4d515454 04 03 003c 0000"))
    assert goodbye(server) == b""
    pair = Pair().connect()
    refusal(pair.server, b"\x36\x02")
    assert goodbye(pair.server) == b""


def test_version_5_says_why_it_closes() -> None:
    server = Connection(Role.SERVER)
    refusal(server, bytes.fromhex("10 0d 0004 4d515454 05 03 003c 00 0000"))
    assert goodbye(server) == bytes.fromhex("20 03 00 81 00")
    pair = Pair().connect(Connect("c", version=Version.V5))
    refusal(pair.server, b"\x36\x02")
    assert goodbye(pair.server) == bytes.fromhex("e0 01 81")
    pair = Pair().connect(Connect("c", version=Version.V5))
    refusal(pair.client, b"\x36\x02")
    assert goodbye(pair.client) == bytes.fromhex("e0 01 81")


# ---- MQTT 5 ----------------------------------------------------------------------------------------


def test_topic_aliases_are_resolved() -> None:
    pair = Pair().connect(
        Connect("c", version=Version.V5), ConnAck(properties=Properties(topic_alias_maximum=2))
    )
    named = Publish("plant/1/temp", b"1", properties=Properties(topic_alias=2))
    short = Publish("", b"2", properties=Properties(topic_alias=2))
    assert [p.topic for p in pair.send(pair.client, named, short) if isinstance(p, Publish)] == [
        "plant/1/temp",
        "plant/1/temp",
    ]


def test_topic_aliases_beyond_the_announced_are_refused() -> None:
    pair = Pair().connect(
        Connect("c", version=Version.V5), ConnAck(properties=Properties(topic_alias_maximum=2))
    )
    above = Publish("a", properties=Properties(topic_alias=3))
    assert refused_to_send(pair.client, above) == "[MQTT-3.3.2-9]"
    error = refusal(pair.server, encode(above, Version.V5))
    assert (error.statement, error.reason_code) == ("[MQTT-3.3.2-9]", ReasonCode.TOPIC_ALIAS_INVALID)


def test_an_alias_that_stands_for_nothing_is_refused() -> None:
    pair = Pair().connect(
        Connect("c", version=Version.V5), ConnAck(properties=Properties(topic_alias_maximum=2))
    )
    unknown = Publish("", properties=Properties(topic_alias=1))
    assert refusal(pair.server, encode(unknown, Version.V5)).reason_code is ReasonCode.PROTOCOL_ERROR


def test_a_client_sends_no_subscription_identifier() -> None:
    pair = Pair().connect(Connect("c", version=Version.V5))
    message = Publish("a", properties=Properties(subscription_identifiers=(1,)))
    assert refused_to_send(pair.client, message) == "[MQTT-3.3.4-6]"
    assert pair.send(pair.server, message) == [message]
    assert refusal(pair.server, encode(message, Version.V5)).statement == "[MQTT-3.3.4-6]"


def test_a_server_may_say_goodbye_but_sets_no_session_expiry() -> None:
    pair = Pair().connect(Connect("c", version=Version.V5))
    expiring = Disconnect(properties=Properties(session_expiry_interval_s=1))
    assert refused_to_send(pair.server, expiring) == "[MQTT-3.14.2-2]"
    taken_over = Disconnect(ReasonCode.SESSION_TAKEN_OVER)
    assert pair.send(pair.server, taken_over) == [taken_over]
    assert pair.client.state is State.CLOSED


def test_authentication_goes_back_and_forth_before_connack() -> None:
    method = Properties(authentication_method="M")
    step = Auth(ReasonCode.CONTINUE_AUTHENTICATION, method)
    pair = Pair()
    pair.send(pair.client, Connect("c", version=Version.V5, properties=method))
    assert pair.send(pair.server, step) == [step]
    assert pair.send(pair.client, step) == [step]
    assert refused_to_send(pair.client, Publish("a")) == "[MQTT-3.1.2-30]"
    assert pair.send(pair.server, ConnAck(properties=method)) == [ConnAck(properties=method)]
    assert pair.send(pair.client, Publish("a")) == [Publish("a")]


def test_an_authenticating_client_that_does_not_wait_is_refused() -> None:
    method = Properties(authentication_method="M")
    pair = Pair()
    pair.send(pair.client, Connect("c", version=Version.V5, properties=method))
    assert refusal(pair.server, encode(Publish("a"), Version.V5)).statement == "[MQTT-3.1.2-30]"


# ---- buffers ---------------------------------------------------------------------------------------


def test_bytes_may_arrive_one_by_one() -> None:
    pair = Pair().connect()
    message = Publish("a/b", bytes(range(256)) * 20, qos=1, packet_id=3)
    for byte in encode(message) + encode(PubRel(4)):
        pair.server.receive_data(bytes((byte,)))
    assert received(pair.server) == [message, PubRel(4)]


def test_a_payload_stays_valid_while_more_is_received() -> None:
    pair = Pair().connect()
    (first,) = pair.send(pair.client, Publish("a", b"first"))
    pair.send(pair.client, *[Publish("a", b"other")] * 50)
    assert isinstance(first, Publish)
    assert first.payload == b"first"


def test_what_is_received_in_a_foreign_buffer_is_copied() -> None:
    pair = Pair().connect()
    buffer = bytearray(encode(Publish("a", b"first")))
    pair.server.receive_data(memoryview(buffer))
    (packet,) = received(pair.server)
    buffer[:] = bytes(len(buffer))
    assert isinstance(packet, Publish)
    assert packet.payload == b"first"


def test_a_large_payload_is_queued_without_a_copy() -> None:
    pair = Pair().connect()
    payload = bytes(100_000)
    pair.client.send(Publish("a", payload))
    assert pair.client.bytes_to_send == len(encode(Publish("a", payload)))
    out = pair.client.data_to_send()
    assert out[-1] is payload
    assert pair.client.bytes_to_send == 0


def test_a_packet_in_many_chunks_is_looked_at_only_when_it_is_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[int] = []
    original = primitives.decode_variable_integer

    def counted(*arguments: Any) -> tuple[int, int] | None:
        looks.append(1)
        return original(*arguments)

    monkeypatch.setattr(connection, "decode_variable_integer", counted)
    pair = Pair().connect()
    looks.clear()
    frame = encode(Publish("a", bytes(100_000)))
    for start in range(0, len(frame), 100):
        pair.server.receive_data(frame[start : start + 100])
        packets = received(pair.server)
    assert [len(p.payload) for p in packets if isinstance(p, Publish)] == [100_000]
    assert len(looks) <= 4, "else a large packet costs the square of its size"
