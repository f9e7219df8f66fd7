"""aiomqtt, gmqtt and amqtt's client against the broker on a real port."""

import asyncio
import warnings
from typing import Any

import pytest

from edge.mqtt import Version
from tests.support.mqtt_served import Served
from tests.support.waiting import PATIENCE_S

BOTH = pytest.mark.parametrize("version", [Version.V311, Version.V5])


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_amqtt_publishes_and_subscribes(there: Served, qos: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from amqtt.client import MQTTClient

    config = {"auto_reconnect": False}
    reader, writer = MQTTClient("r", config=config), MQTTClient("w", config=config)
    await reader.connect(f"mqtt://127.0.0.1:{there.port}/")
    await writer.connect(f"mqtt://127.0.0.1:{there.port}/")
    assert await reader.subscribe([("t/+", qos)]) == [qos]
    for i in range(50):
        await writer.publish("t/x", b"%d" % i, qos=qos)
    got = []
    for _ in range(50):
        message = await asyncio.wait_for(reader.deliver_message(), PATIENCE_S)
        assert message is not None
        got.append((message.topic, bytes(message.data)))
    assert got == [("t/x", b"%d" % i) for i in range(50)]
    await writer.disconnect()
    await reader.disconnect()


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_aiomqtt_publishes_and_subscribes(there: Served, qos: int, version: Version) -> None:
    import aiomqtt

    protocol = aiomqtt.ProtocolVersion(version.value)
    async with (
        aiomqtt.Client("127.0.0.1", there.port, identifier="r", protocol=protocol) as reader,
        aiomqtt.Client("127.0.0.1", there.port, identifier="w", protocol=protocol) as writer,
    ):
        await reader.subscribe("t/+", qos=qos)
        for i in range(100):
            await writer.publish("t/x", b"%d" % i, qos=qos)
        got: list[bytes] = []
        async with asyncio.timeout(PATIENCE_S):
            async for message in reader.messages:
                got.append(bytes(message.payload))
                if len(got) == 100:
                    break
    assert got == [b"%d" % i for i in range(100)]


class Gmqtt:
    """A gmqtt client; what it receives is in `inbox`."""

    def __init__(self, client_id: str, **properties: Any) -> None:
        import gmqtt

        self.inbox: asyncio.Queue[tuple[str, bytes, int, dict[str, Any]]] = asyncio.Queue()
        self.subscribed = asyncio.Event()
        self.client = gmqtt.Client(client_id, **properties)
        self.client.on_message = self._received
        self.client.on_subscribe = lambda *_: self.subscribed.set()

    def _received(self, _client: Any, topic: str, payload: bytes, qos: int, given: dict[str, Any]) -> int:
        self.inbox.put_nowait((topic, payload, qos, given))
        return 0

    async def next(self) -> tuple[str, bytes, int, dict[str, Any]]:
        """The next message."""
        return await asyncio.wait_for(self.inbox.get(), PATIENCE_S)


@BOTH
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_gmqtt_publishes_and_subscribes(there: Served, qos: int, version: Version) -> None:
    from gmqtt.mqtt import constants

    level = constants.MQTTv50 if version is Version.V5 else constants.MQTTv311
    reader, writer = Gmqtt("r"), Gmqtt("w")
    for it in (reader, writer):
        await it.client.connect("127.0.0.1", there.port, version=level)
    reader.client.subscribe("t/+", qos=qos)
    await asyncio.wait_for(reader.subscribed.wait(), PATIENCE_S)
    for i in range(100):
        given = {"user_property": ("n", str(i))} if version is Version.V5 else {}
        writer.client.publish("t/x", b"%d" % i, qos=qos, **given)
    got = [await reader.next() for _ in range(100)]
    assert [(topic, payload, its_qos) for topic, payload, its_qos, _ in got] == [
        ("t/x", b"%d" % i, qos) for i in range(100)
    ]
    if version is Version.V5:
        assert [given["user_property"] for *_, given in got] == [[("n", str(i))] for i in range(100)]
    for it in (reader, writer):
        await it.client.disconnect()
