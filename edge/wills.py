"""Wills: what is published for clients that went without a word, and when.

Owns the wills of clients that are away; that of a connected client is with its connection.  A will is
published at the earlier of its delay and the end of its session [MQTT-3.1.3-9], and not at all if the client
is back before.

Invariants: a session has at most one will here; each is published once, or cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from edge.access import ClientFacts
from edge.deadlines import Deadlines
from edge.mqtt import Will
from edge.mqtt.properties import record_properties
from edge.state.keeper import Keeper
from ringbuf import FLAG_EXPIRY

__all__ = ["Wills", "message_of"]


def message_of(will: Will) -> tuple[bytes, int]:
    """Properties of a will in the form a record has, and the flags that go with them."""
    if will.properties.will_delay_interval_s is not None:
        will = replace(will, properties=replace(will.properties, will_delay_interval_s=None))
    expires = will.properties.message_expiry_interval_s is not None
    return record_properties(will.properties), FLAG_EXPIRY if expires else 0


class Wills:
    """Those that wait, by client identifier.  `publish` is told whose will it is."""

    def __init__(self, publish: Callable[[ClientFacts, Will], None], keeper: Keeper) -> None:
        self._publish = publish
        self._keeper = keeper
        self._waiting: dict[str, tuple[ClientFacts, Will, float]] = {}  # and when it is due
        self._deadlines: Deadlines[str] = Deadlines()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_s(self) -> float:
        """When the next one is due."""
        return self._deadlines.next_s

    def left(self, facts: ClientFacts, will: Will, now_s: float) -> None:
        """The client has gone, and its session stays."""
        delay_s = will.properties.will_delay_interval_s or 0
        if delay_s == 0:
            self._publish(facts, will)
            return
        self.wait(facts, will, now_s + delay_s)

    def wait(self, facts: ClientFacts, will: Will, due_s: float) -> None:
        """It is published then, if its client is not back before."""
        self._waiting[facts.client_id] = (facts, will, due_s)
        self._deadlines.set(facts.client_id, due_s)
        self._keeper.will(facts, will, due_s)

    def waiting(self) -> list[tuple[ClientFacts, Will, float]]:
        """Whose, which, and when it is due."""
        return list(self._waiting.values())

    def came_back(self, client_id: str) -> None:
        """Its session goes on [MQTT-3.1.3-9]."""
        if self._waiting.pop(client_id, None) is not None:
            self._deadlines.cancel(client_id)
            self._keeper.will_done(client_id)

    def session_ended(self, client_id: str) -> None:
        """It will not be back."""
        if (waiting := self._waiting.pop(client_id, None)) is not None:
            self._deadlines.cancel(client_id)
            self._due(*waiting)

    def tick(self, now_s: float) -> None:
        """Publish those that are due."""
        for client_id in self._deadlines.due(now_s):
            self._due(*self._waiting.pop(client_id))

    def _due(self, facts: ClientFacts, will: Will, _: float) -> None:
        self._publish(facts, will)
        self._keeper.will_done(facts.client_id)

    def stop(self) -> None:
        """Publish them all: for whoever reads the rings, their clients are gone."""
        for client_id in list(self._waiting):
            self.session_ended(client_id)
