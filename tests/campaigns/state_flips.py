"""Damaged state files of every kind: the broker starts, serves, loses at most what was hit, reports what it
lost, and serves nothing false.

Each seed tries every kind a few times, on the state of a broker that was killed at rest, stopped, or killed
while it was busy.  A worker process makes these states once, and forks a broker for each case
(tests/support/state_life.py).  `WRONG busy: ring 5 2: ...` is tried again by `--kind ring --seed 5`: the
damage is the same, on a state of the same layout, but for the last messages of the busy one.

The table has for each kind: runs; those that lost something, and how many messages; of those with a loss,
how many were reported; violations.
"""

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.util import Finalize

from tests.campaigns.running import Campaign, Outcome
from tests.support.damaged_state import KINDS, DamagedState
from tests.support.directories import memory_directory
from tests.support.state_base import Ending

EACH = 4  # cases of each kind, of one seed
COUNT = 1_000  # cases of each kind
ENDINGS: tuple[Ending, ...] = ("killed", "stopped", "busy")
COLUMNS = ("runs", "lost", "lost messages", "reported", "violations")

_states: dict[Ending, DamagedState] = {}  # of this worker process


def run_seed(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Outcome:
    """Some cases of each kind."""
    ending = ENDINGS[seed % len(ENDINGS)]
    state = _state(ending)
    counts: Counter[str] = Counter()
    wrong: list[str] = []
    for kind, number in ((kind, number) for kind in kinds for number in range(EACH)):
        case = state.try_one(kind, f"{seed} {number}")
        counts["cases"] += 1
        counts[f"{kind}: runs"] += 1
        counts[f"{kind}: lost"] += case.lost > 0
        counts[f"{kind}: lost messages"] += case.lost
        counts[f"{kind}: reported"] += case.lost > 0 and case.reported
        counts[f"{kind}: violations"] += bool(case.wrong)
        wrong += [f"{ending}: {it}" for it in case.wrong]
    return counts, wrong


def _state(ending: Ending) -> DamagedState:
    if ending not in _states:
        held = ExitStack()
        Finalize(None, held.close, exitpriority=1)  # worker processes run no other exit handlers
        _states[ending] = DamagedState(held.enter_context(memory_directory()), ending)
        gc.freeze()  # forked brokers share what is there
    return _states[ending]


def _facts_of(kinds: Sequence[str], total: Counter[str]) -> Mapping[str, object]:
    rows = {kind: {name: total[f"{kind}: {name}"] for name in COLUMNS} for kind in kinds}
    return {"kinds": rows, "cases": total["cases"], "seeds": total["seeds"]}


def state_flips_of(kinds: Sequence[str]) -> Campaign:
    """The campaign, with some kinds only."""
    return Campaign(
        name="state-flips",
        what="damaged state files of every kind, and a broker that starts on each",
        unit="cases",
        wanted=COUNT,
        run_seed=partial(run_seed, kinds=tuple(kinds)),
        facts_of=partial(_facts_of, kinds),
    )


STATE_FLIPS = state_flips_of(tuple(KINDS))
