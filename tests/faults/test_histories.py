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


def differences_of(first: list[Event], second: list[Event]) -> list[str]:
    return [*differences([CutAll()], [{"c0": first, "c1": []}], [{"c0": second, "c1": []}])]


def is_different(first: list[Event], second: list[Event]) -> bool:
    return bool(differences_of(first, second))


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


def test_the_order_of_other_packets_does_not_count() -> None:
    assert not is_different([Control("one"), Control("two")], [Control("two"), Control("one")])


def test_a_mistake_of_both_lives_is_reported_of_each() -> None:
    mistake: list[Event] = [Wrong("no answer")]
    assert len(differences_of(mistake, mistake)) == 2


def test_dup_of_a_will_and_messages_of_qos_0_do_not_count() -> None:
    assert not is_different(
        [Arrival("a", b"will 1", 1)], [Arrival("a", b"will 1", 1, dup=True), Arrival("a", b"2", 0)]
    )


def test_a_retained_message_may_come_again_and_may_not_be_missing() -> None:
    retained: list[Event] = [Arrival("a", b"1", 1, retain=True)]
    assert not is_different(retained, [*retained, *retained, Arrival("b", b"1", 1, retain=True)])
    assert not is_different(retained, [Arrival("a", b"1", 1, retain=True, is_repeated=True)])
    assert not is_different([Arrival("a", b"1", 0, retain=True)], [])
    assert is_different(retained, [])
    assert is_different(retained, [Arrival("a", b"2", 1, retain=True)])


def test_messages_that_are_not_retained_are_missing_only_once() -> None:
    assert len(differences_of(FIRST[:1], [])) == 1


def test_a_shared_message_may_not_be_missing_nor_come_twice_at_qos_2() -> None:
    first, second = Arrival("s/a", b"1", 1), Arrival("s/b", b"2", 2)
    assert not is_different([first, second], [first, second, first, second._replace(is_repeated=True)])
    assert is_different([first, second], [second])
    assert is_different([second], [first, second])
    assert is_different([first], [first._replace(payload=b"2")])
    assert is_different([first, second], [first, second, second])
    assert is_different([first, second, second], [first, second])
    assert not is_different([first._replace(qos=0)], [])


def test_any_member_may_get_a_shared_message() -> None:
    shared: list[Event] = [Arrival("s/a", b"1", 2)]
    lives = [{"c0": shared, "c1": []}], [{"c0": [], "c1": shared}]
    assert not [*differences([CutAll()], *lives)]


def test_a_message_of_two_subscriptions_may_come_twice() -> None:
    twice: list[Event] = [Arrival("a", b"1", 2)] * 2
    assert not is_different(twice, twice)
