"""Histories of `./dev simulate histories`, and a mistake that they find."""

import pytest

from edge.mqtt import Version
from tests.campaigns.histories import differences, run_seed
from tests.support.histories import CutAll, Publishes, history
from tests.support.history_client import MESSAGE

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


@pytest.mark.parametrize(
    ("second", "is_different"),
    [
        ([(MESSAGE, "a", b"1", 1, False, False, ""), (MESSAGE, "b", b"2", 1, False, False, "")], False),
        ([(MESSAGE, "b", b"2", 1, False, False, ""), (MESSAGE, "a", b"1", 1, False, False, "")], False),
        ([(MESSAGE, "a", b"1", 1, False, True, ""), (MESSAGE, "b", b"2", 1, False, False, "")], True),
        ([(MESSAGE, "a", b"1", 1, False, False, "")], True),
        ([(MESSAGE, "a", b"1", 1, False, False, "")] * 2, True),
        ([("WRONG: no answer",)], True),
    ],
)
def test_order_of_one_topic_and_each_value_count(
    second: list[tuple[object, ...]], *, is_different: bool
) -> None:
    first: list[tuple[object, ...]] = [
        (MESSAGE, "a", b"1", 1, False, False, ""),
        (MESSAGE, "b", b"2", 1, False, False, ""),
    ]
    assert bool([*differences([CutAll()], [{"c": first}], [{"c": second}])]) == is_different


def test_dup_of_a_will_does_not_count() -> None:
    first = (MESSAGE, "a", b"will 1", 1, False, False, "")
    second = (MESSAGE, "a", b"will 1", 1, False, True, "")
    assert not [*differences([CutAll()], [{"c": [first]}], [{"c": [second]}])]
