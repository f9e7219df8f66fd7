"""Two bridges for one edge and place, one after the other or in turns: no number is given twice."""

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bridge.drain.checkpoint import Checkpoint
from bridge.drain.clock import SYSTEM
from bridge.errors import SinkUnavailable
from bridge.format.file_name import FileName
from bridge.format.installation import Installation
from bridge.sinks import lease
from bridge.sinks.object_store import ObjectSink
from ringbuf import Ring
from tests.support.bridges import (
    EPOCH,
    FailingSink,
    Gates,
    SteppedDrain,
    begin_all,
    drain,
    publish,
    ring,
    run_dry,
    settings,
)
from tests.support.drained_files import footers, offsets_drained


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(("file_bytes", "of_the_other"), [(1 << 15, 320), (6144, 96)])
def test_a_bridge_that_was_killed_sees_what_another_has_put_under_the_numbers_that_it_meant_to_give(
    runtime_directory: Path, tmp_path: Path, begun: bool, file_bytes: int, of_the_other: int
) -> None:
    lake = tmp_path / "lake"
    first = settings(runtime_directory, tmp_path, window=4, file_bytes=4096)  # 64 records
    other = settings(runtime_directory, tmp_path, name="other", file_bytes=file_bytes)
    with ring(runtime_directory, capacity_bytes=1 << 18) as made:
        publish(made, 64)
        if begun:
            with drain(first, FailingSink(lake)) as drained:
                run_dry(drained)
        publish(made, 256)
        away = Gates(lake)
        away.before = [SinkUnavailable("down")] * 8
        with drain(first, away) as drained:
            begin_all(drained, 4)
            numbers = [it.drain_seq for it in drained.checkpoint.intents]
            for gate in away.open.values():
                gate.set()
        with drain(other) as drained:  # which knows no intent
            while not (cursor := drained.checkpoint.cursors.get(("default", 0))) or (
                cursor.next_offset < of_the_other
            ):
                drained.step()
            assert drained.drain_seq <= numbers[-1]  # so the next number says nothing
        publish(made, 10)
        with drain(first, FailingSink(lake)) as drained:
            run_dry(drained)
    found = list(footers(tmp_path))
    assert [it.drain_seq for it in found] == list(range(1, len(found) + 1))
    assert offsets_drained(lake) == {("default", 0, EPOCH): list(range(330))}
    assert not any(it.lost or it.skipped for it in found)


Machine = tuple[Ring, SteppedDrain]


@contextmanager
def two_machines(
    runtime_directory: Path, directory: Path, store: Any, days_off: int, epochs_off: int = 0
) -> Iterator[list[Machine]]:
    """Two machines with one edge id, of which the second has a clock that is some days ahead.

    `epochs_off`: the ring of the second has so much higher an epoch.
    """
    machines = []
    with ExitStack() as stack:
        for name, days, epoch in ("one", 0, EPOCH), ("two", days_off, EPOCH + epochs_off):
            runtime, root = runtime_directory / name, directory / name
            runtime.mkdir()
            Installation.open(root / "state").begin_life(EPOCH)
            made = stack.enter_context(ring(runtime, epoch=epoch))
            sink = stack.enter_context(closing(ObjectSink(store, "memory://lake")))
            clock = DaysAhead(days)
            machines.append((made, stack.enter_context(drain(settings(runtime, root), sink, clock=clock))))
        yield machines


