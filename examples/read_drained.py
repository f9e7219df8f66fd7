"""Drained files as an Arrow table: no broker, no Spark, no copy of the payloads into Python.

    python -m examples.read_drained /srv/lake                 # a directory, or files
    python -m examples.read_drained FILE.brim --rows 20

Needs pyarrow. From there it is one call to pandas (`table.to_pandas()`), polars, DuckDB or Parquet.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from bridge.arrow.decode import decode_file
from bridge.arrow.schema import CORRUPT, TYPES, Constants, batch_of
from bridge.format import file_parser
from bridge.format.file_name import SUFFIX

SCHEMA = pa.schema([(name, kind) for name, kind in TYPES.items() if name != CORRUPT])
PAYLOAD_CHARACTERS = 40


def read(paths: Sequence[Path]) -> pa.Table:
    """The records of these files, in the order of the files.  Raises bridge.errors.DrainedFileError."""
    return pa.Table.from_batches([batch for path in paths for batch in batches(path)], SCHEMA)


def batches(path: Path) -> Iterator[pa.RecordBatch]:
    """Records of a file; every checksum is verified."""
    file = file_parser.parse(path.read_bytes(), path.name)
    footer = file.footer
    constants = Constants(footer.edge, footer.stream, footer.partition, footer.epoch)
    count = 0
    for decoded in decode_file(file, SCHEMA.names):
        count += decoded.rows
        yield batch_of(decoded, constants, SCHEMA)
    if count != footer.count:
        print(f"{path.name}: {footer.count - count} of {footer.count} records are damaged and left out")


def show(table: pa.Table, rows: int) -> None:
    """Print the first rows, and the number of rows by topic."""
    for row in table.slice(0, rows).to_pylist():
        payload = row["payload"].decode(errors="replace")[:PAYLOAD_CHARACTERS]
        print(
            f"{row['timestamp']:%H:%M:%S.%f}  {row['stream']}-{row['partition']}  {row['offset']:>8}", end=""
        )
        print(f"  {row['topic']}  {payload}")
    print(f"{table.num_rows:,} records, {table.nbytes:,} bytes in memory")
    for row in table.group_by("topic").aggregate([("offset", "count")]).sort_by("topic").to_pylist():
        print(f"{row['offset_count']:>8,}  {row['topic']}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="drained files as an Arrow table")
    parser.add_argument("paths", type=Path, nargs="+", help="drained files, or directories of them")
    parser.add_argument("--rows", type=int, default=10, help="to show (%(default)s)")
    options = parser.parse_args()
    files: list[Path] = []
    for path in options.paths:
        files += sorted(path.rglob(f"*{SUFFIX}")) if path.is_dir() else [path]
    if not all(file.exists() for file in files) or not files:
        parser.error(f"no *{SUFFIX} in {', '.join(map(str, options.paths))}; every tool reads *.parquet")
    show(read(files), options.rows)


if __name__ == "__main__":
    main()
