"""Ten kills of a broker under load; `./dev simulate kill` does a thousand."""

import tempfile
from pathlib import Path

import pytest

from tests.campaigns.kills import KillCycles
from tests.support.outside_client import Lost

SEED = 1


def cycles(runtime_directory: Path, count: int, module: str = "edge") -> KillCycles:
    with (
        tempfile.TemporaryDirectory() as disk,
        KillCycles(runtime_directory / "run", Path(disk), SEED, module=module) as campaign,
    ):
        for _ in range(count):
            campaign.cycle()
        campaign.look_into_logs()
        return campaign


def test_what_was_acknowledged_survives_kill_9_at_every_level(runtime_directory: Path) -> None:
    campaign = cycles(runtime_directory, 10)
    assert all(campaign.acknowledged().values()), campaign.acknowledged()


def test_a_broker_that_forgets_its_rings_is_caught(runtime_directory: Path) -> None:
    """So the ledger would see it."""
    with pytest.raises(Lost):
        cycles(runtime_directory, 10, "tests.support.new_rings_broker")
