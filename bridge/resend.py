"""Resend limit: bounds what comes twice at a sink without names for its records.

Such a sink, as Kafka or MQTT, cannot be asked what it has: after a kill -9 of the bridge all records that are
behind the saved checkpoint are sent again.  This module owns their number and their bytes: units under way,
and units that have been acknowledged and are not in the saved checkpoint yet.

Invariant: a unit is begun only while both sums, with that unit, are at most `records_max` and `bytes_max`.  A
record that is larger than `bytes_max` goes without others.  So the bound holds at each instruction, whatever
the sink and the disk are doing.

Never sends and never saves; drain.py saves when is_due().
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from bridge.settings import BridgeSettings
from bridge.source import cut
from bridge.unit import Batch, Intent

__all__ = ["ResendLimit", "bounded"]

UNIT_LEAST_BYTES = 4 << 10  # as settings.py allows


class Extent(Protocol):
    """A unit under way, as window.Flight."""

    intent: Intent

    @property
    def length(self) -> int:
        """Bytes of its records; 0: not read again yet."""


class ResendLimit:
    """Records and bytes that a kill would send again.  Belongs to one thread."""

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max, self._bytes_max = records_max, bytes_max
        self._records = self._bytes = 0  # acknowledged, and not saved

    def part_of(self, batch: Batch, under_way: Iterable[Extent]) -> Batch | None:
        """The begin of the batch that may be a unit now; None: not even its first record may."""
        records, length = self._sums(under_way)
        while records + batch.count > self._records_max or length + batch.length > self._bytes_max:
            if batch.count == 1:
                return None if records else batch
            batch = cut(batch, batch.first_offset + batch.count // 2 - 1)  # seldom: it was read by its bytes
        return batch

    def has_room(self, settings: BridgeSettings, under_way: Iterable[Extent]) -> bool:
        """True if a whole unit would be taken."""
        records, length = self._sums(under_way)
        more_records, more_bytes = settings.unit_records, settings.unit_bytes
        fits = records + more_records <= self._records_max and length + more_bytes <= self._bytes_max
        return fits or not records

    def acknowledged(self, unit: Extent) -> None:
        """The sink has a unit, and all before it."""
        self._records += _count(unit)
        self._bytes += unit.length

    def saved(self) -> None:
        """The checkpoint on disk has all that is acknowledged."""
        self._records = self._bytes = 0

    def is_due(self) -> bool:
        """True if a save makes room for half of the limit: the other half is under way meanwhile."""
        return 2 * self._records >= self._records_max or 2 * self._bytes >= self._bytes_max

    def _sums(self, under_way: Iterable[Extent]) -> tuple[int, int]:
        records, length = self._records, self._bytes
        for unit in under_way:
            records += _count(unit)
            length += unit.length
        return records, length


def bounded(settings: BridgeSettings, units: int) -> BridgeSettings:
    """The settings with units so small that as many fit into the resend limit."""
    return replace(
        settings,
        unit_records=min(settings.unit_records, max(settings.resend_max_records // units, 1)),
        unit_bytes=min(settings.unit_bytes, max(settings.resend_max_bytes // units, UNIT_LEAST_BYTES)),
    )


def _count(unit: Extent) -> int:
    return unit.intent.last_offset - unit.intent.first_offset + 1
