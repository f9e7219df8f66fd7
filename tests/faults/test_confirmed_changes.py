"""Changes by an operator on a disk that stalls, and before a power cut: a confirmed one is not undone."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edge.errors import Refused
from edge.local.protocol import (
    Cleared,
    ClearRetained,
    Connection,
    Done,
    RemoveSession,
    Retained,
    RetainedList,
    SessionList,
    Sessions,
)
from edge.mqtt import Properties, PubAck, Publish, SubAck, Subscribe, Subscription
from tests.support.logged_broker import LoggedBroker
from tests.support.lossy_mount import LossyMount, missing
from tests.support.mqtt_socket import SocketClient
from tests.support.waiting import wait_until

SEED = 1

pytestmark = pytest.mark.skipif(missing() != "", reason=missing())


def clear(control: Connection) -> None:
    assert control.request(ClearRetained("plant/#", 0), Cleared).count == 1


def remove(control: Connection) -> None:
    control.request(RemoveSession("device"), Done)


def topics(control: Connection) -> list[str]:
    return [row["topic"] for row in control.request(Retained("plant/#", 0, 0), RetainedList).messages]


def clients(control: Connection) -> list[str]:
    return [row["client_id"] for row in control.request(Sessions(0), SessionList).sessions]


CHANGES = pytest.mark.parametrize(("change", "left"), [(clear, topics), (remove, clients)])
DURABILITIES = pytest.mark.parametrize("durability", ["disk", "upstream"])


@contextmanager
def broker_with_state(directory: Path, mount: LossyMount, durability: str) -> Iterator[LoggedBroker]:
    """A broker with one retained message and one session, on the disk."""
    settings = '[sessions]\ndurability = "disk"\n'
    if durability == "upstream":
        settings += f'[[bridge]]\nname = "lake"\nto = "file://{directory}/lake"\nstreams = ["plant"]\n'
    broker = LoggedBroker(directory / "run", mount.path / "state", {"plant": durability}, settings=settings)
    try:
        broker.start()
        with SocketClient(
            broker.port, "device", properties=Properties(session_expiry_interval_s=3600)
        ) as device:
            device.send(Subscribe(1, (Subscription("work/#", 1),)))
            assert isinstance(device.receive(), SubAck)
            device.send(Publish("plant/1", b"start", qos=1, packet_id=2, retain=True))
            assert isinstance(device.receive(), PubAck)
        with broker.control() as control:
            wait_until(lambda: not control.request(Sessions(0), SessionList).sessions[0]["connected"])
        yield broker
    finally:
        mount.resume()
        broker.close()


@CHANGES
@DURABILITIES
def test_a_change_is_not_confirmed_while_the_disk_stalls(
    runtime_directory: Path,
    change: Callable[[Connection], None],
    left: Callable[[Connection], list[str]],
    durability: str,
) -> None:
    with (
        LossyMount() as mount,
        broker_with_state(runtime_directory, mount, durability) as broker,
        broker.control() as control,
    ):
        mount.stall()
        with pytest.raises(Refused, match="the change is made, but a power cut now may undo it"):
            change(control)
        with SocketClient(broker.port, "other") as other:  # other clients do not wait
            other.ping()
        mount.resume()
        assert left(control) == []


@CHANGES
@DURABILITIES
def test_a_confirmed_change_survives_a_power_cut(
    runtime_directory: Path,
    change: Callable[[Connection], None],
    left: Callable[[Connection], list[str]],
    durability: str,
) -> None:
    with LossyMount() as mount, broker_with_state(runtime_directory, mount, durability) as broker:
        with broker.control() as control:
            assert left(control) != []
            change(control)
        mount.cut(SEED)
        broker.kill()
        shutil.rmtree(broker.runtime_dir)
        mount.boot()
        broker.start()
        with broker.control() as control:
            assert left(control) == []
