"""The look-up of numbers at a start lists and reads only what can hold one of them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bridge.drain.settings import BridgeSettings
from bridge.format import installation
from bridge.format.file_name import FileName
from bridge.sinks.directory import DirectorySink
from bridge.sinks.interface import StoredEntry
from ringbuf import Ring
from tests.support.bridges import EPOCH, drain, publish, ring, run_dry, settings

EARLIER = [(datetime.now(UTC) - timedelta(days=days)).date().isoformat() for days in range(2, 40)]


class Watched(DirectorySink):
    """A directory that notes what is listed and read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.days_listed: list[str] = []
        self.others: list[str] = []

    def entries(self, prefix: str, after: str = "") -> Iterator[StoredEntry]:
        self.days_listed.append(prefix.removeprefix("edge=edge-1/dt=").rstrip("/"))
        return super().entries(prefix, after)

    def read(self, path: str, last: int | None = None) -> bytes:
        self.others.append(f"read {path}")
        return super().read(path, last)


@pytest.fixture
def made(runtime_directory: Path) -> Iterator[Ring]:
    with ring(runtime_directory) as made:
        yield made


@pytest.fixture
def chosen(made: Ring, runtime_directory: Path, tmp_path: Path) -> BridgeSettings:
    """Of a bridge that has drained one file, after many days with a merged file each."""
    for number, day in enumerate(reversed(EARLIER)):
        directory = tmp_path / "lake" / "edge=edge-1" / f"dt={day}"
        directory.mkdir(parents=True)
        name = f"{number + 2:016d}-old-p0000-e{EPOCH}-{number:020d}-{number + 1:020d}.merged.brim"
        (directory / name).write_bytes(b"read for nothing")
    chosen = settings(runtime_directory, tmp_path)
    publish(made, 5)
    with drain(chosen) as drained:
        run_dry(drained)
        assert drained.drain_seq == len(EARLIER) + 2
    return chosen


def started(chosen: BridgeSettings, made: Ring) -> Watched:
    sink = Watched(chosen.state_dir.parent / "lake")
    publish(made, 5)
    with drain(chosen, sink) as drained:
        run_dry(drained)
    return sink


def test_after_a_reboot_it_lists_the_days_since_the_last_file(
    chosen: BridgeSettings, made: Ring, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (boot := tmp_path / "boot_id").write_text("another boot")
    monkeypatch.setattr(installation, "BOOT_ID", boot)
    sink = started(chosen, made)
    assert not set(sink.days_listed) & set(EARLIER)
    assert sink.days_listed
    assert sink.others == []


def test_with_a_checkpoint_from_a_backup_it_lists_each_day_once_and_reads_no_file_of_earlier_numbers(
    chosen: BridgeSettings, made: Ring, tmp_path: Path
) -> None:
    backup = chosen.checkpoint_path.read_bytes()
    started(chosen, made)
    chosen.checkpoint_path.write_bytes(backup)
    sink = started(chosen, made)
    assert len(sink.days_listed) == len(set(sink.days_listed)) == len(EARLIER) + 1
    assert sink.others == []
    paths = map(str, (tmp_path / "lake").rglob("*-default-*"))
    names = sorted(name for path in paths if (name := FileName.parse(path)) is not None)
    first = len(EARLIER) + 2
    assert [(name.drain_seq, name.first_offset, name.last_offset) for name in names] == [
        (first, 0, 4),
        (first + 1, 5, 9),
        (first + 2, 10, 14),
    ]
