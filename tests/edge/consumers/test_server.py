"""The ROUTER, with real sockets: clients that read, that do not, that lie, that come from elsewhere."""

import asyncio
import itertools
import os
import stat
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import zmq
import zmq.auth

from brim import Letter, consumer, producer, publish
from brim.asyncio import consumer as async_consumer
from edge.consumers import outbox
from edge.consumers import server as endpoint_module
from edge.consumers.client_socket import RequestClient
from edge.consumers.protocol import (
    VERSION,
    GroupList,
    Groups,
    Join,
    Joined,
    Publish,
    Published,
    Read,
    Records,
)
from edge.consumers.server import ConsumersEndpoint
from edge.errors import BrokerUnreachable, EdgeError, InvalidArgument, Refused
from edge.local.curve_keys import Curve
from edge.rpc.protocol import encode
from ringbuf import Batch, Ring
from tests.support.brim_process import BrimProcess
from tests.support.consumer_desk import endpoint_over
from tests.support.waiting import PATIENCE_S, until, wait_until


@pytest.fixture
def ring(runtime_directory) -> Iterator[Ring]:
    with Ring.create(runtime_directory / "some-0", capacity_bytes=1 << 20, epoch=1) as ring:
        yield ring


@pytest.fixture
def endpoint(ring, tmp_path) -> Iterator[ConsumersEndpoint]:
    with endpoint_over(ring, tmp_path, f"ipc://{tmp_path}/consumers.sock") as made:
        yield made


def test_a_thread_that_does_not_stop_keeps_its_sockets(endpoint, monkeypatch) -> None:
    """A write that hangs holds it up: closed from here, it would use them after they are gone."""
    monkeypatch.setattr(endpoint_module, "JOIN_S", 0.01)
    hangs, done = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        done.wait()

    endpoint.call(hang)
    try:
        assert hangs.wait(30)
        endpoint.stop()
        assert not endpoint._socket.closed
    finally:
        done.set()
    monkeypatch.setattr(endpoint_module, "JOIN_S", 30.0)
    endpoint.stop()
    assert endpoint._socket.closed


async def test_a_record_wakes_who_waits_for_it(endpoint, ring):
    async with async_consumer("g", "a/#", endpoint=endpoint.endpoint) as records:
        for number in range(20):
            ring.writer().publish(str(number), key="a/1")
            async with asyncio.timeout(PATIENCE_S):
                batch = await anext(records)
            assert [bytes(it) for it in batch] == [str(number).encode()]
            assert (await records.ack(batch)).accepted == 1
        assert records.rings == ("some-0",)


def test_all_groups_are_known_also_where_not_all_are_shown(endpoint):
    with RequestClient(endpoint=endpoint.endpoint) as client:
        for number in range(60):
            client.request(Join(client.number(), VERSION, f"g{number}", ("a/#",)), Joined)
    wait_until(lambda: len(endpoint.all_groups()) == 60)
    assert len(endpoint.groups()) == 50


def test_without_asyncio_it_is_the_same(endpoint, ring):
    for number in range(5):
        ring.writer().publish(str(number), key=f"a/{'1' if number % 2 else '1/2'}")
    with consumer("g", "a/+", start="oldest", endpoint=endpoint.endpoint) as records:
        batch = records.read(20.0)
        assert batch is not None
        assert [it.offset for it in batch] == [1, 3]
        assert records.ack(batch, [1]).accepted == 1
        assert records.nack(batch, [3], delay_s=0.0).accepted == 1
        batch = records.read(20.0)
        assert batch is not None
        assert [it.offset for it in batch] == [3]
        assert records.commit(batch).accepted == 1
        records.working()
        assert records.read(0.2) is None


