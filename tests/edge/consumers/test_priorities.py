"""Priorities of members: hot standby in ordered groups, the first place in queues."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim import consumer
from edge.consumers.ack_tracker import AckTracker, Rules
from edge.consumers.group_partition import GroupPartition
from edge.consumers.groups import ConsumerGroup, Member
from edge.consumers.protocol import (
    Ack,
    Acked,
    Alive,
    Done,
    Failed,
    Fetch,
    Fetched,
    GroupList,
    Groups,
    Heartbeat,
    Join,
    Joined,
    Leave,
)
from edge.consumers.requester import Requester
from edge.consumers.selection import Selection
from edge.errors import InvalidArgument
from edge.rpc.protocol import encode
from tests.support.consumer_desk import Desk


@pytest.fixture
def desk(runtime_directory):
    with Desk(runtime_directory, rings=4) as desk:
        yield desk


def joined(desk: Desk, priority: int, **how: Any) -> str:
    how = {"start": "oldest", "session_ms": 3_600_000, **how}
    return desk.ask(Join, Joined, "g", ("a/#",), priority=priority, **how).member


def rings(desk: Desk, member: str) -> int:
    return len(desk.ask(Heartbeat, Alive, "g", member).rings)


def fetched(desk: Desk, member: str, most: int = 0) -> Fetched:
    return desk.ask(Fetch, Fetched, "g", member, max_wait_ms=0, max_records=most)


def test_in_an_ordered_group_members_of_lower_priority_stand_by(desk):
    low, high, other = joined(desk, -1), joined(desk, 5), joined(desk, 5)
    assert [rings(desk, member) for member in (low, high, other)] == [0, 2, 2]
    desk.publish("x")
    assert desk.payloads(fetched(desk, low)) == []
    desk.ask(Leave, Done, "g", high)
    assert [rings(desk, member) for member in (low, other)] == [0, 4]
    desk.ask(Leave, Done, "g", other)
    assert rings(desk, low) == 4
    assert desk.payloads(fetched(desk, low)) == [b"x"]


def test_a_member_of_higher_priority_takes_over_after_the_acknowledgements_of_the_others(desk):
    low = joined(desk, 0)
    desk.publish("0", "1")
    got = fetched(desk, low)
    assert desk.payloads(got) == [b"0", b"1"]
    high = joined(desk, 1)
    assert (rings(desk, low), rings(desk, high)) == (0, 4)
    desk.publish("2")
    assert desk.payloads(fetched(desk, high)) == [], "two members never have records of one topic"
    assert desk.payloads(fetched(desk, low)) == []
    assert desk.ask(Ack, Acked, "g", low, got.generation, "some-0", 1, ((0, 2),)).accepted == 2
    assert desk.payloads(fetched(desk, high)) == [b"2"]


def test_a_silent_member_of_high_priority_loses_its_place(desk):
    low, _ = joined(desk, 0), joined(desk, 1, session_ms=1_000)
    desk.publish("x")
    desk.turn(1.1)
    assert rings(desk, low) == 4
    assert desk.payloads(fetched(desk, low)) == [b"x"]


def test_in_a_queue_the_waiting_member_with_the_highest_priority_gets_records_first(desk):
    members = {priority: joined(desk, priority, mode="queue", in_flight_max=2) for priority in (0, -3, 7)}
    for number, (_, member) in enumerate(members.items(), 900):
        desk.coordinator.receive(b"peer", encode(Fetch(number, 2, "g", member, max_wait_ms=60_000)))
    desk.publish("0", "1", "2", "3")
    desk.turn()
    (group,) = desk.ask(Groups, GroupList).groups
    assert {member.priority: member.in_flight for member in group.members} == {7: 2, 0: 2, -3: 0}
    desk.publish("4")
    desk.turn()
    (group,) = desk.ask(Groups, GroupList).groups
    assert {member.priority: member.in_flight for member in group.members} == {7: 2, 0: 2, -3: 1}


def check_owners(group: ConsumerGroup) -> None:
    """No records are in flight, so every move is done."""
    members, owners = group.members, [it.owner for it in group.partitions.values()]
    if not members:
        assert set(owners) == {None}
        return
    highest = max(member.priority for member in members.values())
    chosen = [member.id for member in members.values() if member.priority == highest]
    shares = [owners.count(member) for member in chosen]
    assert sum(shares) == len(owners), "each partition belongs to a member of the highest priority"
    assert max(shares) - min(shares) <= 1


@given(st.lists(st.tuples(st.booleans(), st.integers(-2, 2), st.integers(0, 99)), max_size=30))
def test_partitions_belong_to_members_of_the_highest_priority_in_fair_shares(events):
    group = ConsumerGroup("g", "ordered", ("#",), Selection(("#",)), Rules(ordered=True))
    for number in range(5):
        group.add(GroupPartition(f"r-{number}", 1, AckTracker(0, group.rules)))
    for number, (leaves, priority, which) in enumerate(events):
        if leaves and group.members:
            group.leave(list(group.members)[which % len(group.members)], 0.0, "left", died=False)
        else:
            group.join(Member(str(number), "", "", 10.0, 10.0, Requester(b"", ""), 0, priority))
        check_owners(group)


def test_a_priority_outside_of_its_limits_is_refused_on_both_sides(desk):
    for value in (-1_001, 1_001):
        with pytest.raises(InvalidArgument, match=rf"invalid priority {value} \(allowed: -1000 to 1000\)"):
            consumer("g", "a/#", priority=value)
        assert desk.ask(Join, Failed, "g", ("a/#",), priority=value).code == "malformed"


def test_a_consumer_sends_its_priority_each_time_it_joins(desk):
    desk.member()
    high = desk.member(priority=9)
    desk.end()
    desk.start()
    desk.member()
    high.talk(connected=False)
    high.talk()
    (group,) = desk.ask(Groups, GroupList).groups
    assert {member.priority: len(member.rings) for member in group.members} == {0: 0, 9: 4}
