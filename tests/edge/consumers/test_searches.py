"""Searches of a first record in the log: on a thread of their own, in turns, and limited."""

import errno
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edge.consumers import searches
from edge.consumers.coordinator import Coordinator
from edge.consumers.protocol import (
    VERSION,
    Answer,
    Done,
    Failed,
    GroupList,
    Groups,
    Join,
    Joined,
    Leave,
    Read,
    Reset,
    RingList,
    Rings,
)
from edge.rpc.protocol import encode
from persistence.read.log_reader import Epoch
from ringbuf import Range
from tests.support.consumer_desk import Desk
from tests.support.waiting import PATIENCE_S, wait_until

TIME: Any = {"start": "time", "start_value": 1}


class SlowLog:
    """Log of one earlier epoch, 5 records long. Each search waits until the test releases it."""

    def __init__(self) -> None:
        self.searched: list[str] = []
        self.fails = False
        self.released = threading.Semaphore(0)

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        return []

    def epochs(self, ring_name: str) -> list[Epoch]:
        return [Epoch(0, 0, 5)]

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        self.searched.append(ring_name)
        assert self.released.acquire(timeout=PATIENCE_S)
        if self.fails:
            raise OSError(errno.EIO, "the disk has an error")
        return 3


@pytest.fixture
def slow() -> Iterator[SlowLog]:
    log = SlowLog()
    yield log
    log.released.release(1_000)


@pytest.fixture
def desk(runtime_directory: Path, slow: SlowLog) -> Iterator[Desk]:
    with Desk(runtime_directory, rings=2, log=slow) as desk:
        yield desk
        slow.released.release(1_000)


def begin(
    desk: Desk, number: int, request: type, *arguments: Any, peer: bytes = b"peer", **named: Any
) -> None:
    desk.coordinator.receive(peer, encode(request(number, VERSION, *arguments, **named)))
    desk.turn()


def turned(desk: Desk) -> Coordinator:
    """The coordinator, after a turn."""
    desk.turn()
    return desk.coordinator


def later(desk: Desk, number: int) -> Answer:
    """The answer to a request, as soon as it is there."""
    found: list[Answer] = []

    def look() -> bool:
        desk.turn()
        if (answer := desk.answer_to(number)) is not None:
            found.append(answer)
        return bool(found)

    wait_until(look)
    return found[0]


def test_others_are_served_while_a_join_a_read_and_a_reset_search_the_log(desk: Desk, slow: SlowLog) -> None:
    joined = desk.ask(Join, Joined, "known", ("a/#",))
    desk.ask(Leave, Done, "known", joined.member)
    begin(desk, 901, Join, "g", ("a/#",), **TIME)
    begin(desk, 902, Reset, "known", "time", 1)
    begin(desk, 903, Read, "some-0", time_ns=1)
    wait_until(lambda: len(slow.searched) == 1)
    assert len(desk.ask(Rings, RingList, ("a/#",)).rings) == 2
    ann = desk.member("h", start="latest")
    desk.publish("x")
    assert ann.all() == [b"x"]
    assert [it.name for it in desk.ask(Groups, GroupList).groups] == ["h", "known"], "g waits for its start"
    slow.released.release(5)
    read = later(desk, 903)
    assert isinstance(read, Failed)
    assert "offset 3 of epoch 0 is missing" in read.error, "it reads from the place that was found"
    wait_until(lambda: len(turned(desk)._searches) == 0)
    assert len(slow.searched) == 5, "two rings of the join, two of the reset, one of the read"
    for group in ("g", "known"):
        (info,) = desk.ask(Groups, GroupList, group).groups
        assert [(place.epoch, place.floor) for place in info.places] == [(0, 3), (0, 3)]
    assert [it.name for it in desk.ask(Groups, GroupList, "g").groups[0].members] == [""]


