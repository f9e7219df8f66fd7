"""Page of a run: one HTML file that needs no network, no script and no other file.

Owns its text and appearance. Every text from outside (device names, paths) is escaped.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from examples.demo.report import LEDGER_COLUMNS, Report, cell, ledger_cells, minute_of, unit_of

STYLE = Path(__file__).with_name("page.css")

MEANING = (
    "A <b>message</b> is what a device has published; a <b>record</b> is what the broker has stored. MQTT "
    "delivers at least once: a message whose acknowledgement was lost with the broker is sent again and may "
    "be two records then (<i>stored again</i>). <b>Lost</b> counts acknowledged messages that a stage lacks, "
    "<b>duplicated</b> records that it has more than once, <b>gaps</b> offsets that it never saw."
)


def render(report: Report, svg: str, commands: Sequence[tuple[str, str]]) -> str:
    """The page; `svg` is the picture of plots.py, `commands` are commands to try next, with their purpose."""
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.began_s))
    length = report.ended_s - report.began_s
    body = [
        "<h1>Brim: from a device to a Spark table</h1>",
        f'<p class="soft">{escape(report.machine)}, {when}, {length:.0f} seconds of messages</p>',
        _verdict(report),
        _tiles(report),
        "<h2>What was done to it</h2>",
        f'<div class="card">{_timeline(report)}{_events(report)}</div>',
        "<h2>The ledger</h2>",
        f'<div class="card">{_ledger(report)}<p class="soft">{MEANING}</p></div>',
        "<h2>The run, and what the table holds of this machine</h2>",
        f'<div class="card">{svg}</div>',
        f"<h2>By device and minute, from the table made by {escape(report.lake.made_by)}</h2>",
        f'<div class="card">{_minutes(report)}</div>',
        "<h2>From files to the table</h2>",
        f'<div class="card">{_steps(report)}</div>',
        "<h2>To try next</h2>",
        '<div class="card">'
        + "".join(f"<p><code>{escape(c)}</code> {escape(t)}</p>" for c, t in commands)
        + "</div>",
    ]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return (
        f'<!doctype html><html lang="en"><head>{head}<title>Brim demo, {when}</title>'
        f"<style>{STYLE.read_text()}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _verdict(report: Report) -> str:
    ledger = report.ledger
    if ledger.matches:
        acked = next(row.messages for row in ledger.rows if row.name == "acknowledged")
        counts = f"{ledger.lost} lost, {ledger.twice} duplicated"
        text = f"{counts}: all {acked:,} acknowledged messages are in the table."
        return f'<div class="verdict good">{text}</div>'
    problems = "".join(f"<li>{escape(problem)}</li>" for problem in ledger.problems)
    return f'<div class="verdict bad">The ledger does not match.<ul>{problems}</ul></div>'


def _tiles(report: Report) -> str:
    seconds: dict[int, int] = {}
    for second in report.lake.by_second:
        seconds[second.start_s] = seconds.get(second.start_s, 0) + second.messages
    most_waiting = max((sample.stored - sample.drained for sample in report.samples), default=0)
    tiles = [
        (f"{report.ledger.rows[1].messages:,}", "messages acknowledged"),
        (f"{report.lake.records:,}", "records in the table"),
        (f"{max(seconds.values(), default=0):,}", "in the busiest second"),
        (f"{len({cell.device for cell in report.lake.by_minute})}", "devices"),
        (f"{most_waiting:,}", "waited for the sink at most"),
        (f"{report.arrived.files:,}", f"drained files, {report.arrived.bytes / 1e6:.1f} MB"),
    ]
    cells = "".join(f'<div class="tile"><b>{number}</b>{text}</div>' for number, text in tiles)
    return f'<div class="tiles">{cells}</div>'


def _timeline(report: Report) -> str:
    length = max(report.ended_s - report.began_s, 1e-9)
    bars = []
    for outage in report.outages:
        left = 100 * (outage.begin_s - report.began_s) / length
        width = 100 * (outage.end_s - outage.begin_s) / length
        bars.append(
            f'<span style="left:{left:.2f}%;width:{width:.2f}%;background:{outage.colour}">'
            f"<em>{escape(outage.what)}, {outage.end_s - outage.begin_s:.1f} s</em></span>"
        )
    return f'<div class="time">{"".join(bars)}</div>'


def _events(report: Report) -> str:
    items = "".join(
        f"<li><i>{at - report.began_s:.1f} s</i>{escape(text)}</li>" for at, text in report.events
    )
    return f'<ol class="events">{items}</ol>'


def _ledger(report: Report) -> str:
    rows = [
        (ledger_cells(row), "bad" if row.lost or row.twice or row.gaps else "") for row in report.ledger.rows
    ]
    return _table(LEDGER_COLUMNS, rows)


def _minutes(report: Report) -> str:
    minutes = sorted({cell.start_s for cell in report.lake.by_minute})
    cells = {(cell.device, cell.start_s): cell for cell in report.lake.by_minute}
    head = "".join(f'<th colspan="3" class="first">{minute_of(minute)}</th>' for minute in minutes)
    names = '<th class="first">messages</th><th>mean</th><th>most</th>' * len(minutes)
    rows = []
    for device in sorted({row_cell.device for row_cell in report.lake.by_minute}):
        unit, row = unit_of(device), [f"<td>{escape(device)}</td>"]
        for minute in minutes:
            cell_of_minute = cells.get((device, minute))
            values = (
                (
                    f"{cell_of_minute.messages:,}",
                    cell(cell_of_minute.mean, unit),
                    cell(cell_of_minute.high, unit),
                )
                if cell_of_minute
                else ("", "", "")
            )
            row.append(f'<td class="first">{values[0]}</td><td>{values[1]}</td><td>{values[2]}</td>')
        rows.append(f"<tr>{''.join(row)}</tr>")
    return f"<table><tr><th></th>{head}</tr><tr><th>device</th>{names}</tr>{''.join(rows)}</table>"


def _steps(report: Report) -> str:
    rows = [([name, f"{seconds:.1f} s", text], "") for name, seconds, text in report.lake.steps]
    return _table(("step", "took", ""), rows)


def _table(columns: Iterable[str], rows: Iterable[tuple[Sequence[str], str]]) -> str:
    """A table. The last column holds text."""
    names = list(columns)
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = []
    for cells, kind in rows:
        tds = "".join(f"<td>{escape(text)}</td>" for text in cells[:-1])
        body.append(f'<tr class="{kind}">{tds}<td class="words">{escape(cells[-1])}</td></tr>')
    return f"<table><tr>{head}</tr>{''.join(body)}</table>"
