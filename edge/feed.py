"""Feed: what local producers write into their rings, on its way to MQTT subscribers.

Owns the readers that the MQTT loop routes from, one a ring, and for each a second one that only listens:
the loop sleeps in epoll and not on rings, so somebody has to tell it that there is something.

A ring made in this life is routed from its first record on.  One that an earlier broker has left is routed
from where that one was, if sessions of its were kept (edge/state/restoring.py), else from its end: whoever
subscribed there has gone with that broker.
"""

from __future__ import annotations

import logging
from functools import partial

from edge.listener import Listener
from edge.logs import pairs
from edge.producers import ProducerRing
from ringbuf import Bell, Reader

__all__ = ["Feed"]

log = logging.getLogger(__name__)


class Feed:
    """From start() of the listener to close(), which comes after its stop()."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._bell = Bell()
        self._readers: list[Reader] = []

    def add(self, added: ProducerRing, *, left_behind: bool = False, resumed: bool = False) -> None:
        """Route the records of a producer's ring.  Any thread; one that is `left_behind`, before start().

        `resumed`: a restart will say from where on (Engine.restore_resume()).
        """
        routed = added.ring.reader(
            name="mqtt",
            start="latest" if left_behind and not resumed else "oldest",
            gating=added.stream.when_full != "overwrite",
            verify=True,
        )
        listening = added.ring.reader(name="mqtt bell", start="oldest")
        self._readers += [routed, listening]
        if left_behind:
            self._route(added, routed)
        else:
            self._listener.call(partial(self._route, added, routed))
        self._ring(listening)

    def close(self) -> None:
        """Lets go of the rings."""
        self._bell.close()
        for reader in self._readers:
            reader.close()
        self._readers.clear()

    def _route(self, added: ProducerRing, reader: Reader) -> None:
        source = self._listener.add_source(reader)
        self._listener.broker.keeper.source(source, added.name, added.ring.epoch)
        log.info("local ring routed %s", pairs(name=added.name, source=source))

    def _ring(self, listening: Reader) -> None:
        """There may be something; again when more comes.  On the bell's thread, but for the first time."""
        listening.seek_latest()
        self._listener.wake()
        self._bell.watch(listening, partial(self._ring, listening))
