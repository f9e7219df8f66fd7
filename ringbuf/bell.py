"""Sleeping until any of many readers has something to read: Sleeper for a thread with nothing else to wait
for, Bell for everybody else.

A Bell is a thread.  It calls back once per watch, from its thread, and then forgets the reader: what is
watched again sleeps again.  So an asyncio reader costs no thread of its own, and a reader that falls behind
is not rung for records that it is about to read anyway.

Why a thread and not a socket per reader: the writer's one futex wake then serves every kind of reader and
needs no descriptor of any of them; a wake-up took half as long as by a doorbell socket (12-13 against 24-26
us).

Invariants: the thread touches a reader only while it is in the set; unwatch() returns after the thread has
let go of it.
"""

import os
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from ringbuf.core import ffi, lib

READERS_MOST = 120  # of futex_waitv's 128
WAIT_NS = 1_000_000_000


class Watched(Protocol):
    """What a Bell needs of a reader."""

    @property
    def address(self) -> int:
        """Of its rb_reader."""


class Bell:
    """Sleeps for many readers at once."""

    _process: ClassVar["Bell | None"] = None
    _process_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        self._watched: dict[Watched, Callable[[], object]] = {}
        self._changed = threading.Condition()
        self._doorbell = ffi.new("uint32_t *")
        self._asleep: set[Watched] = set()
        self._thread: threading.Thread | None = None

    @classmethod
    def of_process(cls) -> "Bell":
        """The one of this process, made when first asked for."""
        with cls._process_lock:
            if cls._process is None:
                cls._process = cls()
            return cls._process

    def watch(self, reader: Watched, callback: Callable[[], object]) -> None:
        """Call `callback` once, from the bell's thread, as soon as `reader` has something to read.

        The callback must not block and must not raise.  Raises RuntimeError above READERS_MOST readers.
        """
        with self._changed:
            if len(self._watched) >= READERS_MOST and reader not in self._watched:
                raise RuntimeError(f"a process waits for at most {READERS_MOST} readers at once")
            self._watched[reader] = callback
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="brim-bell", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        lib.rb_doorbell_ring(self._doorbell)

    def unwatch(self, reader: Watched) -> None:
        """Forget `reader`.  After this the bell's thread does not touch it."""
        with self._changed:
            self._watched.pop(reader, None)
            while reader in self._asleep:
                lib.rb_doorbell_ring(self._doorbell)
                self._changed.wait(0.1)

    def close(self) -> None:
        """Stop the thread; a later watch() starts it again."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._watched.clear()
            self._changed.notify_all()
            lib.rb_doorbell_ring(self._doorbell)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._asleep.clear()
                self._changed.notify_all()
                while not self._watched:
                    if self._thread is not threading.current_thread():
                        return
                    self._changed.wait()
                readers = list(self._watched)
                self._asleep.update(readers)
                seen = self._doorbell[0]
            pointers = [ffi.cast("rb_reader *", reader.address) for reader in readers]
            found = lib.rb_readers_wait(pointers, len(readers), self._doorbell, seen, WAIT_NS)
            if 0 <= found < len(readers):
                with self._changed:
                    callback = self._watched.pop(readers[found], None)
                if callback is not None:
                    callback()


class Sleeper:
    """Lets the thread that calls sleep() wait for many readers at once, and be woken by any other thread."""

    def __init__(self) -> None:
        self._doorbell = ffi.new("uint32_t *")
        self._answered = 0

    def ring(self) -> None:
        """End the sleep, or the next one if nobody sleeps.  For any thread."""
        lib.rb_doorbell_ring(self._doorbell)

    def sleep(self, readers: Sequence[Watched], seconds: float) -> bool:
        """Whether somebody has rung or a reader has something to read; False: the time is over.

        READERS_MOST readers at most, which the caller leaves alone meanwhile.
        """
        pointers = [ffi.cast("rb_reader *", reader.address) for reader in readers]
        limit_ns = int(seconds * 1e9)
        found = lib.rb_readers_wait(pointers, len(readers), self._doorbell, self._answered, limit_ns)
        self._answered = self._doorbell[0]
        return bool(found >= 0)


def _forget_in_child() -> None:
    Bell._process = None
    Bell._process_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)
