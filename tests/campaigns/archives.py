"""Crashes of archiving by the ten thousand: tests/support/archive_crashes.py, seed after seed."""

import logging
from collections import Counter

from persistence.errors import FormatError
from tests.campaigns.running import Campaign, Outcome
from tests.support.archive_crashes import crash_at_each_step


def run_seed(seed: int) -> Outcome:
    """One log, of which a segment is archived, with a crash at each step."""
    logging.disable(logging.ERROR)
    try:
        return Counter(states=crash_at_each_step(seed)), []
    except (AssertionError, FormatError) as error:
        return Counter(), [f"seed {seed}: {error!r}"]


ARCHIVES = Campaign(
    name="archives",
    what="crashes at each step of archiving a segment",
    unit="states",
    wanted=10_000,
    run_seed=run_seed,
)
