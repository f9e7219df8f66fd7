"""Retained messages of clients that may no longer publish them are withheld (check_retain_source)."""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge.auth.interfaces import ClientInfo
from edge.broker.dispatcher import BrokerLimits
from edge.broker.retained_authors import TEXT_MAX, author_of, client_info_of_author
from edge.engine.engine import EngineLimits
from edge.mqtt import Publish, Subscribe, Subscription, Version, Will
from edge.recovery.retained_store import RetainedStore
from tests.support.directories import memory_directory
from tests.support.mqtt_bench import Bench
from tests.support.rules import Anybody, AnyTopic

V311, V5 = Version.V311, Version.V5
BOB = ClientInfo("c-bob", "bob", "10.0.0.7:5", 0, identity="bob")


class Rules(AnyTopic):
    """Lets users publish below their own name, all but those that are `denied`."""

    def __init__(self, *denied: str) -> None:
        self.denied = denied

    def may_publish(self, client: ClientInfo, topic: str) -> bool | Future[bool]:
        return client.identity not in self.denied and client.client_id not in self.denied


class SlowRules(Rules):
    """The same, later."""

    def __init__(self, *denied: str) -> None:
        super().__init__(*denied)
        self.waiting: list[tuple[Future[bool], bool]] = []

    def may_publish(self, client: ClientInfo, topic: str) -> Future[bool]:
        answer: Future[bool] = Future()
        self.waiting.append((answer, bool(super().may_publish(client, topic))))
        return answer

    def decide(self) -> None:
        while self.waiting:
            answer, allowed = self.waiting.pop()
            answer.set_result(allowed)


def bench_of(**options: object) -> Bench:
    return Bench(authenticator=Anybody(), access=Rules(), **options)  # type: ignore[arg-type]


def retained_by(bench: Bench) -> dict[str, bytes]:
    late = bench.client("late", username="reader")
    late.send(Subscribe(1, (Subscription("#"),)))
    found = {it.topic: bytes(it.payload) for it in late.received() if isinstance(it, Publish)}
    late.drop()
    return found


@pytest.mark.parametrize("version", [V311, V5])
def test_a_retained_message_is_withheld_while_its_client_may_not_publish_it(version: Version) -> None:
    with bench_of() as bench:
        for user in ("ann", "bob"):
            client = bench.client(f"c-{user}", username=user, version=version)
            client.send(Publish(f"{user}/1", b"x", retain=True))
            client.drop()
        for denied, left in (("bob",), {"ann/1"}), (("ann", "bob"), set()), ((), {"ann/1", "bob/1"}):
            bench.broker.acl_changed(Rules(*denied))
            bench.settle()
            assert retained_by(bench).keys() == left
        bench.broker.acl_changed(Rules("c-bob"))  # a rule of the client identifier
        bench.settle()
        assert retained_by(bench).keys() == {"ann/1"}


def test_what_another_client_retains_in_its_place_is_given() -> None:
    with bench_of() as bench:
        bench.client("c-ann", username="ann").send(Publish("t", b"ann", retain=True))
        bench.broker.acl_changed(Rules("ann"))
        bench.settle()
        assert retained_by(bench) == {}
        bench.client("c-bob", username="bob").send(Publish("t", b"bob", retain=True))
        assert retained_by(bench) == {"t": b"bob"}


def test_a_subscriber_of_before_gets_nothing_back() -> None:
    """Withholding takes nothing from who has it, and is no new message."""
    with bench_of() as bench:
        reader = bench.client("r", username="reader")
        reader.subscribe("#")
        bench.client("c-ann", username="ann").send(Publish("t", b"x", retain=True))
        assert len(reader.publishes()) == 1
        for rules in (Rules("ann"), Rules()):
            bench.broker.acl_changed(rules)
            bench.settle()
            assert reader.received() == []


def test_retained_wills_are_withheld_too() -> None:
    with bench_of() as bench:
        bench.client("c-ann", username="ann", will=Will("gone", b"x", retain=True)).drop()
        assert retained_by(bench) == {"gone": b"x"}
        bench.broker.acl_changed(Rules("ann"))
        bench.settle()
        assert retained_by(bench) == {}


def test_messages_of_the_broker_itself_are_no_clients() -> None:
    with bench_of(limits=BrokerLimits(sys_interval_s=10)) as bench:
        bench.broker.publish("own", b"x", retain=True)
        bench.broker.acl_changed(Rules("ann"))
        bench.settle()
        assert retained_by(bench) == {"own": b"x"}


