"""Files as Parquet: the same rows, once, in fewer bytes, where every tool finds them."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bridge.errors import BadName, DrainedFileError, SinkBlocked, SinkConflict, SinkUnavailable
from bridge.format.file_builder import compressed
from bridge.format.file_parser import parse
from bridge.format.parquet_footer import footer_of, metadata_of
from bridge.sinks.interface import FileSink
from bridge.sinks.registry import open_file_sink
from ringbuf.extras import install_extra
from tests.support.bridges import FailingSink, drain, publish, ring, run_dry, settings
from tests.support.drained_files import EPOCH, GOLDEN, drained_file_of, golden_file
from tests.support.project import ROOT

pa = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'brim[spark]'")
from pyarrow import dataset, parquet  # noqa: E402

from bridge.arrow.decode import decode_file  # noqa: E402
from bridge.arrow.schema import TYPES, Constants, batch_of  # noqa: E402
from bridge.sinks import parquet as parquet_module  # noqa: E402
from bridge.sinks.parquet import parquet_bytes, parquet_name, table_of  # noqa: E402


@pytest.fixture
def sink(tmp_path: Path) -> FileSink:
    return open_file_sink((tmp_path / "lake").as_uri(), {"format": "parquet"})


def telemetry(offset: int) -> bytes:
    return b'{"device":"press-%04d","seq":%d,"temperature":21.%02d}' % (
        offset % 100,
        offset,
        offset * 7 % 100,
    )


def rows_of(drained_file: Any, schema: Any) -> Any:
    """Rows that Spark's own source reads from the drained file."""
    file = parse(b"".join(drained_file.parts))
    constants = Constants(file.footer.edge, file.footer.stream, file.footer.partition, file.footer.epoch)
    decoded = decode_file(file, list(TYPES))
    return pa.Table.from_batches([batch_of(it, constants, schema) for it in decoded])


def test_the_rows_are_those_of_the_drained_file_and_edge_and_day_are_partitions(
    sink: FileSink, tmp_path: Path
) -> None:
    files = [
        drained_file_of(0, 999, payload=telemetry),
        drained_file_of(1000, 1499, drain_seq=2, payload=telemetry),
    ]
    sink.put(files[0])
    sink.put(compressed(files[1]))
    sink.close()
    found = dataset.dataset(tmp_path / "lake", partitioning="hive").to_table().sort_by("offset")
    schema = pa.schema([field for field in found.schema if field.name not in {"edge", "dt"}])
    assert [field.name for field in schema] == [
        name for name in TYPES if name not in {"edge", "_corrupt_record"}
    ]
    wanted = pa.concat_tables(rows_of(file, schema) for file in files)
    assert found.select(schema.names).equals(wanted)
    assert set(found["edge"].to_pylist()) == {"edge-1"}
    assert set(map(str, found["dt"].to_pylist())) == {"2023-11-14"}


def test_a_file_says_whose_it_is_is_delta_encoded_and_half_as_long_as_the_compressed_one() -> None:
    drained_file = drained_file_of(0, 19_999, payload=telemetry)
    content = parquet_bytes(table_of(drained_file), drained_file)
    file = parquet.ParquetFile(pa.BufferReader(content))
    assert footer_of(file.metadata.metadata) == drained_file.footer
    group = file.metadata.row_group(0)
    encodings = {
        group.column(at).path_in_schema: group.column(at).encodings for at in range(group.num_columns)
    }
    assert "DELTA_BINARY_PACKED" in encodings["offset"]
    assert "DELTA_BINARY_PACKED" in encodings["timestamp"]
    assert len(content) < 0.7 * compressed(drained_file).length


def test_the_metadata_of_a_file_is_text_and_the_bytes_of_the_version_before_are_read() -> None:
    footer = golden_file().footer
    text = (GOLDEN / "parquet-metadata-v2.json").read_bytes()
    assert metadata_of(footer) == {b"brim": text}
    content = parquet_bytes(table_of(file := drained_file_of(0, 9)), file)
    for key, value in parquet.read_metadata(pa.BufferReader(content)).metadata.items():
        assert (key + value).decode().isprintable()
    assert footer_of({b"brim": text}) == footer
    assert footer_of({b"brim": (GOLDEN / "parquet-metadata-v1.bin").read_bytes()}) == footer


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"{", "invalid metadata"),
        (b'{"a":' + b"[" * 100_000, "invalid metadata"),
        (b'{"version":3}', "this build reads 1 to 2"),
        (b"{}", "this build reads 1 to 2"),
        (b'{"version":2}', "invalid footer"),
        (b'{"version":2,"edge":1}', "invalid footer"),
        (b"[]", "invalid footer"),
        (b"\xc1", "invalid footer"),
        (b"\x80", "invalid footer"),
    ],
)
def test_metadata_that_is_damaged_is_an_error(value: bytes, reason: str) -> None:
    with pytest.raises(DrainedFileError, match=reason):
        footer_of({b"brim": value})


