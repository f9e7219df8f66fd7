"""A poll whose filter passes over many records: other threads run meanwhile, and may close the reader.

On a loaded machine a poll may end before the other thread gets a core.  Each test therefore polls again until
the other thread came in the middle of a poll, which it never does if the poll keeps the GIL.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Self

import pytest

from ringbuf import KeyFilter, Reader, Ring
from ringbuf.errors import ReaderBusy, RingClosed
from tests.support.waiting import wait_until

RECORDS = 200_000


@pytest.fixture
def full_ring(runtime_directory: Path) -> Iterator[Ring]:
    with Ring.create(runtime_directory / "many", capacity_bytes=1 << 24, epoch=1) as ring:
        payloads = [b"x"] * 1_000
        for _ in range(RECORDS // 1_000):
            assert ring.writer().publish_many(payloads, key="a") == 1_000
        yield ring


@pytest.fixture(autouse=True)
def switches_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class Onlooker:
    """A thread that looks where the reader is, and does something when it stands amid the records."""

    def __init__(self, reader: Reader, act: Callable[[], object] = lambda: None) -> None:
        self.reader, self.act, self.first = reader, act, reader.offset
        self.seen: set[int] = set()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._done.is_set():
            offset = self.reader.offset
            if self.first < offset < RECORDS:
                self.seen.add(offset)
                self.act()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


@pytest.mark.parametrize("verify", [False, True])
def test_other_threads_run_while_a_filter_passes_over_records(full_ring: Ring, verify: bool) -> None:
    reader = full_ring.reader(start="oldest", verify=verify)
    reader.match = KeyFilter(lambda key: key == b"b")

    def seen_amid() -> bool:
        reader.seek(0)
        with Onlooker(reader) as onlooker:
            assert reader.poll() is None
        assert reader.offset == RECORDS
        return bool(onlooker.seen)

    wait_until(seen_amid)
    full_ring.writer().publish(b"y", key="b")
    record = reader.poll()
    assert record is not None
    assert (record.offset, bytes(record)) == (RECORDS, b"y")


def test_batches_share_the_interpreter_too(full_ring: Ring) -> None:
    reader = full_ring.reader(start="oldest")
    reader.match = KeyFilter(lambda key: key == b"b")
    for _ in range(3):
        full_ring.writer().publish(b"y", key="b")

    def seen_amid() -> bool:
        reader.seek(0)
        with Onlooker(reader) as onlooker:
            assert [it.offset for it in reader.read_many(100)] == [RECORDS, RECORDS + 1, RECORDS + 2]
        return bool(onlooker.seen)

    wait_until(seen_amid)


@pytest.mark.parametrize("blocks_writer", [False, True])
def test_a_reader_that_is_closed_meanwhile_says_so(full_ring: Ring, blocks_writer: bool) -> None:
    def closed_amid() -> bool:
        reader = full_ring.reader(start=1, blocks_writer=blocks_writer)
        reader.match = KeyFilter(lambda key: False)
        with reader, Onlooker(reader, reader.close):
            try:
                assert reader.poll() is None
            except RingClosed:
                assert not reader.open
                return True
        return False

    wait_until(closed_amid)


def test_a_filter_that_is_changed_meanwhile_counts_from_then_on(full_ring: Ring) -> None:
    reader = full_ring.reader(start="oldest")

    def change() -> None:
        reader.match = None

    def changed_amid() -> bool:
        reader.seek(0)
        reader.match = KeyFilter(lambda key: False)
        with Onlooker(reader, change):
            record = reader.poll()
        assert record is None or 0 < record.offset < RECORDS
        return record is not None

    wait_until(changed_amid)


def test_another_thread_that_reads_meanwhile_is_refused(full_ring: Ring) -> None:
    reader = full_ring.reader(start="oldest")
    reader.match = KeyFilter(lambda key: False)
    refused: list[Exception] = []

    def read() -> None:
        try:
            reader.poll()
        except ReaderBusy as error:
            refused.append(error)

    def refused_amid() -> bool:
        reader.seek(0)
        with Onlooker(reader, read):
            assert reader.poll() is None
        return bool(refused)

    wait_until(refused_amid)
