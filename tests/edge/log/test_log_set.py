"""Several logs under one directory: which ring goes where, and what is read after rings have moved."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import NoReturn

import pytest

from bridge.source.broker_log import BrokerLog
from edge.config.schema import Durability, Stream
from edge.errors import EdgeError
from edge.log import log_set
from edge.log.log_set import LogSet, Placing
from edge.log.offline_reader import LogView
from persistence import Log, LoggedRing, RecoveryReport
from persistence.read.directories import home, logs_in, worker_of
from ringbuf import Range, Ring
from ringbuf.record import decode
from tests.support.waiting import PATIENCE_S, wait_until

NAMES = [f"s-{number}" for number in range(8)]


@contextmanager
def rings(directory: Path, names: list[str], capacity_bytes: int = 1 << 20) -> Iterator[dict[str, Ring]]:
    made = {name: Ring.create(directory / name, capacity_bytes=capacity_bytes, epoch=7) for name in names}
    try:
        yield made
    finally:
        for ring in made.values():
            ring.close()


@contextmanager
def logged(
    directory: Path, rings: dict[str, Ring], *, workers: int = 1, isolated: bool = False
) -> Iterator[LogSet]:
    """A LogSet that writes these rings."""
    logs = LogSet(directory, Placing(workers, 1 << 20, 0))
    try:
        logs.open(dict.fromkeys(rings, isolated))
        logs.start([(LoggedRing(ring, "disk"), isolated) for ring in rings.values()], Event().set)
        yield logs
    finally:
        logs.stop()
        logs.close()


def publish(rings: dict[str, Ring], *payloads: str) -> None:
    """The same records to each ring; returns when they are durable."""
    for ring in rings.values():
        for payload in payloads:
            ring.writer().publish(payload.encode(), key=b"t")
    wait_until(lambda: all(is_durable(ring) for ring in rings.values()))


def is_durable(ring: Ring) -> bool:
    """True if the log has all records of the ring."""
    return ring.extremes().durable_position == ring.extremes().end_position


def payloads(log: LogSet | BrokerLog, name: str, epoch: int = 7) -> list[str]:
    """Payloads of a ring from offset 0 on; each offset once, in order."""
    reader = log.reader if isinstance(log, LogSet) else log
    found, offset = [], 0
    while ranges := reader.read(name, epoch, offset, 1 << 20):
        for number, payload in _records(ranges, epoch):
            assert number == offset, f"offset {number} instead of {offset}"
            found.append(payload)
            offset += 1
    return found


def _records(ranges: list[Range], epoch: int) -> Iterator[tuple[int, str]]:
    for it in ranges:
        data = bytes(it.view)
        while data:
            record, length = decode(data, epoch)
            yield record.offset, record.payload.decode()
            data = data[length:]


def test_rings_are_spread_over_workers_by_their_id(runtime_directory: Path, tmp_path: Path) -> None:
    assert {worker_of(name, 3) for name in NAMES} == {0, 1, 2}
    with rings(runtime_directory, NAMES) as made, logged(tmp_path, made, workers=3) as logs:
        publish(made, "a")
        assert logs_in(tmp_path) == [tmp_path, tmp_path / "worker1", tmp_path / "worker2"]
        for name in NAMES:
            assert logs.log_of(name).directory == str(home(tmp_path, name, isolated=False, workers=3))
            assert logs.log_of(name).reader.epochs(name)
        assert len(logs.status()["logs"]) == 3
        assert logs.status()["records"] == len(NAMES)


def test_an_isolated_ring_has_a_log_of_its_own(runtime_directory: Path, tmp_path: Path) -> None:
    with rings(runtime_directory, ["a-0", "a-1"]) as made, logged(tmp_path, made, isolated=True) as logs:
        publish(made, "a", "b")
        assert set(logs.log_of("a-0").reader.ends()) == {"a-0"}
        assert logs.log_of("a-0") is not logs.log_of("a-1")
        assert payloads(logs, "a-1") == ["a", "b"]
    assert logs_in(tmp_path) == [tmp_path, tmp_path / "a-0", tmp_path / "a-1"]


def test_the_ring_of_a_producer_gets_no_log_after_the_stop(runtime_directory: Path, tmp_path: Path) -> None:
    stream = Stream("p", ("#",), durability=Durability.INTERVAL)
    with rings(runtime_directory, ["p@x-0"]) as made, logged(tmp_path, {}) as logs:
        logs.stop()
        with pytest.raises(EdgeError, match="the logs are closed"):
            logs.add_producer_ring(made["p@x-0"], stream)


def test_nothing_is_lost_or_written_twice_when_rings_move(runtime_directory: Path, tmp_path: Path) -> None:
    """Each start keeps the rings elsewhere; at the end all records are read, from wherever they are."""
    places: list[tuple[int, bool]] = [(1, False), (3, False), (1, True), (2, False), (3, False), (1, False)]
    with rings(runtime_directory, NAMES) as made:
        for number, (workers, isolated) in enumerate(places):
            with logged(tmp_path, made, workers=workers, isolated=isolated) as logs:
                publish(made, f"{number} a", f"{number} b")
                written = logs.status()["records"]
                assert written == 2 * len(NAMES), "a ring was begun again where it had been logged already"
                expected = [f"{it} {which}" for it in range(number + 1) for which in "ab"]
                for name in NAMES:
                    assert payloads(logs, name) == expected
                    assert [tuple(it) for it in logs.reader.epochs(name)] == [(7, 0, len(expected))]
            assert [payloads(BrokerLog(tmp_path), name) for name in NAMES] == [expected] * len(NAMES)


def test_a_ring_that_has_gone_is_continued_where_the_last_log_ends(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with rings(runtime_directory, ["a-0"]) as made, logged(tmp_path, made):
        publish(made, "a", "b", "c")
    with logged(tmp_path, {}, workers=2):
        pass
    logs = LogSet(tmp_path, Placing(1, 1 << 20, 0))
    logs.open({"a-0": True})
    try:
        assert logs.ends()["a-0"] == (7, 3)
    finally:
        logs.close()


def test_cold_reads_by_position_find_records_in_the_former_log(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with rings(runtime_directory, ["a-0"]) as made:
        with logged(tmp_path, made):
            publish(made, "before")
            end = made["a-0"].extremes().end_position
        with logged(tmp_path, made, isolated=True) as logs:
            publish(made, "after")
            before, after = logs.reader.read_at("a-0", 7, 0, 1), logs.reader.read_at("a-0", 7, end, 1)
            assert [payload for _, payload in _records(before, 7)] == ["before"]
            assert [payload for _, payload in _records(after, 7)] == ["after"]


def test_a_log_that_another_process_writes_is_named(runtime_directory: Path, tmp_path: Path) -> None:
    with rings(runtime_directory, ["a-0"]) as made, logged(tmp_path, made, isolated=True):
        other = LogSet(tmp_path, Placing(1, 1 << 20, 0))
        with pytest.raises(EdgeError, match=r"is written by another process"):
            other.open({"a-0": True})
        other.close()


def test_a_start_tells_when_a_log_stops_taking_records(runtime_directory: Path, tmp_path: Path) -> None:
    told = Event()
    with rings(runtime_directory, ["a-0"]) as made, logged(tmp_path, made) as logs:
        logs.on_change = told.set
        publish(made, "a")
        (thread,) = logs._threads.values()
        state = thread.writer.state
        state.failed("the disk is full (ENOSPC)", read_only=True)
        assert told.wait(PATIENCE_S)
        assert logs.failure_of("a-0") == "the disk is full (ENOSPC)"
        assert logs.failure_of("elsewhere-0") == ""
        state.recovered()
        assert logs.failure_of("a-0") == ""


def test_a_log_that_gets_its_thread_later_is_blocked_from_the_start(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with rings(runtime_directory, ["a-0", "b-0"]) as made, logged(tmp_path, {"a-0": made["a-0"]}) as logs:
        logs.on_log = lambda log: logs.block(log.directory, "the disk is nearly full")
        logs.add_ring(made["b-0"], Stream("b", ("b",), durability=Durability.DISK, isolated=True))
        thread = logs._threads[tmp_path / "b-0"]
        assert thread.writer.blocked == "the disk is nearly full"
        logs.block(str(tmp_path / "b-0"), "")
        assert not thread.writer.blocked


@pytest.mark.parametrize("ask", [LogSet.status, LogSet.numbers])
def test_a_report_while_the_logs_stop_has_no_error(
    ask: Callable[[LogSet], object], runtime_directory: Path, tmp_path: Path
) -> None:
    with rings(runtime_directory, ["a-0", "a-1"]) as made, logged(tmp_path, made, isolated=True) as logs:
        publish(made, "a")
        for thread in logs._threads.values():
            thread.status = _stopping_first(logs, thread.status)  # type: ignore[method-assign]
        ask(logs)
        assert not logs._threads


def _stopping_first(logs: LogSet, status: Callable[[], dict[str, object]]) -> Callable[[], dict[str, object]]:
    def stop() -> dict[str, object]:
        logs.stop()
        return status()

    return stop


def test_a_log_directory_that_is_a_file_is_named_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "disk-0").write_bytes(b"")
    logs = LogSet(tmp_path, Placing(workers=1, segment_bytes=1 << 20, retain_bytes=0))
    with pytest.raises(EdgeError, match="disk-0/LOCK: Not a directory") as error:
        logs.open({"disk-0": True})
    logs.close()
    assert error.value.hint == "move or remove it, or set another [log] directory"


def test_logs_of_exchanged_directories_are_read_and_reported(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As of two disks with each other's place in a table of mounts."""
    first, second, between = tmp_path / "a-0", tmp_path / "b-0", tmp_path / "between"
    with rings(runtime_directory, ["a-0", "b-0"]) as made:
        with logged(tmp_path, made, isolated=True):
            publish(made, "a", "b")
        for before, now in ((first, between), (second, first), (between, second)):
            before.rename(now)
        for expected in (["a", "b", "c"], ["a", "b", "c", "d"]):
            with logged(tmp_path, made, isolated=True) as logs:
                publish(made, expected[-1])
                assert logs.status()["records"] == 2, "records were written again"
                assert [payloads(logs, name) for name in made] == [expected] * 2
            assert [payloads(BrokerLog(tmp_path), name) for name in made] == [expected] * 2
            view = LogView(tmp_path)
            assert [tuple(it) for name in made for it in view.epochs(name)] == [(7, 0, len(expected))] * 2
    assert "log of one ring has records of others" in caplog.text
    assert "rings=b-0" in caplog.text


