"""Filters of a session, in parts: a mapping like any other, whose dicts stay small."""

from collections import ChainMap

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edge.session_store import session_filters
from edge.session_store.session_filters import PART_MAX, SessionFilters

FILTERS = st.integers(0, 40).map(lambda number: f"f/{number}")
PACKET = st.lists(FILTERS, unique=True, max_size=6)


class Filters(RuleBasedStateMachine):
    """A mapping in parts of four against a dict."""

    @initialize()
    def begin(self) -> None:
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(session_filters, "PART_MAX", 4)
        self.filters, self.model, self.most = SessionFilters(), dict[str, int](), 0
        self.lent: list[tuple[tuple[dict[str, int], ...], dict[str, int]]] = []

    @rule(topic_filter=FILTERS, options=st.integers(0, 3))
    def set(self, topic_filter: str, options: int) -> None:
        self.filters[topic_filter] = self.model[topic_filter] = options

    @rule(packet=PACKET, options=st.integers(0, 3))
    def add_packet(self, packet: list[str], options: int) -> None:
        new = not any(it in self.model for it in packet)
        assert self.filters.has_none_of(packet) == new
        if new:
            self.filters.add_new(packet, bytes([options]) * len(packet))
            self.model.update(dict.fromkeys(packet, options))

    @rule(topic_filter=FILTERS)
    def remove(self, topic_filter: str) -> None:
        assert self.filters.get(topic_filter) == self.model.get(topic_filter)
        assert self.filters.pop(topic_filter, None) == self.model.pop(topic_filter, None)

    @rule(count=st.integers(0, 30))
    def remove_oldest(self, count: int) -> None:
        for topic_filter in list(self.filters)[:count]:
            del self.filters[topic_filter]
            del self.model[topic_filter]

    @rule()
    def clear(self) -> None:
        self.filters.clear()
        self.model.clear()

    @rule()
    def lend(self) -> None:
        self.lent.append((self.filters.lend(), self.model.copy()))

    @invariant()
    def lent_parts_do_not_change(self) -> None:
        for parts, model in getattr(self, "lent", ()):
            assert dict(ChainMap(*parts)) == model

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "filters"):
            return
        parts = self.filters._parts
        self.most = max(self.most, len(self.model))
        assert self.filters == self.model
        assert len(self.filters) == sum(map(len, parts)) == len(self.model)
        assert max(map(len, parts), default=0) <= 4 - 1 + 6
        assert len(parts) <= 1 + self.most // 4
        assert {*map(id, self.filters._lent)} <= {*map(id, parts)}  # no part lives longer than its snapshots

    def teardown(self) -> None:
        self.patch.undo()


TestFilters = Filters.TestCase


def test_a_filter_that_is_not_there_is_a_key_error() -> None:
    filters = SessionFilters()
    with pytest.raises(KeyError, match="x"):
        filters["x"]
    with pytest.raises(KeyError, match="x"):
        del filters["x"]


def test_no_dict_of_a_large_session_grows_beyond_the_size_of_a_part() -> None:
    filters = SessionFilters()
    for first in range(0, 100_000, 500):
        filters.add_new([f"f/{number}" for number in range(first, first + 500)], bytes(500))
    filters.update({f"g/{number}": 1 for number in range(700)})
    parts = filters.lend()
    assert len(filters) == 100_700
    assert len(parts) == 3
    assert max(map(len, parts), default=0) <= PART_MAX + 500
