"""What is under way: units that were begun and not all acknowledged, in the order of being decided on.

Owns that order, and what becomes of each: acknowledged in any order, given back by the front alone, sent
again after a failure.  Never decides what is sent, and saves nothing.

After a failure only the first of those that failed is sent again; when the sink has taken it, so are the
others: a sink that is away is asked once, and not as often as there are units.  A sink that keeps an order
of its own gets everything again, from the first that it did not acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from bridge.errors import SinkBlocked, SinkError
from bridge.records import Rejected
from bridge.shipping import Parcel
from bridge.source import RecordBuffer, RingName
from bridge.unit import Intent

__all__ = ["Flight", "Window"]


@dataclass(eq=False, slots=True)
class Flight:
    """One unit under way."""

    intent: Intent
    buffer: RecordBuffer | None = None  # where its records are
    backlog: bool = False  # beside which newer records are drained already
    parcel: Parcel | None = None  # None: its records have to be read again, after a crash
    future: Future[Sequence[Rejected]] | None = None  # while the sink has it
    sent_at: float = 0.0
    took_s: float = 0.0
    acknowledged: bool = False
    rejected: tuple[Rejected, ...] = ()

    @property
    def name(self) -> RingName:
        """Of the partition."""
        return RingName(self.intent.stream, self.intent.partition)

    @property
    def length(self) -> int:
        """Bytes of its records; 0: they have to be read again."""
        return self.parcel.batch.length if self.parcel else 0


@dataclass
class Window:
    """Flights in their order.  Belongs to one thread."""

    flights: list[Flight] = field(default_factory=list)
    probing: bool = False  # something has failed, and nothing has gone through since
    rewinding: bool = False  # all that was not acknowledged comes again, once everything is settled

    def __len__(self) -> int:
        return len(self.flights)

    def of(self, name: RingName) -> Iterator[Flight]:
        """Those of one partition."""
        return (flight for flight in self.flights if flight.name == name)

    @property
    def outstanding(self) -> int:
        """How many the sink has."""
        return sum(1 for flight in self.flights if flight.future is not None)

    @property
    def restoring(self) -> bool:
        """Whether units are left that a crash has interrupted: what becomes of them, the next may declare."""
        return any(flight.parcel is None for flight in self.flights)

    def to_send(self) -> list[Flight]:
        """Those that are to be sent, now."""
        waiting = [it for it in self.flights if it.future is None and not it.acknowledged]
        if self.rewinding:
            return []
        if self.probing:
            return waiting[:1] if self.outstanding == 0 else []
        return waiting

    def settle(self, now: float, acknowledged: Callable[[Flight], object]) -> SinkError | None:
        """Look at what has come back; the gravest of what has failed."""
        failure: SinkError | None = None
        for flight in self.flights:
            future = flight.future
            if future is None or not future.done():
                continue
            flight.future = None
            try:
                rejected = future.result()
            except SinkError as error:
                if failure is None or isinstance(error, SinkBlocked):
                    failure = error
                continue
            flight.acknowledged, flight.took_s = True, now - flight.sent_at
            flight.rejected = tuple(rejected)
            self.probing = False
            acknowledged(flight)
        self.probing |= failure is not None
        return failure

    def rewound(self) -> bool:
        """Whether it is time to begin again behind what was acknowledged; then nothing is under way."""
        if not self.rewinding or self.outstanding:
            return False
        self.flights.clear()
        self.rewinding = self.probing = False
        return True

    def finished(self) -> Iterator[Flight]:
        """Take away those at the front that are acknowledged; the caller ends each before the next."""
        while self.flights and self.flights[0].acknowledged:
            yield self.flights[0]
            del self.flights[0]
