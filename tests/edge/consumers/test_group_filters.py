"""Filters of groups, and late acknowledgements, for clients that speak the raw protocol."""

import mmap

import pytest

from edge.config.schema import Consumers
from edge.consumers import fetch
from edge.consumers.protocol import (
    Ack,
    Acked,
    Commit,
    Failed,
    Fetch,
    Fetched,
    GroupList,
    Groups,
    Join,
    Joined,
    Nack,
)
from ringbuf import Batch
from tests.support.consumer_desk import Desk

LEASE_S = 30.0


def records_of(desk: Desk, answer: Fetched) -> list[tuple[int, bytes]]:
    """(offset, topic) of every record in the frames, meant or not."""
    return [
        (record.offset, record.key)
        for facts, frame in zip(answer.batches, desk.frames, strict=True)
        for record in Batch.of(frame, facts.epoch, facts.offset, None, facts.offset + facts.count)
    ]


def fill(desk: Desk, count: int = 700, topics: int = 7) -> None:
    for number in range(count):
        desk.publish(str(number), topic=f"a/{number % topics}/x")


def drain(desk: Desk, joined: Joined, group: str = "g", *, whole: bool = True) -> list[tuple[int, bytes]]:
    """Fetch and acknowledge, as a client without the Python library: the whole range, or record by record."""
    found: list[tuple[int, bytes]] = []
    for _ in range(100):
        got = desk.say(Fetch, group, joined.member, 1 << 20, 0)
        if not isinstance(got, Fetched) or not got.batches:
            return found
        records = records_of(desk, got)
        found += records
        for facts in got.batches:
            mine = [offset for offset, _ in records if facts.offset <= offset < facts.offset + facts.count]
            runs = ((facts.offset, facts.count),) if whole else tuple((offset, 1) for offset in mine)
            acked = desk.ask(Ack, Acked, group, joined.member, got.generation, facts.ring, facts.epoch, runs)
            assert (acked.accepted, acked.refused, acked.refused_runs) == (len(mine), 0, ())
    raise AssertionError("it never ends")


@pytest.mark.parametrize("mode", ["ordered", "queue"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        (("a/3/x",), {3}),
        (("a/+/x",), set(range(7))),
        (("a/3/#", "a/5/+"), {3, 5}),
        (("+/6/x",), {6}),
        (("a/3",), set()),
        (("a/none",), set()),
    ],
)
def test_a_member_gets_the_records_that_match_and_no_others(desk, mode, whole, filters, numbers):
    fill(desk)
    joined = desk.ask(Join, Joined, "g", filters, mode, "oldest")
    found = drain(desk, joined, whole=whole)
    assert [offset for offset, _ in found] == [it for it in range(700) if it % 7 in numbers]
    assert {key for _, key in found} == {f"a/{number}/x".encode() for number in numbers}


def test_records_that_match_nobody_do_not_hold_a_group_up(desk):
    """They are done as soon as they were looked at: floor and lag say so, in this life and the next."""
    fill(desk)
    joined = desk.ask(Join, Joined, "g", ("a/3/x",), "ordered", "oldest")
    got = desk.ask(Fetch, Fetched, "g", joined.member)
    (facts,) = desk.ask(Groups, GroupList).groups
    assert (facts.places[0].floor, facts.lag) == (3, 100), "only those that match are still to be done"
    count = facts.places[0].counts
    assert (count["delivered"], count["passed"]) == (100, 600)
    desk.ask(Commit, Acked, "g", joined.member, got.generation, "some-0", 1, 700)
    (facts,) = desk.ask(Groups, GroupList).groups
    assert (facts.places[0].floor, facts.lag) == (700, 0)
    desk.end()
    desk.start()
    (facts,) = desk.ask(Groups, GroupList).groups
    assert (facts.places[0].floor, facts.lag) == (700, 0)


def test_a_group_that_nothing_matches_keeps_up_with_its_ring(runtime_directory):
    """Its window of records_max does not fill, whatever comes by."""
    with Desk(runtime_directory, settings=Consumers(records_max=50)) as desk:
        joined = desk.ask(Join, Joined, "g", ("a/none",), "ordered", "oldest")
        for _ in range(5):
            fill(desk, 60)
            for _ in range(5):
                assert desk.ask(Fetch, Fetched, "g", joined.member, 1 << 20, 0).batches == ()
            (facts,) = desk.ask(Groups, GroupList).groups
            assert facts.lag == 0


