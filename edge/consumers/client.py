"""Consumer client: members of a consumer group, with asyncio or without.

    async with consumer("billing", "plant/#") as records:
        async for batch in records:
            for record in batch:
                handle(record.key, bytes(record))
            await records.ack(batch)

    with consumer("billing", "plant/#") as records:     # the same, one thread, no event loop
        for batch in records:
            ...
            records.ack_now(batch)

Members of a group share its partitions; the broker stores the group's progress. Records that were not
acknowledged are delivered again. A consumer reconnects by itself; unacknowledged records may then be
repeated.

In `ordered` groups (the default) records of one topic come in order, to one member at a time. In `queue`
groups each member gets the next records, without any order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Literal, Self

import zmq

from edge.consumers.ack_result import AckResult, Offsets, result_of
from edge.consumers.core import ConsumerBatch, ConsumerCore, Settings
from edge.consumers.groups import Mode
from edge.consumers.messages import (
    VERSION,
    Ack,
    Acked,
    Answer,
    Asked,
    Commit,
    Letter,
    Nack,
    Publish,
    Published,
)
from edge.consumers.wire import Asker, Curve, Wire, endpoint_of, unreachable
from edge.directories import StrPath
from edge.local_client import checked_filters
from edge.mqtt import check_name, payload_bytes
from ringbuf import Record

__all__ = ["AckResult", "Consumer", "ConsumerBatch", "Curve", "Letter", "consumer", "publish"]

SLICE_S = 0.1  # the longest sleep before the connection to the broker is checked
LEAVE_MS = 500


def consumer(
    group: str,
    filters: str | Iterable[str],
    *,
    mode: Mode = "ordered",
    start: Literal["oldest", "latest"] = "latest",
    name: str = "",
    session_s: float = 10.0,
    batch_bytes: int = 1 << 20,
    ahead: int = 1,
    connect_timeout_s: float = 5.0,
    runtime_dir: StrPath | None = None,
    endpoint: str = "",
    curve: Curve | None = None,
) -> Consumer:
    """Create a member of `group`, which gets the records of the topics that `filters` match.

    `mode` and filters must be the same for all members. `start`: the first record of a new group. `name` is
    shown to people. `session_s`: silence after which the broker gives its records to others. With asyncio a
    consumer is never silent; otherwise it is silent while the program processes a batch, so choose more than
    a batch takes. `batch_bytes`: approximate size of a batch. `ahead`: batches fetched ahead of their use.
    Raises EdgeError for an invalid topic filter.
    """
    found = checked_filters(filters)
    settings = Settings(group, found, mode, start, name, session_s, batch_bytes, ahead)
    return Consumer(settings, endpoint_of(runtime_dir, endpoint), curve, connect_timeout_s)


class Consumer:
    """Member of a group, created by consumer(). Iterate with `async for` in `async with`, or `for` in `with`.

    Methods that wait have two forms: ack(), nack(), commit() and working() with asyncio, ack_now() and so on
    without. Entering raises BrokerUnreachable, or Refused: the group has other filters, or is full.
    """

    def __init__(self, settings: Settings, endpoint: str, curve: Curve | None, timeout_s: float) -> None:
        self._core = ConsumerCore(settings)
        self._endpoint = endpoint
        self._curve = curve
        self._timeout_s = timeout_s
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._wire: Wire | None = None
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._to_send = asyncio.Event()

    # ---- state ----

    @property
    def joined(self) -> bool:
        """True if the broker counts this consumer as a member now."""
        return self._core.joined

    @property
    def rings(self) -> tuple[str, ...]:
        """Partitions of this member."""
        return self._core.rings

    @property
    def refused(self) -> int:
        """Number of records whose acknowledgement was refused, because it came too late."""
        return self._core.refused

    # ---- with asyncio ----

    async def __aenter__(self) -> Self:
        self._open()
        self._task = asyncio.create_task(self._pump())
        try:
            async with asyncio.timeout(self._timeout_s):
                while not self._core.joined:
                    self._raise_refusal()
                    await self._change()
        except TimeoutError as error:
            await self._end()
            raise unreachable(self._endpoint) from error
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    def __aiter__(self) -> AsyncIterator[ConsumerBatch]:
        return self

    async def __anext__(self) -> ConsumerBatch:
        while not self._core.batches:
            await self._change()
        self._to_send.set()  # triggers the next fetch
        return self._core.batches.popleft()

    async def ack(self, batch: ConsumerBatch, offsets: Offsets | None = None) -> AckResult:
        """Acknowledge records of the batch (Records or offsets; None: all). Returns the accepted and refused
        ones.

        Refused: another member has or acknowledged them meanwhile, or the broker was lost (`cause`). On
        return the broker has recorded the accepted ones.
        """
        chosen = None if offsets is None else list(offsets)
        return await self._tell(self._core.ack(batch, chosen), batch, chosen)

    async def nack(
        self,
        batch: ConsumerBatch,
        offsets: Offsets | None = None,
        *,
        delay_s: float | None = None,
        cause: str = "",
    ) -> AckResult:
        """Give records of the batch back (None: all), to get them again after `delay_s`.

        None: after a time that grows with each try. In an ordered group all records behind the first of them
        come again too, in order. Returns the records that were given back.
        """
        chosen = None if offsets is None else list(offsets)
        return await self._tell(self._core.nack(batch, chosen, delay_s, cause), batch, chosen)

    async def commit(self, batch: ConsumerBatch, last: Record | int | None = None) -> AckResult:
        """Acknowledge all records of the batch's ring up to and including `last` (None: the batch); ordered
        groups.

        The result counts the records that were not acknowledged before.
        """
        return await self._tell(self._core.commit(batch, _behind(batch, last)), batch, None)

    async def working(self) -> None:
        """Extend the leases of all records that this member has, by consumers.lease_ms."""
        request = self._core.working()
        if request is not None:
            self._core.queue(request, wait=False)
            self._to_send.set()

    async def _tell(
        self, request: Ack | Nack | Commit, batch: ConsumerBatch, chosen: list[Record | int] | None
    ) -> AckResult:
        number = self._core.queue(request, wait=True)
        self._to_send.set()
        try:
            while (answer := self._core.answers[number]) is None and not self._core.is_lost(number):
                await self._change()
        finally:
            self._core.answers.pop(number, None)
        return self._result(request, answer, batch, chosen)

    async def _pump(self) -> None:
        """Exchange messages with the broker until cancelled."""
        assert self._wire is not None
        loop, descriptor = asyncio.get_running_loop(), self._wire.socket.fileno()
        loop.add_reader(descriptor, self._to_send.set)
        try:
            while True:
                self._to_send.clear()
                pause_s = self._exchange()
                self._changed.set()
                if self._wire.readable:  # ZeroMQ's descriptor signals a change only once
                    await asyncio.sleep(0)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._to_send.wait()
        finally:
            loop.remove_reader(descriptor)
            self._changed.set()

    async def _change(self) -> None:
        """Wait until the state may have changed."""
        assert self._task is not None
        self._changed.clear()
        await self._changed.wait()
        if self._task.done():
            self._task.result()  # raises the exception that ended it

    async def _end(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        if self._say_goodbye() and self._wire is not None:
            await asyncio.to_thread(self._wire.socket.poll, LEAVE_MS)
        self._close()

    # ---- without asyncio ----

    def __enter__(self) -> Self:
        self._open()
        deadline = time.monotonic() + self._timeout_s
        try:
            while not self._core.joined:
                self._raise_refusal()
                if time.monotonic() >= deadline:
                    raise unreachable(self._endpoint)
                self._step(SLICE_S)
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._say_goodbye() and self._wire is not None:
            self._wire.socket.poll(LEAVE_MS)
        self._close()

    def __iter__(self) -> Iterator[ConsumerBatch]:
        return self

    def __next__(self) -> ConsumerBatch:
        while (batch := self.read(SLICE_S)) is None:
            pass
        return batch

    def read(self, timeout_s: float = 0.0) -> ConsumerBatch | None:
        """The next batch; None if there is none within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        self._step(0.0)
        while not self._core.batches:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            self._step(min(left_s, SLICE_S))
        batch = self._core.batches.popleft()
        self._step(0.0)  # requests the next one
        return batch

    def ack_now(self, batch: ConsumerBatch, offsets: Offsets | None = None) -> AckResult:
        """See ack()."""
        chosen = None if offsets is None else list(offsets)
        return self._tell_now(self._core.ack(batch, chosen), batch, chosen)

    def nack_now(
        self,
        batch: ConsumerBatch,
        offsets: Offsets | None = None,
        *,
        delay_s: float | None = None,
        cause: str = "",
    ) -> AckResult:
        """See nack()."""
        chosen = None if offsets is None else list(offsets)
        return self._tell_now(self._core.nack(batch, chosen, delay_s, cause), batch, chosen)

    def commit_now(self, batch: ConsumerBatch, last: Record | int | None = None) -> AckResult:
        """See commit()."""
        return self._tell_now(self._core.commit(batch, _behind(batch, last)), batch, None)

    def working_now(self) -> None:
        """See working()."""
        request = self._core.working()
        if request is not None:
            self._core.queue(request, wait=False)
            self._step(0.0)

    def _tell_now(
        self, request: Ack | Nack | Commit, batch: ConsumerBatch, chosen: list[Record | int] | None
    ) -> AckResult:
        number = self._core.queue(request, wait=True)
        try:
            while (answer := self._core.answers[number]) is None:
                self._step(0.0)
                if self._core.is_lost(number):
                    break
                self._step(SLICE_S)
        finally:
            self._core.answers.pop(number, None)
        return self._result(request, answer, batch, chosen)

    def _step(self, timeout_s: float) -> None:
        """Send, wait for an answer at most `timeout_s`, and receive everything that is there."""
        assert self._wire is not None
        pause_s = self._exchange()
        if timeout_s > 0 and self._wire.socket.poll(int(min(pause_s, timeout_s) * 1000) + 1):
            self._exchange()

    # ---- both forms ----

    def _result(
        self, request: Asked, answer: Answer | None, batch: ConsumerBatch, chosen: list[Record | int] | None
    ) -> AckResult:
        asked = batch.records if chosen is None else chosen
        result = result_of(answer, asked, named=not isinstance(request, Commit))
        if not isinstance(answer, Acked):
            self._core.refused += result.refused
        return result

    def _exchange(self) -> float:
        """Send and receive everything that is due. Returns the seconds until the next call is useful."""
        wire, core = self._wire, self._core
        assert wire is not None
        now_s = time.monotonic()
        while (received := wire.receive()) is not None:
            core.take(*received, now_s)
        for request in core.requests(now_s, connected=wire.connected):
            if not wire.send(request):
                core.unsent(request)
        return min(max(core.due_s(now_s) - now_s, 0.0), SLICE_S)

    def _open(self) -> None:
        self._context = zmq.Context()
        self._wire = Wire(self._context, self._endpoint, self._curve)

    def _say_goodbye(self) -> bool:
        leave = self._core.leave()
        return leave is not None and self._wire is not None and self._wire.send(leave)

    def _close(self) -> None:
        if self._wire is not None and self._context is not None:
            self._wire.close()
            self._context.term()
            self._wire = self._context = None

    def _raise_refusal(self) -> None:
        if self._core.refusal is not None:
            raise self._core.refusal


def publish(
    letters: Sequence[tuple[Letter, bytes | str]],
    *,
    runtime_dir: StrPath | None = None,
    endpoint: str = "",
    curve: Curve | None = None,
) -> int:
    """Store messages as if a client had published them, and return their number. Blocks.

    A Letter has the topic, and optionally a time before which consumers do not get it. Raises
    BrokerUnreachable, Refused; ProtocolError for an invalid topic (wildcards, for example); TypeError for a
    payload that is neither bytes nor str. After an exception nothing is stored.
    """
    for letter, _ in letters:
        check_name(letter.topic)
    frames = [payload_bytes(payload) for _, payload in letters]
    with Asker(runtime_dir, endpoint=endpoint, curve=curve) as asker:
        request = Publish(asker.number(), VERSION, tuple(letter for letter, _ in letters))
        return asker.ask(request, Published, frames)[0].stored


def _behind(batch: ConsumerBatch, last: Record | int | None) -> int:
    """The offset after the last record that a commit includes."""
    if last is None:
        return batch.offset + batch.count
    return (last if isinstance(last, int) else last.offset) + 1
