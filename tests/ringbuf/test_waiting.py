"""Waiting for records: in a thread, across processes, in an event loop, and for many readers at once."""

import asyncio
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ringbuf import KeyFilter, Ring, WakeupThread
from ringbuf.errors import Overrun, RingClosed
from ringbuf.reader_wakeup import Sleeper
from tests.support.children import Child
from tests.support.rings import drained, payload_of, publish_to_lap
from tests.support.waiting import PATIENCE_S


def test_a_wait_ends_at_its_deadline(ring: Ring) -> None:
    for spin_ns in (0, 50_000):
        reader = ring.reader(spin_ns=spin_ns)
        begun = time.monotonic()
        assert reader.wait(0.02) is False
        assert time.monotonic() - begun >= 0.02
        assert reader.wait(0) is False


def test_a_wait_does_not_begin_when_something_is_there(ring: Ring) -> None:
    reader = ring.reader()
    ring.writer().publish(b"x")
    assert reader.wait(0) is True
    assert reader.wait() is True
    assert drained(reader) == [b"x"]


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"])
def test_a_timeout_that_makes_no_sense_is_refused(ring: Ring, timeout) -> None:
    with pytest.raises((ValueError, TypeError)):
        ring.reader().wait(timeout)


@pytest.mark.parametrize("own", [True, False])
def test_a_sleeping_thread_is_woken(ring: Ring, own: bool) -> None:
    reader, writer = ring.reader(local=own, spin_ns=0), ring.writer()
    found: list[bytes] = []

    def read() -> None:
        if reader.wait(60):
            found.append(next(reader).bytes())

    thread = threading.Thread(target=read)
    thread.start()
    writer.publish(b"x")
    thread.join()
    assert found == [b"x"]


@pytest.mark.parametrize("spin_ns", [0, 50_000])
def test_a_sleeping_process_is_woken_every_time(ring: Ring, spin_ns: int) -> None:
    """Ping-pong by futex alone: a wake-up that is lost once would cost a second, and all of them minutes."""
    echo = """
import sys
from ringbuf import Ring
source, target = Ring.attach(sys.argv[1]), Ring.reattach(sys.argv[2])
reader, writer = source.reader(spin_ns=int(sys.argv[3])), target.writer()
print("ready", flush=True)
for record in reader:
    writer.publish(record)
    if len(record) == 0:
        break
"""
    back = ring.path.with_name("back")
    Ring.create(back, capacity_bytes=1 << 16, epoch=1).close()
    with Ring.attach(back) as answers, Child(echo, ring.path, back, spin_ns) as child:
        child.line()
        reader, writer = answers.reader(spin_ns=spin_ns), ring.writer()
        begun = time.monotonic()
        for i in range(2000):
            writer.publish(payload_of(i))
            assert next(reader).bytes() == payload_of(i)
        assert time.monotonic() - begun < 30
        writer.publish(b"")
        assert child.wait()[0] == 0


def test_a_reader_that_dies_asleep_costs_the_writer_nothing_more(ring: Ring) -> None:
    code = (
        "import sys; from ringbuf import Ring; "
        "r = Ring.attach(sys.argv[1]).reader(spin_ns=0); print(); r.wait()"
    )
    with Child(code, ring.path) as child:
        child.line()
        child.kill()
    writer = ring.writer()
    for i in range(100):
        assert writer.publish(b"x") == i
    assert ring.sweep() == 1


def test_an_overrun_ends_a_wait(ring: Ring) -> None:
    reader = ring.reader()
    publish_to_lap(ring.writer(), 2)
    assert reader.wait(0) is True
    with pytest.raises(Overrun):
        reader.poll()


def test_iteration_waits_for_the_next_record(ring: Ring) -> None:
    reader = ring.reader(local=True, blocks_writer=True, spin_ns=0)
    writer = ring.writer(when_full="block", queue_timeout_ms=60_000)
    thread = threading.Thread(target=lambda: [writer.publish(payload_of(i)) for i in range(1000)])
    thread.start()
    for i in range(200):
        assert next(reader).offset == i
    for i, record in enumerate(reader, 200):
        assert record.offset == i
        if i == 999:
            break
    thread.join()


