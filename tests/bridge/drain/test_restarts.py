"""A bridge after errors of no known class: it starts again by itself, and neither loses nor doubles."""

import logging
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from bridge.drain.bridge import Bridge
from bridge.drain.checkpoint import Checkpoint
from bridge.errors import CheckpointMismatch, SinkUnavailable
from bridge.format.file_builder import DrainedFile
from bridge.format.sink_batch import Rejected, SinkBatch
from bridge.source.partition_source import PartitionSource
from tests.support.bridges import EPOCH, FailingSink, publish, ring, running, settings
from tests.support.drained_files import offsets_drained
from tests.support.waiting import wait_until

ALL = {("default", 0, EPOCH): list(range(50))}


class PanicException(BaseException):
    """As libraries in Rust raise it: no Exception."""


class MistakenSink(FailingSink):
    """A directory with a mistake: errors of no known class, before a file is stored or after."""

    def __init__(self, root: Path, mistakes: Sequence[BaseException], *, stores: bool = False) -> None:
        super().__init__(root)
        self.mistakes, self.stores = list(mistakes), stores
        self._one = threading.Lock()

    def put(self, file: DrainedFile) -> None:
        with self._one:
            mistake = self.mistakes.pop(0) if self.mistakes else None
        if mistake is None or self.stores:
            super().put(file)
        if mistake is not None:
            raise mistake


class MistakenQueue:
    """A sink for records that fails after it has taken some of them."""

    url = "queue://here"

    def __init__(self, mistakes: int) -> None:
        self.mistakes = mistakes
        self.offsets: list[int] = []

    def begin(self, edge: str) -> None:
        del edge

    def send(self, records: SinkBatch) -> Future[Sequence[Rejected]]:
        taken = [record.offset for record in records]
        if self.mistakes:
            self.mistakes -= 1
            self.offsets += taken[: len(taken) // 2]
            raise ValueError("the queue is full of mistakes")
        self.offsets += taken
        done: Future[Sequence[Rejected]] = Future()
        done.set_result(())
        return done

    def close(self) -> None:
        pass


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno >= logging.ERROR and record.exc_info]


@pytest.mark.parametrize("limit", [RuntimeError("can't start new thread"), MemoryError()])
def test_a_limit_of_the_process_has_its_remedy_and_no_advice_to_skip_records(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, limit: Exception
) -> None:
    sink = MistakenSink(tmp_path / "lake", [limit])
    with ring(runtime_directory) as made:
        publish(made, 50)
        with running(settings(runtime_directory, tmp_path), sink) as bridge:
            wait_until(lambda: bridge.state().condition == "idle")
    assert offsets_drained(tmp_path / "lake") == ALL
    assert tracebacks(caplog) == []
    (line,) = [text for text in caplog.messages if text.startswith("bridge failed")]
    assert "raise TasksMax= of the service" in line
    assert "skip" not in line


@pytest.mark.parametrize("window", [1, 4])
@pytest.mark.parametrize("stores", [False, True], ids=["before it is stored", "after it is stored"])
def test_a_bridge_starts_again_after_a_mistake_and_each_record_is_there_once(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, window: int, stores: bool
) -> None:
    mistakes = [RuntimeError("an error of no known class") for _ in range(8)]
    sink = MistakenSink(tmp_path / "lake", mistakes, stores=stores)
    chosen = settings(runtime_directory, tmp_path, window=window, file_records=5)
    with ring(runtime_directory) as made:
        publish(made, 50)
        with running(chosen, sink) as bridge:
            wait_until(lambda: bridge.state().condition == "idle")
            state = bridge.state()
    assert offsets_drained(tmp_path / "lake") == ALL
    assert (state.last_error, state.remedy, state.lag_records) == ("", "", 0)
    assert 2 <= state.totals.restarts <= 8  # several files of one drain may have failed
    assert state.totals.records == 50
    assert len(tracebacks(caplog)) == 1
    logged = tracebacks(caplog)[0].getMessage()
    assert "RuntimeError('an error of no known class')" in logged
    assert "starts again from its checkpoint" in logged


def test_what_a_library_in_rust_raises_ends_no_bridge(runtime_directory: Path, tmp_path: Path) -> None:
    sink = MistakenSink(tmp_path / "lake", [PanicException("index out of bounds")])
    with ring(runtime_directory) as made, running(settings(runtime_directory, tmp_path), sink) as bridge:
        publish(made, 50)
        assert bridge.flush(20)
        assert bridge.state().totals.restarts == 1
    assert offsets_drained(tmp_path / "lake") == ALL


def test_a_queue_gets_no_more_again_than_the_resend_limit(runtime_directory: Path, tmp_path: Path) -> None:
    sink = MistakenQueue(mistakes=3)
    chosen = settings(runtime_directory, tmp_path, resend_max_records=10)
    with ring(runtime_directory) as made, running(chosen, sink) as bridge:
        publish(made, 50)
        assert bridge.flush(20)
        assert bridge.state().totals.restarts == 3
    assert sorted(set(sink.offsets)) == list(range(50))
    assert len(sink.offsets) <= 50 + 3 * 10
    firsts = [offset for at, offset in enumerate(sink.offsets) if offset not in sink.offsets[:at]]
    assert firsts == sorted(firsts)