def test_a_file_that_the_version_before_has_put_is_the_same_file(sink: FileSink, tmp_path: Path) -> None:
    """Killed after its put, then upgraded: the file stays."""
    file = drained_file_of(0, 9)
    sink.put(file)
    (path,) = tmp_path.rglob("*.parquet")
    table, out = parquet.read_table(path, partitioning=None), pa.BufferOutputStream()
    with parquet.ParquetWriter(out, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({"brim": file.footer.pack()})
    path.write_bytes(before := bytes(out.getvalue()))
    sink.put(file)
    assert path.read_bytes() == before
    with pytest.raises(SinkConflict):
        sink.put(drained_file_of(0, 9, lost=((0, 0),)))
    sink.close()


def test_a_file_that_is_put_again_is_there_once_and_another_one_is_a_conflict(
    sink: FileSink, tmp_path: Path
) -> None:
    file = drained_file_of(0, 9)
    sink.put(file)
    sink.put(file)
    with pytest.raises(SinkConflict):
        sink.put(drained_file_of(0, 9, payload=lambda offset: str(9 - offset).encode()))
    assert list(sink.names("edge=edge-1/")) == [file.name]
    assert [str(it.relative_to(tmp_path / "lake")) for it in tmp_path.rglob("*.parquet")] == [
        parquet_name(file.name)
    ]
    sink.close()


def test_a_file_that_another_pyarrow_has_put_is_known_by_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed behind its put, then pyarrow replaced: the same records in other bytes, which stay."""
    file = drained_file_of(0, 99, payload=telemetry)
    other = {**parquet_module.SETTINGS, "compression_level": 9, "data_page_version": "2.0"}
    for sink in (
        open_file_sink((tmp_path / "lake").as_uri(), {"format": "parquet"}),
        open_file_sink("memory:///lake", {"format": "parquet"}),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(parquet_module, "SETTINGS", other)
            sink.put(file)
        assert bytes(parquet_bytes(table_of(file), file)[-1000:]) not in b"".join(
            it.read_bytes() for it in tmp_path.rglob("*.parquet")
        )
        sink.put(file)
        for differs in (
            drained_file_of(0, 99, payload=lambda offset: telemetry(99 - offset)),
            drained_file_of(0, 99, payload=telemetry, lost=((0, 0),)),
        ):
            with pytest.raises(SinkConflict):
                sink.put(differs)
        sink.close()


@pytest.mark.parametrize("content", [b"", b"PAR1", b"\xff" * 8, b"x" * 100, b"\x04\x00\x00\x00PAR1" * 2])
def test_what_is_no_parquet_is_a_conflict(sink: FileSink, tmp_path: Path, content: bytes) -> None:
    file = drained_file_of(0, 9)
    sink.put(file)
    (found,) = tmp_path.rglob("*.parquet")
    found.write_bytes(content)
    with pytest.raises(SinkConflict):
        sink.put(file)
    sink.close()


def test_a_record_that_does_not_verify_stops_it(sink: FileSink) -> None:
    file = drained_file_of(0, 9)
    damaged = bytearray(file.runs[0].records)
    damaged[200] ^= 1
    runs = (type(file.runs[0])(memoryview(damaged), False),)
    from dataclasses import replace

    with pytest.raises(SinkBlocked, match="do not verify"):
        sink.put(replace(file, runs=runs))
    sink.close()


def test_a_drain_whose_checkpoint_is_lost_goes_on_behind_the_files_that_are_there(tmp_path: Path) -> None:
    made = ring(tmp_path)
    publish(made, 200, size=30)
    for checkpoint in ("first", "second"):
        sink = open_file_sink((tmp_path / "lake").as_uri(), {"format": "parquet"})
        with drain(settings(tmp_path, tmp_path / checkpoint, file_bytes=8192), sink) as drained:
            run_dry(drained)
        publish(made, 100, size=30)
    made.close()
    found = dataset.dataset(tmp_path / "lake", partitioning="hive").to_table()
    assert sorted(found["offset"].to_pylist()) == list(range(300))
    assert set(found["epoch"].to_pylist()) == {EPOCH}


@pytest.mark.parametrize("compress", ["none", "zstd"])
def test_a_file_that_has_arrived_is_not_lost_with_its_records(tmp_path: Path, compress: str) -> None:
    """Killed before the answer came; the ring has moved on since, and only the sink knows."""
    sink = FailingSink(tmp_path / "lake")
    parquet_files: Any = open_file_sink((tmp_path / "lake").as_uri(), {"format": "parquet"})
    sink.inner = parquet_files
    sink.after = [SinkUnavailable("down")]
    chosen = settings(tmp_path, tmp_path, compress=compress)
    with ring(tmp_path) as made:
        publish(made, 20)
        with drain(chosen, sink) as drained, pytest.raises(SinkUnavailable):
            run_dry(drained)
        publish(made, 3000, size=100)
        oldest = made.extremes().oldest_offset
        with drain(chosen, sink) as drained:
            run_dry(drained)
            assert drained.totals.lost_records == oldest - 20
            assert drained.checkpoint.free == []
    numbers = sorted(int(path.name[:16]) for path in (tmp_path / "lake").rglob("*.parquet"))
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize("library", ["numpy", "pyarrow"])
def test_a_library_that_is_missing_is_named_with_the_extra_that_has_it(tmp_path: Path, library: str) -> None:
    code = f"""
import sys
sys.modules["{library}"] = None
from bridge.errors import SinkUnavailable
from bridge.sinks.registry import open_file_sink
try:
    open_file_sink("{tmp_path.as_uri()}", {{"format": "parquet"}})
except SinkUnavailable as error:
    print(error, error.hint)
"""
    line = [sys.executable, "-c", code]
    run = subprocess.run(line, capture_output=True, cwd=ROOT, timeout=60, check=True, text=True)
    assert f"{library} is not installed" in run.stdout
    assert install_extra("archive") in run.stdout


def test_a_format_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadName, match="orc"):
        open_file_sink(tmp_path.as_uri(), {"format": "orc"})
