"""A publisher by amqtt's client: CPUs, memory, load and temperatures of this machine.

amqtt's client gives a message up when its PUBACK takes more than 5 s, tries to reconnect twice, and cancels
whoever waits for an acknowledgement when the connection ends.  Here, its own reconnecting is off: a
connection is one client object, and a new one is made, for as long as it takes, when

    * publish() of any message ends in whatever way but a PUBACK: that message, and all others that this
      connection owes a PUBACK for, go to the front of the queue again, with their numbers;
    * so a PUBACK that comes late is never seen, and cannot be taken for that of another message which has
      been given the same packet identifier since.

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

__all__ = ["AmqttPublisher"]

WINDOW = 64  # messages whose PUBACK is awaited at a time; each is a task
RETRY_S = 0.25
KEEP_ALIVE_S = 30


class AmqttPublisher:
    """A queue of messages, and one connection after the other that empties it."""

    def __init__(self, port: int, device: Device) -> None:
        self._url = f"mqtt://127.0.0.1:{port}/"
        self._device = device
        self._queue: deque[Message] = deque()
        self._arrived = asyncio.Condition()
        self._lost = asyncio.Event()  # the connection

    async def publish(self, messages: list[Message]) -> None:
        """Queue them."""
        async with self._arrived:
            self._queue.extend(messages)
            self._arrived.notify(len(messages))

    async def deliver(self) -> None:
        """Connect and deliver what is queued, again and again, until cancelled."""
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
        """Deliver message after message; the end is that of the connection: the message without PUBACK."""
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
        """Close the connection without a word: the messages without PUBACK must not be taken for given up."""
        closing = client._disconnect_task
        if closing is not None and not closing.done():
            closing.cancel()
        if client._handler is not None:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await client._handler.stop()


async def run(options: Options) -> None:
    """Publish this machine's vital signs until told to stop, and all of it is acknowledged."""
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
    """Until SIGTERM."""
    logging.basicConfig(level=logging.ERROR)
    asyncio.run(run(Options.parse(__doc__ or "")))


if __name__ == "__main__":
    main()
