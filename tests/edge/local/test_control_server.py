"""The control socket: what it grants, to whom, and that no peer can harm it."""

import asyncio
import errno
import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.asyncio import producer
from edge.config.directories import control_socket
from edge.config.schema import Local, Producer, Stream
from edge.errors import BrokerUnreachable, ControlError, Refused
from edge.local import protocol
from edge.local.filters import filters_meet
from edge.local.protocol import (
    Admit,
    Connection,
    Delayed,
    DelayedList,
    Done,
    Produce,
    Report,
    RingList,
    Rings,
    Status,
)
from edge.mqtt.topic_filters import matches
from edge.rpc import server
from edge.rpc.peers import BRIEF_MAX
from edge.rpc.protocol import encode
from ringbuf import Ring
from ringbuf.errors import Evicted
from tests.support.brim_process import BrimProcess
from tests.support.children import Child
from tests.support.local_broker import LocalBroker, small_config
from tests.support.project import ROOT
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
def config(runtime_directory, tmp_path):
    return small_config(runtime_directory, tmp_path)


def blocking_config(runtime_directory, tmp_path, when_full="reject"):
    stream = Stream(
        name="default", topics=("#",), ring_bytes=1 << 16, when_full=when_full, queue_timeout_ms=60_000
    )
    return small_config(runtime_directory, tmp_path, stream=(stream,))


async def test_the_report_and_the_rings_are_told(config):
    async with LocalBroker(config):
        with Connection(config.runtime_dir) as connection:
            report = await connection.request_async(Status(), Report)
            assert report.report == {"rings": ["some-0", "some-1", "default-0"]}
            rings = (await connection.request_async(Rings(("b/c",)), RingList)).rings
            assert [(ring.name, ring.stream, ring.kind) for ring in rings] == [
                ("default-0", "default", "partition")
            ]
            rings = (await connection.request_async(Rings(("a/+", "x")), RingList)).rings
            assert [ring.name for ring in rings] == ["some-0", "some-1", "default-0"]
            with Ring.attach(rings[0].path) as ring:
                assert ring.epoch == rings[0].epoch


async def test_requests_for_delayed_messages_share_a_thread_while_their_disk_is_silent(config):
    """Otherwise a few of them take all threads of the event loop: a reload would wait, too."""
    answers = threading.Event()
    running: list[int] = []
    most: list[int] = []

    class Silent:
        def page(self, *_: object) -> list[dict[str, Any]]:
            running.append(0)
            most.append(len(running))
            answers.wait(PATIENCE_S)
            running.pop()
            return []

        def cancel(self, _: int) -> Future[bool]:
            return Future()

    async with LocalBroker(config) as broker:
        broker.local._delayed = Silent()
        with ExitStack() as stack:
            *many, last = [stack.enter_context(Connection(config.runtime_dir)) for _ in range(5)]
            lists = [asyncio.create_task(one.request_async(Delayed(), DelayedList)) for one in many]
            await until(lambda: running)
            await last.request_async(Status(), Report)
            answers.set()
            await asyncio.gather(*lists)
    assert most == [1, 1, 1, 1]


async def test_an_answer_may_be_as_long_as_the_limit_and_no_longer(config):
    async with LocalBroker(config) as broker:
        with Connection(config.runtime_dir) as connection:
            for size in (1, protocol.ANSWER_MAX_BYTES - 40):
                broker.report = {"x": "y" * size}
                assert (await connection.request_async(Status(), Report)).report == broker.report
            broker.report = {"x": "y" * protocol.ANSWER_MAX_BYTES}
            with pytest.raises(Refused, match="above the limit"):
                await connection.request_async(Status(), Report)
            broker.report = {}
            await connection.request_async(Status(), Report)


