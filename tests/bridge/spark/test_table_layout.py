"""Files of a table that cleaning must spare, by their paths."""

import pytest

pytest.importorskip("pyspark", reason="needs the spark extra: pip install 'brim[spark]'")

from bridge.spark.table_layout import may_be_in_flight


@pytest.mark.parametrize(
    ("path", "last", "in_flight"),
    [
        ("batch-000000002/019ab/dt=2026-01-31/part-0.parquet", 1, True),
        ("batch-000000002/019ab/dt=2026-01-31/part-0.parquet", 2, False),
        ("batch-000000002/part-0.parquet", 3, False),
        ("batch-000000000/019ab/part-0.parquet", None, True),  # the log has no batch yet
        ("compact-7f/dt=2026-01-31/part-0.parquet", None, False),
        ("compact-7f/batch-000000002/part-0.parquet", 1, False),
        ("another-batch-000000002/part-0.parquet", 1, False),
    ],
)
def test_a_file_may_be_in_flight_if_its_batch_is_behind_the_last_of_the_log(
    path: str, last: int | None, in_flight: bool
) -> None:
    assert may_be_in_flight(path, last) is in_flight
