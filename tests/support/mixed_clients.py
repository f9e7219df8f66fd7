"""Clients of the campaign `mixed`: publishers at a pace, and a subscriber that judges no order."""

from typing import NamedTuple

from tests.support.outside_client import number_of
from tests.support.outside_publisher import OutsidePublisher
from tests.support.outside_subscriber import OutsideSubscriber

WINDOW = 32  # of a publisher
DELAY_S = 2


class PacedPublisher(OutsidePublisher):
    """A publisher that sends up to number `limit` only."""

    limit = 0

    @property
    def _room(self) -> int:
        return min(super()._room, self.limit - self.sent)


class Device(NamedTuple):
    """A publisher, the topic on which its messages arrive, and the stream's properties."""

    publisher: PacedPublisher
    topic: str
    logged: bool


class AnyOrderSubscriber(OutsideSubscriber):
    """A subscriber of topics whose messages may come in any order, and of QoS 1 more than once."""

    def _take_message(self, first: int, body: bytes) -> None:
        topic = body[2 : 2 + (body[0] << 8 | body[1])].decode()
        self._last[topic] = -1
        if first & 6 != 4:
            number = number_of(body[4 + len(topic) :])
            self.arrived[topic].discard(number)
        super()._take_message(first, body)


def devices() -> list[Device]:
    """One for each kind of promise."""
    kinds = (("a/1", 1), ("a/2", 2), ("b/1", 1), ("c/1", 1), ("c/2", 2), ("d/1", 1), ("u/1", 1))
    found = [Device(PacedPublisher(it, WINDOW, qos), it, it[0] != "a") for it, qos in kinds]
    delayed = PacedPublisher(f"$delayed/{DELAY_S}/b/late", WINDOW)
    return [*found, Device(delayed, "b/late", logged=True)]
