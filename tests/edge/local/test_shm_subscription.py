"""Subscribers and producers in shared memory, across the death of the broker."""

import asyncio
import os
import time
from collections import defaultdict
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest

from brim import Place, producer
from brim import subscribe as subscribe_shm
from brim.asyncio import subscribe as async_subscribe_shm
from edge.config.schema import Stream
from edge.errors import BrokerUnreachable, EdgeError, InvalidArgument, NotOpen, Refused
from edge.local.protocol import Connection, Produce, RingInfo, RingList
from edge.local.shm_subscription import RingSubscription
from ringbuf import Ring
from tests.support.children import Child, ModuleChild
from tests.support.local_broker import LocalBroker, small_config
from tests.support.rings import drained, new_ring, publish_to_lap
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usefixtures("wakeup_ends")

BROKER = "tests.support.local_broker"


@pytest.fixture
def config(runtime_directory, tmp_path):
    return small_config(runtime_directory, tmp_path)


async def take(subscription, count: int) -> list[bytes]:
    """The next `count` payloads."""
    found: list[bytes] = []
    async with asyncio.timeout(PATIENCE_S):
        async for batch in subscription:
            found += [bytes(record) for record in batch]
            if len(found) >= count:
                return found
    raise AssertionError


async def test_records_of_the_wanted_topics_come_from_all_rings(config):
    async with (
        LocalBroker(config) as broker,
        async_subscribe_shm(["a/+", "b"], runtime_dir=config.runtime_dir) as sub,
    ):
        sent = set()
        for number in range(40):
            for topic in ("a/1", "a/2/x", "a/3", "b", "c"):
                broker.publish(topic, f"{topic} {number}")
                sent.add(f"{topic} {number}".encode())
        expected = {payload for payload in sent if payload.split()[0] in {b"a/1", b"a/3", b"b"}}
        assert set(await take(sub, len(expected))) == expected
        assert {name for name, place in sub.places().items() if place.offset} == {
            "some-0",
            "some-1",
            "default-0",
        }


async def test_a_record_is_the_rings_own_memory_with_its_place(config):
    async with LocalBroker(config) as broker, async_subscribe_shm("b", runtime_dir=config.runtime_dir) as sub:
        ring, epoch, offset = broker.publish("b", b"21.5")
        batch = await anext(sub)
        assert (batch.ring, batch.stream, batch.epoch, batch.lost, len(batch)) == (
            ring,
            "default",
            epoch,
            0,
            1,
        )
        assert (batch[0].offset, batch[0].key, bytes(batch[0])) == (offset, b"b", b"21.5")
        with memoryview(batch[0]) as view:
            assert view.readonly
        assert list(batch.records.offsets) == [offset]


async def test_a_subscription_starts_where_it_is_told(config):
    async with LocalBroker(config) as broker:
        for number in range(3):
            broker.publish("b", str(number))
        epoch = broker.streams.partition_of("b").ring.epoch
        async with async_subscribe_shm("b", runtime_dir=config.runtime_dir, start="oldest") as sub:
            assert await take(sub, 3) == [b"0", b"1", b"2"]
            places = sub.places()
        broker.publish("b", b"3")
        for start in (places, {"default-0": Place(epoch, 3)}):
            async with async_subscribe_shm("b", runtime_dir=config.runtime_dir, start=start) as sub:
                assert await take(sub, 1) == [b"3"]
        async with async_subscribe_shm(
            "b", runtime_dir=config.runtime_dir, start={"default-0": Place(epoch + 1, 3)}
        ) as sub:
            assert await take(sub, 4) == [b"0", b"1", b"2", b"3"]  # another epoch: all of this one


async def test_a_subscriber_that_is_lapped_learns_how_many_it_lost(config):
    async with LocalBroker(config) as broker, async_subscribe_shm("b", runtime_dir=config.runtime_dir) as sub:
        for _ in range(500):
            broker.publish("b", b"x" * 1000)
        batch = await anext(sub)
        assert batch.lost == batch[0].offset > 0
        seen = len(batch)
        while (more := await sub.read()) is not None:
            seen += len(more)
        assert sub.lost + seen == 500
        places = {"default-0": Place(batch.epoch, 2)}
        async with async_subscribe_shm("b", runtime_dir=config.runtime_dir, start=places) as late:
            batch = await anext(late)
            assert batch.lost == batch[0].offset - 2


