"""Arrivals: messages in one form for all displays, whichever source they come from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from edge.local.payloads import record_property_fields
from edge.local.shm_subscription import RingBatch
from ringbuf.errors import Overrun


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message. `fields`: further fields of its source, in the order of --json."""

    topic: str
    payload: bytes
    fields: dict[str, Any] = field(default_factory=dict)


def messages_of_batch(batch: RingBatch) -> Iterator[Arrival]:
    """The records of a batch, without those that were overwritten meanwhile."""
    for record in batch:
        fields = {
            "qos": record.flags & 3,
            "retain": bool(record.flags & 4),
            "ring": batch.ring,
            "epoch": batch.epoch,
            "offset": record.offset,
            "timestamp_ns": record.timestamp_ns,
        }
        try:
            topic, payload = record.key.decode(errors="replace"), bytes(record)
            fields |= record_property_fields(record.properties)
        except Overrun:  # overwritten while earlier records were shown; the next batch has the number
            continue
        yield Arrival(topic, payload, fields)
