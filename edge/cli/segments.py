"""List, verify, repair, export and compress segments of a log.

    brim segments ls                                        contents of each segment
    brim segments verify                                    read every byte; exit status 1: damage
    brim segments repair                                    recover like a start, and rebuild indexes
    brim segments export --to FILE --topic 'plant/#'        records as lines of JSON; --to - prints them
    brim segments export --drained --to DIR                 records as drained files, which Spark reads
    brim segments archive                                   compress sealed segments to a tenth

ls, verify and export may run while a broker writes the log. repair and archive refuse a log in use: a broker
repairs at its start, and compresses segments itself with `log.archive`.

Exit status: 0 done, 1 something is damaged or was left out, 2 not done.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from edge.cli.exit_status import Exit
from edge.cli.humanize import bytes_in_words, count_in_words, counted
from edge.cli.listing import Row, table, text_column
from edge.cli.log_options import add_log_arguments, log_directory
from edge.cli.progress import progress
from edge.cli.segments_export import add_export_arguments, export
from edge.cli.segments_repair import archive, repair
from edge.cli.segments_verify import CommandResult, verify
from edge.log.offline_reader import LogView
from edge.terminal_escape import escaped
from persistence import LogReader
from persistence.segment.segment_info import SegmentInfo

RINGS_SHOWN = 3  # of one segment
_COLUMNS = tuple(
    text_column(title, title)
    for title in ("log", "segment", "state", "size", "records", "from", "to", "rings")
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim segments`."""
    verbs = parser.add_subparsers(
        dest="what", required=True, metavar="ls | verify | repair | export | archive"
    )
    for name, about in (
        ("ls", "list segments and their contents"),
        ("verify", "read every byte and report damage"),
        ("repair", "cut half-written ends, keep copies of damaged parts, rebuild indexes"),
        ("archive", "compress sealed segments"),
    ):
        verb = verbs.add_parser(name, help=about)
        verb.add_argument("--json", action="store_true", help="print one JSON object")
        add_log_arguments(verb)
    exporting = verbs.add_parser("export", help="copy records to a file or directory")
    add_export_arguments(exporting)
    add_log_arguments(exporting)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb and return its exit status."""
    directory = log_directory(arguments)
    if arguments.what == "export":
        return export(arguments, directory)
    result = {"ls": _list, "verify": verify, "repair": repair, "archive": archive}[arguments.what](
        LogView(directory)
    )
    if arguments.json:
        print(json.dumps(result.report, indent=2))
    else:
        for line in result.lines:
            print(escaped(line))
    return 0 if result.well else Exit.INCOMPLETE


# ---- ls ----


def _list(view: LogView) -> CommandResult:
    rows: list[dict[str, Any]] = []
    shown: list[Row] = []
    total = damaged = 0
    for directory, reader in view.readers.items():
        for info in _each(reader, f"reading {view.short(directory)}"):
            total, damaged = total + info.file_bytes, damaged + len(info.damage)
            rows.append({"log": str(directory), **asdict(info), "records": info.records})
            shown.append(_row(view, directory, info))
    warnings = [f"WARNING  {row['base']}: {row['reason']}" for row in rows if row["state"] == "lost"]
    if damaged:
        warnings.append(f"WARNING  {damaged} damaged places; see `brim segments verify`")
    summary = f"{counted(len(rows), 'segment')}, {bytes_in_words(total)} on the disk"
    return CommandResult({"segments": rows}, [*table(shown, _COLUMNS), summary, *warnings], well=not warnings)


def _each(reader: LogReader, title: str) -> Iterator[SegmentInfo]:
    """Facts of all segments, archived ones first."""
    bases = set(reader.bases())
    yield from (segment for segment in reader.archive.segments() if segment.base not in bases)
    with progress(title, len(bases), unit="segments") as advance:
        for base in sorted(bases):
            try:
                info = reader.segment(base)
            except OSError as error:
                why = f"cannot be read: {error.strerror}; see the kernel's messages (dmesg)"
                info = SegmentInfo(base, 0, 0, "lost", 0, 0, (), (), reason=why)
            if info is not None:  # otherwise retention has removed it meanwhile
                yield info
            advance(1)


def _row(view: LogView, directory: Path, info: SegmentInfo) -> Row:
    names = sorted({ring.name or "?" for ring in info.rings})
    more = f" and {len(names) - RINGS_SHOWN} more" if len(names) > RINGS_SHOWN else ""
    damage = f", {len(info.damage)} damaged" if info.damage else ""
    return {
        "log": view.short(directory),
        "segment": info.base,
        "state": info.state + damage,
        "size": bytes_in_words(info.bytes if info.state != "archived" else info.file_bytes),
        "records": count_in_words(info.records),
        "from": _when(info.first_timestamp_ns),
        "to": _when(info.last_timestamp_ns),
        "rings": ", ".join(names[:RINGS_SHOWN]) + more,
    }


def _when(timestamp_ns: int) -> str:
    if not timestamp_ns:
        return "-"
    return datetime.fromtimestamp(timestamp_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
