"""Other threads and processes of a broker: calls to its thread, syncs, and rings of local producers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from edge.broker.dispatcher import BrokerLimits
from edge.broker.sessions import SessionLimits
from edge.config.schema import Durability
from edge.mqtt import PubAck, Publish
from ringbuf import Ring
from tests.support.directories import memory_directory
from tests.support.mqtt_served import Served, served
from tests.support.waiting import PATIENCE_S, wait_until


@contextmanager
def producer_ring(there: Served, *, blocks_writer: bool = False) -> Iterator[tuple[Ring, int]]:
    """The ring of another process, and its number in the engine, until the test removes that."""
    with (
        memory_directory() as directory,
        Ring.create(directory / "t@cam", capacity_bytes=1 << 16, epoch=1) as ring,
    ):
        attached = Ring.attach(directory / "t@cam")
        reader = attached.reader(start="latest", verify=True, blocks_writer=blocks_writer)
        yield ring, there.ask(partial(there.listener.add_producer_ring, reader))
        reader.close()
        attached.close()


def test_a_sync_on_another_thread_releases_acknowledgements() -> None:
    with served(durability=Durability.DISK) as there, there.client() as client:
        client.send(Publish("t", b"1", 1, packet_id=1))
        wait_until(lambda: there.stats.gauges()["acks_waiting"] == 1)
        assert client.is_silent()
        there.partition.ring.durable(there.partition.writer.end_position)
        there.listener.wake()
        assert client.packet() == PubAck(1)


def test_other_threads_publish_and_ask() -> None:
    with served() as there, there.client() as client:
        client.subscribe("from/#", 1)
        assert there.listener.publish("from/a/thread", b"1", 1)
        assert client.publish().payload == b"1"
        assert there.ask(lambda: threading.current_thread().name) == "brim-mqtt"
        with pytest.raises(ZeroDivisionError):
            there.ask(lambda: 1 / 0)
        rows = there.ask(lambda: there.stats.clients(there.listener.broker.sessions))
        assert [(row.client_id, row.subscriptions, row.delivered) for row in rows] == [("c", 1, 1)]


def test_an_answer_that_is_no_longer_awaited_is_dropped_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with served() as there:
        busy, seen = threading.Event(), []
        there.listener.call(lambda: busy.wait(PATIENCE_S))
        left = there.listener.submit(lambda: seen.append("left"))
        assert left.cancel()
        busy.set()
        assert there.listener.submit(lambda: 1).result(PATIENCE_S) == 1
    assert seen == []
    assert "failed" not in caplog.text


def test_a_call_that_fails_is_logged_and_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    with served() as there, there.client() as client:
        there.listener.call(lambda: 1 / 0)
        client.ping()
        there.ask(lambda: None)
        assert "ZeroDivisionError" in caplog.text
        caplog.clear()


def test_records_of_another_process_are_routed_when_the_loop_is_woken() -> None:
    with served() as there, there.client() as client:
        client.subscribe("cam/#")
        with producer_ring(there) as (ring, source):
            writer = ring.writer()
            for i in range(3):
                writer.publish(b"%d" % i, key=f"cam/{i}")
                there.listener.wake()
                assert client.publish().payload == b"%d" % i
            there.ask(lambda: there.listener.remove_ring(source))


def test_a_producer_that_waits_for_us_loses_nothing_on_the_way_to_a_client_that_reads() -> None:
    count = 3_000
    with served() as there, there.client() as client:
        client.subscribe("cam/#")
        with producer_ring(there, blocks_writer=True) as (ring, source):
            writer = ring.writer(when_full="block", queue_timeout_ms=20_000)

            def produce() -> None:
                for i in range(count):
                    assert writer.publish(b"%04d" % i + bytes(200), key="cam/1") is not None
                    there.listener.wake()

            producing = threading.Thread(target=produce)
            producing.start()
            assert [int(client.publish().payload[:4]) for _ in range(count)] == list(range(count))
            producing.join()
            there.ask(lambda: there.listener.remove_ring(source))


def test_a_producer_that_stops_heeding_us_is_read_on() -> None:
    with served() as there, there.client() as client:
        client.subscribe("cam/#")
        with producer_ring(there, blocks_writer=True) as (ring, source):
            writer = ring.writer()
            (slot,) = [slot.slot for slot in ring.slots() if not slot.local]
            ring.evict(slot)
            writer.publish(b"after it", key="cam/1")
            there.listener.wake()
            assert client.publish().payload == b"after it"
            assert there.stats.totals()["producer_evictions"] == 1
            there.ask(lambda: there.listener.remove_ring(source))


def test_a_window_full_of_a_source_that_is_removed_opens_again() -> None:
    limits = BrokerLimits(sessions=SessionLimits(in_flight_max=2))
    with served(limits=limits) as there, there.client() as client:
        client.subscribe("#", 1)
        with producer_ring(there) as (ring, source):
            writer = ring.writer()
            writer.publish_many([b"1", b"2"], key="cam", flags=1)
            there.listener.wake()
            assert [client.publish().payload for _ in range(2)] == [b"1", b"2"]  # never acknowledged
            there.listener.publish("t", b"waits", 1)
            there.ask(lambda: None)
            assert client.is_silent()
            there.ask(lambda: there.listener.remove_ring(source))
            assert client.publish().payload == b"waits"
