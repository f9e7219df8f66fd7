"""The check of a subscriber: what came, what is missing, what came twice."""

from hypothesis import given
from hypothesis import strategies as st

from examples.demo.offsets import Offsets


def accepted(*offsets: int) -> Offsets:
    found = Offsets()
    for offset in offsets:
        found.accept("vitals-0", 7, offset)
    return found


def test_what_was_passed_over_is_a_gap_until_it_comes() -> None:
    found = accepted(0, 1, 4)
    assert (found.records, found.gaps, found.twice) == (3, 2, 0)
    assert list(found.missing()) == [("vitals-0", 7, [2, 3])]
    assert found.accept("vitals-0", 7, 3)
    assert (found.records, found.gaps, found.late) == (4, 1, 1)


def test_a_ring_is_expected_from_its_first_record_on() -> None:
    assert accepted(5).gaps == 5


def test_the_same_offset_of_another_epoch_is_another_record() -> None:
    found = accepted(0, 1)
    assert found.accept("vitals-0", 8, 0)
    assert (found.records, found.twice, found.gaps) == (3, 0, 0)


def test_what_the_ring_has_beyond_the_last_that_came_is_missing_once_that_is_said() -> None:
    found = accepted(0, 1)
    assert found.gaps == 0
    found.expect("vitals-0", 7, 5)
    assert list(found.missing()) == [("vitals-0", 7, [2, 3, 4])]
    assert found.places() == {"vitals-0": [7, 5]}


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 30)), max_size=80))
def test_any_order_of_records_is_counted_as_sets_do(seen: list[tuple[str, int]]) -> None:
    found, model = Offsets(), set()
    for ring, offset in seen:
        assert found.accept(ring, 1, offset) == ((ring, offset) not in model)
        model.add((ring, offset))
    assert found.records == len(model)
    assert found.twice == len(seen) - len(model)
    ends = {ring: max(offset for name, offset in model if name == ring) + 1 for ring, _ in model}
    assert found.gaps == sum(ends.values()) - len(model)


def test_a_new_epoch_goes_on_where_the_log_ended() -> None:
    seen = Offsets()
    for offset in range(10):
        seen.accept("a", 1, offset)
    assert seen.accept("a", 2, 8), "the log had ended at 8, before what was seen"
    assert seen.gaps == 0
    assert seen.accept("a", 3, 12)
    assert list(seen.missing()) == [("a", 3, [9, 10, 11])], "nobody has seen these"
