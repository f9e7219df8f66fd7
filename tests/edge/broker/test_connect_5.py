"""CONNECT and CONNACK of MQTT 5: requests of clients, answers, and refusals."""

import pytest

from edge.auth.interfaces import ListenerPolicy
from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    Will,
)
from tests.support.mqtt_bench import Bench, Wire


def connack(bench: Bench, connect: Connect, listener: int = 0) -> tuple[Wire, ConnAck]:
    """Connection and CONNACK for a CONNECT."""
    wire = bench.wire(connect.version, listener)
    wire.send(connect)
    answer = wire.answer()
    assert isinstance(answer, ConnAck)
    return wire, answer


def connect5(client_id: str = "c", **fields: object) -> Connect:
    return Connect(client_id, version=Version.V5, **fields)  # type: ignore[arg-type]


def test_a_client_is_told_the_limits_that_hold_for_it_and_nothing_else() -> None:
    with Bench(engine=EngineLimits(packet_max_bytes=70_000, receive_max=7, alias_max=3)) as bench:
        wire, answer = connack(bench, connect5())
        assert answer == ConnAck(
            properties=Properties(receive_maximum=7, maximum_packet_size_bytes=70_000, topic_alias_maximum=3)
        )
        wire.send(PingReq())
        assert wire.answer() == PingResp()


def test_what_is_as_the_specification_has_it_is_not_said() -> None:
    with Bench(engine=EngineLimits(receive_max=65_535, alias_max=0)) as bench:
        _, answer = connack(bench, connect5(keep_alive_s=65_535))
        assert answer.properties == Properties(maximum_packet_size_bytes=1 << 20)


def test_a_listener_may_take_smaller_packets(bench: Bench) -> None:
    bench.broker.policies[2] = ListenerPolicy(allow_anonymous=True, packet_max_bytes=1000)
    _, answer = connack(bench, connect5(), listener=2)
    assert answer.properties.maximum_packet_size_bytes == 1000
    wire, answer = connack(bench, connect5("w", will=Will("t", bytes(1001))), listener=2)
    assert answer.reason_code is ReasonCode.PACKET_TOO_LARGE
    assert not wire.is_open


def test_a_client_without_an_identifier_is_told_its_own_and_may_keep_its_session(bench: Bench) -> None:
    wants = Properties(session_expiry_interval_s=60)
    wire, answer = connack(bench, connect5("", clean_start=False, properties=wants))
    assigned = answer.properties.assigned_client_identifier
    assert assigned
    wire.drop()
    _, answer = connack(bench, connect5(assigned, clean_start=False, properties=wants))
    assert answer.session_present
    assert answer.properties.assigned_client_identifier is None


@pytest.mark.parametrize(("asked_s", "holds_s"), [(0, 30), (31, 30), (30, None), (5, None)])
def test_a_keep_alive_that_is_too_long_is_cut_and_the_client_told(asked_s: int, holds_s: int | None) -> None:
    with Bench(limits=BrokerLimits(keep_alive_max_s=30)) as bench:
        wire, answer = connack(bench, connect5(keep_alive_s=asked_s))
        assert answer.properties.server_keep_alive_s == holds_s
        last_ms = (holds_s or asked_s) * 1500
        bench.settle(last_ms - 600)
        assert wire.is_open
        bench.settle(1_600)
        assert not wire.is_open


def test_nobody_is_told_of_a_keep_alive_where_there_is_no_bound() -> None:
    with Bench(limits=BrokerLimits(keep_alive_max_s=0)) as bench:
        wire, answer = connack(bench, connect5(keep_alive_s=0))
        assert answer.properties.server_keep_alive_s is None
        bench.settle(10_000_000)
        assert wire.is_open


def test_a_session_is_kept_no_longer_than_we_keep_any_and_the_client_is_told() -> None:
    with Bench(limits=BrokerLimits(sessions=SessionLimits(session_expiry_s=100))) as bench:
        for asked_s, told_s in ((101, 100), (0xFFFF_FFFF, 100), (100, None), (0, None)):
            wants = Properties(session_expiry_interval_s=asked_s)
            _, answer = connack(bench, connect5(properties=wants))
            assert answer.properties.session_expiry_interval_s == told_s


