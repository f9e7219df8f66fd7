"""Sending order: chooses the next partition, limits the size of its file, and limits the rate.

A file here is one drained file, or one batch of records for a record sink. Owns three accounts: bytes within
the rate limit, the shares of live records and backlog, and the speed of the sink. Knows no record and no
sink, and gets the time as an argument.

Live records go before backlog and do not starve it. Each kind has a clock that advances by bytes divided by
the share of that kind; the kind with the earlier clock is next. A kind that needed nothing for a while gets
no credit for that time. Within a kind, streams of higher priority go first, and partitions of one priority
take turns.

A file of a backlog is so small that it occupies the connection for half of the linger time at most, if that
is not below BACKLOG_MIN_BYTES. So live records wait for half a linger time more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.drain.settings import BridgeSettings
from bridge.source.partition_source import RingName

BACKLOG_MIN_BYTES = 64 << 10  # of a backlog file, however slow the sink is
PROBE_BYTES = 256 << 10  # bytes of a backlog file while the speed of the sink is not known
LINGER_MIN_MS = 1_000  # smaller settings count as this: they also wait for the connection to the sink
SMOOTHING = 0.3  # weight of the latest measurement


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand: a partition with records to send."""

    name: RingName
    live: bool  # False: backlog, next to which live records are drained already
    due_s: float  # seconds until it must be sent; 0 or less: now


class Scheduler:
    """Sending order of one drain."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._clocks = {True: 0.0, False: 0.0}
        self._turns: dict[RingName, int] = {}
        self._turn = 0
        self._tokens, self._tokens_at = float(settings.rate_bytes_s), 0.0
        self._bytes_s: float | None = None

    def choose(self, demands: Sequence[Demand], now: float) -> Demand | float:
        """Return the next partition to send, or the seconds until one may be due."""
        due = [demand for demand in demands if demand.due_s <= 0]
        if not due:
            return min((demand.due_s for demand in demands), default=3600.0)
        wait = self._rate_wait_s(now)
        if wait > 0:
            return wait
        live = self._kind({demand.live for demand in due})
        return min(
            (demand for demand in due if demand.live is live),
            key=lambda demand: (-self._priority(demand.name), self._turns.get(demand.name, 0)),
        )

    def limit_bytes(self, demand: Demand) -> int:
        """Maximum size of a file, in bytes."""
        whole = self._settings.file_bytes
        if demand.live:
            return whole
        if self._bytes_s is None:
            return min(whole, PROBE_BYTES)
        half_linger = self._bytes_s * max(self._settings.linger_ms, LINGER_MIN_MS) / 2000
        return min(whole, max(BACKLOG_MIN_BYTES, int(half_linger)))

    def sent(self, demand: Demand, length: int) -> None:
        """Charge a file of so many bytes to the accounts."""
        self._turn += 1
        self._turns[demand.name] = self._turn
        self._tokens -= length
        share = self._settings.live_share if demand.live else 1 - self._settings.live_share
        self._clocks[demand.live] += length / max(share, 0.01)

    def measured(self, length: int, seconds: float) -> None:
        """Record the time in which the sink took so many bytes."""
        bytes_s = length / max(seconds, 1e-6)
        known = self._bytes_s
        self._bytes_s = bytes_s if known is None else known + SMOOTHING * (bytes_s - known)

    @property
    def bytes_s(self) -> float:
        """Speed of the sink in bytes per second; 0: not known yet."""
        return self._bytes_s or 0.0

    def _kind(self, kinds: set[bool]) -> bool:
        if len(kinds) == 1:
            (live,) = kinds
            self._clocks[not live] = max(self._clocks[not live], self._clocks[live])
            return live
        return self._clocks[True] <= self._clocks[False]

    def _priority(self, name: RingName) -> int:
        return self._settings.priorities.get(name.stream.partition("@")[0], 0)

    def _rate_wait_s(self, now: float) -> float:
        """Seconds until the rate account is not overdrawn. A file is sent whole; the next ones wait."""
        rate = self._settings.rate_bytes_s
        if not rate:
            return 0.0
        self._tokens = min(rate, self._tokens + rate * max(now - self._tokens_at, 0.0))
        self._tokens_at = now
        return max(-self._tokens / rate, 0.0) if self._tokens < 0 else 0.0
