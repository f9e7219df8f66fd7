"""Commands from upstream, a real broker on either side: Mosquitto above, `brim run` here; no loops."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.client import Message
from edge.mqtt import Properties
from tests.support.brim_process import BrimProcess
from tests.support.mosquitto import BINARY, Mosquitto, running
from tests.support.watch import Watch

pytestmark = pytest.mark.skipif(BINARY is None, reason="needs mosquitto: apt-get install mosquitto")

BRIDGE = """
[[bridge]]
name = "up"
to = "{url}"
[bridge.options]
prefix = "site/"
commands = "cmd/#"
local = "mqtt://127.0.0.1:$PORT"
"""


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[Mosquitto]:
    directory = tmp_path / "upstream"
    directory.mkdir()
    with running(directory, "persistence true", f"persistence_location {directory}/") as broker:
        yield broker


@pytest.fixture
def brim(upstream: Mosquitto, runtime_directory: Path, tmp_path: Path) -> Iterator[BrimProcess]:
    with BrimProcess(runtime_directory, tmp_path, BRIDGE.format(url=upstream.url), bridge=False) as broker:
        yield broker


def here(broker: BrimProcess) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


def said(messages: list[Message]) -> list[tuple[str, bytes]]:
    return [(it.topic, bytes(it.payload)) for it in messages]


async def test_a_command_comes_down_once_with_all_it_says_and_does_not_go_up_again(
    upstream: Mosquitto, brim: BrimProcess
) -> None:
    async with Watch(upstream.url, "site/#") as above, Watch(here(brim), "#") as device:
        await device.publish("plant/1", b"first", qos=1)
        assert said(await above.heard(1)) == [("site/plant/1", b"first")]  # the bridge is there
        asks = Properties(response_topic="site/cmd/valve/answer", correlation_data=b"7", user=(("by", "op"),))
        await above.publish("site/cmd/valve", b"open", qos=1, properties=asks)
        command = (await device.heard(2))[1]
        assert said([command]) == [("cmd/valve", b"open")]
        got = command.properties
        assert got.response_topic == "cmd/valve/answer"
        assert got.correlation_data == b"7"
        assert set(got.user) == {("by", "op"), ("brim-from", "here")}
        # The answer lies below what comes down: it goes up, and not back; and so does what comes after.
        answers = Properties(correlation_data=got.correlation_data)
        await device.publish(got.response_topic, b"done", qos=1, properties=answers)
        await device.publish("plant/1", b"last", qos=1)
        heard_above = await above.heard(3)
        assert said(heard_above) == [
            ("site/cmd/valve", b"open"),  # as it was published there, and not once more by the bridge
            ("site/cmd/valve/answer", b"done"),
            ("site/plant/1", b"last"),
        ]
        assert heard_above[1].properties.correlation_data == b"7"
        assert "brim-from" not in dict(heard_above[0].properties.user)
        await above.publish("site/cmd/valve", b"shut", qos=1)
        heard_here = await device.heard(3)
        assert said(heard_here) == [
            ("cmd/valve/answer", b"done"),
            ("plant/1", b"last"),
            ("cmd/valve", b"shut"),
        ]


async def test_commands_wait_for_a_broker_that_was_killed_and_come_when_the_one_above_is_back(
    upstream: Mosquitto, brim: BrimProcess
) -> None:
    async with Watch(upstream.url, "site/#") as above, Watch(here(brim), "plant/#") as device:
        await device.publish("plant/1", b"there", qos=1)
        await above.heard(1)
        await asyncio.to_thread(brim.kill)
        for number in range(20):  # retained, so that who subscribes later gets them too
            await above.publish(f"site/cmd/{number}", b"waits", qos=1, retain=True)
    await asyncio.to_thread(brim.start)
    expected = {f"cmd/{number}" for number in range(20)}
    async with Watch(here(brim), "cmd/#") as device:
        while expected:  # perhaps more than once
            expected -= {it.topic for it in await device.heard(1)}
        await asyncio.to_thread(upstream.stop)
        await asyncio.to_thread(upstream.start)
        async with Watch(upstream.url, "site/#") as above:
            await above.publish("site/cmd/last", b"now", qos=1)
            while (await device.heard(1))[0].topic != "cmd/last":
                pass