def test_a_late_ack_returns_which_records_were_refused(endpoint, ring):
    """Ann's lease lapsed, and bob did half of the work meanwhile."""
    for number in range(16):
        ring.writer().publish(str(number), key=f"a/{number % 2}")
    ann, bob = (
        consumer("g", "a/1", mode="queue", start="oldest", name=name, endpoint=endpoint.endpoint)
        for name in ("ann", "bob")
    )
    with ann, bob:
        hers = ann.read(20.0)
        assert hers is not None
        assert [it.offset for it in hers] == list(range(1, 16, 2))
        assert ann.nack(hers, [1, 3, 5], delay_s=0.0)
        while (his := bob.read(0.2)) is None:  # they may have come to ann again, who fetches ahead
            if (again := ann.read(0.1)) is not None:
                assert ann.nack(again, delay_s=0.0)
        assert [it.offset for it in his] == [1, 3, 5]
        assert bob.ack(his, [1, 3])
        late = ann.ack(hers)
        assert not late
        assert (late.accepted, late.refused) == (5, 3)
        assert late.refused_runs == ((1, 1), (3, 1), (5, 1))
        assert late.accepted_runs == ((7, 1), (9, 1), (11, 1), (13, 1), (15, 1))
        assert "another member" in late.cause
        assert ann.refused == 3
        mine = bob.ack(his)
        assert (bool(mine), mine.accepted, mine.refused, mine.cause) == (True, 3, 0, "")


async def test_acknowledgements_go_on_while_a_fetch_waits(endpoint, ring):
    async with async_consumer("g", "a/#", start="oldest", endpoint=endpoint.endpoint) as records:
        ring.writer().publish(b"1", key="a/1")
        batch = await anext(records)
        assert (await records.nack(batch, delay_s=0.0)).accepted == 1
        batch = await anext(records)
        await records.working()
        assert (await records.commit(batch, batch[0])).accepted == 1
        assert records.refused == 0


def test_the_socket_is_for_the_group_and_goes_with_the_broker(ring, tmp_path):
    with endpoint_over(ring, tmp_path, f"ipc://{tmp_path}/c.sock"):
        assert stat.S_IMODE(os.stat(tmp_path / "c.sock").st_mode) == 0o660
    assert not (tmp_path / "c.sock").exists()


def test_a_peer_that_reads_no_answers_loses_some_and_others_are_served(endpoint, ring):
    with zmq.Context() as context, context.socket(zmq.DEALER) as deaf:
        deaf.set(zmq.LINGER, 0)
        deaf.set(zmq.RCVHWM, 1)
        deaf.set(zmq.SNDHWM, 0)
        deaf.connect(endpoint.endpoint)
        for number in range(5_000):
            deaf.send(encode(Join(number, VERSION, "deaf", ("a/#",), instance="one", name="x" * 200)))
        wait_until(lambda: endpoint.unsent > 0)
        ring.writer().publish(b"1", key="a/1")
        with consumer("g", "a/#", start="oldest", endpoint=endpoint.endpoint) as records:
            assert records.read(20.0) is not None


def test_answers_are_sent_between_requests_that_take_long(endpoint, monkeypatch):
    monkeypatch.setattr(endpoint_module, "RECEIVE_S", 0.0)  # as if each request took longer
    coordinator = endpoint._coordinator
    events: list[str] = []
    receive, turn = coordinator.receive, coordinator.turn
    hangs, sent = threading.Event(), threading.Event()

    def received(*request: Any) -> None:
        events.append("request")
        receive(*request)

    def turned() -> Any:
        events.append("turn")
        return turn()

    def hang() -> None:
        hangs.set()
        sent.wait(PATIENCE_S)

    monkeypatch.setattr(coordinator, "receive", received)
    monkeypatch.setattr(coordinator, "turn", turned)
    endpoint.call(hang)
    with zmq.Context() as context, context.socket(zmq.DEALER) as busy:
        busy.connect(endpoint.endpoint)
        assert hangs.wait(PATIENCE_S)
        for number in range(50):
            busy.send(encode(Groups(number, VERSION)))
        sent.set()
        for _ in range(50):
            assert busy.poll(int(PATIENCE_S * 1000))
            busy.recv_multipart()
    assert events.count("request") == 50
    assert ("request", "request") not in set(itertools.pairwise(events))


