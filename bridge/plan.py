"""What is sent next: whose turn it is, how much at once, and when there is none.

Owns three accounts: of the bytes that a second may cost, of the shares of what comes in and of what has
waited, and of how fast the sink takes things.  Knows no record, no sink, and is told the time.

Live before backlog, without starving it: each kind has a clock of its own, which runs by bytes over its
share; the one that is behind goes next.  A kind that wanted nothing for a while does not get that back.
Within a kind, streams of higher priority go first, and partitions of one priority take turns.

While there is a backlog, its units are so small that they occupy the way for half a linger at most: so what
comes in waits no longer than twice as long as it always does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bridge.settings import BridgeSettings
from bridge.source import RingName

__all__ = ["Plan", "Want"]

UNIT_LEAST_BYTES = 64 << 10
PROBE_BYTES = 256 << 10  # of a backlog's unit while it is not known how fast the sink is
LINGER_LEAST_MS = 1_000  # who sets less waits for the way to the sink as well
SMOOTHING = 0.3  # weight of the latest measurement


@dataclass(frozen=True, slots=True)
class Want:
    """A partition that has something to send."""

    name: RingName
    live: bool  # not: what has waited, beside which what comes in is drained already
    due_s: float  # seconds until it is to be sent; 0 or less: now


class Plan:
    """Of one drain."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._settings = settings
        self._clocks = {True: 0.0, False: 0.0}
        self._turns: dict[RingName, int] = {}
        self._turn = 0
        self._tokens, self._tokens_at = float(settings.rate_bytes_s), 0.0
        self._bytes_s: float | None = None

    def choose(self, wants: Sequence[Want], now: float) -> Want | float:
        """Whose turn it is, or seconds until there may be one."""
        due = [want for want in wants if want.due_s <= 0]
        if not due:
            return min((want.due_s for want in wants), default=3600.0)
        wait = self._rate_wait_s(now)
        if wait > 0:
            return wait
        live = self._kind({want.live for want in due})
        return min(
            (want for want in due if want.live is live),
            key=lambda want: (-self._priority(want.name), self._turns.get(want.name, 0)),
        )

    def limit_bytes(self, want: Want) -> int:
        """How long a unit may be."""
        whole = self._settings.unit_bytes
        if want.live:
            return whole
        if self._bytes_s is None:
            return min(whole, PROBE_BYTES)
        half_linger = self._bytes_s * max(self._settings.linger_ms, LINGER_LEAST_MS) / 2000
        return min(whole, max(UNIT_LEAST_BYTES, int(half_linger)))

    def sent(self, want: Want, length: int) -> None:
        """A unit of so many bytes goes."""
        self._turn += 1
        self._turns[want.name] = self._turn
        self._tokens -= length
        share = self._settings.live_share if want.live else 1 - self._settings.live_share
        self._clocks[want.live] += length / max(share, 0.01)

    def measured(self, length: int, seconds: float) -> None:
        """The sink has taken so many bytes in that time."""
        bytes_s = length / max(seconds, 1e-6)
        known = self._bytes_s
        self._bytes_s = bytes_s if known is None else known + SMOOTHING * (bytes_s - known)

    @property
    def bytes_s(self) -> float:
        """How fast the sink takes a unit; 0: not known yet."""
        return self._bytes_s or 0.0

    def _kind(self, wanted: set[bool]) -> bool:
        if len(wanted) == 1:
            (live,) = wanted
            self._clocks[not live] = max(self._clocks[not live], self._clocks[live])
            return live
        return self._clocks[True] <= self._clocks[False]

    def _priority(self, name: RingName) -> int:
        return self._settings.priorities.get(name.stream.partition("@")[0], 0)

    def _rate_wait_s(self, now: float) -> float:
        """Until the account is not overdrawn: a unit goes as a whole, and the next ones wait for it."""
        rate = self._settings.rate_bytes_s
        if not rate:
            return 0.0
        self._tokens = min(rate, self._tokens + rate * max(now - self._tokens_at, 0.0))
        self._tokens_at = now
        return max(-self._tokens / rate, 0.0) if self._tokens < 0 else 0.0