def test_closing_a_reader_frees_the_thread_that_waits_with_it(ring: Ring) -> None:
    reader = ring.reader(spin_ns=0)
    caught: list[BaseException] = []
    asleep = threading.Event()

    def wait() -> None:
        asleep.set()
        try:
            reader.wait()
        except RingClosed as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    asleep.wait()
    ring.close()
    thread.join()
    assert len(caught) == 1


def test_a_signal_handler_runs_during_a_wait(ring: Ring) -> None:
    reader = ring.reader(spin_ns=0)

    def interrupt(*_: object) -> None:
        raise KeyError("by the handler")

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyError, match="by the handler"):
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            next(reader)
    finally:
        signal.signal(signal.SIGALRM, old)


# ---- asyncio ----


async def test_async_iteration_waits_without_blocking_the_loop(ring: Ring, silent_bell: None) -> None:
    reader, writer = ring.reader(), ring.writer()
    found: list[bytes] = []

    async def read() -> None:
        async for record in reader:
            found.append(record.bytes())
            if len(found) == 100:
                return

    task = asyncio.create_task(read())
    for i in range(100):
        writer.publish(payload_of(i))
        await asyncio.sleep(0)
    await task
    assert found == [payload_of(i) for i in range(100)]


async def test_many_async_readers_need_one_thread(ring: Ring, silent_bell: None) -> None:
    writer = ring.writer()
    readers = [ring.reader() for _ in range(60)]
    before = threading.active_count()

    async def first_of(reader) -> tuple[int, bytes]:
        async for record in reader:
            return record.offset, record.bytes()
        raise AssertionError

    for offset in range(5):
        tasks = [asyncio.create_task(first_of(reader)) for reader in readers]
        await asyncio.sleep(0)
        writer.publish(payload_of(offset))
        assert await asyncio.gather(*tasks) == [(offset, payload_of(offset))] * 60
        for reader in readers:
            reader.seek_latest()
    assert threading.active_count() == before + 1


async def test_readers_of_many_rings_share_the_thread(runtime_directory, silent_bell: None) -> None:
    rings = [Ring.create(runtime_directory / f"r{i}", capacity_bytes=1 << 16, epoch=1) for i in range(20)]
    readers = [ring.reader() for ring in rings]
    waiting = [asyncio.create_task(reader.arrival()) for reader in readers]
    await asyncio.sleep(0)
    for i, ring in enumerate(rings):
        ring.writer().publish(payload_of(i))
        await waiting[i]
        assert not any(task.done() for task in waiting[i + 1 :])
        assert drained(readers[i]) == [payload_of(i)]
    for ring in rings:
        ring.close()


async def test_an_async_reader_can_be_cancelled_and_used_again(ring: Ring, silent_bell: None) -> None:
    reader, writer = ring.reader(), ring.writer()

    async def read() -> bytes:
        async for batch in reader.batches(10):
            return batch[0].bytes()
        raise AssertionError

    for i in range(50):
        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        task = asyncio.create_task(read())
        await asyncio.sleep(0)
        writer.publish(payload_of(i))
        assert await task == payload_of(i)


async def test_an_async_wait_can_have_a_timeout(ring: Ring, silent_bell: None) -> None:
    reader = ring.reader()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await reader.arrival()
    ring.writer().publish(b"x")
    async with asyncio.timeout(60):
        await reader.arrival()
    assert drained(reader) == [b"x"]


async def test_async_batches_come_whole(ring: Ring, silent_bell: None) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    writer.publish_many([payload_of(i) for i in range(100)])
    sizes = []
    async for batch in reader.batches(40):
        sizes.append(len(batch))
        if sum(sizes) == 100:
            break
    assert sizes == [40, 40, 20]


