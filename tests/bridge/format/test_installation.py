"""The identity of an installation: golden bytes, damage, copies, and epochs that no other one gives."""

import threading
from pathlib import Path

import pytest

from bridge.errors import SinkUnavailable
from bridge.format.installation import (
    Holder,
    Identity,
    Installation,
    InstallationMismatch,
    Life,
    pack_identity,
    unpack_identity,
)
from bridge.format.lake_epoch import ring_epoch
from bridge.sinks.directory import DirectorySink
from tests.support.project import ROOT

GOLDEN = ROOT / "tests" / "golden" / "state" / "installation-v1.bin"
IDENTITY = Identity("0123456789abcdef" * 2, (Life(1, (1 << 30) + 5), Life(77, (1 << 31) - 1)))


def files(state_dir: Path) -> list[Path]:
    return [state_dir / "installation", state_dir / "installation.copy"]


def opened(state_dir: Path, *also: Path) -> Installation:
    """As the broker opens it."""
    found = Installation.open(state_dir, also)
    found.copy_to(also)
    return found


def test_it_is_written_as_the_golden_bytes_and_read_from_them() -> None:
    assert pack_identity(IDENTITY) == GOLDEN.read_bytes()
    assert unpack_identity(GOLDEN.read_bytes()) == IDENTITY


def test_every_cut_and_every_flipped_bit_is_found() -> None:
    good = GOLDEN.read_bytes()
    damaged = [good[:length] for length in range(len(good))]
    damaged += [good[:at] + bytes([good[at] ^ 1 << at % 8]) + good[at + 1 :] for at in range(len(good))]
    for data in damaged:
        with pytest.raises(ValueError, match=r"header|magic|checksum"):
            unpack_identity(data)


def test_each_state_directory_has_an_id_of_its_own_that_stays(tmp_path: Path) -> None:
    one, two = opened(tmp_path / "one"), opened(tmp_path / "two")
    assert one.identity.id != two.identity.id
    assert opened(tmp_path / "one").identity == one.identity
    for path in files(tmp_path / "one"):
        assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(files(tmp_path / "one")) == sorted((tmp_path / "one").iterdir())


@pytest.mark.parametrize("name", ["installation", "installation.copy"])
@pytest.mark.parametrize("damage", [b"", b"x" * 100])
def test_a_file_that_is_damaged_or_removed_is_made_from_its_copy(
    tmp_path: Path, name: str, damage: bytes
) -> None:
    made = opened(tmp_path)
    made.begin_life(5)
    for spoil in (lambda path: path.write_bytes(damage), Path.unlink):
        spoil(tmp_path / name)
        assert opened(tmp_path).identity == made.identity
        assert {path.read_bytes() for path in files(tmp_path)} == {pack_identity(made.identity)}


@pytest.mark.parametrize("damaged", [["installation"], ["installation", "installation.copy"]])
def test_each_damaged_file_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damaged: list[str]
) -> None:
    opened(tmp_path)
    for name in damaged:
        (tmp_path / name).write_bytes(b"x")
    opened(tmp_path)
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split()[3] for line in lines] == [f"path={tmp_path / name}" for name in damaged]


def test_the_copy_next_to_the_rings_brings_back_what_a_state_directory_has_lost(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    made = opened(tmp_path / "state", run)
    made.begin_life(3)
    backup = [path.read_bytes() for path in files(tmp_path / "state")]
    made.begin_life(9)
    for path, data in zip(files(tmp_path / "state"), backup, strict=True):
        path.write_bytes(data)
    assert opened(tmp_path / "state", run).identity == made.identity
    for path in files(tmp_path / "state"):
        path.unlink()
    assert opened(tmp_path / "state", run).identity == made.identity


def test_a_runtime_directory_of_another_installation_is_refused_and_both_are_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    one, two = opened(tmp_path / "one", run), Installation.open(tmp_path / "two")
    with pytest.raises(InstallationMismatch) as caught:
        two.copy_to([run])
    assert one.identity.id in str(caught.value)
    assert two.identity.id in str(caught.value)
    assert "remove none" in caught.value.hint


def test_an_epoch_is_in_the_lake_under_the_number_of_its_life(tmp_path: Path) -> None:
    first, second = (life.number for life in IDENTITY.lives)
    assert [IDENTITY.lake_epoch(it) for it in (0, 1, 76, 77, (1 << 32) - 1)] == [
        0, first << 32 | 1, first << 32 | 76, second << 32 | 77, second << 32 | (1 << 32) - 1,
    ]  # fmt: skip
    assert ring_epoch(second << 32 | 77) == 77
    installation = opened(tmp_path)
    installation.identity = IDENTITY
    assert [installation.owns(it) for it in (0, 1, first << 32 | 1, first << 32 | 77)] == [
        True, False, True, False,
    ]  # fmt: skip
    assert len(str(first << 32)) == len(str(second << 32 | (1 << 32) - 1)) == 19


def test_the_same_epochs_of_two_installations_and_of_a_restored_one_are_different(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two", "one"):
        made = opened(tmp_path / name)
        before = [path.read_bytes() for path in files(tmp_path / name)]
        made.begin_life(1)
        found.append(made.lake_epoch(1))
        for path, data in zip(files(tmp_path / name), before, strict=True):
            path.write_bytes(data)
    assert len(set(found)) == 3


def test_a_bridge_in_another_process_sees_a_life_when_it_has_begun(tmp_path: Path) -> None:
    broker, bridge = opened(tmp_path), Installation.open(tmp_path)
    assert bridge.lake_epoch(7) == 7
    broker.begin_life(7)
    assert bridge.lake_epoch(7) == broker.lake_epoch(7) > 7


def test_many_that_open_a_new_directory_at_once_agree(tmp_path: Path) -> None:
    found: list[str] = []
    ready = threading.Barrier(16)

    def look() -> None:
        ready.wait()
        found.append(Installation.open(tmp_path).identity.id)

    threads = [threading.Thread(target=look) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert len(set(found)) == 1


def test_two_copies_of_a_state_directory_are_two_holders_and_a_restarted_bridge_is_the_same(
    tmp_path: Path,
) -> None:
    made = opened(tmp_path / "one")
    (tmp_path / "two").mkdir()
    for path in files(tmp_path / "one"):
        (tmp_path / "two" / path.name).write_bytes(path.read_bytes())
    one, two = made.holder(), Installation.open(tmp_path / "two").holder()
    assert one.installation == two.installation
    assert one.key != two.key
    assert Installation.open(tmp_path / "one").holder().key == one.key
    assert one.boot in one.key


def test_a_directory_names_both_installations_when_it_refuses_one(tmp_path: Path) -> None:
    one, two = DirectorySink(tmp_path / "lake"), DirectorySink(tmp_path / "lake")
    first, second = Holder("1" * 32, "boot-1", "a.1", "gateway"), Holder("2" * 32, "boot-2", "a.2", "spare")
    one.hold_as(first)
    two.hold_as(second)
    one.begin("plant")
    with pytest.raises(SinkUnavailable) as caught:
        two.begin("plant")
    for it in (first, second):
        assert it.installation in str(caught.value)
        assert it.host in str(caught.value)
    assert "copy of the other" not in str(caught.value)
    one.close()
    two.begin("plant")
    two.close()
