"""Retained messages of a subscription that had not all arrived when the broker was killed are sent again."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.broker.connections import ConnectedClient, Connections
from edge.broker.retained_delivery import Retained
from edge.broker.sessions import Session
from edge.engine.subscription_options import SENDS_RETAINED
from edge.mqtt import (
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    ReasonCode,
    SubAck,
    Subscribe,
    Subscription,
    Unsubscribe,
)
from edge.recovery.read_journal import read_record
from edge.session_store.journal_records import Subscribed
from edge.session_store.snapshot_file import RECORD
from tests.support.brim_process import BrimProcess
from tests.support.kept_bench import Lives
from tests.support.mqtt_bench import Bench, Wire
from tests.support.mqtt_socket import SocketClient

WINDOW = 10
KEPT = Properties(session_expiry_interval_s=600, receive_maximum=WINDOW)
TOPICS = {f"r/{number}" for number in range(3 * WINDOW)}


def client_of(broker: BrimProcess) -> SocketClient:
    return SocketClient(broker.port, "c", clean_start=False, properties=KEPT)


def topic_from(client: SocketClient, *, acknowledge: bool) -> str:
    packet = client.receive()
    assert isinstance(packet, Publish)
    if acknowledge:
        client.send(PubAck(packet.packet_id))
    return packet.topic


@pytest.mark.parametrize("are_older", [False, True])  # than the last start: no ring is their origin then
def test_a_killed_broker_sends_all_of_them(
    runtime_directory: Path, tmp_path: Path, *, are_older: bool
) -> None:
    with BrimProcess(runtime_directory, tmp_path, bridge=False) as broker:
        with SocketClient(broker.port, "p") as publisher:
            for topic in TOPICS:
                publisher.send(Publish(topic, b"x", 1, retain=True, packet_id=1))
                publisher.receive()
        if are_older:
            broker.kill()
            broker.start()
        with client_of(broker) as client:
            client.send(Subscribe(1, (Subscription("r/#", 1),)))
            assert client.receive() == SubAck(1, (ReasonCode.GRANTED_QOS_1,))
            assert {topic_from(client, acknowledge=False) for _ in range(WINDOW)} < TOPICS
            broker.kill()
        broker.start()
        with client_of(broker) as client:
            assert client.session_present
            assert {topic_from(client, acknowledge=True) for _ in range(WINDOW)} < TOPICS
            broker.kill()
        broker.start()
        with client_of(broker) as client:
            missing = set(TOPICS)
            while missing:
                missing.discard(topic_from(client, acknowledge=True))


def notes_of(lives: Lives) -> list[Subscribed]:
    """Subscriptions that a restart reads."""
    records = (read_record(body) for kind, body in lives.found.frames if kind == RECORD)
    return [record for record in records if isinstance(record, Subscribed)]


@pytest.mark.parametrize("in_snapshot", [False, True])
@pytest.mark.parametrize("have_arrived", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_restart_knows_whether_all_have_arrived(*, qos: int, have_arrived: bool, in_snapshot: bool) -> None:
    with Lives() as lives:
        bench = lives.start()
        retained = (Publish(f"r/{number}", b"x", 2, retain=True, packet_id=number) for number in (1, 2))
        bench.client("p").send(*retained)
        client = bench.client5("c", expiry_s=600, clean_start=False)
        client.send(Subscribe(1, (Subscription("r/#", qos),)))
        _, *messages = client.received()
        for message in messages if have_arrived and qos else ():
            assert isinstance(message, Publish)
            client.send(PubAck(message.packet_id) if qos == 1 else PubRec(message.packet_id))
            if qos == 2:
                client.send(PubComp(message.packet_id))
        if in_snapshot:
            bench.broker.journal.request_snapshot()
        bench.settle(1000)
        lives.restart()
        is_due = bool(qos) and not have_arrived
        assert notes_of(lives)[-1].options == qos | (SENDS_RETAINED if is_due else 0)


def subscribe(client: Wire, options: Subscription) -> None:
    client.send(Subscribe(1, (options,)))
    client.received()


@pytest.mark.parametrize("topic_filter", ["r/1", "r/#"])
def test_a_delivery_is_noted_before_the_client_learns_of_its_subscription(
    topic_filter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is killed while it looks for the topics of the filter."""
    with Lives() as lives:
        bench = lives.start()
        bench.client("p").send(Publish("r/1", b"x", 1, retain=True, packet_id=1))
        monkeypatch.setattr(Retained, "send", lambda *_: iter(()))
        subscribe(bench.client5("c", expiry_s=600, clean_start=False), Subscription(topic_filter, 1))
        bench.settle(1000)
        lives.restart()
        assert notes_of(lives)[-1].options == 1 | SENDS_RETAINED


