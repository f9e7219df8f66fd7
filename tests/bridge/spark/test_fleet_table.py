"""Fleet scenarios into a table that Spark's jobs fill while the fleet runs.

Each acknowledged record is in the table once, by the publishers' ledger, and the verdicts agree with it.
"""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("paho", reason="needs paho: pip install paho-mqtt")
pytest.importorskip("pyarrow", reason="needs the spark extra: pip install 'brim[spark]'")
pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from tests.support.drained_files import drained_file_of, store
from tests.support.fleet import Lake
from tests.support.fleet_lakes import directory_lake, fleet_in, s3_lake
from tests.support.fleet_scenarios import SCENARIOS
from tests.support.fleet_table import FleetTable
from tests.support.s3_server import s3_server

pytestmark = [pytest.mark.java, pytest.mark.timeout(400)]

Run = Callable[[str, Lake, str], None]


@pytest.fixture
def run(
    spark: Any,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    runtime_directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    """run(scenario, lake, durability).  Figures become properties of the test, which --junitxml writes."""

    def run(scenario: str, lake: Lake, durability: str) -> None:
        assert lake.table is not None
        with fleet_in(lake, tmp_path, runtime_directory, monkeypatch, durability=durability) as machine:
            SCENARIOS[scenario](machine, lake)
        assert lake.table.figures
        request.node.user_properties.extend(lake.table.figures.items())

    return run


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[s3,server]'")
    with s3_server() as url:
        yield url


def test_each_acknowledged_record_is_in_the_table_once_and_all_verdicts_agree(
    run: Run, tmp_path: Path
) -> None:
    run("re-imaged, clock same second", directory_lake(tmp_path, table=True), "process")


@pytest.mark.campaign
@pytest.mark.parametrize("durability", ["process", "interval"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_ends_in_a_table_of_a_directory(
    run: Run, tmp_path: Path, scenario: str, durability: str
) -> None:
    run(scenario, directory_lake(tmp_path, table=True), durability)


@pytest.mark.campaign
@pytest.mark.parametrize("durability", ["process", "interval"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_ends_in_a_table_of_a_bucket(
    run: Run, s3: str, tmp_path: Path, scenario: str, durability: str
) -> None:
    bucket = f"lake-{abs(hash((scenario, durability)))}"
    run(scenario, s3_lake(s3, bucket, tmp_path, table=True), durability)


@pytest.mark.campaign
def test_the_ledger_finds_a_record_that_the_table_lacks_or_has_twice(spark: Any, tmp_path: Path) -> None:
    """The judge of the scenarios is judged."""
    root = tmp_path / "lake"
    store(root, drained_file_of(0, 9), drained_file_of(10, 19, drain_seq=2))
    table, acknowledged = FleetTable(str(root), tmp_path / "table"), [str(it) for it in range(20)]
    table.check(acknowledged)
    with pytest.raises(AssertionError, match="'lost': 1"):
        table.check([*acknowledged, "20"])
    with pytest.raises(AssertionError, match="'doubles': 1"):
        table.check(acknowledged[1:])
    (batch,) = table.path.glob("batch=*")
    shutil.copytree(batch, table.path / "batch=000000007")
    with pytest.raises(AssertionError, match="'verdict': 'missing'"):
        table.check(acknowledged)
