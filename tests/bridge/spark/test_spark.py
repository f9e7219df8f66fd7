"""format("brim") in a real Spark: what was published is read, once, whatever is stopped or damaged."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bridge.format.file_builder import DrainedFile
from bridge.sinks.registry import open_file_sink
from ringbuf import FLAG_RETAIN
from tests.support import bridges
from tests.support.drained_files import EPOCH, drained_file_of, store

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]


def load(spark: Any, lake: Path, schema: str = "", **options: object) -> Any:
    reader = spark.read.format("brim").options(**options)
    return (reader.schema(schema) if schema else reader).load(str(lake))


def plain(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray) else value


def offsets(frame: Any) -> list[tuple[int, int]]:
    return sorted((row["partition"], row["offset"]) for row in frame.select("partition", "offset").collect())


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    root = tmp_path / "lake"
    store(root, *(drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1) for seq in range(5)))
    return root


def test_what_was_published_is_what_is_read(spark: Any, runtime_directory: Path, tmp_path: Path) -> None:
    """From a real ring, through a real drain."""
    published: list[tuple[Any, ...]] = []
    chosen = bridges.settings(runtime_directory, tmp_path, file_bytes=4096)
    with (
        bridges.ring(runtime_directory, "press-0") as ring,
        bridges.ring(runtime_directory, "cam@gate") as other,
        bridges.drain(chosen) as drain,
    ):
        for number in range(300):
            topic, payload = f"plant/{number % 7}/ü", b"%d" % number
            qos, retain = number % 3, number % 2 == 1
            properties = b"\x02\x01\x01" if number % 5 == 0 else b""
            ring.writer().publish(payload, topic, qos | FLAG_RETAIN * retain, properties)
            published.append(("press", number, topic, qos, retain, properties or None, payload))
            if number % 10 == 0:
                other.writer().publish(b"\x00\xff" * 50, "frame")
                published.append(("cam@gate", number // 10, "frame", 0, False, None, b"\x00\xff" * 50))
        bridges.run_dry(drain)
    frame = load(spark, tmp_path / "lake")
    rows = frame.collect()
    assert {(row["edge"], row["partition"], row["epoch"]) for row in rows} == {("edge-1", 0, bridges.EPOCH)}
    columns = ("stream", "offset", "topic", "qos", "retain", "properties", "payload")
    found = [tuple(plain(row[name]) for name in columns) for row in rows]
    assert sorted(found, key=lambda row: row[:2]) == sorted(published, key=lambda row: row[:2])
    rows.sort(key=lambda row: row["offset"])
    order = [row["timestamp"] for row in rows if row["stream"] == "press"]
    assert order == sorted(order)
    assert abs((order[0] - datetime.now()).total_seconds()) < 3600  # noqa: DTZ005


def test_only_the_columns_asked_for_are_read_in_that_order(spark: Any, lake: Path) -> None:
    frame = load(spark, lake, "payload binary, offset long, edge string")
    assert frame.columns == ["payload", "offset", "edge"]
    assert [bytes(row["payload"]) for row in frame.orderBy("offset").collect()] == [
        b"%d" % it for it in range(50)
    ]
    for schema, said in (("offset string", "cannot be string"), ("offsets long", "no column 'offsets'")):
        with pytest.raises(Exception, match=said):
            load(spark, lake, schema).count()


def test_a_column_that_may_be_null_cannot_be_asked_for_as_not_null(spark: Any, lake: Path) -> None:
    """Spark would not look whether it is."""
    assert load(spark, lake, "offset long NOT NULL").count() == 50
    assert [it.name for it in load(spark, lake).schema if it.nullable] == ["properties"]
    assert all(it.nullable for it in load(spark, lake, mode="PERMISSIVE").schema)
    for schema, mode in (("properties binary NOT NULL", "FAILFAST"), ("offset long NOT NULL", "PERMISSIVE")):
        with pytest.raises(Exception, match="cannot be NOT NULL"):
            load(spark, lake, schema, mode=mode).count()


def test_a_table_is_cut_by_edge_stream_and_drain_sequence(spark: Any, lake: Path) -> None:
    store(lake, drained_file_of(0, 4, stream="press", drain_seq=6), drained_file_of(0, 2, edge="kiln"))
    assert load(spark, lake, edge="kiln").count() == 3
    assert load(spark, lake, edge="edge-*", stream="press").count() == 5
    limits = {"startingOffsets": json.dumps({"edge-1": 1}), "endingOffsets": json.dumps({"edge-1": 3})}
    assert offsets(load(spark, lake, edge="edge-1", **limits)) == [(0, offset) for offset in range(10, 30)]
    empty = load(spark, lake, stream="nothing*")
    assert empty.count() == 0
    assert load(spark, lake, minPartitions=3, edge="edge-1").rdd.getNumPartitions() >= 3
    assert load(spark, lake).rdd.getNumPartitions() == 1  # seven small files, one task


def test_conditions_leave_records_out_by_options_and_pushed_down(spark: Any, lake: Path) -> None:
    """A file that is not wanted is not opened: here it could not be read."""
    paths = sorted(lake.rglob("*.brim"))
    paths[0].write_bytes(paths[0].read_bytes()[:-9])
    pushed = load(spark, lake, pushDown="true")
    for frame, expected in (
        (load(spark, lake, offsets="15-22"), range(15, 23)),
        (load(spark, lake, offsets="10-", topic="plant/3/+", mode="FAILFAST"), range(11, 50, 4)),
        (pushed.where("offset between 15 and 22"), range(15, 23)),
        (pushed.where("offset > 9 and topic like 'plant/3%'"), range(11, 50, 4)),
        (pushed.where("offset > 9 and timestamp < timestamp'2023-11-14 22:13:20.020Z'"), range(10, 20)),
    ):
        assert offsets(frame) == [(0, it) for it in expected]
    assert pushed.where("stream = 'other'").count() == 0
    with pytest.raises(Exception, match="cut short"):
        load(spark, lake).where("offset > 9").count()


def test_files_are_a_table_too(spark: Any, lake: Path) -> None:
    store(
        lake,
        drained_file_of(60, 69, drain_seq=6, lost=((50, 57),), skipped=((58, 59),), previous=(EPOCH - 1, 3)),
    )
    row = load(spark, lake, view="files").where("drain_seq = 6").first()
    assert (row["first_offset"], row["last_offset"], row["previous_epoch"]) == (60, 69, EPOCH - 1)
    assert [tuple(pair) for pair in row["lost"]] == [(50, 57)]
    assert [tuple(pair) for pair in row["skipped"]] == [(58, 59)]
    assert (row["error"], row["earlier_lost"]) == (None, [])
    store(
        lake,
        drained_file_of(70, 79, drain_seq=7, earlier_lost=((EPOCH - 1, 3, 4),), earlier_skipped=((1, 2, 9),)),
    )
    row = load(spark, lake, view="files").where("drain_seq = 7").first()
    assert [tuple(it) for it in (*row["earlier_lost"], *row["earlier_skipped"])] == [
        (EPOCH - 1, 3, 4),
        (1, 2, 9),
    ]


def damaged(lake: Path) -> int:
    """One record of the second file no longer verifies; its offset."""
    path = sorted(lake.rglob("*.brim"))[1]
    data = bytearray(path.read_bytes())
    data[data.index(b"plant/1/temp")] ^= 1  # offsets 13 and 17 have that topic
    path.write_bytes(data)
    return 13


def test_a_damaged_record_fails_the_query_or_becomes_a_row_or_is_left_out(spark: Any, lake: Path) -> None:
    offset = damaged(lake)
    with pytest.raises(Exception, match=f"offsets {offset} to {offset}: the record does not verify"):
        load(spark, lake).collect()
    rows = load(spark, lake, mode="PERMISSIVE").orderBy("offset").collect()
    assert [row["offset"] for row in rows] == list(range(50))
    bad = [row for row in rows if row["_corrupt_record"] is not None]
    assert [(row["offset"], row["payload"], row["edge"]) for row in bad] == [(offset, None, "edge-1")]
    left = offsets(load(spark, lake, mode="DROPMALFORMED"))
    assert left == [(0, it) for it in range(50) if it != offset]


def test_a_file_that_is_cut_costs_its_own_records_alone(spark: Any, lake: Path) -> None:
    path = sorted(lake.rglob("*.brim"))[2]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Exception, match="it is cut short"):
        load(spark, lake).collect()
    rows = load(spark, lake, mode="PERMISSIVE").collect()
    assert sorted(row["offset"] for row in rows if row["_corrupt_record"]) == list(range(20, 30))


def test_files_that_are_parquet_files_are_read_with_the_others(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    """As rows, as files and as a stream; conditions and a file that is damaged are as ever."""
    sink = open_file_sink((tmp_path / "mixed").as_uri(), {"format": "parquet"})
    for file in drained_files(0, 1, 3):
        sink.put(file)
    sink.close()
    store(tmp_path / "mixed", *drained_files(2, 4))
    mixed = tmp_path / "mixed"
    for options in ({}, {"topic": "plant/3/+", "offsets": "5-33"}):
        frames = [load(spark, root, **options).orderBy("offset") for root in (lake, mixed)]
        assert frames[0].collect() == frames[1].collect()
        assert frames[0].count() == (7 if options else 50)
    kinds = [row["path"].rpartition(".")[2] for row in load(spark, mixed, view="files").collect()]
    assert sorted(kinds) == ["brim", "brim", "parquet", "parquet", "parquet"]
    assert stream(spark, mixed, tmp_path, maxFilesPerTrigger=2) == [20, 20, 10]
    path = sorted(mixed.rglob("*.parquet"))[1]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(Exception, match="cut short"):
        load(spark, mixed).collect()
    rows = load(spark, mixed, mode="PERMISSIVE").where("_corrupt_record is not null").collect()
    assert sorted(row["offset"] for row in rows) == list(range(10, 20))


def test_payloads_are_columns_where_a_schema_says_so(spark: Any, tmp_path: Path) -> None:
    schema = tmp_path / "payloads.toml"
    schema.write_text('[[payload]]\ntopic = "plant/+/temp"\nformat = "json"\nfields = { temp = "double" }\n')

    def said(offset: int) -> bytes:
        return b"broken" if offset == 13 else b'{"temp": %d.5}' % offset

    store(tmp_path / "lake", drained_file_of(0, 49, payload=said))
    frame = load(spark, tmp_path / "lake", payloads=schema, mode="PERMISSIVE")
    assert frame.columns[-4:] == ["temp", "_undecoded", "_raw", "_corrupt_record"]
    rows = frame.orderBy("offset").collect()
    assert [row["temp"] for row in rows] == [None if it == 13 else it + 0.5 for it in range(50)]
    (bad,) = [row for row in rows if row["_undecoded"] is not None]
    assert (bad["offset"], bytes(bad["_raw"])) == (13, b"broken")
    alone = load(spark, tmp_path / "lake", "temp double", payloads=schema)
    assert alone.agg({"temp": "sum"}).first()[0] == sum(range(50)) + 25 - 13.5
    with pytest.raises(Exception, match="cannot be string"):
        load(spark, tmp_path / "lake", "temp string", payloads=schema).count()


def test_a_missing_file_fails_the_query_unless_it_may_be_missing(spark: Any, lake: Path) -> None:
    sorted(lake.rglob("*.brim"))[2].unlink()
    with pytest.raises(Exception, match="drain_seq 3 is missing"):
        load(spark, lake, missingGraceSeconds=0).count()
    assert load(spark, lake).count() == 20  # what comes behind is young: it is waited for
    assert load(spark, lake, failOnDataLoss="false").count() == 40


# ---- streams ----


def stream(spark: Any, lake: Path, root: Path, **options: object) -> list[int]:
    """Runs a query to the end of what is there; the number of rows of each batch."""
    sizes = []

    def write(frame: Any, batch: int) -> None:
        rows = frame.select("edge", "partition", "offset").collect()
        (root / "out").mkdir(exist_ok=True)
        (root / "out" / f"{batch}.json").write_text(json.dumps([list(row) for row in rows]))
        sizes.append(len(rows))

    query = (
        spark.readStream.format("brim")
        .options(**options)
        .load(str(lake))
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(root / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    return sizes


def forget_commit(checkpoint: Path, batch: int) -> None:
    """As if the driver had been killed between the output of a batch and its commit."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink()