async def test_the_socket_is_for_the_group_and_goes_with_the_broker(config):
    path = control_socket(config.runtime_dir)
    async with LocalBroker(config):
        assert path.stat().st_mode & 0o777 == 0o660
    assert not path.exists()
    with pytest.raises(BrokerUnreachable, match="no broker answers at") as caught:
        Connection(config.runtime_dir)
    assert "brim run" in caught.value.hint
    assert caught.value.__notes__ == [caught.value.hint]  # so that a traceback shows it


async def test_a_socket_left_by_a_killed_broker_is_replaced(config):
    path = control_socket(config.runtime_dir)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(path))
    with pytest.raises(BrokerUnreachable):
        Connection(config.runtime_dir)
    async with LocalBroker(config):
        with Connection(config.runtime_dir) as connection:
            assert connection.pid == os.getpid()


IMPOSTOR = """
import os, socket, sys
os.setuid(12345)
listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listening.bind(sys.argv[1])
listening.listen()
print("listening", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
def test_without_a_directory_only_ones_own_broker_is_believed(config, monkeypatch):
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(config.runtime_dir))
    config.runtime_dir.chmod(0o777)
    with Child(IMPOSTOR, control_socket(config.runtime_dir)) as impostor:
        assert impostor.line() == "listening"
        with pytest.raises(BrokerUnreachable, match="is answered by a broker of user 12345"):
            Connection()
        Connection(config.runtime_dir).close()  # who names the directory has decided whom to trust


async def test_a_wrong_filter_is_refused_and_the_connection_goes_on(config):
    async with LocalBroker(config) as broker:
        with Connection(config.runtime_dir) as connection:
            with pytest.raises(Refused, match="# must be the whole last level"):
                await connection.request_async(Rings(("a/#/b",)), RingList)
            await connection.request_async(Status(), Report)
        assert broker.local.counts["refusals"] == 1


def raw(config) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(str(control_socket(config.runtime_dir)))
    peer.setblocking(False)
    return peer


async def heard(peer: socket.socket) -> list[bytes]:
    """All that comes until the broker ends the connection."""
    found = []
    async with asyncio.timeout(PATIENCE_S):
        while data := await asyncio.get_running_loop().sock_recv(peer, 1 << 20):
            found.append(data)
    return found


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_are_anything_but_a_request_or_a_control_error(data):
    with suppress(ControlError):
        assert isinstance(protocol.PROTOCOL.decode_request(data), protocol.Request)


@pytest.mark.parametrize(
    "tail",
    [b"\x91" * 8000 + b"\xc0", b"\x81\xa1a" * 4000 + b"\xc0", b"\xa2\xff\xfe"],
    ids=["lists", "maps", "text"],
)
@pytest.mark.parametrize("field", ["ring", "of another version"])
def test_a_request_of_odd_values_is_refused(tail, field):
    head = b"\x84\xa7version\x02\xa2op\xa5admit\xa4slot\x00"
    with pytest.raises(ControlError, match="no request"):
        protocol.PROTOCOL.decode_request(head + msgspec.msgpack.encode(field) + tail)


async def test_a_request_above_the_limit_is_not_sent(config):
    async with LocalBroker(config):
        with (
            Connection(config.runtime_dir) as connection,
            pytest.raises(ControlError, match="above the limit"),
        ):
            await connection.request_async(Rings(("x" * 80_000,)), RingList)


async def holding(config) -> Connection:
    """A connection that uses what it was answered."""
    connection = Connection(config.runtime_dir)
    await connection.request_async(Rings(("#",), follow=True), RingList)
    return connection


async def test_connections_are_capped_and_the_one_too_many_is_told(config, caplog):
    config = msgspec.structs.replace(config, local=Local(connections_max=3))
    async with LocalBroker(config) as broker:
        held = [await holding(config) for _ in range(3)]
        for _ in range(20):
            with (
                Connection(config.runtime_dir) as extra,
                pytest.raises(Refused, match=r"as many as local\.connections_max"),
            ):
                await extra.request_async(Rings(("#",)), RingList)
        assert broker.local.counts["refused"] == 20
        assert len([it for it in caplog.messages if it.startswith("local process refused")]) == 1
        held.pop().close()
        await until(lambda: broker.local.connections < 3)
        held.append(await holding(config))
        for connection in held:
            connection.close()


async def test_status_is_answered_while_other_processes_hold_every_connection(config):
    config = msgspec.structs.replace(config, local=Local(connections_max=3))
    async with LocalBroker(config) as broker:
        held = [await holding(config) for _ in range(3)]
        silent = [raw(config) for _ in range(2 * BRIEF_MAX)]
        for _ in range(3):
            with Connection(config.runtime_dir) as connection:
                await connection.request_async(Status(), Report)
        assert broker.local.connections == 3
        for connection in held:
            await connection.request_async(Status(), Report)  # none of them gave way
            connection.close()
        for peer in silent:
            peer.close()


async def test_connections_without_a_request_give_way_to_those_with_one(config):
    config = msgspec.structs.replace(config, local=Local(connections_max=3))
    async with LocalBroker(config) as broker:
        silent = [raw(config) for _ in range(3)]
        await until(lambda: broker.local.connections == 3)
        held = [await holding(config) for _ in range(3)]
        assert broker.local.counts["displaced"] == 3
        for peer in silent:
            assert await heard(peer) == []
            peer.close()
        for connection in held:
            connection.close()


async def test_a_connection_without_a_request_ends_at_its_deadline(config, monkeypatch):
    monkeypatch.setattr(server, "FIRST_REQUEST_S", 0.05)
    async with LocalBroker(config) as broker:
        with raw(config) as silent, Connection(config.runtime_dir) as connection:
            await connection.request_async(Status(), Report)
            assert await heard(silent) == []
            await connection.request_async(Status(), Report)  # the deadline is that of the first request only
        assert broker.local.counts["cut_silent"] == 1


GREEDY = """
import os, socket, sys
os.setgid(0)
os.setuid(12345)
held = []
for _ in range(int(sys.argv[2])):
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.connect(sys.argv[1])
    peer.send(bytes.fromhex(sys.argv[3]))
    peer.recv(1 << 20)
    held.append(peer)