def test_without_asyncio_a_for_loop_does_the_same(config):
    with ModuleChild(BROKER, config.runtime_dir, config.state_dir) as broker:
        assert broker.line() == "ready"
        for filters, topics in (("b", ["b"]), ("#", ["b", "a/1", "a/2", "a/3"])):  # one ring, several rings
            with subscribe_shm(filters, runtime_dir=config.runtime_dir) as sub:
                assert sub.read() is None
                assert sub.read(0.01) is None
                for topic in topics:
                    broker.say(f"{topic} {topic}")
                found = []
                for batch in sub:
                    found += [bytes(record).decode() for record in batch]
                    if len(found) == len(topics):
                        break
                assert sorted(found) == sorted(topics)


SUBSCRIBER = """
import asyncio, sys
from pathlib import Path
from brim.asyncio import subscribe as subscribe_shm
async def main():
    async with subscribe_shm("#", runtime_dir=Path(sys.argv[1])) as subscription:
        print("ready", flush=True)
        async for batch in subscription:
            for record in batch:
                print(batch.ring, batch.epoch, record.offset, batch.lost, bytes(record).decode(), flush=True)
asyncio.run(main())
"""


def test_a_subscriber_sees_every_offset_once_across_kill_9_of_the_broker(config):
    """Three lives of a broker, each killed while it publishes, and one of a subscriber, another process."""
    published: list[list[str]] = []
    subscriber = None
    try:
        for life in range(3):
            with ModuleChild(BROKER, config.runtime_dir, config.state_dir) as broker:
                assert broker.line() == "ready"
                if subscriber is None:
                    subscriber = Child(SUBSCRIBER, config.runtime_dir)
                    assert subscriber.line() == "ready"
                topics = ["b", "a/1", "a/2", "a/3"]
                for number in range(200):
                    broker.say(f"{topics[number % 4]} {life}.{number}")
                published += [broker.line().split() for _ in range(150)]
                published += [line.split() for line in broker.kill()]
        assert subscriber is not None
        wanted = {(ring, int(epoch), int(offset)) for ring, epoch, offset in published}
        seen: dict[tuple[str, int, int], str] = {}
        offsets: dict[str, list[int]] = defaultdict(list)
        while wanted - seen.keys():
            ring, epoch, offset, lost, payload = subscriber.line().split()
            place = (ring, int(epoch), int(offset))
            assert place not in seen
            assert lost == "0"
            seen[place] = payload
            offsets[ring].append(int(offset))
        assert all(found == list(range(len(found))) for found in offsets.values())
        assert len({epoch for _, epoch, _ in seen}) <= 3  # one for each ring: they were re-attached
    finally:
        if subscriber is not None:
            subscriber.__exit__(None, None, None)


async def test_a_ring_that_began_anew_is_read_after_the_old_one_to_its_end(config):
    async with LocalBroker(config) as broker, async_subscribe_shm("b", runtime_dir=config.runtime_dir) as sub:
        broker.publish("b", b"old, unread when the broker stops")
        old = broker.streams.partition_of("b").ring.path
        await broker.__aexit__(None, None, None)
        old.with_name("default-0.ring").unlink()
        old.with_name("default-0.cursors").unlink()
        async with LocalBroker(config) as again:
            again.publish("b", b"new, before it is found")
            assert await take(sub, 2) == [
                b"old, unread when the broker stops",
                b"new, before it is found",
            ]
            assert sub.connected
            again.publish("b", b"newer")
            assert await take(sub, 1) == [b"newer"]


async def test_losses_of_a_new_ring_are_reported_though_it_was_opened_late(config):
    async with LocalBroker(config) as broker, async_subscribe_shm("b", runtime_dir=config.runtime_dir) as sub:
        broker.publish("b", b"of the first ring")
        assert await take(sub, 1) == [b"of the first ring"]
        places = sub.places()
        old = broker.streams.partition_of("b").ring.path
        await broker.__aexit__(None, None, None)
        old.with_name("default-0.ring").unlink()
        async with LocalBroker(config) as again:
            for _ in range(500):
                again.publish("b", b"x" * 1000)
            batch = await anext(sub)
            assert batch.lost == batch[0].offset > 0
            async with async_subscribe_shm("b", runtime_dir=config.runtime_dir, start=places) as late:
                late_batch = await anext(late)
                assert (late_batch.epoch, late_batch.lost) == (batch.epoch, late_batch[0].offset)