def streamed(root: Path) -> list[list[Any]]:
    return sorted(row for path in (root / "out").glob("*.json") for row in json.loads(path.read_text()))


def drained_files(*numbers: int, edge: str = "edge-1") -> list[DrainedFile]:
    return [drained_file_of(10 * seq, 10 * seq + 9, drain_seq=seq + 1, edge=edge) for seq in numbers]


def test_a_stream_that_is_stopped_and_started_reads_each_record_once(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    assert stream(spark, lake, tmp_path, maxFilesPerTrigger=2) == [20, 20, 10]
    assert stream(spark, lake, tmp_path, maxFilesPerTrigger=2) == []
    store(lake, *drained_files(5, 6), *drained_files(0, 1, edge="kiln"))
    # Died between the output of a batch and its commit: it is run again, over its own output.
    forget_commit(tmp_path / "checkpoint", 2)
    assert sum(stream(spark, lake, tmp_path)) == 10 + 40
    assert streamed(tmp_path) == sorted(
        [["edge-1", 0, offset] for offset in range(70)] + [["kiln", 0, offset] for offset in range(20)]
    )


def test_a_stream_may_begin_with_what_is_new(spark: Any, lake: Path, tmp_path: Path) -> None:
    assert sum(stream(spark, lake, tmp_path, startingOffsets="latest")) == 0
    store(lake, *drained_files(5))
    assert stream(spark, lake, tmp_path, startingOffsets="latest") == [10]
    assert streamed(tmp_path) == [["edge-1", 0, offset] for offset in range(50, 60)]


def test_a_stream_waits_in_front_of_a_file_that_is_not_there_yet(
    spark: Any, lake: Path, tmp_path: Path
) -> None:
    store(lake, *drained_files(6))
    assert stream(spark, lake, tmp_path) == [50]
    store(lake, *drained_files(5))
    assert stream(spark, lake, tmp_path) == [20]
    assert streamed(tmp_path) == [["edge-1", 0, offset] for offset in range(70)]