def test_it_may_be_switched_off() -> None:
    with bench_of(limits=BrokerLimits(check_retain_source=False)) as bench:
        bench.client("c-ann", username="ann").send(Publish("t", b"x", retain=True))
        bench.broker.acl_changed(Rules("ann"))
        bench.settle()
        assert retained_by(bench) == {"t": b"x"}


def test_rules_that_take_their_time_are_waited_for() -> None:
    with bench_of() as bench:
        client = bench.client("c-ann", username="ann")
        client.send(*(Publish(f"t/{n}", b"x", retain=True) for n in range(200)))
        rules = SlowRules("ann")
        bench.broker.acl_changed(rules)
        bench.settle()
        assert len(rules.waiting) == 200
        rules.decide()
        bench.settle()
        assert retained_by(bench) == {}


def test_a_decision_does_not_withhold_what_another_client_has_retained_meanwhile() -> None:
    with bench_of() as bench:
        bench.client("c-ann", username="ann").send(Publish("t", b"ann", retain=True))
        rules = SlowRules("ann")
        bench.broker.acl_changed(rules)
        bench.settle()
        topic = bench.engine.topic_find(b"t")
        assert topic is not None
        assert bench.engine.retain(topic, b"bob", 0, b"", 0, b"ubob", author_of(BOB))
        rules.decide()
        bench.settle()
        assert retained_by(bench) == {"t": b"bob"}


def test_authors_that_are_long_count_for_the_limit_of_bytes() -> None:
    with bench_of(engine=EngineLimits(retained_max_bytes=100_000)) as bench:
        for n in range(200):
            name = f"{n:03}" + "\N{SNOWMAN}" * 250
            client = bench.client(name, username=name)
            client.send(Publish(f"t/{n}", b"x", retain=True))
            client.drop()
        assert 40 < bench.stats.gauges()["retained"] < 100_000 // 1_000
        for n in range(200):
            bench.broker.publish(f"t/{n}", b"", retain=True)
        assert bench.stats.gauges()["retained_bytes"] == 0


# ---- over a restart ----


class Site:
    """One broker after another on the same ring and file."""

    def __init__(self, directory: Path, state: Path) -> None:
        self.directory = directory
        self.file = state / "retained.state"

    @contextmanager
    def life(self, rules: Rules) -> Iterator[Bench]:
        bench = Bench(directory=self.directory, authenticator=Anybody(), access=rules)
        file = RetainedStore(self.file, sync=False)
        file.restore(bench.broker, [bench.partition.ring], None)
        bench.broker.check_retained()
        bench.settle()
        yield bench
        file.stop()
        bench.close()


def test_a_restart_knows_who_has_published_what_is_retained(tmp_path: Path) -> None:
    with memory_directory() as directory:
        site = Site(directory, tmp_path)
        with site.life(Rules()) as bench:
            for user in ("ann", "bob"):
                client = bench.client(f"c-{user}", username=user)
                client.send(*(Publish(f"{user}/{n}", b"x", retain=True) for n in range(3)))
        with site.life(Rules("ann")) as bench:
            assert retained_by(bench).keys() == {"bob/0", "bob/1", "bob/2"}
            assert dict(bench.engine.owners_top(5, 9)) == {b"uann": 3, b"ubob": 3}  # for quotas, too
            bench.broker.publish("bob/0", b"the broker's", retain=True)
        with site.life(Rules("bob")) as bench:
            assert retained_by(bench).keys() == {"ann/0", "ann/1", "ann/2", "bob/0"}


def test_an_author_has_golden_bytes_and_a_bound() -> None:
    facts = ClientInfo("c", "ann", "10.0.0.7:5", 2, "ann", "press-7", "tls", b"der", True)
    golden = "98a163a3616e6ea3616e6ea770726573732d37c3aa31302e302e302e373a3502a3746c73"
    assert author_of(facts).hex() == golden
    known = client_info_of_author(bytes.fromhex(golden))
    assert known == ClientInfo("c", "ann", "10.0.0.7:5", 2, "ann", "press-7", "tls", None, True)
    assert client_info_of_author(b"") is None
    assert client_info_of_author(b"\xff\xff") is None
    long = ClientInfo("c" * 60_000, "u" * 60_000, "", 0)
    assert len(author_of(long)) < 3 * TEXT_MAX
