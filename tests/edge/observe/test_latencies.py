"""Latencies: times from a record to its subscriber and to its sink, in the report and on the page."""

import itertools
from pathlib import Path
from typing import Any

from edge.mqtt import PubAck, Publish, SubAck, Subscribe, Subscription, Version
from edge.observe.prometheus import page
from persistence.stats import MILLISECOND_NS, LatencyHistogram
from tests.edge.observe.test_prometheus import families, status
from tests.support.brim_process import BrimProcess
from tests.support.mqtt_bench import Bench
from tests.support.mqtt_socket import SocketClient
from tests.support.status_report import report_of
from tests.support.waiting import wait_until

MESSAGES = 200


def test_a_sample_of_deliveries_of_each_kind_is_measured() -> None:
    with Bench() as bench:
        plain, other = bench.client("plain"), bench.client("other", version=Version.V5)
        plain.subscribe("t")
        other.subscribe("t", qos=1)
        publisher = bench.client("publisher")
        for number in range(1, MESSAGES + 1):
            publisher.send(Publish("t", b"x", 1, packet_id=number))
            assert len(plain.publishes()) == 1
            (message,) = other.received()
            assert isinstance(message, Publish)
            other.send(PubAck(message.packet_id))
        times = bench.stats.delivery
        assert MESSAGES // 64 <= times.count <= 2 * MESSAGES
        assert sum(times.counts) == times.count
        assert times.total_ns >= times.max_ns > 0


def test_a_retained_message_is_no_late_delivery() -> None:
    with Bench() as bench:
        bench.client("publisher").send(Publish("t", b"x", retain=True))
        late = bench.client("late")
        late.send(Subscribe(1, (Subscription("t", 0),)))
        assert [type(packet) for packet in late.received()] == [SubAck, Publish]
        assert bench.stats.delivery.count == 0


def test_the_report_has_the_times_to_subscribers_and_to_the_sink(
    runtime_directory: Path, tmp_path: Path
) -> None:
    def report() -> dict[str, Any]:
        return report_of(broker.runtime_dir)

    with BrimProcess(runtime_directory, tmp_path) as broker:
        with SocketClient(broker.port, "reader") as reader, SocketClient(broker.port, "writer") as writer:
            reader.send(Subscribe(1, (Subscription("t", 0),)))
            assert isinstance(reader.receive(), SubAck)
            writer.send(Publish("t", b"x", 1, packet_id=1))
            assert isinstance(writer.receive(), PubAck)
            assert isinstance(reader.receive(), Publish)
        wait_until(lambda: report()["bridges"][0]["drain"]["count"])
        delivery, drain = report()["mqtt"]["delivery"], report()["bridges"][0]["drain"]
        assert delivery["count"] == list(delivery["below_us"].values())[-1] == 1
        assert drain["total_us"] >= 1_000_000  # linger_ms is a second


def test_every_histogram_has_the_same_buckets_from_the_start() -> None:
    slow, fast, empty = (LatencyHistogram() for _ in range(3))
    slow.add(10_000_000_000)
    slow.add(40_000_000_000)  # above all bounds
    fast.add(1)
    bounds = [*((1 << power) / 1e6 for power in range(25)), float("inf")]
    for histogram in (slow, fast, empty):
        found = status()
        found["mqtt"]["delivery"] = histogram.as_dict()
        (family,) = [it for it in families(page(found)) if it.name == "brim_mqtt_delivery_seconds"]
        buckets = [it for it in family.samples if it.name.endswith("_bucket")]
        assert [float(it.labels["le"]) for it in buckets] == bounds
        assert all(a.value <= b.value for a, b in itertools.pairwise(buckets))
        assert buckets[-1].value == histogram.count
        assert buckets[-2].value == histogram.count - (histogram is slow)


def test_times_of_hours_have_bounds_too() -> None:
    times = LatencyHistogram(MILLISECOND_NS)
    times.add(3_600_000_000_000)
    assert times.quantile_us(1.0) == 1000 << 22
    assert next(iter(times.below_us())) == "1000"
