"""Messages of consumers on the broker's thread: a few in one call, in order, each request with its answer."""

from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from edge.config.quota import TenantQuota
from edge.config.schema import Durability, Stream
from edge.config.tenant import Tenant
from edge.consumers.dead_letters import Fate, Outgoing
from edge.server.consumers_outlet import MESSAGES_A_CALL, BrokerOutlet
from tests.support.mqtt_bench import Bench
from tests.support.tenant_bench import A, B, bench_of, row_of


class Thread:
    """The outlet of a bench; the test runs the calls of the broker's thread."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.calls: deque[Callable[[], object]] = deque()
        self.fates: list[list[Fate]] = []
        listener = SimpleNamespace(broker=bench.broker, call=self.calls.append)
        streams = SimpleNamespace(named=lambda _: (Stream(name="x", topics=("#",)), bench.partition))
        self.outlet = BrokerOutlet(listener, streams, lambda _: "")  # type: ignore[arg-type]

    def publish(self, *payloads: bytes, topic: str = "a/1") -> None:
        self.outlet([Outgoing(topic, it) for it in payloads], self.fates.append)

    def stored(self) -> list[bytes]:
        with self.bench.partition.ring.reader(with_slot=False, start="oldest") as reader:
            return [bytes(it) for it in reader.read_many(10_000)]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench(by_rules=False) as bench:
        yield bench


def test_many_messages_are_stored_in_parts_and_in_order(bench: Bench) -> None:
    thread = Thread(bench)
    numbers = [b"%d" % number for number in range(3 * MESSAGES_A_CALL)]
    thread.publish(*numbers[:-10])
    thread.publish(*numbers[-10:])
    counts = []
    while thread.calls:
        assert len(thread.calls) == 1, "MQTT clients are served between two of them"
        thread.calls.popleft()()
        counts.append(len(thread.stored()))
    assert counts == [MESSAGES_A_CALL, 2 * MESSAGES_A_CALL, 3 * MESSAGES_A_CALL]
    assert thread.stored() == numbers
    thread.outlet.report_durable()
    assert thread.fates == [["stored"] * (len(numbers) - 10), ["stored"] * 10]


def test_a_message_larger_than_a_record_is_refused_and_does_not_wait_for_room(bench: Bench) -> None:
    thread = Thread(bench)
    thread.publish(b"before", bytes(bench.partition.writer.record_max_bytes), b"after")
    while thread.calls:
        thread.calls.popleft()()
    thread.outlet.report_durable()
    assert thread.fates == [["stored", "refused", "stored"]]
    assert thread.stored() == [b"before", b"after"]


def test_a_dead_letter_of_a_tenant_is_for_its_clients_only_and_counts_for_its_quota() -> None:
    with bench_of(Tenant("a", quota=TenantQuota(topics_max=2)), by_rules=False) as bench:
        thread = Thread(bench)
        reader, others = bench.client(listener=A), [bench.client(listener=B), bench.client()]
        for wire in (reader, *others):
            wire.subscribe("#")
        others[-1].subscribe("dead/#")
        letters = [Outgoing(f"dead/g/{name}", b"x", prefix="$tenant/a/") for name in "abca"]
        long = Outgoing("dead/g/" + "x" * (65_535 - 16), b"", prefix="$tenant/a/")
        gone = Outgoing("dead/g/a", b"", prefix="$tenant/gone/")
        hostile = [Outgoing(name, b"") for name in ("$tenant/a/dead/g/a", "$tenant/a/x", "$x", "$tenant")]
        thread.outlet([*letters, long, gone, *hostile], thread.fates.append)
        thread.calls.popleft()()
        thread.outlet.report_durable()
        stored: list[Fate] = ["stored", "stored", "refused", "stored"]
        assert thread.fates == [[*stored, "refused", "stored", *["refused"] * 4]]
        names = ["$tenant/a/dead/g/a", "$tenant/a/dead/g/b", "$tenant/a/dead/g/a", "$tenant/gone/dead/g/a"]
        assert [topic for topic, _ in bench.records()] == names
        assert [topic for topic, _, _ in reader.publishes()] == ["dead/g/a", "dead/g/b", "dead/g/a"]
        assert [wire.publishes() for wire in others] == [[], []]
        row = row_of(bench)
        assert (row["topics"], row["refused"]["topics"]) == (2, 1)


def test_a_loss_between_two_parts_of_a_publish_is_reported() -> None:
    with Bench(durability=Durability.UPSTREAM, by_rules=False) as bench:
        thread = Thread(bench)
        thread.outlet.follow_upstream()
        thread.calls.popleft()()
        thread.publish(*[b"x"] * (2 * MESSAGES_A_CALL))
        thread.calls.popleft()()
        drained = bench.broker.router.durability.upstream
        drained(bench.partition.name, MESSAGES_A_CALL, ((3, 4),))
        thread.outlet.report_durable()
        assert thread.fates == [], "not stored completely"
        thread.calls.popleft()()
        drained(bench.partition.name, 2 * MESSAGES_A_CALL, ())
        thread.outlet.report_durable()
        stored: list[Fate] = ["stored"] * (2 * MESSAGES_A_CALL)
        assert thread.fates == [[*stored[:3], "refused", "refused", *stored[5:]]]


def test_an_error_in_a_later_part_refuses_its_publish_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread(bench)
    thread.publish(*[b"x"] * (2 * MESSAGES_A_CALL))
    thread.calls.popleft()()
    monkeypatch.setattr(thread.outlet, "_store", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        thread.calls.popleft()()
    thread.outlet.report_durable()
    assert thread.fates == [["refused"] * (2 * MESSAGES_A_CALL)]
    assert not thread.outlet._unconfirmed


def test_an_error_refuses_its_publish_and_the_others_are_stored(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread(bench)
    store = thread.outlet._store

    def broken(message: Outgoing) -> Fate:
        if message.topic == "bad":
            raise RuntimeError("a defect")
        return store(message)

    monkeypatch.setattr(thread.outlet, "_store", broken)
    thread.publish(b"0")
    thread.publish(b"x", b"y", topic="bad")
    thread.publish(b"1")
    with pytest.raises(RuntimeError):
        thread.calls.popleft()()
    thread.calls.popleft()()
    thread.outlet.report_durable()
    assert thread.stored() == [b"0", b"1"]
    assert thread.fates == [["refused"] * 2, ["stored"], ["stored"]]
    assert not thread.calls
