"""Report: one page for the operator of the pipeline: completeness, volume, lag, devices.

    python -m bridge.spark.jobs.report /srv/lake --to report.html                      # names and footers
    python -m bridge.spark.jobs.report /srv/lake --table /srv/bronze --to report.html  # and devices, by Spark

One HTML file with its drawings in it: no script, no network. Sections: the verdict; offsets of each partition
as a strip (present, lost, skipped, missing); volume over time; lag, from taking a record to the arrival of
its file, by the time that the store reports; late data; and, from the table, the devices with most bytes.

Exit status: as of `brim spark gaps`, see bridge.spark.verdict.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from bridge.rangeset import count
from bridge.spark.completeness import Account, FileInfo, account
from bridge.spark.jobs import report_html
from bridge.spark.jobs.common import add_landing_arguments, add_spark_arguments, command, spark_of
from bridge.spark.jobs.gaps import file_infos
from bridge.spark.jobs.report_html import count_in_words
from bridge.spark.tables import read_table
from bridge.spark.verdict import LakeVerdict, sentence, verdict_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Device", "devices_of", "main", "report"]

_CLASSES = {
    LakeVerdict.COMPLETE: "good",
    LakeVerdict.SKIPPED: "skipped",
    LakeVerdict.LOST: "lost",
    LakeVerdict.MISSING: "bad",
}  # of CSS, in bridge.spark.jobs.report_html
BUCKETS = 120  # points of a line
EDGES_DRAWN, STRIPS_DRAWN, DEVICES_SHOWN = 8, 60, 25
LATE_S = ((1, "1 s"), (10, "10 s"), (60, "1 min"), (600, "10 min"), (3600, "1 h"), (86400, "1 day"))


@dataclass(frozen=True, slots=True)
class Device:
    """Records of one topic of an edge."""

    edge: str
    topic: str
    records: int
    payload_bytes: int
    last: datetime


def devices_of(spark: SparkSession, table: str) -> tuple[list[Device], int]:
    """The devices with most bytes, and the number of all devices."""
    from pyspark.sql import functions as f

    records = read_table(spark, table)
    length = f.octet_length("payload") if "payload" in records.columns else f.lit(0)
    summary = records.groupBy("edge", "topic").agg(
        f.count("*").alias("records"),
        f.sum(length).alias("payload_bytes"),
        f.max("timestamp").alias("last"),
    )
    summary = summary.persist()
    rows = summary.orderBy(f.desc("payload_bytes"), f.desc("records"), "edge", "topic").limit(DEVICES_SHOWN)
    devices = [Device(**row.asDict()) for row in rows.collect()]
    total = summary.count()
    summary.unpersist()
    return devices, total


def report(
    root: str,
    files: Sequence[FileInfo],
    checked: Account,
    devices: tuple[list[Device], int] | None = None,
) -> str:
    """The page."""
    known = [file for file in files if file.footer is not None]
    parts = [*_verdict(root, files, checked), *_coverage(checked), *_volume(known), *_lag(known)]
    if devices is not None:
        parts += _devices(*devices)
    return report_html.page("Brim: what has arrived", parts)


def _verdict(root: str, files: Sequence[FileInfo], checked: Account) -> Iterator[str]:
    verdict = verdict_of(checked)
    yield f'<p class="{_CLASSES[verdict]}">{escape(_completeness(checked, verdict))}</p>'
    yield report_html.table(
        ("", ""),
        (
            ("landing zone", root),
            ("as of", f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"),
            ("edges", len(checked.edges)),
            ("files", len(files)),
            ("bytes", sum(info.file.length for info in files)),
            ("records", sum(epoch.records for epoch in checked.epochs)),
            ("lost", sum(count(epoch.lost) for epoch in checked.epochs)),
            ("skipped on purpose", sum(count(epoch.skipped) for epoch in checked.epochs)),
            ("in more than one file, read once", sum(count(epoch.doubled) for epoch in checked.epochs)),
        ),
    )
    if checked.unreadable:
        shown = ((info.file.path, info.error) for info in checked.unreadable[:DEVICES_SHOWN])
        yield report_html.table(("file", "why it cannot be read"), shown)


def _completeness(checked: Account, verdict: LakeVerdict) -> str:
    if verdict is not LakeVerdict.MISSING:
        return sentence(checked, verdict)
    records, files, twice = (
        sum(count(epoch.missing) for epoch in checked.epochs),
        sum(count(edge.missing) for edge in checked.edges),
        sum(len(edge.doubled) for edge in checked.edges),
    )
    same = f", {twice:,} numbers of files are given twice" if twice else ""
    unreadable = f"{len(checked.unreadable):,} files unreadable"
    return f"{records:,} records and {files:,} files are missing, {unreadable}{same}."


def _coverage(checked: Account) -> Iterator[str]:
    """A strip for each partition and epoch; those with gaps first."""
    yield "<h2>Offsets</h2>"
    yield "<p class=note>green: there, orange: lost, grey: skipped on purpose, red: missing</p>"
    rows = []
    for epoch_account in sorted(checked.epochs, key=lambda row: (not row.missing, not row.lost, row.epoch)):
        if not epoch_account.expected:
            continue
        kinds = (
            (epoch_account.present, report_html.GOOD),
            (epoch_account.skipped, report_html.SKIPPED),
            (epoch_account.lost, report_html.LOST),
            (epoch_account.missing, report_html.BAD),
        )
        parts = [(first, last, colour) for ranges, colour in kinds for first, last in ranges]
        note = f"{count_in_words(epoch_account.records)} records"
        note += f", {count(epoch_account.missing):,} missing" if epoch_account.missing else ""
        note += f", {count(epoch_account.lost):,} lost" if epoch_account.lost else ""
        epoch = epoch_account.epoch
        label = f"{epoch.edge} {epoch.stream}/{epoch.partition} e{epoch.epoch}"
        rows.append((label, epoch_account.expected[0], parts, note))
    yield report_html.strip(rows[:STRIPS_DRAWN])
    if len(rows) > STRIPS_DRAWN:
        yield f"<p class=note>and {len(rows) - STRIPS_DRAWN:,} more without a gap or with one</p>"


def _volume(known: Sequence[FileInfo]) -> Iterator[str]:
    """Records of each edge by the time at which the broker took them."""
    yield "<h2>Volume</h2><p class=note>records by the time the broker took them</p>"
    times = [
        (file.footer.first_timestamp_ns / 1e9, file.footer.last_timestamp_ns / 1e9)
        for file in known
        if file.footer
    ]
    if not times:
        return
    low, high = min(first for first, _ in times), max(last for _, last in times)
    step = max((high - low) / BUCKETS, 1.0)
    by_edge: dict[str, list[float]] = defaultdict(lambda: [0.0] * (int((high - low) // step) + 1))
    for info, (first, last) in zip(known, times, strict=True):
        _spread(by_edge[info.file.name.edge], (first - low) / step, (last - low) / step, _records(info))
    totals = {edge: round(sum(buckets)) for edge, buckets in by_edge.items()}
    largest = sorted(totals, key=lambda edge: (-totals[edge], edge))
    series = [
        (edge, [(bucket * step, number / step) for bucket, number in enumerate(by_edge[edge])])
        for edge in largest[:EDGES_DRAWN]
    ]
    max_records = max(y for _, points in series for _, y in points)
    yield report_html.lines(series, (_moment(low), _moment(high)), f"{count_in_words(max_records)} records/s")
    rows = [(edge, totals[edge], f"{count_in_words(totals[edge])} records") for edge in largest]
    yield report_html.bars(rows[:DEVICES_SHOWN])


def _spread(buckets: list[float], first: float, last: float, records: int) -> None:
    """Add a file's records evenly to the buckets from `first` to `last`, which may be fractions."""
    if last <= first:  # of one moment, or the clock was set back
        buckets[int(first)] += records
        return
    for bucket in range(int(first), int(last) + 1):
        share = min(last, bucket + 1) - max(first, bucket)
        buckets[bucket] += records * share / (last - first)