def test_searches_take_turns_ring_by_ring(desk: Desk, slow: SlowLog) -> None:
    begin(desk, 901, Join, "g", ("a/#",), **TIME)
    wait_until(lambda: len(slow.searched) == 1)
    begin(desk, 902, Read, "some-0", time_ns=1, peer=b"other")
    for count in (2, 3):
        slow.released.release()
        wait_until(lambda: bool(turned(desk)) and len(slow.searched) == count)  # noqa: B023
    assert slow.searched == ["some-1", "some-0", "some-0"]
    assert later(desk, 902).id == 902, "the read does not wait for the second ring of the join"


def test_searches_are_limited_for_each_client_and_for_all(
    desk: Desk, slow: SlowLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []
    for number in range(901, 911):
        begin(desk, number, Read, "some-0", time_ns=1)
        refused.append(desk.answer_to(number))
    full = [it for it in refused if isinstance(it, Failed)]
    assert len(full) == 10 - searches.SEARCHES_EACH
    assert {it.code for it in full} == {"full"}
    assert "searches of the log" in full[0].error
    assert desk.coordinator.counts["full"] == len(full)
    for number in range(1_000):
        begin(desk, number, Join, f"g{number}", ("a/#",), **TIME, peer=b"%d" % number)
    assert len(desk.coordinator._searches) == searches.SEARCHES_MAX
    begin(desk, 911, Join, "latest", ("a/#",))
    assert isinstance(desk.answer_to(911), Joined), "a join that searches nothing is not limited"
    slow.released.release(1_000)
    wait_until(lambda: len(turned(desk)._searches) == 0)


def test_a_search_that_fails_is_answered_and_creates_nothing(desk: Desk, slow: SlowLog) -> None:
    slow.fails = True
    slow.released.release(10)
    begin(desk, 901, Join, "g", ("a/#",), **TIME)
    answer = later(desk, 901)
    assert isinstance(answer, Failed)
    assert (answer.code, answer.error) == ("full", "the log cannot be read: the disk has an error")
    begin(desk, 902, Read, "some-0", time_ns=1)
    assert isinstance(later(desk, 902), Failed)
    assert desk.ask(Groups, GroupList).groups == ()
    begin(desk, 903, Join, "g", ("a/#",), start="offset", start_value=7)
    answer = later(desk, 903)
    assert isinstance(answer, Failed)
    assert answer.error.startswith("ring some-1 ends at offset 0")
    assert len(desk.coordinator._searches) == 0


def test_a_group_that_got_members_during_the_search_is_not_reset(desk: Desk, slow: SlowLog) -> None:
    joined = desk.ask(Join, Joined, "g", ("a/#",))
    desk.ask(Leave, Done, "g", joined.member)
    begin(desk, 901, Reset, "g", "time", 1)
    desk.ask(Join, Joined, "g", ("a/#",))
    slow.released.release(2)
    answer = later(desk, 901)
    assert isinstance(answer, Failed)
    assert "in use" in answer.error
    (info,) = desk.ask(Groups, GroupList, "g").groups
    assert [(place.epoch, place.floor) for place in info.places] == [(1, 0), (1, 0)]


def test_two_first_members_may_search_at_once_and_both_join(desk: Desk, slow: SlowLog) -> None:
    begin(desk, 901, Join, "g", ("a/#",), **TIME)
    begin(desk, 902, Join, "g", ("a/#",), **TIME)
    slow.released.release(4)
    assert isinstance(later(desk, 902), Joined)
    (info,) = desk.ask(Groups, GroupList, "g").groups
    assert len(info.members) == 2
    assert [(place.epoch, place.floor) for place in info.places] == [(0, 3), (0, 3)]


def test_a_broker_that_stops_waits_for_no_search_but_the_one_under_way(
    runtime_directory: Path, slow: SlowLog
) -> None:
    with Desk(runtime_directory, log=slow) as desk:
        for number in range(4):
            begin(desk, number, Join, f"g{number}", ("a/#",), **TIME)
        wait_until(lambda: len(slow.searched) == 1)
        slow.released.release()
        desk.coordinator._search_thread.close()
        time.sleep(0)
        assert len(slow.searched) == 1
