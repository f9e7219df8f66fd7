"""Lake of the demo: from drained files to a table by device and minute.

Owns the class Lake (the numbers of plots, page and ledger), and a way to make one without Spark: every
drained file is verified, every record is decoded and counted. lake_spark.py makes one with Spark.

As a process, `python -m examples.demo.lake --drained DIR --out DIR [--no-spark]`, it reports each step as a
JSON line, and writes DIR/lake.json, DIR/drained.tally and DIR/table.tally.
"""

from __future__ import annotations

import argparse
import json
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from bridge.format import drained_file, file_parser
from bridge.format.file_name import SUFFIX
from examples.demo.device import Payload
from examples.demo.tally import Tally
from ringbuf.record import decode, span

MINUTE_S = 60
_LENGTH = struct.Struct("<I")


class Aggregate(NamedTuple):
    """The messages of one device in one window.  `start_s` is seconds since 1970."""

    device: str
    start_s: int
    messages: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Arrived:
    """Content of the drained files, by their footers and by their records."""

    files: int
    bytes: int
    records: int  # different ones
    twice: int  # in more than one file
    gaps: int  # offsets and drain numbers in no file, and offsets that were declared lost
    tally: Tally = field(repr=False, default_factory=Tally)


@dataclass(frozen=True)
class Lake:
    """The table, and the steps that made it."""

    made_by: str
    seconds: float
    records: int  # rows of the table with different identities
    twice: int
    gaps: int
    by_minute: list[Aggregate]
    by_second: list[Aggregate]
    steps: list[tuple[str, float, str]]  # name, seconds, output
    tally: Tally = field(repr=False, default_factory=Tally)

    def save(self, directory: Path) -> None:
        """Write lake.json and table.tally."""
        self.tally.save(directory / "table.tally")
        values = {key: value for key, value in asdict(self).items() if key != "tally"}
        (directory / "lake.json").write_text(json.dumps(values))

    @classmethod
    def load(cls, directory: Path) -> Lake:
        """Read the files that save() wrote."""
        values = json.loads((directory / "lake.json").read_text())
        for key in ("by_minute", "by_second"):
            values[key] = [Aggregate(*fields) for fields in values[key]]
        values["steps"] = [tuple(step) for step in values["steps"]]
        return cls(**values, tally=Tally.load(directory / "table.tally"))


class Buckets:
    """Count, mean, minimum and maximum by device and window."""

    def __init__(self, seconds: int) -> None:
        self._nanoseconds = seconds * 1_000_000_000
        self._found: dict[tuple[str, int], list[float]] = {}

    def add(self, device: str, timestamp_ns: int, value: float) -> None:
        """Add one message."""
        bucket = self._found.setdefault((device, timestamp_ns // self._nanoseconds), [0, 0.0, value, value])
        bucket[0] += 1
        bucket[1] += value
        bucket[2] = min(bucket[2], value)
        bucket[3] = max(bucket[3], value)

    def aggregates(self) -> list[Aggregate]:
        """Aggregates by device, then by time."""
        width = self._nanoseconds // 1_000_000_000
        return [
            Aggregate(device, int(start * width), int(count), total / count, low, high)
            for (device, start), (count, total, low, high) in sorted(self._found.items())
        ]


def read_drained(root: Path) -> tuple[Arrived, list[Aggregate], list[Aggregate]]:
    """Read the drained files below `root`. Returns their account, and their messages by minute and by second.

    Every checksum of every file is checked. Raises bridge.errors.DrainedFileError.
    """
    footers, length, tally = [], 0, Tally()
    minutes, seconds = Buckets(MINUTE_S), Buckets(1)
    read = msgspec.json.Decoder(Payload).decode
    for path in sorted(root.rglob(f"*{SUFFIX}")):
        data = path.read_bytes()
        file = file_parser.parse(data, path.name)
        file_parser.verify(file, path.name)
        footers.append(file.footer)
        length += len(data)
        for key, timestamp_ns, content in _records(file):
            payload, device = read(content), key.decode()
            tally.add(device, payload.n)
            minutes.add(device, timestamp_ns, payload.value)
            seconds.add(device, timestamp_ns, payload.value)
    records, twice, gaps = account(footers)
    arrived = Arrived(len(footers), length, records, twice, gaps, tally)
    return arrived, minutes.aggregates(), seconds.aggregates()


def _records(file: file_parser.ParsedFile) -> Iterator[tuple[bytes, int, bytes]]:
    """Key, timestamp and payload of each record."""
    for extent in file.extents:
        at = 0
        while at < len(extent.body):
            end = at + span(_LENGTH.unpack_from(extent.body, at)[0])
            record, _ = decode(bytes(extent.body[at:end]), file.footer.ring_epoch)
            yield record.key, record.timestamp_ns, record.payload
            at = end


def account(footers: Sequence[drained_file.FileFooter]) -> tuple[int, int, int]:
    """Numbers of different records, of records in more than one file, and of records in no file."""
    numbers = {footer.drain_seq for footer in footers}
    missing = max(numbers, default=0) - len(numbers)  # numbers begin at 1
    records = twice = 0
    expected: dict[tuple[str, str, int, int], int] = {}
    for footer in sorted(
        footers,
        key=lambda footer: (footer.edge, footer.stream, footer.partition, footer.epoch, footer.first_offset),
    ):
        key = (footer.edge, footer.stream, footer.partition, footer.epoch)
        next_offset = expected.get(key, footer.epoch_first_offset)
        missing += max(footer.first_offset - next_offset, 0)
        again = min(max(next_offset - footer.first_offset, 0), footer.count)
        records, twice = records + footer.count - again, twice + again
        expected[key] = max(next_offset, footer.last_offset + 1)
    return records, twice, missing


def report_step(step: str, **details: object) -> None:
    """Report one step to the demo's screen."""
    print(json.dumps({"step": step, **details}), flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="from drained files to a table")
    parser.add_argument("--drained", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args()
    begin = time.monotonic()
    report_step("reading every drained file")
    arrived, minutes, seconds = read_drained(options.drained)
    arrived.tally.save(options.out / "drained.tally")
    values = {key: value for key, value in asdict(arrived).items() if key != "tally"}
    (options.out / "drained.json").write_text(json.dumps(values))
    if options.no_spark:
        took = time.monotonic() - begin
        steps = [("decode", took, f"{arrived.files} files, each verified and decoded by ringbuf")]
        counts = (arrived.records, arrived.twice, arrived.gaps)
        lake = Lake("ringbuf, without Spark", took, *counts, minutes, seconds, steps, arrived.tally)
    else:
        from examples.demo.lake_spark import by_spark

        lake = by_spark(options.drained, options.out)
    lake.save(options.out)
    report_step("done", records=lake.records)


if __name__ == "__main__":
    main()
