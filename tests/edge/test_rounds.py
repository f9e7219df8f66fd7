"""Rounds of the broker's thread: no client's messages wait for the end of another's."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count

from edge.engine import Loop, Peer, counters_of
from edge.mqtt import Connect, Publish, Subscribe, Subscription, encode
from edge.pending import SLICE_S, Pending
from edge.steps import Steps
from tests.support.mqtt_bench import Bench

NOBODY: Peer = (0, 0, b"", 0)
MIB = 1 << 20
SUBSCRIBERS = 128
MESSAGES = 150
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
        self._bench, self._down = bench, down
        self.loop = Loop(bench.engine)
        self.counters = counters_of(bench.engine)

    def turn(self) -> int:
        """Poll, and do what Python has to do; return how many bytes were sent."""
        before = int(self.counters.bytes_out)
        self.loop.poll(0)
        self._bench.broker.handle(self._bench.engine.events())
        while self._bench.calls:
            self._bench.calls.popleft()()
        self._bench.broker.tick()
        return int(self.counters.bytes_out) - before

    def client(self, name: str, *filters: str) -> socket.socket:
        """A connected client, of which the answers are read."""
        here, there = socket.socketpair()
        self._down.enter_context(here)
        there.setblocking(False)
        assert self.loop.adopt(there.detach(), 0, NOBODY)
        here.sendall(encode(Connect(name, keep_alive_s=0)))
        expected = 4
        if filters:
            here.sendall(encode(Subscribe(1, tuple(map(Subscription, filters)))))
            expected += 4 + len(filters)
        here.setblocking(False)
        answers = b""
        while len(answers) < expected:
            self.turn()
            answers += received(here)
        return here


@contextmanager
def rounds() -> Iterator[Rounds]:
    """An engine, its broker and its loop."""
    with ExitStack() as down:
        bench = down.enter_context(Bench(capacity_bytes=4 * MIB))
        made = Rounds(bench, down)
        try:
            yield made
        finally:
            made.loop.close()


def test_a_fan_out_to_many_is_sent_in_parts_between_which_sockets_are_looked_at() -> None:
    """Without the bound one round sends 19 MB, and whoever has published meanwhile waits for all of it."""
    with rounds() as it:
        readers = [it.client(f"reader-{n}", "all") for n in range(SUBSCRIBERS)]
        writer = it.client("writer")
        whole = b"".join(encode(Publish("all", n.to_bytes(2) + bytes(998))) for n in range(MESSAGES))
        writer.sendall(whole)
        arrived = dict.fromkeys(readers, b"")
        most = 0
        while any(len(data) < len(whole) for data in arrived.values()):
            most = max(most, it.turn())
            for reader in readers:
                arrived[reader] += received(reader)
        assert most <= ROUND_BYTES
        assert all(data == whole for data in arrived.values())


def test_work_that_causes_more_work_has_one_slice_for_each_poll() -> None:
    """Else each SUBSCRIBE adds a slice to every round from then on."""
    calls: list[Callable[[], object]] = []
    clock = count(step=SLICE_S / 10)
    with Bench() as bench:
        pending = Pending(bench.engine, calls.append, lambda _, act: act(), lambda: next(clock))

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
