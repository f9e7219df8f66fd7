"""Files that are there as Parquet files give the rows that drained files give, and are judged as strictly."""
# ruff: noqa: E402

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
from pyarrow import parquet

from bridge.arrow.decode import decode_file
from bridge.arrow.parquet_reader import rows_of
from bridge.arrow.schema import TYPES
from bridge.errors import DrainedFileError
from bridge.format.file_builder import DrainedFile
from bridge.sinks.registry import open_file_sink
from bridge.spark.landing_zone import Landing, name_of
from tests.support.drained_files import drained_file_of, store

COLUMNS = ("offset", "timestamp", "topic", "qos", "retain", "properties", "payload")


def as_parquet(root: Path, *files: DrainedFile) -> list[Path]:
    """Put files into a directory as Parquet files; where each is."""
    sink = open_file_sink(root.as_uri(), {"format": "parquet"})
    for file in files:
        sink.put(file)
    sink.close()
    return sorted(root.rglob("*.parquet"))


def rows(path: Path, wanted: Collection[str] = COLUMNS) -> Any:
    name = name_of(str(path))
    assert name is not None
    with pa.OSFile(str(path)) as file:
        found = list(rows_of(file, str(path), name, wanted))
    begin = name.first_offset
    for one in found:
        assert one.first_offset == begin
        begin += one.rows
    table = pa.concat_tables(pa.table(one.columns) for one in found)
    return table.select([column for column in COLUMNS if column in wanted])


def test_the_rows_are_those_of_the_drained_file(tmp_path: Path) -> None:
    drained_file = drained_file_of(100, 40_099)
    (path,) = as_parquet(tmp_path / "parquet", drained_file)
    (drained,) = store(tmp_path / "drained", drained_file)
    file = Landing(str(tmp_path / "drained")).read(str(drained), drained.stat().st_size)
    wanted = pa.concat_tables(pa.table(it.columns) for it in decode_file(file, COLUMNS))
    assert rows(path).equals(wanted.select(COLUMNS))
    assert rows(path, {"payload", "edge"}).schema == pa.schema([("payload", TYPES["payload"])])


def test_a_file_in_both_forms_is_one_file_with_one_footer(tmp_path: Path) -> None:
    files = [drained_file_of(0, 9), drained_file_of(10, 19, drain_seq=2, lost=((5, 6),))]
    as_parquet(tmp_path, *files)
    store(tmp_path, files[0])
    landing = Landing(str(tmp_path))
    found = landing.files()
    forms = [(file.name.drain_seq, Path(file.path).suffix) for file in found]
    assert forms == [(1, ".brim"), (2, ".parquet")]
    assert [landing.footer(file.path, file.length) for file in found] == [file.footer for file in files]


def test_what_is_not_the_file_that_its_name_says_is_refused(tmp_path: Path) -> None:
    first, second = as_parquet(tmp_path, drained_file_of(0, 9), drained_file_of(10, 19, drain_seq=2))
    whole, table = first.read_bytes(), parquet.read_table(first)
    said = parquet.read_metadata(first).metadata
    narrow = table.set_column(table.column_names.index("offset"), "offset", table["qos"])
    shuffled = table.take([1, 0, *range(2, 10)])
    topics = pa.array([None, *table["topic"].to_pylist()[1:]], pa.string())
    empty = table.set_column(table.column_names.index("topic"), "topic", topics)
    for content, reason in (
        (second.read_bytes(), "has the name of another file"),
        (whole[:-1], "cut short"),
        (b"", "cut short"),
        (written(table, {}), "no bridge has written it"),
        (written(table, {b"brim": b"\xc1"}), "footer"),
        (written(table.slice(0, 9), said), "has 9 rows, and a footer for 10"),
        (written(empty, said), "has nulls in topic from offset 0 on"),
        (written(shuffled, said), "offset 0 is not where it belongs"),
        (written(table.drop_columns("topic"), said), "column topic is None"),
        (written(narrow, said), "column offset is int32"),
        (damaged(whole), "cannot be read from offset 0 on"),
    ):
        first.write_bytes(content)
        with pytest.raises(DrainedFileError, match=reason) as found:
            rows(first)
        assert str(first) in str(found.value)


def written(table: Any, metadata: dict[bytes, bytes]) -> bytes:
    """A Parquet file of that table, with that metadata."""
    out = pa.BufferOutputStream()
    with parquet.ParquetWriter(out, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({key.decode(): value for key, value in metadata.items()})
    return bytes(out.getvalue())


def damaged(content: bytes) -> bytes:
    """Its pages are no zstd any more."""
    return content.replace(b"\x28\xb5\x2f\xfd", bytes(4))
