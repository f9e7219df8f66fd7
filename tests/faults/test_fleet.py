"""A fleet and its lake: whatever becomes of machines, clocks and state directories, all that was acknowledged
is in the lake once, or declared, and no verdict contradicts the publisher's ledger.

The scenarios stand in tests/support/fleet_scenarios.py; spark/test_fleet_table.py runs them into a table.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from bridge.format.file_name import FileName
from edge.cli import main
from tests.support import fleet_scenarios as scenarios
from tests.support.fleet import Lake
from tests.support.fleet_lakes import directory_lake, fleet_in, s3_lake
from tests.support.fleet_scenarios import Make
from tests.support.s3_server import s3_server

pytest.importorskip("paho", reason="needs paho: pip install paho-mqtt")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'brim[spark]'")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[s3,server]'")
    with s3_server() as url:
        yield url


directory = pytest.mark.parametrize("lake", ["directory"], indirect=True)
both = pytest.mark.parametrize("lake", ["directory", "s3"], indirect=True)


@pytest.fixture
def lake(request: pytest.FixtureRequest, s3: str, tmp_path: Path) -> Lake:
    """A new lake of each kind."""
    if request.param == "directory":
        return directory_lake(tmp_path)
    return s3_lake(s3, f"lake-{abs(hash(request.node.name))}", tmp_path)


@pytest.fixture
def machine(
    lake: Lake, tmp_path: Path, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """machine(name, **settings): one that is killed at the end of the test; all have one ledger."""
    with fleet_in(lake, tmp_path, runtime_directory, monkeypatch) as make:
        yield make


@pytest.fixture
def logging_machine(
    lake: Lake, tmp_path: Path, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Make]:
    """The same with durability interval."""
    with fleet_in(lake, tmp_path, runtime_directory, monkeypatch, durability="interval") as make:
        yield make


@directory
@pytest.mark.parametrize("clock", scenarios.CLOCKS)
def test_a_box_that_lost_its_state_drains_all_of_its_new_records(
    machine: Make, lake: Lake, clock: str
) -> None:
    scenarios.lost_state(machine, lake, clock)


@both
def test_of_two_machines_with_one_edge_id_the_second_is_refused_by_name_and_follows_the_first(
    machine: Make, lake: Lake
) -> None:
    scenarios.taken_edge_id(machine, lake)


@both
def test_of_two_machines_with_one_edge_id_that_start_together_one_is_refused_and_follows_the_other(
    machine: Make, lake: Lake
) -> None:
    scenarios.started_together(machine, lake)


@directory
def test_two_machines_with_one_edge_id_that_take_turns_lose_and_double_nothing(
    machine: Make, lake: Lake
) -> None:
    scenarios.in_turns(machine, lake)


@both
def test_a_clone_is_refused_while_the_original_drains_and_then_drains_all_of_its_own(
    logging_machine: Make, lake: Lake
) -> None:
    scenarios.clone(logging_machine, lake)


@directory
def test_a_clone_with_an_edge_id_of_its_own_drains_next_to_the_original(
    logging_machine: Make, lake: Lake
) -> None:
    scenarios.clone_with_edge_id(logging_machine, lake)


@directory
def test_a_backup_of_the_state_directory_reuses_no_identity(machine: Make, lake: Lake) -> None:
    scenarios.backup(machine, lake)


@directory
def test_a_backup_of_the_state_directory_with_its_log_reuses_no_identity(
    logging_machine: Make, lake: Lake
) -> None:
    scenarios.backup(logging_machine, lake)


@directory
def test_a_state_directory_that_is_lost_while_the_rings_live_is_found_again(
    machine: Make, lake: Lake
) -> None:
    scenarios.lost_state_with_rings(machine, lake)


@directory
def test_partitions_may_grow_and_shrink(machine: Make, lake: Lake) -> None:
    scenarios.changed_partitions(machine, lake)


@directory
@pytest.mark.parametrize("apart", [False, True])
def test_an_export_gives_records_the_identities_that_the_bridge_gave(
    machine: Make, lake: Lake, tmp_path: Path, apart: bool
) -> None:
    log_dir = tmp_path / "log"
    box = machine("box", durability="interval", log_dir=log_dir if apart else None)
    box.run(50)
    box.reboot()
    if apart:
        shutil.rmtree(box.state_dir)
    box.run(50)
    root = tmp_path / "lake"
    before = set(map(identity_in, root.rglob("[0-9]*.brim")))
    where = log_dir if apart else box.state_dir / "log"
    command = ["segments", "export", "--drained", "--to", str(tmp_path / "export"), "--log", str(where)]
    assert main([*command, "--edge", box.edge]) == 0
    again = set(map(identity_in, (tmp_path / "export").rglob("[0-9]*.brim")))
    assert {epoch for *_, epoch in again} == {epoch for *_, epoch in before}
    assert len(again) == 2
    box.ledger.check(lake)


def identity_in(path: Path) -> tuple[str, int, int]:
    """Stream, partition and epoch in the name of a drained file."""
    name = FileName.parse(str(path))
    assert name is not None
    return name.stream, name.partition, name.epoch
