"""Picture of a run: small multiples over the same seconds, with every cut and kill in each.

The upper two panels show the flow of the messages, the others this machine's values in the table. Drawn once,
as SVG for the page and as PNG.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.demo.lake import Aggregate, Lake

PALETTE = ("#1769aa", "#e07b00", "#2b8a57", "#9c4dcc", "#c2352b", "#6b7280")
INK, GRID = "#1f2933", "#e3e8ee"
LINES_MAX = len(PALETTE)
HOLE_S = 2.5  # slow readings are taken once per second


@dataclass(frozen=True)
class Sample:
    """Counters at one moment, as the demo measured them. `at_s`: seconds since 1970."""

    at_s: float
    published: int
    acked: int
    shm: int
    zmq: int
    drained: int
    stored: int


@dataclass(frozen=True)
class Outage:
    """A deliberate outage. Seconds since 1970."""

    what: str
    begin_s: float
    end_s: float
    colour: str


@dataclass(frozen=True)
class _Panel:
    title: str
    unit: str
    wanted: str  # a pattern of devices, without host/NAME/
    scale: float = 1.0


PANELS = (
    _Panel("CPU load", "%", r"cpu/\d+"),
    _Panel("Load average, 1 minute", "", r"load"),
    _Panel("Memory in use", "%", r"memory"),
    _Panel("Disks", "MB a second", r"disk/.+", 1e-6),
    _Panel("Network interfaces", "MB a second", r"net/.+", 1e-6),
    _Panel("Busiest processes", "% of a CPU", r"process/[0-2]"),
)


def draw(lake: Lake, samples: Sequence[Sample], outages: Sequence[Outage], png: Path) -> str:
    """The picture as SVG; also written to `png`."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    style: dict[Any, Any] = {
        "font.size": 9, "axes.titlesize": 10, "axes.titleweight": "bold", "axes.titlelocation": "left",
        "axes.edgecolor": "#9aa5b1", "axes.labelcolor": INK, "text.color": INK, "xtick.color": "#52606d",
        "ytick.color": "#52606d", "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
        "grid.color": GRID, "svg.fonttype": "path", "svg.hashsalt": "brim", "legend.frameon": False,
        "axes.facecolor": "none",
    }  # fmt: skip
    begin = samples[0].at_s if samples else min((second.start_s for second in lake.by_second), default=0)
    with plt.rc_context(style):
        figure, axes = plt.subplots(4, 2, figsize=(11, 10), sharex=True, layout="constrained")
        flat = list(axes.flat)
        _way(flat[0], lake, samples, begin)
        _waiting(flat[1], samples, begin)
        for axis, panel in zip(flat[2:], PANELS, strict=True):
            _vitals(axis, panel, lake.by_second, begin)
        for number, axis in enumerate(flat):
            _outages(axis, outages, begin, named=number == 1)
            axis.set_ylim(bottom=0)
            axis.margins(x=0.01)
        for axis in flat[:2]:
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        for axis in axes[-1]:
            axis.set_xlabel("seconds since the start")
        figure.savefig(png, dpi=130, facecolor="white")
        text = io.StringIO()
        figure.savefig(text, format="svg", facecolor="none", metadata={"Date": None})
        plt.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _way(axis: Any, lake: Lake, samples: Sequence[Sample], begin: float) -> None:
    axis.set_title("Messages a second, by stage")
    stages: tuple[tuple[str, Callable[[Sample], int]], ...] = (
        ("published", lambda second: second.published),
        ("shared memory", lambda second: second.shm),
        ("drained", lambda second: second.drained),
    )
    for (name, count), colour in zip(stages, PALETTE, strict=False):
        axis.plot(*_rates(samples, count, begin), label=name, color=colour, linewidth=1.4)
    counted: dict[int, int] = {}
    for second_of_lake in lake.by_second:
        counted[second_of_lake.start_s] = counted.get(second_of_lake.start_s, 0) + second_of_lake.messages
    seconds = sorted(counted)[1:-1]  # the first and the last are not whole
    points = [second + 0.5 - begin for second in seconds], [counted[second] for second in seconds]
    axis.plot(*points, label="in the table", color=PALETTE[3], linewidth=1.2, linestyle=":")
    axis.legend(loc="upper left", ncols=4, fontsize=8, columnspacing=1.0, handlelength=1.4)
    max_rate = max((*_rates(samples, stages[0][1], begin)[1], *points[1], 1))
    axis.set_ylim(
        0, 1.8 * max_rate
    )  # waiting records are drained much faster: that peak is cut, with a label
    drained = max(_rates(samples, stages[2][1], begin)[1], default=0)
    if drained > 1.8 * max_rate:
        text = f"drained at up to {drained:,.0f} a second"
        axis.text(
            0.99, 0.8, text, transform=axis.transAxes, ha="right", va="top", fontsize=8, color=PALETTE[2]
        )


def _rates(
    samples: Sequence[Sample], count: Callable[[Sample], int], begin: float
) -> tuple[list[float], list[float]]:
    """Per second, over two seconds each."""
    pairs = [(old, new) for old, new in zip(samples, samples[4:], strict=False) if new.at_s > old.at_s]
    times = [(old.at_s + new.at_s) / 2 - begin for old, new in pairs]
    return times, [(count(new) - count(old)) / (new.at_s - old.at_s) for old, new in pairs]


def _waiting(axis: Any, samples: Sequence[Sample], begin: float) -> None:
    axis.set_title("Records stored, waiting for the sink")
    times = [sample.at_s - begin for sample in samples]
    waiting = [max(sample.stored - sample.drained, 0) for sample in samples]
    axis.fill_between(times, waiting, color=PALETTE[0], alpha=0.25, linewidth=0)
    axis.plot(times, waiting, color=PALETTE[0], linewidth=1.4)


def _vitals(axis: Any, panel: _Panel, by_second: Iterable[Aggregate], begin: float) -> None:
    axis.set_title(f"{panel.title}{', ' + panel.unit if panel.unit else ''}")
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for second in by_second:
        match = re.fullmatch(rf"host/[^/]+/({panel.wanted})", second.device)
        if match:
            times, values = lines.setdefault(match[1], ([], []))
            at = second.start_s + 0.5 - begin
            # No record was stored: a line across would suggest otherwise.
            if times and at - times[-1] > HOLE_S:
                times.append(at)
                values.append(math.nan)
            times.append(at)
            values.append(second.mean * panel.scale)
    largest = sorted(lines, key=lambda name: -max(filter(math.isfinite, lines[name][1])))[:LINES_MAX]
    for name, colour in zip(sorted(largest), PALETTE, strict=False):
        axis.plot(*lines[name], label=name, color=colour, linewidth=1.2)
    if len(largest) > 1:
        axis.legend(loc="upper left", ncols=3, fontsize=8)
        axis.set_ylim(0, 1.3 * max(axis.get_ylim()[1], 1e-9))


def _outages(axis: Any, outages: Sequence[Outage], begin: float, *, named: bool) -> None:
    for outage in outages:
        axis.axvspan(
            outage.begin_s - begin, outage.end_s - begin, color=outage.colour, alpha=0.16, linewidth=0
        )
        if named:
            middle = (outage.begin_s + outage.end_s) / 2 - begin
            top = axis.get_xaxis_transform()
            axis.text(
                middle, 0.03, outage.what, transform=top, ha="center", va="bottom", fontsize=7.5, rotation=90
            )
