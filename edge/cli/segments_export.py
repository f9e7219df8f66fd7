"""Export of records of a log: `brim segments export`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bridge.errors import BridgeError
from bridge.format.file_builder import build
from bridge.format.installation import Identity, identity_of_log
from bridge.format.lake_epoch import EPOCH_BITS
from bridge.format.record_batch import RecordBatch
from bridge.format.write_intent import WriteIntent
from bridge.sinks.interface import FileSink
from bridge.sinks.registry import open_file_sink
from bridge.source.partition_source import RecordBuffer, RingName
from edge.cli.config_options import configured
from edge.cli.humanize import bytes_in_words, counted
from edge.cli.log_options import add_part_arguments, chosen_rings, status_of
from edge.cli.message_format import line_form
from edge.cli.progress import progress
from edge.cli.replay_targets import Lines
from edge.errors import EdgeError
from edge.log.log_place import place_of
from edge.log.offline_reader import LogView, ScanPosition
from ringbuf import Range

FILE_BYTES = 8 << 20  # of one drained file


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `brim segments export`."""
    parser.add_argument(
        "--to",
        required=True,
        metavar="PLACE",
        help="file to write, - for standard output; with --drained a directory or URL",
    )
    parser.add_argument("--drained", action="store_true", help="write drained files, like a bridge")
    parser.add_argument(
        "--edge",
        metavar="ID",
        help="with --drained: edge id of the records (default: the configured edge_id)",
    )
    add_part_arguments(parser)


def export(arguments: argparse.Namespace, directory: Path) -> int:
    """Export the records. Returns 1 if records were missing, otherwise 0."""
    first, until = place_of(arguments.first, "--from"), place_of(arguments.until, "--until")
    view = LogView(directory)
    rings = chosen_rings(arguments, view.rings())
    cursor = ScanPosition(view, rings, first, until, arguments.topic)
    if arguments.drained:
        summary = _drained(arguments, cursor, rings, identity_of_log(directory) or Identity(""))
    else:
        summary = _lines(arguments, cursor)
    print(summary, file=sys.stderr)
    return status_of(view, cursor, "segments")


# ---- lines of JSON ----


def _lines(arguments: argparse.Namespace, cursor: ScanPosition) -> str:
    if arguments.to == "-":
        return asyncio.run(_written(cursor, sys.stdout.buffer))
    path = Path(arguments.to)
    try:
        with path.open("xb") as file, _whole(path):
            summary = asyncio.run(_written(cursor, file))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError as error:
        raise EdgeError(f"{path} is there already", hint="name another file, or remove it") from error
    except OSError as error:
        error.filename = str(path)  # a write has no name
        raise
    return summary


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Remove a file that is incomplete: it would look like a complete one."""
    try:
        yield
    except BaseException:
        path.unlink()
        raise


async def _written(cursor: ScanPosition, file: IO[bytes]) -> str:
    lines = Lines(line_form(as_json=True, verbose=False), file)
    count = reported = 0
    with progress("exporting", cursor.ahead(), unit="records") as advance:
        for record in cursor.records():
            await lines.send(record)
            count += 1
            if count % 1024 == 0:
                advance(cursor.passed - reported)
                reported = cursor.passed
    await lines.flush()
    return f"{counted(count, 'record')} exported"


# ---- drained files ----


def _drained(
    arguments: argparse.Namespace, cursor: ScanPosition, rings: Sequence[str], identity: Identity
) -> str:
    if arguments.topic:
        raise EdgeError(
            "--topic: a drained file holds all topics of its partition",
            hint="leave out --drained, or --topic",
        )
    edge = arguments.edge or configured(arguments).edge_id
    to: str = arguments.to
    sink = open_file_sink(to if "://" in to else Path(to).absolute().as_uri(), {})
    try:
        sink.begin(edge)
        if next(iter(sink.names(f"edge={edge}/")), None) is not None:
            hint = "name an empty directory: numbers of drained files are given once"
            raise EdgeError(f"{to} has drained files of {edge} already", hint=hint)
        return _put_all(edge, sink, cursor, rings, identity)
    except BridgeError as error:
        raise EdgeError(str(error), hint=error.hint) from error
    finally:
        sink.close()


def _put_all(
    edge: str, sink: FileSink, cursor: ScanPosition, rings: Sequence[str], identity: Identity
) -> str:
    """Write drained files with the epochs that a bridge of this installation uses."""
    buffer, created_ns = RecordBuffer(), time.time_ns()
    files = size = records = 0
    with progress("exporting", cursor.ahead(), unit="records") as advance:
        for ring in rings:
            name = RingName.parse(ring)
            if name is None:
                continue
            behind = (-1, 0, 0)  # epoch, its first offset here, and the next offset
            for runs in _pieces(cursor.runs(ring)):
                head, last = runs[0], runs[-1]
                epoch = identity.lake_epoch(head.epoch)
                epoch_first = behind[1] if behind[0] == epoch else head.offset
                lost = (
                    ((behind[2], head.offset - 1),) if behind[0] == epoch and behind[2] < head.offset else ()
                )
                previous = (behind[0], behind[2]) if behind[0] not in {-1, epoch} else None
                end = last.offset + last.count
                files += 1
                intent = WriteIntent(
                    files, created_ns, name.stream, name.partition, epoch, epoch_first, previous,
                    head.offset, end - 1, lost, (), installation=identity.id if epoch >> EPOCH_BITS else "",
                )  # fmt: skip
                times = head.first_timestamp_ns, last.last_timestamp_ns
                file = build(
                    edge, intent, RecordBatch(epoch, head.offset, end - 1, *times, buffer.take(runs))
                )
                sink.put(file)
                behind = (epoch, epoch_first, end)
                size, records = size + file.length, records + end - head.offset
                advance(end - head.offset)
    written = f"{counted(files, 'drained file')} of edge {edge}, {bytes_in_words(size)}"
    return f"{counted(records, 'record')} exported as {written}"


def _pieces(runs: Iterator[Range]) -> Iterator[list[Range]]:
    """Groups of contiguous runs, each for one file."""
    piece: list[Range] = []
    size = 0
    for run in runs:
        follows = piece and run.epoch == piece[-1].epoch and run.offset == piece[-1].offset + piece[-1].count
        if piece and (not follows or size + len(run.view) > FILE_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(run)
        size += len(run.view)
    if piece:
        yield piece
