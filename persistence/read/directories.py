"""Directories of the logs: one log for many rings, for some, or for a single ring.

    directory/               the log of worker 0, from which every other log is found
    directory/worker1/       of worker 1, and so on
    directory/producers/     of rings that other processes write (copied_rings.py)
    directory/<ring name>/   of that ring only

All of them are logs of one format (format.py), each with its lock.  Owns only the names.

The log of a ring may change from one start to the next.  Earlier records stay in the earlier log and are read
there: a reader uses all logs that may_have() the ring, not only its home().  It also uses logs of other
single rings that have records of the ring (merged_reader.py: foreign_rings()).
"""

from __future__ import annotations

import re
from pathlib import Path

from persistence.segment.format import ring_id_of

PRODUCERS = "producers"
_WORKER = re.compile(r"worker[1-9][0-9]{0,2}\Z")  # not a ring's name, which has a - or a @
_RING = re.compile(r"[a-z0-9_-]+(-[0-9]+|@[a-z0-9_-]+)\Z")


def worker_of(ring_name: str, workers: int) -> int:
    """The worker for a ring that shares its log: 0 to `workers` - 1, only by the ring's id."""
    return ring_id_of(ring_name, {}) % workers


def home(directory: Path, ring_name: str, *, isolated: bool, workers: int) -> Path:
    """The directory of the log that a ring is written to."""
    if isolated:
        return directory / ring_name
    if "@" in ring_name:
        return directory / PRODUCERS
    worker = worker_of(ring_name, workers)
    return directory / f"worker{worker}" if worker else directory


def logs_in(directory: Path) -> list[Path]:
    """The directories of all existing logs, and always `directory` itself as the first."""
    try:
        names = sorted(place.name for place in directory.iterdir() if place.is_dir())
    except FileNotFoundError:
        names = []
    ours = [name for name in names if name == PRODUCERS or _WORKER.match(name) or _RING.match(name)]
    return [directory, *(directory / name for name in ours)]


def may_have(directory: Path, place: Path, ring_name: str) -> bool:
    """True if the log in `place`, one of logs_in(directory), may have records of the ring.

    Only the logs of other single rings may not.
    """
    return place == directory or place.name == ring_name or is_shared(place)


def is_shared(directory: Path) -> bool:
    """True if a log's directory, below the first, is for several rings."""
    return directory.name == PRODUCERS or _WORKER.match(directory.name) is not None
