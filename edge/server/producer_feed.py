"""Producer feed: passes records of local producers from their rings to MQTT subscribers.

Owns two readers for each ring: one that the MQTT loop routes from, and one that only listens. The loop waits
in epoll and not on rings, so the listening reader wakes it for new records.

A ring created in this run is routed from its first record on. A ring of an earlier broker is routed from that
broker's position, if it kept sessions (edge/recovery/restore_sessions.py), otherwise from its end: the
subscribers of that broker are gone.
"""

from __future__ import annotations

import logging
from functools import partial

from edge.local.producers import ProducerRing
from edge.logging_setup import pairs
from edge.transport.listener import Listener
from ringbuf import Reader, WakeupThread

log = logging.getLogger(__name__)


class ProducerFeed:
    """Feed of all producer rings. close() must be called after the listener's stop()."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._wakeup = WakeupThread()
        self._readers: list[Reader] = []

    def add(self, added: ProducerRing, *, left_behind: bool = False, resumed: bool = False) -> None:
        """Route the records of a producer's ring. Any thread; a ring that is `left_behind` before start().

        `resumed`: the recovery will set the first position (Engine.replay_resume_ring()).
        """
        routed = added.ring.reader(
            name="mqtt",
            start="latest" if left_behind and not resumed else "oldest",
            blocks_writer=added.stream.when_full != "overwrite",
            verify=True,
        )
        listening = added.ring.reader(name="mqtt wakeup", start="oldest")
        self._readers += [routed, listening]
        if left_behind:
            self._route(added, routed)
        else:
            self._listener.call(partial(self._route, added, routed))
        self._wake(listening)

    def close(self) -> None:
        """Close all readers."""
        self._wakeup.close()
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def _route(self, added: ProducerRing, reader: Reader) -> None:
        ring_number = self._listener.add_producer_ring(reader)
        self._listener.broker.journal.ring_added(ring_number, added.name, added.ring.epoch)
        log.info("producer ring routed %s", pairs(name=added.name, number=ring_number))

    def _wake(self, listening: Reader) -> None:
        """Wake the loop, and watch for the next record. On the WakeupThread, except for the first call."""
        listening.seek_latest()
        self._listener.wake()
        self._wakeup.watch(listening, partial(self._wake, listening))
