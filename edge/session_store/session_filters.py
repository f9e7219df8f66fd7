"""Filters of one session, with the options of each subscription (edge.engine.subscription_options).

A dict that grows moves all its entries at once, in fresh memory: at 87,000 filters that takes 3 ms, and all
clients wait. So the filters of a session are in several dicts, each with a bounded number of entries.

A snapshot of the sessions gets the parts themselves, and another thread reads them: a part that was lent is
copied before its next change.

Invariants: a filter is in one part only. The number of parts is bounded by the highest number of filters that
the session had. A lent part does not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from itertools import chain

PART_MAX = 43_000  # filters; a part with more gets no others, because its dict would grow at 43,691


class SessionFilters(MutableMapping[str, int]):
    """Filters of a session with their options."""

    __slots__ = ("_lent", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[str, int]] = []
        self._lent: tuple[dict[str, int], ...] = ()  # those of the parts that snapshots have too

    def __getitem__(self, topic_filter: str) -> int:
        for part in self._parts:
            if topic_filter in part:
                return part[topic_filter]
        raise KeyError(topic_filter)

    def __setitem__(self, topic_filter: str, options: int) -> None:
        for number, part in enumerate(self._parts):
            if topic_filter in part:
                self._own_part(number)[topic_filter] = options
                return
        self._open_part()[topic_filter] = options

    def __delitem__(self, topic_filter: str) -> None:
        for number, part in enumerate(self._parts):
            if topic_filter in part:
                del self._own_part(number)[topic_filter]
                return
        raise KeyError(topic_filter)

    def __contains__(self, topic_filter: object) -> bool:
        return any(topic_filter in part for part in self._parts)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def clear(self) -> None:
        """Remove all filters."""
        self._parts, self._lent = [], ()

    def has_none_of(self, topic_filters: Sequence[str]) -> bool:
        """True if the session has none of the filters."""
        return all(part.keys().isdisjoint(topic_filters) for part in self._parts)

    def add_new(self, topic_filters: Sequence[str], options: Iterable[int]) -> None:
        """Add the filters of a packet. The session must have none of them."""
        self._open_part().update(zip(topic_filters, options, strict=True))

    def lend(self) -> tuple[dict[str, int], ...]:
        """All parts as they are now. They do not change any more."""
        self._lent = tuple(self._parts)
        return self._lent

    def _own_part(self, number: int) -> dict[str, int]:
        """A part that may be changed: the part itself, or its copy in its place if it was lent."""
        part = self._parts[number]
        if any(lent is part for lent in self._lent):
            self._lent = tuple(lent for lent in self._lent if lent is not part)
            part = self._parts[number] = part.copy()
        return part

    def _open_part(self) -> dict[str, int]:
        """Part with room for more filters: the last part, otherwise the smallest, otherwise a new part."""
        if not self._parts:
            self._parts = [{}]
        elif len(self._parts[-1]) >= PART_MAX:
            self._parts.sort(key=len, reverse=True)
            if len(self._parts[-1]) >= PART_MAX:
                self._parts.append({})
        return self._own_part(len(self._parts) - 1)
