"""Merged Parquet file: Parquet files of a bridge in one file, for the merger (bridge/drain/merger.py).

Columns, encodings and settings are those of the files that it replaces (parquet.py), with row groups of about
GROUP_BYTES. The footer in its metadata is that of a merged file (bridge/format/merged_file.py); body_crc32 is
the checksum of theirs.

Never decides which files are merged. pyarrow is imported by the first file.

Invariant: rows and their order are those of the files that it replaces. A file with other columns, or whose
offsets are not those of its name, is not added.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bridge.format.drained_file import FileFooter
from bridge.format.file_builder import DrainedFile
from bridge.format.file_name import FileName, staged
from bridge.format.merged_file import Sources, merged_footer
from bridge.format.parquet_footer import metadata_of
from bridge.sinks.parquet import ParquetFile, parquet_name, settings_for

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_BYTES = 32 << 20  # before compression: this is in memory, in addition to the file


class ParquetMerge:
    """A merged Parquet file that is built from files in the order of offsets."""

    def __init__(self, bytes_max: int) -> None:
        self._sources = Sources(bytes_max)
        self._day = ""
        self._out: Any = None
        self._writer: Any = None
        self._batches: list[pa.RecordBatch] = []  # of the next row group
        self._group_bytes = 0

    def add(self, name: FileName, data: bytes) -> bool:
        """Add the file `name`; False: it does not fit. Raises DrainedFileError: it is damaged, and the merged
        file is unusable, too.
        """
        from bridge.arrow import parquet_reader

        opened, footer = _opened(name, data)
        schema = opened.schema_arrow.remove_metadata()
        has_same_columns = self._writer is None or schema == self._writer.schema
        if not has_same_columns or not self._sources.add(footer, len(data)):
            return False
        if self._writer is None:
            self._begin(schema)
        for batch in parquet_reader.batches_of(opened, footer, name.path):
            self._batches.append(batch)
            self._group_bytes += batch.nbytes
            if self._group_bytes >= GROUP_BYTES:
                self._write_group()
        self._day = name.day
        return True

    def finish(self) -> DrainedFile | None:
        """The merged file at the path at which it is staged; None: fewer than two files were added."""
        if len(self._sources.footers) < 2:
            return None
        self._write_group()
        footer = merged_footer(self._sources.footers)
        self._writer.add_key_value_metadata(metadata_of(footer))
        self._writer.close()
        content = memoryview(self._out.getvalue()).cast("B")
        return ParquetFile(staged(parquet_name(footer.name(self._day).path)), (content,), footer, ())

    def _begin(self, schema: pa.Schema) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        self._out = pa.BufferOutputStream()
        self._writer = parquet.ParquetWriter(self._out, schema, **settings_for(schema))

    def _write_group(self) -> None:
        import pyarrow as pa

        if self._batches:
            self._writer.write_table(pa.Table.from_batches(self._batches, self._writer.schema))
            self._batches, self._group_bytes = [], 0


def check_parquet(name: FileName, data: bytes) -> FileFooter:
    """The footer of the Parquet file `name`, all rows of which were read. Raises DrainedFileError: it has not
    exactly the offsets of its name, in order, or cannot be read.
    """
    from bridge.arrow import parquet_reader

    opened, footer = _opened(name, data)
    for _ in parquet_reader.batches_of(opened, footer, name.path):
        pass
    return footer


def _opened(name: FileName, data: bytes) -> tuple[Any, FileFooter]:
    import pyarrow as pa

    from bridge.arrow import parquet_reader

    return parquet_reader.checked(pa.BufferReader(data), name.path, name)
