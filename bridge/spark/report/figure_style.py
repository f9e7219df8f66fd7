"""Figure style: the layout, axes and colours of all charts.

Colours of texts and grid lines are those of page.css, so that one figure serves light, dark and paper. plotly
reads texts as HTML: every text from outside passes plain().
"""

from __future__ import annotations

from html import escape

from plotly import graph_objects as go

from bridge.spark.report.wording import shortened

LABEL_MAX = 30  # characters of a label; the hover has the whole text
ROW_PX, MARGIN_PX = 24, 120
SERIES = ("#3987e5", "#d97b1f", "#0d9f8c", "#a56be0", "#b58a1d", "#d9558d", "#4f9b3c", "#c06c5b")
REST = "#8b8f96"


def plain(text: str) -> str:
    """A text that plotly shows as it is."""
    return escape(text)


def layout(height_px: int, **more: object) -> go.Layout:
    """The layout of a chart; `more`: axes, and options that differ."""
    return go.Layout(
        template="none",
        height=height_px,
        margin={"l": 8, "r": 16, "t": 28, "b": 8},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "traceorder": "normal"},
        modebar={"bgcolor": "rgba(0,0,0,0)", "color": REST, "activecolor": SERIES[0]},
        hoverlabel={
            "bgcolor": "#1c242d",
            "bordercolor": "#1c242d",
            "font": {"color": "#ffffff"},
            "align": "left",
        },
        barmode="stack",
        bargap=0.12,
        **more,
    )


def axis(title: str, **more: object) -> dict[str, object]:
    """An axis from 0, with a title."""
    return {"title": {"text": title}, "automargin": True, "zeroline": False, "rangemode": "tozero", **more}


def rows_axis(labels: list[str]) -> dict[str, object]:
    """The y axis of a chart with a row for each label, from above."""
    return {
        "tickvals": list(range(len(labels))),
        "ticktext": [plain(shortened(label, LABEL_MAX)) for label in labels],
        "range": [len(labels) - 0.4, -0.6],
        "ticklabelstandoff": 6,
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }
