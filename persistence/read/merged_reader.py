"""Merged reader: the records of a ring from several logs, as one log.

A ring that moved to a log of its own, or to another worker, has its older records in the earlier log
(directories.py).  Two logs may have the same records after a ring came back; these are then the same bytes.

Owns no log.  `readers` returns the logs that may have records of a ring, the one in use first.  With a single
log, as nearly always, its result is returned unchanged.

Invariant: a result begins at the requested offset if any log has it, and ends before the first gap of its
log.  Records after the gap may be in another log, and come with the next call.  A result of one topic, which
has gaps anyway, ends before the first record of another log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from persistence.read.directories import may_have
from persistence.read.log_reader import Epoch, LogReader
from ringbuf import Range


class MergedReader:
    """See LogReader.  Has its methods for the records of a ring, with the same thread safety."""

    def __init__(self, readers: Callable[[str], Sequence[LogReader]]) -> None:
        self._readers = readers

    def read(self, ring_name: str, epoch: int, offset: int, limit_bytes: int) -> list[Range]:
        """See LogReader.read()."""
        readers = self._readers(ring_name)
        answers = [reader.read(ring_name, epoch, offset, limit_bytes) for reader in readers]
        return _first(answers, lambda answer: answer[0].offset)

    def read_at(self, ring_name: str, epoch: int, position: int, limit_bytes: int) -> list[Range]:
        """See LogReader.read_at()."""
        readers = self._readers(ring_name)
        answers = [reader.read_at(ring_name, epoch, position, limit_bytes) for reader in readers]
        return _first(answers, lambda answer: max(answer[0].position, position))

    def read_topic(
        self, ring_name: str, topic: str, epoch: int, offset: int, limit_bytes: int
    ) -> list[Range]:
        """See LogReader.read_topic().  Offsets between records of a topic may be in any log."""
        readers = self._readers(ring_name)
        answers = [reader.read_topic(ring_name, topic, epoch, offset, limit_bytes) for reader in readers]
        best, *others = sorted(
            (answer for answer in answers if answer), key=lambda answer: answer[0].offset
        ) or [[]]
        end = min((answer[0].offset for answer in others), default=None)
        return best if end is None else [part for part in best if part is best[0] or part.offset < end]

    def epochs(self, ring_name: str) -> list[Epoch]:
        """See LogReader.epochs()."""
        spans: dict[int, tuple[int, int]] = {}
        for reader in self._readers(ring_name):
            for epoch, first, end in reader.epochs(ring_name):
                known = spans.get(epoch, (first, end))
                spans[epoch] = min(first, known[0]), max(end, known[1])
        return [Epoch(epoch, *spans[epoch]) for epoch in sorted(spans)]

    def seek_time(self, ring_name: str, epoch: int, timestamp_ns: int) -> int:
        """See LogReader.seek_time()."""
        end, offsets = 0, []
        for reader in self._readers(ring_name):
            ends = [
                epoch_info.end_offset for epoch_info in reader.epochs(ring_name) if epoch_info.epoch == epoch
            ]
            offset = reader.seek_time(ring_name, epoch, timestamp_ns)
            end = max([end, *ends])
            offsets += [offset] if ends and offset < ends[0] else []
        return min(offsets, default=end)


def rings_of(reader: LogReader) -> set[str]:
    """Ring names of one log: its last segment names all of them, if it is readable."""
    return set(reader.ends()) or {ring.name for segment in reader.segments() for ring in segment.rings}


def foreign_rings(directory: Path, place: Path, reader: LogReader) -> set[str]:
    """Rings in the log at `place` that may_have() excludes: the directories of two logs were exchanged."""
    if may_have(directory, place, ""):
        return set()
    return {name for name in rings_of(reader) if not may_have(directory, place, name)}


def _first(candidates: list[list[Range]], begin: Callable[[list[Range]], int]) -> list[Range]:
    """The result that begins first; of several results only up to its first gap."""
    answers = [ranges for ranges in candidates if ranges]
    if not answers:
        return []
    best = min(answers, key=begin)  # among equals the first
    if len(candidates) == 1:
        return best
    count = 1
    while count < len(best) and best[count].offset == best[count - 1].offset + best[count - 1].count:
        count += 1
    return best[:count]
