"""The ZeroMQ publisher among peers that cancel, subscribe without end, or leave: others get their records."""

import asyncio
import itertools
import socket
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest

from brim.asyncio import subscribe_zmq
from edge.config.schema import Config
from edge.local.zmq_prefixes import NO_PEER, PREFIXES_MAX, Prefixes
from edge.local.zmq_publisher import ZmqPublisher
from ringbuf.errors import Overrun
from tests.edge.local.test_zmq_limiter import GREETING, dial, frame, ready
from tests.support.local_broker import LocalBroker, small_config
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
def config(runtime_directory: Path, tmp_path: Path) -> Config:
    return small_config(runtime_directory, tmp_path)


def subscribe(prefix: bytes) -> bytes:
    return frame(b"\1" + prefix)


def cancel(prefix: bytes) -> bytes:
    return frame(b"\0" + prefix)


def peer(config: Config, data: bytes = b"") -> socket.socket:
    """A subscriber that speaks ZMTP by itself."""
    client, answer = dial(config.runtime_dir / "zmq.sock", GREETING + ready(b"SUB")), b""
    while b"READY" not in answer:
        answer += client.recv(4096)
    client.sendall(data)
    return client


async def handled(broker: LocalBroker, attacker: socket.socket, marker: bytes) -> None:
    """Until the publisher has handled everything that the peer has sent."""
    before = broker.zmq.stats.prefixes
    attacker.sendall(subscribe(marker))
    await until(lambda: broker.zmq.stats.prefixes > before)


@pytest.mark.parametrize("holds", [False, True], ids=["never subscribed", "cancelled before"])
async def test_a_peer_that_cancels_what_it_does_not_hold_ends_no_other_feed(
    config: Config, holds: bool
) -> None:
    async with LocalBroker(config) as broker, subscribe_zmq("a/1", runtime_dir=config.runtime_dir) as sub:
        await until(lambda: broker.zmq.stats.prefixes == 1)
        with closing(peer(config, subscribe(b"a/1") * holds + cancel(b"a/1") * 3)) as attacker:
            await handled(broker, attacker, b"marker")
            broker.publish("a/1", "1")
            async with asyncio.timeout(PATIENCE_S):
                assert (await anext(sub))[2] == b"1"
        await until(lambda: broker.zmq.stats.prefixes == 1)
        broker.publish("a/1", "2")
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(sub))[2] == b"2"
    assert sub.gaps == 0


async def test_a_subscription_next_to_too_many_others_is_served_when_those_have_left(config: Config) -> None:
    async with LocalBroker(config) as broker:
        many = b"".join(subscribe(b"x%d/" % number) for number in range(PREFIXES_MAX + 10))
        with closing(peer(config, many)) as attacker:
            await until(lambda: broker.zmq.stats.prefixes == PREFIXES_MAX + 1)
            async with subscribe_zmq("a/1", runtime_dir=config.runtime_dir) as sub:
                reading = asyncio.create_task(anext(sub))
                while not reading.done():  # until it is connected
                    broker.publish("a/1", "first")
                    await asyncio.wait([reading], timeout=0.05)
                attacker.close()
                await until(lambda: broker.zmq.stats.prefixes < PREFIXES_MAX)
                broker.publish("a/1", "last")
                async with asyncio.timeout(PATIENCE_S):
                    while (await anext(sub))[2] != b"last":
                        pass


async def test_a_peer_that_never_ends_to_subscribe_does_not_stop_the_records_of_others(
    config: Config,
) -> None:
    stop = threading.Event()
    blob = b"".join(subscribe(b"t/%d" % n) + cancel(b"t/%d" % n) for n in range(1000))

    def flood(attacker: socket.socket) -> None:
        with suppress(OSError):
            while not stop.is_set():
                attacker.sendall(blob)

    async with LocalBroker(config) as broker, subscribe_zmq("a/1", runtime_dir=config.runtime_dir) as sub:
        await until(lambda: broker.zmq.stats.prefixes >= 1)
        with closing(peer(config)) as attacker:
            thread = threading.Thread(target=flood, args=(attacker,))
            thread.start()
            try:
                await until(lambda: broker.zmq.peers()["open"] == 2)
                for number in range(50):
                    broker.publish("a/1", str(number))
                    async with asyncio.timeout(PATIENCE_S):
                        assert (await anext(sub))[2] == b"%d" % number
            finally:
                stop.set()
                with suppress(OSError):  # disconnected for what it has sent
                    attacker.shutdown(socket.SHUT_RDWR)
                thread.join()


