"""CONNECT, authentication and rules; packets that are refused before and after CONNECT."""

from concurrent.futures import Future

import pytest

from edge.auth.interfaces import Answer, ClientCertificate, ClientInfo, ListenerPolicy
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Version,
    Will,
    encode,
)
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import Anybody, AnyTopic

# ---- CONNECT ----


def test_a_client_connects_and_is_answered(bench: Bench) -> None:
    wire = bench.wire()
    wire.send(Connect("c"))
    assert wire.received() == [ConnAck()]
    wire.send(PingReq())
    assert wire.received() == [PingResp()]


def test_mqtt_3_1_is_spoken_too(bench: Bench) -> None:
    client = bench.client("c", version=Version.V31, clean_start=False)
    client.drop()
    bench.client("c", version=Version.V31, clean_start=False, present=False)  # it has no such flag


def test_a_version_that_is_not_spoken_is_refused_by_its_return_code(bench: Bench) -> None:
    wire = bench.wire()
    wire.raw(b"\x10\x0d\x00\x04MQTT\x06\x02\x00\x3c\x00\x01c")
    assert wire.bytes_received() == b"\x20\x02\x00\x01"
    assert not wire.is_open


def test_mqtt_5_is_spoken_and_a_client_without_an_identifier_is_told_its_own(bench: Bench) -> None:
    wire = bench.wire(Version.V5)
    wire.send(Connect("", version=Version.V5))
    (answer,) = wire.received()
    assert isinstance(answer, ConnAck)
    (session,) = bench.broker.sessions
    assert answer.properties.assigned_client_identifier == session.client_id
    wire.subscribe("t/#", qos=1)


def test_a_client_without_an_identifier_gets_one_if_its_session_is_clean(bench: Bench) -> None:
    first, second = bench.client(""), bench.client("")
    assert first.is_open
    assert second.is_open
    wire = bench.wire()
    wire.raw(
        encode(Connect("x", clean_start=False))
        .replace(b"\x00\x01x", b"\x00\x00")
        .replace(b"\x10\x0d", b"\x10\x0c")
    )
    assert wire.received() == [ConnAck(False, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID)]
    assert not wire.is_open


def test_what_is_not_connect_comes_to_nothing_before_it(bench: Bench) -> None:
    for packet in (Publish("a", b"x"), PingReq(), Subscribe(1, (Subscription("a"),)), Disconnect()):
        wire = bench.wire()
        wire.send(packet)
        assert not wire.is_open
        assert wire.bytes_received() == b""
    assert bench.records() == []


def test_a_second_connect_ends_the_connection(bench: Bench) -> None:
    client = bench.client()
    client.send(Connect("c"))
    assert not client.is_open


def test_silence_before_connect_ends_after_the_connect_timeout_however_bytes_trickle(bench: Bench) -> None:
    silent, trickling = bench.wire(), bench.wire()
    for byte in encode(Connect("c"))[:5]:
        bench.settle(900)
        trickling.raw(bytes([byte]))
    assert silent.is_open
    assert trickling.is_open
    bench.settle(600)
    assert not silent.is_open
    assert not trickling.is_open
    assert bench.stats.closed()["connect timeout"] == 2


def test_a_packet_that_claims_too_much_is_refused_at_its_header() -> None:
    limits = EngineLimits(connect_max_bytes=1000, packet_max_bytes=2000)
    with Bench(engine=limits) as bench:
        stranger = bench.wire()
        stranger.raw(b"\x10\xe8\x07")  # 1000 and its header
        assert not stranger.is_open
        client = bench.client()
        client.send(Publish("a", bytes(1990)))
        assert client.is_open
        client.raw(b"\x30\xd0\x0f")
        assert not client.is_open
        assert bench.stats.closed()["too large"] == 2


# ---- authentication and rules ----


class Passwords(Anybody):
    """Knows one user; answers at once, or by a Future."""

    def __init__(self) -> None:
        self.later: Future[bool] | None = None
        self.revoked: set[str | None] = set()

    def authenticate(self, client: ClientInfo, password: bytes | None) -> Answer:
        return self.later or (client.username == "ann" and password == b"secret")

    def is_still_authorized(self, client: ClientInfo) -> bool:
        return client.username not in self.revoked


