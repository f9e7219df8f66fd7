"""Work on all cores, in processes of their own.

Each worker is a process group with the processes that it starts: Ctrl-C in a terminal does not reach them.
When each() is interrupted, workers get SIGTERM and end what they have started; then the group is killed, in
which a process may be left whose start was interrupted.

Invariant: SIGTERM raises SystemExit only inside a call. Between calls a worker reads from a queue that all
workers share: an exception in the middle of a message would release the lock of the queue, and the next
worker would read the rest of the message as a message of its own.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from multiprocessing import active_children, get_context, util
from typing import NoReturn, TypeVar

NICE = 5  # at least: who works on this machine comes first

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(call: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """`call` of every item, in the order of completion; an item is taken when it is begun."""
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _give_way)
    coming = iter(items)
    running: set[Future[Result]] = set()
    try:
        while True:
            running |= {pool.submit(_called, call, item) for item in islice(coming, processes - len(running))}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for it in done:
                yield it.result()
    except BaseException:
        workers = active_children()
        for worker in workers:
            worker.terminate()
        pool.shutdown(cancel_futures=True)
        for worker in workers:
            assert worker.pid is not None
            with suppress(ProcessLookupError):
                os.killpg(worker.pid, signal.SIGKILL)
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _give_way() -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, _leave)
    os.nice(max(NICE - os.nice(0), 0))


def _called(call: Callable[[Item], Result], item: Item) -> Result:
    """`call` of the item; at SIGTERM it ends what it has started, and the worker ends."""
    try:
        try:
            signal.signal(signal.SIGTERM, _interrupt)
            return call(item)
        finally:
            signal.signal(signal.SIGTERM, _leave)
    except SystemExit:
        _leave()


def _interrupt(*_: object) -> NoReturn:
    """End the call; no further signal interrupts its cleaning up."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(1)


def _leave(*_: object) -> NoReturn:
    """End this worker, with its finalizers and without an exception: the lock of the queue stays taken."""
    util._exit_function()  # type: ignore[attr-defined]
    os._exit(1)