@pytest.mark.parametrize("is_plain", [False, True])
def test_the_note_of_a_delivery_ends_with_its_subscription(*, is_plain: bool) -> None:
    topic_filter = "r/1" if is_plain else "r/#"
    with Lives() as lives:
        bench = lives.start()
        bench.client("p").send(Publish("r/1", b"x", 1, retain=True, packet_id=1))
        client = bench.client5("c", expiry_s=600, clean_start=False)
        subscribe(client, Subscription(topic_filter, 1))
        client.send(Unsubscribe(2, (topic_filter,)))
        subscribe(client, Subscription(topic_filter, 1, retain_handling=2))
        lives.restart()
        assert notes_of(lives)[-1].options == 1


@pytest.mark.parametrize(
    ("topic_filter", "qos", "expiry_s", "has_retained", "is_noted"),
    [
        ("r/1", 1, 600, True, True),
        ("r/#", 1, 600, True, True),
        ("r/1", 0, 600, True, False),  # may be lost
        ("r/#", 0, 600, True, False),
        ("r/#", 1, 0, True, False),  # no restart has this session
        ("r/#", 1, 600, False, False),
        ("$share/g/r/#", 1, 600, True, False),  # gets none
    ],
)
def test_only_a_delivery_that_a_restart_has_to_begin_again_is_noted_and_before_the_suback(
    topic_filter: str,
    qos: int,
    expiry_s: int,
    has_retained: bool,
    is_noted: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notes: list[dict[str, bool]] = []
    send_packet = Connections.send_packet

    def send(clients: Connections, client: ConnectedClient, packet: Any) -> None:
        if isinstance(packet, SubAck):
            notes.append(dict(client.session.sends_retained or {}))
        send_packet(clients, client, packet)

    monkeypatch.setattr(Connections, "send_packet", send)
    with Bench() as bench:
        bench.client("p").send(Publish("r/1", b"x", 1, retain=has_retained, packet_id=1))
        subscribe(bench.client5("c", expiry_s=expiry_s), Subscription(topic_filter, qos))
    assert notes == [{topic_filter: False} if is_noted else {}]


def test_a_delivery_that_has_not_begun_stays_noted_when_another_one_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = Retained.send
    monkeypatch.setattr(Retained, "send", lambda *given: begin(*given) if given[-1] == "a/#" else iter(()))
    with Lives() as lives:
        bench = lives.start()
        for topic in ("a/1", "b/1"):
            bench.client("p").send(Publish(topic, b"x", 1, retain=True, packet_id=1))
        client = bench.client5("c", expiry_s=600, clean_start=False)
        client.send(Subscribe(1, (Subscription("a/#", 1), Subscription("b/#", 1))))
        _, message = client.received()
        assert isinstance(message, Publish)
        client.send(PubAck(message.packet_id))
        bench.settle(1000)
        bench.broker.journal.request_snapshot()
        bench.settle(1000)
        lives.restart()
        noted = {note.topic_filter: note.options for note in notes_of(lives)}
        assert noted == {"a/#": 1, "b/#": 1 | SENDS_RETAINED}


def test_the_note_of_a_delivery_ends_with_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Retained, "send", lambda *_: iter(()))
    with Bench() as bench:
        bench.client("p").send(Publish("r/1", b"x", 1, retain=True, packet_id=1))
        subscribe(bench.client5("c", expiry_s=600), Subscription("r/#", 1))
        assert bench.broker.retained._sending
        bench.client5("c", expiry_s=600)
        bench.settle(1000)
        assert not bench.broker.retained._sending


@pytest.mark.parametrize("have_arrived", [False, True])
def test_a_restart_notes_and_begins_a_delivery_that_has_not_arrived(
    *, have_arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, set[str]]] = []

    def send(_: Retained, session: Session, topic_filter: str) -> Iterator[None]:
        calls.append(("send", {topic_filter}))
        return iter(())

    def begin(_: Retained, session: Session, topic_filters: Iterable[str]) -> None:
        calls.append(("begin", set(topic_filters)))

    with Lives() as lives:
        bench = lives.start()
        bench.client("p").send(Publish("r/1", b"x", 1, retain=True, packet_id=1))
        client = bench.client5("c", expiry_s=600, clean_start=False)
        client.send(Subscribe(1, (Subscription("r/#", 1),)))
        _, message = client.received()
        assert isinstance(message, Publish)
        if have_arrived:
            client.send(PubAck(message.packet_id))
        bench.settle(1000)
        monkeypatch.setattr(Retained, "send", send)
        monkeypatch.setattr(Retained, "begin", begin)
        lives.restart()
    due = [("begin", {"r/#"}), ("send", {"r/#"})]
    assert [call for call in calls if call[1]] == ([] if have_arrived else due)
