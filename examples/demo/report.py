"""Report of a run: its facts at the end, printed as the table by device and minute, and the ledger.

Owns the text form, for terminals; page.py makes the form for a browser of the same facts.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from examples.demo.cast import PUBLISHERS
from examples.demo.journal import JournalFile
from examples.demo.lake import Aggregate, Arrived, Lake
from examples.demo.ledger import Ledger, Row, Stage, build
from examples.demo.plots import Outage, Sample
from examples.demo.scene import Scene
from examples.demo.tally import Tally

LEDGER_COLUMNS = ("", "messages", "records", "stored again", "lost", "duplicated", "gaps", "")
MINUTES_MAX = 4  # columns of the table; a longer run shows the last ones


@dataclass(frozen=True)
class Report:
    """Facts of a completed run."""

    ledger: Ledger
    lake: Lake
    arrived: Arrived
    samples: Sequence[Sample]
    outages: Sequence[Outage]
    events: Sequence[tuple[float, str]]  # seconds since 1970, event
    machine: str
    began_s: float
    ended_s: float


def gather(
    scene: Scene,
    samples: Sequence[Sample],
    outages: Sequence[Outage],
    events: Sequence[tuple[float, str]],
    began_s: float,
    ended_s: float,
) -> Report:
    """Read the files of all processes, and make the ledger from them."""
    journals = [JournalFile.load(scene.counts / f"{name}.json") for name in PUBLISHERS]
    lake = Lake.load(scene.table)
    values = json.loads((scene.table / "drained.json").read_text())
    arrived = Arrived(**values, tally=Tally.load(scene.table / "drained.tally"))
    stages = [
        _received("shared memory", scene.counts / "shm.json"),
        _received("ZeroMQ", scene.counts / "zmq.json"),
        Stage(
            "drained", arrived.records, arrived.twice, arrived.gaps, arrived.tally, f"{arrived.files} files"
        ),
        Stage("in the table", lake.records, lake.twice, lake.gaps, lake.tally, lake.made_by),
    ]
    versions = f"Linux {platform.release()}, Python {platform.python_version()}"
    machine = f"{scene.machine}, {os.cpu_count()} CPUs, {versions}"
    ledger = build(journals, stages)
    return Report(ledger, lake, arrived, samples, outages, events, machine, began_s, ended_s)


def _received(name: str, path: Path) -> Stage:
    values = json.loads(path.read_text())
    half_ms = values["age_us"] / 1000  # from the device to the subscriber
    note = f"half within {half_ms:.1f} ms" if half_ms < 1_000 else f"half within {half_ms / 1000:.1f} s"
    if values["fetched"]:
        note += f"; {values['fetched']:,} fetched from the ring"
    tally = Tally.load(path.with_suffix(".tally"))
    return Stage(name, values["records"], values["twice"], values["gaps"], tally, note)


def minute_of(start_s: int) -> str:
    """A minute as on a clock."""
    return time.strftime("%H:%M", time.localtime(start_s))


def unit_of(device: str) -> str:
    """Unit of a device's values."""
    kind = device.split("/")[2] if device.count("/") >= 2 else ""
    units = {
        "cpu": "%",
        "memory": "%",
        "load": "",
        "temperature": "°C",
        "disk": "B/s",
        "net": "B/s",
        "process": "%",
    }
    return units.get(kind, "")


def cell(value: float, unit: str) -> str:
    """A value as text."""
    if unit == "B/s":
        for size, name in ((1e6, "MB/s"), (1e3, "kB/s")):
            if value >= size:
                return f"{value / size:,.1f} {name}"
        return f"{value:,.0f} B/s"
    digits = 1 if unit else 2
    return f"{value:,.{digits}f}{' ' + unit if unit else ''}"


def print_table(console: Console, lake: Lake) -> None:
    """Print devices as rows and minutes as columns: number of messages, mean, maximum."""
    minutes = sorted({cell.start_s for cell in lake.by_minute})[-MINUTES_MAX:]
    by_device: dict[str, dict[int, Aggregate]] = {}
    for total in lake.by_minute:
        by_device.setdefault(total.device, {})[total.start_s] = total
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1), header_style="bold")
    table.add_column("device")
    for minute in minutes:
        table.add_column(f"{minute_of(minute)}\nmessages", justify="right")
        table.add_column("\nmean", justify="right")
        table.add_column("\nmost", justify="right")
    for device in sorted(by_device):
        unit, cells = unit_of(device), []
        for minute in minutes:
            total_of_minute = by_device[device].get(minute)
            cells += (
                [
                    f"{total_of_minute.messages:,}",
                    cell(total_of_minute.mean, unit),
                    cell(total_of_minute.high, unit),
                ]
                if total_of_minute
                else ["", "", ""]
            )
        table.add_row(device, *cells)
    console.print(f"By device and minute, from the table made by {lake.made_by}", style="bold")
    console.print(table)


def ledger_cells(row: Row) -> list[str]:
    """A line of the ledger, in the order of LEDGER_COLUMNS."""
    numbers = (row.messages, row.records, row.again, row.lost, row.twice, row.gaps)
    return [row.name, *("" if number is None else f"{number:,}" for number in numbers), row.note]


def print_ledger(console: Console, ledger: Ledger) -> None:
    """Print the ledger and the verdict."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for number, name in enumerate(LEDGER_COLUMNS):
        words = number in {0, len(LEDGER_COLUMNS) - 1}
        table.add_column(name, justify="left" if words else "right", no_wrap=number == 0)
    for row in ledger.rows:
        bad = bool(row.lost or row.twice or row.gaps)
        table.add_row(*ledger_cells(row), style="bold red" if bad else "")
    console.print()
    console.print("Ledger\n", style="bold")
    console.print(table)
    console.print()
    if ledger.matches:
        text = f"The ledger matches: {ledger.lost} lost, {ledger.twice} duplicated."
        console.print(Text(text, "bold green"))
    else:
        console.print(Text("The ledger does NOT match:", "bold red"))
        for problem in ledger.problems:
            console.print(Text(f"  {problem}", "red"))
