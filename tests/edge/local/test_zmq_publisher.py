"""The ZeroMQ publisher and its subscribers: nothing is missing unseen."""

import asyncio
import os
import stat
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio
import zmq.auth

from brim.asyncio import subscribe_zmq
from edge.config.schema import Zmq
from edge.errors import EdgeError, InvalidArgument
from edge.local.curve_keys import Curve
from edge.local.zmq_frames import Header, decode
from edge.local.zmq_listener import ZmqListener
from edge.local.zmq_prefixes import PREFIXES_MAX
from edge.local.zmq_publisher import ZmqPublisher
from edge.local.zmq_subscription_asyncio import ZmqSubscription
from ringbuf import Ring
from tests.support.children import ModuleChild
from tests.support.local_broker import LocalBroker, small_config
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
def config(runtime_directory, tmp_path):
    return small_config(runtime_directory, tmp_path)


async def subscribed(broker: LocalBroker, count: int = 1) -> None:
    """Until the publisher knows of `count` subscribed prefixes."""
    await until(lambda: broker.zmq.stats.prefixes >= count)


async def sent(broker: LocalBroker, count: int) -> None:
    """Until the publisher has sent `count` messages."""
    await until(lambda: broker.zmq.stats.sent == count)


async def take(subscription: ZmqSubscription, count: int) -> list[tuple[str, Header, bytes]]:
    found: list[tuple[str, Header, bytes]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found.append(await anext(subscription))
    return found


async def test_records_reach_their_subscribers_with_their_place(config):
    async with (
        LocalBroker(config) as broker,
        subscribe_zmq("a/+", runtime_dir=config.runtime_dir) as sub,
    ):
        await subscribed(broker)
        for topic in ("a/1", "ab", "a/1/2", "b"):  # a prefix alone would let the second and third through
            broker.publish(topic, "no" if topic != "a/1" else "21.5")
        ring, epoch, offset = broker.publish("a/1", b"\0\xff")
        (topic, header, payload), (_, last, binary) = await take(sub, 2)
        assert (topic, payload, header.ring) == ("a/1", b"21.5", ring)
        assert (last.epoch, last.offset, last.previous) == (epoch, offset, header.offset)
        assert binary == b"\0\xff"
        assert last.timestamp_ns >= header.timestamp_ns > 0
        assert sub.gaps == sub.unreadable == 0


async def test_a_subscriber_to_everything_sees_every_offset_of_every_ring(config):
    async with LocalBroker(config) as broker, subscribe_zmq("#", runtime_dir=config.runtime_dir) as sub:
        await subscribed(broker)
        published = []
        for number in range(2000):
            published.append(broker.publish(("a/1", "a/2", "a/3", "b")[number % 4], str(number)))
            if number % 100 == 0:
                await sent(broker, len(published))  # the rings are small: no faster than it reads
        got = [(header.ring, header.epoch, header.offset) for _, header, _ in await take(sub, len(published))]
        assert sorted(got) == sorted(published)
        for ring in ("some-0", "some-1", "default-0"):
            offsets = [offset for name, _, offset in got if name == ring]
            assert offsets == list(range(len(offsets)))
        assert sub.gaps == 0


async def test_what_was_published_before_anybody_subscribed_is_not_sent(config):
    async with LocalBroker(config) as broker:
        broker.publish("b", "early")
        async with subscribe_zmq("b", runtime_dir=config.runtime_dir) as sub:
            await subscribed(broker)
            broker.publish("b", "first")
            assert [payload for _, _, payload in await take(sub, 1)] == [b"first"]
        await until(lambda: broker.zmq.stats.prefixes == 0)
        broker.publish("b", "to nobody")
        async with subscribe_zmq("b", runtime_dir=config.runtime_dir) as sub:
            await subscribed(broker)
            broker.publish("b", "second")
            assert [payload for _, _, payload in await take(sub, 1)] == [b"second"]
        await until(lambda: broker.zmq.stats.sent == 2)


async def test_subscriptions_may_come_and_go_while_others_stay(config):
    async with (
        LocalBroker(config) as broker,
        subscribe_zmq(["a/1", "c"], runtime_dir=config.runtime_dir) as one,
    ):
        await subscribed(broker, 2)
        broker.publish("b", "not wanted yet")
        broker.publish("c", "1")  # in the same ring: the publisher has read the former record too
        assert (await take(one, 1))[0][2] == b"1"
        async with subscribe_zmq(["b", "a/1"], runtime_dir=config.runtime_dir) as two:
            await subscribed(broker, 3)
            broker.publish("b", "2")
            broker.publish("a/1", "3")
            assert {payload for _, _, payload in await take(two, 2)} == {b"2", b"3"}
        await until(lambda: broker.zmq.stats.prefixes == 2)
        broker.publish("b", "not wanted any more")
        broker.publish("a/1", "4")
        assert [payload for _, _, payload in await take(one, 2)] == [b"3", b"4"]
        assert (one.gaps, two.gaps) == (0, 0)
        await until(lambda: broker.zmq.stats.sent == 4)  # counted behind the sending


async def test_a_slow_subscriber_sees_its_gaps_and_the_broker_counts_them(config):
    config = msgspec.structs.replace(config, zmq=Zmq(send_high_water=5))
    async with LocalBroker(config) as broker:
        slow = subscribe_zmq("b", runtime_dir=config.runtime_dir, receive_high_water=5)
        async with slow:
            await subscribed(broker)
            count = 0
            while broker.zmq.stats.full_queues == 0:
                broker.publish("b", b"x" * 8000)
                count += 1
                await sent(broker, count)
                assert count < 100_000
            for _ in range(20):
                broker.publish("b", b"y")
                count += 1
                await sent(broker, count)
            offsets: list[int] = []
            while missing(offsets) == 0 or missing(offsets) < slow.gaps:  # it may see one before we take it
                broker.publish("b", b"z")  # once it reads on, it is sent messages again
                offsets.append((await take(slow, 1))[0][1].offset)
            assert missing(offsets) == slow.gaps


def missing(offsets: list[int]) -> int:
    """Places in `offsets` where one or more are left out."""
    return sum(after != before + 1 for before, after in pairwise([-1, *offsets]))


async def test_a_record_overwritten_before_it_was_sent_shows_as_a_gap(config):
    """The publisher's thread cannot run while this test holds the GIL without a pause."""
    async with LocalBroker(config) as broker, subscribe_zmq("b", runtime_dir=config.runtime_dir) as sub:
        await subscribed(broker)
        broker.publish("b", b"first")
        await take(sub, 1)
        writer = broker.streams.partition_of("b").writer
        writer.publish_many([b"x" * 1000] * 3000, key="b")  # one call laps the ring many times over
        await until(lambda: broker.zmq.stats.overrun > 0)
        await take(sub, 1)
        assert sub.gaps >= 1


async def test_a_producers_ring_is_published_too_and_garbage_in_it_ends_only_that(config):
    async with LocalBroker(config) as broker, subscribe_zmq("#", runtime_dir=config.runtime_dir) as sub:
        await subscribed(broker)
        path = broker.producers.open("cam", "some", uid=0).ring.path
        with Ring.reattach(path) as ring:
            writer = ring.writer()
            await until(lambda: not broker.zmq._added)
            writer.publish(b"frame", key="a/cam")
            topic, header, payload = (await take(sub, 1))[0]
            assert (topic, header.ring, header.offset, payload) == ("a/cam", "some@cam", 0, b"frame")
            with path.with_name("some@cam.ring").open("r+b") as file:  # a length that cannot be
                file.seek(16384 + 64)
                file.write(b"\xff\xff\xff\x7f" * 16)
            writer.publish(b"wakes the reader", key="a/cam")
        broker.publish("b", "goes on")
        async with asyncio.timeout(PATIENCE_S):
            while (await anext(sub))[2] != b"goes on":
                pass


async def test_frames_that_are_not_ours_are_counted_and_skipped(tmp_path):
    with zmq.Context() as context, context.socket(zmq.PUB) as stranger:
        stranger.set(zmq.LINGER, 0)
        stranger.bind(f"ipc://{tmp_path}/x.sock")
        async with subscribe_zmq("#", endpoint=f"ipc://{tmp_path}/x.sock") as sub:
            sub_task = asyncio.create_task(anext(sub))
            while not sub.unreadable:
                stranger.send_multipart([b"t", b"nonsense"])
                await asyncio.sleep(0.001)
            sub_task.cancel()
            await asyncio.gather(sub_task, return_exceptions=True)


async def test_the_socket_is_for_the_group_and_goes_with_the_broker(config):
    path = config.zmq_endpoint.removeprefix("ipc://")
    async with LocalBroker(config):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o660
    assert not os.access(path, os.F_OK)


async def test_a_subscriber_finds_a_broker_that_was_killed_and_came_back(config):
    async with subscribe_zmq("b", runtime_dir=config.runtime_dir) as sub:
        for life in range(2):
            with ModuleChild("tests.support.local_broker", config.runtime_dir, config.state_dir) as broker:
                assert broker.line() == "ready"
                waiting = asyncio.create_task(first_of_life(sub, life))
                while not waiting.done():  # until ZeroMQ has found the socket again
                    broker.say(f"b {life}")
                    broker.line()
                    await asyncio.sleep(0.01)
                await waiting
        assert sub.gaps == 1  # that it was away shows: what was published meanwhile is not here


async def first_of_life(sub: ZmqSubscription, life: int) -> None:
    """Returns at the first message of it; what the life before has sent may still come first."""
    while (payload := (await take(sub, 1))[0][2]) != f"{life}".encode():
        assert payload == f"{life - 1}".encode()


async def test_more_prefixes_than_can_be_remembered_let_everything_through(config):
    async with LocalBroker(config) as broker, subscribe_zmq("b", runtime_dir=config.runtime_dir) as sub:
        for number in range(PREFIXES_MAX + 100):
            sub._socket.subscribe(f"x{number}")
        await subscribed(broker, PREFIXES_MAX)
        await until(lambda: broker.zmq.stats.prefixes == PREFIXES_MAX + 1)
        broker.publish("b", "1")
        assert (await take(sub, 1))[0][2] == b"1"
        assert len(broker.zmq._prefixes) == PREFIXES_MAX + 1


async def test_off_loopback_only_those_with_a_key_of_ours_are_served(config, tmp_path):
    for name in ("server", "app", "stranger"):
        zmq.auth.create_certificates(tmp_path, name)
    (tmp_path / "clients").mkdir()
    (tmp_path / "app.key").rename(tmp_path / "clients" / "app.key")
    listener = ZmqListener("zmq", "tcp://127.0.0.1:*")
    publisher = ZmqPublisher(
        listener,
        secret_key_file=tmp_path / "server.key_secret",
        client_keys_dir=tmp_path / "clients",
    )
    server_key = zmq.auth.load_certificate(tmp_path / "server.key")[0]
    keys = Curve(tmp_path / "app.key_secret", tmp_path / "server.key")
    with pytest.raises(InvalidArgument, match="a socket file takes none"):
        subscribe_zmq("b", runtime_dir=config.runtime_dir, curve=keys)
    with Ring.create(config.runtime_dir / "r-0", capacity_bytes=1 << 16, epoch=1) as ring:
        publisher.add(ring)
        publisher.start()
        try:
            with zmq.asyncio.Context() as context:
                friend = client(context, publisher.endpoint, server_key, tmp_path / "app.key_secret")
                stranger = client(context, publisher.endpoint, server_key, tmp_path / "stranger.key_secret")
                await until(lambda: publisher.stats.prefixes)
                ring.writer().publish(b"secret", key="b")
                assert decode(await asyncio.wait_for(friend.recv_multipart(), PATIENCE_S))[2] == b"secret"
                assert not await stranger.poll(200)
                async with subscribe_zmq("b", endpoint=publisher.endpoint, curve=keys) as program:
                    await until(lambda: publisher.stats.prefixes == 2)
                    ring.writer().publish(b"again", key="b")
                    assert (await take(program, 1))[0][2] == b"again"
                friend.close(0)
                stranger.close(0)
        finally:
            publisher.stop()
            listener.close()


def client(context, endpoint: str, server_key: bytes, certificate: Path) -> zmq.asyncio.Socket:
    subscriber: zmq.asyncio.Socket = context.socket(zmq.SUB)
    subscriber.curve_publickey, subscriber.curve_secretkey = zmq.auth.load_certificate(certificate)
    subscriber.curve_serverkey = server_key
    subscriber.connect(endpoint)
    subscriber.subscribe(b"")
    return subscriber


def test_a_key_file_without_a_secret_or_that_is_none_is_told(tmp_path):
    public, _ = zmq.auth.create_certificates(tmp_path, "server")
    (tmp_path / "none").write_text("no certificate")
    for file, said in (
        (public, "has no secret key"),
        (tmp_path / "none", "secret_key_file"),
        (tmp_path / "x", "x"),
    ):
        with (
            closing(ZmqListener("zmq", "tcp://127.0.0.1:*")) as listener,
            pytest.raises(EdgeError, match=said),
        ):
            ZmqPublisher(listener, secret_key_file=Path(file), client_keys_dir=tmp_path)
