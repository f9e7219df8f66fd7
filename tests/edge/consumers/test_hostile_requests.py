"""Requests that no honest client sends: each ends with its own answer, and all others are served."""

import itertools
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from edge.config.schema import Consumers
from edge.consumers import ack_tracker, client_state, coordinator, outbox, publishes, quota, reads
from edge.consumers.fetch import look_max_bytes
from edge.consumers.protocol import (
    PROTOCOL,
    VERSION,
    Ack,
    Acked,
    Commit,
    Failed,
    Fetch,
    Fetched,
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
    Reset,
    Rings,
)
from edge.consumers.publishes import NOT_BEFORE
from edge.consumers.requester import Requester
from edge.consumers.selection import Selection
from edge.mqtt.properties import Properties, record_properties
from edge.rpc.protocol import encode
from tests.support.consumer_desk import Desk
from tests.support.examples import examples

U64_MAX = (1 << 63) - 1


def works(desk: Desk, group: str = "honest") -> None:
    """A consumer gets a record and acknowledges it."""
    ann = desk.member(group)
    desk.publish("next")
    assert ann.all()[-1] == b"next"
    ann.leave()


@pytest.mark.parametrize("text", ["x" * 65_536, "\0", "x" * 300_000])
def test_a_user_property_that_mqtt_forbids_ends_only_its_request(desk, text):
    joined = desk.ask(Join, Joined, "g", ("a/#",))
    assert desk.say(Fetch, "g", joined.member) is None
    for user in ((("k", text),), ((text, "v"),)):
        failed = desk.ask(Publish, Failed, (Letter("a/1"), Letter("a/1", user=user)), frames=[b"", b""])
        assert failed.code == "refused"
        assert "letter 1" in failed.error
        assert failed.hint
    works(desk)
    assert desk.published == []
    assert desk.coordinator.counts["errors"] == 0


def test_an_error_of_one_request_ends_only_that_request(desk, monkeypatch, caplog):
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(desk.coordinator._admin, "rings", broken)
    for _ in range(100):
        failed = desk.ask(Rings, Failed, ("a/#",))
        assert failed.code == "refused"
        assert "RuntimeError" in failed.error
    assert desk.coordinator.counts["errors"] == 100
    assert len(caplog.records) == 1, "the log is not the client's to fill"
    works(desk)


def test_an_error_of_one_fetch_leaves_the_others_alone(desk, monkeypatch):
    take = desk.coordinator._fetch_reader.take

    def broken(group: Any, *rest: Any) -> Any:
        if group.name == "bad":
            raise RuntimeError("a defect")
        return take(group, *rest)

    monkeypatch.setattr(desk.coordinator._fetch_reader, "take", broken)
    joined = desk.ask(Join, Joined, "bad", ("a/#",))
    assert desk.ask(Fetch, Failed, "bad", joined.member).code == "refused"
    works(desk)


@pytest.mark.parametrize(
    "wire",
    [
        b"\x03\x23\x00\x05",  # a topic alias
        b"\x02\x0b\x05",  # a subscription identifier
        b"\x05\x26\xff\xff\xff\xff",  # no properties at all
    ],
)
def test_a_dead_letter_of_a_record_with_hostile_properties_stops_nobody(runtime_directory, wire):
    with Desk(runtime_directory, settings=Consumers(tries_max=1)) as desk:
        ann = desk.member("bad", mode="queue")
        desk.publish("x", properties=wire)
        ann.nack(ann.got())
        desk.turn(1.0)
        desk.turn(1.0)
        assert [it.payload for it in desk.published] == [b"x"]
        assert desk.coordinator.counts["errors"] == 0
        works(desk)


def test_a_time_that_no_clock_reaches_does_not_end_a_consumer(desk):
    """Any publisher may write this property; a number of 4,000 digits is larger than a float."""
    ann = desk.member(mode="queue")
    wire = record_properties(Properties(user=((NOT_BEFORE, "9" * 4_000),)))
    desk.publish("late", properties=wire)
    desk.publish("now")
    assert ann.all() == [b"now"]
    assert client_state.DELAY_MAX_MS == 7 * 86_400_000


