"""Progress and results of a campaign: a line that moves, and a table at the end."""

import json
import shutil
import sys
import time
from collections.abc import Mapping

LINE_EVERY_S = 15.0  # without a terminal


class Progress:
    """`doing N of TOTAL units`, with the time that is left; on a terminal a bar."""

    def __init__(self, title: str, total: int, unit: str) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._started = time.monotonic()
        self._said = 0.0
        self._live = sys.stdout.isatty()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._started

    def at(self, done: int, detail: str = "") -> None:
        """Shows that so much is done."""
        now = time.monotonic()
        if not self._live and now - self._said < LINE_EVERY_S and done < self._total:
            return
        self._said = now
        share = min(done / max(self._total, 1), 1.0)
        left = self.seconds / share - self.seconds if share else 0.0
        text = f"{self._title}  {done:,} of {self._total:,} {self._unit}  {left:.0f} s left  {detail}"
        if self._live:
            bar = "█" * int(share * 20) + "░" * (20 - int(share * 20))
            print(f"\r\x1b[K{bar} {text}"[: shutil.get_terminal_size().columns + 4], end="", flush=True)
        else:
            print(text, flush=True)

    def end(self) -> None:
        """The line is over."""
        if self._live:
            print("\r\x1b[K", end="")


def show(title: str, facts: Mapping[str, object]) -> None:
    """A table, and the same as one line of JSON.  A mapping of mappings is a table of its own."""
    tables = {name: value for name, value in facts.items() if isinstance(value, Mapping)}
    width = max(map(len, facts))
    print(f"\n{title}")
    for table in tables.values():
        _show_rows(table)
    for name, value in facts.items():
        if name not in tables:
            number = f"{value:>14,}" if isinstance(value, int) else value
            print(f"  {name:<{width}}  {number}")
    print(json.dumps({"campaign": title, **facts}), flush=True)


def _show_rows(rows: Mapping[str, Mapping[str, int]]) -> None:
    width = max(map(len, rows), default=0)
    columns = [*dict.fromkeys(name for row in rows.values() for name in row)]
    print(" " * (width + 4) + "".join(f"{name:>16}" for name in columns))
    for name, row in rows.items():
        print(f"  {name:<{width}}  " + "".join(f"{row.get(it, 0):>16,}" for it in columns))
    print()
