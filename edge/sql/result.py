"""Result of a query: its rows as Arrow batches, pandas, polars or tuples, and what could not be read.

Owns the connection of DuckDB, and the open archives, until the rows are read. The rows can be read once.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import duckdb
import pyarrow as pa

from edge.errors import EdgeError
from edge.sql.losses import QueryLosses
from edge.terminal_escape import escaped
from ringbuf.extras import install_package

ROWS = 65_536  # of one batch
BATCH_BYTES = 32 << 20
STEP_ROWS = 512  # that DuckDB converts at once; an array has at most 2 GiB, so payloads may have 4 MiB each
LOCKED = "configuration has been locked"  # in errors of DuckDB
FILES_HINT = "`brim sql --files` and brim.sql(..., files=True) let a query use files and settings"
COLUMNS_HINT = "brim.records() and `brim sql --help` describe the columns of records"
OFFSET_HINT = 'OFFSET is a word of SQL: write the column in double quotes, as in SELECT "offset" FROM records'
OFFSET_COLUMN = re.compile(r'(?<!["\w])offset(?!["\w]|\s+[\d?$:])', re.IGNORECASE)  # not LIMIT 1 OFFSET 5


class QueryError(EdgeError):
    """DuckDB refused the query, or could not finish it."""


def failed(error: Exception, cause: BaseException | None) -> Exception:
    """The error for the user: that of the reader of the records if it caused the error of DuckDB."""
    if isinstance(cause, EdgeError):
        return cause
    lines = str(cause or error).strip().splitlines()  # DuckDB quotes values, which may be of a payload
    return QueryError("\n".join(map(escaped, lines)), hint=_hint(error))


def _hint(error: Exception) -> str:
    if isinstance(error, duckdb.PermissionException) or LOCKED in str(error):
        return FILES_HINT
    is_offset = isinstance(error, duckdb.ParserException) and OFFSET_COLUMN.search(str(error))
    return OFFSET_HINT if is_offset else COLUMNS_HINT


def _require(library: str) -> None:
    """Raise EdgeError if a library is missing, before rows are read, which is possible once."""
    if importlib.util.find_spec(library) is None:
        raise EdgeError(f"{library} is not installed", hint=install_package(library))


class QueryResult:
    """Rows of a query, read once.

    `missing` and `damage` are complete after the last row.
    """

    def __init__(
        self,
        rows: Any,  # a relation of DuckDB, or None for a statement without rows
        losses: QueryLosses,
        close: Callable[[], None],
        cause: Callable[[], BaseException | None] = lambda: None,
    ) -> None:
        self.on_batch: Callable[[], None] = lambda: None  # called before each batch of rows is returned
        self._rows, self._losses, self._close, self._cause = rows, losses, close, cause

    def __repr__(self) -> str:
        """Columns and methods. It runs no query: the rows can be read once, and may take minutes."""
        if self._rows is None:
            return "<QueryResult without rows>"
        types = zip(self._rows.columns, self._rows.types, strict=True)
        columns = ", ".join(f"{escaped(name)} {kind}" for name, kind in types)
        return f"<QueryResult ({columns}): read its rows once, by .pandas(), .polars(), .arrow() or a loop>"

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [] if self._rows is None else list(self._rows.columns)

    @property
    def missing(self) -> int:
        """Number of records that rings and log should have and that could not be read."""
        return self._losses.missing

    @property
    def damage(self) -> tuple[str, ...]:
        """Damaged places, each with its reason."""
        return self._losses.damage

    def batches(self, rows: int = ROWS) -> pa.RecordBatchReader:
        """Batches of up to `rows` rows and about 32 MiB. Raises QueryError, also while they are read."""
        if self._rows is None:
            self._close()
            return pa.RecordBatchReader.from_batches(pa.schema([]), [])
        try:
            reader = self._rows.to_arrow_reader(min(rows, STEP_ROWS))
        except duckdb.Error as error:
            self._close()
            raise failed(error, self._cause()) from error
        return pa.RecordBatchReader.from_batches(reader.schema, self._read(_joined(reader, rows)))

    def _read(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                self.on_batch()
                yield batch
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise failed(error, self._cause()) from error
        finally:
            self._close()

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table."""
        return self.batches().read_all()

    def pandas(self) -> Any:
        """All rows as a pandas DataFrame."""
        _require("pandas")
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """All rows as a polars DataFrame."""
        _require("polars")
        import polars as pl

        return pl.from_arrow(self.arrow())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches():
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def mapped(self, query: str) -> Self:
        """The result of `query` on these rows, whose name there is `result`."""
        rows = None if self._rows is None else self._rows.query("result", query)
        return type(self)(rows, self._losses, self._close, self._cause)

    def close(self) -> None:
        """Discard the rest of the rows."""
        self._rows = None
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _joined(steps: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The steps as batches of up to `rows` rows; a batch with BATCH_BYTES gets no other step."""
    batch: list[pa.RecordBatch] = []
    count = size = 0
    for step in steps:
        if batch and (count + step.num_rows > rows or size >= BATCH_BYTES):
            yield pa.concat_batches(batch)
            batch, count, size = [], 0, 0
        batch.append(step)
        count, size = count + step.num_rows, size + step.nbytes
    if batch:
        yield pa.concat_batches(batch)
