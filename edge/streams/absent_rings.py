"""Absent rings: rings of the broker's last run whose stream, or partition, the configuration no longer has.

Owns nothing. Repairs and reads such rings, never writes a record to them, and never removes one: the stream
may be added again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from edge.logging_setup import pairs
from edge.streams.ring_files import LoggedRecords, reattached
from persistence.errors import is_process_limit
from ringbuf import Ring
from ringbuf.errors import RingError

log = logging.getLogger(__name__)

_RING_OF_STREAM = re.compile(r"[^@]+-\d+")  # rings of producers have an "@", other rings no number


def is_ring_of_stream(name: str) -> bool:
    """True if a ring of this name belongs, or belonged, to a configured stream."""
    return _RING_OF_STREAM.fullmatch(name) is not None


def absent_rings(directory: Path, present: Collection[str], past: LoggedRecords | None) -> Iterator[Ring]:
    """Rings of streams in `directory` that are not in `present`, each open until the next one is requested.

    A stream may have had thousands of partitions, and the budget of descriptors does not count them. `past`
    reads the log, which may have records that are damaged in the ring. An unusable ring is logged and left
    out. Raises OSError if too many files are open.
    """
    for file in sorted(directory.glob("*.ring")):
        if file.stem in present or not is_ring_of_stream(file.stem):
            continue
        try:
            ring = reattached(file.with_suffix(""), past)
        except (RingError, OSError) as error:
            if is_process_limit(error):
                raise
            log.warning("ring of a removed stream not usable %s", pairs(file=file, reason=error))
            continue
        with ring:
            if ring.name == file.stem:
                yield ring
            else:
                log.warning("ring of a removed stream ignored: a copy of %s %s", ring.name, pairs(file=file))
