"""Rounds of the broker's thread: no client's messages wait for the end of another's."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count, pairwise

import pytest

from edge.broker.deferred import SLICE_S, DeferredDecisions
from edge.broker.sliced_work import Steps, at_once
from edge.engine.engine import OK, CloseCause, counters_of, limits_of
from edge.engine.loop import Loop
from edge.mqtt import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    Publish,
    Subscribe,
    Subscription,
    Unsubscribe,
    Version,
    decode_packet,
    encode,
    subscribe_steps,
    unsubscribe_steps,
)
from tests.support.frames import first_frame
from tests.support.mqtt_bench import Bench

MIB = 1 << 20
SUBSCRIBERS = 128
SURPLUS = 20
MESSAGES = 150
TURNS = 1_000  # a client without its bytes by then has been refused
ROUND_BYTES = 6 * MIB  # poll() flushes up to three times, 2 MiB each, about


def received(client: socket.socket) -> bytes:
    """The bytes that wait in its socket."""
    try:
        return client.recv(MIB)
    except BlockingIOError:
        return b""


class Rounds:
    """A loop without a thread: each turn() is one round."""

    def __init__(self, bench: Bench, down: ExitStack) -> None:
        self.bench, self._down = bench, down
        self.loop = Loop(bench.engine)
        self.counters = counters_of(bench.engine)
        self.limits = limits_of(bench.engine)
        server = socket.socket(socket.AF_UNIX)
        server.bind("")  # a free name without a file
        server.listen(SUBSCRIBERS)
        server.setblocking(False)
        self._address = server.getsockname()
        self.loop.listen(server.detach(), 0)

    def turn(self, events: int = 32) -> int:
        """Poll, and do what Python has to do, for so many events; return how many bytes were sent."""
        before = int(self.counters.bytes_out)
        self.loop.poll(0)
        self.bench.broker.handle(self.bench.engine.events(events))
        while self.bench.calls:
            self.bench.calls.popleft()()
        self.bench.broker.tick()
        return int(self.counters.bytes_out) - before

    def knock(self) -> socket.socket:
        """A socket that is connected, and waits to be accepted."""
        here = socket.socket(socket.AF_UNIX)
        here.connect(self._address)
        return here

    def client(self, name: str, *filters: str) -> socket.socket:
        """A connected client, of which the answers are read."""
        here = self._down.enter_context(self.knock())
        here.sendall(encode(Connect(name, keep_alive_s=0)))
        expected = 4
        if filters:
            here.sendall(encode(Subscribe(1, tuple(map(Subscription, filters)))))
            expected += 4 + len(filters)
        here.setblocking(False)
        self.turn_until({here: b""}, expected)
        return here

    def turn_until(self, arrived: dict[socket.socket, bytes], expected: int) -> int:
        """Turn until `arrived` has so many bytes of each client; return the most that one turn sent."""
        most = 0
        for _ in range(TURNS):
            most = max(most, self.turn())
            for client in arrived:
                arrived[client] += received(client)
            if all(len(data) >= expected for data in arrived.values()):
                return most
        least = min(arrived.values(), key=len)
        raise AssertionError(f"{least[:80]!r} after {TURNS} rounds: {len(least)} of {expected} bytes")


@contextmanager
def rounds() -> Iterator[Rounds]:
    """An engine, its broker and its loop."""
    with ExitStack() as down:
        # The loop reads the machine's clock: a bench that begins later than it would expire every client.
        bench = down.enter_context(Bench(capacity_bytes=4 * MIB, now_ms=0))
        made = Rounds(bench, down)
        try:
            yield made
        finally:
            made.loop.close()


def test_closed_connections_that_wait_for_their_end_delay_nobody() -> None:
    """Epoll hands out 256 sockets at a time, and a closed one would be ready until its end."""
    with rounds() as it:
        crowd = [it.client(f"crowd-{n}") for n in range(1_100)]
        honest = it.client("honest", "all")
        first = encode(Publish("all", b"first"))
        honest.sendall(first)
        it.turn_until({honest: b""}, len(first))
        for client in crowd:
            client.close()
        for _ in range(12):  # epoll reports each twice
            it.turn(1)
        honest.sendall(encode(Publish("all", b"soon")))
        for _ in range(2):
            it.turn(1)
        assert received(honest) == encode(Publish("all", b"soon"))


def test_a_fan_out_to_many_is_sent_in_parts_between_which_sockets_are_looked_at() -> None:
    """Without the bound one round sends 19 MB, and a publisher waits for all of it."""
    with rounds() as it:
        readers = [it.client(f"reader-{n}", "all") for n in range(SUBSCRIBERS)]
        writer = it.client("writer")
        whole = b"".join(encode(Publish("all", n.to_bytes(2) + bytes(998))) for n in range(MESSAGES))
        writer.sendall(whole)
        arrived = dict.fromkeys(readers, b"")
        assert it.turn_until(arrived, len(whole)) <= ROUND_BYTES
        assert all(data == whole for data in arrived.values())


def test_what_many_send_is_read_in_parts_between_which_all_have_their_turn() -> None:
    """Without the bound one round reads 16 MB of packets that are not whole, and an honest client waits."""
    with rounds() as it:
        crowd = [it.client(f"crowd-{n}") for n in range(SUBSCRIBERS)]
        part = memoryview(encode(Publish("all", bytes(MIB))))[: 128 * 1024]
        for client in crowd:
            client.send(part)
        before, most = int(it.counters.bytes_in), 0
        for _ in range(100):
            it.turn()
            now = int(it.counters.bytes_in)
            most, before = max(most, now - before), now
        assert 0 < most <= ROUND_BYTES
        for client in crowd:
            client.close()


def test_topics_that_many_clients_name_share_a_round() -> None:
    """Without the bound one round makes all 30,000 topics: about 50 ms, for which an honest client waits."""
    with rounds() as it:
        crowd = [it.client(f"crowd-{n}") for n in range(60)]
        for number, client in enumerate(crowd):
            client.send(b"".join(encode(Publish(f"{number}/{n}", b"")) for n in range(500)))
        most, before = 0, int(it.counters.topics)
        expected = before + 30_000
        for _ in range(TURNS):
            it.turn()
            now = int(it.counters.topics)
            most, before = max(most, now - before), now
            if now == expected:
                break
        assert before == expected
        assert most <= 10_000  # poll() has three rounds, about


def test_a_round_ends_when_its_work_is_done_however_many_clients_wait() -> None:
    """Without the bound each of 1,000 clients makes at least 4 topics in the round, so one makes 4,000."""
    pings = encode(PingReq()) * 8_192  # the work of one turn; the rest waits for a round
    with rounds() as it:
        bench = it.bench
        crowd = [bench.client(f"crowd-{n}") for n in range(1_000)]
        for client in crowd:
            client.send(Publish("all", b""))  # its rights are known now
        for number, client in enumerate(crowd):
            topics = b"".join(encode(Publish(f"{number}/{n}", b"")) for n in range(20))
            bench.engine.feed(client.handle, pings + topics)
        made = [int(it.counters.topics)]
        assert made == [1]
        while made[-1] <= 20_000 and len(made) < TURNS:
            it.turn()
            made.append(int(it.counters.topics))
        assert made[-1] == 20_001
        # a turn has two rounds, each of 32,768 units, and a topic has 16 or more
        assert max(later - former for former, later in pairwise(made)) <= 4_200


def test_a_ring_may_be_removed_before_the_end_of_its_records_is_announced() -> None:
    """The next round announces the ends of all rings in the line, and must not find the removed one."""
    with Bench() as bench:
        writers = [bench.add_partition(bench.directory, f"added-{n}").writer for n in range(2)]
        rings = [bench.engine.add_ring(writer, 0, False) for writer in writers]
        for number, ring in enumerate(rings):
            topic = bench.engine.topic_add(b"%d" % number, ring, False, 0, b"")
            assert bench.engine.publish(topic, b"", 0, b"", b"", b"", 0) == OK
        bench.engine.remove_ring(rings[0])
        bench.settle()


def test_work_that_causes_more_work_has_one_slice_for_each_poll() -> None:
    """Else each SUBSCRIBE adds a slice to every round from then on."""
    calls: list[Callable[[], object]] = []
    clock = count(step=SLICE_S / 10)
    with Bench() as bench:
        pending = DeferredDecisions(bench.engine, calls.append, lambda _, act: act(), lambda: next(clock))

        def endless() -> Steps[None]:
            while True:
                yield

        def begets() -> Steps[None]:
            yield
            pending.work(0, "second", endless())

        for _ in range(20):  # the slice of this poll is over
            next(clock)
        pending.work(0, "first", begets())
        for _ in range(100):
            assert len(calls) == 1
            calls.pop()()


FILTERS = tuple(f"{n:04}/+/" + "x" * 200 for n in range(1_000))


@pytest.mark.parametrize(
    ("packet", "in_steps"),
    [
        (Subscribe(1, tuple(map(Subscription, FILTERS))), subscribe_steps),
        (Unsubscribe(1, FILTERS), unsubscribe_steps),
    ],
    ids=["subscribe", "unsubscribe"],
)
def test_many_filters_are_decoded_in_parts(packet: Packet, in_steps: Callable[..., Steps[Packet]]) -> None:
    data = encode(packet, Version.V5)
    frame = first_frame(data)
    assert frame is not None
    body = frame[1]
    steps, parts = in_steps(data[0], body, Version.V5), 1
    while next(steps, packet) is not packet:
        parts += 1
    assert parts > len(FILTERS) // 100
    assert at_once(in_steps(data[0], body, Version.V5)) == packet == decode_packet(data[0], body, Version.V5)


def test_a_mistake_in_a_late_filter_ends_the_connection_and_adds_no_subscription() -> None:
    with Bench() as bench:
        client = bench.client5("c")
        filters = encode(Subscribe(1, tuple(map(Subscription, FILTERS))), Version.V5)
        client.raw(filters.replace(b"0999/+/x", b"0999/+x/"))
        assert isinstance(client.answer(), Disconnect)
        assert not client.is_open
        assert bench.broker.router.subscription_count == 0


def test_clients_beyond_connections_max_are_refused_in_one_round() -> None:
    with rounds() as there, ExitStack() as down:
        there.client("c")
        there.limits.connections_max = 1
        waiting = [down.enter_context(there.knock()) for _ in range(SURPLUS)]
        refused_before = there.counters.closed[CloseCause.LIMIT]
        while (refused := there.counters.closed[CloseCause.LIMIT] - refused_before) == 0:
            there.turn()
            there.turn()  # with other work, the loop is awake more often than it refuses
            time.sleep(0.001)
        assert refused == len(waiting)


def test_a_connect_that_came_with_its_connection_is_read_in_the_round_that_accepts_it() -> None:
    """Otherwise epoll reports each new client once more."""
    with rounds() as it, it.knock() as client:
        client.sendall(encode(Connect("early", keep_alive_s=0)))
        client.setblocking(False)
        it.turn()
        it.turn()
        assert received(client) == encode(ConnAck())


def test_a_connect_that_comes_after_its_connection_is_answered() -> None:
    """The first read finds nothing."""
    with rounds() as it, it.knock() as client:
        it.turn()
        client.sendall(encode(Connect("late", keep_alive_s=0)))
        client.setblocking(False)
        it.turn_until({client: b""}, len(encode(ConnAck())))


def test_new_clients_that_send_much_at_once_are_read_in_small_parts() -> None:
    """Without the bound one round reads 4 MB of clients that are not yet known."""
    with rounds() as it, ExitStack() as down:
        crowd = [down.enter_context(it.knock()) for _ in range(32)]
        for number, client in enumerate(crowd):
            client.setblocking(False)
            client.send(encode(Connect(f"greedy-{number}", keep_alive_s=0)) + bytes(128 * 1024))
        it.turn()
        assert 0 < int(it.counters.bytes_in) <= MIB


def test_a_client_whose_first_packet_is_wrong_is_closed() -> None:
    """Its first bytes are read before epoll watches it."""
    with rounds() as it, it.knock() as client:
        client.sendall(encode(Publish("before", b"CONNECT")))
        for _ in range(4):
            it.turn()
        assert client.recv(1) == b""
        assert it.counters.connections == 0
