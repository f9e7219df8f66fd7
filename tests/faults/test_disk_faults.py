"""Disks that fail under a busy broker, each way once; `./dev simulate faults` does each a hundred times."""

from pathlib import Path

import pytest

from tests.campaigns.faults import KINDS, FaultyDisk
from tests.support.lossy_mount import LossyMount, missing
from tests.support.outside_client import Lost

SEED = 1
TRIES = 8  # A sync that fails has often written all, by luck.

pytestmark = pytest.mark.skipif(missing() != "", reason=missing())


def test_a_broker_lives_through_every_fault_of_its_disk_and_says_so(runtime_directory: Path) -> None:
    with LossyMount() as mount, FaultyDisk(runtime_directory, mount, SEED) as campaign:
        campaign.live(KINDS)
    assert [campaign.counts[fault] for fault in KINDS] == [1] * len(KINDS)


def test_a_broker_that_syncs_again_after_a_sync_has_failed_is_caught(runtime_directory: Path) -> None:
    with (
        LossyMount() as mount,
        FaultyDisk(runtime_directory, mount, SEED, module="tests.support.second_sync_broker") as campaign,
        pytest.raises(Lost),
    ):
        for _ in range(TRIES):
            campaign.live(["sync"])