def _lag(known: Sequence[FileInfo]) -> Iterator[str]:
    """Time from taking a record to the arrival of its file."""
    yield "<h2>Lag and late data</h2>"
    yield "<p class=note>from when a record was taken to when its file was there</p>"
    dated = [info for info in known if info.footer is not None and info.file.modified_s > 0]
    if not dated:
        yield "<p>the store does not say when files came</p>"
        return
    by_edge: dict[str, list[tuple[float, float]]] = defaultdict(list)
    late: dict[str, int] = defaultdict(int)
    for dated_file in dated:
        assert dated_file.footer is not None
        oldest, newest = (
            max(dated_file.file.modified_s - ns / 1e9, 0.0)
            for ns in (dated_file.footer.first_timestamp_ns, dated_file.footer.last_timestamp_ns)
        )
        by_edge[dated_file.file.name.edge].append((dated_file.file.modified_s, oldest))
        late[next((name for limit_s, name in LATE_S if newest < limit_s), "")] += _records(dated_file)
    worst = {edge: max(lag for _, lag in points) for edge, points in by_edge.items()}
    drawn = sorted(worst, key=lambda edge: (-worst[edge], edge))[:EDGES_DRAWN]
    times_s = [dated.file.modified_s for dated in dated]
    series = [(edge, _thinned(by_edge[edge])) for edge in drawn]
    yield report_html.lines(
        series,
        (_moment(min(times_s)), _moment(max(times_s))),
        report_html.seconds_in_words(max(worst.values())),
    )
    names = [*(name for _, name in LATE_S), ""]
    labels = [f"within {name}" if name else f"later than {LATE_S[-1][1]}" for name in names]
    rows = [
        (label, late[name], f"{count_in_words(late[name])} records")
        for label, name in zip(labels, names, strict=True)
    ]
    yield report_html.bars(rows, report_html.COLOURS[1])


