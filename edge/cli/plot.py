"""Plot of a number over time, as lines of text: the range of the values in each column, and their mean.

     23.4 │     │•
          │   ••
     18.0 │•••
          2026-11-21 07:46:31         2026-11-21 07:50:00

Owns one summary for each step of time, at most `columns` of them: a longer time doubles the step. So memory
is bounded, and a value costs constant time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

STEP_NS = 1_000_000  # at the beginning
LABEL = 12  # characters to the left of the plot
NS_PER_S: Final = 1_000_000_000


@dataclass(slots=True)
class _Summary:
    """Values of one step of time."""

    low: float
    high: float
    mean: float
    count: int = 1

    def add(self, other: _Summary) -> None:
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.count += other.count
        share = other.count / self.count
        self.mean = self.mean * (1 - share) + other.mean * share


class Plot:
    """Use: add() for each value, then lines(). `columns`, `height`: size of the plot without its labels."""

    def __init__(self, columns: int, height: int) -> None:
        self._columns, self._height = max(columns, 1), max(height, 2)
        self._step_ns = STEP_NS
        self._steps: dict[int, _Summary] = {}  # by timestamp // step
        self.count = 0

    def add(self, timestamp_ns: int, value: float) -> None:
        """Add a finite value; times may come in any order."""
        self.count += 1
        self._enter(timestamp_ns // self._step_ns, _Summary(value, value, value))
        while max(self._steps) - min(self._steps) >= self._columns:
            self._step_ns *= 2
            before, self._steps = self._steps, {}
            for number, summary in before.items():
                self._enter(number // 2, summary)

    def _enter(self, number: int, summary: _Summary) -> None:
        if number in self._steps:
            self._steps[number].add(summary)
        else:
            self._steps[number] = summary

    def lines(self, marks: tuple[str, str] = ("│", "•")) -> list[str]:
        """Text of the plot; no lines without a value. `marks`: of the range, and of the mean."""
        if not self._steps:
            return []
        low = min(summary.low for summary in self._steps.values())
        high = max(summary.high for summary in self._steps.values())
        rows = [[" "] * self._columns for _ in range(self._height)]
        first, span = min(self._steps), max(self._steps) - min(self._steps) + 1
        for column in range(self._columns):
            if summary := self._steps.get(first + column * span // self._columns):
                bottom, middle, top = (
                    self._row(value, low, high) for value in (summary.low, summary.mean, summary.high)
                )
                for row in range(top, bottom + 1):
                    rows[row][column] = marks[0]
                rows[middle][column] = marks[1]
        labels = {0: f"{high:.6g}", self._height - 1: f"{low:.6g}"}
        text = [f"{labels.get(row, ''):>{LABEL - 2}} {marks[0]}" for row in range(self._height)]
        return [
            *((label + "".join(cells)).rstrip() for label, cells in zip(text, rows, strict=True)),
            self._times(first, span),
        ]

    def _row(self, value: float, low: float, high: float) -> int:
        """Row of a value, 0 at the top. Halves, because a difference may exceed the range of a float."""
        span = high / 2 - low / 2
        share = (value / 2 - low / 2) / span if span > 0 else 0.5
        return round((1 - min(max(share, 0.0), 1.0)) * (self._height - 1))

    def _times(self, first: int, span: int) -> str:
        begin, end = (_clock(number * self._step_ns) for number in (first, first + span))
        gap = max(self._columns - len(begin) - len(end), 1)
        return " " * LABEL + begin + " " * gap + end


def _clock(timestamp_ns: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp_ns // NS_PER_S))
