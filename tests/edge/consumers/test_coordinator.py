"""Groups at work, without sockets: what is handed out to whom, what comes again, and what is refused."""

import time

import pytest

from edge.config.schema import Consumers
from edge.consumers.protocol import (
    VERSION,
    Ack,
    Acked,
    Alive,
    Commit,
    Done,
    Failed,
    Fetch,
    Fetched,
    Forget,
    GroupList,
    Groups,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Letter,
    Nack,
    Publish,
    Published,
    Read,
    Records,
    Reset,
    RingList,
    Rings,
)
from edge.consumers.publishes import NOT_BEFORE
from edge.mqtt.errors import Version
from edge.mqtt.primitives import Body
from edge.mqtt.properties import In, Properties, decode_properties, record_properties
from edge.rpc.protocol import encode
from tests.support.consumer_desk import Desk, texts
from tests.support.waiting import wait_until

LEASE_S = 30.0


# ---- one consumer ----


def test_records_come_in_order_and_once_acknowledged_never_again(desk):
    ann = desk.member()
    desk.publish(*texts(*range(10)))
    assert ann.all() == texts(*range(10))
    desk.turn(LEASE_S + 1)
    assert ann.all() == []


def test_a_new_group_begins_where_its_first_member_says(desk):
    desk.publish("early")
    late, early = desk.member("late", start="latest"), desk.member("early", start="oldest")
    desk.publish("more")
    assert late.all() == [b"more"]
    assert early.all() == [b"early", b"more"]


def test_a_fetch_waits_for_records_and_no_longer_than_it_says(desk):
    joined = desk.ask(Join, Joined, "g", ("a/#",))
    number = 777
    desk.coordinator.receive(b"peer", encode(Fetch(number, VERSION, "g", joined.member, 1 << 20, 400)))
    desk.turn()
    assert desk.answer_to(number) is None
    desk.publish("x")
    desk.turn()
    assert len(desk.answer_to(number).batches) == 1
    desk.coordinator.receive(b"peer", encode(Fetch(number, VERSION, "g", joined.member, 1 << 20, 400)))
    desk.turn(0.3)
    assert desk.answer_to(number) is None
    desk.turn(0.2)
    assert desk.answer_to(number) == Fetched(number, joined.generation)


def test_a_fetch_brings_about_as_many_bytes_as_it_asks_for(desk):
    joined = desk.ask(Join, Joined, "g", ("a/#",), start="oldest")
    desk.publish(*[b"x" * 1000] * 20)
    got = desk.ask(Fetch, Fetched, "g", joined.member, 4_000)
    assert 1 <= len(desk.payloads(got)) <= 5
    assert len(desk.payloads(desk.ask(Fetch, Fetched, "g", joined.member, 1))) == 1


def test_what_is_not_acknowledged_in_time_comes_again_and_what_is_does_not(desk):
    ann = desk.member()
    desk.publish(*texts(*range(6)))
    batch = ann.got()
    ann.ack(batch, [0, 2, 3])
    desk.turn(LEASE_S + 1)
    desk.turn(1)
    again = ann.got()
    assert [it.offset for it in again] == [1, 4, 5]
    assert again.tries == 1
    ann.ack(again)
    assert ann.all() == []
    (place,) = desk.ask(Groups, GroupList).groups[0].places
    assert (place.floor, place.lag, place.in_flight) == (6, 0, 0)


def test_who_is_still_at_work_keeps_what_it_has(desk):
    ann = desk.member(session_s=3600.0)
    desk.publish("x")
    batch = ann.got()
    for _ in range(3):
        desk.turn(LEASE_S - 5)
        ann.core.queue(ann.core.working(), wait=False)
        ann.talk()
    ann.ack(batch)
    assert ann.core.refused == 0
    assert ann.all() == []


def test_given_back_in_an_ordered_group_a_record_holds_up_those_behind_it(desk):
    ann = desk.member()
    desk.publish(*texts(*range(4)))
    batch = ann.got()
    ann.ack(batch, [0])
    ann.nack(batch, [1], delay_s=5.0)
    desk.publish("4")
    assert ann.take() is None
    desk.turn(5.1)
    assert ann.all() == texts(1, 2, 3, 4)


