"""Chunks of drained files, as a queue hands them on, into the rows of their records.

A chunk (bridge/chunks.py) is a small compressed drained file, and the headers beside it say whose records it
holds, and which.  Each of these offsets becomes a row: what cannot be read says why in _corrupt_record.
Decoded on the executors, as source.py decodes files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.functions import arrow_udf

from bridge import drained
from bridge.errors import DrainedFileError
from bridge.spark.columns import CORRUPT, DDL, TYPES, Constants, batch_of, corrupt_batch_of
from bridge.spark.coverage import Range, subtract
from bridge.spark.decode import decode_file, decoder_of

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["HEAD", "rows_of_chunk", "rows_of_chunks"]

HEAD = ("edge", "stream", "partition", "epoch", "first", "last")  # what is said beside a chunk
ROWS_MOST = 1 << 20  # in one chunk: headers are believed no further, and no chunk has so many records
DAMAGED = "the record does not verify"
SCHEMA = pa.schema(list(TYPES.items()))


def rows_of_chunks(value: Column, *head: Column) -> Column:
    """An array of rows, with the columns of a record and _corrupt_record, for each chunk; `head`: HEAD."""

    def decode(values: pa.Array, *heads: pa.Array) -> pa.Array:
        said = zip(*(it.to_pylist() for it in heads), strict=True)
        tables = [rows_of_chunk(data.as_buffer(), *one) for data, one in zip(values, said, strict=True)]
        ends, rows = [0], pa.Table.from_batches([it for table in tables for it in table], SCHEMA)
        for table in tables:
            ends.append(ends[-1] + sum(it.num_rows for it in table))
        made = rows.combine_chunks().to_struct_array()
        whole = made.combine_chunks() if made.num_chunks != 1 else made.chunk(0)
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), whole)

    make: Any = arrow_udf
    made: Column = make(decode, f"array<struct<{_fields()}>>")(value, *head)
    return made


def _fields() -> str:
    columns = f"{DDL}, {CORRUPT} string".split(", ")
    return ", ".join("{}: {}".format(*it.split(" ")) for it in columns)


def rows_of_chunk(
    data: Any, edge: str, stream: str, partition: int, epoch: int, first: int, last: int
) -> list[pa.RecordBatch]:
    """One row for each offset from first to last."""
    constants, left = Constants(edge, stream, partition, epoch), [(first, last)]
    reason, found = DAMAGED, []
    try:
        file = drained.parse(memoryview(data))
        _check(file.footer, constants, (first, last))
        for decoded in decode_file(file, set(TYPES), decoder_of("auto")):
            found.append(batch_of(decoded, constants, SCHEMA))
            left = subtract(left, [(decoded.first_offset, decoded.first_offset + decoded.rows - 1)])
    except DrainedFileError as error:
        reason = str(error)
    return [*found, *(corrupt_batch_of(*it, reason, constants, SCHEMA) for it in left)]


def _check(footer: drained.Footer, said: Constants, offsets: Range) -> None:
    held = Constants(footer.edge, footer.stream, footer.partition, footer.epoch)
    if held != said or offsets != (footer.first_offset, footer.last_offset):
        raise DrainedFileError(
            f"holds {footer.first_offset} to {footer.last_offset} of {held}, and its headers say otherwise"
        )
