"""Progress of long work, only on a terminal: a bar, or a spinner if the amount of work is not known."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SHOW_AFTER_S = 1.0  # for spinners: most work ends earlier


@contextmanager
def progress(
    title: str, total: float, *, unit: str = "bytes", shown: bool = True
) -> Iterator[Callable[[float], None]]:
    """Yield a function to call with the amount of further work done, of `total` (0: unknown).

    The bar is on standard error, so that standard output stays clean. There is none without a terminal, or
    with `shown` false.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    amounts = (
        [DownloadColumn(binary_units=True), TransferSpeedColumn()]
        if unit == "bytes"
        else [MofNCompleteColumn()]
    )
    columns = [TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn()]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total or None)
        yield lambda more: bar.advance(task, more)


@contextmanager
def waiting(title: str) -> Iterator[Callable[[], None]]:
    """Show a spinner with the elapsed time, after a second. Yields a function that ends it."""
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = [SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()]
    spinner = Progress(*columns, console=Console(stderr=True), transient=True)
    spinner.add_task(title, total=None)
    lock, done = threading.Lock(), threading.Event()

    def start() -> None:
        with lock:
            if not done.is_set():
                spinner.start()

    def end() -> None:
        with lock:
            if not done.is_set() and spinner.live.is_started:
                spinner.stop()
            done.set()

    timer = threading.Timer(SHOW_AFTER_S, start)
    timer.daemon = True
    timer.start()
    try:
        yield end
    finally:
        timer.cancel()
        end()