def test_given_back_in_a_queue_a_record_comes_when_it_is_due(desk):
    ann = desk.member(mode="queue")
    desk.publish(*texts(*range(4)))
    batch = ann.got()
    ann.nack(batch, [1], delay_s=5.0)
    ann.ack(batch, [0, 2, 3])
    desk.publish("4")
    assert ann.all() == [b"4"]
    desk.turn(5.1)
    assert ann.all() == [b"1"]


def test_each_try_waits_longer_than_the_one_before(desk):
    ann = desk.member(mode="queue")
    desk.publish("x")
    waits = []
    for _ in range(3):
        batch = ann.got()
        ann.nack(batch)
        waited = 0.0
        while not ann.core.batches:
            desk.turn(0.02)
            waited += 0.02
            ann.talk()
        waits.append(round(waited, 1))
    assert waits == [0.1, 0.2, 0.4]


def later(desk: Desk, seconds: float) -> bytes:
    """Properties of a record that no consumer may get before then."""
    due_ns = time.time_ns() + int(seconds * 1e9)
    return record_properties(Properties(user=((NOT_BEFORE, str(due_ns)),)))


def test_a_record_may_not_be_had_before_its_time_and_a_queue_goes_on_meanwhile(desk):
    ann = desk.member(mode="queue")
    desk.publish("now")
    desk.publish("later", properties=later(desk, 0.05))
    desk.publish("behind")
    assert ann.all() == [b"now", b"behind"]
    wait_until(lambda: desk.turn(0.02) or ann.all() == [b"later"])


def test_a_record_may_not_be_had_before_its_time_and_an_ordered_group_waits_for_it(desk):
    ann = desk.member()
    desk.publish("now")
    desk.publish("later", properties=later(desk, 0.05))
    desk.publish("behind")
    assert ann.all() == [b"now"]
    assert desk.ask(Groups, GroupList).groups[0].lag == 2
    wait_until(lambda: desk.turn(0.02) or ann.all() == [b"later", b"behind"])
    assert desk.published == [], "to wait is no try in vain"


# ---- several ----


def test_members_share_partitions_and_a_new_one_gets_its_part(wide):
    ann = wide.member()
    assert len(ann.core.rings) == 4
    bob = wide.member()
    assert len(bob.core.rings) == 2
    for ring in range(4):
        wide.publish(str(ring), ring=ring)
    assert sorted(ann.all() + bob.all()) == texts(0, 1, 2, 3)
    groups = wide.ask(Groups, GroupList).groups
    assert sorted(len(it.rings) for it in groups[0].members) == [2, 2]


def test_planned_changes_hand_nothing_out_twice(wide):
    ann = wide.member()
    for ring in range(4):
        wide.publish(f"{ring}", ring=ring)
    batches = []
    while (batch := ann.take()) is not None:
        batches.append(batch)
    bob = wide.member()
    assert bob.take() is None, "ann is at work on all four"
    for batch in batches:
        ann.ack(batch)
    for ring in range(4):
        wide.publish(f"{ring + 4}", ring=ring)
    assert sorted(ann.all() + bob.all()) == texts(4, 5, 6, 7)
    assert ann.core.refused == 0
    assert wide.ask(Groups, GroupList).groups[0].lag == 0, "what she said of what has moved since counts"
    assert "fenced" not in wide.coordinator.counts


def test_a_member_that_is_lost_leaves_its_records_to_the_others(wide):
    ann, bob = wide.member(session_s=2.0), wide.member(session_s=60.0)
    for ring in range(4):
        wide.publish(str(ring), ring=ring)
    held = ann.take()
    assert held is not None
    wide.turn(2.1)
    got = bob.all()
    assert sorted(got) == texts(0, 1, 2, 3)
    (facts,) = wide.ask(Groups, GroupList).groups
    assert len(facts.members) == 1
    assert wide.coordinator.counts["members_lost"] == 1


