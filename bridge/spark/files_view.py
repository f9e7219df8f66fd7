"""View of files: format("brim") with view=files returns one row per drained file and reads no record.

    edge, stream, partition, epoch, drain_seq, first_offset, last_offset, length, path: by name. The rows of
    files that a merged file replaces have its path, and a share of its length
    first_timestamp, last_timestamp, epoch_first_offset, previous_epoch, previous_next_offset, lost, skipped:
    by footer; null if that cannot be read, and then `error` has the reason
    earlier_lost, earlier_skipped: by footer, as lost and skipped, of epochs of this partition that had ended
    before a file of theirs could declare them

lost and skipped are arrays of struct<first: long, last: long>, both ends included. Those of earlier epochs
have struct<epoch: long, first: long, last: long>. Columns are only added, at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from pyspark.sql.datasource import DataSourceReader, InputPartition

from bridge.errors import DrainedFileError
from bridge.spark.landing_zone import Landing, StoredFile, matches
from bridge.spark.options import SourceOptions
from bridge.spark.unknown_names import refuse_unknown

FILES_A_TASK = 1000
RANGES = "array<struct<first: long, last: long>>"
EARLIER = "array<struct<epoch: long, first: long, last: long>>"
DDL = (
    "edge string, stream string, partition int, epoch long, drain_seq long, first_offset long, "
    "last_offset long, length long, path string, first_timestamp timestamp, last_timestamp timestamp, "
    "epoch_first_offset long, "
    f"previous_epoch long, previous_next_offset long, lost {RANGES}, skipped {RANGES}, error string, "
    f"earlier_lost {EARLIER}, earlier_skipped {EARLIER}"
)

Row = tuple[object, ...]


class _Some(InputPartition):
    def __init__(self, files: list[StoredFile]) -> None:
        super().__init__(None)
        self.files = files


class FilesReader(DataSourceReader):
    """Reader with one row per file."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        """Tasks of some files each."""
        files = Landing(self._options.path).files(self._options.edges)
        refuse_unknown(self._options, files)
        files = [file for file in files if matches(file.name.stream, self._options.streams)]
        return [_Some(files[at : at + FILES_A_TASK]) for at in range(0, len(files), FILES_A_TASK)]

    def read(self, partition: InputPartition) -> Iterator[Row]:
        """Rows of one task; runs on an executor."""
        landing = Landing(self._options.path)
        for file in partition.files if isinstance(partition, _Some) else ():
            yield _row(landing, file)


def _row(landing: Landing, file: StoredFile) -> Row:
    name = file.name
    row: Row = (
        name.edge,
        name.stream,
        name.partition,
        name.epoch,
        name.drain_seq,
        name.first_offset,
        name.last_offset,
        file.length,
        file.path,
    )
    try:
        footer = landing.footer_of(file)
    except (DrainedFileError, OSError) as error:
        return (*row, *[None] * 7, str(error), None, None)
    stamps = (
        datetime.fromtimestamp(ns / 1e9, UTC) for ns in (footer.first_timestamp_ns, footer.last_timestamp_ns)
    )
    ranges = (
        [{"first": first, "last": last} for first, last in ranges] for ranges in (footer.lost, footer.skipped)
    )
    earlier = (
        [{"epoch": epoch, "first": first, "last": last} for epoch, first, last in ranges]
        for ranges in (footer.earlier_lost, footer.earlier_skipped)
    )
    previous = footer.previous or (None, None)
    return (*row, *stamps, footer.epoch_first_offset, *previous, *ranges, None, *earlier)
