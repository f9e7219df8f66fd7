"""Pipeline between ring and sink: chooses topics, maps their names, and runs a plug-in.

Owns the filter, the table of topics, and the plug-in. Works on a batch at a time: a filter is evaluated once
per topic and then cached in C. Only a plug-in or a sink handles single records.

A plug-in is a function, named as "package.module:function" or as an entry point of group "brim.transforms":

    def fahrenheit(records: Sequence[TransformedRecord]) -> Iterable[TransformedRecord]:
        for record in records:
            celsius = float(record.bytes())
            yield TransformedRecord.like(record, payload=b"%.1f" % (celsius * 1.8 + 32))

A message keeps the offset of the record that it was made of; the offset is its identity. Records that the
plug-in leaves out are not sent. If it raises, or yields an invalid message, it gets the records of that batch
one by one. Those with which it fails become dead letters. It runs on the bridge's thread, and delays the
bridge for as long as it takes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from bridge.drain.settings import BridgeSettings
from bridge.errors import BadTransform
from bridge.format.record_batch import RecordBatch
from bridge.format.sink_batch import Rejected, SinkRecord
from edge.mqtt.topic_filters import matches
from ringbuf import Batch as RingBatch
from ringbuf import KeyFilter, Record

GROUP = "brim.transforms"
TOPICS_MAX = 65_536  # topics in the cache; above this number the work is done each time

Transform = Callable[[Sequence[SinkRecord]], Iterable[SinkRecord]]


@dataclass(frozen=True, slots=True)
class TransformedRecord:
    """Output of a plug-in: a bridge.format.sink_batch.SinkRecord with its own payload."""

    offset: int
    timestamp_ns: int
    key: bytes
    flags: int
    properties: bytes
    payload: bytes

    @classmethod
    def like(
        cls, record: SinkRecord, *, key: bytes | None = None, payload: bytes | None = None
    ) -> TransformedRecord:
        """Copy of `record`, with another topic or payload."""
        return cls(
            record.offset,
            record.timestamp_ns,
            record.key if key is None else key,
            record.flags,
            record.properties,
            record.bytes() if payload is None else payload,
        )

    def bytes(self) -> bytes:
        """The payload."""
        return self.payload


class Pipeline:
    """Filter, mapping and plug-in of one bridge. Belongs to one thread. Raises BadTransform."""

    def __init__(self, settings: BridgeSettings) -> None:
        self._included, self._excluded = settings.topics, settings.topics_not
        longest_first = sorted(settings.remap.items(), key=lambda pair: -len(pair[0]))
        self._remap = tuple((old.encode(), new.encode()) for old, new in longest_first)
        self._names: dict[bytes, bytes] = {}
        self._transform = load(settings.transform) if settings.transform else None
        chooses = self._included or self._excluded
        self._filter = KeyFilter(self._accepts, TOPICS_MAX) if chooses else None

    @property
    def topic_of(self) -> Callable[[bytes], bytes] | None:
        """Mapping of topics to topics at the sink; None: they are equal."""
        return self._renamed if self._remap else None

    def run(self, batch: RecordBatch) -> tuple[tuple[Sequence[SinkRecord], ...], tuple[Rejected, ...]]:
        """The records to send, and those with which the plug-in has failed."""
        parts: list[Sequence[SinkRecord]] = []
        for run in batch.runs:
            part = RingBatch.of(run.records, batch.ring_epoch, run.first_offset, self._filter)
            if len(part):
                parts.append(part)  # type: ignore[arg-type]
        if self._transform is None:
            return tuple(parts), ()
        rejected: list[Rejected] = []
        return tuple(self._transformed(part, rejected) for part in parts), tuple(rejected)

    def _transformed(self, part: Sequence[SinkRecord], rejected: list[Rejected]) -> Sequence[SinkRecord]:
        try:
            return self._made(part)
        except Exception:  # noqa: BLE001 - somebody else's code: one record must not stop the others
            records: list[SinkRecord] = []
            for record in part:
                try:
                    records += self._made([record])
                except Exception as error:  # noqa: BLE001 - as above
                    rejected.append(Rejected(record.offset, f"the transform: {error!r}"))
            return records

    def _made(self, part: Sequence[SinkRecord]) -> list[SinkRecord]:
        """The checked output of the plug-in. A sink would fail with an invalid message, and stop."""
        assert self._transform is not None
        records = list(self._transform(part))
        first, last = part[0].offset, part[len(part) - 1].offset
        for record in records:
            if not isinstance(record, Record):
                _check(record, first, last)
        return records

    def _accepts(self, key: bytes) -> bool:
        topic = key.decode(errors="replace")
        included = not self._included or any(matches(topic_filter, topic) for topic_filter in self._included)
        return included and not any(matches(topic_filter, topic) for topic_filter in self._excluded)

    def _renamed(self, topic: bytes) -> bytes:
        known = self._names.get(topic)
        if known is None:
            known = next(
                (new + topic[len(old) :] for old, new in self._remap if topic.startswith(old)), topic
            )
            if len(self._names) < TOPICS_MAX:
                self._names[topic] = known
        return known


def _check(transformed: Any, first: int, last: int) -> None:
    """Check one message. Raises TypeError, ValueError: it is not a message of these offsets."""
    if not isinstance(transformed, TransformedRecord):
        raise TypeError(f"returned a {type(transformed).__name__} (allowed: TransformedRecord)")
    for name in ("key", "properties", "payload"):
        kind = type(getattr(transformed, name))
        if kind is not bytes:
            raise TypeError(f"{name} is a {kind.__name__}, and must be bytes")
    if not first <= transformed.offset <= last:
        of = first if first == last else f"{first} to {last}"
        raise ValueError(f"returned offset {transformed.offset} for offset {of}")


def load(name: str) -> Transform:
    """Load the plug-in of that name. Raises BadTransform."""
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            loaded: Any = getattr(importlib.import_module(module), attribute)
        else:
            (entry,) = entry_points(group=GROUP, name=name)
            loaded = entry.load()
    except (ImportError, AttributeError, ValueError) as error:
        hint = f'name it "package.module:function", or as an entry point of group {GROUP}'
        raise BadTransform(f"transform {name!r} cannot be loaded: {error}", hint=hint) from error
    if not callable(loaded):
        raise BadTransform(f"transform {name!r} is not a function but a {type(loaded).__name__}")
    transform: Transform = loaded
    return transform