def test_many_overlapping_runs_of_one_ack_are_looked_at_once(desk, monkeypatch):
    looks: list[tuple[int, int]] = []
    look = ack_tracker.AckTracker._between

    def counted(self: ack_tracker.AckTracker, first: int, end: int) -> Any:
        looks.append((first, end))
        return look(self, first, end)

    monkeypatch.setattr(ack_tracker.AckTracker, "_between", counted)
    joined = desk.ask(Join, Joined, "g", ("a/#",), start="oldest")
    desk.publish(*map(str, range(100)))
    desk.ask(Fetch, Fetched, "g", joined.member)
    place = ("g", joined.member, joined.generation, "some-0", 1)
    runs = tuple((0, 1 << 39) for _ in range(4_000))
    assert desk.ask(Nack, Acked, *place, runs, 0).accepted == 100
    desk.ask(Fetch, Fetched, "g", joined.member)
    acked = desk.ask(Ack, Acked, *place, ((50, 10), (0, 51), *runs))
    assert acked.accepted == 100
    assert len(looks) == 3, "two for the nack, one for the ack"


def test_who_reads_no_answers_takes_bounded_memory_and_stops_nobody(runtime_directory, monkeypatch):
    monkeypatch.setattr(outbox, "PEER_MAX_BYTES", 100_000)
    with Desk(runtime_directory) as desk:
        desk.publish(*[b"x" * 1000] * 40)
        for number in range(1, 101):
            desk.coordinator.receive(b"deaf", encode(Read(number, VERSION, "some-0", max_bytes=64 << 20)))
            desk.coordinator.turn()
        answers = [
            PROTOCOL.decode_answer(frames[0]) for peer, frames in desk.coordinator.outbox if peer == b"deaf"
        ]
        assert len(answers) == 100
        assert desk.coordinator.outbox.unread(b"deaf") < 200_000
        failed = [it for it in answers if isinstance(it, Failed)]
        assert len(failed) > 90
        assert {it.code for it in failed} == {"full"}
        assert all(it.hint for it in failed)
        works(desk)


def test_who_reads_no_answers_gets_no_records_until_it_does(desk, monkeypatch):
    monkeypatch.setattr(outbox, "PEER_MAX_BYTES", 10_000)
    joined = desk.ask(Join, Joined, "g", ("a/#",), start="oldest")
    desk.coordinator.outbox.hold(b"peer", 20_000)
    desk.publish("x")
    assert desk.say(Fetch, "g", joined.member, max_wait_ms=60_000) is None
    desk.coordinator.outbox.release(b"peer", 20_000)
    desk.coordinator.turn()
    answers = desk.answers()
    assert [len(it.batches) for it in answers if isinstance(it, Fetched)] == [1]


def test_all_unread_answers_together_are_bounded(desk, monkeypatch):
    monkeypatch.setattr(outbox, "TOTAL_MAX_BYTES", 50_000)
    monkeypatch.setattr(outbox, "SMALL_BYTES", 2_000)
    desk.publish(*[b"x" * 1000] * 40)
    for number in range(20):
        request = Read(number, VERSION, "some-0", max_bytes=64 << 20)
        desk.coordinator.receive(b"deaf-%d" % number, encode(request))
    assert desk.coordinator.outbox.total_bytes < 50_000 + 2 * 50_000 + 20 * 3_000
    answers = desk.answers()
    assert all(getattr(it, "batch", None) for it in answers), "each gets records, the later ones few"


def test_one_client_cannot_take_all_places_of_publishers(desk, monkeypatch):
    waiting: list[Any] = []
    monkeypatch.setattr(
        desk.coordinator._publishes, "_outlet", lambda messages, done: waiting.append((messages, done))
    )
    for number in range(1, 1001):
        request = Publish(number, VERSION, (Letter("a/1"),))
        desk.coordinator.receive(b"greedy", encode(request), [b"x"])
    assert len(waiting) < 100
    assert desk.say(Publish, (Letter("a/1"),), frames=[b"y"]) is None, "it waits for the broker, as it shall"
    assert waiting[-1][0][0].payload == b"y"
    for messages, done in waiting:
        done(["stored"] * len(messages))
    assert sum(b"published" in frames[0] for _, frames in desk.coordinator.outbox) == len(waiting)


def test_publishers_whose_sinks_take_nothing_delay_no_other_publishers(desk, monkeypatch):
    waiting: list[Any] = []
    monkeypatch.setattr(
        desk.coordinator._publishes, "_outlet", lambda messages, done: waiting.append((messages, done))
    )
    monkeypatch.setattr(
        desk.coordinator._publishes, "_sinks_of", lambda topic: topic.partition("/")[0].strip("a")
    )

    def publish(peer: str, number: int, *topics: str) -> None:
        request = Publish(number, VERSION, tuple(map(Letter, topics)))
        desk.coordinator.receive(peer.encode(), encode(request), [b"x"] * len(topics))

    def stored(*topics: str) -> bool:
        before = len(waiting)
        publish("other", 1, *topics)
        return len(waiting) > before

    for number in range(2_000):  # of many clients
        publish(f"client-{number // 50}", number, "s/1")
    assert len(waiting) == publishes.SINKS_MAX
    assert not stored("s/1")
    assert not stored("a/1", "t/1", "s/1")
    assert stored("a/1")
    assert stored("t/1")
    assert stored("a/1", "t/1")
    for messages, done in waiting:
        done(["stored"] * len(messages))
    assert stored("t/1", "s/1")
    assert not desk.coordinator._publishes
    assert [len(it) for it in desk.coordinator._publishes._to_sinks.values()] == [1, 1]