async def test_losses_of_a_new_producer_are_reported_though_its_ring_was_opened_late(config):
    async with LocalBroker(config), async_subscribe_shm("a/#", runtime_dir=config.runtime_dir) as sub:
        with Connection(config.runtime_dir) as connection:
            (info,) = (await connection.request_async(Produce("cam", "some"), RingList)).rings
            with Ring.reattach(info.path) as ring:
                publish_to_lap(ring.writer(), 1.5, length=1 << 20)
                ring.writer().publish(b"last", key="a/1")
                assert await take(sub, 1) == [b"last"]
                assert sub.lost > 0


@pytest.fixture
def idle_and_busy(runtime_directory):
    """A subscription without a broker, to two rings; and both rings."""
    subscription = RingSubscription("#")
    subscription._connection = cast(Connection, SimpleNamespace(uid=os.getuid(), close=lambda: None))
    with (
        new_ring(runtime_directory, name="idle", epoch=7) as idle,
        new_ring(runtime_directory, name="busy", epoch=7) as busy,
    ):
        yield subscription, idle, busy
        subscription._release()


def facts_of(ring, epoch: int = 7) -> RingInfo:
    """The description of a ring by a broker."""
    return RingInfo(
        name=ring.name,
        path=str(ring.path),
        stream="some",
        epoch=epoch,
        kind="partition",
        when_full="overwrite",
        queue_timeout_ms=0,
    )


def test_a_busy_ring_does_not_delay_the_end_of_another(idle_and_busy):
    subscription, idle, busy = idle_and_busy
    for ring in (idle, busy):
        list(subscription._take(facts_of(ring), "oldest"))
    for _ in range(3):
        busy.writer().publish(b"busy", key="a")
        assert subscription._next_batch().ring == "busy"
    list(subscription._take(facts_of(idle, epoch=8), "oldest"))
    assert subscription._ended == []
    for _ in range(2):
        busy.writer().publish(b"busy", key="a")
        assert subscription._next_batch().ring == "busy"
    assert [source.info.name for source in subscription._ended] == ["idle"]


def test_a_busy_ring_does_not_delay_the_losses_of_another(idle_and_busy):
    subscription, idle, busy = idle_and_busy
    publish_to_lap(idle.writer(), 2)
    for _ in drained(idle.reader(start="oldest")):
        pass
    end = idle.writer().end_offset
    list(subscription._take(facts_of(busy), "oldest"))
    list(subscription._take(facts_of(idle), {"idle": Place(7, 0)}))
    source = subscription._sources["idle"]
    source.reader.seek(end)  # only the losses are left
    found = []
    for _ in range(3):
        busy.writer().publish(b"busy", key="a")
        found.append(subscription._next_batch())
    (lossy,) = [batch for batch in found if batch.ring == "idle"]
    assert (len(lossy), subscription.lost) == (0, lossy.lost)
    assert lossy.lost > 0


async def test_no_broker_at_the_start_is_told_at_once(config):
    started = time.monotonic()
    with pytest.raises(BrokerUnreachable, match="no broker answers at"):
        await anext(async_subscribe_shm("#", runtime_dir=config.runtime_dir))
    with pytest.raises(BrokerUnreachable), subscribe_shm("#", runtime_dir=config.runtime_dir):
        pass
    assert time.monotonic() - started < 20


@pytest.mark.parametrize("filters", ["a/#/b", "", [], ["a", "b+"]])
def test_what_is_no_topic_filter_is_refused_before_anything_is_opened(filters):
    with pytest.raises(EdgeError):
        subscribe_shm(filters)


@pytest.mark.parametrize(
    "arguments",
    [{"start": "first"}, {"start": []}, {"start": {"some-0": 5}}, {"limit": 0}, {"limit": 1 << 21}],
)
def test_an_argument_that_cannot_be_used_is_refused_with_those_that_can(arguments) -> None:
    (name,) = arguments
    with pytest.raises(InvalidArgument, match=rf"invalid {name} .*\(allowed: "):
        subscribe_shm("#", **arguments)


async def test_a_closed_subscription_is_refused_and_opens_nothing_again(config):
    async with LocalBroker(config):
        async with async_subscribe_shm("a/#", runtime_dir=config.runtime_dir) as sub:
            pass
        before = len(os.listdir("/proc/self/fd"))
        for use in (sub.read(), sub.read(1), anext(sub)):
            with pytest.raises(NotOpen, match="the subscription is closed"):
                await use
        assert len(os.listdir("/proc/self/fd")) == before


