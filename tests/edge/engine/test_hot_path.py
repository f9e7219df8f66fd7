"""Messages and rings: durable acknowledgements, full rings, rings of other writers."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.retained_admin import RetainedAdmin
from edge.broker.sessions import SessionLimits
from edge.config.schema import Durability
from edge.engine.engine import EngineLimits
from edge.mqtt import (
    Connect,
    PingReq,
    PingResp,
    Properties,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Version,
    encode,
)
from ringbuf import FLAG_RETAIN, Writer
from tests.support.mqtt_bench import Bench, OwnPartition
from tests.support.mqtt_producer import producer_of
from tests.support.tenant_bench import A, bench_of

# ---- durability = disk ----


def test_on_disk_an_acknowledgement_waits_until_its_record_is_durable() -> None:
    with Bench(durability=Durability.DISK) as bench:
        client, reader = bench.client(), bench.client("r")
        reader.subscribe("t")
        client.send(Publish("t", b"1", 1, packet_id=1))
        first_end = bench.partition.writer.end_position
        client.send(Publish("t", b"2", 2, packet_id=2), Publish("t", b"3", 1, packet_id=3))
        assert client.received() == []
        assert len(reader.publishes()) == 3  # subscribers do not wait
        bench.partition.ring.durable(first_end - 1)
        bench.settle()
        assert client.received() == []
        bench.partition.ring.durable(first_end)
        bench.settle()
        assert client.received() == [PubAck(1)]
        bench.partition.ring.durable(bench.partition.writer.end_position)
        bench.settle()
        assert client.received() == [PubRec(2), PubAck(3)]
        assert bench.stats.gauges()["acks_waiting"] == 0


def test_acknowledgements_of_a_connection_keep_their_order_whatever_they_wait_for() -> None:
    with Bench(durability=Durability.DISK, by_rules=False) as bench:
        quick = bench.add_partition(bench.directory, "quick-0")
        bench.partition_of = lambda topic: quick if topic == "quick" else bench.partition
        client, other = bench.client(), bench.client("o")
        client.send(Publish("slow", b"1", 1, packet_id=1), Publish("quick", b"2", 1, packet_id=2))
        other.send(Publish("quick", b"3", 1, packet_id=1))
        assert client.received() == []
        assert other.received() == [PubAck(1)]
        bench.partition.ring.durable(bench.partition.writer.end_position)
        bench.settle()
        assert client.received() == [PubAck(1), PubAck(2)]


def test_a_repeated_qos_2_message_is_not_acknowledged_before_its_record_can_be_durable() -> None:
    with Bench(durability=Durability.DISK) as bench:
        client = bench.client("c", clean_start=False)
        client.send(Publish("t", b"1", 2, packet_id=5))
        client.drop()
        assert bench.stats.gauges()["acks_waiting"] == 0
        client = bench.client("c", clean_start=False, present=True)
        client.send(Publish("t", b"1", 2, dup=True, packet_id=5))
        assert client.received() == []
        bench.partition.ring.durable(bench.partition.writer.end_position)
        bench.settle()
        assert client.received() == [PubRec(5)]
        client.send(PubRel(5))
        assert client.received() == [PubComp(5)]
        assert bench.records() == [("t", b"1")]


def test_a_client_with_too_many_unacknowledged_messages_is_not_read_until_the_disk_has_caught_up() -> None:
    with Bench(engine=EngineLimits(receive_max=10), durability=Durability.DISK) as bench:
        client = bench.client(keep_alive_s=1)
        client.send(*(Publish("t", b"%d" % i, 1, packet_id=i + 1) for i in range(25)))
        assert len(bench.records()) == 10
        bench.settle(10_000)  # its packets are not read, so its keep-alive does not run
        for expected in (10, 20, 25):
            assert len(bench.records()) == expected
            bench.partition.ring.durable(bench.partition.writer.end_position)
            bench.settle()
        assert client.received() == [PubAck(i + 1) for i in range(25)]


# ---- full rings ----


@contextmanager
def full_ring(partition: OwnPartition) -> Iterator[Writer]:
    """The ring is full: a blocking reader of this process stands at its beginning."""
    reader = partition.ring.reader(start="oldest", blocks_writer=True, local=True)
    writer = partition.writer
    while writer.publish(bytes(10_000), key="filler") is not None:
        pass
    while writer.publish(b"", key="filler") is not None:
        pass
    yield writer
    reader.close()


BLOCK = {"when_full": "block", "queue_timeout_ms": 200}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_publisher_waits_for_room_and_goes_on_when_there_is_some(qos: int) -> None:
    with Bench(writer=BLOCK, capacity_bytes=1 << 16) as bench:
        client = bench.client()
        client.send(Publish("t", b"0"))
        with full_ring(bench.partition):
            client.send(*(Publish("t", b"%d" % i, qos, packet_id=i if qos else 0) for i in (1, 2)))
            bench.settle(150)
            assert client.is_open
            assert client.received() == []
            assert bench.stats.gauges()["blocked"] == 1
            assert bench.stats.totals()["full_waits"] > 0
        bench.settle(10)
        assert [payload for _, payload in bench.records()[-2:]] == [b"1", b"2"]
        assert len(client.received()) == (2 if qos else 0)
        assert bench.stats.gauges()["blocked"] == 0


def test_after_the_queue_timeout_qos_0_is_dropped_and_counted_and_the_next_does_not_wait() -> None:
    with Bench(writer=BLOCK, capacity_bytes=1 << 16) as bench:
        client = bench.client()
        client.send(Publish("t", b"0"))
        with full_ring(bench.partition):
            client.send(Publish("t", b"1"))
            bench.settle(250)
            client.send(*(Publish("t", b"%d" % i) for i in range(2, 10)))
            assert bench.stats.dropped()["full"] == 9
            assert client.is_open
        client.send(Publish("t", b"there is room again"))
        assert bench.records()[-1] == ("t", b"there is room again")


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_client_that_comes_to_a_ring_that_others_keep_full_waits_for_its_own_timeout(qos: int) -> None:
    with Bench(writer=BLOCK, capacity_bytes=1 << 16) as bench:
        flood, late = bench.client("flood"), bench.client("late")
        for client in (flood, late):
            client.send(Publish("t", b"0"))
        with full_ring(bench.partition):
            flood.send(Publish("t", b"flood"))
            bench.settle(250)
            assert bench.stats.dropped()["full"] == 1
            late.send(Publish("t", b"late", qos, packet_id=1 if qos else 0))
            bench.settle(150)
        bench.settle(10)
        assert late.is_open
        assert bench.records()[-1] == ("t", b"late")
        assert bench.stats.dropped()["full"] == 1


def test_a_client_with_two_full_rings_waits_once_for_both_so_that_its_ping_is_answered() -> None:
    with Bench(writer=BLOCK, capacity_bytes=1 << 16, by_rules=False) as bench:
        other = bench.add_partition(bench.directory, "other-0", capacity_bytes=1 << 16, writer=BLOCK)
        bench.partition_of = lambda topic: other if topic == "other" else bench.partition
        client, flood = bench.client(), bench.client("flood")
        for topic in ("t", "other"):
            client.send(Publish(topic, b"0"))
            flood.send(Publish(topic, b"0"))
        with full_ring(bench.partition), full_ring(other):
            flood.send(Publish("t", b"1"))
            bench.settle(250)
            flood.send(Publish("other", b"1"))
            bench.settle(250)
            client.send(*(Publish(topic, b"1") for topic in ("t", "other") * 8), PingReq())
            bench.settle(250)
            assert client.received() == [PingResp()]
            assert bench.stats.dropped()["full"] == 2 + 16


@pytest.mark.parametrize("qos", [1, 2])
def test_after_the_queue_timeout_a_higher_qos_ends_the_connection_so_that_it_is_sent_again(qos: int) -> None:
    with Bench(writer=BLOCK, capacity_bytes=1 << 16) as bench:
        client = bench.client("c", clean_start=False)
        client.send(Publish("t", b"0"))
        with full_ring(bench.partition):
            client.send(Publish("t", b"1", qos, packet_id=1))
            bench.settle(250)
            assert not client.is_open  # [MQTT-4.8.0-2]
            assert bench.stats.closed()["full"] == 1
        client = bench.client("c", clean_start=False, present=True)
        client.send(Publish("t", b"1", qos, dup=True, packet_id=1))
        assert client.received() == [PubAck(1) if qos == 1 else PubRec(1)]
        assert [payload for topic, payload in bench.records() if topic == "t"][-1:] == [b"1"]


def test_a_stream_that_rejects_does_not_make_anybody_wait() -> None:
    with Bench(writer={"when_full": "reject"}, capacity_bytes=1 << 16) as bench:
        client = bench.client()
        client.send(Publish("t", b"0"))
        with full_ring(bench.partition):
            client.send(Publish("t", b"1"))
            assert bench.stats.dropped()["full"] == 1
            assert bench.stats.gauges()["blocked"] == 0


def test_a_foreign_reader_that_stalls_is_evicted_after_the_queue_timeout() -> None:
    with Bench(writer=BLOCK, capacity_bytes=1 << 16) as bench:
        client = bench.client()
        client.send(Publish("t", b"0"))
        reader = bench.partition.ring.reader(start="oldest", blocks_writer=True)
        client.send(*(Publish("t", bytes(1000), 1, packet_id=i + 1) for i in range(200)))
        assert len(client.received()) < 200
        bench.settle(250)
        assert len(client.received()) > 100
        assert client.is_open
        reader.close()


def test_the_brokers_own_messages_wait_for_room_in_their_order() -> None:
    with Bench(writer=BLOCK, capacity_bytes=1 << 16) as bench:
        assert bench.broker.publish("t", b"0")
        with full_ring(bench.partition):
            assert bench.broker.publish("t", b"1", 1)
            assert bench.broker.publish("t", b"2")
            bench.settle(50)
        bench.settle(10)
        assert [payload for topic, payload in bench.records() if topic == "t"][-2:] == [b"1", b"2"]


def test_an_operator_clears_no_retained_message_whose_ring_is_full() -> None:
    with Bench(writer=BLOCK, capacity_bytes=1 << 16) as bench:
        bench.client().send(Publish("t", b"v", retain=True))
        admin = RetainedAdmin(bench.broker)
        with full_ring(bench.partition):
            count, place, _ = admin.clear("#", 0)
            assert count == 0
            assert place is not None
            assert len(bench.broker.own_messages) == 0  # a kill would lose a removal that waits there
        bench.settle(10)
        assert admin.clear("#", place)[0] == 1
        assert admin.page("#", 0, 0)[0] == []


def test_a_message_longer_than_a_record_may_be_is_refused() -> None:
    with Bench(capacity_bytes=1 << 16) as bench:
        client = bench.client()
        client.send(Publish("t", bytes(20_000)))
        assert client.is_open
        assert bench.stats.dropped()["too large"] == 1
        client.send(Publish("t", bytes(20_000), 1, packet_id=1))
        assert not client.is_open


def test_all_queues_together_have_a_bound() -> None:
    with Bench(
        engine=EngineLimits(queues_max_bytes=20_000),
        limits=BrokerLimits(sessions=SessionLimits(queued_records_max=10_000)),
    ) as bench:
        for i in range(4):
            reader = bench.client(f"r{i}", clean_start=False)
            reader.subscribe("t", qos=1)
            reader.drop()
        writer = bench.client("w")
        for _ in range(10):
            writer.send(*(Publish("t", b"x", 1, packet_id=i + 1) for i in range(100)))
        assert bench.stats.gauges()["queues_bytes"] <= 20_000
        assert bench.stats.dropped()["memory"] > 0
        for i in range(4):
            bench.client(f"r{i}").drop()
        assert bench.stats.gauges()["queues_bytes"] == 0


# ---- rings that another process writes ----


def test_records_of_a_local_producer_reach_subscribers_without_being_copied_to_another_ring() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        client = bench.client()
        client.subscribe("cam/#", qos=1)
        producer.publish(("cam/1", b"frame 1"), ("cam/2", b"frame 2"), ("other", b"x"), flags=1)
        assert client.publishes() == [("cam/1", b"frame 1", 1), ("cam/2", b"frame 2", 1)]
        assert bench.records() == []
        assert bench.stats.totals()["from_producers"] == 3


def test_properties_of_a_record_are_not_for_clients_whose_version_has_none() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        client = bench.client()
        client.subscribe("cam/1")
        assert producer.writer.publish(b"frame", key="cam/1", properties=b"\x02\x01\x01") is not None
        bench.engine.read_producers()
        bench.settle()
        assert client.publishes() == [("cam/1", b"frame", 0)]


def test_what_a_local_producer_retains_keeps_its_properties_if_they_are_right() -> None:
    kinds, expiry = b"\3\0\1a", b"\2\0\0\0\x3c"
    right, wrong = kinds + expiry, b"\3\0\2a"
    with Bench() as bench, producer_of(bench) as producer:
        for key, properties in (("right", right), ("wrong", wrong)):
            section = bytes((len(properties),)) + properties
            assert producer.writer.publish(b"x", key=key, flags=FLAG_RETAIN, properties=section) is not None
        bench.engine.read_producers()
        bench.settle()
        client = bench.client(version=Version.V5)
        client.send(Subscribe(1, (Subscription("#"),)))
        _, published = client.received()
        assert published == Publish(
            "right",
            b"x",
            retain=True,
            properties=Properties(content_type="a", message_expiry_interval_s=60),
        )


def test_a_local_producer_may_not_use_what_is_no_topic_or_the_servers() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        client = bench.client()
        client.subscribe("#")
        client.subscribe("$SYS/#")
        bench.broker.publish("$SYS/x", b"real")
        producer.publish(("a/+", b"1"), ("$SYS/x", b"2"), ("$SYS/y", b"3"), ("", b"4"), ("ok", b"5"))
        assert client.publishes() == [("$SYS/x", b"real", 0), ("ok", b"5", 0)]
        assert bench.stats.dropped()["denied"] == 1
        assert bench.stats.dropped()["topics"] == 3


def test_a_local_producer_does_not_reach_a_topic_that_a_tenant_uses() -> None:
    with bench_of() as bench, producer_of(bench) as producer:
        client = bench.client(listener=A)
        client.subscribe("#")
        client.send(Publish("x", b"own"))  # the engine knows $tenant/a/x from now on
        producer.publish(("$tenant/a/x", b"1"), ("$tenant/a/y", b"2"))
        assert client.publishes() == [("x", b"own", 0)]
        assert bench.stats.dropped()["denied"] == 1
        assert bench.stats.dropped()["topics"] == 1


def test_a_local_producer_may_retain() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        producer.publish(("cam/1", b"latest"), flags=FLAG_RETAIN)
        client = bench.client()
        client.send(Subscribe(1, (Subscription("cam/+"),)))
        assert client.received()[1:] == [Publish("cam/1", b"latest", retain=True)]


def test_a_record_that_its_producer_overwrote_before_delivery_is_an_overrun() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        client = bench.client()
        client.subscribe("cam/1")
        producer.publish(("cam/1", b"too late"))
        producer.publish(*[("noise", bytes(8_000))] * 9)
        producer.publish(("cam/1", b"in time"))
        assert client.publishes() == [("cam/1", b"in time", 0)]
        assert bench.stats.dropped()["overrun"] == 1


@pytest.mark.parametrize("by", [b"secret", b"cam/2!"])
def test_a_producer_that_changes_a_topic_after_it_was_routed_is_found_out(by: bytes) -> None:
    with Bench() as bench, producer_of(bench) as producer:
        client = bench.client()
        client.subscribe("cam/12")
        producer.publish(("cam/12", b"innocent"))
        producer.spoil(b"cam/12", by)
        assert client.publishes() == []
        assert bench.stats.dropped()["forged"] == 1


@pytest.mark.parametrize("length", [1, 31, 33, 1 << 20, 0xFFFF_FFFF])
def test_a_producer_that_changes_a_length_after_it_was_routed_does_no_harm(length: int) -> None:
    with Bench() as bench, producer_of(bench) as producer:
        client = bench.client()
        client.subscribe("cam/1")
        producer.publish(("cam/1", b"innocent"))
        header = 32
        with open(f"{producer.path}.ring", "r+b") as file:
            data = file.read()
            file.seek(data.rindex(b"cam/1") - header)
            file.write(struct.pack("<I", length))
        assert client.publishes() in ([], [("cam/1", b"innocent", 0)])
        assert sum(bench.stats.dropped().values()) == 1


def test_a_ring_that_holds_no_records_is_read_no_further_and_harms_nobody() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        bad: list[int] = []
        bench.broker.on_producer_bad = bad.append
        client = bench.client()
        client.subscribe("#")
        producer.writer.publish(b"this will not verify", key="cam/1")
        producer.spoil(b"not verify", b"NOT VERIFY")
        producer.publish(("cam/1", b"after it"))
        assert bad == [producer.source]
        assert client.publishes() == []
        client.send(Publish("t", b"fine"))
        assert client.publishes() == [("t", b"fine", 0)]


def test_a_source_that_is_removed_leaves_nothing_to_deliver_though_its_number_is_used_again() -> None:
    with Bench() as bench:
        with producer_of(bench) as producer:
            client = bench.client("c", clean_start=False)
            client.subscribe("#", qos=1)
            producer.publish(("cam/1", b"sent"), flags=1)
            assert client.publishes() == [("cam/1", b"sent", 1)]
            producer.publish(("cam/1", b"gone"), flags=1)
            first = producer.source
        with producer_of(bench) as producer:
            assert producer.source == first
            producer.publish(("cam/1", b"new1"), ("cam/1", b"new2"), flags=1)
            assert client.publishes() == [("cam/1", b"new1", 1), ("cam/1", b"new2", 1)]
            assert bench.stats.dropped()["overrun"] == 1
            client.drop()
            client = bench.wire()
            client.send(Connect("c", clean_start=False))
            again = [packet.payload for packet in client.received() if isinstance(packet, Publish)]
            assert again == [b"new1", b"new2"]


def test_a_client_that_returns_gets_what_a_producer_wrote_meanwhile() -> None:
    with Bench() as bench, producer_of(bench) as producer:
        client = bench.client("c", clean_start=False)
        client.subscribe("cam/1", qos=1)
        client.drop()
        producer.publish(("cam/1", b"kept"), flags=1)
        client = bench.wire()
        client.send(Connect("c", clean_start=False))
        assert client.received()[1:] == [Publish("cam/1", b"kept", 1, packet_id=1)]


def test_a_ping_is_answered_behind_what_was_there_for_the_client() -> None:
    with Bench() as bench:
        client = bench.client("c")
        client.subscribe("t")
        client.send(Publish("t", b"1"), Publish("t", b"2"), PingReq())
        assert client.received() == [Publish("t", b"1"), Publish("t", b"2"), PingResp()]


def test_of_many_pings_in_a_turn_one_looks_for_what_is_there() -> None:
    with Bench() as bench:
        client = bench.client("c")
        client.subscribe("t")
        client.send(Publish("t", b"0"))
        client.received()
        client.send(Publish("t", b"1"), PingReq(), Publish("t", b"2"), PingReq())
        assert client.received() == [Publish("t", b"1"), PingResp(), PingResp(), Publish("t", b"2")]


@pytest.mark.parametrize("qos", [0, 1])
def test_payloads_are_counted_in_bytes_both_ways(qos: int) -> None:
    with Bench() as bench:
        client = bench.client("c")
        client.subscribe("t", qos=qos)
        client.send(*(Publish("t", b"12345", qos, packet_id=n * qos) for n in (1, 2, 3)))
        client.received()
        assert bench.stats.totals()["published_bytes"] == bench.stats.totals()["delivered_bytes"] == 15


def test_one_client_has_the_broker_for_a_turn_only() -> None:
    with Bench() as bench:
        listeners = [bench.client(f"l{n}") for n in range(100)]
        for listener in listeners:
            listener.subscribe("t")
        flooder = bench.client("flooder")
        flooder.send(Publish("t", b""))  # a topic that is known
        data = b"".join(encode(Publish("t", b"%d" % n)) for n in range(1_000))
        before = bench.stats.totals()["published"]
        assert bench.engine.feed(flooder.handle, data) == len(data)
        assert 50 < bench.stats.totals()["published"] - before < 200
        bench.settle()
        for listener in listeners:
            assert [it[1] for it in listener.publishes()] == [b"", *(b"%d" % n for n in range(1_000))]
