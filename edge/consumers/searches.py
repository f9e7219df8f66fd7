"""Searches: first records by age, offset or time, which files of the log show, for joins, resets and reads.

Another thread reads the files, one ring at a time, and the searches of clients take turns. So no request
waits for the search of another client; only searches wait for each other.

Bounds: searches are limited in number, of each peer and of all (quota.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from edge.consumers.faults import Contained
from edge.consumers.log_read_thread import LogReadThread, unreadable
from edge.consumers.protocol import NotDone, RequestMessage
from edge.consumers.quota import Quota
from edge.consumers.requester import Requester
from edge.consumers.ring_source import RingSource
from edge.consumers.start_place import StartPlace, check_time, place_in

SEARCHES_MAX, SEARCHES_EACH = 64, 4

FoundPlaces = dict[str, tuple[int, int]]  # by ring: (epoch, offset)


@dataclass(slots=True, eq=False)
class _Search:
    """A search that is not complete."""

    peer: Requester
    request: RequestMessage
    start: StartPlace
    sources: list[RingSource]  # without a place so far
    then: Callable[[FoundPlaces], None]
    found: FoundPlaces = field(default_factory=dict)


class Searches:
    """Searches of all clients. One thread, except for the work of `thread`."""

    def __init__(self, thread: LogReadThread, contained: Contained) -> None:
        self._thread = thread
        self._contained = contained
        self._quota = Quota("searches of the log", SEARCHES_MAX, SEARCHES_EACH, 0)

    def __len__(self) -> int:
        """Number of searches under way."""
        return len(self._quota)

    def find(
        self,
        peer: Requester,
        request: RequestMessage,
        sources: Sequence[RingSource],
        start: StartPlace,
        then: Callable[[FoundPlaces], None],
    ) -> None:
        """Find the first record in each ring. `then` is called with the places: at once if no file must be
        read. Raises NotDone: the time is in the future, or too many searches are under way.
        """
        if sources and start.to == "time":
            check_time(start.value)
        in_log = [source for source in sources if source.log is not None] if start.to != "latest" else []
        found = {source.name: place_in(source, start) for source in sources if source not in in_log}
        if not in_log:
            then(found)
            return
        self._quota.take(peer, 0)
        self._next(_Search(peer, request, start, in_log, then, found))

    def _next(self, search: _Search) -> None:
        source = search.sources.pop()

        def read() -> tuple[int, int] | NotDone:
            try:
                return place_in(source, search.start)
            except NotDone as error:
                return error

        def take(place: tuple[int, int] | NotDone | OSError) -> None:
            if isinstance(place, tuple):
                search.found[source.name] = place
                if search.sources:
                    self._next(search)  # behind the searches of others
                    return
            self._quota.give(search.peer, 0)
            with self._contained(search.peer, search.request):
                if isinstance(place, OSError):
                    raise unreadable(place)
                if isinstance(place, NotDone):
                    raise place
                search.then(search.found)

        self._thread.submit(read, take)
