"""Back-off: the pause before the next try, for bridges (bridge/drain/retries.py) and for MQTT connections of
sinks.

Invariant: any number of failures is valid; the bound stays at its maximum.
"""

from __future__ import annotations

import random


class Backoff:
    """Wait before the next try: uniform up to a bound that doubles with each failure."""

    def __init__(self, min_s: float, max_s: float, random_source: random.Random | None = None) -> None:
        self.min_s, self.max_s = min_s, max_s
        self.failures = 0
        self._random = random_source or random.Random()

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        bound = min(self.max_s, self.min_s * 2.0 ** min(self.failures, 62))
        self.failures += 1
        return self._random.uniform(0, bound)

    def reset(self) -> None:
        """Reset the bound after a success."""
        self.failures = 0
