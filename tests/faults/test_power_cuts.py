"""Four power cuts under a broker that is busy; `./dev simulate cut` does three hundred."""

import shutil
from pathlib import Path

import pytest

from edge.auth.password_file import change_user, delete_user
from edge.config.directories import make_directory
from edge.delayed.store import FILE_NAME, list_messages
from edge.local.protocol import CancelDelayed, Cancelled
from edge.mqtt import PubAck, Publish
from persistence.files import OsFiles
from tests.campaigns.cuts import PowerCuts
from tests.support.logged_broker import LoggedBroker
from tests.support.lossy_mount import LossyMount, missing
from tests.support.mqtt_socket import SocketClient
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


@pytest.mark.campaign
@pytest.mark.timeout(590)
def test_a_broker_that_acknowledges_delayed_messages_before_they_are_synced_is_caught(
    runtime_directory: Path,
) -> None:
    with pytest.raises(Lost):
        cycles(runtime_directory, 12, "tests.support.unsynced_store_broker")


def test_a_confirmed_removal_of_a_delayed_message_survives_a_power_cut(runtime_directory: Path) -> None:
    settings = '[delayed]\nenabled = true\ndurability = "disk"\n'
    memory = runtime_directory / "run"
    with LossyMount() as mount:
        state = mount.path / "state"
        broker = LoggedBroker(memory, state, {"plant": "disk"}, settings=settings)
        try:
            broker.start()
            with SocketClient(broker.port, "device") as device:
                device.send(Publish("$delayed/3600/plant/1", b"start", qos=1, packet_id=1))
                assert isinstance(device.receive(), PubAck)
            with broker.control() as control:
                assert control.request(CancelDelayed((1,)), Cancelled).ids == (1,)
            mount.cut(SEED)
            broker.kill()
            shutil.rmtree(memory)
            mount.boot()
            broker.start()
            assert list_messages(state / FILE_NAME, (-1, 0), 1, 1) == []
        finally:
            broker.close()


def test_a_state_directory_is_on_the_disk_before_anything_is_promised_in_it() -> None:
    with LossyMount() as mount:
        make_directory(mount.path / "var" / "brim", "state_dir")
        for seed in range(8):
            mount.cut(seed)
            mount.boot()
            assert (mount.path / "var" / "brim").is_dir()


def test_a_removed_user_stays_removed_after_a_power_cut() -> None:
    with LossyMount() as mount:
        file = mount.path / "etc" / "users"
        make_directory(file.parent, "auth")
        for seed in range(8):
            change_user(file, "ann", "stored")
            OsFiles().dirsync(str(file.parent))
            delete_user(file, "ann")
            mount.cut(seed)
            mount.boot()
            assert "ann" not in file.read_text()