def test_a_zombie_is_told_that_it_is_none_any_more(desk):
    joined = desk.ask(Join, Joined, "g", ("a/#",), start="oldest", session_ms=1000)
    desk.publish("x")
    got = desk.ask(Fetch, Fetched, "g", joined.member)
    desk.turn(1.1)
    failed = desk.ask(Ack, Failed, "g", joined.member, got.generation, "some-0", 1, ((0, 1),))
    assert failed.code == "unknown"
    assert desk.member().all() == [b"x"]


def test_a_late_acknowledgement_of_a_partition_that_was_lost_is_refused_even_after_it_came_back(desk):
    """Ann has it, loses it to Bob by being too slow, and gets it back: her first word is too late."""
    ann = desk.ask(Join, Joined, "g", ("a/#",), start="oldest", session_ms=3_600_000)
    desk.publish("x")
    got = desk.ask(Fetch, Fetched, "g", ann.member)
    group = desk.coordinator.registry.groups["g"]
    partition = group.partitions["some-0"]
    bob = desk.ask(Join, Joined, "g", ("a/#",), session_ms=3_600_000)
    partition.successor = bob.member
    desk.turn(LEASE_S + 1)
    assert partition.owner == bob.member
    failed = desk.ask(Ack, Failed, "g", ann.member, got.generation, "some-0", 1, ((0, 1),))
    assert failed.code == "fenced"
    desk.ask(Leave, Done, "g", bob.member)
    assert partition.owner == ann.member
    failed = desk.ask(Ack, Failed, "g", ann.member, got.generation, "some-0", 1, ((0, 1),))
    assert failed.code == "fenced"
    desk.turn(0.2)
    again = desk.ask(Fetch, Fetched, "g", ann.member)
    assert desk.payloads(again) == [b"x"]
    assert desk.ask(Ack, Acked, "g", ann.member, again.generation, "some-0", 1, ((0, 1),)).accepted == 1


def test_in_a_queue_members_take_from_one_partition_and_may_speak_for_their_own_alone(desk):
    ann, bob = (desk.ask(Join, Joined, "q", ("a/#",), "queue", "oldest") for _ in range(2))
    desk.publish(*[b"x" * 100] * 20)
    first = desk.ask(Fetch, Fetched, "q", ann.member, 400)
    count = first.batches[0].count
    second = desk.ask(Fetch, Fetched, "q", bob.member, 400)
    assert second.batches[0].offset == count
    acked = desk.ask(Ack, Acked, "q", bob.member, 1, "some-0", 1, ((0, 2 * count),))
    assert (acked.accepted, acked.refused) == (count, count)
    assert desk.ask(Commit, Failed, "q", ann.member, 1, "some-0", 1, 3).code == "refused"


def test_who_joins_again_takes_its_own_place(desk):
    first = desk.ask(Join, Joined, "g", ("a/#",), instance="me")
    second = desk.ask(Join, Joined, "g", ("a/#",), instance="me")
    assert len(desk.coordinator.registry.groups["g"].members) == 1
    assert desk.ask(Heartbeat, Failed, "g", first.member).code == "unknown"
    assert desk.ask(Heartbeat, Alive, "g", second.member).rings == ("some-0",)


# ---- what is remembered ----


def test_offsets_survive_the_death_of_the_broker(desk):
    ann = desk.member()
    desk.publish(*texts(*range(5)))
    ann.ack(ann.got(), [0, 1, 3])
    desk.end()
    desk.start()
    assert desk.member().all() == texts(2, 4)
    desk.end()
    desk.start()
    assert desk.member().all() == []


def test_a_client_joins_again_by_itself_when_the_broker_has_forgotten_it(desk):
    ann = desk.member()
    desk.publish("1")
    desk.end()
    desk.start()
    desk.publish("2")
    desk.turn(3.0)
    assert ann.all() == [b"1", b"2"]


