"""Schema of a table over time: rules for a batch with other columns than a table with a log.

    a new column              is added to the table; null in earlier records
    a column that is absent   is null
    another type              the column keeps its type: Delta's type widening allows no change between the
                              types of payload fields.  A value with an exact equal in the type of the column
                              is converted (2.0 becomes the long 2).  Any other value goes to _undecoded, and
                              the column is null
    other capital letters     the same column: Spark and Delta ignore case in names

A plain table has no schema, and no reader joins files in which a column has several types, not even int and
double. So another type than that of the last batch is refused.

Owns the Spark expressions for these rules; tables.py owns the log.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyarrow import parquet
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from bridge.errors import SourceOptionError
from bridge.payloads.schema import UNDECODED
from bridge.spark.table_places import names_in, opened, parquet_files

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

SPARK_COLUMNS = b"org.apache.spark.sql.parquet.row.metadata"  # in the footer of each file that Spark writes
SAID = "_undecoded_and_misfits"  # no field can have this name


def fitted(frame: DataFrame, table: StructType) -> DataFrame:
    """`frame` with the names and types of the table where the table has the column."""
    there = {field.name.lower(): field for field in table.fields}
    columns: list[Column] = []
    misfits: list[Column] = []
    for field in frame.schema.fields:
        known = there.get(field.name.lower(), field)
        column = f.col(field.name)
        if known.dataType == field.dataType:
            columns.append(column.alias(known.name))
            continue
        cast, fits = _cast(column, field.dataType, known.dataType)
        columns.append(f.when(fits, cast).alias(known.name))
        prefix = f"field {known.name}: no {_kind(known.dataType)}: "
        misfits.append(f.when(~fits, f.concat(f.lit(prefix), _shown(column, field.dataType))))
    if not misfits:
        return frame.select(*columns)
    before = [f.col(UNDECODED)] if UNDECODED in frame.columns else []
    joined = f.concat_ws("; ", *before, *misfits)
    undecoded = f.nullif(joined, f.lit("")).alias(SAID)
    return frame.select(*columns, undecoded).drop(UNDECODED).withColumnRenamed(SAID, UNDECODED)


def refuse_other_types(table: str, columns: StructType) -> None:
    """Raise SourceOptionError if the last batch of a plain table has a column with another type."""
    known = {field.name.lower(): field for field in _last_columns(table).fields}
    for field in columns.fields:
        there = known.get(field.name.lower(), field)
        before, now = there.dataType.simpleString(), field.dataType.simpleString()
        if before != now:
            text = f"column {field.name} is {before} in {table}, and would be {now}"
            hint = "give the field another name, or begin another table (--to) from all records"
            raise SourceOptionError(text, hint=hint)


def _last_columns(table: str) -> StructType:
    """Columns of the last batch that has a file; none: no file, or only Spark can reach the table."""
    batches = sorted((name for name in names_in(table) if name.startswith("batch=")), reverse=True)
    for batch in batches:
        paths = [file.path for file in parquet_files(f"{table}/{batch}") if "/_temporary/" not in file.path]
        if paths:
            filesystem, _ = opened(table)
            with filesystem.open_input_file(paths[0]) as file:
                text = (parquet.read_metadata(file).metadata or {}).get(SPARK_COLUMNS)
            return StructType.fromJson(json.loads(text)) if text else StructType()
    return StructType()


def _cast(column: Column, old: DataType, new: DataType) -> tuple[Column, Column]:
    """The value in the type of the table, and True if it equals the given value."""
    nested = isinstance(old, ArrayType | MapType) or isinstance(new, ArrayType | MapType)
    if nested or (BinaryType() in (old, new) and StringType() not in (old, new)):
        return f.lit(None).cast(new), column.isNull()
    cast = column.try_cast(new)
    fits = cast.try_cast(old).eqNullSafe(column)
    return cast, fits & f.is_valid_utf8(cast) if old == BinaryType() else fits


def _shown(column: Column, old: DataType) -> Column:
    """The text of a value, in the form of bridge/payloads/undecoded_text.py."""
    if old == BinaryType():
        return f.concat(f.lit("0x"), f.lower(f.hex(column)))
    if old != StringType():
        return column.cast("string")
    quoted = f.to_json(f.struct(column.alias("v")))  # {"v":"..."}
    return quoted.substr(f.lit(len('{"v":') + 1), f.length(quoted) - len('{"v":}'))


def _kind(new: DataType) -> str:
    return {"bigint": "long", "int": "integer"}.get(new.simpleString(), new.simpleString())
