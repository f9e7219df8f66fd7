"""Durability seen by clients: time of PUBACK, refusals, and records that readers may see.

Logs and sinks are words that a test says here; test_durability_processes.py has real ones.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Literal

import pytest

from edge.broker.durability import RingDurability, Upstream, reason_code
from edge.config.loader import parse
from edge.config.schema import AckGate, Config, Durability, Sessions, Stream
from edge.consumers.dead_letters import Fate, Outgoing
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    Connect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ReasonCode,
    Subscribe,
    Subscription,
)
from edge.server.consumers_outlet import BrokerOutlet
from ringbuf import FLAG_QOS
from ringbuf.native import lib
from tests.support.mqtt_bench import Bench, Wire

TIMEOUT_MS = 200


@pytest.fixture
def hiding() -> Iterator[Bench]:
    """A bench whose ring shows what is durable."""
    with Bench(durability=Durability.DISK, by_rules=False) as bench:
        bench.partition.ring.show_durable(True)
        yield bench


def rings_of(bench: Bench) -> RingDurability:
    return bench.broker.router.durability


def test_acknowledgement_gates_have_the_numbers_of_the_core() -> None:
    gates = {it.value: it.ack_gate.value for it in Durability}
    none, durable, upstream = lib.MQ_GATE_NONE, lib.MQ_GATE_DURABLE, lib.MQ_GATE_UPSTREAM
    assert gates == {"process": none, "interval": none, "disk": durable, "upstream": upstream}
    assert [*AckGate] == [none, durable, upstream]


@pytest.mark.parametrize(
    ("streams", "own", "expected"),
    [
        (["process"], None, "process"),
        (["process", "upstream"], None, "interval"),
        (["disk", "interval"], None, "disk"),
        (["disk"], "process", "process"),
    ],
)
def test_sessions_are_as_durable_as_the_most_durable_stream(
    streams: list[str], own: Literal["process"] | None, expected: str
) -> None:
    stream = tuple(Stream(name=it, topics=("a",), durability=Durability(it)) for it in streams)
    assert Config(stream=stream, sessions=Sessions(durability=own)).sessions_durability == expected


def sync(bench: Bench, position: int | None = None) -> None:
    """The log reports that it is durable up to `position`, or completely."""
    bench.partition.ring.durable(bench.partition.writer.end_position if position is None else position)
    bench.settle()


def publish(client: Wire, *payloads: bytes, qos: int = 1, topic: str = "t", retain: bool = False) -> None:
    """Packet identifiers are 1, 2, ..."""
    numbers = range(1, len(payloads) + 1)
    messages = zip(numbers, payloads, strict=True)
    client.send(*(Publish(topic, it, qos, retain, packet_id=number if qos else 0) for number, it in messages))


# ---- upstream ----


def test_upstream_an_acknowledgement_waits_until_the_sinks_have_its_record() -> None:
    with Bench(durability=Durability.UPSTREAM) as bench:
        client = bench.client()
        publish(client, b"0", b"1", b"2")
        sync(bench)
        assert client.received() == [], "the disk is not upstream"
        rings_of(bench).upstream("t-0", 2, ())
        bench.settle()
        assert client.received() == [PubAck(1), PubAck(2)]
        rings_of(bench).upstream("t-0", 3, ())
        bench.settle()
        assert client.received() == [PubAck(3)]


def test_upstream_a_qos_2_message_is_received_when_the_sinks_have_it() -> None:
    with Bench(durability=Durability.UPSTREAM) as bench:
        client = bench.client()
        publish(client, b"0", qos=2)
        assert client.received() == []
        rings_of(bench).upstream("t-0", 1, ())
        bench.settle()
        assert client.received() == [PubRec(1)]
        client.send(PubRel(1))
        assert client.received() == [PubComp(1)]


def test_what_sinks_had_before_the_first_client_counts() -> None:
    """Of a ring that was taken over: offsets continue, and the sink has the earlier records."""
    with Bench(durability=Durability.UPSTREAM) as bench:
        rings_of(bench).upstream("t-0", 1, ())
        client = bench.client()
        publish(client, b"0", b"1")
        assert client.received() == [PubAck(1)]


def test_while_the_sink_is_away_clients_wait_within_their_window() -> None:
    with Bench(engine=EngineLimits(receive_max=3), durability=Durability.UPSTREAM) as bench:
        client = bench.client(keep_alive_s=1)
        publish(client, *[b"%d" % number for number in range(8)])
        assert len(bench.records()) == 3, "more was taken than may wait"
        bench.settle(10_000)
        assert client.is_open, "it cannot be heard, so its keep-alive does not run"
        for taken in (3, 6, 8):
            assert len(bench.records()) == taken
            rings_of(bench).upstream("t-0", taken, ())
            bench.settle()
        assert client.received() == [PubAck(number + 1) for number in range(8)]


def test_what_was_lost_on_its_way_upstream_is_never_acknowledged() -> None:
    with Bench(durability=Durability.UPSTREAM) as bench:
        old, new = bench.client("old"), bench.client5("new")
        publish(old, b"0")
        publish(new, b"1", b"2")
        publish(old, b"3")
        rings_of(bench).upstream("t-0", 4, [(0, 1)])
        bench.settle()
        assert not old.is_open, "MQTT 3.1.1 can only be cut, and sends again"
        assert new.received() == [PubAck(1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR), PubAck(2, NOBODY)]
        publish(new, b"4")
        rings_of(bench).upstream("t-0", 5, ())
        bench.settle()
        assert new.received() == [PubAck(1, NOBODY)]


NOBODY = ReasonCode.NO_MATCHING_SUBSCRIBERS

TWO_BRIDGES = """
[[stream]]
name = "t"
topics = ["#"]
durability = "upstream"
[[stream]]
name = "u"
topics = ["u"]
[[bridge]]
name = "near"
to = "file:///near"
[[bridge]]
name = "far"
to = "file:///far"
streams = ["t"]
"""


def upstream_of(bench: Bench, config: Config) -> Upstream:
    return Upstream(config, {"t-0": 1, "u-0": 1}, rings_of(bench), bench.calls.append)


def test_all_bridges_that_drain_a_stream_must_have_a_record() -> None:
    with Bench(durability=Durability.UPSTREAM) as bench:
        upstream = upstream_of(bench, parse(TWO_BRIDGES))
        client = bench.client()
        publish(client, b"0", b"1")
        upstream.report_progress("near", "t-0", 1, 2)
        bench.settle()
        assert client.received() == []
        upstream.report_progress("far", "t-0", 1, 1)
        bench.settle()
        assert client.received() == [PubAck(1)]
        status = upstream.status()
        assert {bridge: it["offset"] for bridge, it in status["t-0"].items()} == {"near": 2, "far": 1}
        assert list(status) == ["t-0"]


def test_only_its_own_bridges_and_its_own_epoch_count() -> None:
    with Bench(durability=Durability.UPSTREAM) as bench:
        upstream = upstream_of(bench, parse(TWO_BRIDGES))
        client = bench.client()
        publish(client, b"0")
        for bridge, ring, epoch in (
            ("near", "t-0", 0),
            ("far", "t-0", 2),
            ("other", "t-0", 1),
            ("far", "u-0", 1),
        ):
            upstream.report_progress(bridge, ring, epoch, 9)
        upstream.report_progress("far", "t-0", 1, 1)
        bench.settle()
        assert client.received() == []


# ---- a log that takes no records ----


@pytest.mark.parametrize(("failure", "reason"), [
    ("the disk is full (ENOSPC)", ReasonCode.QUOTA_EXCEEDED),
    ("the disk has an error (EIO)", ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR),
])  # fmt: skip
@pytest.mark.parametrize("durability", [Durability.INTERVAL, Durability.DISK])
def test_publishers_are_refused_while_the_log_takes_no_records(
    durability: Durability, failure: str, reason: ReasonCode
) -> None:
    with Bench(durability=durability) as bench:
        client = bench.client5()
        client.send(Publish("t", b"before", 1, packet_id=1))
        rings_of(bench).refuse("t-0", reason_code(failure))
        bench.settle(TIMEOUT_MS)
        client.received()
        client.send(
            Publish("t", b"1", 1, packet_id=2), Publish("t", b"2", 2, packet_id=3), Publish("t", b"3")
        )
        assert client.received() == [PubAck(2, reason), PubRec(3, reason)]
        assert bench.records() == [("t", b"before")]
        assert bench.stats.dropped()["full"] == 3
        rings_of(bench).refuse("t-0", 0)
        sync(bench)
        client.send(Publish("t", b"after", 1, packet_id=2))
        sync(bench)
        assert client.received() == [PubAck(2, NOBODY)]


def test_a_short_failure_is_waited_for() -> None:
    with Bench(durability=Durability.DISK) as bench:
        client = bench.client5()
        rings_of(bench).refuse("t-0", 0x97)
        client.send(Publish("t", b"1", 1, packet_id=1))
        bench.settle(TIMEOUT_MS - 1)
        rings_of(bench).refuse("t-0", 0)
        assert client.received() == []
        sync(bench)
        assert client.received() == [PubAck(1, NOBODY)]


def test_acknowledgements_that_wait_say_that_the_log_does_not_work() -> None:
    """In MQTT 5; clients of 3.1.1 continue to wait, because that version has no refusal."""
    with Bench(durability=Durability.DISK) as bench:
        new, old = bench.client5("new"), bench.client("old")
        new.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 2, packet_id=2))
        old.send(Publish("t", b"3", 1, packet_id=1))
        rings_of(bench).refuse("t-0", 0x97)
        bench.settle(TIMEOUT_MS - 1)
        assert new.received() == []
        bench.settle(1)
        assert new.received() == [PubAck(1, ReasonCode.QUOTA_EXCEEDED), PubRec(2, ReasonCode.QUOTA_EXCEEDED)]
        assert old.received() == []
        rings_of(bench).refuse("t-0", 0)
        sync(bench)
        assert old.received() == [PubAck(1)]
        new.send(Publish("t", b"4", 2, packet_id=2))  # the identifier is free again
        sync(bench)
        assert new.received() == [PubRec(2)]
        assert [payload for _, payload in bench.records()] == [b"1", b"2", b"3", b"4"]


def test_an_old_client_is_cut_when_it_publishes_what_cannot_be_kept() -> None:
    with Bench(durability=Durability.INTERVAL) as bench:
        client = bench.client()
        client.send(Publish("t", b"0"))
        rings_of(bench).refuse("t-0", 0x97)
        bench.settle(TIMEOUT_MS)
        client.send(Publish("t", b"1", 1, packet_id=1))
        assert not client.is_open
        assert client.received() == []


def test_refusals_hold_for_a_ring_whose_first_topic_comes_later() -> None:
    with Bench(durability=Durability.DISK) as bench:
        rings_of(bench).refuse("t-0", 0x83)
        client = bench.client5()
        client.send(Publish("t", b"1", 1, packet_id=1))
        bench.settle(TIMEOUT_MS)
        assert client.received() == [PubAck(1, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)]


# ---- visible = durable ----


def test_subscribers_are_shown_what_is_durable(hiding: Bench) -> None:
    client, reader = hiding.client(), hiding.client("r")
    reader.subscribe("t", qos=1)
    publish(client, b"0", b"1")
    first_end = hiding.partition.writer.end_position
    publish(client, b"2")
    assert (client.received(), reader.received()) == ([], [])
    sync(hiding, first_end)
    assert [payload for _, payload, _ in reader.publishes()] == [b"0", b"1"]
    assert client.received() == [PubAck(1), PubAck(2)]
    sync(hiding)
    assert [payload for _, payload, _ in reader.publishes()] == [b"2"]


def test_a_record_behind_a_sync_is_not_shown(hiding: Bench) -> None:
    client, reader = hiding.client(), hiding.client("r")
    reader.subscribe("t")
    publish(client, b"0")
    end = hiding.partition.writer.end_position
    publish(client, b"1")
    sync(hiding, end)
    assert [payload for _, payload, _ in reader.publishes()] == [b"0"]


def test_a_retained_message_is_there_when_it_is_durable(hiding: Bench) -> None:
    client = hiding.client()
    publish(client, b"old", retain=True)
    sync(hiding)
    publish(client, b"new", retain=True)
    early = hiding.client("early")
    early.send(Subscribe(1, (Subscription("t"),)))
    assert [it.payload for it in early.received() if isinstance(it, Publish)] == [b"old"]
    sync(hiding)
    assert [payload for _, payload, _ in early.publishes()] == [b"new"]
    late = hiding.client("late")
    late.send(Subscribe(1, (Subscription("t"),)))
    assert [it.payload for it in late.received() if isinstance(it, Publish)] == [b"new"]


def test_other_streams_do_not_wait_behind_what_is_hidden(hiding: Bench) -> None:
    quick = hiding.add_partition(hiding.directory, "quick-0")
    hiding.partition_of = lambda topic: quick if topic == "quick" else hiding.partition
    client, reader = hiding.client(), hiding.client("r")
    reader.subscribe("#")
    publish(client, b"0", qos=0)
    publish(client, b"1", qos=0, topic="quick")
    assert reader.publishes() == [("quick", b"1", 0)]
    sync(hiding)
    assert reader.publishes() == [("t", b"0", 0)]


def test_who_published_is_remembered_until_it_is_shown(hiding: Bench) -> None:
    client, other = hiding.client5(), hiding.client5("other")
    client.send(Subscribe(1, (Subscription("t", no_local=True),)))
    other.send(Subscribe(1, (Subscription("t", no_local=True),)))
    client.received()
    other.received()
    publish(client, b"0")
    sync(hiding)
    assert [it for it in client.received() if isinstance(it, Publish)] == []
    assert other.publishes() == [("t", b"0", 0)]


def test_a_will_of_who_is_gone_is_shown_when_it_is_durable(hiding: Bench) -> None:
    from edge.mqtt import Will

    reader = hiding.client("r")
    reader.subscribe("t")
    hiding.client("dying", will=Will("t", b"last", 0, False)).drop()
    assert reader.received() == []
    sync(hiding)
    assert reader.publishes() == [("t", b"last", 0)]


def test_nothing_hidden_is_overwritten_before_it_was_shown(hiding: Bench) -> None:
    """Without a log that holds the ring, publishers are stopped at what was not shown."""
    client, reader = hiding.client("c", keep_alive_s=0), hiding.client("r")
    reader.subscribe("t")
    payload = bytes(100_000)
    for _ in range(20):
        client.send(Publish("t", payload))
    stored = hiding.partition.writer.end_offset
    assert 4 < stored < 11
    assert reader.received() == []
    sync(hiding)
    assert [len(payload) for _, payload, _ in reader.publishes()] == [100_000] * stored
    publish(client, payload)
    assert hiding.partition.writer.end_offset > stored


def test_a_topic_is_not_forgotten_while_something_of_it_is_hidden() -> None:
    with Bench(engine=EngineLimits(topics_max=64), durability=Durability.DISK, by_rules=False) as bench:
        bench.partition.ring.show_durable(True)
        client, reader = bench.client(), bench.client("r")
        reader.subscribe("first/#")
        publish(client, b"0", topic="first/a")
        quick = bench.add_partition(bench.directory, "quick-0")
        bench.partition_of = lambda topic: quick
        for number in range(200):
            publish(client, b"", qos=0, topic=f"other/{number}")
        sync(bench)
        assert reader.publishes() == [("first/a", b"0", 0)]


def test_thousands_of_records_are_shown_in_turns(hiding: Bench) -> None:
    client, reader = hiding.client(), hiding.client("r")
    reader.subscribe("t")
    for _ in range(100):
        client.send(*(Publish("t", b"%d" % number) for number in range(90)))
    hiding.partition.ring.durable(hiding.partition.writer.end_position)
    shown = []
    for _ in range(3):
        hiding.settle()
        shown.append(len(reader.publishes()))
    assert sum(shown) == 9000
    assert max(shown) < 9000, "others had to wait for all of them"


def test_readers_of_the_ring_are_shown_what_is_durable(hiding: Bench) -> None:
    client, ring = hiding.client(), hiding.partition.ring
    reader, early = ring.reader(start="oldest"), ring.reader(start="oldest", for_log=True)
    publish(client, b"0", b"1")
    first_end = hiding.partition.writer.end_position // 2
    assert (reader.poll(), reader.wait(0), len(reader.read_many())) == (None, False, 0)
    assert len(early.read_many()) == 2
    sync(hiding, first_end)
    assert [bytes(it.bytes()) for it in reader.read_many()] == [b"0"]
    reader.seek(2)
    assert reader.poll() is None
    reader.seek(1)
    assert reader.ranges(1 << 20) == []
    sync(hiding)
    record = reader.poll()
    assert record is not None
    assert (record.bytes(), record.flags & FLAG_QOS) == (b"1", 1)
    ring.show_durable(False)
    publish(client, b"2")
    assert len(reader.read_many()) == 1
    del record
    reader.close()
    early.close()


# ---- configuration ----


def problems(text: str) -> str:
    from edge.errors import ConfigError

    with pytest.raises(ConfigError) as error:
        parse(text)
    return str(error.value)


def test_upstream_is_refused_where_no_bridge_drains_the_stream() -> None:
    stream = '[[stream]]\nname = "a"\ntopics = ["a"]\ndurability = "upstream"\n'
    other = '[[stream]]\nname = "b"\ntopics = ["b"]\n'
    bridge = '[[bridge]]\nname = "lake"\nto = "file:///lake"\n'
    assert "durability \"upstream\" needs a [[bridge]] that drains stream 'a'" in problems(stream)
    assert "needs a [[bridge]] that drains stream" in problems(stream + other + bridge + 'streams = ["b"]\n')
    assert "skips records" in problems(stream + bridge + 'start = "latest"\n')
    assert parse(stream + bridge).stream[0].durability == "upstream"
    assert parse(stream + bridge + "in_broker = false\n").stream[0].durability == "upstream"


def test_visible_durable_is_refused_without_a_log() -> None:
    stream = '[[stream]]\nname = "a"\ntopics = ["a"]\nvisible = "durable"\n'
    assert '"durable" needs a log' in problems(stream)
    assert parse(stream + 'durability = "disk"\n').stream[0].visible == "durable"


def test_a_local_producer_is_refused_where_readers_wait_for_the_disk() -> None:
    stream = '[[stream]]\nname = "a"\ntopics = ["a"]\ndurability = "disk"\nvisible = "durable"\n'
    assert "shows" in problems(stream + '[[producer]]\nname = "p"\nstream = "a"\n')


def test_a_connect_is_answered_whatever_waits(hiding: Bench) -> None:
    publish(hiding.client(), b"0")
    wire = hiding.wire()
    wire.send(Connect("new"))
    assert len(wire.received()) == 1


# ---- messages of local publishers ----


def test_a_local_publisher_learns_which_messages_a_sink_has_lost() -> None:
    """Reports of sinks about records below those that wait, and of other rings, decide nothing."""
    with Bench(durability=Durability.UPSTREAM, by_rules=False) as bench:
        outlet, fates = outlet_of(bench), list[Fate]()
        outlet([Outgoing("t", b"early")], lambda _: None)
        rings_of(bench).upstream("t-0", 1, ())
        outlet([Outgoing("t", it) for it in (b"1", b"2", b"3")], fates.extend)
        for report in [("t-0", 1, [(0, 0)]), ("u-0", 9, [(0, 9)]), ("t-0", None, [(2, 2)]), ("t-0", 3, ())]:
            rings_of(bench).upstream(*report)
            outlet.report_durable()
            assert fates == []
        rings_of(bench).upstream("t-0", 4, ())
        assert outlet.report_durable() == float("inf")
        assert fates == ["stored", "refused", "stored"]


def test_a_local_publisher_that_comes_late_needs_no_further_report() -> None:
    with Bench(durability=Durability.UPSTREAM, by_rules=False) as bench:
        rings_of(bench).upstream("t-0", 1, ())  # before the first consumer
        outlet, fates = outlet_of(bench), list[Fate]()
        outlet([Outgoing("t", b"1")], fates.extend)
        outlet.report_durable()
        assert fates == ["stored"]


def test_only_messages_of_durability_upstream_wait_for_sinks() -> None:
    partitions = {it: SimpleNamespace(stream=f"stream of {it}", durability=it) for it in Durability}
    streams = SimpleNamespace(partition_of=partitions.__getitem__)
    outlet = BrokerOutlet(SimpleNamespace(), streams, lambda _: "")  # type: ignore[arg-type]
    assert {it for it in Durability if outlet.sinks_of(it)} == {Durability.UPSTREAM}
    assert outlet.sinks_of("upstream") == "stream of upstream"


def outlet_of(bench: Bench) -> BrokerOutlet:
    """An outlet whose threads are this one."""
    listener = SimpleNamespace(broker=bench.broker, call=lambda function: function())
    streams = SimpleNamespace(named=lambda _: (Stream(name="x", topics=("#",)), bench.partition))
    outlet = BrokerOutlet(listener, streams, lambda _: "")  # type: ignore[arg-type]
    outlet.follow_upstream()
    return outlet
