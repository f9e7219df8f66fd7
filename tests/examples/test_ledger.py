"""The ledger of the demo: faults are planted in one stage at a time, and it must name them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.demo.journal import Journal, JournalFile
from examples.demo.ledger import Ledger, Stage, build
from examples.demo.tally import Tally

DEVICES = {"host/a/cpu/0": 50, "host/a/load": 20}


def journal(unacked: frozenset[tuple[str, int]] = frozenset()) -> JournalFile:
    acked = Tally()
    for message in messages():
        if message not in unacked:
            acked.add(*message)
    return JournalFile("amqtt", dict(DEVICES), acked, {})


def messages() -> list[tuple[str, int]]:
    return [(device, n) for device, count in DEVICES.items() for n in range(count)]


def stage(
    name: str, seen: list[tuple[str, int]], *, records: int | None = None, twice: int = 0, gaps: int = 0
) -> Stage:
    tally = Tally()
    for device, n in seen:
        tally.add(device, n)
    return Stage(name, len(seen) if records is None else records, twice, gaps, tally)


def ledger(*changed: Stage, acked: JournalFile | None = None) -> Ledger:
    """Three stages that have everything, some of them replaced."""
    stages = {name: stage(name, messages()) for name in ("shm", "drained", "table")}
    stages |= {it.name: it for it in changed}
    return build([acked or journal()], list(stages.values()))


def test_a_run_without_faults_matches() -> None:
    found = ledger()
    assert found.matches
    assert (found.lost, found.twice) == (0, 0)
    assert [row.messages for row in found.rows] == [70] * 5


def test_an_acknowledged_message_that_is_missing_is_lost_at_the_stage_that_misses_it() -> None:
    found = ledger(stage("drained", [it for it in messages() if it != ("host/a/load", 7)]))
    assert {row.name: row.lost for row in found.rows if row.lost is not None} == {
        "shm": 0,
        "drained": 1,
        "table": 0,
    }
    assert "drained: 1 acknowledged messages are missing: host/a/load 7" in found.problems


def test_a_message_that_was_never_acknowledged_is_not_lost_but_the_run_does_not_match() -> None:
    open_ = ("host/a/load", 19)
    rest = [it for it in messages() if it != open_]
    found = ledger(
        *(stage(name, rest) for name in ("shm", "drained", "table")), acked=journal(frozenset({open_}))
    )
    assert found.lost == 0
    assert found.problems == ["1 messages were never acknowledged: host/a/load 19"]


def test_a_message_that_was_sent_again_is_two_records_and_no_fault() -> None:
    again = [*messages(), ("host/a/load", 3)]
    found = ledger(*(stage(name, again) for name in ("shm", "drained", "table")))
    assert found.matches
    assert {row.again for row in found.rows if row.again is not None} == {1}


def test_a_record_that_is_there_twice_is_named() -> None:
    found = ledger(stage("table", [*messages(), ("host/a/load", 3)], records=70, twice=1))
    assert not found.matches
    assert found.problems == ["table: 1 records are there more than once"]


def test_a_stage_with_fewer_records_than_the_others_does_not_match_even_if_no_message_is_missing() -> None:
    again = [*messages(), ("host/a/load", 3)]
    found = ledger(stage("shm", again), stage("drained", again))
    assert found.problems == ["the stages hold different records: shm 71, drained 71, table 70"]


def test_gaps_and_messages_that_nobody_published_are_named() -> None:
    found = ledger(stage("shm", [*messages()[1:], ("host/b/load", 0)], gaps=2))
    assert "shm: 2 offsets are missing" in found.problems
    assert "shm: 1 messages that nobody published: host/b/load 0" in found.problems


def test_a_run_in_which_nothing_was_published_does_not_match() -> None:
    found = build([JournalFile("amqtt", {}, Tally(), {})], [stage("shm", [])])
    assert found.problems == ["nothing was published"]


@pytest.mark.parametrize("device", sorted(DEVICES))
def test_an_acknowledgement_for_what_was_never_published_is_named(device: str) -> None:
    file = journal()
    file.acked.add(device, 1_000)
    found = ledger(acked=file)
    assert any("acknowledgements of what nobody published" in problem for problem in found.problems)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 300)), max_size=60), st.randoms())
def test_a_tally_counts_as_a_plain_counter_does(seen: list[tuple[str, int]], random) -> None:
    tally, half = Tally(), Tally()
    for message in seen:
        (tally if random.random() < 0.5 else half).add(*message)
    tally.merge(half)
    assert tally.count() == len(set(seen))
    assert tally.total() == len(seen)
    wanted = Tally()
    wanted.expect("a", 5)
    assert list(tally.missing(wanted)) == [("a", n) for n in range(5) if ("a", n) not in seen]


def test_a_tally_refuses_a_number_that_no_device_of_a_run_can_reach() -> None:
    with pytest.raises(ValueError, match="not of this run"):
        Tally().add("a", 1 << 40)


def test_what_a_publisher_leaves_behind_is_read_back(tmp_path: Path) -> None:
    mine = Journal()
    for _ in range(3):
        mine.acknowledged("host/a/load", mine.published("host/a/load"))
    assert mine.published("host/a/cpu/0") == 0
    mine.save(tmp_path / "amqtt.json")
    found = JournalFile.load(tmp_path / "amqtt.json")
    assert found.name == "amqtt"
    assert found.counts == {"host/a/load": 3, "host/a/cpu/0": 1}
    assert (found.acked.count("host/a/load"), found.acked.count("host/a/cpu/0")) == (3, 0)
    assert mine.pending == 1
