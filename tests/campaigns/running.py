"""One campaign, seed after seed on all cores, until enough is done or time is up.

A seed is one history with everything it needs: it can be run again alone, and many run side by side.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.campaigns.ledger import Progress, show
from tests.campaigns.pools import each
from tests.campaigns.sums import add, next_seed

Outcome = tuple[Counter[str], list[str]]  # what was done, and what was wrong


class Campaign(NamedTuple):
    """Kinds of seeds to run: `run_seed` is called in separate processes."""

    name: str
    what: str
    unit: str  # what is counted, in an outcome too
    wanted: int
    run_seed: Callable[[int], Outcome]
    missing: Callable[[], str] = str  # why it cannot run here; "" if it can
    facts_of: Callable[[Counter[str]], Mapping[str, object]] = lambda total: dict(total.most_common())


@dataclass(frozen=True)
class Work:
    """Amount of work."""

    count: int  # of units, at least
    seconds: float  # after which no seed is begun
    seed: int | None  # the first one; None: that which follows the last chunk's
    processes: int
    sums: Path | None  # where chunks add up (sums.py)


def run(campaign: Campaign, work: Work) -> int:
    """Exit status: 1 if anything was wrong, 2 if it cannot run here, 130 if it was interrupted."""
    if reason := campaign.missing():
        print(f"{campaign.name} cannot run here: it {reason}")
        return 2
    seed = next_seed(work.sums, campaign.name) if work.seed is None else work.seed
    progress = Progress(campaign.name, work.count, campaign.unit)
    total: Counter[str] = Counter()
    wrong: list[str] = []
    interrupted = False
    try:
        for counts, found in each(
            campaign.run_seed, _seeds(seed, work, total, campaign.unit), work.processes
        ):
            total += counts
            total["seeds"] += 1
            wrong += found
            for it in found:
                print(f"WRONG {it}", flush=True)
            progress.at(total[campaign.unit], f"{len(wrong)} wrong")
    except KeyboardInterrupt:  # Seeds that were not at their end do not count.
        interrupted = True
    except Exception as mistake:  # noqa: BLE001  Of the campaign itself: what it has seen counts.
        wrong.append(f"ended by {mistake!r}")
        print(f"WRONG {wrong[-1]}", flush=True)
    progress.end()
    facts: dict[str, object] = {"wrong": len(wrong), **campaign.facts_of(total)}
    facts |= {"first seed": seed, "seconds": int(progress.seconds)}
    facts |= {"interrupted": 1} if interrupted else {}
    show(campaign.name, facts)
    if work.sums is not None:
        add(work.sums, campaign.name, (seed, seed + total["seeds"]), int(progress.seconds), wrong, total)
    return 1 if wrong else 130 if interrupted else 0


def broken_by(run: Callable[[], object], seed: int, wrong: list[str]) -> list[str]:
    """Run a history that adds to `wrong`. Return these lines with its seed, the error that ended it first."""
    ended = []
    try:
        run()
    except (AssertionError, OSError) as error:  # Lost is one
        ended.append(f"{type(error).__name__} {error}")
    return [f"seed {seed}: {text}" for text in (*ended, *wrong)]


def _seeds(first: int, work: Work, total: Counter[str], unit: str) -> Iterator[int]:
    """One after the other, as long as there is work and time."""
    until = time.monotonic() + work.seconds
    for seed in count(first):
        if total[unit] >= work.count or time.monotonic() > until:
            return
        yield seed
