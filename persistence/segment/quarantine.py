"""Copies of damaged bytes with reports, for people: directory/quarantine.

    <segment>-<place>.bytes   the damaged bytes, at most QUARANTINE_MAX_BYTES of them
    <segment>-<place>.json    segment, place, length, ring_name, kept, lost (pairs of offsets, first and end),
                              copied_bytes, found (UTC)

The log itself never reads these files.
"""

from __future__ import annotations

import json
import os
import time

from persistence.durable_file import write_all
from persistence.files import Files
from persistence.free_disk_space import require_room
from persistence.segment.scan import DamagedRange

QUARANTINE = "quarantine"
QUARANTINE_MAX_BYTES = 1 << 20  # of one place
QUARANTINE_MAX_FILES = 128  # the first ones are the most useful for the cause


def copy_to_quarantine(files: Files, directory: str, damage: DamagedRange) -> str:
    """Copy damaged bytes of the log in `directory`.  Returns the disk's error for display; "": none."""
    folder = os.path.join(directory, QUARANTINE)
    name = os.path.join(folder, f"{damage.segment}-{damage.place}")
    try:
        files.makedirs(folder)
        if len(files.listdir(folder)) >= QUARANTINE_MAX_FILES:
            return f"{folder} is full; {damage.segment} at {damage.place} was not copied"
        source = files.open(os.path.join(directory, damage.segment))
        try:
            data = files.read(source, min(damage.length, QUARANTINE_MAX_BYTES), damage.place)
        finally:
            files.close(source)
        time_found = time.strftime("%FT%TZ", time.gmtime())
        values = {**damage._asdict(), "copied_bytes": len(data), "found": time_found}
        require_room(files, folder, len(data))
        _write(files, f"{name}.bytes", data)
        _write(files, f"{name}.json", json.dumps(values, indent=1).encode())
    except OSError as error:
        return f"{damage.segment} at {damage.place} could not be copied: {error.strerror}"
    return ""


def _write(files: Files, path: str, data: bytes) -> None:
    handle = files.open(path, create=True)
    try:
        write_all(files, handle, [data], 0)
        files.ftruncate(handle, len(data))
    finally:
        files.close(handle)