async def test_a_subscriber_that_dies_frees_its_slots(config):
    async with LocalBroker(config) as broker:
        ring = broker.streams.partition_of("b").ring
        with Child(SUBSCRIBER, config.runtime_dir) as subscriber:
            await until(lambda: any(not slot.local for slot in ring.slots()))
            subscriber.kill()
        await until(lambda: all(slot.local for slot in ring.slots()))


async def test_a_blocking_subscriber_is_waited_for_also_after_a_restart(runtime_directory, tmp_path):
    stream = Stream(
        name="default", topics=("#",), ring_bytes=1 << 16, when_full="reject", queue_timeout_ms=60_000
    )
    config = small_config(runtime_directory, tmp_path, stream=(stream,))
    async with LocalBroker(config) as broker:
        sub = async_subscribe_shm("#", runtime_dir=config.runtime_dir, blocks_writer=True, limit=16)
        async with sub:
            published = fill(broker)
            batch = await anext(sub)
            assert fill(broker) == 0  # the batch is held
            held = [bytes(record) for record in batch]
            del batch
            held += await take(sub, published - len(held))
            assert fill(broker) > 0
            await broker.__aexit__(None, None, None)
            async with LocalBroker(config) as again:
                reading = asyncio.create_task(take(sub, 1 << 30))
                await until(lambda: any(peer.admitted for peer in again.local._peers))
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
                assert fill(again) > 0
                assert sub.lost == 0


def fill(broker: LocalBroker) -> int:
    """Publishes until there is no room; how many went in."""
    count = 0
    while broker.publish("t", b"x" * 1000)[2] is not None:
        count += 1
        assert count < 1000, "nobody holds the writer back"
    return count


async def test_blocking_on_a_stream_that_overwrites_is_refused(config):
    async with LocalBroker(config):
        with pytest.raises(Refused, match="'default' overwrites"):
            async with async_subscribe_shm("b", runtime_dir=config.runtime_dir, blocks_writer=True):
                pass


PRODUCER = """
import sys
from pathlib import Path
from brim import producer
with producer("cam", "some", runtime_dir=Path(sys.argv[1])) as writer:
    with writer.claim(6, key="a/cam") as frame:
        memoryview(frame)[:] = b"frame1"
    print(writer.publish(b"frame2", key="a/cam"), flush=True)
    sys.stdin.readline()
    print(writer.publish(b"frame3", key="a/cam"), flush=True)
"""


async def test_a_producers_records_reach_subscribers_that_were_there_before_it(config):
    async with (
        LocalBroker(config) as broker,
        async_subscribe_shm("a/cam", runtime_dir=config.runtime_dir) as sub,
    ):
        with Child(PRODUCER, config.runtime_dir) as child:
            assert await take(sub, 2) == [b"frame1", b"frame2"]
            await broker.__aexit__(None, None, None)
            async with LocalBroker(config) as again:  # a broker that comes back finds the producer at work
                child.say("go on")
                assert await take(sub, 1) == [b"frame3"]
                assert [ring.name for ring in again.producers.all()] == ["some@cam"]
        with Child(
            PRODUCER, config.runtime_dir
        ) as child:  # and one that comes back, continues at its next offset
            status, _, error = child.wait()
            assert status == 1
            assert "no broker answers" in error


async def test_two_processes_are_not_the_same_producer(config):
    async with LocalBroker(config):
        with Child(PRODUCER, config.runtime_dir) as first:
            assert await asyncio.to_thread(first.line) == "1"
            with pytest.raises(Refused, match=f"is process {first.pid}"):
                await asyncio.to_thread(enter_producer, config)
            first.say("end")
            assert await asyncio.to_thread(first.line) == "2"
        assert await asyncio.to_thread(enter_producer, config) == 3


def enter_producer(config) -> int | None:
    with producer("cam", "some", runtime_dir=config.runtime_dir) as writer:
        return writer.publish(b"x", key="a/cam")


async def test_reading_much_while_little_is_wanted_does_not_stop_the_event_loop(config):
    """Records of other topics are skipped in one call, and the event loop runs again after each batch."""
    larger = msgspec.structs.replace(config.stream[-1], ring_bytes=1 << 22)
    config = msgspec.structs.replace(config, stream=(larger,))
    async with (
        LocalBroker(config) as broker,
        async_subscribe_shm("wanted", runtime_dir=config.runtime_dir) as sub,
    ):
        for number in range(20_000):
            broker.publish("other" if number % 1000 else "wanted", str(number))
        assert [int(payload) for payload in await take(sub, 20)] == list(range(0, 20_000, 1000))