async def test_off_loopback_only_those_with_a_key_of_ours_are_served(ring, tmp_path, monkeypatch):
    monkeypatch.setattr("edge.consumers.client_socket.CONNECT_TIMEOUT_S", 5.0)
    for name in ("server", "app", "stranger"):
        zmq.auth.create_certificates(tmp_path, name)
    (tmp_path / "clients").mkdir()
    (tmp_path / "app.key").rename(tmp_path / "clients" / "app.key")
    keys = {"secret_key_file": tmp_path / "server.key_secret", "client_keys_dir": tmp_path / "clients"}
    with endpoint_over(ring, tmp_path, "tcp://127.0.0.1:*", **keys) as made:
        ring.writer().publish(b"1", key="a/1")
        friend = Curve(tmp_path / "app.key_secret", tmp_path / "server.key")
        with consumer("g", "a/#", start="oldest", endpoint=made.endpoint, curve=friend) as records:
            assert records.read(20.0) is not None
        stranger = Curve(tmp_path / "stranger.key_secret", tmp_path / "server.key")
        with pytest.raises(BrokerUnreachable, match=r"does not accept the key .*stranger\.key_secret"):
            consumer("g", "a/#", endpoint=made.endpoint, curve=stranger).__enter__()
        with pytest.raises(BrokerUnreachable, match="requires CURVE keys"):
            consumer("g", "a/#", endpoint=made.endpoint).__enter__()
        other = Curve(tmp_path / "app.key_secret", tmp_path / "stranger.key")
        place: dict[str, Any] = {"endpoint": made.endpoint, "curve": other}
        silent = r"does not answer to the server key .*stranger\.key"
        with pytest.raises(BrokerUnreachable, match=silent):
            consumer("g", "a/#", connect_timeout_s=1.0, **place).__enter__()
        with pytest.raises(BrokerUnreachable, match=silent):
            await async_consumer("g", "a/#", connect_timeout_s=1.0, **place).__aenter__()
        with RequestClient(**place) as client, pytest.raises(BrokerUnreachable, match=silent):
            client.request(Groups(1, VERSION), GroupList)
        with (
            RequestClient(endpoint=made.endpoint) as client,
            pytest.raises(BrokerUnreachable, match="requires CURVE keys"),
        ):
            client.request(Groups(1, VERSION), GroupList)


async def test_keys_for_an_endpoint_without_keys_are_an_error_that_names_them(ring, endpoint, tmp_path):
    for name in ("server", "app"):
        zmq.auth.create_certificates(tmp_path, name)
    keys = Curve(tmp_path / "app.key_secret", tmp_path / "server.key")
    with pytest.raises(InvalidArgument, match=r"app\.key_secret for ipc://.*its permissions guard it"):
        consumer("g", "a/#", endpoint=endpoint.endpoint, curve=keys).__enter__()
    other = tmp_path / "other"
    other.mkdir()
    with (
        endpoint_over(ring, other, "tcp://127.0.0.1:*") as made,
        pytest.raises(BrokerUnreachable, match=r"uses no CURVE keys, and .*app\.key_secret is given"),
    ):
        async with async_consumer("g", "a/#", endpoint=made.endpoint, curve=keys):
            pass


async def test_who_asks_for_what_cannot_be_is_told_at_once(endpoint):
    with pytest.raises(InvalidArgument, match="group"):
        async with async_consumer("no/name", "a/#", endpoint=endpoint.endpoint):
            pass
    async with async_consumer("g", "a/#", endpoint=endpoint.endpoint):
        with pytest.raises(Refused, match="in use"):
            consumer("g", "b", endpoint=endpoint.endpoint).__enter__()
    with pytest.raises(EdgeError, match="no topic filter"):
        consumer("g", (), endpoint=endpoint.endpoint)
    with pytest.raises(EdgeError):
        consumer("g", "a/#/b", endpoint=endpoint.endpoint)


async def test_without_a_broker_a_consumer_says_so(tmp_path):
    with pytest.raises(BrokerUnreachable, match="no broker"):
        async with async_consumer("g", "a/#", runtime_dir=tmp_path, connect_timeout_s=0.1):
            pass


# ---- with a whole broker ----


