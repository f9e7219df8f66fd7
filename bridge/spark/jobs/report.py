"""Report: one page for the operator of the pipeline: checks, offsets, volume, lag, devices.

    python -m bridge.spark.jobs.report /srv/lake --to report.html                      # names and footers
    python -m bridge.spark.jobs.report /srv/lake --table /srv/bronze --to report.html  # and devices, by Spark
    python -m bridge.spark.jobs.report /srv/lake --lag-max 60 --silent-max 3600        # limits, in seconds

One HTML file with its charts and scripts in it, about 5 MB, that needs no network. Sections: the verdict;
checks of each edge and stream; file numbers of each edge; offsets of each partition as a strip; each range
that is missing, lost or skipped, with links to the files next to it; volume over time, in records and bytes;
lag, from taking a record to the arrival of its file, by the time that the store reports; late data; and,
from the table, the devices with most bytes.

Exit status: as of `brim spark gaps`, see bridge.spark.verdict; 6 if that is complete and a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from bridge.errors import SourceOptionError
from bridge.rangeset import count
from bridge.spark.completeness import Account, FileInfo, account
from bridge.spark.jobs.common import add_landing_arguments, add_spark_arguments, command, spark_of
from bridge.spark.jobs.gaps import file_infos
from bridge.spark.report.absent_ranges import absent_ranges, link_to, number_of_ranges
from bridge.spark.report.device_rows import Device, devices_of
from bridge.spark.report.stream_checks import StreamLimits, StreamRow, edge_rows, lag_of, stream_rows
from bridge.spark.verdict import LakeVerdict, sentence, verdict_of
from ringbuf.extras import install_extra

ROWS_MAX, RANGES_MAX, LATEST = 200, 200, 10
ABOVE_LIMIT = 6  # exit status


def report(
    root: str,
    files: Sequence[FileInfo],
    checked: Account,
    streams: Sequence[StreamRow],
    *,
    limits: StreamLimits,
    devices: tuple[list[Device], int] | None = None,
    now_s: float,
) -> str:
    """The page. Raises SourceOptionError: plotly or Jinja2 is not installed."""
    try:
        from bridge.spark.report import charts, offset_strips, page
    except ModuleNotFoundError as error:
        text = f"the report needs {error.name}, which is not installed"
        raise SourceOptionError(text, hint=install_extra("spark")) from error
    strips, left_out = offset_strips.offset_strips(checked.epochs)
    ranges = absent_ranges(files, checked, RANGES_MAX)
    verdict = verdict_of(checked)
    context = {
        "root": root,
        "now": now_s,
        "version": version("brim"),
        "verdict": verdict,
        "sentence": _sentence(checked, verdict),
        "totals": _totals(files, checked),
        "streams": streams,
        "over": _above(streams),
        "edges": edge_rows(files, checked),
        "unreadable": checked.unreadable,
        "rows_max": ROWS_MAX,
        "ranges": ranges,
        "ranges_left_out": number_of_ranges(checked) - len(ranges),
        "strips_left_out": left_out,
        "latest": _latest(files),
        "devices": devices,
        "link": lambda info: link_to(root, info),
    }
    drawn = {
        "offsets": strips,
        "volume": charts.volume_bars(files),
        "lag": charts.lag_points(files, limits.lag_s),
        "late": charts.late_bars(files),
        "devices": charts.device_bars(devices[0]) if devices else None,
    }
    return page.render(context, drawn)


def _totals(files: Sequence[FileInfo], checked: Account) -> list[tuple[str, int]]:
    totals = checked.totals
    return [
        ("records", totals.records),
        ("missing", totals.missing),
        ("lost", totals.lost),
        ("skipped", totals.skipped),
        ("in two files, read once", totals.doubled),
        ("edges", len(checked.edges)),
        ("files", len(files)),
        ("bytes", sum(info.file.length for info in files)),
    ]


def _above(streams: Sequence[StreamRow]) -> int:
    return sum(row.is_over_a_limit for row in streams)


def _latest(files: Sequence[FileInfo]) -> list[tuple[FileInfo, float]]:
    """The files with the largest lag."""
    lags = [(info, lag) for info in files if (lag := lag_of(info)) is not None]
    return sorted(lags, key=lambda pair: -pair[1])[:LATEST]


def _sentence(checked: Account, verdict: LakeVerdict) -> str:
    if verdict is not LakeVerdict.MISSING:
        return sentence(checked, verdict)
    totals = checked.totals
    faults = (
        (totals.missing, "records missing"),
        (sum(count(edge.missing) for edge in checked.edges), "files missing"),
        (len(checked.unreadable), "files unreadable"),
        (sum(len(edge.doubled) for edge in checked.edges), "numbers of files used twice"),
        (totals.lost, "records lost"),
        (totals.skipped, "records skipped"),
    )
    return "MISSING: " + ", ".join(f"{number:,} {text}" for number, text in faults if number)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark report", description="One page: completeness, volume and lateness of the records."
    )
    add_landing_arguments(parser, table="bronze or silver table, for statistics of devices")
    parser.add_argument(
        "--to", type=Path, default=Path("report.html"), help="file to write (default: %(default)s)"
    )
    limits = (
        ("lag", "longest time from taking a record to the arrival of its file"),
        ("silent", "longest time since the newest record of an edge and stream"),
        ("clock", "longest time that a record may be newer than its file"),
    )
    for name, text in limits:
        parser.add_argument(
            f"--{name}-max", type=float, metavar="SECONDS", help=f"limit: {text} (default: no limit)"
        )
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    files = file_infos(arguments.root, arguments.edge)
    checked = account(files, retained=arguments.retained)
    devices = None
    if arguments.table:
        devices = devices_of(spark_of(arguments, "brim report"), arguments.table)
    limits = StreamLimits(arguments.lag_max, arguments.silent_max, arguments.clock_max)
    now_s = time.time()
    streams = stream_rows(files, checked, limits, now_s)
    page = report(arguments.root, files, checked, streams, limits=limits, devices=devices, now_s=now_s)
    arguments.to.write_text(page, encoding="utf-8")
    verdict, above = verdict_of(checked), _above(streams)
    if arguments.json:
        result = {
            "page": str(arguments.to),
            "verdict": verdict.value,
            "files": len(files),
            "above_limits": above,
        }
        print(json.dumps(result))
    else:
        print(arguments.to)
        print(sentence(checked, verdict))
        if above:
            print(f"{above} of {len(streams)} streams are above a limit")
    return ABOVE_LIMIT if above and verdict is LakeVerdict.COMPLETE else verdict.status


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
