"""Publisher with amqtt's client: CPUs, memory, load and temperatures of this machine.

amqtt's client gives a message up if its PUBACK takes more than 5 s. It reconnects at most twice, and cancels
all waits for acknowledgements when the connection ends. Here its own reconnecting is off. A connection is one
client object, and a new one is made, without a limit, when

    * publish() of any message ends without a PUBACK: this message, and all others of the connection without
      a PUBACK, return to the front of the queue, with their numbers;
    * so a late PUBACK is never seen, and cannot be mistaken for that of another message with the same packet
      identifier.

A message is acknowledged when publish() has returned the PUBACK, and never otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque

from amqtt.client import MQTTClient
from amqtt.contexts import ClientConfig

from examples.demo.device import Device, Message, Options, explain
from examples.demo.vitals import Vitals

WINDOW = 64  # messages that wait for their PUBACK at a time; each is a task
RETRY_S = 0.25
KEEP_ALIVE_S = 30


class AmqttPublisher:
    """Queue of messages, and one connection after the other that empties it."""

    def __init__(self, port: int, device: Device) -> None:
        self._url = f"mqtt://127.0.0.1:{port}/"
        self._device = device
        self._queue: deque[Message] = deque()
        self._arrived = asyncio.Condition()
        self._lost = asyncio.Event()  # the connection

    async def publish(self, messages: list[Message]) -> None:
        """Queue messages."""
        async with self._arrived:
            self._queue.extend(messages)
            self._arrived.notify(len(messages))

    async def deliver(self) -> None:
        """Connect and deliver the queue, again and again, until cancelled."""
        connects = 0
        while True:
            client = await self._connected()
            self._device.journal.reconnects += connects > 0
            connects += 1
            self._device.connected = True
            self._lost.clear()
            workers = [asyncio.create_task(self._work(client)) for _ in range(WINDOW)]
            try:
                await self._lost.wait()
            finally:
                self._device.connected = False
                for worker in workers:
                    worker.cancel()
                unsent = await asyncio.gather(*workers)
                self._take_back([message for message in unsent if message is not None])
                await self._drop(client)

    async def _connected(self) -> MQTTClient:
        config = ClientConfig(auto_reconnect=False, keep_alive=KEEP_ALIVE_S, connection_timeout=5)
        while True:
            client = MQTTClient("demo-amqtt", config)
            try:
                await client.connect(self._url)
            except Exception as error:  # noqa: BLE001 - whatever it raises, the answer is to try again
                explain(error)
                await asyncio.sleep(RETRY_S)
            else:
                return client

    async def _work(self, client: MQTTClient) -> Message | None:
        """Deliver messages until the connection ends. Returns the message without PUBACK."""
        message = None
        try:
            while True:
                message = None
                message = await self._next()
                await client.publish(message.device, message.payload, qos=1)
                self._device.journal.acknowledged(message.device, message.n)
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - no PUBACK
            if not self._lost.is_set() and not self._device.finished():
                explain(error)
            self._lost.set()
            return message

    async def _next(self) -> Message:
        async with self._arrived:
            while not self._queue:
                await self._arrived.wait()
            return self._queue.popleft()

    def _take_back(self, messages: list[Message]) -> None:
        self._device.journal.resent += len(messages)
        self._queue.extendleft(sorted(messages, key=lambda message: message.n, reverse=True))

    @staticmethod
    async def _drop(client: MQTTClient) -> None:
        """Close the connection without DISCONNECT: messages without PUBACK must not count as given up."""
        closing = client._disconnect_task
        if closing is not None and not closing.done():
            closing.cancel()
        if client._handler is not None:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await client._handler.stop()


async def run(options: Options) -> None:
    """Publish this machine's vital signs until SIGTERM, then wait for all acknowledgements."""
    device = Device(options, Vitals(options.name, options.kinds).read)
    publisher = AmqttPublisher(options.port, device)
    delivery = asyncio.create_task(publisher.deliver())
    while not device.finished() and not delivery.done():
        await publisher.publish(device.due())
        await asyncio.sleep(device.delay_s())
    delivery.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await delivery
    device.close()


def main() -> None:
    """Run until SIGTERM."""
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(run(Options.parse(__doc__ or "")))


if __name__ == "__main__":
    main()
