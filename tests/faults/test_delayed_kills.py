"""Delayed messages by the thousand, or the million (`-m campaign`), over kill -9: none lost, none early."""

import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from tests.support.brim_process import BrimProcess
from tests.support.delayed_load import BATCH, DelayedPublisher, DelayedSubscriber

SETTINGS = '[delayed]\nenabled = true\ndurability = "{}"\nmessages_max = 2_000_000'


def killed_twice(broker: BrimProcess, count: int, begin_s: float, spread_s: float) -> DelayedSubscriber:
    """Publish, kill the broker during it and with all messages waiting, and receive."""
    publisher = DelayedPublisher(count, time.monotonic() + begin_s, spread_s)
    thread = Thread(target=lambda: broker_ends(publisher, broker.port, count))
    thread.start()
    while publisher.next < count // 2:
        time.sleep(0.001)
    broker.kill()
    thread.join()
    broker.start()
    publisher.publish(broker.port, count)
    assert time.monotonic() < publisher.begin_s, "too slow: messages are due before the second kill"
    broker.kill()
    broker.start()
    subscriber = DelayedSubscriber(count)
    subscriber.receive(broker.port)
    assert subscriber.early == 0
    assert subscriber.repeated <= publisher.again <= BATCH
    return subscriber


def broker_ends(publisher: DelayedPublisher, port: int, count: int) -> None:
    with suppress(OSError):
        publisher.publish(port, count)


@pytest.mark.parametrize("durability", ["process", "disk"])
def test_no_delayed_message_is_lost_or_early(
    durability: str, runtime_directory: Path, tmp_path: Path
) -> None:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS.format(durability), bridge=False) as broker:
        killed_twice(broker, 20_000, 15, 4)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["interval", "disk"])
def test_a_million_delayed_messages(durability: str, runtime_directory: Path, tmp_path: Path) -> None:
    with BrimProcess(runtime_directory, tmp_path, SETTINGS.format(durability), bridge=False) as broker:
        subscriber = killed_twice(broker, 1_000_000, 90, 100)
        shares = ", ".join(f"{share:.1%} {subscriber.late_ms(share):.1f}" for share in (0.5, 0.99, 0.999, 1))
        print(f"{durability}: lateness in ms: {shares}")
