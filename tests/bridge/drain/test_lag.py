"""Error of a bridge that cannot read some of its partitions."""

import pytest

from bridge.drain.lag import NAMED_MAX, PartitionLag, error_of

NAMES = [f"s-{number}" for number in range(NAMED_MAX)]


def lag(partition: int, *, is_broken: bool) -> PartitionLag:
    error = f"s-{partition}: damaged" if is_broken else ""
    return PartitionLag("s", partition, 7, 0, 0, 0, 0.0, 0, None, error)


@pytest.mark.parametrize(
    ("broken", "partitions", "words"),
    [
        (0, 2, ""),
        (1, 2, "cannot read s-0, other partitions are drained: damaged"),
        (2, 2, "cannot read s-0, s-1: damaged"),
        (NAMED_MAX, NAMED_MAX, f"cannot read {', '.join(NAMES)}: damaged"),
        (NAMED_MAX + 2, NAMED_MAX + 2, f"cannot read {', '.join(NAMES)} and 2 more: damaged"),
    ],
)
def test_it_names_a_few_partitions_and_the_first_cause_once(broken: int, partitions: int, words: str) -> None:
    assert error_of([lag(number, is_broken=number < broken) for number in range(partitions)]) == words
