"""Names that nothing has: refused in tables, said in streams. Other names on a checkpoint. No Spark."""

import logging
import re
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from pyspark.sql.streaming.datasource import ReadMaxFiles
from pyspark.sql.types import LongType, StructType

from bridge.errors import SourceOptionError
from bridge.spark.data_source import BrimDataSource
from tests.support.drained_files import drained_file_of, store

OFFSET = StructType().add("offset", LongType())
NOTHING = {"version": 1, "edges": {}}


def source(lake: Path, options: dict[str, str]) -> BrimDataSource:
    return BrimDataSource({"path": str(lake), **options})


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    store(tmp_path, drained_file_of(0, 9, stream="press"), drained_file_of(0, 9, stream="weld", drain_seq=2))
    return tmp_path


@pytest.mark.parametrize("view", ["records", "files"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stream": "pres"}, "of stream 'pres'\\ndid you mean press. there are press, weld; pres. takes"),
        ({"stream": "weld,lathe"}, "of stream 'lathe'\\nthere are press, weld"),
        ({"edge": "edge-2"}, "of edge 'edge-2'\\ndid you mean edge-1"),
    ],
)
def test_a_table_refuses_a_name_that_nothing_has(
    lake: Path, view: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(SourceOptionError, match=said):
        source(lake, {**options, "view": view}).reader(OFFSET).partitions()


@pytest.mark.parametrize("options", [{"stream": "p*"}, {"stream": "lathe*"}, {"edge": "edge-[12]"}, {}])
def test_a_pattern_asks_for_whatever_is_there(lake: Path, options: dict[str, str]) -> None:
    source(lake, options).reader(OFFSET).partitions()


def test_a_landing_zone_without_files_knows_no_names_yet(tmp_path: Path) -> None:
    for options in ({"stream": "press"}, {"edge": "edge-1"}):
        assert source(tmp_path, options).reader(OFFSET).partitions() == []


def test_a_stream_says_once_that_a_name_is_not_there_and_waits_for_it(
    lake: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream = source(lake, {"stream": "lathe"}).streamReader(OFFSET)
    with caplog.at_level(logging.WARNING):
        ends = [stream.latestOffset(NOTHING, ReadMaxFiles(9)) for _ in range(2)]
    assert ends == [{"version": 1, "edges": {"edge-1": 2}, "chosen": {"stream": "lathe"}}] * 2
    (said,) = (record.getMessage() for record in caplog.records)
    assert "'lathe', and this query waits for it (there are press, weld" in said


@pytest.mark.parametrize(
    ("before", "now", "refused"),
    [
        ({"stream": "press"}, {}, "with stream=press, and it has no stream now"),
        ({"stream": "press"}, {"stream": "press,weld"}, "stream=press, and it has stream=press,weld now"),
        ({"topic": "plant/1/#", "offsets": "5-"}, {"topic": "plant/#", "offsets": "5-"}, "topic=plant/1/#"),
        ({"offsets": "5-"}, {"offsets": "0-"}, "offsets=5-"),
        ({"partition": "0"}, {"partition": "0,1"}, "partition=0"),
        ({"until": "2026-01-31"}, {"until": "2026-02-01"}, "until=2026-01-31"),
        ({"since": "2026-01-31"}, {"since": "2026-01-30"}, "since=2026-01-31"),
        ({"since": "2023-11-01"}, {"since": "2023-11-02"}, ""),
        ({}, {"stream": "press"}, ""),
        ({"edge": "edge-2"}, {"edge": "edge-*"}, ""),  # a new edge is read from its first file
        ({"stream": "press"}, {"stream": "press", "maxFilesPerTrigger": "1", "mode": "PERMISSIVE"}, ""),
    ],
)
def test_a_checkpoint_is_not_continued_with_options_that_want_what_it_has_left_out(
    lake: Path, before: dict[str, str], now: dict[str, str], refused: str
) -> None:
    begun = source(lake, before).streamReader(OFFSET)
    planned = begun.latestOffset(begun.initialOffset(), ReadMaxFiles(1))
    continued = source(lake, now).streamReader(OFFSET)
    calls = (
        lambda: continued.commit(planned),
        lambda: continued.latestOffset(planned, ReadMaxFiles(9)),
        lambda: continued.partitions(NOTHING, planned),  # a batch that was killed
    )
    for call in calls:
        if refused:
            with pytest.raises(SourceOptionError, match=re.escape(refused)):
                call()
        else:
            call()
