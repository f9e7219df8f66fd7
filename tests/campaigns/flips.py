"""Flipped bits and cut files, by the hundred thousand: at most the damaged record is lost, and no start is
refused.
"""

from __future__ import annotations

import logging
from collections import Counter

from tests.campaigns.ledger import Progress, show
from tests.campaigns.pools import each
from tests.support.damaged_log import DamagedLog, LostTooMuch

DAMAGES = 500  # of one log


def run(damages: int, seed: int, processes: int) -> int:
    """Exit status."""
    progress = Progress("damages", damages, "flips and cuts")
    total: Counter[str] = Counter()
    wrong: list[str] = []
    logs = -(-damages // DAMAGES)
    for counts, found in each(run_seed, range(seed, seed + logs), processes):
        total += counts
        wrong += found
        for it in found:
            print(f"LOST TOO MUCH {it}")
        progress.at(total["flips"] + total["cuts"], f"{len(wrong)} lost too much")
    progress.end()
    show("flips", {"lost too much, or refused to start": len(wrong), "logs": logs, **total,
                   "first seed": seed, "seconds": int(progress.seconds)})  # fmt: skip
    return 1 if wrong else 0


def run_seed(seed: int) -> tuple[Counter[str], list[str]]:
    """One log, damaged again and again."""
    logging.disable(logging.ERROR)
    counts: Counter[str] = Counter()
    wrong = []
    log = DamagedLog(seed)
    for number in range(DAMAGES):
        flips = number % 5 != 0
        counts["flips" if flips else "cuts"] += 1
        try:
            log.flip() if flips else log.cut()
        except LostTooMuch as error:
            wrong.append(str(error))
    return counts, wrong
