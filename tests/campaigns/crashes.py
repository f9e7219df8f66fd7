"""Crash states of the log by the million: tests/support/log_simulation.py, seed after seed."""

import logging

from tests.campaigns.running import Campaign, Outcome
from tests.support.directories import memory_directory
from tests.support.log_simulation import Simulation, Violation


def run_seed(seed: int) -> Outcome:
    """One history."""
    logging.disable(logging.ERROR)
    with memory_directory() as memory:
        simulation = Simulation(seed, memory)
        try:
            simulation.run()
        except Violation as violation:
            return simulation.counts, [str(violation)]
    return simulation.counts, []


CRASHES = Campaign(
    name="log",
    what="crash states of the log on a simulated disk",
    unit="different states",
    wanted=1_000_000,
    run_seed=run_seed,
)
