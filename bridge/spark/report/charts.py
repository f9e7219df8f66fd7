"""Charts of volume, lag and devices: plotly figures, without the page around them.

A chart is bounded: buckets of time and the number of series have maxima, and the other series are summed up
and named. A bucket without records is empty.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from plotly import graph_objects as go

from bridge.spark.completeness import FileInfo
from bridge.spark.report.device_rows import Device
from bridge.spark.report.figure_style import (
    LABEL_MAX,
    MARGIN_PX,
    REST,
    ROW_PX,
    SERIES,
    axis,
    layout,
    plain,
    rows_axis,
)
from bridge.spark.report.stream_checks import lag_of
from bridge.spark.report.time_buckets import TimeBuckets
from bridge.spark.report.wording import seconds_in_words, shortened

LIMIT = "#d64541"
LATE_S = ((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (86400, "1 day"))


def _largest(totals: dict[str, float]) -> tuple[list[str], list[str]]:
    """Names with the largest totals, and the others."""
    order = sorted(totals, key=lambda name: (-totals[name], name))
    return order[: len(SERIES)], order[len(SERIES) :]


def _called(info: FileInfo) -> str:
    return f"{info.file.name.edge} {info.file.name.stream}"


def volume_bars(files: Sequence[FileInfo]) -> go.Figure | None:
    """Records/s of each edge and stream as bars, bytes/s of all files as a line. None: no readable file."""
    timed = [
        (info, info.footer.first_timestamp_ns / 1e9, info.footer.last_timestamp_ns / 1e9)
        for info in files
        if info.footer is not None
    ]
    if not timed:
        return None
    buckets = TimeBuckets(min(first for _, first, _ in timed), max(max(pair[1:]) for pair in timed))
    records: dict[str, list[float | None]] = defaultdict(buckets.empty)
    sizes = buckets.empty()
    for info, first, last in timed:
        buckets.spread(records[_called(info)], first, last, info.records / buckets.step_s)
        buckets.spread(sizes, first, last, info.file.length / buckets.step_s)
    right = {"overlaying": "y", "side": "right", "showgrid": False, "tickmode": "auto", "tickformat": ".3~s"}
    figure = go.Figure(
        layout=layout(
            330,
            hovermode="x unified",
            xaxis=axis("UTC", type="date"),
            yaxis=axis("records/s"),
            yaxis2=axis("bytes/s of files", **right),
        )
    )
    figure.add_traces([*_record_bars(records, buckets), _size_line(sizes, buckets)])
    return figure


def _record_bars(records: dict[str, list[float | None]], buckets: TimeBuckets) -> Iterator[go.Bar]:
    drawn, rest = _largest({name: sum(filter(None, values)) for name, values in records.items()})
    series = [(name, records[name]) for name in drawn]
    if rest:
        series.append((f"{len(rest):,} others", _sum(records[name] for name in rest)))
    for (name, values), colour in zip(series, (*SERIES, REST), strict=False):
        yield go.Bar(
            name=plain(shortened(name, LABEL_MAX)),
            x=buckets.middles(),
            y=values,
            marker={"color": colour, "line": {"width": 0}},
            hovertemplate="%{y:,.4~r} records/s",
        )


def _size_line(sizes: list[float | None], buckets: TimeBuckets) -> go.Scatter:
    return go.Scatter(
        name="bytes of files (right axis)",
        x=buckets.middles(),
        y=sizes,
        yaxis="y2",
        mode="lines+markers",
        line={"color": REST, "width": 1.5, "dash": "dot"},
        marker={"size": 4},
        connectgaps=False,
        hovertemplate="%{y:.3s}B/s",
    )


def _sum(series: Iterable[list[float | None]]) -> list[float | None]:
    return [sum(filter(None, values)) or None for values in zip(*series, strict=True)]


def lag_points(files: Sequence[FileInfo], limit_s: float | None) -> go.Figure | None:
    """The largest lag of each edge and stream over the time of arrival. None: no time of arrival is known."""
    lags = [(info, max(lag, 1e-3)) for info in files if (lag := lag_of(info)) is not None]
    if not lags:
        return None
    times = [info.file.modified_s for info, _ in lags]
    buckets = TimeBuckets(min(times), max(times))
    highest: dict[str, list[float | None]] = defaultdict(buckets.empty)
    for info, lag in lags:
        buckets.raise_to(highest[_called(info)], info.file.modified_s, lag)
    spread = max(lag for _, lag in lags) / min(lag for _, lag in lags)
    figure = go.Figure(
        layout=layout(
            300,
            xaxis=axis("UTC", type="date"),
            yaxis=axis("lag, s", **({"type": "log", "dtick": 1} if spread > 100 else {})),
        )
    )
    drawn, _ = _largest({name: max(filter(None, values)) for name, values in highest.items()})
    for name, colour in zip(drawn, SERIES, strict=False):
        values = highest[name]
        figure.add_trace(
            go.Scatter(
                name=plain(shortened(name, LABEL_MAX)),
                x=buckets.middles(),
                y=values,
                mode="markers",
                marker={"color": colour, "size": 6},
                customdata=["" if lag is None else seconds_in_words(lag) for lag in values],
                hovertemplate="%{x}<br>lag up to %{customdata}",
                showlegend=True,
            )
        )
    if limit_s is not None:
        ends = [buckets.middles()[0], buckets.middles()[-1]]
        line = {"color": LIMIT, "dash": "dash", "width": 1.5}
        name = f"limit {seconds_in_words(limit_s)}"
        figure.add_scatter(name=name, x=ends, y=[limit_s] * 2, mode="lines", line=line, hoverinfo="skip")
    return figure


def late_bars(files: Sequence[FileInfo]) -> go.Figure:
    """Records by the time from taking the newest record to the arrival of its file."""
    late: dict[str, int] = dict.fromkeys(
        (*(f"within {name}" for _, name in LATE_S), f"later than {LATE_S[-1][1]}"), 0
    )
    for info in files:
        if info.footer is None or info.file.modified_s <= 0:
            continue
        newest = info.file.modified_s - info.footer.last_timestamp_ns / 1e9
        name = next((name for limit_s, name in LATE_S if newest < limit_s), None)
        late[f"within {name}" if name else f"later than {LATE_S[-1][1]}"] += info.records
    total = sum(late.values()) or 1
    return go.Figure(
        go.Bar(
            orientation="h",
            y=list(late),
            x=list(late.values()),
            text=[f"{number:,} ({number / total:.1%})" for number in late.values()],
            textposition="outside",
            cliponaxis=False,
            marker={"color": SERIES[1], "line": {"width": 0}},
            hovertemplate="%{y}: %{x:,d} records<extra></extra>",
        ),
        layout(
            MARGIN_PX + ROW_PX * len(late) - 40,
            xaxis=axis("records", tickformat="~s", range=[0, 1.25 * max(*late.values(), 1)]),
            yaxis={"autorange": "reversed", "automargin": True, "showgrid": False, "ticklabelstandoff": 6},
        ),
    )


def device_bars(devices: Sequence[Device]) -> go.Figure:
    """Bytes of payload of each device as bars, its records as dots; an axis for each."""
    places = list(range(len(devices)))
    names = [f"{device.edge} {device.topic}" for device in devices]
    titles = [[plain(name)] for name in names]
    figure = go.Figure(
        layout=layout(
            MARGIN_PX + 40 + ROW_PX * max(len(devices), 1),
            xaxis=axis("bytes of payload", tickformat="~s"),
            xaxis2=axis(
                "records", overlaying="x", side="top", showgrid=False, tickmode="auto", tickformat="~s"
            ),
            yaxis=rows_axis(names),
        )
    )
    figure.add_bar(
        name="bytes of payload (bottom axis)",
        orientation="h",
        y=places,
        x=[device.payload_bytes for device in devices],
        marker={"color": SERIES[2], "line": {"width": 0}},
        customdata=titles,
        hovertemplate="%{customdata[0]}<br>%{x:,d} bytes<extra></extra>",
    )
    figure.add_scatter(
        name="records (top axis)",
        mode="markers",
        y=places,
        x=[device.records for device in devices],
        xaxis="x2",
        marker={"color": SERIES[1], "size": 9, "symbol": "diamond"},
        customdata=titles,
        hovertemplate="%{customdata[0]}<br>%{x:,d} records<extra></extra>",
    )
    return figure
