"""Scrub: reads all segments and archives again slowly, to detect bit rot while another copy may exist.

Owns the reading of a segment and of an archive, and the order of both.  Repairs nothing, and uses no data
that was not read from the disk.  The caller passes files with a limited read rate (RateLimitedFiles), and a
priority that does not delay others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from persistence.archive.archive_file import ArchiveFile
from persistence.errors import FormatError, Stopped
from persistence.files import Files
from persistence.segment.format import segment_name
from persistence.segment.salvaging_files import SalvagingFiles
from persistence.segment.scan import DamagedRange, read_table

PAUSE_MAX_S = 1.0  # longest sleep before a stop request is checked


class ScrubResult(NamedTuple):
    """Result of reading one file."""

    base: int
    archived: bool
    bytes: int  # of the file
    places: tuple[DamagedRange, ...]  # damaged places, of a segment
    parts: dict[str, str]  # damaged parts of an archive, with the cause


def scrub_segment(files: Files, directory: str, base: int, ends_at: int | None) -> ScrubResult:
    """Read the segment at `base`, which ends at position `ends_at`, or with None where it is proven to.

    Raises FileNotFoundError, OSError.
    """
    name = segment_name(base)
    files = SalvagingFiles(files)
    handle = files.open(os.path.join(directory, name))
    try:
        size = files.size(handle)
        try:
            damage = tuple(read_table(files, handle, name, ends_at=ends_at, once=True).damage)
        except FormatError:
            damage = (DamagedRange(name, 0, ends_at or size, "", 0),)
        return ScrubResult(base, False, size if ends_at is None else min(size, ends_at), damage, {})
    finally:
        files.close(handle)


def scrub_archive(files: Files, directory: str, base: int) -> ScrubResult:
    """Build every record of a segment's archive. Raises ArchiveUnavailable, FileNotFoundError, OSError."""
    try:
        archive = ArchiveFile.open(files, directory, base)
    except FormatError as error:
        return ScrubResult(base, True, 0, (), {"footer": str(error)})
    with archive.opened() as handle:
        archive.check_begin(handle)
        for index in range(len(archive.catalogue.groups)):
            archive.check(handle, index)
    return ScrubResult(base, True, archive.size, (), dict(archive.damage))


class RateLimitedFiles:
    """Files with a limit of bytes read per second; other calls are passed on unchanged."""

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
        self._due = clock()  # time at which the bytes read so far are permitted

    def read(self, handle: int, length: int, position: int) -> bytes:
        """See Files.  Then wait as long as the limit requires.  Raises Stopped."""
        data = self._files.read(handle, length, position)
        self._due = max(self._due, self._clock()) + len(data) / self._bytes_per_s
        while (left := self._due - self._clock()) > 0:
            if self._stopped():
                raise Stopped("asked to stop")
            self._sleep(min(left, PAUSE_MAX_S))
        return data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


@dataclass
class ScrubOrder:
    """Order of the files, and progress of the pass; also for status."""

    interval_s: int  # from the begin of a pass to the begin of the next
    passes: int = 0
    pass_began_s: float | None = None  # on the clock that next() is given
    last_pass_s: float | None = None  # its duration
    read_bytes: int = 0
    damaged: int = 0  # places and parts found
    _behind: int = -1  # bases up to this one are done
    _first: float = field(default=0.0)

    def next(self, bases: Sequence[int], now_s: float) -> int | None:
        """The next due base of the existing ones, which rise; None if none is due."""
        if self.pass_began_s is None:
            if now_s < self._first:
                return None
            self.pass_began_s, self._behind = now_s, -1
        base_found = next((base for base in bases if base > self._behind), None)
        if base_found is None:
            self.passes += 1
            self.last_pass_s = now_s - self.pass_began_s
            self._first = self.pass_began_s + self.interval_s
            self.pass_began_s = None
        return base_found

    def done(self, scrubbed: ScrubResult) -> None:
        """Record that this file is done."""
        self._behind = max(self._behind, scrubbed.base)
        self.read_bytes += scrubbed.bytes
        self.damaged += len(scrubbed.places) + len(scrubbed.parts)

    def skip(self, base: int) -> None:
        """Skip a file that could not be read; the next pass tries again."""
        self._behind = max(self._behind, base)
