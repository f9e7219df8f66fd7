"""Reading everything again, slowly: so that rot is known while there may be another copy.

Owns the two readings, of a segment and of an archive, and whose turn is next.  Repairs nothing, and believes
nothing that it has not read from the disk.  Who calls gives it files that read at a pace (Paced), and a
priority at which nobody else waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from persistence.archive.file import ArchiveFile
from persistence.archive.layout import archive_name
from persistence.errors import FormatError, Stopped
from persistence.files import Files
from persistence.format import segment_name
from persistence.scan import Damage, read_table

__all__ = ["Paced", "Scrubbed", "Turns", "scrub_archive", "scrub_segment"]

PAUSE_MOST_S = 1.0  # at once: then whoever wants it to stop is heard


class Scrubbed(NamedTuple):
    """What has been found in one file."""

    base: int
    archived: bool
    bytes: int  # of the file
    places: tuple[Damage, ...]  # damaged, of a segment
    parts: dict[str, str]  # damaged, of an archive, and why


def scrub_segment(files: Files, directory: str, base: int, ends_at: int | None) -> Scrubbed:
    """Reads the segment at `base`, which ends at that place, or, None, where it is proven to.

    Raises FileNotFoundError, OSError.
    """
    name = segment_name(base)
    handle = files.open(os.path.join(directory, name))
    try:
        size = files.size(handle)
        try:
            damage = tuple(read_table(files, handle, name, ends_at=ends_at, once=True).damage)
        except FormatError:
            damage = (Damage(name, 0, ends_at or size, "", 0),)
        return Scrubbed(base, False, size if ends_at is None else min(size, ends_at), damage, {})
    finally:
        files.close(handle)


def scrub_archive(files: Files, directory: str, base: int) -> Scrubbed:
    """Restores every record of the archive of that segment.  Raises FileNotFoundError, OSError."""
    path = os.path.join(directory, archive_name(base))
    try:
        archive = ArchiveFile.open(files, path)
    except FormatError as error:
        return Scrubbed(base, True, 0, (), {"index": str(error)})
    with archive.opened() as handle:
        for index in range(len(archive.footer.windows)):
            archive.check(handle, index)
    return Scrubbed(base, True, archive.size, (), dict(archive.damage))


class Paced:
    """Files, of which at most so many bytes a second are read; all else as the files themselves."""

    def __init__(
        self,
        files: Files,
        bytes_per_s: int,
        stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._files = files
        self._bytes_per_s = bytes_per_s
        self._stopped, self._clock, self._sleep = stopped, clock, sleep
        self._due = clock()  # when what has been read so far may have been read

    def read(self, handle: int, length: int, position: int) -> bytes:
        """See Files; afterwards waits as long as that much takes.  Raises Stopped."""
        data = self._files.read(handle, length, position)
        self._due = max(self._due, self._clock()) + len(data) / self._bytes_per_s
        while (left := self._due - self._clock()) > 0:
            if self._stopped():
                raise Stopped("asked to stop")
            self._sleep(min(left, PAUSE_MOST_S))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@dataclass
class Turns:
    """Whose turn it is, and how far the pass has come; for status, too."""

    interval_s: int  # from the begin of a pass to the begin of the next
    passes: int = 0
    pass_began_s: float | None = None  # on the clock that next() is given
    last_pass_s: float | None = None  # how long it took
    read_bytes: int = 0
    damaged: int = 0  # places and parts found
    _behind: int = -1  # everything up to this base has had its turn
    _first: float = field(default=0.0)

    def next(self, bases: Sequence[int], now_s: float) -> int | None:
        """The base that is due, of those that are there, rising; None: none is now."""
        if self.pass_began_s is None:
            if now_s < self._first:
                return None
            self.pass_began_s, self._behind = now_s, -1
        found = next((base for base in bases if base > self._behind), None)
        if found is None:
            self.passes += 1
            self.last_pass_s = now_s - self.pass_began_s
            self._first = self.pass_began_s + self.interval_s
            self.pass_began_s = None
        return found

    def done(self, scrubbed: Scrubbed) -> None:
        """That one has had its turn."""
        self._behind = max(self._behind, scrubbed.base)
        self.read_bytes += scrubbed.bytes
        self.damaged += len(scrubbed.places) + len(scrubbed.parts)

    def skip(self, base: int) -> None:
        """That one could not be read; the next pass comes by."""
        self._behind = max(self._behind, base)