def test_payloads_on_their_way_to_the_broker_are_counted_in_bytes(desk, monkeypatch):
    waiting: list[Any] = []
    monkeypatch.setattr(desk.coordinator._publishes, "_outlet", lambda messages, done: waiting.append(done))
    payload = bytes(16 << 20)
    for number in range(1, 33):
        request = Publish(number, VERSION, (Letter("a/1"),))
        desk.coordinator.receive(b"%d" % number, encode(request), [payload])
    assert len(waiting) == 4
    for done in waiting:
        done(["stored"])
    desk.ask(Groups, object)
    assert desk.say(Publish, (Letter("a/1"),), frames=[payload]) is None


def test_a_quota_lets_one_request_in_that_is_longer_than_all_may_be():
    limit = quota.Quota("requests", 2, 2, 10)
    ann, bob = Requester(b"a", ""), Requester(b"b", "")
    limit.take(ann, 100)
    with pytest.raises(Exception, match="exceed the limit of 10"):
        limit.take(ann, 1)
    limit.give(ann, 100)
    limit.take(ann, 5)
    limit.take(bob, 5)
    with pytest.raises(Exception, match="under way"):
        limit.take(Requester(b"c", ""), 0)


def test_the_filters_of_one_group_are_bounded_in_bytes(desk):
    wide = tuple(f"a/{index}/" + "x" * 3_000 for index in range(200))
    failed = desk.ask(Join, Failed, "g", wide)
    assert failed.code == "refused"
    assert "bytes" in failed.error
    assert desk.coordinator.registry.store.groups == {}
    assert desk.ask(Rings, Failed, wide).code == "refused"


def test_an_answer_does_not_repeat_a_megabyte_of_the_request(desk):
    desk.coordinator.receive(b"peer", encode({"op": "join", "id": 1, "version": "x" * 900_000}))
    assert desk.coordinator.outbox.unread(b"peer") < 1_000


def join(desk: Desk, peer: bytes, group: str = "g", **named: Any) -> Any:
    """The answer to a join of that connection."""
    desk.coordinator.receive(peer, encode(Join(77, VERSION, group, ("a/#",), **named)))
    desk.turn()
    return desk.answer_to(77)


def test_one_client_cannot_take_all_places_of_members(desk, monkeypatch):
    answers = [join(desk, b"greedy", f"g{number}") for number in range(100)]
    refused = [it for it in answers if isinstance(it, Failed)]
    assert len(refused) == 100 - coordinator.MEMBERS_EACH
    assert {it.code for it in refused} == {"full"}
    assert "64 members of this client" in refused[0].error
    assert desk.coordinator.counts["full"] == len(refused)
    assert "g99" not in desk.coordinator.registry.store.groups
    works(desk)
    desk.ask(Leave, object, "g0", answers[0].member)
    assert isinstance(join(desk, b"greedy"), Joined), "a member that leaves makes room"
    desk.turn(11.0)
    desk.turn(1.0)
    assert isinstance(join(desk, b"greedy"), Joined), "so does one that was silent"
    assert len(desk.coordinator._members) == 1


def test_all_members_together_are_limited_and_a_member_comes_back_when_there_is_no_room(desk, monkeypatch):
    monkeypatch.setattr(coordinator, "MEMBERS_MAX", 3)
    desk.end()
    desk.start()
    for number in range(3):
        assert isinstance(join(desk, b"%d" % number, instance=str(number)), Joined)
    assert isinstance(join(desk, b"3"), Failed)
    assert isinstance(join(desk, b"new connection", instance="0"), Joined)
    assert len(desk.coordinator._members) == 3
    desk.ask(Join, Failed, "g", ("a/#",), "queue", instance="1")
    desk.turn(11.0)
    desk.turn(1.0)
    assert len(desk.coordinator._members) == 0


