"""An MQTT client for programs without asyncio: the methods of edge.client.Client, blocking.

    with connect("mqtt://127.0.0.1:1883") as client:
        client.publish("plant/1/temp", b"21.5", qos=1)      # returns when the broker has it
        for message in client.subscribe("plant/+/temp", qos=1):
            print(message.topic, message.payload)

Owns one thread per client, with an event loop that serves the connection.  Never encodes the protocol itself:
edge.client.Client does.  Any thread may call any method.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections import deque
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Self, TypeVar, Unpack

from edge.client import client as asynchronous
from edge.client.client import Payload
from edge.client.options import DEFAULT_URL, OptionFields, Options
from edge.client.subscriptions import Message
from edge.client.subscriptions import Subscription as AsyncSubscription
from edge.errors import NotOpen, opened_before_fork
from edge.mqtt import Properties
from edge.mqtt.properties import NO_PROPERTIES

BATCH_MESSAGES = 256  # messages that one step of the loop hands over
SLICE_S = 0.2  # of waiting for a message, so that signals are handled

_T = TypeVar("_T")


def connect(url: str = DEFAULT_URL, **options: Unpack[OptionFields]) -> Client:
    """A client of the broker at `url`, connected inside `with`.

    mqtt://[user[:password]@]host[:port], mqtts:// for TLS, unix:///path.  Options: see edge.client.Options.
    Entering raises CannotConnect or ConnectRefused.
    """
    return Client(url, Options(**options))


class Client:
    """A connection to an MQTT broker.  Made by connect()."""

    def __init__(self, url: str, options: Options) -> None:
        self._client = asynchronous.Client(url, options)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0  # of the process with that thread
        self._subscriptions: weakref.WeakSet[Subscription] = weakref.WeakSet()

    def publish(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 0,
        retain: bool = False,
        *,
        properties: Properties = NO_PROPERTIES,
        timeout_s: float | None = None,
    ) -> None:
        """Publish; return when the message is sent (QoS 0) or the broker has acknowledged it (QoS 1, 2).

        Waits while the window is full and while reconnecting, `timeout_s` at most.  Text is sent as UTF-8.
        Raises InvalidRequest, PublishRefused, DeliveryUnknown, ConnectionLost, NoAnswer.
        """
        work = self._client.publish(topic, payload, qos, retain, properties=properties, timeout_s=timeout_s)
        self._run(work)

    def submit(
        self,
        topic: str,
        payload: Payload = b"",
        qos: int = 1,
        retain: bool = False,
        *,
        properties: Properties = NO_PROPERTIES,
    ) -> Future[None]:
        """Publish; return when the message is in the window.  The future ends with its acknowledgement."""
        delivered = self._run(self._client.submit(topic, payload, qos, retain, properties=properties))
        return asyncio.run_coroutine_threadsafe(_ended(delivered), self._opened())

    def subscribe(self, *filters: str, qos: int = 0) -> Subscription:
        """The messages to come that match one of `filters`, at most at `qos`, as an iterator.

        Retained messages come first.  Raises InvalidRequest.
        """
        subscription = Subscription(self, self._client.subscribe(*filters, qos=qos))
        self._subscriptions.add(subscription)
        return subscription

    def close(self) -> None:
        """Disconnect: the broker discards the will.  Subscriptions end; unacknowledged messages fail."""
        self._close(self._end())

    def abort(self) -> None:
        """Break the connection, as a lost line does: the broker publishes the will.  Otherwise as close()."""
        self._close(self._break())

    @property
    def client_id(self) -> str:
        """The client identifier, perhaps chosen by the broker."""
        return self._client.client_id

    @property
    def session_present(self) -> bool:
        """True if the broker knew this client when it last connected."""
        return self._client.session_present

    @property
    def reconnects(self) -> int:
        """Number of connections after the first."""
        return self._client.reconnects

    @property
    def connected(self) -> bool:
        """True while there is a connection."""
        return self._client.connected

    @property
    def in_flight(self) -> int:
        """Number of messages at QoS 1 and 2 that the broker has not acknowledged."""
        return self._client.in_flight

    @property
    def dropped(self) -> int:
        """Number of messages received for which no subscription had room, or that matched none."""
        return self._client.dropped

    def __enter__(self) -> Self:
        loop = self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        thread = threading.Thread(target=loop.run_forever, name="mqtt client", daemon=True)
        self._thread = thread
        thread.start()
        try:
            self._run(self._client.__aenter__())
        except BaseException:
            self._stop(loop, thread)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _end(self) -> None:
        await self._client.close()
        for subscription in self._subscriptions:
            subscription._keep_rest()

    async def _break(self) -> None:
        self._client.abort()
        await self._end()

    def _close(self, ending: Coroutine[Any, Any, None]) -> None:
        """Run the last coroutine of the loop, and end the thread."""
        loop, thread = self._loop, self._thread
        if loop is None or thread is None or self._pid != os.getpid():  # the parent closes it
            ending.close()
            return
        self._run(ending)
        self._stop(loop, thread)

    def _opened(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise NotOpen("the client is not open", hint="use it inside `with`")
        if self._pid != os.getpid():
            raise opened_before_fork("client")
        return self._loop

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine on the client's loop; it is cancelled if this thread is interrupted."""
        try:
            loop = self._opened()
            if threading.current_thread() is self._thread:  # it would wait for itself
                raise NotOpen(
                    "a method was called in a callback of this client", hint="call it in another thread"
                )
        except NotOpen:
            work.close()
            raise
        result = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return result.result()
        except BaseException:
            result.cancel()
            raise

    def _stop(self, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
        self._loop = self._thread = None
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):  # a call that another thread still waits for
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                loop.run_until_complete(task)
        loop.close()


