"""Records and drained files made by hand, for tests of the bridge and of Spark."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from bridge.format.file_builder import DrainedFile, build
from bridge.format.file_name import FileName
from bridge.format.file_parser import parse, verify
from bridge.format.record_batch import RecordBatch, RecordRun
from bridge.format.sink_batch import SinkBatch
from bridge.format.write_intent import WriteIntent
from bridge.sinks.directory import DirectorySink
from bridge.sinks.registry import open_file_sink
from ringbuf import FLAG_RETAIN, FLAG_UNCHECKED, scan_records
from ringbuf import Batch as Columns
from ringbuf.record import RecordHeader, encode, payload_position

GOLDEN = Path(__file__).parents[1] / "golden" / "bridge"

EPOCH = 1_700_000_000
CREATED_NS = 1_700_000_123_456_789_000  # 2023-11-14
T0_NS = 1_700_000_000_000_000_000

Payload = Callable[[int], bytes]


def record(
    offset: int, payload: bytes, *, epoch: int = EPOCH, topic: str = "", flags: int | None = None
) -> bytes:
    """One record as a writer leaves it; qos and retain by its offset."""
    if flags is None:
        flags = offset % 3 | (FLAG_RETAIN if offset % 5 == 0 else 0)
    topic = topic or f"plant/{offset % 4}/temp"
    properties = b"\x03\x01\x01\x02"[
        : 4 if offset % 7 == 0 else 0
    ]  # a length of 3; payload format indicator...
    return encode(
        offset,
        payload,
        epoch=epoch,
        key=topic.encode(),
        timestamp_ns=T0_NS + offset * 1_000_000,
        flags=flags,
        properties=properties,
    )


def runs_of(records: Iterable[bytes]) -> tuple[RecordRun, ...]:
    """As a source hands them on: checked neighbours are one run."""
    runs: list[RecordRun] = []
    for unchecked, group in itertools.groupby(records, key=lambda data: bool(data[30] & FLAG_UNCHECKED)):
        if unchecked:
            runs += [RecordRun(memoryview(data), True) for data in group]
        else:
            runs.append(RecordRun(memoryview(b"".join(group)), False))
    return tuple(runs)


def batch_of(records: Iterable[bytes], *, epoch: int = EPOCH) -> RecordBatch:
    """The batch of these records, which are in order."""
    runs = runs_of(records)
    first, last = scan_records(runs[0].records, epoch), scan_records(runs[-1].records, epoch)
    stamps = first.first_timestamp_ns, last.last_timestamp_ns
    return RecordBatch(epoch, first.first_offset, last.last_offset, *stamps, runs)


def drained_file_of(
    first: int,
    last: int,
    *,
    drain_seq: int = 1,
    edge: str = "edge-1",
    stream: str = "default",
    partition: int = 0,
    epoch: int = EPOCH,
    payload: Payload = lambda offset: str(offset).encode(),
    lost: tuple[tuple[int, int], ...] = (),
    skipped: tuple[tuple[int, int], ...] = (),
    previous: tuple[int, int] | None = None,
    created_ns: int = CREATED_NS,
    earlier_lost: tuple[tuple[int, int, int], ...] = (),
    earlier_skipped: tuple[tuple[int, int, int], ...] = (),
) -> DrainedFile:
    """A file of the records first .. last."""
    batch = batch_of(
        (record(offset, payload(offset), epoch=epoch) for offset in range(first, last + 1)), epoch=epoch
    )
    place = (drain_seq, created_ns, stream, partition, epoch, 0, previous, first, last)
    intent = WriteIntent(*place, lost, skipped, earlier_lost=earlier_lost, earlier_skipped=earlier_skipped)
    return build(edge, intent, batch)


def records_of(file: DrainedFile) -> SinkBatch:
    """As the drain hands them to a record sink."""
    footer, offset, batches = file.footer, file.footer.first_offset, []
    for run in file.runs:
        batches.append(Columns.of(run.records, footer.epoch, offset, None))
        offset += len(batches[-1])
    place = (footer.edge, footer.stream, footer.partition, footer.epoch)
    columns = cast("tuple[Sequence[Any], ...]", tuple(batches))
    return SinkBatch(*place, footer.first_offset, footer.last_offset, file.length, columns)


def store(root: Path, *files: DrainedFile) -> list[Path]:
    """Put files into a directory; where each is."""
    sink = DirectorySink(root)
    for file in files:
        sink.put(file)
    sink.close()
    return [root / file.name for file in files]


def store_parquet(root: Path, *files: DrainedFile) -> None:
    """Put files into a directory as Parquet."""
    with closing(open_file_sink(root.as_uri(), {"format": "parquet"})) as sink:
        for file in files:
            sink.put(file)


def offsets_drained(root: Path) -> dict[tuple[str, int, int], list[int]]:
    """The outside ledger: each offset in each whole file below `root`, by (stream, partition, epoch).

    Knows the format only through its names and the record header, not through what it checks.
    """
    found: dict[tuple[str, int, int], list[int]] = {}
    for path in sorted(root.rglob("[0-9]*.brim"), key=lambda path: path.name):
        stream, _, rest = path.name[17:].rpartition("-p")
        partition, epoch = int(rest[:4]), int(rest[6:].partition("-")[0])
        data = path.read_bytes()
        footer = int.from_bytes(data[-16:-12], "little")
        at, end = 64, len(data) - 16 - footer
        while at < end:
            length = int.from_bytes(data[at : at + 4], "little")
            record_at, at = at + 32, at + 32 + length
            while record_at < at:
                offset = int.from_bytes(data[record_at + 8 : record_at + 16], "little")
                found.setdefault((stream, partition, epoch), []).append(offset)
                record_at += -(-int.from_bytes(data[record_at : record_at + 4], "little") // 32) * 32
    return found


def payloads_drained(root: Path) -> Iterator[bytes]:
    """The payload of each record in each whole file below `root`; the same way."""
    for path in sorted(root.rglob("[0-9]*.brim"), key=lambda path: path.name):
        data = path.read_bytes()
        footer = int.from_bytes(data[-16:-12], "little")
        at, end = 64, len(data) - 16 - footer
        while at < end:
            length = int.from_bytes(data[at : at + 4], "little")
            record_at, at = at + 32, at + 32 + length
            while record_at < at:
                record_bytes, key_bytes = RecordHeader.of(data, record_at)[0:6:5]
                yield data[record_at + payload_position(key_bytes, 0) : record_at + record_bytes]
                record_at += -(-record_bytes // 32) * 32


def golden_file() -> DrainedFile:
    """Five records, the third with a payload that no checksum of its own covers, behind a loss."""
    records = [record(100 + number, b"payload %d" % number) for number in range(5)]
    records[2] = record(102, b"in place" * 10, flags=FLAG_UNCHECKED)
    intent = WriteIntent(
        7, CREATED_NS, "default", 3, EPOCH, 90, (EPOCH - 1, 55), 100, 104, ((95, 99),), ((90, 94),)
    )
    return build("edge-1", intent, batch_of(records))


def footers(root: Path):
    """Of every file below `root`, each verified, in the order of draining."""
    files = sorted((root / "lake").rglob("[0-9]*.brim"), key=lambda path: path.name)
    for path in files:
        file = parse(path.read_bytes(), path.name)
        verify(file, path.name)
        assert FileName.parse(str(path)) == file.name
        yield file.footer
