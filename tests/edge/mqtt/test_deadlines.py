"""Keep-alive and handshake, on a clock that is a number."""

import pytest

from edge.mqtt import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    Properties,
    ProtocolError,
    Publish,
    ReasonCode,
    Version,
)
from edge.mqtt.connection import State
from tests.support.mqtt_pair import Pair


def connected(keep_alive_s: int = 60, version: Version = Version.V311) -> Pair:
    pair = Pair()
    pair.tell(100.0)
    pair.connect(Connect("c", keep_alive_s=keep_alive_s, version=version))
    pair.tell(100.0)
    return pair


def test_nothing_is_timed_before_the_time_is_told() -> None:
    pair = Pair()
    assert pair.server.next_deadline() is None
    pair.tell(100.0)
    assert pair.server.next_deadline() == 105.0


def test_a_stranger_that_says_nothing_is_shown_the_door() -> None:
    pair = Pair(handshake_timeout_s=3.0)
    pair.server.handle_deadline(100.0)
    pair.server.handle_deadline(102.9)
    with pytest.raises(ProtocolError, match="no CONNECT within 3 s"):
        pair.server.handle_deadline(103.0)
    assert pair.server.state is State.CLOSED
    assert pair.server.next_deadline() is None


def test_trickling_does_not_extend_the_handshake() -> None:
    pair = Pair()
    pair.server.handle_deadline(100.0)
    for second, byte in enumerate(bytes.fromhex("10 0c 00 04")):
        pair.server.receive_data(bytes((byte,)))
        assert pair.server.next_packet() is None
        pair.server.handle_deadline(101.0 + second)
    with pytest.raises(ProtocolError, match="no CONNECT"):
        pair.server.handle_deadline(105.0)


def test_a_server_that_does_not_answer_is_given_up() -> None:
    pair = Pair()
    pair.client.handle_deadline(100.0)
    pair.send(pair.client, Connect("c"))
    with pytest.raises(ProtocolError, match="no CONNACK within 5 s"):
        pair.client.handle_deadline(105.0)


def test_a_silent_client_pings_in_time() -> None:
    pair = connected()
    assert pair.client.next_deadline() == 145.0
    pair.client.handle_deadline(144.9)
    assert pair.carry(pair.client) == []
    pair.client.handle_deadline(145.0)
    assert pair.carry(pair.client) == [PingReq()]


def test_a_busy_client_does_not_ping_while_it_is_answered() -> None:
    pair = connected()
    for now in range(110, 400, 10):
        pair.send(pair.client, Publish("a"))
        pair.send(pair.server, Publish("b"))
        pair.tell(float(now))
    assert pair.client.next_deadline() == 435.0


def test_a_client_that_only_sends_pings_to_learn_whether_anybody_listens() -> None:
    pair = connected()
    for now in (110.0, 120.0, 130.0, 140.0, 145.0):
        pair.send(pair.client, Publish("a"))
        pair.client.handle_deadline(now)
    assert pair.carry(pair.client) == [PingReq()]


def test_an_answered_ping_starts_the_next_period() -> None:
    pair = connected()
    pair.client.handle_deadline(145.0)
    pair.carry(pair.client)
    pair.send(pair.server, PingResp())
    pair.client.handle_deadline(146.0)
    assert pair.client.next_deadline() == 190.0


def test_an_unanswered_ping_ends_the_connection() -> None:
    pair = connected()
    pair.client.handle_deadline(145.0)
    assert pair.client.next_deadline() == 190.0
    with pytest.raises(ProtocolError, match=r"nothing received for 90\.0 s \(keep alive 60 s\)"):
        pair.client.handle_deadline(190.0)
    assert pair.client.state is State.CLOSED


def test_the_server_waits_one_and_a_half_times_the_keep_alive() -> None:
    pair = connected()
    assert pair.server.next_deadline() == 190.0
    pair.server.handle_deadline(189.9)
    with pytest.raises(ProtocolError) as gone:
        pair.server.handle_deadline(190.0)
    assert gone.value.statement == "[MQTT-3.1.2-24]"
    assert pair.server.data_to_send() == []


def test_version_5_says_that_the_keep_alive_ran_out() -> None:
    pair = connected(version=Version.V5)
    with pytest.raises(ProtocolError) as gone:
        pair.server.handle_deadline(190.0)
    assert gone.value.statement == "[MQTT-3.1.2-22]"
    assert b"".join(pair.server.data_to_send()) == bytes.fromhex("e0 01 8d")


def test_half_a_packet_is_no_sign_of_life() -> None:
    pair = connected(10)
    pair.server.receive_data(b"\x30")
    assert pair.server.next_packet() is None
    pair.server.handle_deadline(114.0)
    with pytest.raises(ProtocolError):
        pair.server.handle_deadline(115.0)


def test_a_ping_keeps_the_server_waiting() -> None:
    pair = connected(10)
    pair.send(pair.client, PingReq())
    pair.server.handle_deadline(112.0)
    assert pair.server.next_deadline() == 127.0


def test_keep_alive_0_switches_it_off() -> None:
    pair = connected(0)
    assert pair.client.next_deadline() is None
    assert pair.server.next_deadline() is None
    pair.tell(1e9)


def test_the_servers_keep_alive_counts() -> None:
    pair = Pair()
    pair.tell(0.0)
    pair.connect(Connect("c", version=Version.V5), ConnAck(properties=Properties(server_keep_alive_s=10)))
    pair.tell(0.0)
    assert pair.client.next_deadline() == 7.5
    assert pair.server.next_deadline() == 15.0


def test_a_refused_connection_has_no_deadline() -> None:
    pair = Pair()
    pair.tell(0.0)
    pair.connect(connack=ConnAck(False, ReasonCode.NOT_AUTHORIZED))
    assert pair.client.next_deadline() is None
    pair.tell(1e9)