async def test_an_async_reader_is_told_of_an_overrun(ring: Ring, silent_bell: None) -> None:
    reader, writer = ring.reader(), ring.writer()
    task = asyncio.ensure_future(anext(reader.batches()))
    await asyncio.sleep(0)
    publish_to_lap(writer, 2)
    with pytest.raises(Overrun):
        await task


# ---- WakeupThread ----


def test_a_bell_calls_once_for_each_watch(ring: Ring) -> None:
    wakeup, writer, rung = WakeupThread(), ring.writer(), threading.Semaphore(0)
    reader = ring.reader()
    try:
        for i in range(20):
            wakeup.watch(reader, rung.release)
            writer.publish(payload_of(i))
            assert rung.acquire(timeout=PATIENCE_S)
            assert drained(reader) == [payload_of(i)]
        writer.publish(b"nobody watches")
        assert not rung.acquire(blocking=False)
    finally:
        wakeup.close()


def test_a_bell_rings_at_once_when_something_is_there_already(ring: Ring) -> None:
    wakeup, rung = WakeupThread(), threading.Event()
    reader = ring.reader()
    ring.writer().publish(b"x")
    try:
        wakeup.watch(reader, rung.set)
        assert rung.wait(30)
    finally:
        wakeup.close()


def test_what_is_no_longer_watched_is_not_touched(ring: Ring) -> None:
    wakeup = WakeupThread()
    readers = [ring.reader() for _ in range(10)]
    try:
        for _ in range(50):
            for reader in readers:
                wakeup.watch(reader, lambda: None)
            for reader in readers:
                wakeup.unwatch(reader)
        for reader in readers:
            reader.close()
    finally:
        wakeup.close()
    wakeup.close()


def test_a_bell_takes_120_readers_and_says_so(runtime_directory) -> None:
    wakeup = WakeupThread()
    rings = [Ring.create(runtime_directory / f"r{i}", capacity_bytes=1 << 16, epoch=1) for i in range(2)]
    readers = [rings[i % 2].reader() for i in range(121)]
    try:
        for reader in readers[:120]:
            wakeup.watch(reader, lambda: None)
        wakeup.watch(readers[0], lambda: None)
        with pytest.raises(RuntimeError, match="at most 120 readers"):
            wakeup.watch(readers[120], lambda: None)
    finally:
        wakeup.close()
        for ring in rings:
            ring.close()


# ---- Sleeper ----


def test_a_sleeper_wakes_for_a_record_a_ring_and_the_end_of_its_time(ring: Ring) -> None:
    sleeper, writer, reader = Sleeper(), ring.writer(), ring.reader()
    assert not sleeper.sleep([reader], 0.001)
    with ThreadPoolExecutor(1) as pool:
        for i in range(20):
            asleep = pool.submit(sleeper.sleep, [reader], 30.0)
            writer.publish(payload_of(i))
            assert asleep.result(PATIENCE_S)
            assert drained(reader) == [payload_of(i)]
            asleep = pool.submit(sleeper.sleep, [reader] * (i % 2), 30.0)
            sleeper.ring()
            assert asleep.result(PATIENCE_S)
    assert not sleeper.sleep([], 0.001)


def test_a_ring_while_nobody_sleeps_ends_the_next_sleep(ring: Ring) -> None:
    sleeper = Sleeper()
    sleeper.ring()
    sleeper.ring()
    assert sleeper.sleep([ring.reader()], 30.0)
    assert not sleeper.sleep([], 0.0)


