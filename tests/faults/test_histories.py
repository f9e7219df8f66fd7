"""Histories of `./dev simulate histories`, and a mistake that they find."""

import pytest

from edge.mqtt import Version
from tests.campaigns.histories import differences, run_seed
from tests.support.histories import CutAll, Publishes, history
from tests.support.history_client import Arrival, Control, Event, Wrong

SEED = 38  # in which a client with a no-local subscription publishes the last message before a kill


def test_clients_see_the_same_next_to_kills() -> None:
    counts, wrong = run_seed(SEED)
    assert not wrong
    assert counts["kills"] == 4
    assert counts["packets"] > 100


@pytest.mark.campaign
def test_a_broker_that_forgets_its_records_is_found() -> None:
    _, wrong = run_seed(SEED, "tests.support.new_rings_broker")
    assert any("next to kills []" in text for text in wrong)


def test_a_history_follows_from_its_seed() -> None:
    versions, steps = history(SEED)
    assert history(SEED) == (versions, steps)
    assert history(SEED + 1) != (versions, steps)
    versions_of_all = {version for seed in range(5) for version in history(seed)[0].values()}
    assert versions_of_all == {Version.V311, Version.V5}
    assert sum(isinstance(step, Publishes) for step in steps) > 5


FIRST: list[Event] = [Arrival("a", b"1", 1), Arrival("b", b"2", 1)]


def is_different(first: list[Event], second: list[Event]) -> bool:
    return bool([*differences([CutAll()], [{"c0": first}], [{"c0": second}])])


@pytest.mark.parametrize(
    "second",
    [
        [Arrival("a", b"1", 1, dup=True), FIRST[1]],
        [Arrival("a", b"1", 1, is_repeated=True), FIRST[1]],
        FIRST[:1],
        [*FIRST, FIRST[0]],
        [*FIRST, Control("closed")],
        [*FIRST, Wrong("no answer")],
    ],
)
def test_each_value_of_a_packet_counts(second: list[Event]) -> None:
    assert is_different(FIRST, second)


def test_the_order_of_one_topic_counts_and_that_of_others_does_not() -> None:
    assert not is_different(FIRST, [*reversed(FIRST)])
    assert is_different(
        [Arrival("a", b"1", 1), Arrival("a", b"2", 1)], [Arrival("a", b"2", 1), Arrival("a", b"1", 1)]
    )


def test_dup_of_a_will_and_messages_of_qos_0_do_not_count() -> None:
    assert not is_different(
        [Arrival("a", b"will 1", 1)], [Arrival("a", b"will 1", 1, dup=True), Arrival("a", b"2", 0)]
    )


def test_a_retained_message_may_come_again_and_may_not_be_missing() -> None:
    retained: list[Event] = [Arrival("a", b"1", 1, retain=True)]
    assert not is_different(retained, [*retained, *retained])
    assert is_different(retained, [])


def test_a_shared_message_may_not_be_missing_nor_come_twice_at_qos_2() -> None:
    first, second = Arrival("s/a", b"1", 1), Arrival("s/b", b"2", 2)
    assert not is_different([first, second], [first, second, first, second._replace(is_repeated=True)])
    assert is_different([first, second], [second])
    assert is_different([first, second], [first, second, second])
