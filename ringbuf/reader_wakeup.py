"""Wake-up of many readers: Sleeper blocks the calling thread, WakeupThread calls back from its own thread.

A WakeupThread calls back once per watch and then forgets the reader; watch() again to get the next call.  An
asyncio reader therefore needs no thread of its own.  A reader that has fallen behind is not woken for each
record.

One thread serves all readers because one futex wake of the writer then reaches every kind of reader, and no
reader needs a descriptor.  A wake-up took 12-13 us, against 24-26 us with a socket per reader.

Invariants:
  - The thread touches a reader only while the reader is in the set; unwatch() returns after the release.
  - A reader that is closed is called back at once.
  - An exception of a callback is logged, and the thread continues.
  - If the thread ends by an exception, this is logged and another thread starts.
"""

import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from ringbuf.native import ffi, lib

READERS_MAX = 120  # futex_waitv takes 128
WAIT_NS = 1_000_000_000
RESTART_S = 0.05  # before a new thread replaces one that ended: bounds the log lines if each one fails

log = logging.getLogger(__name__)

Callback = Callable[[], object]


class Watched(Protocol):
    """Reader as a WakeupThread sees it."""

    @property
    def address(self) -> int:
        """Address of its rb_reader.  Raises RingError if the reader is closed."""


class WakeupThread:
    """One thread that waits for up to READERS_MAX readers and calls their callbacks."""

    _process: ClassVar["WakeupThread | None"] = None
    _all: ClassVar["weakref.WeakSet[WakeupThread]"] = weakref.WeakSet()
    _process_lock: ClassVar[threading.RLock] = threading.RLock()  # re-entrant: finalizers close readers

    def __init__(self) -> None:
        self._watched: dict[Watched, tuple[Callback, ...]] = {}
        self._changed = threading.Condition()
        self._interrupts = ffi.new("uint32_t *")
        self._asleep: set[Watched] = set()
        self._thread: threading.Thread | None = None
        with WakeupThread._process_lock:
            WakeupThread._all.add(self)

    @classmethod
    def of_process(cls) -> "WakeupThread":
        """The WakeupThread that all readers of this process share; created on first use."""
        with cls._process_lock:
            if cls._process is None:
                cls._process = cls()
            return cls._process

    @classmethod
    def closed(cls, reader: Watched) -> None:
        """Wake the threads that wait for the closed `reader`, so that its callbacks are called."""
        with cls._process_lock:
            wakeups = list(cls._all)
        for wakeup in wakeups:
            if reader in wakeup._watched or reader in wakeup._asleep:
                lib.rb_readers_interrupt(wakeup._interrupts)

    def watch(self, reader: Watched, callback: Callback) -> None:
        """Call `callback` once, from the thread, when `reader` has something to read or is closed.

        The callback must not block and must not raise.  A reader may have several callbacks; all are called.
        Raises RuntimeError above READERS_MAX readers.
        """
        with self._changed:
            if len(self._watched) >= READERS_MAX and reader not in self._watched:
                raise RuntimeError(f"a process waits for at most {READERS_MAX} readers at once")
            self._watched[reader] = (*self._watched.get(reader, ()), callback)
            if self._thread is None or not self._thread.is_alive():
                self._start()
            self._changed.notify_all()
        lib.rb_readers_interrupt(self._interrupts)

    def unwatch(self, reader: Watched, callback: Callback | None = None) -> None:
        """Remove `callback` from `reader`, or all its callbacks.

        After the last callback is removed, the thread does not touch the reader any more.
        """
        with self._changed:
            left = () if callback is None else self._watched.get(reader, ())
            left = tuple(other for other in left if other is not callback)
            if left:
                self._watched[reader] = left
            else:
                self._watched.pop(reader, None)
            while reader in self._asleep and reader not in self._watched:
                lib.rb_readers_interrupt(self._interrupts)
                self._changed.wait(0.1)

    def close(self) -> None:
        """Stop the thread; a later watch() starts it again."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._watched.clear()
            self._changed.notify_all()
            lib.rb_readers_interrupt(self._interrupts)
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="brim-wakeup", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while (wait := self._next_wait()) is not None:
                self._wait_and_call(*wait)
        except BaseException:
            log.exception("wake-up thread failed, another one starts")
        with self._changed:
            if self._thread is threading.current_thread():  # not stopped by close()
                self._changed.wait(RESTART_S)
            self._asleep.clear()
            self._changed.notify_all()
            if self._thread is threading.current_thread():
                self._start()

    def _next_wait(self) -> tuple[list[Watched], int] | None:
        """The watched readers, at least one, and the interrupts before the wait; None after close()."""
        with self._changed:
            self._asleep.clear()
            self._changed.notify_all()
            while not self._watched and self._thread is threading.current_thread():
                self._changed.wait()
            if self._thread is not threading.current_thread():
                return None
            self._asleep.update(self._watched)
            return list(self._watched), self._interrupts[0]

    def _wait_and_call(self, readers: list[Watched], seen: int) -> None:
        """Wait once.  Call back for one reader that has records, or for all readers that are closed."""
        pointers, closed = [], []
        for reader in readers:
            try:
                pointers.append(ffi.cast("rb_reader *", reader.address))
            except Exception:  # noqa: BLE001 - mostly RingClosed, which the next use raises again
                closed.append(reader)
        if not closed:
            result = lib.rb_readers_wait(pointers, len(readers), self._interrupts, seen, WAIT_NS)
            if 0 <= result < len(readers):
                closed.append(readers[result])
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
    """Wait of the calling thread for many readers; any other thread can end the wait."""

    def __init__(self) -> None:
        self._interrupts = ffi.new("uint32_t *")
        self._answered = 0

    def ring(self) -> None:
        """End the current sleep(), or the next one if no thread sleeps.  Any thread may call this."""
        lib.rb_readers_interrupt(self._interrupts)

    def sleep(self, readers: Sequence[Watched], seconds: float) -> bool:
        """Wait at most `seconds`.  True if ring() was called or a reader has something to read.

        No other thread may use the readers during the call.  Records of the first 127 readers end the sleep
        at once, those of further readers within a millisecond.  Signal handlers run during the sleep.
        """
        pointers = [ffi.cast("rb_reader *", reader.address) for reader in readers]
        deadline = time.monotonic() + seconds
        result = lib.RB_INTERRUPTED
        while result == lib.RB_INTERRUPTED:  # Python runs signal handlers between two calls
            left_ns = max(int((deadline - time.monotonic()) * 1e9), 0)
            result = lib.rb_readers_wait(pointers, len(readers), self._interrupts, self._answered, left_ns)
        self._answered = self._interrupts[0]
        return bool(result >= 0)


def _forget_in_child() -> None:
    WakeupThread._process = None
    WakeupThread._all = weakref.WeakSet()
    WakeupThread._process_lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_in_child)
