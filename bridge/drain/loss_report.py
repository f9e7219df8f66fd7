"""Loss report of a drain: declared losses, losses that a file in flight or the next one declares, and losses
that are certain.

Owns nothing. A loss is reported as soon as it is certain: a bridge that cannot reach its sink declares it in
a file days later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from bridge.drain.checkpoint import Checkpoint
from bridge.drain.drain import Drain
from bridge.drain.losses import OVERWRITTEN, RETENTION, Losses, PartitionLosses
from bridge.format.cursor import Cursor
from bridge.format.drained_file import EarlierRanges
from bridge.source.partition_source import RingName
from persistence.errors import LogError


@dataclass(frozen=True, slots=True)
class VanishedRange:
    """Records that still count as waiting, and that are in neither ring nor log."""

    epoch: int
    first: int
    last: int
    cause: str  # see losses.py


def losses_of(drain: Drain, vanished: Mapping[RingName, VanishedRange]) -> list[PartitionLosses]:
    """The losses of each partition that has any. `vanished`: see LagMeter."""
    return _rows(drain.checkpoint, vanished, partial(_cause, drain))


def losses_in(checkpoint: Checkpoint) -> list[PartitionLosses]:
    """The losses in a checkpoint, before the drain begins."""
    return _rows(checkpoint, {}, lambda _: OVERWRITTEN)


def _rows(
    checkpoint: Checkpoint,
    vanished: Mapping[RingName, VanishedRange],
    cause_of: Callable[[RingName], str],
) -> list[PartitionLosses]:
    names = [RingName(*key) for key in sorted({*checkpoint.losses, *checkpoint.cursors, *vanished})]
    rows = (_row(checkpoint, name, vanished.get(name), cause_of) for name in names)
    return [row for row in rows if row.losses.lost_records or row.losses.skipped_records]


def _row(
    checkpoint: Checkpoint,
    name: RingName,
    vanished: VanishedRange | None,
    cause_of: Callable[[RingName], str],
) -> PartitionLosses:
    declared = checkpoint.losses.get(name, Losses())
    losses = declared
    for intent in checkpoint.intents:
        losses = losses.after(intent) if (intent.stream, intent.partition) == name else losses
    if (cursor := checkpoint.cursors.get(name)) is not None:
        lost, skipped = _pending(cursor)
        if lost:
            losses = losses.with_lost(lost, cause_of(name))
        if skipped:
            losses = losses.with_skipped(skipped)
    if vanished is not None:
        losses = losses.with_lost(((vanished.epoch, vanished.first, vanished.last),), vanished.cause)
    return PartitionLosses(*name, losses, losses.lost_records - declared.lost_records)


def _pending(cursor: Cursor) -> tuple[EarlierRanges, EarlierRanges]:
    """Lost and skipped ranges that the next file declares."""
    lost = (*cursor.earlier_lost, *((cursor.epoch, *lost_range) for lost_range in cursor.owed))
    skipped = ((cursor.epoch, *skipped_range) for skipped_range in cursor.skipped)
    return lost, (*cursor.earlier_skipped, *skipped)


def _cause(drain: Drain, name: RingName) -> str:
    source = drain.partitions.sources.get(name)
    try:
        return RETENTION if source is not None and source.is_logged() else OVERWRITTEN
    except (LogError, OSError):
        return OVERWRITTEN
