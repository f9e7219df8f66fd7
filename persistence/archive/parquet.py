"""Parquet by pyarrow: row groups to bytes, and bytes to row groups.

columns.py has the schema; archive_writer.py archives a segment with this module.  Imported only where records
of an archive are written or read: it loads pyarrow.  Touches no file, and verifies no checksum: the caller
does.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from persistence.archive.columns import COLUMNS, SCHEMA, Split, records_of, table_of
from persistence.archive.layout import GROUP_BYTES, MAGIC, RowGroup
from persistence.archive.records import Records, Run
from persistence.errors import FormatError

# Of JSON telemetry. Level 1 makes files 3 % smaller, which DuckDB decompresses at 0.9 of the speed; level 9 a
# tenth smaller, written at a seventh of the speed.
LEVEL = 3
PAGE_BYTES = 2 * GROUP_BYTES  # one page for each column of a row group
STATISTICS = ["ring", "epoch", "offset", "timestamp_ns", "topic"]  # the index of other programs
DICTIONARY = ["ring", "epoch", "topic", "flags", "properties"]
ENCODING = {
    "offset": "DELTA_BINARY_PACKED",
    "timestamp_ns": "DELTA_BINARY_PACKED",
    "payload": "DELTA_LENGTH_BYTE_ARRAY",
}


class ParquetOutput:
    """A Parquet file that is made part by part."""

    def __init__(self) -> None:
        self._sink = BytesIO()
        self._writer = pq.ParquetWriter(
            self._sink, SCHEMA, compression="zstd", compression_level=LEVEL, use_dictionary=DICTIONARY,
            column_encoding=ENCODING, data_page_size=PAGE_BYTES, write_page_checksum=True, store_schema=False,
            write_statistics=STATISTICS,
        )  # fmt: skip

    def begin(self) -> bytes:
        """The bytes in front of the first row group."""
        return self._take()

    def row_group(
        self, records: memoryview, runs: Sequence[Run], ring: str, epoch: int
    ) -> tuple[Split, bytes]:
        """The next row group, of records as for table_of()."""
        split = table_of(records, runs, ring, epoch)
        self._writer.write_table(split.table, row_group_size=split.table.num_rows)
        return split, self._take()

    def footer(self, texts: dict[str, str]) -> bytes:
        """The bytes behind the last row group, with these texts in the metadata."""
        self._writer.add_key_value_metadata(texts)
        self._writer.close()
        return self._take()

    def _take(self) -> bytes:
        """The bytes since the last call; the library counts places by itself."""
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data


# ---- reading ----


class _Part:
    """A file of which only a part is in memory."""

    closed = False

    def __init__(self, data: bytes, place: int, size: int) -> None:
        self._data, self._place, self._size = memoryview(data), place, size
        self._at = 0

    def read(self, length: int = -1) -> memoryview:
        begin = self._at - self._place
        end = begin + (length if length >= 0 else self._size - self._at)
        if not 0 <= begin <= end <= len(self._data):
            raise OSError(f"{length} bytes at {self._at} are not in the row group")
        self._at += end - begin
        return self._data[begin:end]

    def seek(self, position: int, whence: int = 0) -> int:
        self._at = position + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        self.closed = True


def metadata_of(footer: bytes) -> Any:
    """The metadata in a footer that ends with its length and the magic.  Raises FormatError."""
    try:
        return pq.read_metadata(pa.BufferReader(MAGIC + footer))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(f"the Parquet footer cannot be read: {error}") from error


def records_in(
    metadata: Any, index: int, group: RowGroup, data: bytes, size: int, topic: bytes | None = None
) -> Records | None:
    """All records of a row group of a file of `size`, from its bytes, or those of a topic.

    None: it has none of that topic.  Raises FormatError.
    """

    def read(columns: list[str]) -> pa.Table:
        source = pa.PythonFile(cast("Any", _Part(data, group.place, size)), mode="r")
        file = pq.ParquetFile(source, metadata=metadata, read_dictionary=["topic"])
        return file.read_row_group(index, columns=columns, use_threads=False)

    try:
        if topic is not None and not group.verbatim and not _has(read(["topic"]), topic):
            return None
        return records_of(read(list(COLUMNS)), group.epoch, topic)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(f"row group {index} cannot be read: {error}") from error


def _has(topics: pa.Table, topic: bytes) -> bool:
    """True if the text is in the dictionary, also as a part of another one."""
    texts = (chunk.dictionary.buffers()[2] for chunk in topics.column("topic").chunks)
    return any(topic in text.to_pybytes() for text in texts if text is not None)


def release_unused() -> None:
    """Give memory back to the system that pyarrow keeps for later."""
    pa.default_memory_pool().release_unused()