async def test_a_consumer_finds_its_broker_again_and_goes_on(runtime_directory, tmp_path):
    with BrimProcess(runtime_directory, tmp_path) as broker:
        async with async_consumer("g", "a/#", start="oldest", runtime_dir=runtime_directory) as records:
            for life in range(2):
                payload = str(life).encode()
                await asyncio.to_thread(publish, [(Letter("a/1"), payload)], runtime_dir=runtime_directory)
                async with asyncio.timeout(PATIENCE_S):
                    batch = await anext(records)
                    while bytes(batch[-1]) != payload:
                        batch = await anext(records)
                    assert (await records.ack(batch)).accepted == len(batch)
                broker.kill()
                await until(lambda: not records.joined)
                await asyncio.to_thread(broker.start)
                await until(lambda: records.joined)


LOGGED = """
[limits]
packet_max_bytes = 4096
topic_max_bytes = 256
[consumers]
tries_max = 1
[[stream]]
name = "some"
topics = ["a/#"]
ring_bytes = "64 KiB"
sync_bytes = "8 KiB"
durability = "disk"
"""
PRODUCED = """
[[stream]]
name = "some"
topics = ["a/#"]
when_full = "block"
queue_timeout_ms = 20000
durability = "interval"
sync_interval_ms = 20
sync_bytes = 65536
[[producer]]
name = "cam"
stream = "some"
ring_bytes = 1048576
"""


def test_what_the_ring_has_lost_comes_from_the_log_and_the_dead_are_put_aside(runtime_directory, tmp_path):
    letters = [(Letter("a/1", 1), f"{number:04d}".encode() * 20) for number in range(3_000)]
    with BrimProcess(runtime_directory, tmp_path, LOGGED) as broker:
        with consumer("early", "a/#", start="oldest", runtime_dir=runtime_directory):
            pass  # it stands at the beginning
        for at in range(0, len(letters), 100):  # synced when it returns, so the ring has room for the next
            assert publish(letters[at : at + 100], runtime_dir=runtime_directory) == 100
        broker.kill()
        broker.start()
        got: list[bytes] = []
        with consumer("early", "a/#", batch_bytes=50_000, runtime_dir=runtime_directory) as records:
            while len(got) < len(letters):
                batch = records.read(20.0)
                assert batch is not None, len(got)
                got += [bytes(it) for it in batch]
                if len(got) == len(letters):
                    records.nack(batch, [batch[-1]], cause="the last")
                    records.ack(batch, list(batch)[:-1])
                else:
                    records.ack(batch)
        assert got == [payload for _, payload in letters]
        with consumer("undertaker", "dead/#", start="oldest", runtime_dir=runtime_directory) as records:
            dead = records.read(20.0)
            assert dead is not None
            assert (dead[0].key, bytes(dead[0])) == (b"dead/early/a/1", got[-1])
            assert b"the last" in dead[0].properties


def test_what_a_producers_ring_has_lost_comes_from_the_log_too(runtime_directory, tmp_path):
    """Its records are logged like any other of the stream, and of an earlier life of the machine, too."""
    bodies = [f"{number:04d}".encode() * 250 for number in range(2_000)]
    with BrimProcess(runtime_directory, tmp_path, PRODUCED, bridge=False) as broker:
        with consumer("early", "a/#", start="oldest", runtime_dir=runtime_directory):
            pass
        with producer("cam", "some", runtime_dir=runtime_directory) as writer:
            for body in bodies[:1_500]:  # more than the ring holds: it waits for the log
                assert writer.publish(body, key="a/1") is not None
        broker.stop()
        for file in runtime_directory.glob("*.ring"):  # a reboot
            file.unlink()
        broker.start()
        with producer("cam", "some", runtime_dir=runtime_directory) as writer:
            for body in bodies[1_500:]:
                assert writer.publish(body, key="a/1") is not None
        got: list[bytes] = []
        with consumer("early", "a/#", runtime_dir=runtime_directory) as records:
            while got[-1:] != bodies[-1:]:
                batch = records.read(20.0)
                assert batch is not None, len(got)
                got += [bytes(it) for it in batch]
                records.ack(batch)
    assert got == bodies


