"""Reader of the Parquet files that a bridge writes (bridge/sinks/parquet.py): the same rows as from a drained
file.

Read by pyarrow, without the compiled core. The partition of the records is in the file's metadata, under
"brim", and must be that of the name. Missing or misplaced rows are detected by their offsets. A changed value
that does not break the compression is not detected: these files have no checksums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from bridge.arrow.schema import NEVER_NULL, TYPES, DecodedColumns
from bridge.errors import DrainedFileError
from bridge.format.drained_file import PARQUET_COLUMNS, FileFooter
from bridge.format.file_name import FileName, check_name
from bridge.format.parquet_footer import footer_of

ROWS_MAX = 16_384  # of one batch


def footer(file: Any, path: str) -> FileFooter:
    """The footer that the drained file would have. Raises DrainedFileError."""
    return _opened(file, path)[1]


def rows_of(
    file: Any, path: str, name: FileName, wanted_columns: Collection[str]
) -> Iterator[DecodedColumns]:
    """Rows of the file named `name`, in rising order of offsets; `wanted_columns` names the columns.

    Raises DrainedFileError: it is not the file of its name, or cannot be read from some row on.
    """
    columns = [column for column in PARQUET_COLUMNS if column in wanted_columns or column == "offset"]
    opened, stored = checked(file, path, name, columns)
    offset = stored.first_offset
    for batch in batches_of(opened, stored, path, columns):
        yield DecodedColumns(
            offset,
            batch.num_rows,
            {column: batch.column(column) for column in columns if column in wanted_columns},
        )
        offset += batch.num_rows


def checked(
    file: Any, path: str, name: FileName, columns: Sequence[str] = PARQUET_COLUMNS
) -> tuple[parquet.ParquetFile, FileFooter]:
    """The file named `name`, opened, and its footer. Raises DrainedFileError: it is another file."""
    opened, stored = _opened(file, path)
    check_name(stored.name(name.day), name, path)
    _check(opened, stored, columns, path)
    return opened, stored


def batches_of(
    opened: parquet.ParquetFile, stored: FileFooter, path: str, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Rows with these columns (None: all), in rising order of offsets. Raises as rows_of()."""
    offset = stored.first_offset
    try:
        for batch in opened.iter_batches(ROWS_MAX, columns=columns, use_threads=False):
            offsets = batch.column("offset").to_numpy(zero_copy_only=False)
            if not np.array_equal(offsets, np.arange(offset, offset + batch.num_rows)):
                raise DrainedFileError(f"offset {offset} is not where it belongs", name=path)
            for column in batch.schema.names:
                if column in NEVER_NULL and batch.column(column).null_count:
                    raise DrainedFileError(f"has nulls in {column} from offset {offset} on", name=path)
            yield batch
            offset += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DrainedFileError(f"cannot be read from offset {offset} on: {error}", name=path) from error


def _opened(file: Any, path: str) -> tuple[Any, FileFooter]:
    try:
        opened = parquet.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise DrainedFileError(f"is no Parquet file, or cut short: {error}", name=path) from error
    try:
        return opened, footer_of(opened.metadata.metadata)
    except DrainedFileError as error:
        raise DrainedFileError(str(error), name=path, hint=error.hint) from None


def _check(opened: Any, stored: FileFooter, columns: Sequence[str], path: str) -> None:
    """Check that the file has the rows and columns of its footer."""
    if opened.metadata.num_rows != stored.count:
        text = f"has {opened.metadata.num_rows} rows, and a footer for {stored.count}"
        raise DrainedFileError(text, name=path)
    schema = opened.schema_arrow
    for column in columns:
        kind = schema.field(column).type if column in schema.names else None
        if kind != TYPES[column]:
            raise DrainedFileError(f"column {column} is {kind}, not {TYPES[column]}", name=path)
