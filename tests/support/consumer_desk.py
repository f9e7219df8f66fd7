"""The consumers' service with real rings and a real journal, a clock that stands still, and no sockets."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from edge.config.schema import Consumers, Durability
from edge.consumers.client_state import ConsumerBatch, ConsumerCore
from edge.consumers.client_state import ConsumerSettings as CoreSettings
from edge.consumers.coordinator import Coordinator
from edge.consumers.dead_letters import Fate, Outgoing
from edge.consumers.offset_journal import Journal
from edge.consumers.offset_store import OffsetStore
from edge.consumers.protocol import PROTOCOL, VERSION, Answer, Message, RequestMessage
from edge.consumers.registry import GroupRegistry, RingEntry
from edge.consumers.ring_source import ReadableLog, RingSource
from edge.consumers.server import ConsumersEndpoint
from edge.consumers.start_place import start_place
from edge.local.zmq_listener import ZmqListener
from edge.rpc.protocol import encode
from persistence.files import Files, OsFiles
from ringbuf import Batch, Ring

M = TypeVar("M", bound=Message)


def texts(*numbers: int) -> list[bytes]:
    """The numbers as payloads."""
    return [str(number).encode() for number in numbers]


class Desk:
    """`rings` of 64 KiB in `directory`.  Published dead letters and messages are in `published`."""

    def __init__(
        self,
        directory: Path,
        *,
        rings: int = 1,
        settings: Consumers | None = None,
        files: Files | None = None,
        journal: Path | None = None,
        log: ReadableLog | None = None,
        durability: Durability = Durability.PROCESS,
        topics: tuple[str, ...] | None = ("a/#",),
    ) -> None:
        self.now_s = 1000.0
        self.published: list[Outgoing] = []
        self.fates: Callable[[Outgoing], Fate] = lambda _: "stored"
        self.directory = directory
        self.journal = journal or directory
        self._arguments = (settings or Consumers(), files or OsFiles(), log, durability, topics)
        self.rings = [
            Ring.create(directory / f"some-{index}", capacity_bytes=1 << 16, epoch=1)
            for index in range(rings)
        ]
        self._numbers = itertools.count(1)
        self._coordinator: Coordinator | None = None
        self.start()

    @property
    def coordinator(self) -> Coordinator:
        """Of this life."""
        assert self._coordinator is not None
        return self._coordinator

    def start(self) -> None:
        """A new life: from the content of the journal."""
        settings, files, log, durability, topics = self._arguments
        store = OffsetStore(Journal(files, str(self.journal), "offsets"))
        registry = GroupRegistry(store, settings, lambda: int(self.now_s * 1e9))
        self._coordinator = Coordinator(registry, self._publish, clock=lambda: self.now_s)
        for ring in self.rings:
            self.coordinator.add_ring(RingEntry(RingSource(ring, log), "some", topics, durability, 1_000))

    def end(self) -> None:
        """kill -9: nothing is written that has not been."""
        for entry in self.coordinator.registry.rings.values():
            entry.source.close()
        self.coordinator.registry.store.close()
        self._coordinator = None

    def publish(self, *payloads: bytes | str, ring: int = 0, topic: str = "a/1", **how: Any) -> None:
        """Records of one topic."""
        for payload in payloads:
            assert self.rings[ring].writer().publish(payload, key=topic, **how) is not None
        self.coordinator.rang(f"some-{ring}")

    def turn(self, seconds: float = 0.0) -> None:
        """Advance the time, and give the service its turn."""
        self.now_s += seconds
        self.coordinator.turn()

    def ask(
        self,
        kind: type[RequestMessage],
        expected: type[M],
        *arguments: Any,
        frames: Sequence[bytes] = (),
        **named: Any,
    ) -> M:
        """The answer to a request, in this turn."""
        answer = self.say(kind, *arguments, frames=frames, **named)
        assert isinstance(answer, expected), answer
        return answer

    def say(
        self, kind: type[RequestMessage], *arguments: Any, frames: Sequence[bytes] = (), **named: Any
    ) -> Answer | None:
        """The same, whatever it is; None: none yet."""
        number = next(self._numbers)
        self.coordinator.receive(b"peer", encode(kind(number, VERSION, *arguments, **named)), frames)
        self.turn()
        return self.answer_to(number)

    def answers(self) -> list[Answer]:
        """All answers in the outbox, which stay there."""
        return [PROTOCOL.decode_answer(frames[0]) for _, frames in self.coordinator.outbox]

    def answer_to(self, number: int) -> Answer | None:
        """Answer to that request in the outbox; all other messages are dropped."""
        found = None
        while self.coordinator.outbox:
            _, (first, *self.frames) = self.coordinator.outbox.popleft()
            answer = PROTOCOL.decode_answer(first)
            if answer.id == number:
                found = answer
        return found

    def payloads(self, answer: Any) -> list[bytes]:
        """Of all records that were meant in a `fetched`."""
        found: list[bytes] = []
        for facts, frame in zip(answer.batches, self.frames, strict=True):
            found += map(bytes, Batch.of(frame, facts.epoch, facts.offset, None, facts.offset + facts.count))
        return found

    def member(self, group: str = "g", filters: tuple[str, ...] = ("a/#",), **how: Any) -> Talker:
        """A consumer's core, joined."""
        how["start"] = start_place(how.get("start", "oldest"))
        talker = Talker(self, CoreSettings(group, filters, **how))
        talker.talk()
        return talker

    def _publish(self, messages: Sequence[Outgoing], done: Callable[[list[Fate]], None]) -> None:
        fates = [self.fates(it) for it in messages]
        self.published += [it for it, fate in zip(messages, fates, strict=True) if fate == "stored"]
        done(fates)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._coordinator is not None:
            for entry in self._coordinator.registry.rings.values():
                entry.source.close()
            self._coordinator.close()
        for ring in self.rings:
            ring.close()


