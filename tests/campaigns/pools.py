"""Work on all cores, in processes of their own, as results are wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from typing import TypeVar

__all__ = ["each"]

NICE = 10

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(call: Callable[[Item], Result], items: Iterable[Item], processes: int) -> Iterator[Result]:
    """`call` of every item, in the order in which they are done; who stops asking ends the work."""
    pool = ProcessPoolExecutor(processes, get_context("spawn"), os.nice, (NICE,))
    coming = iter(items)
    running: set[Future[Result]] = set()
    try:
        while True:
            for item in coming:
                running.add(pool.submit(call, item))
                if len(running) >= 2 * processes:
                    break
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for it in done:
                yield it.result()
    finally:
        pool.shutdown(cancel_futures=True)