def test_the_state_says_what_is_wrong_while_a_bridge_waits_to_start_again(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = MistakenSink(tmp_path / "lake", [RuntimeError("an error of no known class")])
    hour = settings(runtime_directory, tmp_path, backoff_min_ms=3_600_000, backoff_max_ms=3_600_000)
    with ring(runtime_directory) as made, running(hour, sink) as bridge:
        publish(made, 50)
        wait_until(lambda: bridge.state().condition == "retrying")
        state = bridge.state()
        assert state.last_error == "RuntimeError('an error of no known class')"
        assert "report the traceback" in state.remedy
        assert (state.failures, state.totals.restarts) == (1, 1)
        assert bridge.resume().result(20) == ["bridge lake resumed"]  # now, and not in an hour
        wait_until(lambda: bridge.state().condition == "idle")
    assert offsets_drained(tmp_path / "lake") == ALL
    assert bridge.state().condition == "stopped"


def test_a_command_that_comes_while_a_drain_fails_ends_the_pause_after_it(
    runtime_directory: Path, tmp_path: Path
) -> None:
    commands: list[Future[list[str]]] = []

    class CommandedSink(MistakenSink):
        def put(self, file: DrainedFile) -> None:
            if self.mistakes:
                commands.append(bridge.resume())
            super().put(file)

    sink = CommandedSink(tmp_path / "lake", [RuntimeError("an error of no known class")])
    hour = settings(runtime_directory, tmp_path, backoff_min_ms=3_600_000, backoff_max_ms=3_600_000)
    with ring(runtime_directory) as made, running(hour, sink) as bridge:
        publish(made, 50)
        wait_until(lambda: bridge.state().condition == "idle")
        assert commands[0].result(20) == ["bridge lake resumed"]
        assert bridge.state().totals.restarts == 1
    assert offsets_drained(tmp_path / "lake") == ALL


def test_an_error_while_a_bridge_waits_for_its_checkpoint_is_logged_once(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bridge.drain.bridge.STATE_INTERVAL_S", 0.001)
    with ring(runtime_directory) as made:
        publish(made, 50)
        with running(settings(runtime_directory, tmp_path)) as bridge:
            wait_until(lambda: bridge.state().condition == "idle")
        looks = 0

        def look(*_: object) -> None:
            nonlocal looks
            looks += 1
            raise RuntimeError("an error of no known class")

        monkeypatch.setattr(Bridge, "_waiting", look)
        other = Bridge(settings(runtime_directory, tmp_path, edge_id="edge-2"))
        other._restarts._began_s -= 100  # it waits for longer than a drain takes to be steady
        with pytest.raises(CheckpointMismatch) as mismatch:
            other.start()
        other.start_when_matching(mismatch.value)
        wait_until(lambda: looks >= 5)
        assert other.stop(20)
    assert len(tracebacks(caplog)) == 1


def test_a_bridge_that_waits_to_start_again_can_be_stopped_and_frees_its_checkpoint(
    runtime_directory: Path, tmp_path: Path
) -> None:
    sink = MistakenSink(tmp_path / "lake", [RuntimeError(f"mistake {number}") for number in range(4)])
    hour = settings(
        runtime_directory, tmp_path, window=4, file_records=5, backoff_min_ms=3_600_000,
        backoff_max_ms=3_600_000,
    )  # fmt: skip
    with ring(runtime_directory) as made, running(hour, sink) as bridge:
        publish(made, 50)
        wait_until(lambda: bridge.state().condition == "retrying")
    assert bridge.state().condition == "stopped"
    Checkpoint.open(hour.checkpoint_path, hour.edge_id, sink.url).close()


def test_a_mistake_that_one_partition_meets_stops_no_other(
    runtime_directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    read = PartitionSource.read

    def mistaken(source: PartitionSource, *arguments: Any) -> Any:
        if source.name.partition == 1 and mistakes:
            raise KeyError("an error of no known class")
        return read(source, *arguments)

    mistakes = [True]
    monkeypatch.setattr(PartitionSource, "read", mistaken)
    monkeypatch.setattr("bridge.drain.partitions.SOURCE_RETRY_S", 0.01)
    with (
        ring(runtime_directory) as one,
        ring(runtime_directory, "default-1") as other,
        running(settings(runtime_directory, tmp_path)) as bridge,
    ):
        publish(other, 5)
        wait_until(lambda: bridge.state().blocked_partitions == 1)
        publish(one, 50)
        wait_until(lambda: offsets_drained(tmp_path / "lake") == ALL)
        state = bridge.state()
        assert (state.condition, state.totals.restarts) == ("blocked", 0)
        assert "KeyError" in state.last_error
        assert "brim bridge skip lake --stream default" in state.last_error
        mistakes.clear()
        wait_until(lambda: bridge.state().condition == "idle")
    assert offsets_drained(tmp_path / "lake") == {**ALL, ("default", 1, EPOCH): list(range(5))}
    assert len(tracebacks(caplog)) == 1


def test_a_known_error_of_the_sink_restarts_nothing(runtime_directory: Path, tmp_path: Path) -> None:
    sink = FailingSink(tmp_path / "lake")
    sink.before = [SinkUnavailable("down")]
    with ring(runtime_directory) as made, running(settings(runtime_directory, tmp_path), sink) as bridge:
        publish(made, 5)
        assert bridge.flush(20)
        assert (bridge.state().totals.retries, bridge.state().totals.restarts) == (1, 0)
