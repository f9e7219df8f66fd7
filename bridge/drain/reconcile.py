"""Comparison of checkpoint and sink before the first file, and after another bridge has held the lease. On a
contradiction the sink is right.

A checkpoint may be missing, damaged, or restored from a backup. It is then corrected by the names in the
sink. A partition counts as drained up to the first hole between the ranges in its names; records in a hole
wait as a backlog. Only names with epochs of this installation count. Names of another installation, which had
this edge id before, only reserve their numbers. Ranges that were declared lost or skipped are holes, too:
records that still exist are drained, the others are declared once more.

A checkpoint that was saved and belongs to this place is the usual case. Then only names from the first number
on are listed that is in flight or next, and only of the days since the last file. If another bridge may have
held the lease since the last comparison, all days are listed from that number on: its clock may have another
day. If it has used one of these numbers, files that were in flight and are not in the sink are decided again:
their records still wait. Names with lower numbers, and merged files of lower numbers, are never read.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta

from bridge.drain.checkpoint import Checkpoint
from bridge.errors import DrainedFileError, SinkError
from bridge.format.cursor import Cursor
from bridge.format.file_name import FileName, as_drained
from bridge.format.lake_epoch import ring_epoch
from bridge.format.write_intent import WriteIntent
from bridge.sinks.interface import FileSink, MergingStore
from bridge.sinks.merging import merging_store, names_replaced_by
from bridge.source.partition_source import RingName

log = logging.getLogger(__name__)

LOOK_DAYS = 8  # of a sink that lists no days: with an older checkpoint all names are listed


def reconcile(
    sink: FileSink,
    checkpoint: Checkpoint,
    first_offset_of: Callable[[RingName, int], int | None],
    owns: Callable[[int], bool] = lambda _: True,
    *,
    every_day: bool = False,
) -> bool:
    """Correct the checkpoint. True if it was corrected: it has no intents any more.

    `first_offset_of`: the first offset of an epoch, if the ring has it. `owns`: true if an epoch belongs to
    this installation. `every_day`: another bridge may have put files, under any day.
    """
    names = sorted(set(_names_to_compare(sink, checkpoint, every_day=every_day)))
    if not _has_unknown(checkpoint, names):
        return False
    names = _without_doubles(sink, checkpoint, names)
    newer = list(_open(checkpoint, names))
    last = newer[-1]
    log.warning(
        "checkpoint corrected: the sink is ahead checkpoint=%s from=%d to=%d",
        checkpoint.path, checkpoint.drain_seq, last.drain_seq,
    )  # fmt: skip
    _settle_intents(checkpoint, names)
    ranges: dict[tuple[RingName, int], list[tuple[int, int]]] = defaultdict(list)
    for name in (name for name in newer if owns(name.epoch)):
        key = RingName(name.stream, name.partition), name.epoch
        ranges[key].append((name.first_offset, name.last_offset + 1))
    # An epoch begins after the previous one is complete.
    for (partition, epoch), there in sorted(
        ranges.items(), key=lambda item: (item[0][0], ring_epoch(item[0][1]))
    ):
        known = checkpoint.cursors.get(partition)
        if known is None or not owns(known.epoch) or ring_epoch(known.epoch) < ring_epoch(epoch):
            begin = min(there)[0]
            first = first_offset_of(partition, epoch)
            known = Cursor(*partition, epoch, begin if first is None else first, begin)
        if known.epoch == epoch:
            checkpoint.move(known.holding(there))
    if last.drain_seq > checkpoint.drain_seq:
        checkpoint.drain_seq, checkpoint.day = last.drain_seq, last.day
    taken = {name.drain_seq for name in names}
    checkpoint.free = [
        number for number in checkpoint.free if number not in taken and number < checkpoint.drain_seq
    ]
    return True


def is_there(sink: FileSink, intent: WriteIntent, edge: str) -> bool:
    """True if the sink has this file."""
    name = _plain(intent.name(edge))
    return name in map(_plain, _named(sink, edge, f"dt={name.day}/{name.drain_seq:016d}-"))


def _without_doubles(sink: FileSink, checkpoint: Checkpoint, names: list[FileName]) -> list[FileName]:
    """Remove files in flight whose numbers another bridge has given, too. Return the other names.

    This process was stopped between its check of the lease and a put. The records are drained again. A file
    that was merged meanwhile stays.
    """
    ours = {_plain(intent.name(checkpoint.edge)) for intent in checkpoint.intents}
    others = {name.drain_seq for name in names if _plain(name) not in ours}
    doubled = {_plain(name) for name in names if _plain(name) in ours and name.drain_seq in others}
    if (store := merging_store(sink)) is None:
        return names
    paths: dict[str, FileName] = {}
    for day, number in {(name.day, name.drain_seq) for name in doubled}:
        for path in store.names(f"edge={checkpoint.edge}/dt={day}/{number:016d}-"):
            if (name := FileName.parse(as_drained(path))) is not None and _plain(name) in doubled:
                paths[path] = _plain(name)
    if not paths:
        return names
    try:
        store.remove(list(paths))
    except SinkError as error:
        log.error("files not removed, their numbers are given twice reason=%s", error)
        return names
    log.warning("files removed, another bridge has given their numbers paths=%s", ",".join(paths))
    return [name for name in names if _plain(name) not in paths.values()]


def _settle_intents(checkpoint: Checkpoint, names: list[FileName]) -> None:
    """Complete the intents at the front that the sink has; drop the others with their numbers."""
    there = set(map(_plain, names))
    while checkpoint.intents and _plain(checkpoint.intents[0].name(checkpoint.edge)) in there:
        checkpoint.finish()
    given_back = [intent.drain_seq for intent in checkpoint.intents]
    checkpoint.abandon()
    checkpoint.free = sorted({*checkpoint.free, *given_back})


def _open(checkpoint: Checkpoint, names: Iterable[FileName]) -> Iterator[FileName]:
    """Names with a number that this checkpoint plans to use, or used without an acknowledgement."""
    numbers = {*checkpoint.free, *(intent.drain_seq for intent in checkpoint.intents)}
    return (name for name in names if name.drain_seq > checkpoint.drain_seq or name.drain_seq in numbers)


def _has_unknown(checkpoint: Checkpoint, names: Iterable[FileName]) -> bool:
    """True if one of the names is not a file of this checkpoint."""
    ours = {_plain(intent.name(checkpoint.edge)) for intent in checkpoint.intents}
    return any(_plain(name) not in ours for name in _open(checkpoint, names))


def _plain(name: FileName) -> FileName:
    """The name without its suffix: that of a Parquet file does not show if it should be compressed."""
    return replace(name, compressed=False)


def _names_to_compare(sink: FileSink, checkpoint: Checkpoint, *, every_day: bool) -> Iterable[FileName]:
    """All names in the sink with a number that this checkpoint plans to use, or used, and maybe others."""
    edge, intents = checkpoint.edge, checkpoint.intents
    if checkpoint.fresh:  # no number is free, so the numbers in merged files do not matter
        return _named(sink, edge, "", whole=True)
    last = max([checkpoint.drain_seq, *(intent.drain_seq for intent in intents)])
    numbers = sorted({*checkpoint.free, *(intent.drain_seq for intent in intents), last + 1})
    days = sorted({checkpoint.day, *(intent.name(edge).day for intent in intents)})
    today = datetime.now(UTC).date()
    if (store := merging_store(sink)) is None:
        behind = not checkpoint.day or _may_be_behind(sink, checkpoint, numbers, today)
        return _named(sink, edge, "") if behind else ()
    every_day |= today.isoformat() < days[-1]
    chosen = [day for day in store.days(edge) if every_day or day >= days[0]]
    return (name for day in chosen for name in _from(store, edge, day, numbers[0]))


def _may_be_behind(sink: FileSink, checkpoint: Checkpoint, numbers: Sequence[int], today: date) -> bool:
    """True if a sink that lists no days has a file that this checkpoint does not know, or may have one."""
    day = date.fromisoformat(checkpoint.day)
    if not day <= today < day + timedelta(days=LOOK_DAYS):
        return True
    dates = [(day + timedelta(days=number)).isoformat() for number in range((today - day).days + 1)]
    prefixes = [f"dt={date}/{number:016d}-" for date in dates for number in numbers]
    return _has_unknown(
        checkpoint, (name for prefix in prefixes for name in _named(sink, checkpoint.edge, prefix))
    )


def _from(store: MergingStore, edge: str, day: str, number: int) -> Iterator[FileName]:
    """Names of a day with that number or more; for a merged file those that it replaces.

    A merged file has the highest number of these, so their own numbers may be lower.
    """
    directory = f"edge={edge}/dt={day}/"
    for entry in store.entries(directory, f"{directory}{number:016d}"):
        name = FileName.parse(as_drained(entry.path))
        if name is not None and name.drain_seq >= number:  # staged files are listed behind all numbers
            yield from _replaced(store, name, entry.path) if name.merged else (name,)


def _named(sink: FileSink, edge: str, prefix: str, *, whole: bool = False) -> Iterator[FileName]:
    """Names of drained files. For a merged file those that it replaces, or with `whole` its own."""
    store = merging_store(sink)
    for path in (store or sink).names(f"edge={edge}/{prefix}"):
        name = FileName.parse(as_drained(path))
        if name is not None and name.merged and store is not None and not whole:
            yield from _replaced(store, name, path)
        elif name is not None:
            yield name


def _replaced(store: MergingStore, name: FileName, path: str) -> Iterator[FileName]:
    try:
        yield from names_replaced_by(store, name, path)
    except DrainedFileError as error:
        log.error("merged file not read path=%s reason=%s", path, error)
        yield name
