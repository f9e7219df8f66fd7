"""A fleet and its lake: whatever becomes of machines, clocks and state directories, all that was acknowledged
is in the lake once, or declared, and no verdict contradicts the publisher's ledger.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bridge.drained import Name
from edge.cli import main
from tests.support.fleet import Lake, Ledger, Machine
from tests.support.waiting import wait_until

pytest.importorskip("paho", reason="needs paho: pip install paho-mqtt")
pytest.importorskip("pyarrow", reason="needs pyarrow: pip install 'brim[spark]'")

SECOND = 1_700_000_000
Made = Callable[..., Machine]


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    pytest.importorskip("moto", reason="needs moto: pip install 'moto[s3,server]'")
    from tests.support.s3_server import s3_server

    with s3_server() as url:
        yield url


everywhere = pytest.mark.parametrize(
    "lake", ["directory", pytest.param("s3", marks=pytest.mark.campaign)], indirect=True
)
both = pytest.mark.parametrize("lake", ["directory", "s3"], indirect=True)


@pytest.fixture
def lake(request: pytest.FixtureRequest, s3: str, tmp_path: Path) -> Lake:
    """A new lake of each kind."""
    if request.param == "directory":
        root = tmp_path / "lake"
        root.mkdir()
        return Lake(root.as_uri(), lambda: root)
    obstore = pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
    from tests.support.s3_server import make_bucket, options

    bucket = f"lake-{abs(hash(request.node.name))}"
    make_bucket(s3, bucket)
    store = obstore.store.S3Store(bucket, client_options={"allow_http": True}, **options(s3))

    def copy() -> Path:
        root = tmp_path / "copy"
        for entry in obstore.list(store).collect():
            path = root / entry["path"]
            if not path.exists() and not path.name.startswith("."):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(bytes(obstore.get(store, entry["path"]).bytes()))
        return root

    return Lake(f"s3://{bucket}", copy, options(s3))


@pytest.fixture
def machine(
    lake: Lake, tmp_path: Path, runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Made]:
    """machine(name, **settings): one that is killed at the end of the test; all have one ledger."""
    made: list[Machine] = []
    ledger = Ledger()

    def make(name: str, *, clock: str = "", **more: Any) -> Machine:
        if clock:
            monkeypatch.setenv("BRIM_TEST_CLOCK", clock)
        machine = Machine(name, lake, ledger, tmp_path / name, runtime_directory / name, clock=clock, **more)
        made.append(machine)
        return machine

    yield make
    for it in made:
        it.kill()


@everywhere
@pytest.mark.parametrize("clock", ["right", "past", "same second"])
def test_a_box_that_lost_its_state_drains_all_of_its_new_records(
    machine: Made, lake: Lake, clock: str
) -> None:
    first = machine("before", clock=f"{SECOND}!")
    first.run(300)
    first.reimage()
    clocks = {"right": "", "past": str(SECOND - 10**9), "same second": f"{SECOND}!"}
    again = machine("after", clock=clocks[clock])
    again.run(500)
    assert len(again.ledger.acknowledged) == 800
    again.ledger.check(lake)


@both
def test_of_two_machines_with_one_edge_id_the_second_is_refused_by_name_and_follows_the_first(
    machine: Made, lake: Lake
) -> None:
    one, two = machine("one"), machine("two")
    one.start()
    one.publish(100)
    one.drain()
    two.start()
    two.publish(150)
    wait_until(lambda: "drains this edge there" in two.bridge()["last_error"])
    said = two.bridge()
    for machine_id in (installation_of(one), installation_of(two)):
        assert f"installation {machine_id}" in said["last_error"]
    assert said["condition"] == "retrying"
    wait_until(lambda: two.bridge()["lag_records"] == 150)
    one.publish(50)
    one.drain()
    one.stop()
    two.drain()
    two.stop()
    two.ledger.check(lake)


@everywhere
def test_two_machines_with_one_edge_id_that_take_turns_lose_and_double_nothing(
    machine: Made, lake: Lake
) -> None:
    one, two = machine("one"), machine("two")
    for _ in range(2):
        one.run(60)
        two.run(90)
    one.ledger.check(lake)


@both
def test_a_clone_is_refused_while_the_original_drains_and_then_drains_all_of_its_own(
    machine: Made, lake: Lake
) -> None:
    original = machine("original", durability="interval")
    original.run(100)
    clone = machine("clone", durability="interval")
    shutil.copytree(original.directory, clone.directory)
    assert installation_of(clone) == installation_of(original)
    original.start()
    original.publish(70)
    original.drain()
    clone.start()
    clone.publish(120)
    wait_until(lambda: "one state directory is a copy of the other" in clone.bridge()["last_error"])
    assert "nothing is removed" in clone.bridge()["remedy"]
    original.stop()
    clone.drain()
    clone.stop()
    original.run(30)
    original.ledger.check(lake)


@everywhere
def test_a_clone_with_an_edge_id_of_its_own_drains_next_to_the_original(machine: Made, lake: Lake) -> None:
    """The remedy of the refusal."""
    original = machine("original", durability="interval")
    original.run(40)
    clone = machine("clone", durability="interval")
    shutil.copytree(original.directory, clone.directory)
    original.start()
    original.publish(30)
    original.drain()
    clone.edge, clone.bridge_name = "plant-2", "lake-2"
    clone.start()
    clone.publish(50)
    clone.drain()
    original.stop()
    clone.stop()
    there = lake.payloads()
    assert set(clone.ledger.acknowledged) == set(there)
    assert lake.verdict()[0] == 0


@everywhere
@pytest.mark.parametrize("durability", ["process", "interval"])
def test_a_backup_of_the_state_directory_reuses_no_identity(
    machine: Made, lake: Lake, tmp_path: Path, durability: str
) -> None:
    box = machine("box", durability=durability)
    box.run(100)
    shutil.copytree(box.state_dir, tmp_path / "backup")
    box.reboot()
    box.run(200)
    box.reboot()
    shutil.rmtree(box.state_dir)
    shutil.copytree(tmp_path / "backup", box.state_dir)
    box.run(300)
    box.ledger.check(lake)


@everywhere
def test_a_state_directory_that_is_lost_while_the_rings_live_is_found_again(
    machine: Made, lake: Lake
) -> None:
    box = machine("box")
    box.run(100)
    before = installation_of(box)
    shutil.rmtree(box.state_dir)
    box.run(100)
    assert installation_of(box) == before
    box.ledger.check(lake)


@everywhere
def test_partitions_may_grow_and_shrink(machine: Made, lake: Lake) -> None:
    box = machine("box")
    for partitions in (1, 4, 2, 1):
        box.partitions = partitions
        box.run(80)
    box.ledger.check(lake)


@pytest.mark.parametrize("lake", ["directory"], indirect=True)
@pytest.mark.parametrize("apart", [False, True])
def test_an_export_gives_records_the_identities_that_the_bridge_gave(
    machine: Made, lake: Lake, tmp_path: Path, apart: bool
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
    name = Name.parse(str(path))
    assert name is not None
    return name.stream, name.partition, name.epoch


def installation_of(machine: Machine) -> str:
    """The id in its state directory."""
    data = (machine.state_dir / "installation").read_bytes()
    return data.partition(b'"id":"')[2][:32].decode()
