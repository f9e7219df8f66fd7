"""The bridge as it runs: outages, back-off, pause, what it says of itself."""

import errno
import json
import logging
import os
import random
import shutil
import threading
from functools import partial
from pathlib import Path

import pytest

from bridge.backoff import Backoff
from bridge.drain import retries
from bridge.drain.bridge import Bridge
from bridge.errors import BridgeError, CheckpointBusy, InvalidCommand, SinkConflict, SinkUnavailable
from bridge.format.file_builder import DrainedFile
from persistence.read.log_reader import Epoch
from ringbuf import Range
from tests.support.bridges import EPOCH, FailingSink, drain, publish, ring, run_dry, running, settings
from tests.support.drained_files import offsets_drained
from tests.support.waiting import PATIENCE_S, wait_until


def drained(root: Path) -> list[int]:
    return offsets_drained(root / "lake").get(("default", 0, EPOCH), [])


def _is_drained(root: Path, wanted: list[int]) -> bool:
    return drained(root) == wanted


def test_an_idle_stream_is_drained_by_linger_alone(runtime_directory: Path, tmp_path: Path) -> None:
    with (
        ring(runtime_directory) as made,
        running(settings(runtime_directory, tmp_path, linger_ms=50)) as bridge,
    ):
        for count in (1, 2, 3):
            publish(made, 10)
            wanted = list(range(10 * count))
            wait_until(partial(_is_drained, tmp_path, wanted))
        wait_until(lambda: bridge.state().drain_seq == 3 and bridge.state().condition == "idle")
        state = bridge.state()
    assert (state.drain_seq, state.lag_records, state.totals.records) == (3, 0, 30)
    assert state.last_ack_age_s is not None
    assert bridge.state().condition == "stopped"
    assert (bridge.state().drain_seq, bridge.state().totals.records) == (3, 30)


def test_flush_drains_what_would_linger(runtime_directory: Path, tmp_path: Path) -> None:
    hour = settings(runtime_directory, tmp_path, linger_ms=3_600_000)
    with ring(runtime_directory) as made, running(hour) as bridge:
        publish(made, 10)
        wait_until(lambda: bridge.state().lag_records == 10)
        assert bridge.state().condition == "draining"
        assert drained(tmp_path) == []
        assert bridge.flush(20)
        assert drained(tmp_path) == list(range(10))
        assert bridge.flush(20)


def test_a_ring_that_comes_later_is_found(runtime_directory: Path, tmp_path: Path) -> None:
    with running(settings(runtime_directory, tmp_path)) as bridge:
        wait_until(lambda: bridge.state().condition == "idle")
        with ring(runtime_directory) as made:
            publish(made, 5)
            wait_until(lambda: drained(tmp_path) == list(range(5)))


@pytest.mark.parametrize("how", ["unmounted", "replaced by a file"])
def test_a_lake_that_goes_away_is_waited_for(runtime_directory: Path, tmp_path: Path, how: str) -> None:
    mount = tmp_path / "mount"
    mount.mkdir()
    chosen = settings(runtime_directory, tmp_path, to=(mount / "lake").as_uri())
    with ring(runtime_directory) as made, running(chosen) as bridge:
        publish(made, 10)
        wait_until(lambda: bridge.state().drain_seq == 1)
        mount.rename(tmp_path / "away")
        if how == "replaced by a file":
            mount.write_text("")
        publish(made, 10)
        wait_until(lambda: bridge.state().failures >= 3)
        state = bridge.state()
        assert state.condition == "retrying"
        assert str(mount) in state.last_error
        assert state.remedy
        assert state.lag_records == 10
        if how == "replaced by a file":
            mount.unlink()
        (tmp_path / "away").rename(mount)
        bridge.resume()
        wait_until(lambda: bridge.state().condition == "idle")
        assert bridge.state().last_error == ""
    assert offsets_drained(mount / "lake") == {("default", 0, EPOCH): list(range(20))}


def test_a_lake_out_of_reach_is_told_of_before_there_is_anything_to_drain(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path, to=(tmp_path / "mount" / "lake").as_uri())
    with running(chosen) as bridge:
        wait_until(lambda: bridge.state().condition == "retrying")
        assert "mount" in bridge.state().remedy
        with ring(runtime_directory):
            wait_until(lambda: [it.stream for it in bridge.state().partitions] == ["default"])
        (tmp_path / "mount").mkdir()
        wait_until(lambda: bridge.state().condition == "idle")