def test_what_a_client_takes_at_once_bounds_what_it_gets(bench: Bench) -> None:
    reader = bench.client5("r", wants=Properties(receive_maximum=2))
    reader.subscribe("t", qos=1)
    bench.client("w").send(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(5)))
    assert len(reader.publishes()) == 2


# ---- refused ----


def test_a_refusal_has_a_reason_and_words_that_help() -> None:
    with Bench(limits=BrokerLimits(client_id_max_bytes=30)) as bench:
        wire, answer = connack(bench, connect5("x" * 31))
        assert answer.reason_code is ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
        assert "31 bytes exceeds client_id_max_bytes = 30" in str(answer.properties.reason_string)
        assert not wire.is_open
        older, answer = connack(bench, Connect("x" * 31))
        assert answer == ConnAck(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)
        assert not older.is_open


def test_words_are_left_out_for_a_client_that_takes_short_packets_only() -> None:
    with Bench(limits=BrokerLimits(client_id_max_bytes=30)) as bench:
        wants = Properties(maximum_packet_size_bytes=20)
        _, answer = connack(bench, connect5("x" * 31, properties=wants))
        assert answer == ConnAck(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)


def test_a_client_that_takes_no_answer_is_closed_without_one(bench: Bench) -> None:
    wire = bench.wire(Version.V5)
    wire.send(connect5(properties=Properties(maximum_packet_size_bytes=10, session_expiry_interval_s=60)))
    assert wire.received() == []
    assert not wire.is_open
    assert bench.broker.sessions.away == 1
    assert len(bench.broker.clients) == 0


def test_who_may_not_come_in_is_told_why(bench: Bench) -> None:
    _, answer = connack(bench, connect5(), listener=1)
    assert answer.reason_code is ReasonCode.NOT_AUTHORIZED
    _, answer = connack(bench, connect5(username="ann", password=b"?"), listener=1)
    assert answer.reason_code is ReasonCode.BAD_USER_NAME_OR_PASSWORD


def test_a_malformed_connect_is_refused_in_the_form_of_its_version(bench: Bench) -> None:
    wire = bench.wire(Version.V5)
    wire.raw(bytes.fromhex("10 0e 00044d515454 05 03 003c 00 0001 63"))  # bit 0 of the connect flags
    answer = wire.answer()
    assert isinstance(answer, ConnAck)
    assert answer.reason_code is ReasonCode.MALFORMED_PACKET
    assert not wire.is_open


def test_a_second_connect_ends_the_connection_with_a_reason(bench: Bench) -> None:
    client = bench.client5()
    client.send(connect5())
    assert client.answer() == Disconnect(ReasonCode.PROTOCOL_ERROR)
    assert not client.is_open


def test_who_asks_for_problem_information_is_told_which_statement_it_broke(bench: Bench) -> None:
    client = bench.client5(wants=Properties(request_problem_information=1))
    client.send(connect5())
    last_words = client.answer()
    assert isinstance(last_words, Disconnect)
    assert last_words.reason_code is ReasonCode.PROTOCOL_ERROR
    assert "[MQTT-3.1.0-2]" in str(last_words.properties.reason_string)


# ---- another server ----


def test_a_listener_may_send_everybody_to_another_server(bench: Bench) -> None:
    bench.broker.policies[2] = ListenerPolicy(allow_anonymous=True, redirect_to="new.example:1883")
    wire, answer = connack(bench, connect5(), listener=2)
    expected = Properties(server_reference="new.example:1883")
    assert answer == ConnAck(False, ReasonCode.USE_ANOTHER_SERVER, expected)
    assert not wire.is_open
    _, answer = connack(bench, Connect("c"), listener=2)
    assert answer == ConnAck(False, ReasonCode.SERVER_UNAVAILABLE)


# ---- why reasons are given ----


def test_reasons_are_for_those_who_want_them() -> None:
    with Bench(limits=BrokerLimits(subscriptions_max=1)) as bench:
        curious, other = (
            bench.client5("a"),
            bench.client5("b", wants=Properties(request_problem_information=0)),
        )
        for wire, told in ((curious, True), (other, False)):
            wire.send(Subscribe(1, (Subscription("a"), Subscription("b"))))
            answer = wire.answer()
            assert isinstance(answer, SubAck)
            assert answer.reason_codes == (ReasonCode.SUCCESS, ReasonCode.QUOTA_EXCEEDED)
            assert (answer.properties.reason_string is not None) == told
