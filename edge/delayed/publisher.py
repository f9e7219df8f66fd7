"""Publisher of due messages: the only part of edge.delayed that runs work on the MQTT thread.

Owns these calls. Messages are published in slices, so that clients are served in between. A
message to a stream of durability "disk" or "upstream" counts as published after the sync of its log, for
which the caller waits. If that log accepts no records, a message is not published, as those of clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from edge.broker.synced_changes import Ends, with_ends
from edge.delayed.ring import RING
from edge.engine.engine import FULL

if TYPE_CHECKING:
    from edge.broker.dispatcher import Broker
    from edge.broker.engine_rings import PartitionLike
    from edge.delayed.store import StoredMessage, TenantUse
    from ringbuf import Ring

SLICE_MAX = 128  # messages: about a millisecond of the MQTT thread
POLL_S = 0.5

Result = tuple[list[int | None], Ends]


class DelayedPublisher:
    """Publisher for one thread other than the MQTT thread."""

    def __init__(
        self,
        broker: Broker,
        submit: Callable[[Callable[[], Any]], Future[Any]],
        call: Callable[[Callable[[], object]], object],
        partitions: Callable[[], Sequence[PartitionLike]],
    ) -> None:
        """Create the publisher. `submit` and `call` run a function on the MQTT thread.

        `partitions` returns those of all streams; it is called on the MQTT thread.
        """
        self._broker, self._submit, self._call = broker, submit, call
        self._partitions = partitions
        self.stopping = False

    def publish(self, messages: Sequence[StoredMessage]) -> Result:
        """Publish messages in order. Returns the result of InternalPublisher.offer() of each, and the new
        ends of the rings whose logs must be synced.

        The list is shorter than `messages` if the broker stops meanwhile.
        """
        results: list[int | None] = []
        ends: dict[Ring, int] = {}
        for part in _slices(messages):
            answer: Future[Result] = self._submit(partial(self._offer_all, part))
            while not answer.done() and not self.stopping:
                wait([answer], POLL_S)
            if not answer.done():
                break
            codes, changed = answer.result()
            results += codes
            ends.update(changed)
        return results, list(ends.items())

    def refuse(self, reason: int) -> None:
        """Refuse publishers of delayed messages with this reason code; 0: accept them again."""
        self._call(partial(self._broker.router.durability.refuse, RING, reason))

    def stored(self, offset: int) -> None:
        """Acknowledge the records below `offset`, if publishers wait for the store."""
        self._call(partial(self._broker.router.durability.upstream, RING, offset, ()))

    def count_tenants(self, changes: TenantUse) -> None:
        """Change the use of tenants in the engine."""
        self._call(partial(self._broker.tenants.delayed, changes))

    def _offer_all(self, messages: Sequence[StoredMessage]) -> Result:
        """Publish on the MQTT thread. Returns the results, and the new ends of synced rings that grew."""
        return with_ends(self._partitions(), lambda: [self._offer(message) for message in messages])

    def _offer(self, message: StoredMessage) -> int | None:
        router = self._broker.router
        if router.durability.is_refused(router.ring_name_of(message.topic)):
            return FULL
        offer = self._broker.own_messages.offer
        return offer(message.topic, message.payload, message.flags, message.properties)


def _slices(messages: Sequence[StoredMessage]) -> Iterator[list[StoredMessage]]:
    rest = iter(messages)
    while part := list(islice(rest, SLICE_MAX)):
        yield part
