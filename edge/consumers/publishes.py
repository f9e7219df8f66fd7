"""Publishes: messages of clients, stored as if they had published them over MQTT.

Owns the publishes that wait for the broker's thread, a log, or sinks. Those for a stream with sinks to wait
for, which may take hours, count apart from all others.

Bounds: publishes under way are limited in number and bytes, of each peer and of all (quota.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from edge.consumers.dead_letters import Fate, Outgoing, Outlet
from edge.consumers.protocol import Answer, Letter, NotDone, Publish, Published
from edge.consumers.quota import Quota
from edge.consumers.requester import Requester
from edge.mqtt.errors import ProtocolError
from edge.mqtt.properties import Properties, record_properties

NOT_BEFORE = "brim-not-before"  # user property of a record: ns since 1970, before which no consumer gets it
UNDER_WAY_MAX, UNDER_WAY_EACH, UNDER_WAY_MAX_BYTES = 256, 64, 64 << 20
SINKS_MAX = 1_024  # that wait for the sinks of one stream


class Publishes:
    """Publishes of all clients. One thread; `answer` sends an answer.

    `sinks_of` a topic: the stream whose sinks must have its messages before they are reported, or "".
    """

    def __init__(
        self,
        outlet: Outlet,
        sinks_of: Callable[[str], str],
        counts: Counter[str],
        answer: Callable[[bytes, Answer], None],
    ) -> None:
        self._outlet = outlet
        self._sinks_of = sinks_of
        self._counts = counts
        self._answer = answer
        self._under_way = Quota("publishes", UNDER_WAY_MAX, UNDER_WAY_EACH, UNDER_WAY_MAX_BYTES)
        self._to_sinks: dict[str, Quota] = {}  # by stream

    def __len__(self) -> int:
        """Number of publishes that wait for the broker's thread or a log."""
        return len(self._under_way)

    def publish(self, peer: Requester, request: Publish, frames: Sequence[bytes]) -> None:
        """Store messages, and answer when they are as durable as their streams promise. Raises NotDone."""
        if len(frames) != len(request.letters):
            text = f"{len(request.letters)} letters and {len(frames)} payload frames"
            raise NotDone(text, "malformed", "send one frame for each")
        letters = zip(request.letters, frames, strict=True)
        messages = [_outgoing(index, *letter) for index, letter in enumerate(letters)]
        size = sum(len(message.payload) + len(message.properties) for message in messages)
        quotas = self._quotas_of(messages)
        for quota in quotas:
            quota.check(peer, size)
        for quota in quotas:
            quota.take(peer, size)
        self._outlet(messages, partial(self._published, quotas, peer, size, request.id))

    def _quotas_of(self, messages: Iterable[Outgoing]) -> list[Quota]:
        """Quotas that a publish counts in. Sinks that take nothing delay only publishers to their streams."""
        streams = {self._sinks_of(message.topic) for message in messages} - {""}
        for stream in streams - self._to_sinks.keys():
            noun = f"publishes to stream {stream}"
            self._to_sinks[stream] = Quota(noun, SINKS_MAX, UNDER_WAY_EACH, UNDER_WAY_MAX_BYTES)
        return [self._to_sinks[stream] for stream in streams] or [self._under_way]

    def _published(
        self, quotas: Iterable[Quota], peer: Requester, size: int, number: int, fates: list[Fate]
    ) -> None:
        for quota in quotas:
            quota.give(peer, size)
        full = tuple(index for index, fate in enumerate(fates) if fate == "full")
        refused = tuple(index for index, fate in enumerate(fates) if fate == "refused")
        stored = len(fates) - len(full) - len(refused)
        self._counts["published"] += stored
        self._counts["publish_dropped"] += len(fates) - stored
        self._answer(peer, Published(number, stored, full, refused))


def _outgoing(index: int, letter: Letter, payload: bytes) -> Outgoing:
    """The message of letter number `index`. Raises NotDone for a user property that MQTT forbids."""
    user = letter.user
    if letter.not_before_ns is not None:
        user = (*user, (NOT_BEFORE, str(letter.not_before_ns)))
    try:
        properties = record_properties(Properties(user=user)) if user else b""
    except ProtocolError as error:
        text = f"user property of letter {index}: {error.detail}"
        hint = "shorten names and values to 65535 bytes of UTF-8 without U+0000"
        raise NotDone(text, "refused", hint) from error
    return Outgoing(letter.topic, payload, letter.qos, letter.retain, properties)
