"""Four power cuts under a broker that is busy; `./dev simulate cut` does three hundred."""

from pathlib import Path

import pytest

from edge.config.directories import make_directory
from tests.campaigns.cuts import PowerCuts
from tests.support.lossy_mount import LossyMount, missing
from tests.support.outside_client import Lost

SEED = 1

pytestmark = pytest.mark.skipif(missing() != "", reason=missing())


def cycles(
    runtime_directory: Path, count: int, module: str = "edge", *, killed_first: float = 0.0
) -> PowerCuts:
    with (
        LossyMount() as mount,
        PowerCuts(runtime_directory, mount, SEED, module=module, killed_first=killed_first) as campaign,
    ):
        for _ in range(count):
            campaign.cycle()
        campaign.settle()
        return campaign


def test_what_was_acknowledged_or_shown_at_disk_survives_power_cuts(runtime_directory: Path) -> None:
    """Also those that come right after the start that follows a kill."""
    campaign = cycles(runtime_directory, 4, killed_first=0.5)
    assert campaign.counts["kills before a cut"] > 0
    assert all(campaign.acknowledged().values()), campaign.acknowledged()


def test_a_broker_that_acknowledges_before_it_has_synced_is_caught(runtime_directory: Path) -> None:
    with pytest.raises(Lost):
        cycles(runtime_directory, 3, "tests.support.unsynced_log_broker")


def test_a_broker_that_tells_of_sessions_before_they_are_synced_is_caught(runtime_directory: Path) -> None:
    with pytest.raises(Lost):
        cycles(runtime_directory, 12, "tests.support.unsynced_journal_broker")


@pytest.mark.campaign
@pytest.mark.timeout(590)
def test_a_broker_that_takes_for_durable_what_has_survived_a_kill_is_caught(runtime_directory: Path) -> None:
    """Some cycles cut when nothing is at stake, so it takes as many as it takes."""
    with pytest.raises(Lost):
        cycles(runtime_directory, 60, "tests.support.trusted_ring_broker", killed_first=1.0)


def test_a_state_directory_is_on_the_disk_before_anything_is_promised_in_it() -> None:
    with LossyMount() as mount:
        make_directory(mount.path / "var" / "brim", "state_dir")
        for seed in range(8):
            mount.cut(seed)
            mount.boot()
            assert (mount.path / "var" / "brim").is_dir()