def test_a_broker_that_is_away_is_waited_for(desk):
    ann = desk.member()
    ann.talk(connected=False)
    assert not ann.core.joined
    desk.publish("1")
    assert ann.all() == [b"1"]


def test_commits_are_cumulative(desk):
    joined = desk.ask(Join, Joined, "g", ("a/#",), start="oldest")
    desk.publish(*texts(*range(5)))
    got = desk.ask(Fetch, Fetched, "g", joined.member)
    acked = desk.ask(Commit, Acked, "g", joined.member, got.generation, "some-0", 1, 3)
    assert (acked.accepted, acked.refused) == (3, 0)
    acked = desk.ask(Commit, Acked, "g", joined.member, got.generation, "some-0", 1, 99)
    assert (acked.accepted, acked.refused) == (2, 94)


def test_records_that_were_overwritten_are_counted_as_lost(desk):
    ann = desk.member()
    desk.publish(*[b"x" * 1000] * 200)
    got = ann.all()
    assert 0 < len(got) < 200
    (place,) = desk.ask(Groups, GroupList).groups[0].places
    assert place.counts["lost"] == 200 - len(got)
    assert place.lag == 0


def test_a_group_can_be_put_somewhere_else_when_nobody_is_at_work(desk):
    ann = desk.member()
    desk.publish(*texts(*range(5)))
    assert ann.all() == texts(*range(5))
    failed = desk.ask(Reset, Failed, "g", "oldest")
    assert "in use" in failed.error
    ann.leave()
    desk.ask(Reset, Done, "g", "offset", 3)
    ann = desk.member()
    assert ann.all() == texts(3, 4)
    ann.leave()
    desk.ask(Reset, Done, "g", "oldest")
    desk.end()
    desk.start()
    ann = desk.member()
    assert ann.all() == texts(*range(5))
    ann.leave()
    time_ns = next(iter(desk.rings[0].reader(start=2))).timestamp_ns
    desk.ask(Reset, Done, "g", "time", time_ns)
    ann = desk.member()
    assert ann.all()[-3:] == texts(2, 3, 4)
    ann.leave()
    assert "ends at offset 5" in desk.ask(Reset, Failed, "g", "offset", 6).error
    assert desk.ask(Reset, Failed, "g", "latest", 0, ("nope",)).code == "unknown"
    desk.ask(Reset, Done, "g", "latest")
    assert desk.member().all() == []


def test_a_group_can_be_forgotten(desk):
    desk.member().leave()
    desk.ask(Forget, Done, "g")
    assert desk.ask(Groups, GroupList).groups == ()
    assert desk.ask(Groups, Failed, "g").code == "unknown"
    desk.end()
    desk.start()
    assert desk.ask(Forget, Failed, "g").code == "unknown"


# ---- bounds ----


def test_a_group_is_handed_so_many_records_beyond_its_floor_and_no_more(runtime_directory):
    with Desk(runtime_directory, settings=Consumers(records_max=10)) as desk:
        ann = desk.member()
        desk.publish(*texts(*range(30)))
        first = ann.got()
        assert len(first) == 10
        assert ann.take() is None
        ann.ack(first, [1])
        assert ann.take() is None
        ann.ack(first, [0])
        assert [bytes(it) for it in ann.got()] == texts(10, 11)


def test_groups_and_members_have_limits(runtime_directory):
    with Desk(runtime_directory, settings=Consumers(groups_max=1, members_max=1)) as desk:
        desk.ask(Join, Joined, "g", ("a/#",))
        for group in ("g", "h"):
            failed = desk.ask(Join, Failed, group, ("a/#",))
            assert failed.code == "full"
            assert "_max" in failed.error
            assert failed.hint


def test_members_of_a_group_want_the_same(desk):
    ann = desk.member()
    assert "in use as ordered on a/#" in desk.ask(Join, Failed, "g", ("b/#",)).error
    assert desk.ask(Join, Failed, "g", ("a/#",), "queue").code == "refused"
    ann.leave()
    desk.ask(Join, Joined, "g", ("a/#",), "queue")


