"""Archives are Parquet files that other programs read as they lie."""

from pathlib import Path

import duckdb
import polars as pl
import pytest

from persistence import Log
from persistence.archive import ArchiveFile, archive_segment
from persistence.files import OsFiles
from ringbuf import FLAG_PROPERTIES
from ringbuf.record import encode
from tests.support.archives import ends_of
from tests.support.log_simulation import run_of

NOW_NS = 1_700_000_000 * 10**9


@pytest.fixture(scope="module", autouse=True)
def started_polars(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Polars keeps the descriptors of its runtime from the first scan on."""
    path = tmp_path_factory.mktemp("polars") / "one.parquet"
    pl.DataFrame({"one": [1]}).write_parquet(path)
    pl.scan_parquet(path).collect()


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """The directory of a log of 1,000 readings of 10 devices, in two segments, both archived."""
    log = Log(tmp_path, retain_bytes=0, segment_bytes=64 << 10)
    log.recover()
    ring_id, position = log.join("telemetry-0", 7, 0), 0
    for offset in range(1000):
        data = encode(
            offset,
            b'{"value":%d}' % offset,
            epoch=7,
            key=b"plant/%d/temp" % (offset % 10),
            timestamp_ns=NOW_NS + offset,
            flags=FLAG_PROPERTIES if offset % 100 == 0 else 0,
            properties=b"\x02\x01\x01" if offset % 100 == 0 else b"",
        )
        log.append(ring_id, [run_of(data, 7, position=position)])
        position += len(data)
        log.write()
    log.sync()
    log.close()
    files = OsFiles()
    for base, end in ends_of(files, str(tmp_path)).items():
        archive_segment(files, str(tmp_path), base, end, group_bytes=8 << 10)
    assert len(list(tmp_path.glob("*.parquet"))) > 1
    return tmp_path


def test_duckdb_reads_archives_as_they_lie(archived: Path) -> None:
    connection = duckdb.connect()  # of its own: that of the module is shared with other tests
    found = connection.sql(
        'select topic, count(*), min("offset"), max(epoch_ns(make_timestamp_ns(timestamp_ns))), '
        "       sum(cast(json_extract(decode(payload), '$.value') as int)), count(properties), "
        "       count(verbatim) "
        f"from '{archived}/*.parquet' where ring = 'telemetry-0' and epoch = 7 group by topic order by topic"
    )
    assert found is not None
    assert found.fetchall() == [
        (f"plant/{n}/temp", 100, n, NOW_NS + 990 + n, sum(range(n, 1000, 10)), 10 if n == 0 else 0, 0)
        for n in range(10)
    ]


def test_polars_reads_archives_as_they_lie(archived: Path) -> None:
    table = pl.scan_parquet(f"{archived}/*.parquet").filter(pl.col("topic") == "plant/3/temp").collect()
    assert table["offset"].to_list() == list(range(3, 1000, 10))
    assert table["payload"].to_list() == [b'{"value":%d}' % offset for offset in range(3, 1000, 10)]
    times = table.select(pl.from_epoch("timestamp_ns", time_unit="ns")).to_series()
    assert times.dt.epoch("ns").to_list() == [NOW_NS + offset for offset in range(3, 1000, 10)]


def test_row_group_statistics_are_an_index_for_other_programs(archived: Path) -> None:
    import pyarrow.parquet as pq

    for path in archived.glob("*.parquet"):
        metadata = pq.ParquetFile(path).metadata
        groups = ArchiveFile.at(OsFiles(), str(path)).catalogue.groups
        assert metadata.num_row_groups == len(groups)
        for index, group in enumerate(groups):
            columns = [metadata.row_group(index).column(number) for number in range(metadata.num_columns)]
            statistics = {it.path_in_schema: it.statistics for it in columns if it.is_stats_set}
            assert (statistics["ring"].min, statistics["ring"].max) == (group.ring, group.ring)
            assert (statistics["offset"].min, statistics["offset"].max) == (
                group.first_offset,
                group.end_offset - 1,
            )
            assert statistics["timestamp_ns"].min == group.first_timestamp_ns
            assert "payload" not in statistics