def test_a_sleeper_sleeps_for_more_readers_than_the_kernel_waits_for(ring: Ring) -> None:
    """And is woken by a record for the last of them, or by a ring."""
    sleeper, writer = Sleeper(), ring.writer()
    idle, busy = ring.reader(with_slot=False), ring.reader(with_slot=False)
    for count in (126, 127, 128, 300):
        readers = [*[idle] * (count - 1), busy]
        with ThreadPoolExecutor(1) as pool:
            asleep = pool.submit(sleeper.sleep, readers, 30.0)
            sleeper.ring()
            assert asleep.result(PATIENCE_S)
            asleep = pool.submit(sleeper.sleep, readers, 30.0)
            writer.publish(payload_of(count))
            assert asleep.result(PATIENCE_S)
        drained(idle), drained(busy)
    assert not sleeper.sleep([idle] * 300, 0.001)


# ---- KeyFilter ----


def test_a_filter_asks_once_for_each_key(ring: Ring) -> None:
    asked: list[bytes] = []
    reader, writer = ring.reader(), ring.writer()

    def decide(key: bytes) -> bool:
        asked.append(key)
        return key.startswith(b"plant/")

    reader.match = KeyFilter(decide)
    for i in range(100):
        writer.publish(payload_of(i, 20), key=["plant/1", "plant/2", "office", ""][i % 4])
    assert [record.offset for record in reader.read_many()] == [i for i in range(100) if i % 4 < 2]
    assert asked == [b"plant/1", b"plant/2", b"office", b""]
    assert (reader.match.count, reader.match.unremembered) == (4, 0)
    assert reader.offset == 100
    reader.match.clear()
    reader.match = None
    writer.publish(b"", key="office")
    assert len(drained(reader)) == 1


def test_a_filter_remembers_no_more_than_it_may(ring: Ring) -> None:
    asked: list[bytes] = []
    reader, writer = ring.reader(), ring.writer()

    def decide(key: bytes) -> bool:
        asked.append(key)
        return True

    reader.match = match = KeyFilter(decide, capacity=3)
    for _ in range(2):
        for i in range(10):
            writer.publish(b"", key=f"{i}")
    assert len(drained(reader)) == 20
    assert (match.count, match.unremembered, len(asked)) == (3, 14, 17)
    assert match.accepts("0")
    assert match.accepts(b"0")
    assert len(asked) == 17


def test_many_keys_are_told_apart(runtime_directory) -> None:
    match = KeyFilter(lambda key: int(key) % 3 == 0)
    for _ in range(2):
        assert [i for i in range(5000) if match.accepts(f"{i}")] == list(range(0, 5000, 3))
    assert match.count == 5000


def test_what_a_filter_raises_is_raised_and_the_reader_goes_on(ring: Ring) -> None:
    def decide(key: bytes) -> bool:
        if key == b"bad":
            raise KeyError(key)
        return True

    reader, writer = ring.reader(), ring.writer()
    reader.match = KeyFilter(decide)
    for key in ("good", "bad", "good"):
        writer.publish(b"", key=key)
    assert [record.offset for record in reader.read_many()] == [0]
    with pytest.raises(KeyError):
        reader.read_many()
    assert [record.offset for record in reader.read_many()] == [2]


def test_a_filter_may_close_its_reader(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()

    def decide(_key: bytes) -> bool:
        reader.close()
        return False

    reader.match = KeyFilter(decide)
    for i in range(3):
        writer.publish(b"", key=f"{i}")
    with pytest.raises(RingClosed):
        reader.poll()
    assert ring.slots() == []


def test_skipped_records_hold_nobody_back(ring: Ring) -> None:
    reader, writer = ring.reader(local=True, blocks_writer=True), ring.writer()
    reader.match = KeyFilter(lambda _key: False)
    for _ in range(1000):
        assert writer.publish(payload_of(0), key="k") is not None
        assert reader.poll() is None


def test_a_filter_must_be_one(ring: Ring) -> None:
    with pytest.raises(TypeError, match="KeyFilter or None"):
        ring.reader().match = print  # type: ignore[assignment]
    for decide, capacity in ((5, 1), (print, 0)):
        with pytest.raises(TypeError, match="a callable of one key"):
            KeyFilter(decide, capacity)  # type: ignore[arg-type]
