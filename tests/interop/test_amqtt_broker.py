"""The client against a broker by other hands again: amqtt's, in the same event loop."""

import asyncio

import pytest
from amqtt.broker import Broker

import edge.client
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_published_is_received(qos: int) -> None:
    port = free_port()
    listener = {"type": "tcp", "bind": f"127.0.0.1:{port}"}
    plugins = {"amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}}
    broker = Broker({"listeners": {"default": listener}, "plugins": plugins})
    await broker.start()
    try:
        async with (
            edge.client.connect(f"mqtt://127.0.0.1:{port}") as client,
            client.subscribe("plant/+/temp", qos=qos) as messages,
        ):
            for number in range(20):
                await client.publish(f"plant/{number}/temp", str(number), qos)
            async with asyncio.timeout(PATIENCE_S):
                received = [await anext(messages) for _ in range(20)]
        assert [message.text for message in received] == [str(number) for number in range(20)]
        assert {message.qos for message in received} == {qos}
    finally:
        await broker.shutdown()
