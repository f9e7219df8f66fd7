"""Edge rename: drained files keep the old edge id, later files get the new one.

    1. Files in flight are completed under the old name, together with the facts that only a file of
       that name can declare: ranges that are lost or skipped, numbers that were given up.
    2. The checkpoint gets the new name.  Numbers of files begin with 1 again.  Under the new name each
       partition begins with the first offset that is not in a file of the old name.

A sink that takes records one by one cannot list the records that it has. So all records that wait are first
sent under the old name: a record that is sent again after a kill keeps its identity.

Owns the order of these steps, for a bridge that does not run. After a kill between them, run the rename
again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from bridge.drain.checkpoint import Checkpoint
from bridge.drain.drain import Drain
from bridge.drain.settings import BridgeSettings
from bridge.errors import InvalidCommand
from bridge.format.cursor import Cursor
from bridge.sinks.interface import RecordSink, Sink
from bridge.sinks.registry import open_sink
from bridge.source.broker_log import BrokerLog
from bridge.source.partition_source import RecordLog


def rename_edge(settings: BridgeSettings, old: str, new: str) -> str:
    """Give the bridge of `settings` the edge id `new`, in place of `old`.  Return a sentence about it.

    Raises InvalidCommand: the checkpoint is of another edge, `new` has files there, or records that wait
    behind drained ones cannot be read; CheckpointBusy: the bridge runs; SinkError: try again;
    CheckpointError.
    """
    old_settings = dataclasses.replace(settings, edge_id=old, linger_ms=0, live_share=0)
    dataclasses.replace(settings, edge_id=new)  # raises BadName
    path = old_settings.checkpoint_path
    if (known := Checkpoint.peek(path)) is None:
        return f"bridge {settings.name}: no checkpoint at {path}, nothing to rename"
    if known.edge == new:
        return f"bridge {settings.name}: edge {new} already"
    if known.edge != old:
        raise InvalidCommand(
            f"{path} belongs to edge {known.edge}, not to {old}", hint="name that edge as OLD"
        )
    sink = open_sink(settings.to, settings.options)
    try:
        checkpoint = Checkpoint.open(path, old, sink.url)
        try:
            _check_unused(sink, new)
            _drain_what_is_begun(old_settings, sink, checkpoint)
            _rename(checkpoint, new)
        finally:
            checkpoint.close()
    finally:
        sink.close()
    return (
        f"bridge {settings.name}: edge {old} is now {new}; files up to number {known.drain_seq} stay {old}'s"
    )


def _check_unused(sink: Sink, new: str) -> None:
    if isinstance(sink, RecordSink):
        return
    if (there := next(iter(sink.names(f"edge={new}/")), None)) is not None:
        raise InvalidCommand(
            f"{sink.url} has files of edge {new} already, such as {there}",
            hint="choose a name that no edge has had there",
        )


def _drain_what_is_begun(settings: BridgeSettings, sink: Sink, checkpoint: Checkpoint) -> None:
    """Drain under the old name until its files have declared every loss that only they can declare."""
    record_log: RecordLog | None = BrokerLog(settings.log_dir) if settings.log_dir else None
    drain = Drain(settings, sink, checkpoint, record_log)
    try:
        drain.intake_paused = True
        drain.step()  # compares the checkpoint with the sink
        ends = _ends(drain) if isinstance(sink, RecordSink) else {}
        while True:
            drain.intake_paused = not _is_open(checkpoint, ends)
            wait_s = drain.step()
            if drain.in_flight:
                drain.wait_for_one()
            elif wait_s > 0:  # all is done, or nothing can be sent now
                break
        drain.finish()
    finally:
        drain.close()
    if any(cursor.ahead for cursor in checkpoint.cursors.values()) or checkpoint.intents:
        raise InvalidCommand(
            f"{checkpoint.path}: waiting records cannot be read now, and later records were drained",
            hint="start the bridge under the old name, let it drain these records, and rename the edge then",
        )


def _ends(drain: Drain) -> dict[tuple[str, int], int]:
    """The end of each ring at this moment."""
    sources = drain.partitions.sources.items()
    return {name: end for name, source in sources if (end := source.end_offset()) is not None}


def _is_open(checkpoint: Checkpoint, ends: Mapping[tuple[str, int], int]) -> bool:
    """True if the old name still has something to declare, a number to use, or records below `ends`."""
    cursors = checkpoint.cursors
    waits = any(name in cursors and cursors[name].next_offset < end for name, end in ends.items())
    return waits or bool(checkpoint.free) or any(map(_declares, cursors.values()))


def _declares(cursor: Cursor) -> bool:
    owed = cursor.owed or cursor.skipped or cursor.earlier_lost or cursor.earlier_skipped
    return bool(owed or cursor.ahead)


def _rename(checkpoint: Checkpoint, new: str) -> None:
    """Save the checkpoint under the new name. Ranges that the old name could not declare are declared under
    the new one: no record waited, so no file of the old name was written.

    Raises CheckpointError.
    """
    for key, cursor in checkpoint.cursors.items():
        begin = min([cursor.accounted_offset, *(first for first, _ in cursor.owed)])
        checkpoint.cursors[key] = dataclasses.replace(cursor, epoch_first_offset=begin, previous=None)
    checkpoint.edge = new
    checkpoint.drain_seq, checkpoint.day, checkpoint.free = 0, "", []
    checkpoint.save()
