"""Flipped bits and cut files of small logs; `./dev simulate flips` does a hundred thousand."""

import pytest

from persistence.segment import salvage
from tests.support.damaged_log import DamagedLog, LostTooMuch


@pytest.mark.parametrize("seed", range(4))
def test_damage_costs_at_most_what_it_hits_and_no_start(seed: int) -> None:
    log = DamagedLog(seed)
    for _ in range(160):
        log.flip()
    for _ in range(40):
        log.cut()


def test_records_that_are_not_saved_from_a_damaged_run_would_be_missed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = DamagedLog(0)
    monkeypatch.setattr(salvage, "runs_of", lambda *arguments, **options: iter(()))
    with pytest.raises(LostTooMuch):
        for _ in range(160):
            log.flip()