def test_much_that_does_not_match_is_looked_at_in_parts(desk, monkeypatch):
    """A fetch takes one part of it; a further one comes at once, without a pause."""
    monkeypatch.setattr(fetch, "LOOK_MAX_BYTES", 4_096)
    fill(desk, 600)
    joined = desk.ask(Join, Joined, "g", ("a/none",), "ordered", "oldest")
    assert desk.say(Fetch, "g", joined.member, 2_000, 500) is None
    looked = [desk.ask(Groups, GroupList).groups[0].places[0].floor]
    while looked[-1] < 600:
        assert desk.coordinator.turn() < 0.05
        looked.append(desk.ask(Groups, GroupList).groups[0].places[0].floor)
        assert looked[-2] < looked[-1] <= looked[-2] + 600
    assert len(looked) > 3


def test_what_comes_again_has_no_record_that_does_not_match(desk):
    fill(desk, 70)
    ann, bob = (desk.ask(Join, Joined, "q", ("a/3/x",), "queue", "oldest") for _ in range(2))
    got = desk.ask(Fetch, Fetched, "q", ann.member)
    assert [offset for offset, _ in records_of(desk, got)] == list(range(3, 70, 7))
    desk.ask(Ack, Acked, "q", ann.member, got.generation, "some-0", 1, ((10, 1), (24, 1)))
    desk.turn(LEASE_S + 1)
    desk.ask(Join, Joined, "q", ("a/3/x",), "queue", "oldest", instance="x")
    bob = desk.ask(Join, Joined, "q", ("a/3/x",), "queue", "oldest", instance="bob")
    desk.turn(1)
    again = desk.ask(Fetch, Fetched, "q", bob.member)
    assert all(it.again for it in again.batches)
    assert [offset for offset, _ in records_of(desk, again)] == [3, 17, 31, 38, 45, 52, 59, 66]


def test_members_of_one_group_have_the_same_filters(desk):
    """In whatever order and number they name them; others are refused until the last member has left."""
    fill(desk, 70)
    ann = desk.ask(Join, Joined, "g", ("a/3/x", "a/5/x"), "queue", "oldest")
    desk.ask(Join, Joined, "g", ("a/5/x", "a/3/x", "a/3/x"), "queue", "oldest")
    refused = desk.ask(Join, Failed, "g", ("a/3/x",), "queue", "oldest")
    assert (refused.code, "a/5/x" in refused.error) == ("refused", True)
    found = drain(desk, ann)
    assert {offset % 7 for offset, _ in found} == {3, 5}
    desk.turn(60)
    later = desk.ask(Join, Joined, "g", ("a/4/x",), "queue", "oldest")
    assert drain(desk, later) == [], "what the group passed over before does not come again"
    fill(desk, 70)
    assert {key for _, key in drain(desk, later)} == {b"a/4/x"}


def test_a_key_that_is_no_topic_matches_no_filter_with_wildcards(desk):
    ring = desk.rings[0]
    for key in (b"a/\xff", b"a/\xc3\xa9", b"$x/1", b"a"):
        assert ring.writer().publish(b"x", key=key) is not None
    joined = desk.ask(Join, Joined, "g", ("a/#", "+/1"), "ordered", "oldest")
    assert [key for _, key in drain(desk, joined)] == ["a/é".encode(), b"a"]