async def test_a_peer_with_long_subscriptions_without_end_is_disconnected_and_counted(config: Config) -> None:
    async with LocalBroker(config) as broker, subscribe_zmq("a/1", runtime_dir=config.runtime_dir) as sub:
        await until(lambda: broker.zmq.stats.prefixes == 1)
        with closing(peer(config)) as attacker:

            def subscribe_on() -> None:
                for number in itertools.count():
                    attacker.sendall(subscribe(b"%060000d" % number))

            with pytest.raises(OSError, match=r"Broken pipe|reset"):
                await asyncio.to_thread(subscribe_on)
        await until(lambda: broker.zmq.stats.prefixes == 1)
        assert broker.zmq.peers()["too_many_bytes"] == 1
        broker.publish("a/1", "1")
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(sub))[2] == b"1"


async def test_an_unexpected_error_ends_no_feed(
    config: Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    send, mistakes = ZmqPublisher._send_batch, [RuntimeError("an error of no known class")]

    def mistaken(publisher: ZmqPublisher, source: object) -> int:
        if mistakes:
            raise mistakes.pop()
        return send(publisher, source)  # type: ignore[arg-type]

    monkeypatch.setattr("edge.local.zmq_publisher.FAILED_S", 0.01)
    async with LocalBroker(config) as broker, subscribe_zmq("a/1", runtime_dir=config.runtime_dir) as sub:
        await until(lambda: broker.zmq.stats.prefixes == 1)
        monkeypatch.setattr(ZmqPublisher, "_send_batch", mistaken)
        broker.publish("a/1", "1")
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(sub))[2] == b"1"
    logged = [record.getMessage() for record in caplog.records]
    caplog.clear()  # a traceback holds the ring
    assert not mistakes
    assert sum("ZeroMQ publisher failed" in line for line in logged) == 1


async def test_a_record_that_is_overwritten_while_its_topic_is_read_ends_no_feed(config: Config) -> None:
    class Lapped:
        """As the writer makes it between read_many() and key."""

        @property
        def key(self) -> bytes:
            raise Overrun(1)

    async with LocalBroker(config) as broker, subscribe_zmq("a/1", runtime_dir=config.runtime_dir) as sub:
        await until(lambda: broker.zmq.stats.prefixes == 1)
        send_batch, lapped = broker.zmq._send_batch, [Lapped()]

        def send_lapped(source: object) -> int:
            for record in itertools.islice(lapped, 1):
                broker.zmq._send_record(source, record)  # type: ignore[arg-type]
                lapped.clear()
            return send_batch(source)  # type: ignore[arg-type]

        broker.zmq._send_batch = send_lapped  # type: ignore[method-assign]
        broker.publish("a/1", "1")
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(sub))[2] == b"1"
        assert not lapped


@pytest.fixture
def prefixes() -> Prefixes:
    return Prefixes()


def test_a_prefix_stays_while_one_of_its_peers_is_there(prefixes: Prefixes) -> None:
    assert prefixes.take(b"\1a/", 5)
    assert not prefixes.take(b"\1a/", 6)
    assert not prefixes.take(b"\0a/", NO_PEER)  # the connection of one of both has ended
    assert prefixes.starts() == (b"a/",)
    assert prefixes.take(b"\0a/", NO_PEER)
    assert prefixes.starts() == ()


def test_the_number_of_a_connection_that_has_ended_ends_no_other_subscription(prefixes: Prefixes) -> None:
    prefixes.take(b"\1a/", 5)
    prefixes.take(b"\1a/", 6)
    prefixes.take(b"\0a/", NO_PEER)  # that of 5, and 5 is a new connection, which cancels
    for _ in range(3):
        prefixes.take(b"\0a/", 5)
    assert prefixes.starts() == (b"a/",)


def test_a_connection_with_the_number_of_one_that_has_not_been_reported_yet_keeps_its_prefix(
    prefixes: Prefixes,
) -> None:
    prefixes.take(b"\1a/", 5)
    prefixes.take(b"\1a/", 5)  # another connection: the end of the first one is reported after that
    prefixes.take(b"\0a/", NO_PEER)
    assert prefixes.starts() == (b"a/",)


def test_no_cancellation_of_a_peer_counts_for_a_prefix_that_is_only_counted(prefixes: Prefixes) -> None:
    for number in range(PREFIXES_MAX + 1):
        prefixes.take(b"\1%d" % number, 5)
    for _ in range(3):
        prefixes.take(b"\0%d" % PREFIXES_MAX, 6)
    assert prefixes.starts() is None
    assert prefixes.take(b"\0%d" % PREFIXES_MAX, NO_PEER)
    assert len(prefixes.starts() or ()) == PREFIXES_MAX


def test_an_empty_prefix_is_every_topic_and_other_messages_are_none(prefixes: Prefixes) -> None:
    assert not prefixes.take(b"", 5)
    assert not prefixes.take(b"\2a/", 5)
    assert prefixes.starts() == ()
    assert prefixes.take(b"\1", 5)
    assert prefixes.starts() is None
