"""The outside ledger: what a broker has acknowledged, against what is found in its rings and logs."""

from itertools import pairwise
from pathlib import Path

from tests.support.logged_broker import Found, in_ring
from tests.support.outside_client import Lost
from tests.support.outside_publisher import OutsidePublisher


class Promises:
    """Promises of a stream to its publisher, and the part of them that was found."""

    def __init__(self, name: str, *, logged: bool, window: int = 64, qos: int = 1) -> None:
        self.ring_name = f"{name}-0"
        self.publisher = OutsidePublisher(f"{name}/t", window, qos)
        self.acknowledged = 0
        self.logged = logged
        self._last = (-1, -1)  # seen in the ring: place and number
        self._early: set[int] = set()  # seen there before they were acknowledged, which may still come
        self._for_log: set[int] = set()  # acknowledged since forget()

    def check_ring(self, runtime_dir: Path) -> list[int]:
        """All that was acknowledged since the last look is there, in order.  The numbers that are new there.

        Raises Lost.
        """
        place, _ = self._last
        news = [it for it in in_ring(runtime_dir / self.ring_name, place) if it[0] > place]
        numbers = [number for _, number in news]
        self._check([self._last, *news], self.publisher.acked - self._early, "the ring")
        self._early = (self._early | set(numbers)) - self.publisher.acked if self.publisher.kept else set()
        self._last = news[-1] if news else self._last
        self.take()
        return numbers

    def check_log(self, found: Found) -> None:
        """The same for a log, of all that was acknowledged since forget().  Raises Lost."""
        self.take()
        self._check(found, self._for_log, "the log")

    def take(self) -> None:
        """Take over new acknowledgements."""
        self.acknowledged += len(self.publisher.acked)
        if self.logged:
            self._for_log |= self.publisher.acked
        self.publisher.acked.clear()

    def forget(self) -> None:
        """Forget numbers that were found up to now."""
        self._for_log.clear()

    def _check(self, found: Found, wanted: set[int], where: str) -> None:
        numbers = [number for _, number in found]
        if any(after <= before for before, after in pairwise(numbers)):
            raise Lost(f"{self.ring_name}: out of order, or twice, in {where}")
        if missing := wanted.difference(numbers):
            which = f"{min(missing)} to {max(missing)}"
            raise Lost(f"{self.ring_name}: {len(missing)} acknowledged are not in {where}: {which}")