def test_a_log_that_cannot_be_repaired_is_only_read_until_a_ring_needs_it(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ring that needs it prevents a start, and opens it again when its disk takes changes."""
    recover = Log.recover

    def fail(log: Log) -> RecoveryReport:
        if log.directory == str(tmp_path / "a-0"):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), log.directory)
        return recover(log)

    with rings(runtime_directory, ["a-0", "b-0"]) as made:
        with logged(tmp_path, made, isolated=True):
            publish(made, "a")
        monkeypatch.setattr(Log, "recover", fail)
        refused = LogSet(tmp_path, Placing(1, 1 << 20, 0))
        with pytest.raises(EdgeError, match="Read-only file system"):
            refused.open({"a-0": True, "b-0": True})
        refused.close()
        with logged(tmp_path, {"b-0": made["b-0"]}, isolated=True) as logs:
            assert (payloads(logs, "a-0"), logs.ends()["a-0"]) == (["a"], (7, 1))
            monkeypatch.undo()
            logs.add_ring(
                made["a-0"], Stream(name="a", topics=("t",), isolated=True, durability=Durability.DISK)
            )
            publish({"a-0": made["a-0"]}, "b")
            assert payloads(logs, "a-0") == ["a", "b"]


def test_a_log_that_can_neither_be_repaired_nor_read_prevents_a_start(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "a-0")

    with rings(runtime_directory, ["a-0"]) as made, logged(tmp_path, made, isolated=True):
        publish(made, "a")
    monkeypatch.setattr(Log, "recover", fail)
    monkeypatch.setattr(log_set, "recover", fail)
    logs = LogSet(tmp_path, Placing(1, 1 << 20, 0))
    with pytest.raises(EdgeError, match="Input/output error"):
        logs.open({})
    logs.close()
