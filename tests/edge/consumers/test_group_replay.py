"""Groups that replay: members together get records at a factor of their original speed.

The records are of the day before, in the log; the clock of the coordinator stands still between two looks.
"""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from brim import consumer
from edge.consumers.delivery_settings import DeliverySettings
from edge.consumers.group_replay import PATIENCE_S
from edge.consumers.protocol import (
    VERSION,
    Done,
    Failed,
    GroupList,
    Groups,
    Join,
    Leave,
    Reset,
    SetGroup,
)
from edge.consumers.replay_clock import EVERYTHING_NS, ReplayClock
from edge.errors import InvalidArgument
from edge.rpc.protocol import encode as encoded
from persistence.read.log_reader import Epoch
from ringbuf import Range
from ringbuf.record import encode
from tests.support.consumer_desk import Desk, Talker, texts
from tests.support.log_simulation import run_of
from tests.support.no_threads import no_threads
from tests.support.waiting import wait_until

SECOND_NS = 1_000_000_000
DAY_NS = 86_400 * SECOND_NS
BEGUN_NS = time.time_ns() - DAY_NS
Written = tuple[float, bytes, str]  # seconds after BEGUN_NS, payload, topic


class DayBefore:
    """Log of an earlier epoch, in one extent for each ring."""

    def __init__(self, **rings: Sequence[Written]) -> None:
        self.reads = 0
        self._rings = {name.replace("_", "-"): list(records) for name, records in rings.items()}

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        self.reads += 1
        records = self._rings.get(ring_name, [])[offset:] if epoch == 0 else []
        data = b"".join(
            encode(offset + index, payload, epoch=0, key=topic.encode(), timestamp_ns=_ns(after_s))
            for index, (after_s, payload, topic) in enumerate(records)
        )
        return [run_of(data, 0, position=0)] if data else []

    def epochs(self, ring_name: str) -> list[Epoch]:
        return [Epoch(0, 0, len(self._rings.get(ring_name, ())))]

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        records = self._rings.get(ring_name, [])
        found = (index for index, it in enumerate(records) if _ns(it[0]) >= timestamp_ns)
        return next(found, len(records))


def _ns(after_s: float) -> int:
    return BEGUN_NS + round(after_s * 1e9)


def speed(factor: float) -> DeliverySettings:
    return DeliverySettings(speed_permille=round(factor * 1000))


def each(*after_s: float, topic: str = "a/1") -> list[Written]:
    """Records at these times, whose payload is the time."""
    return [(it, str(it).encode(), topic) for it in after_s]


def new(desk: Desk, *members: Talker) -> list[bytes]:
    """Payloads that the members get now, acknowledged; other threads read the log meanwhile."""

    def settled() -> bool:
        desk.turn()
        partitions = [it for _, it in desk.coordinator.registry.partitions()]
        return not any(it.reading for it in partitions) and not len(desk.coordinator._searches)

    found: list[bytes] = []
    for _ in range(4):  # a look for each step: the epoch, its records, the next epoch
        wait_until(settled)
        for member in members:
            found += member.all()
    return found


def send(desk: Desk, request: type, *arguments: Any, **named: Any) -> None:
    """A request of another client, whose answer is not of interest."""
    desk.coordinator.receive(b"other", encoded(request(999, VERSION, *arguments, **named)))


def desk_of(directory: Path, log: DayBefore, rings: int = 1) -> Desk:
    return Desk(directory, rings=rings, log=log)


@pytest.fixture
def two(runtime_directory: Path) -> Iterator[Desk]:
    """Two rings whose records alternate."""
    log = DayBefore(some_0=each(0, 20, 40, 1000), some_1=each(10, 30, 50))
    with desk_of(runtime_directory, log, rings=2) as desk:
        yield desk


