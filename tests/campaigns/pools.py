"""Work on all cores, in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

__all__ = ["each"]

NICE = 5  # at least: who works on this machine comes first

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(call: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """`call` of every item, in the order in which they are done; an item is asked for when it is begun."""
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _give_way)
    coming = iter(items)
    running: set[Future[Result]] = set()
    try:
        while True:
            running |= {pool.submit(call, item) for item in islice(coming, processes - len(running))}
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for it in done:
                yield it.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _give_way() -> None:
    os.nice(max(NICE - os.nice(0), 0))