@pytest.mark.parametrize("topic_filter", ["a/#/b", "", "a+"])
def test_what_is_no_topic_filter_is_refused(desk, topic_filter):
    assert desk.ask(Join, Failed, "g", (topic_filter,)).hint == "correct the filter"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x80",
        b"\xff" * 99,
        b"\x91" * 5000,
        encode({"op": "join"}),
        encode({"op": "fetch", "id": 5, "version": 1}),
        encode({"op": "x", "id": 1, "version": 2}),
    ],
)
def test_what_is_no_request_is_answered_and_counted(desk, data):
    desk.coordinator.receive(b"peer", data)
    desk.turn()
    assert b"malformed" in desk.coordinator.outbox.popleft()[1][0]
    assert desk.coordinator.counts["malformed"] == 1


def test_acknowledgements_of_what_nobody_was_handed_count_for_nothing(desk):
    joined = desk.ask(Join, Joined, "g", ("a/#",), start="oldest")
    desk.publish("x")
    acked = desk.ask(
        Ack, Acked, "g", joined.member, joined.generation, "some-0", 1, ((0, 1 << 39), (1 << 62, 5))
    )
    assert acked.accepted == 0
    assert (
        desk.ask(Ack, Failed, "g", joined.member, joined.generation, "some-0", 2, ((0, 1),)).code == "fenced"
    )
    assert desk.ask(Ack, Failed, "g", joined.member, 1, "none", 1, ((0, 1),)).code == "fenced"
    got = desk.ask(Fetch, Fetched, "g", joined.member)
    assert desk.payloads(got) == [b"x"]
    nacked = desk.ask(
        Nack, Acked, "g", joined.member, joined.generation, "some-0", 1, ((0, 1 << 39), (7, 7)), 0
    )
    assert nacked.accepted == 1


def test_a_second_fetch_beside_one_that_waits_is_refused(desk):
    joined = desk.ask(Join, Joined, "g", ("a/#",))
    assert desk.say(Fetch, "g", joined.member) is None
    assert desk.ask(Fetch, Failed, "g", joined.member).code == "full"


# ---- without groups ----


def test_records_can_be_read_without_a_group(desk):
    desk.publish(*texts(*range(3)))
    (facts,) = desk.ask(Rings, RingList, ("a/+",)).rings
    assert (facts.name, facts.stream, facts.end_offset) == ("some-0", "some", 3)
    assert desk.ask(Rings, RingList, ("b",)).rings == ()
    found = desk.ask(Read, Records, "some-0", None, 1)
    assert (found.batch.offset, found.batch.count, found.next_offset, found.lost) == (1, 2, 3, 0)
    assert len(desk.frames) == 1
    assert desk.ask(Read, Records, "some-0", None, 3).batch is None
    assert desk.ask(Read, Records, "some-0").batch.offset == 0
    assert desk.ask(Read, Failed, "none").code == "unknown"
    desk.publish(*[b"x" * 1000] * 200)
    gone = desk.ask(Read, Records, "some-0", None, 0)
    assert gone.lost == gone.next_offset > 0


def test_messages_can_be_published(desk):
    letters = (Letter("a/1", 1, user=(("k", "v"),), not_before_ns=5), Letter("a/2"))
    done = desk.ask(Publish, Published, letters, frames=[b"x", b"y"])
    assert (done.stored, done.full, done.refused) == (2, (), ())
    first, second = desk.published
    assert (first.topic, first.payload, first.qos, second.properties) == ("a/1", b"x", 1, b"")
    user = decode_properties(Body(first.properties, Version.V5), In.PUBLISH).user
    assert user == (("k", "v"), (NOT_BEFORE, "5"))
    desk.fates = lambda it: "refused" if it.topic == "a/1" else "stored"
    assert desk.ask(Publish, Published, letters, frames=[b"x", b"y"]).refused == (0,)
    assert desk.ask(Publish, Failed, letters, frames=[b"x"]).code == "malformed"
