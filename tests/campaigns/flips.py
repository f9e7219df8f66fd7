"""Flipped bits and cut files, by the hundred thousand: at most the damaged record is lost, and no start is
refused.
"""

import logging
from collections import Counter

from tests.campaigns.running import Campaign, Outcome
from tests.support.damaged_log import DamagedLog, LostTooMuch

DAMAGES = 500  # of one log


def run_seed(seed: int) -> Outcome:
    """One log, damaged again and again."""
    logging.disable(logging.ERROR)
    counts: Counter[str] = Counter()
    wrong = []
    log = DamagedLog(seed)
    for number in range(DAMAGES):
        flips = number % 5 != 0
        counts["flips" if flips else "cuts"] += 1
        counts["damages"] += 1
        try:
            log.flip() if flips else log.cut()
        except LostTooMuch as error:
            wrong.append(str(error))
    return counts, wrong


FLIPS = Campaign(
    name="flips",
    what="flipped bits and cut files of small logs",
    unit="damages",
    wanted=100_000,
    run_seed=run_seed,
)
