"""Damaged state files of every kind: the broker starts, serves, loses at most what was hit, reports what it
lost, and serves nothing false.

Each seed tries every kind a few times, on the state of a broker that was killed at rest, stopped, or killed
while it was busy.  A worker process makes these states once, and forks a broker for each case
(tests/support/state_life.py).  A case that was wrong is tried again by its seed: the damage is the same, on a
state of the same layout, but for the last messages of the busy one.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from multiprocessing.util import Finalize

from tests.campaigns.running import Campaign, Outcome
from tests.support.damaged_state import KINDS, DamagedState
from tests.support.directories import memory_directory
from tests.support.state_base import Ending

__all__ = ["STATE_FLIPS"]

EACH = 5  # cases of each kind, of one seed
ENDINGS: tuple[Ending, ...] = ("killed", "stopped", "busy")

_states: dict[Ending, DamagedState] = {}  # of this worker process


def run_seed(seed: int) -> Outcome:
    """Some cases of each kind."""
    state = _state(ENDINGS[seed % len(ENDINGS)])
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for kind in KINDS:
        for number in range(EACH):
            case = state.try_one(kind, f"{seed} {number}")
            counts["cases"] += 1
            counts[kind] += 1
            counts[f"{kind}: messages lost"] += case.lost
            counts[f"damage: {case.damage}"] += 1
            wrong += case.wrong
    return counts, wrong


def _state(ending: Ending) -> DamagedState:
    if ending not in _states:
        held = ExitStack()
        Finalize(None, held.close, exitpriority=1)  # worker processes run no other exit handlers
        _states[ending] = DamagedState(held.enter_context(memory_directory()), ending)
    return _states[ending]


STATE_FLIPS = Campaign(
    name="state-flips",
    what="damaged state files of every kind, and a broker that starts on each",
    unit="cases",
    wanted=1_000 * len(KINDS),
    run_seed=run_seed,
)