def test_a_join_that_is_refused_or_fails_takes_no_place(desk, monkeypatch):
    assert isinstance(join(desk, b"a"), Joined)
    assert isinstance(join(desk, b"b", mode="queue"), Failed)
    monkeypatch.setattr(desk.coordinator.registry, "open", lambda *_: 1 / 0)
    assert isinstance(join(desk, b"b"), Failed)
    assert len(desk.coordinator._members) == 1


def test_a_member_that_replaces_one_of_another_connection_counts_there(desk, monkeypatch):
    monkeypatch.setattr(coordinator, "MEMBERS_EACH", 1)
    desk.end()
    desk.start()
    assert isinstance(join(desk, b"old", instance="1"), Joined)
    assert isinstance(join(desk, b"new", instance="2"), Joined)
    assert isinstance(join(desk, b"new", instance="1"), Joined), "its place, although this connection is full"
    assert isinstance(join(desk, b"old"), Failed)
    assert isinstance(join(desk, b"new"), Failed)
    assert len(desk.coordinator.registry.groups["g"].members) == 2


def test_fetches_that_wait_cost_nothing_until_something_changes_in_their_group(desk, monkeypatch):
    looks: list[str] = []
    take = desk.coordinator._fetch_reader.take

    def counted(group: Any, *rest: Any) -> Any:
        looks.append(group.name)
        return take(group, *rest)

    monkeypatch.setattr(desk.coordinator._fetch_reader, "take", counted)
    for number in range(300):
        joined = join(desk, b"%d" % (number // 50), f"g{number // 50}", mode="queue")
        request = Fetch(number, VERSION, f"g{number // 50}", joined.member, max_wait_ms=60_000)
        desk.coordinator.receive(b"%d" % (number // 50), encode(request))
    desk.turn()
    looks.clear()
    for _ in range(50):
        desk.ask(Rings, object, ("a/#",))
        desk.now_s += 0.1
    assert looks == []
    desk.publish("x")
    desk.turn()
    assert len(looks) == 300
    assert sum(isinstance(answer, Fetched) and len(answer.batches) == 1 for answer in desk.answers()) == 6


def test_fetches_that_take_long_leave_turns_to_other_groups_and_other_requests(desk, monkeypatch):
    monkeypatch.setattr(coordinator, "FETCHES_S", 0.0)  # as if each took longer
    desk.publish("x", "y", "z")
    members = {}
    for group in ("first", "second", "third"):
        priority = 1_000 if group == "first" else 0
        members[group] = join(desk, b"peer", group, mode="queue", start="oldest", priority=priority).member

    def fetch(group: str, number: int) -> None:
        request = Fetch(number, VERSION, group, members[group], max_wait_ms=60_000, max_records=1)
        desk.coordinator.receive(b"peer", encode(request))

    for number, group in enumerate(members, 1_000):
        fetch(group, number)
    answered = []
    for number in range(2_000, 2_005):
        desk.coordinator.receive(b"other", encode(Groups(number, VERSION)))
        desk.turn()
        answers = desk.answers()
        assert isinstance(desk.answer_to(number), GroupList)
        found = [answer.id for answer in answers if isinstance(answer, Fetched)]
        assert len(found) <= 1
        answered += found
        fetch("first", 1_000 + number)
    assert answered[:3] == [1_000, 1_001, 1_002]


def test_reads_that_take_long_leave_turns_to_other_requests(desk, monkeypatch):
    monkeypatch.setattr(reads, "READS_S", 0.0)
    monkeypatch.setattr(reads, "READY_MAX", 5)
    desk.publish("x")
    for number in range(1_000, 1_007):
        desk.coordinator.receive(b"peer", encode(Read(number, VERSION, "some-0", offset=0)))
    assert [answer.id for answer in desk.answers()] == [1_005, 1_006]  # too many wait
    desk.coordinator.receive(b"other", encode(Groups(1, VERSION)))
    desk.turn()
    assert [answer.id for answer in desk.answers()] == [1_005, 1_006, 1, 1_000]
    assert [desk.coordinator.turn() > 0 for _ in range(4)] == [False, False, False, True]
    assert [answer.id for answer in desk.answers()][4:] == [1_001, 1_002, 1_003, 1_004]


def test_long_filters_lessen_the_bytes_that_one_fetch_examines():
    many, long = Selection(["a/+"] * 256), Selection(["+/" * 100 + str(number) for number in range(256)])
    assert look_max_bytes(long) * 4 < look_max_bytes(many)
    assert look_max_bytes(Selection(["a/+"])) == look_max_bytes(Selection(["#"]))


# ---- anything at all ----

ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats() | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
NUMBER = st.sampled_from([0, 1, 2, 3, 41, 42, 1 << 31, (1 << 32) - 1, 1 << 40, 1 << 62, U64_MAX])
NUMBER |= st.integers(0, U64_MAX)
U32 = st.sampled_from([0, 1, 2, (1 << 32) - 1])
NAMES = st.sampled_from(["some-0", "none", "x" * 256, "\0", "é", "#"])
GROUPS = st.sampled_from(["g", "queue", "none", "a" * 64])
FILTERS = st.lists(
    st.sampled_from(["a/#", "#", "a/1", "+", "$share/g/a", "a/#/b", "", "\0", "/" * 200]), max_size=4
)
RUNS = st.lists(st.tuples(NUMBER, st.integers(1, (1 << 40) - 1)), max_size=8)
TEXT = st.text(max_size=8) | st.sampled_from(["x" * 65_536, "\0"])
LETTERS = st.lists(
    st.builds(
        Letter,
        st.sampled_from(["a/1", "", "#", "$SYS/x", "\0", "x" * 70_000, "a/" * 300]),
        st.integers(0, 2),
        st.booleans(),
        st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
        st.none() | NUMBER,
    ),
    min_size=1,
    max_size=4,
)


def asked(kind: type, *fields: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    return st.tuples(*fields).map(lambda given: encode(kind(7, VERSION, *given)))


def requests(member: str, generation: int) -> st.SearchStrategy[bytes]:
    members = st.sampled_from([member, "x", "x" * 256])
    head = (GROUPS, members, st.sampled_from([0, generation, U64_MAX]), NAMES, U32)
    return st.one_of(
        st.binary(max_size=200),
        ANY.map(msgspec.msgpack.encode),
        st.fixed_dictionaries(
            {"op": st.sampled_from(["join", "fetch", "ack", "read", "reset", "x"]), "version": ANY},
            optional={"id": ANY, "group": ANY, "runs": ANY, "letters": ANY, "offset": ANY, "filters": ANY},
        ).map(msgspec.msgpack.encode),
        asked(Join, GROUPS, FILTERS.map(tuple), st.sampled_from(["ordered", "queue"])),
        asked(Heartbeat, GROUPS, members, st.booleans()),
        asked(Fetch, GROUPS, members, st.sampled_from([1, 64 << 20]), st.just(0)),
        asked(Commit, *head, NUMBER),
        asked(Ack, *head, RUNS.map(tuple)),
        asked(Nack, *head, RUNS.map(tuple), st.none() | st.just(0), TEXT.map(lambda it: it[:1024])),
        asked(Read, NAMES, st.none() | U32, st.none() | NUMBER, st.none() | NUMBER, st.just(64 << 20)),
        asked(Rings, FILTERS.map(tuple)),
        asked(Groups, GROUPS | st.just("")),
        asked(Reset, GROUPS, st.sampled_from(["oldest", "latest", "offset", "time"]), NUMBER,
              st.lists(NAMES, max_size=3).map(tuple)),
        asked(Publish, LETTERS.map(tuple)),
    )  # fmt: skip


@settings(max_examples=examples(80), deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
@example(data=None)
def test_no_request_stops_the_service(tmp_path_factory, data):
    """One answer for each request, no unexpected exception, and a consumer is served afterwards."""
    numbers = itertools.count()
    tokens = SimpleNamespace(urandom=lambda size: next(numbers).to_bytes(size))  # the same names in each run
    with mock.patch.object(coordinator, "os", tokens), Desk(tmp_path_factory.mktemp("desk")) as desk:
        desk.publish(*map(str, range(42)))
        joined = desk.ask(Join, Joined, "g", ("a/#",), start="oldest")
        desk.ask(Fetch, Fetched, "g", joined.member)
        desk.ask(Join, Joined, "queue", ("a/#",), "queue", start="oldest")
        if data is not None:
            for request in data.draw(st.lists(requests(joined.member, joined.generation), max_size=12)):
                frames = data.draw(st.lists(st.binary(max_size=30), max_size=4))
                desk.coordinator.receive(b"odd", request, frames)
                desk.turn(0.1)
                odd = [frames for peer, frames in desk.coordinator.outbox if peer == b"odd"]
                assert len(odd) == 1, PROTOCOL.decode_answer(odd[0][0]) if odd else request
                desk.coordinator.outbox.popleft()
        assert desk.coordinator.counts["errors"] == 0
        works(desk)


def test_the_longest_user_property_that_mqtt_has_is_published(desk):
    letters = (Letter("a/1", user=(("k", "x" * 65_535),)),)
    assert desk.ask(Publish, Published, letters, frames=[b""]).stored == 1