def test_an_epoch_that_is_over_comes_before_the_next_one(runtime_directory, tmp_path):
    """A reboot empties the memory: what the log has of the last epoch is handed out first, and in order."""
    with BrimProcess(runtime_directory, tmp_path, LOGGED) as broker:
        with consumer("early", "a/#", start="oldest", runtime_dir=runtime_directory):
            pass
        for life in range(3):
            letters = [(Letter("a/1"), f"{life} {number}".encode()) for number in range(50)]
            assert publish(letters, runtime_dir=runtime_directory) == 50
            broker.kill()
            for file in runtime_directory.glob("*.ring"):
                file.unlink()
            broker.start()
        assert publish([(Letter("a/1"), b"end")], runtime_dir=runtime_directory) == 1
        got: list[bytes] = []
        epochs = set()
        with consumer("early", "a/#", batch_bytes=1_000, runtime_dir=runtime_directory) as records:
            while got[-1:] != [b"end"]:
                batch = records.read(20.0)
                assert batch is not None, got[-1:]
                got += [bytes(it) for it in batch]
                epochs.add(batch.epoch)
                assert records.ack(batch).accepted == len(batch)
        assert got == [f"{life} {number}".encode() for life in range(3) for number in range(50)] + [b"end"]
        assert len(epochs) == 4
        with RequestClient(runtime_directory) as client:
            (facts,) = client.request(Groups(client.number(), VERSION), GroupList)[0].groups
            assert facts.lag == 0
            read = Read(client.number(), VERSION, "some-0", time_ns=0)
            first, frames = client.request(read, Records)
            assert first.batch is not None
            assert first.batch.epoch == min(epochs)
            assert bytes(Batch.of(frames[0], first.batch.epoch, first.batch.offset, None)[0]) == b"0 0"


def test_odd_letters_do_not_stop_a_broker(runtime_directory, tmp_path):
    """Each has a fate; more of them than publishes may be under way, so none that is forgotten is missed."""
    topics = ("", "#", "a/+", "$SYS/x", "\0", "é" * 40_000, "a/" * 5_000, "a/1")
    with BrimProcess(runtime_directory, tmp_path, LOGGED, bridge=False) as broker:
        with RequestClient(runtime_directory) as client:
            for round_ in range(300):
                letters = tuple(Letter(it, round_ % 3, retain=bool(round_ % 2)) for it in topics)
                payloads = [b"x"] * (len(topics) - 1) + [b"x" * (8 << 20) if round_ == 7 else b"y"]
                found = client.request(Publish(client.number(), VERSION, letters), Published, payloads)[0]
                too_large = (7,) if round_ == 7 else ()
                assert found.refused == (0, 1, 2, 3, 4, 5, 6, *too_large)
                assert not found.full
        assert publish([(Letter("a/1"), b"end")], runtime_dir=runtime_directory) == 1
        broker.stop()


def test_answers_that_a_client_does_not_read_are_bounded_in_bytes(endpoint, ring, monkeypatch):
    monkeypatch.setattr(outbox, "PEER_MAX_BYTES", 1 << 20)
    for _ in range(60):
        ring.writer().publish(b"x" * 10_000, key="a/1")
    counts = endpoint._coordinator.counts
    with zmq.Context() as context, context.socket(zmq.DEALER) as deaf:
        deaf.set(zmq.RCVHWM, 1)
        deaf.set(zmq.RCVBUF, 4096)
        deaf.set(zmq.LINGER, 0)
        deaf.connect(endpoint.endpoint)
        for number in range(1, 61):
            deaf.send(encode(Read(number, VERSION, "some-0", max_bytes=64 << 20)))
        wait_until(lambda: counts["requests"] == 60)
        wait_until(lambda: counts["full"] > 40)
        assert endpoint._coordinator.outbox.total_bytes <= (1 << 20) + (700 << 10)
        with consumer("g", "a/#", start="oldest", endpoint=endpoint.endpoint) as records:
            batch = records.read(20.0)
            assert batch is not None
            assert records.ack(batch).accepted > 0
    wait_until(lambda: endpoint._coordinator.outbox.total_bytes == 0)
