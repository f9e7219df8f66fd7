"""How far long work has got: a bar on the terminal, and nothing where there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress"]


@contextmanager
def progress(
    title: str, total: float, *, unit: str = "bytes", shown: bool = True
) -> Iterator[Callable[[float], None]]:
    """Yields what is called with how much more has been done, of `total` (0: nobody knows).

    The bar is on standard error, so that what the command prints stays clean; without a terminal there, or
    with `shown` false, there is none.
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
