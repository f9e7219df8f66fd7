"""Tap feed: messages as they pass, for one browser, at most MESSAGES every INTERVAL_S.

A thread reads the rings in shared memory with the filters of the browser, which C applies. A browser that is
slower, and a rate above the limit, cost messages: they are skipped and counted. The broker takes no part. The
places of all browsers together are bounded, and so are those of one user. Without users all browsers are on
this machine, and share all places.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from edge.errors import EdgeError, Refused
from edge.local.arrivals import messages_of_batch
from edge.local.payloads import payload_fields
from edge.local.shm_subscription import ShmSubscription
from edge.web.topic_sampler import READER
from ringbuf.errors import RingError

TAPS_MAX = 4
TAPS_OF_USER_MAX = 2
INTERVAL_S = 0.25
MESSAGES = 50  # of one interval
PAYLOAD_BYTES = 1_024
WAITING = 8  # intervals that a slow browser may be late

Row = dict[str, Any]


class TapFeed:
    """Taps of all browsers."""

    def __init__(self, runtime_dir: Path | None) -> None:
        self._runtime_dir = runtime_dir
        self._open: Counter[str] = Counter()  # by user

    def check_room(self, user: str) -> None:
        """Raise Refused if the user, or the console, has no place for a tap. "": without users."""
        hint = "close another page with a live tap"
        if user and self._open[user] >= TAPS_OF_USER_MAX:
            raise Refused(f"{TAPS_OF_USER_MAX} taps of {user} are open", hint=hint)
        if self._open.total() >= TAPS_MAX:
            raise Refused(f"{TAPS_MAX} taps are open", hint=hint)

    async def messages(self, filters: Sequence[str], lifetime_s: float, user: str) -> AsyncIterator[Row]:
        """Rows of each interval with `messages` and the number of `skipped` ones, for `lifetime_s`.

        Raises Refused, as check_room() does; EdgeError.
        """
        self.check_room(user)
        loop = asyncio.get_running_loop()
        rows: asyncio.Queue[Row | Exception] = asyncio.Queue(WAITING)
        stopping = threading.Event()
        thread = threading.Thread(target=self._read, args=(filters, rows, loop, stopping, user), daemon=True)
        thread.start()
        self._open[user] += 1  # the thread gives it back, by this loop
        try:
            async with asyncio.timeout(lifetime_s):
                while True:
                    row = await rows.get()
                    if isinstance(row, Exception):
                        raise row
                    yield row
        except TimeoutError:
            return
        finally:
            stopping.set()  # the thread gives the place back: a wait here would be cancelled with the request

    def _read(
        self,
        filters: Sequence[str],
        rows: asyncio.Queue[Row | Exception],
        loop: asyncio.AbstractEventLoop,
        stopping: threading.Event,
        user: str,
    ) -> None:
        def put(row: Row | Exception) -> None:
            with suppress(asyncio.QueueFull):
                rows.put_nowait(row)

        skipped = 0
        try:
            with ShmSubscription(
                filters, runtime_dir=self._runtime_dir, name=READER, limit=MESSAGES
            ) as reading:
                while not stopping.is_set():
                    began_s = time.monotonic()
                    row = _interval(reading)
                    if rows.full():  # of another thread: this is only a hint
                        skipped += len(row["messages"]) + row["skipped"]
                    else:
                        row["skipped"] += skipped
                        skipped = 0
                        _call(loop, put, row)
                    stopping.wait(max(INTERVAL_S - (time.monotonic() - began_s), 0.01))
        except (EdgeError, RingError, OSError) as error:
            _call(loop, put, error)
        finally:
            _call(loop, self._closed, user)

    def _closed(self, user: str) -> None:
        self._open -= Counter([user])


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    with suppress(RuntimeError):  # the loop has ended
        loop.call_soon_threadsafe(function, *arguments)


def _interval(reading: ShmSubscription) -> Row:
    """The messages that wait, and the number of those that are skipped."""
    messages: list[Row] = []
    skipped = 0
    while len(messages) < MESSAGES and (batch := reading.read(0.0 if messages else INTERVAL_S)) is not None:
        skipped += batch.lost
        for message in messages_of_batch(batch):
            fields = {"topic": message.topic, "size_bytes": len(message.payload), **message.fields}
            messages.append(fields | payload_fields(message.payload[:PAYLOAD_BYTES]))
    if len(messages) >= MESSAGES:
        places, ends = reading.places(), reading.ends()
        behind = {ring: end.offset for ring, end in ends.items() if end.offset > places[ring].offset}
        skipped += sum(end - places[ring].offset for ring, end in behind.items())
        reading.seek(behind)
    return {"messages": messages, "skipped": skipped}
