"""Progress bar of long work, only on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


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
