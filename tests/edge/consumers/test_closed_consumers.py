"""Consumers and readers that are closed while a program waits for them: a clear error, in both forms."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brim import asyncio as brim_asyncio
from brim import consumer, reader
from edge.consumers.server import ConsumersEndpoint
from edge.errors import InvalidArgument, NotOpen
from ringbuf import Ring
from tests.support.cancelling import ends_when_cancelled_on_leaving
from tests.support.consumer_desk import endpoint_over
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def ring(runtime_directory: Path) -> Iterator[Ring]:
    with Ring.create(runtime_directory / "some-0", capacity_bytes=1 << 16, epoch=1) as ring:
        yield ring


@pytest.fixture
def endpoint(ring: Ring, tmp_path: Path) -> Iterator[ConsumersEndpoint]:
    with endpoint_over(ring, tmp_path, f"ipc://{tmp_path}/c.sock") as endpoint:
        yield endpoint


def refuse_answers(endpoint: ConsumersEndpoint) -> None:
    """Let the endpoint drop each acknowledgement, so that a client waits for its answer."""
    endpoint._coordinator._acked = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
    endpoint._coordinator._contained = lambda *_: _Swallowed()  # type: ignore[method-assign,assignment]


class _Swallowed:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> bool:
        return True


WAITS: list[Callable[[Any], Any]] = [lambda it: it.read(PATIENCE_S), lambda it: it.__anext__()]


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("noun", ["consumer", "reader"])
async def test_a_task_that_waits_for_records_learns_that_another_closed_the_consumer(
    endpoint: ConsumersEndpoint, noun: str, wait: Callable[[Any], Any]
) -> None:
    filters = ("g", "a/#") if noun == "consumer" else ("a/#",)
    async with getattr(brim_asyncio, noun)(*filters, endpoint=endpoint.endpoint) as records:
        waiting = [asyncio.create_task(wait(records)) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.gather(records.close(), records.close())
        for task in waiting:
            with pytest.raises(NotOpen, match=f"the {noun} is closed"):
                await task
        for use in (records.read(), anext(records)):
            with pytest.raises(NotOpen, match=f"the {noun} is closed"):
                await use


async def test_a_task_that_waits_for_its_acknowledgement_learns_it_too(
    endpoint: ConsumersEndpoint, ring: Ring
) -> None:
    ring.writer().publish(b"x", key="a/1")
    async with brim_asyncio.consumer("g", "a/#", start="oldest", endpoint=endpoint.endpoint) as records:
        batch = await records.read(PATIENCE_S)
        assert batch is not None
        refuse_answers(endpoint)
        waiting = [asyncio.create_task(it) for it in (records.ack(batch), records.nack(batch))]
        await asyncio.sleep(0)
        await records.close()
        for task in waiting:
            with pytest.raises(NotOpen, match="the consumer is closed"):
                await task
        for use in (records.commit(batch), records.working()):
            with pytest.raises(NotOpen, match="the consumer is closed"):
                await use


@pytest.mark.parametrize("delay_s", [-1.0, float("nan")])
async def test_a_delay_that_is_negative_or_no_number_is_named(
    endpoint: ConsumersEndpoint, ring: Ring, delay_s: float
) -> None:
    ring.writer().publish(b"x", key="a/1")
    async with brim_asyncio.consumer("g", "a/#", start="oldest", endpoint=endpoint.endpoint) as records:
        batch = await records.read(PATIENCE_S)
        assert batch is not None
        with pytest.raises(InvalidArgument, match=f"invalid delay_s {delay_s}"):
            await records.nack(batch, delay_s=delay_s)
        await records.nack(batch, delay_s=float("inf"))  # the longest delay


async def test_a_cancelled_task_is_still_cancelled(endpoint: ConsumersEndpoint) -> None:
    async with brim_asyncio.consumer("g", "a/#", endpoint=endpoint.endpoint) as records:
        waiting = asyncio.create_task(records.read(PATIENCE_S))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_a_task_that_is_cancelled_while_it_leaves_is_still_cancelled(
    endpoint: ConsumersEndpoint,
) -> None:
    records = brim_asyncio.consumer("g", "a/#", endpoint=endpoint.endpoint)
    assert await ends_when_cancelled_on_leaving(records)
    assert await ends_when_cancelled_on_leaving(brim_asyncio.reader("a/#", endpoint=endpoint.endpoint))


@pytest.mark.parametrize("noun", ["consumer", "reader"])
def test_a_thread_that_waits_for_records_learns_that_another_closed_the_consumer(
    endpoint: ConsumersEndpoint, noun: str
) -> None:
    errors: list[BaseException] = []
    begun = threading.Event()
    records: Any = consumer("g", "a/#", endpoint=endpoint.endpoint)
    if noun == "reader":
        records = reader("a/#", endpoint=endpoint.endpoint)

    def wait() -> None:
        begun.set()
        try:
            records.read(PATIENCE_S)
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    with records:
        thread = threading.Thread(target=wait)
        thread.start()
        assert begun.wait(PATIENCE_S)
        records.close()
        thread.join(PATIENCE_S)
        assert [(type(it), str(it)) for it in errors] == [(NotOpen, f"the {noun} is closed")]
        records.close()
        with pytest.raises(NotOpen, match="is closed"):
            next(records)


def test_a_consumer_can_be_opened_again_after_its_end(endpoint: ConsumersEndpoint, ring: Ring) -> None:
    records = consumer("g", "a/#", endpoint=endpoint.endpoint)
    with pytest.raises(NotOpen, match="the consumer is not open"):
        records.read()
    for number in range(2):
        with records:
            ring.writer().publish(str(number), key="a/1")
            batch = records.read(PATIENCE_S)
            assert batch is not None
            assert list(map(bytes, batch)) == [b"%d" % number]
            assert records.ack(batch)
        wait_until(lambda: endpoint._coordinator.registry.groups["g"].members == {})
