"""What the sink holds, against what the checkpoint says: the sink is believed.

A checkpoint that is missing, damaged, or came back from a backup is corrected by the names that are there,
before the first unit: a partition has been drained as far as the ranges in its names have no hole, and what
lies in a hole waits, as a backlog does.  (What was declared lost or skipped is a hole, too: what is left of
it is drained, the rest declared once more.)

One that has been saved and is of this place is the rule, and then nothing is listed but the names of one
number: the one that nobody can have taken yet.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from bridge.checkpoint import Checkpoint
from bridge.cursor import Cursor
from bridge.drained import Name
from bridge.sink import UnitSink
from bridge.source import RingName
from bridge.unit import Intent

__all__ = ["is_there", "reconcile"]

log = logging.getLogger(__name__)

LOOK_DAYS = 8  # with an older checkpoint all names are listed, with others those of the next number


def reconcile(
    sink: UnitSink, checkpoint: Checkpoint, first_offset_of: Callable[[RingName, int], int | None]
) -> None:
    """Correct the checkpoint.  `first_offset_of`: with which offset an epoch began, if the ring tells."""
    under_way = max([checkpoint.drain_seq, *(intent.drain_seq for intent in checkpoint.intents)])
    if not _may_be_behind(sink, checkpoint, under_way):
        return
    names = sorted(_named(sink, checkpoint.edge, ""))
    if all(name.drain_seq <= under_way for name in names):
        return
    _settle_intents(checkpoint, set(names))
    newer = [name for name in names if name.drain_seq > checkpoint.drain_seq]
    last = newer[-1]
    log.warning(
        "the sink is ahead of the checkpoint, which is corrected checkpoint=%s from=%d to=%d",
        checkpoint.path, checkpoint.drain_seq, last.drain_seq,
    )  # fmt: skip
    ranges: dict[tuple[RingName, int], list[tuple[int, int]]] = defaultdict(list)
    for name in newer:
        key = RingName(name.stream, name.partition), name.epoch
        ranges[key].append((name.first_offset, name.last_offset + 1))
    for (partition, epoch), there in sorted(ranges.items()):  # an epoch is begun when the one before is done
        known = checkpoint.cursors.get(partition)
        if known is None or known.epoch < epoch:
            begin = min(there)[0]
            first = first_offset_of(partition, epoch)
            known = Cursor(*partition, epoch, begin if first is None else first, begin, begin)
        if known.epoch == epoch:
            checkpoint.move(known.holding(there))
    checkpoint.drain_seq, checkpoint.day = last.drain_seq, last.day


def is_there(sink: UnitSink, intent: Intent, edge: str) -> bool:
    """Whether the sink has this unit."""
    name = _plain(intent.name(edge))
    return name in map(_plain, _named(sink, edge, f"dt={name.day}/{name.drain_seq:016d}-"))


def _settle_intents(checkpoint: Checkpoint, names: set[Name]) -> None:
    """Those under way are of a time before what is there: by now they are there, or never will be."""
    there = set(map(_plain, names))
    while checkpoint.intents:
        if _plain(checkpoint.intents[0].name(checkpoint.edge)) in there:
            checkpoint.finish()
        else:
            checkpoint.give_up()
    taken = {name.drain_seq for name in names}
    checkpoint.free = [number for number in checkpoint.free if number not in taken]


def _plain(name: Name) -> Name:
    """The name, but for the suffix: that of a Parquet file does not say whether it was to be compressed."""
    return replace(name, compressed=False)


def _may_be_behind(sink: UnitSink, checkpoint: Checkpoint, under_way: int) -> bool:
    """Whether somebody has put a unit since, of which this checkpoint does not know."""
    if checkpoint.fresh or not checkpoint.day:
        return True
    day, today = date.fromisoformat(checkpoint.day), datetime.now(UTC).date()
    if not day <= today < day + timedelta(days=LOOK_DAYS):
        return True
    days = (day + timedelta(days=number) for number in range((today - day).days + 1))
    prefixes = [f"dt={it.isoformat()}/{under_way + 1:016d}-" for it in days]
    return any(True for prefix in prefixes for _ in _named(sink, checkpoint.edge, prefix))


def _named(sink: UnitSink, edge: str, prefix: str) -> Iterator[Name]:
    return (name for path in sink.names(f"edge={edge}/{prefix}") if (name := Name.parse(path)) is not None)
