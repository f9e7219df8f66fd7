"""Monitor: samples of the broker for the charts, and its latest overview.

Takes a sample every WATCHED_S while a page requests them, otherwise every QUIET_S, so that the charts of a
new page begin with the last hour. Owns the history, which is bounded. A broker that ends is waited for; its
totals begin at zero again, so the next sample has no rates.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import Any

from edge.errors import EdgeError
from edge.local.protocol import Overview, Report
from edge.observe.health import troubles
from edge.observe.rates import sample
from edge.web.broker_link import BrokerLink

WATCHED_S, QUIET_S = 2.0, 10.0
WATCHING_S = 15.0  # after the last request of a page
SAMPLES_MAX = 1_800

Row = dict[str, Any]


class Monitor:
    """History and state. Use: run() as a task; the rest on the same event loop."""

    def __init__(self, link: BrokerLink) -> None:
        self.error = ""  # reason why there is no overview; "": there is
        self._link = link
        self._before: tuple[float, Row] | None = None
        self._state: Row = {}
        self._samples: deque[Row] = deque(maxlen=SAMPLES_MAX)
        self._number = 0
        self._requested_s = -WATCHING_S
        self._due = asyncio.Event()

    async def run(self) -> None:
        """Take samples, until cancelled."""
        while True:
            await self._sample()
            await asyncio.sleep(WATCHED_S)
            if time.monotonic() - self._requested_s >= WATCHING_S:
                self._due.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._due.wait(), QUIET_S - WATCHED_S)

    async def overview(self) -> Row:
        """The latest overview of the broker, of a few seconds ago. Raises BrokerUnreachable."""
        self._watch()
        if self._before is None:
            return (await self._link.request(Overview(), Report)).report
        return self._before[1]

    def state(self) -> Row:
        """The latest sample of all rings, bridges and consumers; {} before the second overview."""
        self._watch()
        return self._state

    def since(self, number: int) -> tuple[int, list[Row]]:
        """Samples after number `number`, and the number of the last one."""
        self._watch()
        return self._number, [row for row in self._samples if row["number"] > number]

    def _watch(self) -> None:
        if time.monotonic() - self._requested_s >= WATCHING_S:
            self._due.set()
        self._requested_s = time.monotonic()

    async def _sample(self) -> None:
        try:
            report = (await self._link.request(Overview(), Report)).report
        except EdgeError as error:
            self.error, self._before = str(error), None
            return
        self.error = ""
        at, before = time.monotonic(), self._before
        self._before = at, report
        if before is not None and before[1]["pid"] == report["pid"]:
            self._state = sample(before[1], report, at - before[0])
            self._state["troubles"] = [trouble._asdict() for trouble in troubles(report)]
            self._number += 1
            self._samples.append(_row(self._number, self._state))


def _row(number: int, state: Row) -> Row:
    """The figures of a sample that have a chart."""
    rates, log = state["rates"], state["log"] or {}
    return {
        "number": number,
        "time_s": round(time.time(), 1),
        "in": rates["published"] + rates["from_producers"],
        "out": rates["delivered"],
        "bytes_in": rates["bytes_in"],
        "bytes_out": rates["bytes_out"],
        "lost": sum(cause["rate"] for cause in state["lost"].values()),
        "connections": state["connections"],
        "queued_bytes": state["queued_bytes"],
        "reader_lag": max((ring["lag"] for ring in state["rings"]), default=0),
        "bridge_lag": sum(bridge["lag"] for bridge in state["bridges"]),
        "consumer_lag": sum(group["lag"] for group in state["consumers"]),
        "log_records": log.get("records_per_s", 0),
    }
