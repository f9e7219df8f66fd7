"""Parts of a page of figures: one HTML file with its drawings, without network and script.

Owns the appearance, and knows nothing of the meaning. Every text from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

__all__ = ["bars", "count_in_words", "lines", "page", "seconds_in_words", "strip", "table"]

WIDTH, ROW = 860, 22
LABEL = 250  # of a row, before its bar
COLOURS = ("#2a78b5", "#e07b39", "#4a9c5d", "#a35bb5", "#8a6d3b", "#c2477a", "#3b9ea6", "#77787b")
GOOD, BAD, LOST, SKIPPED = "#4a9c5d", "#d6453d", "#e0a03b", "#b9b9bd"

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 62em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin: 2em 0 .3em } p { margin: .3em 0 }
.good { color: #2f7a42 } .bad { color: #b8261e; font-weight: 600 }
.lost { color: #a86400; font-weight: 600 } .skipped { color: #555; font-weight: 600 }
.note { color: #666; font-size: .9em }
table { border-collapse: collapse } td, th { padding: .15em .8em .15em 0; text-align: right }
td:first-child, th:first-child { text-align: left } th { border-bottom: 1px solid #ccc; font-weight: 600 }
svg { display: block; max-width: 100%; height: auto }
svg text { font: 12px system-ui, sans-serif; fill: #333 }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """The whole file."""
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return "\n".join(["<!doctype html>", head, f"<h1>{escape(title)}</h1>", *parts, ""])


def table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table. Cells are text or numbers; the first column is aligned left."""

    def line(cells: Sequence[object], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(_cell(cell))}</{tag}>" for cell in cells) + "</tr>"

    return "\n".join(["<table>", line(names, "th"), *(line(row, "td") for row in rows), "</table>"])


def bars(rows: Sequence[tuple[str, float, str]], colour: str = COLOURS[0]) -> str:
    """A bar for each (label, length, text behind it)."""
    longest = max((length for _, length, _ in rows), default=0) or 1
    drawn = []
    for number, (label, length, caption) in enumerate(rows):
        y, width = number * ROW, max(1.0, (WIDTH - LABEL - 170) * length / longest)
        drawn += [
            _text(LABEL - 8, y + 15, label, anchor="end"),
            _bar(LABEL, y, width, colour),
            _text(LABEL + width + 6, y + 15, caption),
        ]
    return _drawing(max(len(rows), 1) * ROW, drawn)


def strip(
    rows: Sequence[tuple[str, tuple[int, int], Sequence[tuple[int, int, str]], str]],
) -> str:
    """A strip for each (label, (first, last), [(first, last, colour)], text behind it).

    A part that would be too narrow to see gets the least visible width.
    """
    drawn = []
    room = WIDTH - LABEL - 170
    for number, (label, (first, last), parts, caption) in enumerate(rows):
        y, whole = number * ROW, last - first + 1
        drawn.append(_text(LABEL - 8, y + 15, label, anchor="end"))
        for begin, end, colour in sorted(parts, key=lambda part: part[2] == BAD):
            x, width = LABEL + room * (begin - first) / whole, room * (end - begin + 1) / whole
            drawn.append(_bar(x, y, max(width, 2), colour))
        drawn.append(_text(LABEL + room + 6, y + 15, caption))
    return _drawing(max(len(rows), 1) * ROW, drawn)


def lines(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]], x_ends: tuple[str, str], top: str
) -> str:
    """A line for each (label, points). `x_ends` and `top` are the texts at the ends of the axes."""
    points = [point for _, points in series for point in points]
    height, left = 200, 40
    low, high = (end((x for x, _ in points), default=0.0) for end in (min, max))
    max_y = max((y for _, y in points), default=0.0) or 1.0
    drawn = [f'<path d="M{left} 10V{height - 20}H{WIDTH - 10}" fill="none" stroke="#999"/>']
    drawn += [_text(left + 4, 12, top), _text(left, height - 4, x_ends[0])]
    drawn.append(_text(WIDTH - 10, height - 4, x_ends[1], anchor="end"))
    for number, (label, line_points) in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        places = [
            (
                left + (WIDTH - left - 20) * ((x - low) / (high - low) if high > low else 0.5),
                height - 20 - (height - 36) * y / max_y,
            )
            for x, y in sorted(line_points)
        ]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        drawn += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="1.8" fill="{colour}"/>' for x, y in places]
        drawn.append(_text(WIDTH - 20, 14 + 15 * number, label, anchor="end", colour=colour))
    return _drawing(height, drawn)


def _drawing(height: int, parts: Iterable[str]) -> str:
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', *parts, "</svg>"])


def _bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y + 3}" width="{width:.1f}" height="{ROW - 7}" fill="{colour}"/>'


def _text(x: float, y: float, caption: str, *, anchor: str = "start", colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" style="fill:{colour}">{escape(caption)}</text>'


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def count_in_words(count: float) -> str:
    """A count as short text: 7, 1.2 k, 3.4 M."""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if count >= unit:
            return f"{count / unit:.1f}{name}"
    return f"{count:.0f}"


def seconds_in_words(seconds: float) -> str:
    """A duration as short text: 0.4 s, 12 s, 3.5 min, 2.0 h, 4.1 d."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit:
            return f"{seconds / unit:.1f} {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
