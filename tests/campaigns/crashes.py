"""Crash states of the log by the million, on all cores: tests/support/log_simulation.py, seed after seed."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.campaigns.ledger import Progress, show
from tests.campaigns.pools import each
from tests.support.directories import memory_directory
from tests.support.log_simulation import Simulation, Violation

BATCH = 8  # seeds that one task runs

Outcome = tuple[Counter[str], list[str]]  # what was done, and what was violated


def run(states: int, seed: int, processes: int) -> int:
    """Exit status.  Runs seeds from `seed` on until so many different states have been judged."""
    progress = Progress("crash states", states, "different states")
    total: Counter[str] = Counter()
    violations: list[str] = []
    for counts, found in _outcomes(seed, processes):
        total += counts
        violations += found
        for violation in found:
            print(
                f"VIOLATION {violation}\n  again: ./dev simulate log --seed {_seed_of(violation)} --states 1"
            )
        progress.at(total["different states"], f"{total['states']:,} crashes, {len(violations)} violations")
        if total["different states"] >= states:
            break
    progress.end()
    facts: dict[str, object] = dict(total.most_common())
    rate = int(total["states"] / progress.seconds)
    show("log", {"violations": len(violations), **facts, "first seed": seed, "crashes a second": rate,
                 "seconds": int(progress.seconds)})  # fmt: skip
    return 1 if violations else 0


def _outcomes(seed: int, processes: int) -> Iterator[Outcome]:
    """Of batch after batch, without an end."""
    with memory_directory() as memory:
        batches = ((range(first, first + BATCH), memory) for first in count(seed, BATCH))
        yield from each(run_seeds, batches, processes)


def run_seeds(work: tuple[range, Path]) -> Outcome:
    """Those seeds, one after the other, in that directory."""
    seeds, memory = work
    logging.disable(logging.ERROR)
    total: Counter[str] = Counter()
    violations = []
    for seed in seeds:
        place = memory / str(seed)
        place.mkdir()
        simulation = Simulation(seed, place)
        try:
            simulation.run()
        except Violation as violation:
            violations.append(str(violation))
        total += simulation.counts
        place.rmdir()
    return total, violations


def _seed_of(violation: str) -> str:
    return violation.split()[1].rstrip(",")
