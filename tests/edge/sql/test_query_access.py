"""Access of a query: only the relation `records`, or, with `files`, all that its user may use."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

import brim
from edge.sql.records import SETTINGS
from edge.sql.result import QueryError
from persistence import OsFiles
from persistence.archive import archive_name, archive_segment
from tests.support.archives import ends_of
from tests.support.kept_logs import Kept, keep


@pytest.fixture
def place(tmp_path: Path) -> dict[str, Any]:
    """Thirty records, of which a part is archived; the arguments that select them."""
    log = tmp_path / "log"
    keep(log, "a-0", [Kept(f"a/{number % 3}", b"x" * 600) for number in range(30)], segment_bytes=12_288)
    base, end = next(iter(ends_of(OsFiles(), str(log)).items()))
    archive_segment(OsFiles(), str(log), base, end)
    return {"log": log, "runtime_dir": tmp_path / "rings"}


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('{file}')",
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM read_blob('/proc/self/environ')",
        "SELECT * FROM '{file}.csv'",
        "SELECT * FROM glob('{file}*')",
        "SELECT * FROM read_parquet('{log}/*.parquet')",
        "SELECT * FROM read_csv('https://127.0.0.1:1/x.csv')",
        "CREATE TABLE t (line VARCHAR); COPY t FROM '{file}'",
        "COPY (SELECT 1) TO '{file}.out'",
        "COPY (SELECT 1) TO '{archive}'",
        "EXPORT DATABASE '{file}.out'",
        "IMPORT DATABASE '{file}'",
        "ATTACH '{file}.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD '{file}.so'",
        "SET enable_external_access = true",
        "RESET enable_external_access",
        "SET allowed_paths = ['{file}']",
        "SET memory_limit = '1TB'",
        "SET threads = 1000",
        "SET temp_directory = '{file}.out'",
        "SET lock_configuration = false",
        "SET python_enable_replacements = true",
        "SET profiling_output = '{file}.out'",
        "SET secret_directory = '{file}.out'",
        "SET log_query_path = '{file}.out'",
        "CALL enable_logging(storage = 'file', storage_path = '{file}.out')",
        "CREATE PERSISTENT SECRET s (TYPE s3)",
        "SELECT * FROM brim_logged",
        "SELECT * FROM source",
        "SELECT * FROM view",
    ],
)
def test_a_query_uses_neither_files_nor_settings_nor_variables(place, tmp_path, query):
    (tmp_path / "secret").write_text("1\n")
    (tmp_path / "secret.csv").write_text("1\n")
    archive = place["log"] / archive_name(0)
    text = query.format(file=tmp_path / "secret", log=place["log"], archive=archive)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(QueryError, match=r"disabled|locked|Table with name"):
        list(brim.sql(text, **place))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_records_is_the_only_relation(place):
    assert list(brim.sql("SHOW TABLES", **place)) == [("records",)]


def test_a_printed_result_shows_its_columns_and_keeps_its_rows(place):
    rows = brim.sql('SELECT topic, count(*) AS "n\x1b[2J" FROM records GROUP BY 1 ORDER BY 1', **place)
    assert "topic VARCHAR, n\\x1b[2J BIGINT" in repr(rows)
    assert ".pandas()" in str(rows)
    assert list(rows) == [("a/0", 10), ("a/1", 10), ("a/2", 10)]
    assert str(brim.sql("", **place)) == "<QueryResult without rows>"
    assert str(place["log"]) in str(brim.records(**place))


def test_a_query_with_files_reads_and_writes_them(place, tmp_path):
    (tmp_path / "names.csv").write_text("topic,name\na/1,press\n")
    joined = f"SELECT name, count(*) AS n FROM records JOIN '{tmp_path}/names.csv' USING (topic) GROUP BY ALL"
    assert list(brim.sql(f"COPY ({joined}) TO '{tmp_path}/out.csv'", files=True, **place)) == [(1,)]
    assert (tmp_path / "out.csv").read_text() == "name,n\npress,10\n"
    assert list(brim.sql("SET threads = 1; SELECT current_setting('threads')", files=True, **place)) == [(1,)]


def test_a_query_spills_to_a_directory_of_its_own(place, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(SETTINGS, "memory_limit", "48MB")
    query = "SELECT i, hash(i)::VARCHAR FROM range(1_000_000) t(i) ORDER BY 2"
    with brim.sql(query, threads=1, **place) as first, brim.sql(query, threads=1, **place) as second:
        batches = [first.batches(), second.batches()]
        rows = [next(iter(each)).num_rows for each in batches]
        directories = sorted(tmp_path.glob("brim-sql-*"))
        assert [directory.stat().st_mode & 0o777 for directory in directories] == [0o700, 0o700]
        assert all(any(directory.iterdir()) for directory in directories)
        assert [sum(batch.num_rows for batch in each) for each in batches] == [1_000_000 - n for n in rows]
    assert not list(tmp_path.glob("brim-sql-*"))
