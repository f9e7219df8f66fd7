"""One ring, reader and writer among several threads and tasks of a process.

Stress runs of up to 1,000 rounds, with threads that take turns a thousand times more often than usual.
"""

import asyncio
import ctypes
import gc
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from ringbuf import KeyFilter, Reader, Ring, WakeupThread
from ringbuf.errors import ClaimPending, ReaderBusy, RingClosed
from tests.support.children import Child
from tests.support.rings import drained, new_ring, payload_of
from tests.support.waiting import PATIENCE_S, until, wait_until

ROUNDS, THREADS = 1_000, 4
CALLS = 50_000  # of which one at least would let the other thread run


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Threads take turns a thousand times more often than they do by default."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def together(pool: ThreadPoolExecutor, *works: Callable[[], Any]) -> list[Any]:
    """Results of all `works`, begun at the same time."""
    barrier = threading.Barrier(len(works))

    def run(work: Callable[[], Any]) -> Any:
        barrier.wait()
        return work()

    return [done.result(60) for done in [pool.submit(run, work) for work in works]]


@pytest.mark.parametrize("own", [False, True])
def test_readers_made_at_the_same_time_have_slots_of_their_own(
    ring: Ring, hasty_threads: None, own: bool
) -> None:
    """While dead readers are looked for, too: that takes and frees the locks of slots."""
    over = threading.Event()

    def sweep() -> int:
        freed = 0
        while not over.is_set():
            freed += ring.sweep()
        return freed

    with ThreadPoolExecutor(THREADS + 1) as pool, Ring.attach(ring.path) as other:
        swept = pool.submit(sweep)
        for _ in range(ROUNDS):
            readers = together(pool, *[lambda: ring.reader(local=own)] * THREADS)
            slots = [reader.slot for reader in readers]
            if len(set(slots)) != THREADS:
                over.set()
            assert len(set(slots)) == THREADS, slots
            if not own:
                stranger = other.reader()
                assert stranger.slot not in slots, "the lock of a slot was lost"
                stranger.close()
            together(pool, *[reader.close for reader in readers])
        over.set()
        assert swept.result(60) == 0
    assert ring.slots() == []


def test_writers_made_at_the_same_time_are_one(runtime_directory: Path, hasty_threads: None) -> None:
    new_ring(runtime_directory).close()
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(ROUNDS):
            with Ring.reattach(runtime_directory / "ring") as ring:
                assert len(set(together(pool, *[ring.writer] * THREADS))) == 1


def test_a_slot_is_given_back_once(ring: Ring, hasty_threads: None) -> None:
    """By several threads that close, and the finalizer: the next owner of the slot keeps it."""
    with ThreadPoolExecutor(THREADS) as pool:
        for _ in range(ROUNDS):
            reader = ring.reader()
            first, *others = together(pool, *[reader.close] * (THREADS - 1), ring.reader)[::-1]
            assert others == [None] * (THREADS - 1)
            del reader
            gc.collect(0)
            assert [slot.slot for slot in ring.slots()] == [first.slot]
            first.close()


@pytest.mark.parametrize("rounds", [200, pytest.param(4_000, marks=pytest.mark.campaign)])
def test_whatever_threads_do_with_a_ring_that_is_closed_the_process_goes_on(
    runtime_directory: Path, rounds: int
) -> None:
    """In a process of its own, as the mistake would end it: memory that is used after it was unmapped."""
    code = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
from ringbuf import Ring, errors
sys.setswitchinterval(5e-6)
uses = [
    lambda ring: ring.extremes(), lambda ring: ring.slots(), lambda ring: ring.durable(0),
    lambda ring: ring.refused(), lambda ring: (ring.sweep(), ring.pointers),
    lambda ring: ring.show_durable(False), lambda ring: ring.writer().publish(b"x"),
    lambda ring: ring.reader().poll(),
    lambda ring: ring.reader(start="oldest").ranges(1000), lambda ring: ring.wait_durable(1, 0),
    lambda ring: ring.admit(0), lambda ring: ring.pointers,
]
Ring.create(sys.argv[1], capacity_bytes=65536, epoch=1).close()
def work(ring, barrier, use):
    barrier.wait()
    while True:
        try:
            use(ring)
        except errors.RingClosed:
            return
        except errors.RingError:
            pass
