"""Percentiles are those of the samples, within the width of a bucket."""

import random
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.load import Histogram
from edge.load.histogram import time_in_words
from ringbuf.native import lib

RANKS = (0, 1, 10, 50, 90, 99, 99.9, 100)
WIDTH = 1 / 128


@given(st.integers(0, (1 << 41) - 1))
def test_a_value_is_in_its_bucket(value: int) -> None:
    bucket = lib.ld_bucket(value)
    assert lib.ld_bucket_floor(bucket) <= value < lib.ld_bucket_floor(bucket + 1)
    assert lib.ld_bucket_floor(bucket + 1) - lib.ld_bucket_floor(bucket) <= max(1, value * WIDTH)


def test_what_is_too_long_is_in_the_last_bucket() -> None:
    assert lib.ld_bucket((1 << 64) - 1) == lib.LD_BUCKETS - 1


@pytest.mark.parametrize("shape", ["even", "skewed", "two humps", "one"])
def test_percentiles_are_those_of_the_samples(shape: str) -> None:
    random.seed(7)
    samples = {
        "even": [random.randrange(1_000, 2_000_000) for _ in range(20_011)],
        "skewed": [int(random.lognormvariate(10, 1.5)) for _ in range(20_011)],
        "two humps": [random.choice((30_000, 4_000_000)) + random.randrange(9_000) for _ in range(20_013)],
        "one": [123_456],
    }[shape]
    histogram = Histogram.of(samples)
    for rank in RANKS:
        exact = int(np.percentile(samples, rank, method="inverted_cdf"))
        assert exact <= histogram.percentile(rank) <= exact * (1 + WIDTH)
    assert histogram.percentile(50) == pytest.approx(statistics.median_high(samples), rel=2 * WIDTH)
    assert (histogram.total, histogram.min_ns, histogram.max_ns) == (len(samples), min(samples), max(samples))


def test_a_picture_has_a_line_for_each_power_of_two_and_adds_up() -> None:
    lines = Histogram.of([1_500] * 3 + [9_000]).lines()
    assert [line.split("#")[0].split() for line in lines] == [
        ["up", "to", "2.05", "µs", "75.00%"],
        ["up", "to", "4.1", "µs", "0.00%"],
        ["up", "to", "8.19", "µs", "0.00%"],
        ["up", "to", "16.4", "µs", "25.00%"],
    ]
    assert [line.count("#") for line in lines] == [40, 0, 0, 14]


def test_nothing_has_no_picture_and_no_figures() -> None:
    nothing = Histogram.of([])
    assert (nothing.lines(), nothing.as_dict(), nothing.percentile(99)) == ([], {"count": 0}, 0)


@pytest.mark.parametrize(
    ("ns", "words"), [(7, "7 ns"), (12_345, "12.3 µs"), (4_100_000, "4.1 ms"), (1_234_000_000_000, "1,234 s")]
)
def test_times_are_told_in_their_unit(ns: int, words: str) -> None:
    assert time_in_words(ns) == words