class Rules(AnyTopic):
    """Ann may publish to ann/..., and subscribe to ann/..."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def may_publish(self, client: ClientInfo, topic: str) -> bool:
        self.asked.append(topic)
        return topic.startswith(f"{client.identity}/")

    def may_subscribe(self, client: ClientInfo, topic_filter: str) -> bool:
        return topic_filter.startswith(f"{client.identity}/")


def test_anonymous_clients_are_for_listeners_that_allow_them(bench: Bench) -> None:
    for listener, code in (
        (0, ReasonCode.SUCCESS),
        (1, ReasonCode.NOT_AUTHORIZED),
        (2, ReasonCode.NOT_AUTHORIZED),
    ):
        wire = bench.wire(listener=listener)
        wire.send(Connect(f"c{listener}"))
        assert wire.received() == [ConnAck(False, code)]
        assert wire.is_open == (code is ReasonCode.SUCCESS)


class ByCertificate(Passwords):
    """Lets in who shows the certificate of a press, whatever it calls itself."""

    def authenticate(self, client: ClientInfo, password: bytes | None) -> Answer:
        return client.certificate_der == b"press"


def shows_certificate(bench: Bench, wire: Wire, name: str) -> None:
    """Give this connection of listener 1 a certificate, and others none."""
    shown = {wire.handle: ClientCertificate(name, b"press")}
    bench.broker.policies[1] = ListenerPolicy(allow_anonymous=False, has_certificates=True)
    bench.broker.certificate_of = shown.get


def test_who_gives_no_name_is_judged_by_the_authenticator_unless_anybody_may_come() -> None:
    with Bench(authenticator=ByCertificate()) as bench:
        wire, other = bench.wire(listener=1), bench.wire(listener=1)
        shows_certificate(bench, wire, "press-7")
        wire.send(Connect("p", clean_start=False))
        assert wire.received() == [ConnAck()]
        other.send(Connect("p", clean_start=False))
        assert other.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]
        assert wire.is_open
        bench.client("q")  # listener 0 authenticates no client


def test_nobody_who_had_to_prove_nothing_takes_over_the_session_of_somebody_who_had() -> None:
    with Bench(authenticator=ByCertificate()) as bench:
        for name, code in (
            ("press-7", ReasonCode.SUCCESS),
            ("press-8", ReasonCode.NOT_AUTHORIZED),
            ("press-7", ReasonCode.SUCCESS),
        ):
            wire = bench.wire(listener=1)
            shows_certificate(bench, wire, name)
            wire.send(Connect("p"))
            assert wire.received() == [ConnAck(False, code)]
        thief = bench.wire(listener=0)
        thief.send(Connect("p"))
        assert thief.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]
        assert wire.is_open


def test_a_wrong_password_is_refused_and_touches_no_session() -> None:
    with Bench(authenticator=Passwords()) as bench:
        ann = bench.client("a", username="ann", password=b"secret", clean_start=False, listener=1)
        ann.subscribe("t", qos=1)
        thief = bench.wire(listener=1)
        thief.send(Connect("a", username="ann", password=b"guess"))
        assert thief.received() == [ConnAck(False, ReasonCode.BAD_USER_NAME_OR_PASSWORD)]
        assert ann.is_open
        ann.drop()
        bench.client("a", username="ann", password=b"secret", clean_start=False, listener=1, present=True)


def test_a_session_is_taken_over_only_by_who_opened_it() -> None:
    with Bench(authenticator=Anybody()) as bench:
        ann = bench.client("a", username="ann", clean_start=False)
        bob = bench.wire()
        bob.send(Connect("a", username="bob"))
        assert bob.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]
        assert ann.is_open


@pytest.mark.parametrize("allowed", [True, False])
def test_an_authenticator_may_take_its_time(allowed: bool) -> None:
    passwords = Passwords()
    passwords.later = Future()
    with Bench(authenticator=passwords) as bench:
        wire = bench.wire()
        wire.send(Connect("a", username="ann"), Publish("t", b"early"))
        assert wire.received() == []
        passwords.later.set_result(allowed)
        bench.settle()
        code = ReasonCode.SUCCESS if allowed else ReasonCode.BAD_USER_NAME_OR_PASSWORD
        assert wire.received() == [ConnAck(False, code)]
        assert bench.records() == ([("t", b"early")] if allowed else [])


def test_an_authenticator_that_fails_refuses_and_one_that_is_too_slow_is_not_waited_for() -> None:
    passwords = Passwords()
    with Bench(authenticator=passwords) as bench:
        passwords.later = Future()
        wire = bench.wire()
        wire.send(Connect("a", username="ann"))
        passwords.later.set_exception(OSError("no directory server"))
        bench.settle()
        assert wire.received() == [ConnAck(False, ReasonCode.BAD_USER_NAME_OR_PASSWORD)]
        passwords.later = Future()
        slow = bench.wire()
        slow.send(Connect("b", username="ann"))
        bench.settle(6_000)
        assert not slow.is_open
        assert passwords.later.cancelled()
        bench.settle()
        assert bench.broker.sessions.get("b") is None


def test_rules_are_asked_once_for_a_client_and_topic_and_again_when_they_change() -> None:
    rules = Rules()
    with Bench(authenticator=Passwords(), access=rules) as bench:
        ann = bench.client("a", username="ann", password=b"secret")
        for _ in range(3):
            ann.send(*(Publish(topic, b"x") for topic in ("ann/1", "ann/2", "bob/1")))
        assert sorted(rules.asked) == ["ann/1", "ann/2", "bob/1"]
        assert bench.records() == [("ann/1", b"x"), ("ann/2", b"x")] * 3
        assert bench.stats.dropped()["denied"] == 3
        bench.broker.acl_changed(rules)
        ann.send(Publish("ann/1", b"y"))
        assert rules.asked.count("ann/1") == 2
        ann.send(Publish("bob/1", b"y", 1, packet_id=5))  # [MQTT-3.3.5-2]: acknowledged, and not stored
        assert ann.received() == [PubAck(5)]
        assert [topic for topic, _ in bench.records()].count("bob/1") == 0


def test_a_change_of_users_disconnects_those_who_are_revoked_and_makes_no_route_again() -> None:
    passwords = Passwords()
    with Bench(authenticator=passwords, access=Rules()) as bench:
        ann = bench.client("a", username="ann", password=b"secret")
        ann.subscribe("ann/#")
        ann.send(Publish("ann/1", b"x"))
        routes_made = bench.broker.router.routes.rules
        bench.broker.users_changed()
        ann.send(Publish("ann/1", b"y"))
        assert ann.publishes() == [("ann/1", b"x", 0), ("ann/1", b"y", 0)]
        assert bench.broker.router.routes.rules == routes_made
        passwords.revoked = {"ann"}
        bench.broker.users_changed()
        assert not ann.is_open


def test_new_rules_disconnect_those_who_are_revoked_and_publish_their_wills() -> None:
    passwords = Passwords()
    with Bench(authenticator=passwords, access=Rules()) as bench:
        ann = bench.wire()
        ann.send(Connect("a", username="ann", password=b"secret", will=Will("ann/gone", b"w")))
        assert ann.received() == [ConnAck(False, ReasonCode.SUCCESS)]
        passwords.revoked = {"ann"}
        bench.broker.acl_changed(Rules())
        assert not ann.is_open
        assert bench.records() == [("ann/gone", b"w")]


def test_new_rules_hold_for_who_was_trusted_before() -> None:
    with Bench() as bench:
        client = bench.client()
        client.send(Publish("t", b"1"))
        bench.broker.acl_changed(Rules())
        client.send(Publish("t", b"2"))
        assert bench.records() == [("t", b"1")]


def test_rules_hold_for_subscriptions_and_wills() -> None:
    with Bench(authenticator=Passwords(), access=Rules()) as bench:
        ann = bench.client("a", username="ann", password=b"secret")
        ann.send(Subscribe(1, (Subscription("ann/#"), Subscription("bob/#"))))
        assert ann.received() == [SubAck(1, (ReasonCode.SUCCESS, ReasonCode.UNSPECIFIED_ERROR))]
        wire = bench.wire()
        wire.send(Connect("b", username="ann", password=b"secret", will=Will("bob/gone")))
        assert wire.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]


def test_topics_that_begin_with_a_dollar_are_the_servers(bench: Bench) -> None:
    client = bench.client()
    assert bench.broker.publish("$SYS/uptime", b"1")
    client.send(Publish("$SYS/uptime", b"forged"), Publish("$other", b"forged", 1, packet_id=2))
    assert client.received() == [PubAck(2)]
    assert bench.records() == [("$SYS/uptime", b"1")]
    assert bench.stats.dropped()["denied"] == 2
    wire = bench.wire()
    wire.send(Connect("w", will=Will("$SYS/uptime", b"forged")))
    assert wire.received() == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]


# ---- keep alive ----


def test_whoever_is_silent_for_one_and_a_half_keep_alives_is_closed(bench: Bench) -> None:
    silent, pinging, free = (bench.client(f"c{k}", keep_alive_s=k) for k in (10, 11, 0))
    for _ in range(10):
        bench.settle(7_000)
        pinging.send(PingReq())
    assert not silent.is_open
    assert pinging.is_open
    assert free.is_open
    assert bench.stats.closed()["keep alive"] == 1


def test_sending_anything_counts_as_a_sign_of_life_and_receiving_does_not(bench: Bench) -> None:
    talker, listener = bench.client("t", keep_alive_s=10), bench.client("l", keep_alive_s=10)
    listener.subscribe("t")
    for i in range(4):
        bench.settle(6_000)
        talker.send(Publish("t", b"%d" % i))
        listener.bytes_received()
    assert talker.is_open
    assert not listener.is_open