with ThreadPoolExecutor(4) as pool:
    for i in range(int(sys.argv[2])):
        barrier = threading.Barrier(4)
        ring = Ring.reattach(sys.argv[1])
        chosen = [uses[(i + j * (1 + i // len(uses))) % len(uses)] for j in range(3)]
        done = [pool.submit(work, ring, barrier, use) for use in chosen]
        barrier.wait()
        ring.close()
        for it in done:
            it.result(60)
"""
    with Child(code, runtime_directory / "own", rounds) as child:
        status, _, error = child.wait(600)
    assert status == 0, f"ended with {status}: {error}"


def test_a_reader_that_another_thread_waits_with_is_not_moved(ring: Ring) -> None:
    reader, asleep = ring.reader(spin_ns=0), threading.Event()

    def wait() -> bool:
        asleep.set()
        return reader.wait(60)

    def moves() -> bool:
        try:
            reader.seek_oldest()
        except ReaderBusy as error:
            assert "another thread waits" in str(error)
            return False
        return True

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(wait)
        asleep.wait()
        wait_until(lambda: not moves())
        ring.writer().publish(b"x")
        assert done.result(60)
    assert drained(reader) == [b"x"]


def test_threads_that_share_a_reader_get_each_record_once(ring: Ring, hasty_threads: None) -> None:
    """Or are refused; and a filter that lets other threads run does not change that."""
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    reader.match = KeyFilter(lambda _: True, capacity=1)
    found: list[int] = []

    def read() -> None:
        for _ in range(ROUNDS):
            with suppress(ReaderBusy):
                batch = reader.read_many(3)
                found.extend(batch.offsets)
                batch.release()
            with suppress(ReaderBusy):
                found.extend(it.offset for it in [reader.poll()] if it is not None)
            with suppress(ReaderBusy):
                for it in reader.ranges(200):
                    found.extend(range(it.offset, it.offset + it.count))
                    reader.release(it.position + len(it.view))

    def write() -> None:
        for i in range(ROUNDS):
            with suppress(ClaimPending):
                writer.publish(payload_of(i), key=f"{i % 7}")

    with ThreadPoolExecutor(THREADS) as pool:
        together(pool, *[read] * (THREADS - 1), write)
    read()
    assert sorted(found) == list(range(writer.end_offset))


@contextmanager
def threads_keep_their_turn() -> Iterator[None]:
    """A thread that has the interpreter's lock keeps it until it waits for something."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    yield
    sys.setswitchinterval(before)


def test_a_wait_for_what_is_there_lets_no_other_thread_run(ring: Ring) -> None:
    """A busy one would give the interpreter's lock back 5 ms later."""
    reader, over, turns, writer = ring.reader(spin_ns=0), threading.Event(), [0], ring.writer()

    def be_busy() -> None:
        while not over.is_set():
            turns[0] += 1
            over.wait(1e-6)

    busy = threading.Thread(target=be_busy)
    busy.start()
    try:
        wait_until(lambda: turns[0] > 0)
        with threads_keep_their_turn():
            over.wait(0.05)  # The other thread, too, asks for the lock by the new rule from then on.
            begun = turns[0]
            answers = {reader.wait(0) for _ in range(CALLS)}
            writer.publish(b"x")
            answers |= {reader.wait() for _ in range(CALLS)}
            answers |= {reader.wait(60) for _ in range(CALLS)}
            ended = turns[0]
        assert (answers, ended) == ({False, True}, begun)
    finally:
        over.set()
        busy.join()


# ---- tasks, and the thread that wakes them ----


async def asleep(reader: Reader) -> asyncio.Task[None]:
    """A task that waits for `reader`, and has begun to."""
    task = asyncio.create_task(reader.arrival())
    await until(lambda: reader in WakeupThread.of_process()._asleep)
    return task


async def test_closing_a_reader_ends_the_task_that_awaits_it(ring: Ring, silent_bell: None) -> None:
    """And only those: a hundred times, with a task that stays and a new one."""
    closed, stays = ring.reader(), ring.reader()
    waiting = await asleep(stays)
    for _ in range(100):
        task = await asleep(closed)
        closed.close()
        with pytest.raises(RingClosed, match="reader is closed"):
            async with asyncio.timeout(PATIENCE_S):
                await task
        closed = ring.reader()
    new = await asleep(closed)
    ring.writer().publish(b"x")
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(waiting, new)
    assert drained(stays) == drained(closed) == [b"x"]


async def test_a_task_that_awaits_a_closed_reader_is_told_at_once(ring: Ring, silent_bell: None) -> None:
    reader = ring.reader()
    reader.close()
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RingClosed, match="reader is closed"):
            await reader.arrival()
        with pytest.raises(RingClosed, match="reader is closed"):
            await anext(reader.batches())


async def test_closing_the_ring_ends_every_task_that_awaits_it(ring: Ring, silent_bell: None) -> None:
    tasks = [asyncio.ensure_future(anext(ring.reader().batches())) for _ in range(20)]
    await until(lambda: len(WakeupThread.of_process()._asleep) == 20)
    ring.close()
    async with asyncio.timeout(PATIENCE_S):
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(error, RingClosed)


async def test_two_tasks_that_await_one_reader_are_both_woken(ring: Ring, silent_bell: None) -> None:
    reader = ring.reader()
    tasks = [asyncio.create_task(reader.arrival()) for _ in range(3)]
    await until(lambda: reader in WakeupThread.of_process()._asleep)
    tasks.pop().cancel()
    await asyncio.sleep(0)
    ring.writer().publish(b"x")
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*tasks)


async def test_the_wake_up_thread_outlives_a_callback_that_raises(
    ring: Ring, silent_bell: None, caplog: pytest.LogCaptureFixture
) -> None:
    wakeup, thrower, reader = WakeupThread.of_process(), ring.reader(), ring.reader()

    def throw() -> None:
        raise ValueError("by the callback")

    wakeup.watch(thrower, throw)
    with caplog.at_level(logging.ERROR, "ringbuf.reader_wakeup"):
        thrower.close()
        await until(lambda: "by the callback" in caplog.text)
    caplog.clear()  # A traceback holds what it was about.
    task = await asleep(reader)
    ring.writer().publish(b"x")
    async with asyncio.timeout(PATIENCE_S):
        await task


async def test_a_wake_up_thread_that_ends_is_reported_and_replaced(
    ring: Ring, silent_bell: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever ends it: here an exception that another thread sends it."""
    wakeup, reader = WakeupThread.of_process(), ring.reader()
    task = await asleep(reader)
    first = wakeup._thread
    assert first is not None
    with caplog.at_level(logging.ERROR, "ringbuf.reader_wakeup"):
        ident, error = ctypes.c_ulong(first.ident or 0), ctypes.py_object(SystemExit)
        assert ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error) == 1
        WakeupThread.closed(reader)
        await until(lambda: not first.is_alive())
    assert "wake-up thread failed" in caplog.text
    caplog.clear()
    ring.writer().publish(b"x")
    async with asyncio.timeout(PATIENCE_S):
        await task
    assert wakeup._thread is not first


def test_a_bell_that_is_closed_and_used_again_has_one_thread(ring: Ring) -> None:
    wakeup, reader, rung = WakeupThread(), ring.reader(), threading.Semaphore(0)
    before = threading.active_count()
    for _ in range(ROUNDS):
        wakeup.watch(reader, rung.release)
        wakeup.close()
    wakeup.watch(reader, rung.release)
    assert threading.active_count() == before + 1
    ring.writer().publish(b"x")
    assert rung.acquire(timeout=PATIENCE_S)
    wakeup.close()