class Subscription:
    """Messages that match `filters`, as an iterator.  Made by Client.subscribe().

    It begins with the first read, or with `with`, which also ends it: leaving a loop does not.  Iteration
    ends when the client is closed, and raises ConnectionLost when the connection is lost for good.  One
    thread iterates.
    """

    def __init__(self, client: Client, subscription: AsyncSubscription) -> None:
        self._client = client
        self._subscription = subscription
        self._taken: deque[Message] = deque()

    @property
    def filters(self) -> tuple[str, ...]:
        """The topic filters."""
        return self._subscription.filters

    @property
    def qos(self) -> int:
        """The highest QoS at which messages come."""
        return self._subscription.qos

    @property
    def dropped(self) -> int:
        """Number of QoS 0 messages for which there was no room."""
        return self._subscription.dropped

    def start(self) -> None:
        """Subscribe, unless that is done.  Raises SubscribeRefused."""
        self._client._run(self._subscription.start())

    def read(self, timeout_s: float = 0.0) -> Message | None:
        """The next message; None if there is none within `timeout_s`, or the subscription has ended."""
        if not self._taken and not self._subscription._ended:
            self._taken.extend(self._client._run(self._fetch(timeout_s)))
        return self._taken.popleft() if self._taken else None

    def close(self) -> None:
        """Unsubscribe.  Messages that wait may still be read; then iteration ends."""
        self._client._run(self._subscription.close())

    def _keep_rest(self) -> None:
        """Keep what waits, when the loop is about to end."""
        while not self._subscription._ended and len(self._subscription):
            self._taken.append(self._subscription._take())

    async def _fetch(self, timeout_s: float) -> list[Message]:
        messages: list[Message] = []
        while len(messages) < BATCH_MESSAGES:
            message = await self._subscription.read(0.0 if messages else timeout_s)
            if message is None:
                break
            messages.append(message)
        return messages

    def __len__(self) -> int:
        """Number of messages that wait to be read."""
        return len(self._taken) + len(self._subscription)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        while (message := self.read(SLICE_S)) is None:
            if self._subscription._ended:
                self._subscription._raise_error()
                raise StopIteration
        return message


async def _ended(delivered: asyncio.Future[None]) -> None:
    await delivered
