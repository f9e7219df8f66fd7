"""Enhanced authentication by AUTH, answers that take their time, and rules that change."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest

from edge.auth.interfaces import AuthStep, ClientInfo
from edge.mqtt import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    Publish,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
    Version,
    Will,
)
from tests.support.mqtt_bench import Bench, Wire
from tests.support.rules import AllButSecret

CONTINUE = ReasonCode.CONTINUE_AUTHENTICATION


class Riddle:
    """Asks `times` questions, each of which is answered by its number."""

    def __init__(self, times: int, later: Future[AuthStep] | None = None) -> None:
        self.times = times
        self.asked = 0
        self.later = later

    def answer(self, data: bytes | None) -> AuthStep | Future[AuthStep]:
        if self.asked and data != b"%d" % self.asked:
            return AuthStep("refused")
        if self.asked == self.times:
            return self.later or AuthStep("accepted", b"welcome", "ann")
        self.asked += 1
        return AuthStep("continue", b"what is %d?" % self.asked)


@dataclass
class Sphinx:
    """Lets in who solves riddles."""

    times: int = 2
    later: Future[AuthStep] | None = None
    begun: list[ClientInfo] = field(default_factory=list)

    @property
    def methods(self) -> frozenset[str]:
        return frozenset({"RIDDLE"})

    def begin(self, client: ClientInfo, method: str) -> Riddle:
        assert method == "RIDDLE"
        self.begun.append(client)
        return Riddle(self.times, self.later)


def said(data: bytes | None = None, method: str = "RIDDLE") -> Properties:
    return Properties(authentication_method=method, authentication_data=data)


def asking(bench: Bench, method: str = "RIDDLE") -> Wire:
    """A client that has sent CONNECT with a method."""
    wire = bench.wire(Version.V5, listener=1)
    connect = Connect("c", version=Version.V5, properties=said(method=method))
    wire.send(connect)
    return wire


def let_in(bench: Bench) -> Wire:
    """A client that has solved two riddles."""
    wire = asking(bench)
    for number in (b"1", b"2"):
        assert wire.answer() == Auth(CONTINUE, said(b"what is %s?" % number))
        wire.send(Auth(CONTINUE, said(number)))
    answer = wire.answer()
    assert isinstance(answer, ConnAck)
    assert answer.reason_code is ReasonCode.SUCCESS
    assert answer.properties.authentication_method == "RIDDLE"
    assert answer.properties.authentication_data == b"welcome"
    return wire


def test_a_client_is_let_in_after_a_conversation() -> None:
    with Bench(enhanced=Sphinx()) as bench:
        wire = let_in(bench)
        (session,) = bench.broker.sessions
        assert session.client_info.identity == "ann"
        wire.subscribe("t")
        wire.send(Publish("t", b"x"))
        assert wire.publishes() == [("t", b"x", 0)]


def test_a_method_that_is_not_known_is_refused(bench: Bench) -> None:
    for place in (bench, Bench(enhanced=Sphinx())):
        wire = asking(place, "RUNES")
        assert wire.answer() == ConnAck(False, ReasonCode.BAD_AUTHENTICATION_METHOD)
        assert not wire.is_open
        if place is not bench:
            place.close()


def test_a_wrong_answer_is_refused_and_touches_no_session() -> None:
    with Bench(enhanced=Sphinx()) as bench:
        wire = asking(bench)
        wire.send(Auth(CONTINUE, said(b"7")))
        assert wire.received()[1:] == [ConnAck(False, ReasonCode.NOT_AUTHORIZED)]
        assert not wire.is_open
        assert len(bench.broker.sessions) == 0
        assert len(bench.broker._authenticating) == 0


@pytest.mark.parametrize(
    "packet",
    [
        Publish("t", b"x"),
        PingReq(),
        Subscribe(1, (Subscription("t"),)),
        Connect("c", version=Version.V5),
        Auth(ReasonCode.RE_AUTHENTICATE, said(b"1")),
        Auth(CONTINUE, said(b"1", "RUNES")),
        Auth(CONTINUE),
    ],
)
def test_nothing_but_the_next_word_may_come_before_connack(packet: Publish) -> None:
    with Bench(enhanced=Sphinx()) as bench:
        wire = asking(bench)
        wire.received()
        wire.send(packet)
        assert wire.answer() == ConnAck(False, ReasonCode.PROTOCOL_ERROR)
        assert not wire.is_open
        assert bench.records() == []


def test_a_conversation_has_an_end_by_number_and_by_time() -> None:
    with Bench(enhanced=Sphinx(times=100)) as bench:
        wire = asking(bench)
        for number in range(1, 9):
            wire.send(Auth(CONTINUE, said(b"%d" % number)))
        assert wire.received()[-1] == ConnAck(False, ReasonCode.NOT_AUTHORIZED)
        slow = asking(bench)
        bench.settle(4_900)
        assert slow.is_open
        bench.settle(200)
        assert not slow.is_open
        assert len(bench.broker._authenticating) == 0


def test_a_client_that_gives_up_leaves_nothing() -> None:
    with Bench(enhanced=Sphinx()) as bench:
        polite, rude = asking(bench), asking(bench)
        polite.send(Disconnect())
        assert not polite.is_open
        rude.drop()
        assert len(bench.broker._authenticating) == 0


def test_what_a_client_sent_behind_its_last_word_waits_for_the_verdict() -> None:
    later: Future[AuthStep] = Future()
    with Bench(enhanced=Sphinx(1, later)) as bench:
        wire = asking(bench)
        wire.send(Auth(CONTINUE, said(b"1")), PingReq())
        assert wire.answer() == Auth(CONTINUE, said(b"what is 1?"))
        later.set_result(AuthStep("accepted", None, "ann"))
        bench.settle()
        connack, pong = wire.received()
        assert isinstance(connack, ConnAck)
        assert pong == PingResp()


def test_a_conversation_that_fails_is_a_refusal() -> None:
    later: Future[AuthStep] = Future()
    with Bench(enhanced=Sphinx(0, later)) as bench:
        wire = asking(bench)
        later.set_exception(OSError("the oracle is away"))
        bench.settle()
        assert wire.answer() == ConnAck(False, ReasonCode.NOT_AUTHORIZED)


# ---- once more ----


def test_a_client_may_authenticate_again_while_its_traffic_goes_on() -> None:
    with Bench(enhanced=Sphinx()) as bench:
        wire = let_in(bench)
        wire.send(Auth(ReasonCode.RE_AUTHENTICATE, said()))
        assert wire.answer() == Auth(CONTINUE, said(b"what is 1?"))
        wire.send(Publish("t", b"x", 1, packet_id=1))
        assert wire.received()[0].packet_id == 1  # type: ignore[union-attr]
        wire.send(Auth(CONTINUE, said(b"1")), Auth(CONTINUE, said(b"2")))
        assert wire.received() == [Auth(CONTINUE, said(b"what is 2?")), Auth(properties=said(b"welcome"))]


def test_who_fails_to_authenticate_again_is_disconnected() -> None:
    with Bench(enhanced=Sphinx()) as bench:
        wire = let_in(bench)
        wire.send(Auth(ReasonCode.RE_AUTHENTICATE, said()), Auth(CONTINUE, said(b"wrong")))
        assert wire.received()[1:] == [Disconnect(ReasonCode.NOT_AUTHORIZED)]
        assert not wire.is_open


def test_a_client_that_authenticates_again_waits_for_its_turn_to_speak() -> None:
    sphinx = Sphinx()
    with Bench(enhanced=sphinx) as bench:
        wire = let_in(bench)
        sphinx.times, sphinx.later = 0, Future()
        wire.send(Auth(ReasonCode.RE_AUTHENTICATE, said()), PingReq())
        assert wire.answer() == PingResp()
        wire.send(Auth(CONTINUE, said(b"publish_soon")))
        last_words = wire.answer()
        assert isinstance(last_words, Disconnect)
        assert last_words.reason_code is ReasonCode.PROTOCOL_ERROR
        sphinx.later.set_result(AuthStep("accepted", None, "ann"))
        bench.settle()
        assert len(bench.broker._authenticating) == 0


def test_a_client_cannot_become_somebody_else() -> None:
    sphinx = Sphinx()
    with Bench(enhanced=sphinx) as bench:
        wire = let_in(bench)
        sphinx.times, sphinx.later = 0, Future()
        sphinx.later.set_result(AuthStep("accepted", None, "bob"))
        wire.send(Auth(ReasonCode.RE_AUTHENTICATE, said()))
        assert wire.answer() == Disconnect(ReasonCode.NOT_AUTHORIZED)


@pytest.mark.parametrize(
    "packet", [Auth(CONTINUE, said(b"1")), Auth(ReasonCode.RE_AUTHENTICATE, said(method="RUNES"))]
)
def test_an_auth_that_fits_nothing_ends_the_connection(packet: Auth) -> None:
    with Bench(enhanced=Sphinx()) as bench:
        for wire in (let_in(bench), bench.client5("other")):
            wire.send(packet)
            last_words = wire.answer()
            assert isinstance(last_words, Disconnect)
            assert last_words.reason_code is ReasonCode.PROTOCOL_ERROR


# ---- rules that take their time ----


class SlowRules:
    """Rules that answer on command of the test."""

    def __init__(self) -> None:
        self.answers: dict[str, Future[bool]] = {}
        self.receives = True

    def may_publish(self, client: ClientInfo, topic: str) -> Future[bool]:
        return self.answers.setdefault(f"publish {topic}", Future())

    def may_subscribe(self, client: ClientInfo, topic_filter: str) -> Future[bool]:
        return self.answers.setdefault(f"subscribe {topic_filter}", Future())

    def may_receive(self, client: ClientInfo, topic: str) -> bool:
        return self.receives


@pytest.mark.parametrize("allowed", [True, False])
def test_a_publish_waits_for_its_verdict_and_so_does_what_is_behind_it(allowed: bool) -> None:
    rules = SlowRules()
    with Bench(access=rules) as bench:
        client = bench.client5()
        client.send(Publish("t", b"x", 1, packet_id=1), PingReq())
        assert client.received() == []
        rules.answers["publish t"].set_result(allowed)
        bench.settle()
        code = ReasonCode.NO_MATCHING_SUBSCRIBERS if allowed else ReasonCode.NOT_AUTHORIZED
        assert client.received() == [PubAck(1, code), PingResp()]
        assert bench.records() == ([("t", b"x")] if allowed else [])


def test_a_subscribe_is_answered_when_the_last_of_its_verdicts_is_there() -> None:
    rules = SlowRules()
    with Bench(access=rules) as bench:
        client = bench.client5()
        client.send(Subscribe(1, tuple(Subscription(it, 1) for it in ("a", "b", "$share/g/c"))), PingReq())
        rules.answers["subscribe c"].set_result(True)
        rules.answers["subscribe a"].set_exception(OSError("no answer"))
        bench.settle()
        assert client.received() == []
        rules.answers["subscribe b"].set_result(True)
        bench.settle()
        suback, pong = client.received()
        assert isinstance(suback, SubAck)
        granted = ReasonCode.GRANTED_QOS_1
        assert suback.reason_codes == (ReasonCode.NOT_AUTHORIZED, granted, granted)
        assert pong == PingResp()


def test_who_goes_meanwhile_gets_nothing_and_disturbs_nobody() -> None:
    rules = SlowRules()
    with Bench(access=rules) as bench:
        client = bench.client5()
        client.send(Subscribe(1, (Subscription("a"),)))
        client.drop()
        willing = bench.wire(Version.V5)
        willing.send(Connect("w", version=Version.V5, will=Will("t", b"x")))
        willing.drop()
        rules.answers["subscribe a"].set_result(True)
        rules.answers["publish t"].set_result(True)
        bench.settle()
        assert len(bench.broker.sessions) == 0
        assert bench.records() == []


# ---- rules that change ----


class Porter:
    """Lets everybody in whose name is on the list."""

    def __init__(self, *names: str) -> None:
        self.names = set(names)

    def authenticate(self, client: ClientInfo, password: bytes | None) -> bool:
        return client.username in self.names

    def is_still_authorized(self, client: ClientInfo) -> bool:
        return client.identity in self.names


def test_who_is_not_welcome_any_more_is_disconnected_when_the_rules_change() -> None:
    porter = Porter("ann", "bob")
    with Bench(authenticator=porter) as bench:
        ann = bench.client5("a", username="ann")
        bob = bench.client5("b", username="bob", will=Will("gone", b"bob"))
        nobody = bench.client5("n")
        porter.names.remove("bob")
        bench.broker.acl_changed(None)
        assert bob.answer() == Disconnect(ReasonCode.NOT_AUTHORIZED)
        assert ann.is_open
        assert nobody.is_open
        assert bench.records() == [("gone", b"bob")]


def test_what_may_not_be_received_any_more_is_not_also_by_who_is_away() -> None:
    rules = AllButSecret()
    with Bench(access=rules) as bench:
        writer, here, away = bench.client("w"), bench.client("h"), bench.client("a", clean_start=False)
        here.subscribe("#", "a/b")
        away.subscribe("a/+", qos=1)
        writer.send(Publish("a/b", b"1"), Publish("a/c", b"1"))
        assert here.publishes() == [("a/b", b"1", 0), ("a/c", b"1", 0)]
        assert len(away.publishes()) == 2
        away.drop()
        rules.secret = "a/b"
        bench.broker.acl_changed(rules)
        writer.send(Publish("a/b", b"2", 1, packet_id=1), Publish("a/c", b"2", 1, packet_id=2))
        assert here.publishes() == [("a/c", b"2", 0)]
        back = bench.wire()
        back.send(Connect("a", clean_start=False))
        assert back.received()[1:] == [Publish("a/c", b"2", 1, packet_id=1)]
        rules.secret = ""
        bench.broker.acl_changed(rules)
        writer.send(Publish("a/b", b"3"))
        assert here.publishes() == [("a/b", b"3", 0)]


# ---- watchers ----


class Diary:
    """Writes down what clients do."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def connected(self, client: ClientInfo) -> None:
        self.lines.append(f"{client.client_id} came")

    def disconnected(self, client: ClientInfo) -> None:
        self.lines.append(f"{client.client_id} went")

    def subscribed(self, client: ClientInfo, topic_filter: str, qos: int) -> None:
        self.lines.append(f"{client.client_id} +{topic_filter} {qos}")

    def unsubscribed(self, client: ClientInfo, topic_filter: str) -> None:
        self.lines.append(f"{client.client_id} -{topic_filter}")
        raise RuntimeError("out of ink")


def test_watchers_are_told_what_clients_do_and_their_mistakes_are_their_own(bench: Bench) -> None:
    diary = Diary()
    bench.broker.watchers.append(diary)
    client = bench.client5()
    client.subscribe("a", "b", qos=1)
    client.send(Unsubscribe(1, ("a", "x")))
    assert client.is_open
    client.drop()
    assert diary.lines == ["c came", "c +a 1", "c +b 1", "c -a", "c went"]
