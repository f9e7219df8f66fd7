"""RingPoll: the readable ones of many rings, and one descriptor to wait for.

Owns no reader and no thread: a WakeupThread (ringbuf) waits for all readers without records. One thread
uses a RingPoll, except for wake(). While a reader is watched, that thread uses it, so it must not be read:
readable() returns those that may be read.

    while True:
        if not sum(read(item) for item in poll.readable()):
            poll.watch()
            select([poll], ...)     # or any event loop
            poll.acknowledge()
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from ringbuf import Reader, WakeupThread

T = TypeVar("T")


class RingPoll(Generic[T]):
    """Readers, each with an item. close() forgets them and closes the descriptor."""

    def __init__(self, wakeup: WakeupThread) -> None:
        self._wakeup = wakeup
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closing = threading.Lock()  # a number that is closed soon belongs to another file
        self._items: dict[Reader, T] = {}
        self._watched: set[Reader] = set()
        self._woken: deque[Reader] = deque()
        self._readable: tuple[list[Reader], list[T]] | None = None  # until the next change of these sets

    def add(self, reader: Reader, item: T) -> None:
        """Poll `reader` too."""
        self._items[reader] = item
        self._readable = None

    def remove(self, reader: Reader) -> None:
        """Stop polling `reader`."""
        self._wakeup.unwatch(reader)
        self._watched.discard(reader)
        self._items.pop(reader, None)
        self._readable = None

    def items(self) -> list[T]:
        """All polled items. Call unwatch() before using their readers."""
        return list(self._items.values())

    def readable(self) -> list[T]:
        """Items that may be read: with records, or not found empty since the last record."""
        return self.readable_readers()[1]

    def readable_readers(self) -> tuple[list[Reader], list[T]]:
        """The readers of readable(), and their items in the same order."""
        while self._woken:
            self._watched.discard(self._woken.popleft())
            self._readable = None
        if self._readable is None:
            readers = [reader for reader in self._items if reader not in self._watched]
            self._readable = readers, [self._items[reader] for reader in readers]
        return self._readable

    def watch(self) -> None:
        """Make the descriptor readable as soon as one of readable() has a record."""
        for reader in self._items.keys() - self._watched:
            self._watched.add(reader)
            self._readable = None
            self._wakeup.watch(reader, partial(self._on_record, reader))

    def unwatch(self) -> None:
        """Stop watching all readers."""
        for reader in self._watched:
            self._wakeup.unwatch(reader)
        self._watched.clear()
        self._woken.clear()
        self._readable = None

    def wake(self) -> None:
        """Make the descriptor readable. From any thread; after close() without effect."""
        with self._closing:
            if self._descriptor >= 0:
                with suppress(BlockingIOError):  # it is readable
                    os.eventfd_write(self._descriptor, 1)

    def acknowledge(self) -> None:
        """Make the descriptor not readable again, until the next record or wake()."""
        with suppress(BlockingIOError):
            os.eventfd_read(self._descriptor)

    def fileno(self) -> int:
        """The descriptor, for select() and event loops."""
        return self._descriptor

    def close(self) -> None:
        """Forget all readers and close the descriptor. May be called twice."""
        self.unwatch()
        self._items.clear()
        with self._closing:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def _on_record(self, reader: Reader) -> None:
        """Called on the thread of the WakeupThread."""
        self._woken.append(reader)
        self.wake()