class Talker:
    """A ConsumerCore whose wire is the desk's service: an engine pair."""

    def __init__(self, desk: Desk, settings: CoreSettings) -> None:
        self.desk = desk
        self.core = ConsumerCore(settings)
        self.peer = str(id(self)).encode()

    def talk(self, *, connected: bool = True) -> None:
        """Requests go there and answers come back until both have nothing more to say."""
        coordinator, core = self.desk.coordinator, self.core
        self._listen()
        for _ in range(50):
            requests = core.requests(self.desk.now_s, connected=connected)
            for request in requests:
                coordinator.receive(self.peer, encode(request))
            coordinator.turn()
            if not self._listen() and not requests:
                return
        raise AssertionError("they talk without end")

    def _listen(self) -> int:
        mine = [it for it in self.desk.coordinator.outbox if it[0] == self.peer]
        for it in mine:
            self.desk.coordinator.outbox.remove(it)
            self.core.take(PROTOCOL.decode_answer(it[1][0]), it[1][1:], self.desk.now_s)
        return len(mine)

    def take(self) -> ConsumerBatch | None:
        """The next batch, if there is one."""
        self.talk()
        return self.core.batches.popleft() if self.core.batches else None

    def got(self) -> ConsumerBatch:
        """The next batch, which is there."""
        batch = self.take()
        assert batch is not None
        return batch

    def all(self) -> list[bytes]:
        """Takes and acknowledges all there is: the payloads."""
        found = []
        while (batch := self.take()) is not None:
            found += [bytes(it) for it in batch]
            self.ack(batch)
        return found

    def ack(self, batch: ConsumerBatch, offsets: list[int] | None = None) -> None:
        """And its answer."""
        self.core.queue(self.core.ack(batch, offsets), wait=False)
        self.talk()

    def nack(
        self, batch: ConsumerBatch, offsets: list[int] | None = None, delay_s: float | None = None
    ) -> None:
        """And its answer."""
        self.core.queue(self.core.nack(batch, offsets, delay_s, "no good"), wait=False)
        self.talk()

    def leave(self) -> None:
        """In good order."""
        leave = self.core.leave()
        assert leave is not None
        self.desk.coordinator.receive(self.peer, encode(leave))
        self.desk.turn()


@contextmanager
def endpoint_over(ring: Ring, directory: Path, where: str, **keys: Path) -> Iterator[ConsumersEndpoint]:
    """A started endpoint over one ring, with real sockets."""

    def make(wake: Callable[[], None]) -> Coordinator:
        store = OffsetStore(Journal(OsFiles(), str(directory), "offsets"))
        registry = GroupRegistry(store, Consumers(), time.time_ns)
        return Coordinator(
            registry,
            lambda messages, done: done(["stored" for _ in messages]),
            clock=time.monotonic,
            wake=wake,
        )

    with closing(ZmqListener("consumers", where)) as listener:
        made = ConsumersEndpoint(listener, make, **keys)
        made.add(RingEntry(RingSource(ring), "some", ("a/#",)), ring.reader(name="consumers", local=True))
        made.start()
        try:
            yield made
        finally:
            made.stop()