def test_a_lake_that_is_removed_meanwhile_gets_what_comes_from_then_on(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with ring(runtime_directory) as made, running(settings(runtime_directory, tmp_path)) as bridge:
        publish(made, 10)
        wait_until(lambda: bridge.state().drain_seq == 1)
        shutil.rmtree(tmp_path / "lake")
        publish(made, 10)
        wait_until(lambda: drained(tmp_path) == list(range(10, 20)))


class UnreadableLog:
    """A log whose disk gives nothing, until it is mended."""

    mended = False

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        return []

    def epochs(self, ring_name: str) -> list[Epoch]:
        if not self.mended:
            raise OSError(errno.EIO, os.strerror(errno.EIO), "00000000.log")
        return []


def test_a_log_that_cannot_be_read_as_the_bridge_begins_is_told_of_and_waited_for(
    runtime_directory: Path, tmp_path: Path
) -> None:
    """Without its checkpoint the bridge looks up where the epoch began of which the sink has files."""
    chosen, cold = settings(runtime_directory, tmp_path), UnreadableLog()
    with ring(runtime_directory) as made:
        publish(made, 10)
        with running(chosen) as bridge:
            wait_until(lambda: bridge.state().condition == "idle" and bridge.state().drain_seq == 1)
        chosen.checkpoint_path.unlink()
        publish(made, 10)
        with running(chosen, record_log=cold) as bridge:
            wait_until(lambda: bridge.state().condition == "retrying")
            state = bridge.state()
            assert state.last_error.startswith(
                f"default-0: the first offset of epoch {EPOCH} cannot be read: "
            )
            assert "Input/output error" in state.last_error
            assert "access to the log" in state.remedy
            cold.mended = True
            wait_until(lambda: bridge.state().condition == "idle" and bridge.state().drain_seq == 2)
    assert drained(tmp_path) == list(range(20))


def test_while_paused_nothing_is_drained_and_nothing_is_lost(runtime_directory: Path, tmp_path: Path) -> None:
    with ring(runtime_directory) as made, running(settings(runtime_directory, tmp_path)) as bridge:
        bridge.pause()
        wait_until(lambda: bridge.state().condition == "paused")
        publish(made, 10)
        assert not bridge.flush(0.05)
        assert drained(tmp_path) == []
        bridge.resume()
        assert bridge.flush(20)
        assert drained(tmp_path) == list(range(10))


def test_who_looks_at_a_bridge_that_is_paused_from_its_start_sees_what_waits(
    runtime_directory: Path, tmp_path: Path
) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with running(chosen) as bridge:
        bridge.pause().result(PATIENCE_S)
    with ring(runtime_directory) as made, running(chosen) as bridge:
        publish(made, 10)
        wait_until(lambda: bridge.state().lag_records == 10)
        with ring(runtime_directory, "later-0") as later:
            publish(later, 5)
            wait_until(lambda: bridge.state().lag_records == 15)
            wait_until(lambda: bridge.state().lag_s > 0)
        assert bridge.state().condition == "paused"
        assert drained(tmp_path) == []


@pytest.mark.parametrize("drained_before", [0, 10])
def test_the_age_of_waiting_records_is_known_while_the_sink_is_away_from_the_start(
    runtime_directory: Path, tmp_path: Path, drained_before: int
) -> None:
    share = tmp_path / "share"
    chosen = settings(runtime_directory, tmp_path, to=(share / "lake").as_uri())
    with ring(runtime_directory) as made:
        if drained_before:
            share.mkdir()
            publish(made, drained_before)
            with running(chosen) as bridge:
                assert bridge.flush(20)
            share.rename(tmp_path / "away")
        publish(made, 10)
        with running(chosen) as bridge:
            wait_until(lambda: bridge.state().lag_records == 10)
            wait_until(lambda: bridge.state().lag_s > 0)
            assert bridge.state().condition == "retrying"


@pytest.mark.parametrize("arrived", [True, False])
def test_a_paused_bridge_knows_if_a_file_arrived_before_it_was_killed_and_sends_none(
    runtime_directory: Path, tmp_path: Path, arrived: bool
) -> None:
    chosen = settings(runtime_directory, tmp_path, file_records=10)
    sink = FailingSink(tmp_path / "lake")
    (sink.after if arrived else sink.before).append(SinkUnavailable("no answer"))
    with ring(runtime_directory) as made:
        publish(made, 30)
        with drain(chosen, sink) as killed:
            with pytest.raises(SinkUnavailable):
                run_dry(killed)
            killed.checkpoint.paused = True
            killed.checkpoint.save()
        sink.puts.clear()
        with running(chosen, sink=sink) as bridge:
            wait_until(lambda: bridge.state().lag_records == (20 if arrived else 30))
            wait_until(lambda: bridge.state().condition == "paused")
            assert sink.puts == []
            bridge.resume()
            assert bridge.flush(20)
    assert drained(tmp_path) == [*range(30)]


def test_an_order_to_a_bridge_that_has_ended_is_refused_at_once(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with running(settings(runtime_directory, tmp_path)) as bridge:
        pass
    with pytest.raises(InvalidCommand, match="has ended"):
        bridge.resume().result(0)


def test_a_conflict_blocks_until_somebody_says_go_on(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = FailingSink(tmp_path / "lake")
    sink.before = [SinkConflict("taken", hint="give each edge its own edge_id")]
    with ring(runtime_directory) as made, running(settings(runtime_directory, tmp_path), sink) as bridge:
        publish(made, 10)
        wait_until(lambda: bridge.state().condition == "blocked")
        assert bridge.state().remedy == "give each edge its own edge_id"
        assert len(sink.puts) == 1
        bridge.resume()
        assert bridge.flush(20)
    assert len(sink.puts) == 2
    assert drained(tmp_path) == list(range(10))
    assert "taken" in caplog.text


def test_an_outage_is_logged_once_and_not_with_every_try(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = FailingSink(tmp_path / "lake")
    sink.before = [SinkUnavailable(f"down in {tries}.5ms") for tries in range(8)]
    with (
        caplog.at_level(logging.INFO),
        ring(runtime_directory) as made,
        running(settings(runtime_directory, tmp_path), sink) as bridge,
    ):
        publish(made, 10)
        assert bridge.flush(20)
    said = [record.getMessage() for record in caplog.records if record.name == "bridge.drain.retries"]
    assert sum("down" in text for text in said) == 1
    assert sum("failures=8" in text for text in said) == 1


def test_two_bridges_of_one_name_do_not_run_at_once(runtime_directory: Path, tmp_path: Path) -> None:
    chosen = settings(runtime_directory, tmp_path)
    with running(chosen), pytest.raises(CheckpointBusy, match=r"lake\.checkpoint"):
        Bridge(chosen).start()


def test_two_bridges_drain_the_same_rings_to_two_lakes(runtime_directory: Path, tmp_path: Path) -> None:
    chosen = [
        settings(runtime_directory, tmp_path, name=name, to=(tmp_path / name).as_uri())
        for name in ("lake", "second")
    ]
    with ring(runtime_directory) as made, running(chosen[0]) as one, running(chosen[1]) as two:
        publish(made, 10)
        assert one.flush(20)
        assert two.flush(20)
    assert offsets_drained(tmp_path / "second") == offsets_drained(tmp_path / "lake")


def test_its_state_is_json(runtime_directory: Path, tmp_path: Path) -> None:
    with ring(runtime_directory) as made, running(settings(runtime_directory, tmp_path)) as bridge:
        publish(made, 10)
        assert bridge.flush(20)
        wait_until(lambda: bridge.state().partitions)
        said = json.loads(json.dumps(bridge.state().as_dict()))
    assert said["to"] == (tmp_path / "lake").as_uri()
    assert said["partitions"][0]["stream"] == "default"


def test_back_off_is_random_below_a_bound_that_doubles_up_to_its_limit() -> None:
    backoff = Backoff(0.5, 60, random.Random(1))
    bounds = [min(60, 0.5 * 2**failures) for failures in range(40)]
    waits = [backoff.next_s() for _ in bounds]
    assert all(0 <= wait <= bound for wait, bound in zip(waits, bounds, strict=True))
    assert max(waits[:3]) <= 2
    assert max(waits) > 50
    assert min(waits[10:]) < 10  # full jitter: from nothing on
    assert len(set(waits)) == len(waits)
    backoff.reset()
    assert backoff.next_s() <= 0.5


def test_an_edge_id_that_no_file_name_may_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BridgeError, match="edge id 'a/b'"):
        settings(tmp_path, tmp_path, edge_id="a/b")


def test_a_partition_that_cannot_be_read_is_an_error_in_state_metrics_and_log(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its ring has an epoch lower than one that was drained, as a clock in the past once made it."""
    chosen = settings(runtime_directory, tmp_path)
    with ring(runtime_directory) as made, running(chosen) as bridge:
        publish(made, 10)
        assert bridge.flush(20)
        made.unlink()
    with ring(runtime_directory, epoch=EPOCH - 1) as old, ring(runtime_directory, "other-0") as other:
        publish(old, 300)
        publish(other, 5)
        with running(chosen) as bridge:
            wait_until(lambda: bridge.state().totals.records == 5 and bridge.state().lag_s > 0)
            state = bridge.state()
    assert (state.condition, state.blocked_partitions, state.lag_records) == ("blocked", 1, 300)
    assert state.last_error.startswith("cannot read default-0, other partitions are drained: ")
    assert f"epoch {EPOCH - 1}, after epoch {EPOCH}" in state.last_error
    assert "remove nothing" in state.last_error
    blocked = [it for it in caplog.records if "partition blocked" in it.getMessage()]
    assert [it.levelname for it in blocked] == ["ERROR"]


def test_the_remedy_of_a_blocked_partition_drains_all_that_its_ring_holds(
    runtime_directory: Path, tmp_path: Path
) -> None:
    with ring(runtime_directory) as made, running(settings(runtime_directory, tmp_path)) as bridge:
        publish(made, 10)
        assert bridge.flush(20)
        made.unlink()
    with ring(runtime_directory, epoch=EPOCH - 1) as old:
        publish(old, 300)
        moved = settings(runtime_directory, tmp_path, edge_id="edge-2", name="lake-2")
        with running(moved) as bridge:
            assert bridge.flush(20)
    assert offsets_drained(tmp_path / "lake")["default", 0, EPOCH - 1] == list(range(300))


def _is_sent_again(bridge: Bridge, failures: int) -> bool:
    return (bridge.state().in_flight, bridge.state().failures) == (1, failures)


@pytest.mark.parametrize("window", [2, 4])
def test_a_sink_that_fails_late_is_shown_until_it_takes_a_file(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, window: int
) -> None:
    """As a line that is too slow: a put is under way nearly all the time, and fails at its time limit."""
    waits = [threading.Event() for _ in range(4)]
    begun = threading.Semaphore(0)

    class Slow(FailingSink):
        def put(self, file: DrainedFile) -> None:
            number = len(self.puts)
            self.puts.append(file.name)
            begun.release()
            assert waits[number].wait(PATIENCE_S)
            if number < 3:
                raise SinkUnavailable("no answer within 30 s", hint="raise timeout")
            self.inner.put(file)

    slow = Slow(tmp_path / "lake")
    with (
        ring(runtime_directory) as made,
        running(settings(runtime_directory, tmp_path, window=window), slow) as bridge,
    ):
        publish(made, 10)
        for number in range(4):
            assert begun.acquire(timeout=PATIENCE_S)
            if number:  # it is sent again, and nothing is known of it yet
                wait_until(partial(_is_sent_again, bridge, number))
                state = bridge.state()
                assert (state.condition, state.last_error) == ("retrying", "no answer within 30 s")
                assert state.remedy == "raise timeout"
            waits[number].set()
        wait_until(lambda: bridge.state().condition == "idle")
        assert (bridge.state().last_error, bridge.state().failures) == ("", 0)
    logged = [record.getMessage() for record in caplog.records if record.name == "bridge.drain.retries"]
    assert sum("no answer within 30 s" in line for line in logged) == 1
    assert drained(tmp_path) == list(range(10))


def test_a_sink_that_refuses_each_second_file_is_logged_once(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = FailingSink(tmp_path / "lake")
    for number in range(5):
        name, request = f"s3://lake/dt=2026-01-31/{number:016d}-default.brim", 10**9 + number
        sink.before += [SinkUnavailable(f"{name}: refused in {number} ms: request {request}"), None]
    with (
        ring(runtime_directory) as made,
        caplog.at_level(logging.INFO),
        running(settings(runtime_directory, tmp_path), sink) as bridge,
    ):
        for number in range(1, 6):
            publish(made, 1)
            wait_until(lambda number=number: bridge.state().drain_seq == number)  # type: ignore[misc]
    assert len(sink.puts) == 10
    logged = [record.getMessage() for record in caplog.records if record.name == "bridge.drain.retries"]
    assert sum("retrying" in line for line in logged) == 1
    assert sum("continued" in line for line in logged) == 1


def test_an_outage_after_a_short_failure_of_the_same_kind_is_logged(
    runtime_directory: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "LOGGED_AGAIN_S", 0.5)
    sink, away = FailingSink(tmp_path / "lake"), SinkUnavailable("away")
    sink.before = [away, None, *[away] * 1000]
    lines = caplog.records
    with ring(runtime_directory) as made, running(settings(runtime_directory, tmp_path), sink) as bridge:
        publish(made, 1)
        wait_until(lambda: bridge.state().drain_seq == 1)
        publish(made, 1)
        wait_until(lambda: sum("retrying" in line.getMessage() for line in lines) == 2)
