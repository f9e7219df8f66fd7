"""Log tail: the end of a log as the next start of its broker finds it.

A reader returns only records that a later sync has proven. After kill -9 nothing proves the last ones, which
may have been acknowledged; recovery keeps them, so a backup must have them, too.
"""

from __future__ import annotations

from pathlib import Path

from persistence import LogError, LogReader, OsFiles
from persistence.segment.format import segment_name
from persistence.segment.scan import SegmentTable, read_table


def tail_of(directory: Path, reader: LogReader) -> SegmentTable | None:
    """Table of the last segment up to its last valid extent. None: no segment is
    active, or the active one has no header.
    """
    base = max((segment.base for segment in reader.segments() if segment.state == "active"), default=None)
    if base is None:
        return None
    files, name = OsFiles(), segment_name(base)
    try:
        handle = files.open(str(directory / name))
    except FileNotFoundError:  # archived meanwhile
        return None
    try:
        return read_table(files, handle, name)
    except LogError:  # it has no header
        return None
    finally:
        files.close(handle)


def logged_end(readers: dict[Path, LogReader], ring_name: str, epoch: int, wanted: int) -> int:
    """Offset after the last record of that ring and epoch in all logs; 0 if no log has such a record.

    Reads unproven records only if the others end below `wanted`.
    """
    ends = [0]
    for reader in readers.values():
        reader.refresh()
        ends += [known.end_offset for known in reader.epochs(ring_name) if known.epoch == epoch]
    if max(ends) < wanted:
        for table in filter(None, (tail_of(*entry) for entry in readers.items())):
            catalogue = table.catalogue.values()
            ends += [it.next_offset for it in catalogue if (it.name, it.epoch) == (ring_name, epoch)]
    return max(ends)