print("connected", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user for a moment")
async def test_another_user_gets_half_of_the_connections_at_most(config):
    config = msgspec.structs.replace(config, local=Local(connections_max=4))
    config.runtime_dir.chmod(0o777)
    async with LocalBroker(config) as broker:
        path, request = control_socket(config.runtime_dir), encode(Rings(("#",), follow=True))
        with Child(GREEDY, path, 6, request.hex()) as greedy:
            assert await asyncio.to_thread(greedy.line) == "connected"
            assert broker.local.connections == 2
            held = [await holding(config) for _ in range(2)]
            for connection in held:
                connection.close()


async def test_a_request_that_finds_no_descriptor_fails_and_the_connection_stays(config, monkeypatch):
    async with LocalBroker(config) as broker:

        def refuse(*_: object) -> None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(broker.producers, "open", refuse)
        with Connection(config.runtime_dir) as connection:
            with pytest.raises(Refused, match="Too many open files"):
                await connection.request_async(Produce("camera", "default"), RingList)
            await connection.request_async(Status(), Report)


class BrokenReport(dict[str, object]):
    """A report that cannot be read."""

    def __bool__(self) -> bool:
        raise ValueError("no such report")


@pytest.mark.parametrize("report", [BrokenReport(), {"name": "\udcff"}, {"object": object()}, {"n": 1 << 70}])
async def test_a_mistake_in_the_server_fails_one_request_with_a_traceback_in_the_log(config, caplog, report):
    async with LocalBroker(config) as broker:
        with Connection(config.runtime_dir) as connection:
            broker.report = report
            for _ in range(3):
                with pytest.raises(Refused, match=r"the broker failed: [A-Z]") as refused:
                    await connection.request_async(Status(), Report)
                assert refused.value.hint == "see the log of the broker"
            broker.report = {}
            await connection.request_async(Status(), Report)
        assert broker.local.counts["defects"] >= 3
        assert [bool(line.exc_info) for line in caplog.records if line.levelname == "ERROR"] == [True]
        caplog.clear()  # tracebacks hold the broker


def test_brim_status_is_answered_while_300_idle_connections_are_open(runtime_directory, tmp_path):
    with BrimProcess(runtime_directory, tmp_path, bridge=False), ExitStack() as down:
        for _ in range(300):
            idle = down.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.connect(str(control_socket(runtime_directory)))
        command = [sys.executable, "-m", "edge", "status", "--runtime-dir", str(runtime_directory)]
        shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert shown.returncode == 0, shown.stderr


async def test_a_blocking_reader_holds_the_writer_until_its_process_goes(runtime_directory, tmp_path):
    config = blocking_config(runtime_directory, tmp_path)
    async with LocalBroker(config) as broker:
        partition = broker.streams.all()[0]
        with Ring.attach(partition.ring.path) as ring, ring.reader(blocks_writer=True, name="app") as reader:
            with Connection(config.runtime_dir) as connection:
                await connection.request_async(Admit("default-0", reader.slot), Done)
                while partition.writer.publish(b"x" * 1000, key="t") is not None:
                    pass
                assert partition.writer.rejected == 1
                assert next(reader).offset == 0
            # The connection has ended: what it was granted is taken back.
            await until(lambda: partition.writer.publish(b"x" * 1000, key="t") is not None)
            with pytest.raises(Evicted):
                reader.poll()


async def test_a_gate_is_granted_only_to_who_may_and_where_it_can_be(runtime_directory, tmp_path, config):
    async with LocalBroker(config):
        with Connection(config.runtime_dir) as connection:
            with pytest.raises(Refused, match="'default' overwrites") as caught:
                await connection.request_async(Admit("default-0", 0), Done)
            assert 'when_full = "block"' in caught.value.hint
            with pytest.raises(Refused, match=r"does not write a ring '\.\./x'"):
                await connection.request_async(Admit("../x", 0), Done)
    config = blocking_config(runtime_directory, tmp_path)
    async with LocalBroker(config) as broker:
        ring = broker.streams.all()[0].ring
        with (
            Connection(config.runtime_dir) as connection,
            Connection(config.runtime_dir) as other,
        ):
            for slot in (0, 63, 64, -1, 1 << 40):
                with pytest.raises(Refused, match="has no blocking reader of this process"):
                    await connection.request_async(Admit("default-0", slot), Done)
            with Ring.attach(ring.path) as attached, attached.reader(blocks_writer=True) as reader:
                await connection.request_async(Admit("default-0", reader.slot), Done)
                await connection.request_async(
                    Admit("default-0", reader.slot), Done
                )  # asked again after a restart
                with pytest.raises(Refused, match="has no blocking reader of this process"):
                    await other.request_async(Admit("default-0", reader.slot), Done)
        broker.local._blocking_reader_uids.clear()
        with Connection(config.runtime_dir) as connection, pytest.raises(Refused) as caught:
            await connection.request_async(Admit("default-0", 0), Done)
        assert f"add {os.geteuid()} to local.blocking_reader_uids" in caught.value.hint


async def test_a_producer_gets_a_ring_of_its_own_and_followers_are_told(config):
    async with LocalBroker(config) as broker:
        with (
            Connection(config.runtime_dir) as follower,
            Connection(config.runtime_dir) as connection,
        ):
            await follower.request_async(Rings(("nothing/of/it",), follow=True), RingList)
            facts = (await connection.request_async(Produce("cam", "some"), RingList)).rings[0]
            assert (facts.name, facts.kind, facts.stream) == ("some@cam", "producer", "some")
            await until(lambda: follower.receive() or follower.news)
            assert follower.news.pop().ring == facts
            with Ring.reattach(facts.path) as ring:
                assert ring.writer().publish(b"frame", key="a/cam") == 0
            assert [ring.name for ring in broker.producers.all()] == ["some@cam"]
            with Connection(config.runtime_dir) as other:
                with pytest.raises(
                    Refused, match=f"producer 'cam' of stream 'some' is process {os.getpid()}"
                ):
                    await other.request_async(Produce("cam", "some"), RingList)
                connection.close()
                await until(lambda: broker.local.connections == 2)
                assert (await other.request_async(Produce("cam", "some"), RingList)).rings == (facts,)


@pytest.mark.parametrize(
    ("producer", "stream", "said"),
    [
        ("cam", "nope", "there is no stream 'nope'"),
        ("../../etc/x", "some", "invalid producer name '../../etc/x'"),
        ("cam\n", "some", "invalid producer name"),
        ("", "some", "invalid producer name"),
        ("listed", "default", "producer 'listed' writes stream 'some', not 'default'"),
    ],
)
async def test_a_producer_that_may_not_be_is_refused(config, producer, stream, said):
    config = msgspec.structs.replace(config, producer=(Producer(name="listed", stream="some"),))
    async with LocalBroker(config) as broker:
        with Connection(config.runtime_dir) as connection, pytest.raises(Refused, match=said):
            await connection.request_async(Produce(producer, stream), RingList)
        assert broker.producers.all() == []


async def test_a_producer_without_a_stream_writes_that_of_its_settings(config):
    config = msgspec.structs.replace(config, producer=(Producer(name="listed", stream="some"),))
    async with LocalBroker(config) as broker:
        for name in ("listed", "other"):
            async with producer(name, runtime_dir=config.runtime_dir):
                pass
        assert {ring.name for ring in broker.producers.all()} == {"some@listed", "default@other"}


async def test_producers_of_other_users_must_be_listed(config):
    config = msgspec.structs.replace(config, producer=(Producer(name="cam", stream="some", uids=(4711,)),))
    async with LocalBroker(config) as broker:
        ring = broker.producers.open("cam", "some", uid=4711).ring
        assert (ring.path.with_name("some@cam.ring")).stat().st_mode & 0o777 == 0o660
        with pytest.raises(Refused, match="user 4712 may not be producer 'cam'") as caught:
            broker.producers.open("cam", "some", uid=4712)
        assert "add uids = [4712]" in caught.value.hint
        with pytest.raises(Refused, match="user 4711 may not be producer 'else'"):
            broker.producers.open("else", "some", uid=4711)


async def test_producers_nobody_has_listed_are_few(config):
    config = msgspec.structs.replace(config, local=Local(producers_max=1))
    async with LocalBroker(config) as broker:
        first = broker.producers.open("one", "some", uid=os.geteuid())
        assert broker.producers.open("one", "some", uid=os.geteuid()) is first
        with pytest.raises(Refused, match=r"too many producers without a \[\[producer\]\]: 1 "):
            broker.producers.open("two", "some", uid=os.geteuid())


async def test_producers_join_while_there_are_descriptors_for_their_rings(config):
    async with LocalBroker(config) as broker:
        broker.producers.joins_max = 1
        first = broker.producers.open("one", "some", uid=os.geteuid())
        with pytest.raises(Refused, match="1 producer rings have joined") as caught:
            broker.producers.open("two", "some", uid=os.geteuid())
        assert "LimitNOFILE" in caught.value.hint
        assert broker.producers.open("one", "some", uid=os.geteuid()) is first


async def test_a_producers_ring_is_found_by_the_next_broker(config, caplog):
    async with LocalBroker(config) as broker:
        path = broker.producers.open("cam", "some", uid=os.geteuid()).ring.path
    with Ring.reattach(path) as ring:
        writer = ring.writer()
        writer.publish(b"while nobody was there", key="a/cam")
        epoch = ring.epoch
        (config.runtime_dir / "gone@cam.ring").write_bytes(b"x")
        (config.runtime_dir / "some@bad.ring").write_bytes(b"x")
        async with LocalBroker(config) as broker:
            assert [(it.name, it.ring.epoch) for it in broker.producers.all()] == [("some@cam", epoch)]
        writer.publish(b"still there", key="a/cam")
    assert "producer ring ignored: its stream is not configured" in caplog.text
    assert "producer ring not usable" in caplog.text


topics = st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=4).map("/".join)
filters = st.builds(
    lambda levels, end: "/".join([*levels, *end]),
    st.lists(st.sampled_from(["", "a", "b", "+"]), min_size=1, max_size=3),
    st.sampled_from([[], ["#"]]),
) | st.just("#")


