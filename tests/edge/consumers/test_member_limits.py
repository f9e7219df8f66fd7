"""Limits of one member: records of one fetch, and records without an acknowledgement."""

from typing import Any

import pytest

from brim import consumer
from edge.consumers.protocol import Ack, Acked, Failed, Fetch, Fetched, GroupList, Groups, Join, Joined
from edge.errors import InvalidArgument
from edge.rpc.protocol import encode
from tests.support.consumer_desk import Desk, texts


@pytest.fixture
def desk(runtime_directory):
    with Desk(runtime_directory, rings=2) as desk:
        yield desk


def joined(desk: Desk, filters: tuple[str, ...] = ("#",), **how: Any) -> str:
    return desk.ask(Join, Joined, "g", filters, start="oldest", **how).member


def fetched(desk: Desk, member: str, most: int) -> list[bytes]:
    return desk.payloads(desk.ask(Fetch, Fetched, "g", member, max_wait_ms=0, max_records=most))


@pytest.mark.parametrize("filters", [("#",), ("a/1",)])
@pytest.mark.parametrize("mode", ["ordered", "queue"])
def test_a_fetch_by_count_brings_so_many_records_and_the_next_one_those_behind(desk, filters, mode):
    member = joined(desk, filters, mode=mode)
    for number in range(20):
        desk.publish(str(number))
        desk.publish("of another topic", topic="b")
    wanted = list(range(40)) if filters == ("#",) else list(range(20))
    seen: list[bytes] = []
    while got := fetched(desk, member, 7):
        assert len(got) == min(7, len(wanted) - len(seen))
        seen += got
    assert len(seen) == len(wanted)
    assert [it for it in seen if it != b"of another topic"] == texts(*range(20))


def test_a_count_is_of_all_partitions_together(desk):
    member = joined(desk)
    desk.publish(*texts(*range(5)), ring=0)
    desk.publish(*texts(*range(5)), ring=1)
    assert [len(fetched(desk, member, 4)) for _ in range(4)] == [4, 4, 2, 0]


def test_redelivered_records_count_too(desk):
    ann = desk.member(mode="queue", filters=("#",))
    desk.publish(*texts(*range(10)))
    ann.nack(ann.got(), delay_s=0.0)
    ann.leave()
    bob = desk.member(mode="queue", filters=("#",), batch_records=3)
    sizes = []
    while (batch := bob.take()) is not None:
        sizes.append(len(batch))
        bob.ack(batch)
    assert sizes == [3, 3, 3, 1]


@pytest.mark.parametrize("filters", [("#",), ("a/1",)])
def test_a_member_with_its_most_records_in_flight_gets_more_as_it_acknowledges(desk, filters):
    member = joined(desk, filters, in_flight_max=5)
    desk.publish(*texts(*range(12)))
    got = desk.ask(Fetch, Fetched, "g", member, max_wait_ms=0)
    assert desk.payloads(got) == texts(*range(5))
    assert fetched(desk, member, 0) == []
    desk.ask(Ack, Acked, "g", member, got.generation, "some-0", 1, ((1, 2),))
    assert fetched(desk, member, 0) == texts(5, 6)
    assert fetched(desk, member, 1) == []


def test_a_fetch_that_waits_for_room_is_answered_by_an_acknowledgement(desk):
    member = joined(desk, in_flight_max=2)
    desk.publish(*texts(*range(3)))
    got = desk.ask(Fetch, Fetched, "g", member)
    number = 999
    desk.coordinator.receive(b"peer", encode(Fetch(number, 2, "g", member, max_wait_ms=60_000)))
    desk.turn()
    assert desk.answer_to(number) is None
    ack = Ack(1_000, 2, "g", member, got.generation, "some-0", 1, ((0, 1),))
    desk.coordinator.receive(b"peer", encode(ack))
    desk.turn()
    answer = desk.answer_to(number)
    assert isinstance(answer, Fetched)
    assert [(batch.offset, batch.count) for batch in answer.batches] == [(2, 1)]


def test_a_lease_that_lapses_makes_room_and_another_member_is_not_limited(desk):
    ann = joined(desk, in_flight_max=2, mode="queue", session_ms=3_600_000)
    bob = joined(desk, mode="queue", session_ms=3_600_000)
    desk.publish(*texts(*range(6)))
    assert len(fetched(desk, ann, 0)) == 2
    assert len(fetched(desk, bob, 0)) == 4
    assert fetched(desk, ann, 0) == []
    desk.turn(31.0)
    desk.turn(1.0)
    assert len(fetched(desk, ann, 0)) == 2


def test_the_limits_of_a_consumer_hold_over_a_reconnection(desk):
    ann = desk.member(filters=("#",), in_flight_max=4, batch_records=3)
    desk.publish(*texts(*range(9)))
    assert len(ann.got()) == 3
    desk.end()
    desk.start()
    ann.talk(connected=False)
    ann.talk()
    batches = [ann.got(), ann.got()]
    assert [len(batch) for batch in batches] == [3, 1]
    assert ann.take() is None
    (group,) = desk.ask(Groups, GroupList).groups
    assert sum(member.in_flight for member in group.members) == 4


@pytest.mark.parametrize("name", ["batch_records", "in_flight_max"])
def test_a_limit_outside_of_its_limits_is_refused_on_both_sides(desk, name):
    for value in (-1, 100_000_001):
        with pytest.raises(InvalidArgument, match=rf"invalid {name} {value} \(allowed: 0 to 100000000\)"):
            options: dict[str, Any] = {name: value}
            consumer("g", "a/#", **options)
    assert desk.ask(Join, Failed, "g", ("#",), in_flight_max=100_000_001).code == "malformed"
    assert desk.ask(Fetch, Failed, "g", joined(desk), max_records=-1).code == "malformed"


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("batch_bytes", 1, 64 << 20), ("session_s", 1, 3_600), ("priority", -1_000, 1_000)],
)
def test_an_argument_that_the_broker_would_refuse_is_refused_at_once(
    name: str, least: int, most: int
) -> None:
    for value in (least, most):
        options: dict[str, Any] = {name: value}
        consumer("g", "a/#", **options)
    for value in (least - 1, most + 1):
        options = {name: value}
        with pytest.raises(InvalidArgument, match=rf"invalid {name} {value} \(allowed: {least} to {most}\)"):
            consumer("g", "a/#", **options)
