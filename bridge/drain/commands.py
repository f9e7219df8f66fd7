"""Commands of an operator to a running drain: pass over the records that wait, or drain again from an offset.

Each command is a function on the drain, called on the drain's thread between two steps. It returns sentences
about its effect. It does not wait for files in flight, which stay as they were decided: the sink may be away
for days.
"""

from __future__ import annotations

from collections.abc import Callable

from bridge.drain.drain import Drain
from bridge.errors import InvalidCommand
from bridge.format.cursor import Cursor
from bridge.rangeset import count, subtract
from bridge.source.partition_source import RingName

DrainCommand = Callable[[Drain], list[str]]


def skip(drain: Drain, stream: str | None, partition: int | None, *, preview: bool = False) -> list[str]:
    """Pass over all records that wait and are not in flight. The next file of each partition declares them
    skipped. The sentences have their number; with `preview` nothing is passed over.

    Raises InvalidCommand: no such partition was ever drained.
    """
    selection = {
        name: cursor
        for name, cursor in drain.checkpoint.cursors.items()
        if (stream is None or name[0] == stream) and (partition is None or name[1] == partition)
    }
    if not selection:
        raise InvalidCommand(
            f"no records were drained yet of stream {stream or 'any'}, partition "
            f"{'any' if partition is None else partition}: there is no place to skip from",
            hint='see the partitions in `brim bridge status --json`; a new bridge with start = "latest" '
            "begins at new records",
        )
    lines, total = [], 0
    for key, cursor in selection.items():
        name = RingName(*key)
        source = drain.partitions.sources.get(name)
        end = source.end_offset() if source is not None and not source.moved_on(cursor.epoch) else None
        reached = drain.cursor_of(name) or cursor
        if end is None or end <= (first := reached.next_offset):
            continue
        drained = [(start, stop - 1) for start, stop in reached.ahead if start < stop]
        records = count(subtract([(first, end - 1)], drained))
        if not preview:
            drain.redirect(name, cursor.passed(end))
        offsets = f"offset {first}" if end == first + 1 else f"offsets {first} to {end - 1}"
        others = " without those that are drained" if records < end - first else ""
        lines.append(f"{name.ring}: {_skipped(records, preview)}, {offsets}{others}")
        total += records
    if len(lines) > 1:
        lines.append(f"{len(lines)} partitions: {_skipped(total, preview)}")
    return lines or ["nothing waits"]


def _skipped(records: int, preview: bool) -> str:
    """Sentence about a number of records."""
    noun, verb = ("record", "is") if records == 1 else ("records", "are")
    return f"{records:,} {noun} {'would be' if preview else verb} skipped"


def backfill(drain: Drain, stream: str, partition: int, first_offset: int) -> list[str]:
    """Drain again from an offset of the present epoch.

    Raises InvalidCommand: the partition was never drained, or the offset is not among the drained ones.
    """
    name = RingName(stream, partition)
    cursor: Cursor | None = drain.checkpoint.cursors.get(name)
    if cursor is None:
        raise InvalidCommand(
            f"no records were drained of {name.ring}",
            hint="see the partitions in `brim bridge status --json`",
        )
    if cursor.next_offset == cursor.epoch_first_offset:
        raise InvalidCommand(
            f"no records of {name.ring} were drained in epoch {cursor.epoch}",
            hint="export earlier epochs by `brim segments export`; later records need no command",
        )
    if not cursor.epoch_first_offset <= first_offset < cursor.next_offset:
        raise InvalidCommand(
            f"{name.ring}: offset {first_offset} is not among the drained offsets, "
            f"{cursor.epoch_first_offset} to {cursor.next_offset - 1} of epoch {cursor.epoch}",
            hint="export earlier epochs by `brim segments export`; later records need no command",
        )
    drain.redirect(name, cursor.back(first_offset))
    return [f"{name.ring}: offsets {first_offset} to {cursor.next_offset - 1} are drained again"]