def _devices(devices: Sequence[Device], total: int) -> Iterator[str]:
    yield f"<h2>Devices</h2><p class=note>{total:,} in the table; those with most bytes of payload</p>"
    rows = [
        (
            f"{device.edge} {device.topic}",
            device.payload_bytes,
            f"{count_in_words(device.records)} records, {count_in_words(device.payload_bytes)} bytes",
        )
        for device in devices
    ]
    yield report_html.bars(rows, report_html.COLOURS[2])
    yield report_html.table(
        ("device", "records", "payload bytes", "last seen"),
        (
            (
                f"{device.edge} {device.topic}",
                device.records,
                device.payload_bytes,
                f"{device.last:%Y-%m-%d %H:%M:%S}",
            )
            for device in devices
        ),
    )


def _records(info: FileInfo) -> int:
    return info.file.name.last_offset - info.file.name.first_offset + 1


def _thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The maximum in each of BUCKETS intervals."""
    low, high = min(points)[0], max(points)[0]
    step = max((high - low) / BUCKETS, 1e-9)
    highest: dict[int, tuple[float, float]] = {}
    for x, y in points:
        bucket = int((x - low) / step)
        if bucket not in highest or highest[bucket][1] < y:
            highest[bucket] = (x, y)
    return list(highest.values())


def _moment(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="brim spark report", description="One page: is it all there, how much, how late."
    )
    add_landing_arguments(parser, table="bronze or silver table, for statistics of devices")
    parser.add_argument(
        "--to", type=Path, default=Path("report.html"), help="file to write (default: %(default)s)"
    )
    add_spark_arguments(parser)
    return parser


def job(arguments: argparse.Namespace) -> int:
    """Run the job, and return its exit status."""
    files = file_infos(arguments.root, arguments.edge)
    checked = account(files, retained=arguments.retained)
    devices = None
    if arguments.table:
        spark = spark_of(arguments, "brim report")
        devices = devices_of(spark, arguments.table)
    verdict = verdict_of(checked)
    arguments.to.write_text(report(arguments.root, files, checked, devices), encoding="utf-8")
    if arguments.json:
        print(json.dumps({"page": str(arguments.to), "verdict": verdict.value, "files": len(files)}))
    else:
        print(arguments.to)
        print(sentence(checked, verdict))
    return verdict.status


main = command(arguments, job)

if __name__ == "__main__":
    sys.exit(main(None))
