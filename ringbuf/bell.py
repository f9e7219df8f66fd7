"""Sleeping until any of many readers has something to read: Sleeper for a thread with nothing else to wait
for, Bell for everybody else.

A Bell is a thread.  It calls back once per watch, from its thread, and then forgets the reader: what is
watched again sleeps again.  So an asyncio reader costs no thread of its own, and a reader that falls behind
is not rung for records that it is about to read anyway.

Why a thread and not a socket per reader: the writer's one futex wake then serves every kind of reader and
needs no descriptor of any of them; a wake-up took half as long as by a doorbell socket (12-13 against 24-26
us).

Invariants: the thread touches a reader only while it is in the set; unwatch() returns after the thread has
released it; a reader that is closed is called back at once; whatever a callback raises, the thread goes on,
and if it ends it is logged and another one starts.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from ringbuf.core import ffi, lib

READERS_MOST = 120  # of futex_waitv's 128
WAIT_NS = 1_000_000_000
RESTART_S = 0.05  # of a thread that has ended, so that one that always ends fills no log

log = logging.getLogger(__name__)

Callback = Callable[[], object]


class Watched(Protocol):
    """What a Bell needs of a reader."""

    @property
    def address(self) -> int:
        """Of its rb_reader.  Raises RingError once it is closed."""


class Bell:
    """Sleeps for many readers at once."""

    _process: ClassVar["Bell | None"] = None
    _all: ClassVar["weakref.WeakSet[Bell]"] = weakref.WeakSet()
    _process_lock: ClassVar[threading.RLock] = threading.RLock()  # finalizers close readers, in any place

    def __init__(self) -> None:
        self._watched: dict[Watched, tuple[Callback, ...]] = {}
        self._changed = threading.Condition()
        self._doorbell = ffi.new("uint32_t *")
        self._asleep: set[Watched] = set()
        self._thread: threading.Thread | None = None
        with Bell._process_lock:
            Bell._all.add(self)

    @classmethod
    def of_process(cls) -> "Bell":
        """The one of this process, made when first asked for."""
        with cls._process_lock:
            if cls._process is None:
                cls._process = cls()
            return cls._process

    @classmethod
    def closed(cls, reader: Watched) -> None:
        """`reader` has been closed: wake the threads that wait for it.  Their callbacks are called."""
        with cls._process_lock:
            bells = list(cls._all)
        for bell in bells:
            if reader in bell._watched or reader in bell._asleep:
                lib.rb_doorbell_ring(bell._doorbell)

    def watch(self, reader: Watched, callback: Callback) -> None:
        """Call `callback` once, from the bell's thread, when `reader` has something to read or is closed.

        The callback must not block and must not raise.  For a reader that is watched several times, all are
        called.  Raises RuntimeError above READERS_MOST readers.
        """
        with self._changed:
            if len(self._watched) >= READERS_MOST and reader not in self._watched:
                raise RuntimeError(f"a process waits for at most {READERS_MOST} readers at once")
            self._watched[reader] = (*self._watched.get(reader, ()), callback)
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._changed.notify_all()
        lib.rb_doorbell_ring(self._doorbell)

    def unwatch(self, reader: Watched, callback: Callback | None = None) -> None:
        """Forget `reader`, or of several callbacks this one.

        If it was the last one, the bell's thread does not touch the reader after this.
        """
        with self._changed:
            left = () if callback is None else self._watched.get(reader, ())
            left = tuple(other for other in left if other is not callback)
            if left:
                self._watched[reader] = left
            else:
                self._watched.pop(reader, None)
            while reader in self._asleep and reader not in self._watched:
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

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="brim-bell", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while (wait := self._next_wait()) is not None:
                self._wait_and_call(*wait)
        except BaseException:
            log.exception("wake-up thread failed, another one starts")
        with self._changed:
            if self._thread is threading.current_thread():  # It was not stopped.
                self._changed.wait(RESTART_S)
            self._asleep.clear()
            self._changed.notify_all()
            if self._thread is threading.current_thread():
                self._start()

    def _next_wait(self) -> tuple[list[Watched], int] | None:
        """The readers to wait for, once there are some, and the doorbell as it is; None after close()."""
        with self._changed:
            self._asleep.clear()
            self._changed.notify_all()
            while not self._watched and self._thread is threading.current_thread():
                self._changed.wait()
            if self._thread is not threading.current_thread():
                return None
            self._asleep.update(self._watched)
            return list(self._watched), self._doorbell[0]

    def _wait_and_call(self, readers: list[Watched], seen: int) -> None:
        """Wait once, and call back for one reader, or for those that are closed."""
        pointers, closed = [], []
        for reader in readers:
            try:
                pointers.append(ffi.cast("rb_reader *", reader.address))
            except Exception:  # noqa: BLE001 - RingClosed, mostly; the next use of the reader raises it again
                closed.append(reader)
        if not closed:
            found = lib.rb_readers_wait(pointers, len(readers), self._doorbell, seen, WAIT_NS)
            if 0 <= found < len(readers):
                closed.append(readers[found])
        for reader in closed:
            with self._changed:
                callbacks = self._watched.pop(reader, ())
            for callback in callbacks:
                _call(callback)


def _call(callback: Callback) -> None:
    try:
        callback()
    except Exception:
        log.exception("wake-up call failed callback=%r", callback)


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

        The caller leaves the readers alone meanwhile.  Records of the first 127 end the sleep at once, those
        of further ones within a millisecond.  Handlers of signals run in the middle of it.
        """
        pointers = [ffi.cast("rb_reader *", reader.address) for reader in readers]
        deadline = time.monotonic() + seconds
        found = lib.RB_INTERRUPTED
        while found == lib.RB_INTERRUPTED:  # Python's handlers run between two calls
            left_ns = max(int((deadline - time.monotonic()) * 1e9), 0)
            found = lib.rb_readers_wait(pointers, len(readers), self._doorbell, self._answered, left_ns)
        self._answered = self._doorbell[0]
        return bool(found >= 0)


def _forget_in_child() -> None:
    Bell._process = None
    Bell._all = weakref.WeakSet()
    Bell._process_lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)
