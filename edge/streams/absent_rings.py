"""Absent rings: rings of the broker's last run whose stream, or partition, the configuration no longer has.

Owns nothing. Repairs and reads such rings, never writes a record to them, and never removes one: the stream
may be added again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from edge.logging_setup import pairs
from edge.streams.ring_files import LoggedRecords, reattached
from ringbuf import Ring
from ringbuf.errors import RingError

log = logging.getLogger(__name__)

_RING_OF_STREAM = re.compile(r"[^@]+-\d+")  # rings of producers have an "@", other rings no number


def is_ring_of_stream(name: str) -> bool:
    """True if a ring of this name belongs, or belonged, to a configured stream."""
    return _RING_OF_STREAM.fullmatch(name) is not None


@contextmanager
def absent_rings(
    directory: Path, present: Collection[str], past: LoggedRecords | None
) -> Iterator[list[Ring]]:
    """Rings of streams in `directory` that are not in `present`, open to read until the end of the context.

    `past` reads the log, which may have records that are damaged in the ring. An unusable ring is logged and
    left out.
    """
    with ExitStack() as opened:
        rings = []
        for file in sorted(directory.glob("*.ring")):
            if file.stem in present or not is_ring_of_stream(file.stem):
                continue
            try:
                ring = reattached(file.with_suffix(""), past)
            except (RingError, OSError) as error:
                log.warning("ring of a removed stream not usable %s", pairs(file=file, reason=error))
                continue
            opened.callback(ring.close)
            if ring.name != file.stem:
                log.warning("ring of a removed stream ignored: a copy of %s %s", ring.name, pairs(file=file))
                continue
            rings.append(ring)
        yield rings
