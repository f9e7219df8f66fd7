"""Offset strips: the chart of present, skipped, lost and missing offsets of each partition and epoch.

A strip has at most CELLS cells. A cell has the colour of the worst offset in it, so that none is hidden.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from plotly import graph_objects as go

from bridge.rangeset import Ranges
from bridge.spark.completeness import EpochAccount
from bridge.spark.report.figure_style import MARGIN_PX, ROW_PX, axis, layout, plain, rows_axis

CELLS, STRIPS_MAX = 240, 60
STATES = {
    "present": ("#2c9d60", ""),
    "skipped": ("#a3a8b0", "."),
    "lost": ("#e69a1e", "/"),
    "missing": ("#d64541", "x"),
}  # colour and pattern; the worst last


class _Cells(NamedTuple):
    """Neighbouring cells of one state in a strip, and the offsets in them."""

    state: str
    begin: float  # share of the strip, 0 .. 1
    end: float
    first: int
    last: int
    counts: dict[str, int]


def offset_strips(accounts: Sequence[EpochAccount]) -> tuple[go.Figure, int]:
    """A strip for each partition and epoch, the worst first; and the number of strips left out."""
    rows = sorted(
        (row for row in accounts if row.expected),
        key=lambda row: (not row.missing, not row.lost, not row.skipped, row.epoch),
    )
    drawn = rows[:STRIPS_MAX]
    runs = {at: list(_runs(row)) for at, row in enumerate(drawn)}
    figure = go.Figure(
        layout=layout(
            MARGIN_PX + ROW_PX * max(len(drawn), 1),
            xaxis=axis(
                "share of offsets", tickformat=".0%", range=[0, 1.001], tickvals=[0, 0.25, 0.5, 0.75, 1]
            ),
            yaxis=rows_axis([_strip_label(row) for row in drawn]),
        )
    )
    figure.update_layout(barmode="overlay", bargap=0.3)
    for state, (colour, pattern) in STATES.items():
        figure.add_trace(_strip_trace(state, colour, pattern, drawn, runs))
    return figure, len(rows) - len(drawn)


def _strip_trace(
    state: str, colour: str, pattern: str, rows: Sequence[EpochAccount], runs: dict[int, list[_Cells]]
) -> go.Bar:
    chosen = [(at, run) for at, row in runs.items() for run in row if run.state == state]
    return go.Bar(
        name=state,
        orientation="h",
        y=[at for at, _ in chosen],
        base=[run.begin for _, run in chosen],
        x=[run.end - run.begin for _, run in chosen],
        marker={
            "color": colour,
            "line": {"width": 0},
            "pattern": {
                "shape": pattern,
                "bgcolor": colour,
                "fgcolor": "#ffffff",
                "size": 6,
                "solidity": 0.2,
            },
        },
        customdata=[
            [plain(_strip_title(rows[at])), run.first, run.last, _content(run)] for at, run in chosen
        ],
        hovertemplate="%{customdata[0]}<br>offsets %{customdata[1]:,d} to %{customdata[2]:,d}"
        "<br>%{customdata[3]}<extra></extra>",
        showlegend=True,
    )


def _content(run: _Cells) -> str:
    return ", ".join(f"{run.counts[state]:,} {state}" for state in reversed(STATES) if run.counts.get(state))


def _strip_label(row: EpochAccount) -> str:
    return f"{row.epoch.edge} {row.epoch.stream}/{row.epoch.partition}"


def _strip_title(row: EpochAccount) -> str:
    return f"{_strip_label(row)}, epoch {row.epoch.epoch}"


def _runs(row: EpochAccount) -> Iterator[_Cells]:
    """The strip of an epoch: neighbouring cells with the same worst state are one run."""
    low, high = row.expected[0][0], row.expected[-1][1]
    width = max(-(-(high - low + 1) // CELLS), 1)  # offsets of a cell
    cells: list[dict[str, int]] = [{} for _ in range((high - low) // width + 1)]
    for state in STATES:
        _count_into(cells, state, getattr(row, state), low, width)
    worst = [max(cell, key=list(STATES).index, default="present") for cell in cells]
    for state, group in itertools.groupby(range(len(cells)), key=worst.__getitem__):
        places = list(group)
        first, last = low + places[0] * width, min(low + (places[-1] + 1) * width - 1, high)
        counts = {name: sum(cells[at].get(name, 0) for at in places) for name in STATES}
        total = high - low + 1
        yield _Cells(state, (first - low) / total, (last + 1 - low) / total, first, last, counts)


def _count_into(cells: list[dict[str, int]], state: str, ranges: Ranges, low: int, width: int) -> None:
    for first, last in ranges:
        begin, end = max(first - low, 0), min(last - low, len(cells) * width - 1)
        for at in range(begin // width, end // width + 1):
            inside = min(end, (at + 1) * width - 1) - max(begin, at * width) + 1
            cells[at][state] = cells[at].get(state, 0) + inside