@given(filters, filters, topics)
def test_filters_that_share_a_topic_meet(one, other, topic):
    if matches(one, topic) and matches(other, topic):
        assert filters_meet(one, other)
        assert filters_meet(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [("a", "b"), ("a/+", "a"), ("a/b", "a/b/c"), ("+/x", "a/y"), ("a/b/#", "a"), ("a/#", "b/#")],
)
def test_filters_without_a_common_topic_do_not_meet(one, other):
    assert not filters_meet(one, other)
    assert not filters_meet(other, one)


# ---- time of the broker ----


async def test_a_peer_that_sends_ahead_without_end_does_not_stop_others(config):
    rings = encode(Rings(("#",)))
    async with LocalBroker(config):
        with ExitStack() as stack:
            peers = [stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)) for _ in "ab"]
            for peer in peers:
                peer.connect(str(control_socket(config.runtime_dir)))
                peer.setblocking(False)
            for _ in range(100):
                peers[0].send(rings)
            peers[1].send(rings)
            assert await asyncio.get_running_loop().sock_recv(peers[1], 1 << 17)
            answered = 0
            with suppress(BlockingIOError):
                while peers[0].recv(1 << 17):
                    answered += 1
            assert answered < 50


async def test_reports_of_another_user_are_made_one_at_a_time_and_delay_nobody_else(config, monkeypatch):
    async with LocalBroker(config) as broker:
        made, ready = 0, asyncio.Event()

        async def report() -> dict[str, Any]:
            nonlocal made
            made += 1
            await ready.wait()
            return {}

        monkeypatch.setattr(broker.local, "_report", report)
        monkeypatch.setattr(broker.local._peers, "privileged", frozenset())
        with ExitStack() as stack:
            peers = [stack.enter_context(Connection(config.runtime_dir)) for _ in range(4)]
            asked = [asyncio.create_task(peer.request_async(Status(), Report)) for peer in peers[:3]]
            await until(lambda: made == 1 and broker.local.counts["connections"] == 4)
            await peers[3].request_async(Rings(("#",)), RingList)  # no report
            assert made == 1
            monkeypatch.setattr(broker.local._peers, "privileged", frozenset({os.geteuid()}))
            asked.append(asyncio.create_task(peers[3].request_async(Status(), Report)))
            await until(lambda: made == 2)  # it waits for none of them
            ready.set()
            await asyncio.gather(*asked)
            assert made == 4
        await until(lambda: not broker.local._paces and not broker.local.connections)


@pytest.mark.parametrize(
    "request_fields",
    [
        {"op": "sessions", "first": 1 << 63},
        {"op": "sessions", "first": -1},
        {"op": "retained", "filter": "#", "first": 1 << 32},
        {"op": "retained", "filter": "#", "payload_max": -1},
        {"op": "clear_retained", "filter": "#", "first": (1 << 64) - 1},
    ],
)
async def test_a_number_out_of_range_is_refused_with_the_range(config, request_fields):
    async with LocalBroker(config) as broker:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(str(control_socket(config.runtime_dir)))
            peer.setblocking(False)
            peer.send(msgspec.msgpack.encode(request_fields | {"version": protocol.VERSION}))
            answer = msgspec.msgpack.decode(await asyncio.get_running_loop().sock_recv(peer, 1 << 17))
            assert "Expected `int`" in answer["error"]
        assert broker.local.counts["defects"] == 0
