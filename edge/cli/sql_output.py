"""Output of `brim sql`: rows as a table, CSV, lines of JSON, Parquet or an Arrow stream.

A table is for people: values are escaped, since topics and payloads are untrusted, and the number of its rows
is limited. The other forms are streams of any length.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from edge.cli.kept_access import keep_access
from edge.cli.listing import Column, Row, table
from edge.cli.mqtt_options import UsageError

if TYPE_CHECKING:
    from edge.sql.result import QueryResult

FORMATS = ("table", "csv", "json", "parquet", "arrow")
SUFFIXES = {
    "": "table", ".txt": "table", ".csv": "csv", ".json": "json", ".jsonl": "json", ".ndjson": "json",
    ".parquet": "parquet", ".arrow": "arrow",
}  # fmt: skip
NO_NUMBER = re.compile(r'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')  # or a text, which may have such words
ROWS_MAX = 10_000  # of a table
TEXT_MAX = 200  # characters of a value in a table
_partial: set[Path] = set()  # files of this process that are not complete


class RowWriter(Protocol):
    """Writer of one form. write() may be called again if the form allows."""

    def write(self, rows: QueryResult) -> None:
        """Write all rows."""


def format_of(name: str | None, path: Path | None) -> str:
    """The form that --format or the suffix of the output selects. Raises UsageError: unknown suffix."""
    if name is not None or path is None or path.is_char_device() or path.is_fifo():
        return name or "table"
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(filter(None, SUFFIXES))
        raise UsageError(f"no format has the suffix {suffix} (known: {known})", hint="add --format FORMAT")
    return SUFFIXES[suffix]


@contextmanager
def writer_of(form: str, path: Path | None, *, grows: bool) -> Iterator[RowWriter]:
    """A writer to the file, or to standard output. Raises UsageError: binary data for a terminal.

    `grows`: the file is written in place, for readers that follow it. Otherwise it replaces an earlier one
    when it is complete.
    """
    if path is None:
        if form in {"parquet", "arrow"} and sys.stdout.isatty():
            raise UsageError(f"{form} is not a text for a terminal", hint="name a file: -o FILE")
        yield _WRITERS[form](sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    if grows or not _is_replaceable(path):
        with path.open("wb") as file:
            yield _WRITERS[form](file)
        return
    with _replaced(path) as file:
        yield _WRITERS[form](file)


def _is_replaceable(path: Path) -> bool:
    """False for a device, a pipe, an open file such as /dev/stdout, and a file in a fixed place."""
    directory, target = path.parent.resolve(), path.resolve()
    if directory == Path("/dev") or directory.is_relative_to("/proc"):
        return False
    is_fixed = os.path.ismount(target) or not os.access(target.parent, os.W_OK)
    return not path.exists() or (path.is_file() and not is_fixed)


@contextmanager
def _replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file that replaces `path` at the end. After an error `path` is as before."""
    target = path.resolve()  # a link stays
    partial = target.with_name(f"{target.name}.{os.urandom(8).hex()}.partial")
    _partial.add(partial)
    try:
        with partial.open("xb") as file:
            with suppress(FileNotFoundError):
                keep_access(target.stat(), file.fileno())  # before the first byte
            yield file
        partial.replace(target)
    finally:
        remove_partial()


def remove_partial() -> None:
    """Remove the file that is being written: the process is about to end, or the file is complete."""
    for partial in tuple(_partial):
        partial.unlink(missing_ok=True)
        _partial.discard(partial)


class _Table:
    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._is_later = file, False

    def write(self, rows: QueryResult) -> None:
        """Write all rows. A later table without rows, of a window in which nothing came, is left out."""
        titles = rows.columns
        columns = [_column(number, title) for number, title in enumerate(titles)]
        shown: list[Row] = []
        left = 0
        for row in rows:
            if len(shown) < ROWS_MAX:
                shown.append({str(number): _short(value) for number, value in enumerate(row)})
            else:
                left += 1
        if not titles or (self._is_later and not shown):
            return
        self._is_later = True
        width = shutil.get_terminal_size().columns if self._file.isatty() else 0
        lines = table(shown, columns, width, titles=titles)
        if left:
            lines.append(f"and {left:,} more; see --format")
        self._file.write("".join(f"{line}\n" for line in lines).encode())
        self._file.flush()


def _column(number: int, title: str) -> Column:
    return Column(title, lambda row: _text(row[str(number)]), lambda row: row[str(number)])


def _short(value: Any) -> Any:
    """The part of a text or blob that _text() shows: rows wait until the widths of the columns are known."""
    return value[: TEXT_MAX + 1] if isinstance(value, str | bytes) else value


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bytes):
        value = value.decode(errors="backslashreplace")
    text = _interval(*value) if type(value).__name__ == "MonthDayNano" else str(value)
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """An INTERVAL, such as the difference of two timestamps: 2 months, 1 day, 0:10:07.140438."""
    rest = str(timedelta(days=days, microseconds=nanoseconds // 1000))
    return f"{months} months, {rest}" if months else rest


class _Csv:
    """CSV of one header and all rows; values as DuckDB writes them."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._is_first = file, True

    def write(self, rows: QueryResult) -> None:
        from pyarrow import csv

        texts = rows.mapped("SELECT COLUMNS(*)::VARCHAR FROM result")
        reader = texts.batches()
        if not reader.schema:
            return
        options = csv.WriteOptions(include_header=self._is_first)
        with csv.CSVWriter(self._file, reader.schema, write_options=options) as writer:
            for batch in reader:
                writer.write_batch(batch)
        self._is_first = False
        self._file.flush()


class _Json:
    """One object a line. JSON has no infinite number and no NaN: they are texts."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rows: QueryResult) -> None:
        if not rows.columns:
            rows.batches()
            return
        for batch in rows.mapped("SELECT to_json(result) FROM result").batches():
            text = "".join(f"{line}\n" for line in batch.column(0).to_pylist())
            if "NaN" in text or "Infinity" in text:
                text = NO_NUMBER.sub(_quoted, text)
            self._file.write(text.encode())
        self._file.flush()


def _quoted(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else f'"{match[0]}"'


class _Parquet:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rows: QueryResult) -> None:
        from pyarrow import parquet

        reader = rows.batches()
        with parquet.ParquetWriter(self._file, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)


class _Arrow:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, rows: QueryResult) -> None:
        from pyarrow import ipc

        reader = rows.batches()
        with ipc.new_stream(self._file, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)


_WRITERS: dict[str, type[_Table | _Csv | _Json | _Parquet | _Arrow]] = {
    "table": _Table,
    "csv": _Csv,
    "json": _Json,
    "parquet": _Parquet,
    "arrow": _Arrow,
}