@pytest.fixture
def obstore(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The library, with leases that are over at once."""
    monkeypatch.setattr(lease, "LEASE_S", 0.0)  # an idle holder is followed at once
    monkeypatch.setattr(lease, "RENEW_S", 0.0)
    module: ModuleType = pytest.importorskip("obstore", reason="needs obstore: pip install 'brim[objects]'")
    return module


def files_in(obstore: ModuleType, store: Any) -> list[FileName]:
    names = [FileName.parse(entry["path"]) for entries in obstore.list(store) for entry in entries]
    return [name for name in names if name is not None]


@pytest.mark.parametrize(("days_off", "epochs_off"), [(0, 0), (2, 0), (-2, 0), (0, 5), (0, -5)])
def test_machines_with_one_edge_id_that_hold_the_lease_in_turns_give_no_number_twice(
    runtime_directory: Path, tmp_path: Path, obstore: ModuleType, days_off: int, epochs_off: int
) -> None:
    """Each drains its own records once, also if the rings of the other one have later epochs."""
    store = obstore.store.MemoryStore()
    with two_machines(runtime_directory, tmp_path, store, days_off, epochs_off) as machines:
        for _ in range(3):
            for made, drained in machines:
                publish(made, 5)
                drain_after_refusals(drained)
    files = files_in(obstore, store)
    assert sorted(name.drain_seq for name in files) == list(range(1, 7))
    assert len({name.epoch for name in files}) == 2
    assert sorted(name.first_offset for name in files) == [0, 0, 5, 5, 10, 10]


@pytest.mark.parametrize("other_puts", [True, False])
def test_a_file_that_was_put_on_a_lost_lease_stays_unless_its_number_was_given_again(
    runtime_directory: Path,
    tmp_path: Path,
    obstore: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    other_puts: bool,
) -> None:
    store, put = obstore.store.MemoryStore(), obstore.put
    with two_machines(runtime_directory, tmp_path, store, 0) as ((first, stopped), (second, other)):
        for made in (first, second):
            publish(made, 5)

        def stop_and_put(store: object, path: str, *arguments: Any, **options: Any) -> Any:
            if "/dt=" not in path:
                return put(store, path, *arguments, **options)
            monkeypatch.setattr(obstore, "put", put)
            if other_puts:
                drain_after_refusals(other)  # it gives the same number
                return put(store, path, *arguments, **options)
            result = put(store, path, *arguments, **options)
            drain_after_refusals(other)  # it finds the number taken
            return result

        monkeypatch.setattr(obstore, "put", stop_and_put)
        drain_after_refusals(stopped)
    files = files_in(obstore, store)
    assert sorted(name.drain_seq for name in files) == [1, 2]
    assert len({name.epoch for name in files}) == 2
    assert [name.first_offset for name in files] == [0, 0]
    winner = other if other_puts else stopped
    assert [winner.installation.owns(name.epoch) for name in sorted(files)] == [True, False]


def test_a_restored_checkpoint_of_an_earlier_installation_sends_no_record_of_this_one_again(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """The state directory has lost the identity, and gets a new one; the ring keeps its epoch."""
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made:
        Installation.open(chosen.state_dir).begin_life(EPOCH)
        publish(made, 5)
        with drain(chosen) as drained:
            run_dry(drained)
            drained.finish()
        backup = chosen.checkpoint_path.read_bytes()
        for file in chosen.state_dir.glob("installation*"):
            file.unlink()
        Installation.open(chosen.state_dir).begin_life(EPOCH)
        for _ in range(2):
            publish(made, 5)
            chosen.checkpoint_path.write_bytes(backup)
            with drain(chosen) as drained:
                run_dry(drained)
    earlier, present = offsets_drained(tmp_path / "lake").values()
    assert (earlier, present) == (list(range(5)), list(range(15)))


class DaysAhead(type(SYSTEM)):  # type: ignore[misc]
    """The clocks of a machine that is some days ahead."""

    def __init__(self, days: int) -> None:
        self._days = days

    def wall_ns(self) -> int:
        return time.time_ns() + self._days * 86_400 * 10**9


def drain_after_refusals(drained: SteppedDrain) -> None:
    """As a bridge does: the first put shows that another one has taken over, and is tried again."""
    for _ in range(3):
        try:
            run_dry(drained)
            return
        except SinkUnavailable:
            continue
    raise AssertionError("refused three times")


class Killed(SinkUnavailable, OSError):
    """The request was not made."""


def test_a_bridge_that_is_killed_at_any_step_after_another_gives_no_number_twice(
    runtime_directory: Path, tmp_path: Path, obstore: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one has a clock two days behind: its files are under days that a start does not look at."""
    for count in itertools.count(1):
        (runtime := runtime_directory / str(count)).mkdir()
        store = obstore.store.MemoryStore()
        with two_machines(runtime, tmp_path / str(count), store, -2) as machines:
            for made, drained in machines:
                publish(made, 5)
                drain_after_refusals(drained)
            publish(machines[0][0], 5)
        chosen = settings(runtime / "one", tmp_path / str(count) / "one")
        with monkeypatch.context() as patched:
            refused = killed_after(count, obstore, patched)
            with suppress(SinkUnavailable), drain(chosen, ObjectSink(store, "memory://lake")) as drained:
                run_dry(drained)
        with drain(chosen, ObjectSink(store, "memory://lake")) as drained:
            drain_after_refusals(drained)
        files = files_in(obstore, store)
        assert sorted(name.drain_seq for name in files) == [1, 2, 3], f"killed after step {count}"
        if not refused:
            break
    assert count > 8  # requests for the lease, the days, both listings and the file; and saves


def killed_after(count: int, obstore: ModuleType, patched: pytest.MonkeyPatch) -> list[str]:
    """Refuse each request to a store and each save after `count` of them. Returns the refused."""
    made: list[str] = []
    refused: list[str] = []

    def limited(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def made_or_refused(*arguments: Any, **options: Any) -> Any:
            if len(made) >= count:
                refused.append(name)
                raise Killed("killed")
            made.append(name)
            return call(*arguments, **options)

        return made_or_refused

    for place in (obstore, Checkpoint):
        for name in ("put", "get", "list", "list_with_delimiter", "save"):
            if hasattr(place, name):
                patched.setattr(place, name, limited(name, getattr(place, name)))
    return refused