def test_a_record_that_does_not_verify_is_skipped_and_counted(desk):
    fill(desk, 21)
    with open(desk.directory / "some-0.ring", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(b"a/3/x", memory.find(b"a/3/x") + 1)  # the record with offset 10
        memory[at + 2 : at + 3] = b"4"
    joined = desk.ask(Join, Joined, "g", ("a/3/x",), "ordered", "oldest")
    assert [offset for offset, _ in drain(desk, joined)] == [3, 17]
    (facts,) = desk.ask(Groups, GroupList).groups
    assert (facts.lag, facts.places[0].counts["lost"]) == (0, 1)


# ---- late acknowledgements ----


def queue_of_two(desk: Desk) -> tuple[Joined, Joined, Fetched]:
    """16 records, which ann has had until her lease lapsed."""
    fill(desk, 16)
    ann, bob = (
        desk.ask(Join, Joined, "q", ("a/#",), "queue", "oldest", session_ms=3_600_000) for _ in range(2)
    )
    got = desk.ask(Fetch, Fetched, "q", ann.member)
    assert got.batches[0].count == 16
    desk.turn(LEASE_S + 1)
    desk.turn(1)
    return ann, bob, got


def test_a_late_acknowledgement_says_which_records_others_did(desk):
    ann, bob, got = queue_of_two(desk)
    again = desk.ask(Fetch, Fetched, "q", bob.member)
    assert again.batches[0].count == 16

    def ack(member: str, *runs: tuple[int, int]) -> Acked:
        answer: Acked = desk.ask(Ack, Acked, "q", member, got.generation, "some-0", 1, runs)
        return answer

    late = ack(ann.member, (0, 16))
    assert (late.accepted, late.refused, late.refused_runs) == (0, 16, ((0, 16),)), "bob has them"
    assert ack(bob.member, (2, 3), (7, 1)).accepted == 4
    late = ack(ann.member, (0, 16))
    assert (late.accepted, late.refused) == (0, 16), "bob has them or did them"
    assert ack(bob.member, (0, 16)) == Acked(ack(bob.member, (0, 16)).id - 1, 16), "also what it did before"
    late = ack(ann.member, (0, 20))
    assert (late.accepted, late.refused, late.refused_runs) == (0, 20, ((0, 16), (16, 4)))


def test_an_acknowledgement_in_part_too_late_lists_the_refused(desk):
    ann, bob, got = queue_of_two(desk)
    again = desk.ask(Fetch, Fetched, "q", bob.member, 400)  # some of them
    count = again.batches[0].count
    assert 0 < count < 16
    late = desk.ask(Ack, Acked, "q", ann.member, got.generation, "some-0", 1, ((0, 16),))
    assert (late.accepted, late.refused, late.refused_runs) == (16 - count, count, ((0, count),))
    mine = desk.ask(Ack, Acked, "q", bob.member, again.generation, "some-0", 1, ((0, 16),))
    assert (mine.accepted, mine.refused_runs) == (count, ((count, 16 - count),))
    back = desk.ask(Nack, Acked, "q", bob.member, again.generation, "some-0", 1, ((0, 16),))
    assert (back.accepted, back.refused, back.refused_runs) == (0, 16, ((0, 16),))


def test_a_member_that_comes_back_may_repeat_its_acknowledgement(desk):
    """Its answer was lost with the connection: the same `instance` did it."""
    fill(desk, 10)
    first = desk.ask(Join, Joined, "q", ("a/#",), "queue", "oldest", instance="me")
    got = desk.ask(Fetch, Fetched, "q", first.member)
    desk.ask(Ack, Acked, "q", first.member, got.generation, "some-0", 1, ((0, 10),))
    second = desk.ask(Join, Joined, "q", ("a/#",), "queue", "oldest", instance="me")
    again = desk.ask(Ack, Acked, "q", second.member, got.generation, "some-0", 1, ((0, 10),))
    assert (again.accepted, again.refused) == (10, 0)
    other = desk.ask(Join, Joined, "q", ("a/#",), "queue", "oldest", instance="other")
    theirs = desk.ask(Ack, Acked, "q", other.member, got.generation, "some-0", 1, ((0, 10),))
    assert (theirs.accepted, theirs.refused_runs) == (0, ((0, 10),))


def test_an_acknowledgement_of_all_offsets_there_can_be_is_answered(desk):
    ann, _, got = queue_of_two(desk)
    runs = ((0, (1 << 40) - 1), ((1 << 62), 5))
    found = desk.ask(Ack, Acked, "q", ann.member, got.generation, "some-0", 1, runs)
    assert (found.accepted, found.refused) == (16, (1 << 40) - 17 + 5)
    assert found.refused_runs == ((16, (1 << 40) - 17), (1 << 62, 5))