@pytest.mark.parametrize("mode", ["ordered", "queue"])
@pytest.mark.parametrize("factor", [1.0, 10.0, 0.5])
def test_members_together_get_each_record_when_it_is_due(two: Desk, mode: str, factor: float) -> None:
    members = [two.member(mode=mode, delivery=speed(factor), session_s=3600.0) for _ in range(2)]
    begun_s = two.now_s
    assert new(two, *members) == [b"0"]
    for due_s in (10, 20, 30, 40, 50, 1000):
        two.now_s = begun_s + (due_s - 0.1) / factor
        assert new(two, *members) == []
        two.now_s = begun_s + (due_s + 0.1) / factor
        assert new(two, *members) == [str(due_s).encode()]
    assert members[0].core.rings != members[1].core.rings or mode == "queue"


@pytest.mark.parametrize("step_s", [DAY_NS // 10**9, -DAY_NS // 10**9])
def test_a_step_of_the_wall_clock_changes_no_replay(step_s: int) -> None:
    wall_ns = BEGUN_NS + 1000 * SECOND_NS
    clock = ReplayClock(2.0, lambda: wall_ns)
    clock.begin(50.0, BEGUN_NS)
    wall_ns += step_s * SECOND_NS
    assert clock.until_ns(60.0) == BEGUN_NS + 20 * SECOND_NS
    assert clock.until_ns(1051.0) == EVERYTHING_NS  # the present, 1000 s after begin()


def test_records_that_became_due_meanwhile_come_at_once(two: Desk) -> None:
    ann = two.member(delivery=speed(1), session_s=3600.0)
    assert new(two, ann) == [b"0"]
    two.now_s += 45
    assert sorted(new(two, ann)) == sorted(texts(10, 20, 30, 40))


def test_the_coordinator_sleeps_until_the_next_record_is_due(two: Desk) -> None:
    ann = two.member(delivery=speed(100), session_s=3600.0)
    assert new(two, ann) == [b"0"]
    reads = two._arguments[2].reads  # type: ignore[union-attr]
    assert two.coordinator.turn() == pytest.approx(0.05, abs=0.051)
    two.now_s += 0.099
    assert 0.0 < two.coordinator.turn() < 0.0011
    assert two._arguments[2].reads == reads, "records that wait are kept"  # type: ignore[union-attr]


def test_waiting_records_are_read_from_the_log_once(runtime_directory: Path) -> None:
    log = DayBefore(some_0=each(*range(100)))
    with desk_of(runtime_directory, log) as desk:
        ann = desk.member(delivery=speed(1), session_s=3600.0)
        found = new(desk, ann)
        reads = log.reads
        for _ in range(99):
            desk.now_s += 1
            found += ann.all()
        assert found == texts(*range(100))
        assert log.reads <= reads + 1, "the last read finds the end of the epoch"


def test_a_replay_stands_still_without_members(two: Desk) -> None:
    ann = two.member(delivery=speed(1), session_s=3600.0)
    assert new(two, ann) == [b"0"]
    two.now_s += 10
    assert new(two, ann) == [b"10"]
    ann.leave()
    two.now_s += 1_000
    bob = two.member(delivery=speed(1), session_s=3600.0)
    assert new(two, bob) == [b"20"], "the clock begins again at the oldest record that was not delivered"
    two.now_s += 9
    assert new(two, bob) == []
    two.now_s += 1.1
    assert new(two, bob) == [b"30"]


def test_a_killed_broker_continues_at_the_same_speed(two: Desk) -> None:
    ann = two.member(delivery=speed(1), session_s=3600.0)
    assert new(two, ann) == [b"0"]
    two.end()
    two.start()
    bob = two.member(session_s=3600.0)  # accepts the speed of the group
    assert new(two, bob) == [b"10"]
    two.now_s += 10.1
    assert new(two, bob) == [b"20"]


def test_only_records_that_match_begin_the_clock_and_wait(runtime_directory: Path) -> None:
    log = DayBefore(some_0=[*each(0, topic="b/1"), *each(7200), *each(7205, topic="b/1"), *each(7210)])
    with desk_of(runtime_directory, log) as desk:
        ann = desk.member(filters=("a/1",), delivery=speed(1), session_s=3600.0)
        assert new(desk, ann) == [b"7200"]
        desk.now_s += 10.1
        assert new(desk, ann) == [b"7210"]


def test_an_operator_changes_the_speed_and_the_replay_continues_from_where_it_is(two: Desk) -> None:
    ann = two.member(delivery=speed(1), session_s=3600.0)
    assert new(two, ann) == [b"0"]
    two.now_s += 5
    assert new(two, ann) == []
    send(two, SetGroup, "g", speed(0.1))
    two.now_s += 49
    assert new(two, ann) == []
    two.now_s += 1.1
    assert new(two, ann) == [b"10"]
    send(two, SetGroup, "g", speed(0))
    assert sorted(new(two, ann)) == sorted(texts(20, 30, 40, 50, 1000))


def test_records_that_come_again_are_due(two: Desk) -> None:
    ann = two.member(mode="queue", delivery=speed(1), session_s=3600.0)
    new(two)

    def talked() -> bool:
        ann.talk()
        return bool(ann.core.batches)

    wait_until(talked)
    ann.nack(ann.got(), delay_s=0.0)
    assert new(two, ann) == [b"0"]


def test_a_member_that_fetches_nothing_delays_the_begin_only_so_long(two: Desk) -> None:
    send(two, Join, "g", ("a/#",), settings=speed(1), start="oldest", session_ms=3_600_000)
    new(two)
    ann = two.member(session_s=3600.0)
    (info,) = two.ask(Groups, GroupList, "g").groups
    mine = {ring for member in info.members[1:] for ring in member.rings}
    assert len(mine) == 1
    first = b"0" if mine == {"some-0"} else b"10"
    assert new(two, ann) == []
    two.now_s += PATIENCE_S + 0.1
    assert new(two, ann) == [first]


def test_a_group_that_is_reset_to_a_time_replays_from_then_on(two: Desk) -> None:
    ann = two.member(delivery=speed(1), session_s=3600.0)
    assert new(two, ann) == [b"0"]
    ann.leave()
    send(two, Reset, "g", "time", _ns(25))
    new(two)
    bob = two.member(session_s=3600.0)
    assert new(two, bob) == [b"30"]
    two.now_s += 10.1
    assert new(two, bob) == [b"40"]


def test_a_replay_that_reaches_the_present_has_nothing_to_wait_for(runtime_directory: Path) -> None:
    """A producer may write any time; a record of a far future must not stop its ring."""
    log = DayBefore(some_0=[*each(0), *each(1e9), *each(5)])
    with desk_of(runtime_directory, log) as desk:
        ann = desk.member(delivery=speed(1_000), session_s=3600.0)
        assert new(desk, ann) == [b"0"]
        desk.now_s += 80
        assert new(desk, ann) == []
        desk.now_s += 10
        assert new(desk, ann) == [b"1000000000.0", b"5"]
        desk.publish("new")
        assert new(desk, ann) == [b"new"]


def test_members_of_a_group_have_one_speed(two: Desk) -> None:
    ann = two.member(delivery=speed(2))
    new(two, ann)
    answer = two.ask(Join, Failed, "g", ("a/#",), settings=speed(3))
    assert "members of group g have speed_permille 2000, not 3000" in answer.error
    two.ask(Leave, Done, "g", ann.core._joined.member)  # type: ignore[union-attr]
    two.member(delivery=speed(3))
    (info,) = two.ask(Groups, GroupList, "g").groups
    assert (info.settings["speed_permille"].value, info.settings["speed_permille"].source) == (
        3000,
        "members",
    )


@pytest.mark.parametrize("value", [-1, 1e-9, 1_000_001, 1e300, float("inf"), float("nan")])
def test_a_speed_outside_of_the_limits_is_an_invalid_argument(value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"invalid speed .* \(allowed: 0.001 to 1000000\)"):
        consumer("g", "a/#", speed=value)


def test_a_thread_that_cannot_be_started_delays_a_group(
    runtime_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without memory for its stack; otherwise the partition would wait without end."""
    with desk_of(runtime_directory, DayBefore(some_0=each(0, 20))) as desk:
        with no_threads(monkeypatch):  # from the first fetch on
            ann = desk.member(session_s=3600.0)
            assert new(desk, ann) == []
        desk.now_s += 2.0
        assert new(desk, ann) == texts(0, 20)
