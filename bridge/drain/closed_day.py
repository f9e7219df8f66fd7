"""Closed day: the files of one edge and day as the names in the store show them, for the merger (merger.py).

Each file is in one of three groups: merged files, files that a merged file replaces, and small files that may
be merged. Files above the size for small ones are in none.

Owns which file replaces which, and which files may be in one merged file (the lane). Never reads or changes a
file. Bounded: NAMES_MAX small files, and the replaced files of DUE_MAX merged files; the store is listed
twice, because a day may have more names than fit into memory.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from bridge.format.file_name import FileName, as_drained, is_parquet, is_staged, published
from bridge.sinks.interface import MergingStore, StoredEntry

NAMES_MAX = 100_000  # small files of a day that one pass considers
DUE_MAX = 16  # merged files whose replaced files one pass over a day removes

Lane: TypeAlias = tuple[str, int, int, bool, bool]  # files that may be in one merged file


class Stored(NamedTuple):
    """A file, with its name as a drained file."""

    name: FileName
    entry: StoredEntry

    @property
    def lane(self) -> Lane:
        """Stream, partition, epoch and form."""
        name = self.name
        return name.stream, name.partition, name.epoch, name.compressed, is_parquet(self.entry.path)


@dataclass(slots=True)
class Merged:
    """A merged file that is in the store, under one of its names or both."""

    name: FileName
    path: str  # the final one
    lane: Lane
    staged: StoredEntry | None = None
    final: StoredEntry | None = None
    replaced: list[Stored] = field(default_factory=list)  # files that it replaces, and that are still there
    waits: bool = False  # such files were seen
    is_due: bool = False  # its replaced files may be removed

    @property
    def entry(self) -> StoredEntry:
        """The file under its final name, or as long as it has none, under its staged name."""
        entry = self.final or self.staged
        assert entry is not None
        return entry

    def covers(self, name: FileName) -> bool:
        """True if it has the offsets of a file."""
        return self.name.first_offset <= name.first_offset and name.last_offset <= self.name.last_offset

    def set_due(self, now_s: float, keep_s: int) -> None:
        """Set is_due. A file with both names has waited before it was published."""
        self.is_due = bool(self.staged and self.final) or self.entry.age_s(now_s) >= keep_s


class ClosedDay:
    """The merged files of an edge in the directory of a day. small() adds the other files.

    A merged file is due `keep_s` after it got its name, by the clock of the store, on which it is `now_s`.
    """

    def __init__(self, store: MergingStore, edge: str, day: str, now_s: float, keep_s: int) -> None:
        self._store, self._edge, self._day = store, edge, day
        self._lanes = _merged_files(self._listed())
        self.merged = [one for lane in self._lanes.values() for one in lane]
        for one in self.merged:
            one.set_due(now_s, keep_s)

    def small(self, bytes_max: int, drained_to: int, refused: Collection[str]) -> list[Stored]:
        """The small files that no merged file covers, at most NAMES_MAX.

        The others are noted for the merged files that are due, at most DUE_MAX of these. Files above
        `drained_to`, and those with the paths `refused`, stay as they are.
        """
        free = self._free(drained_to, refused)
        small = (stored for stored in free if stored.entry.length <= bytes_max)
        return heapq.nsmallest(NAMES_MAX, small, key=lambda stored: stored.name.drain_seq)

    def has_twin(self, merged: Merged) -> bool:
        """True if another merged file, of a second bridge of this edge, has all its records."""
        return any(
            other.covers(merged.name) and (other.final is not None or other.name > merged.name)
            for other in self._lanes[merged.lane]
            if other is not merged
        )

    def _listed(self) -> Iterator[Stored]:
        for entry in self._store.entries(f"edge={self._edge}/dt={self._day}/"):
            name = FileName.parse(as_drained(entry.path))
            if name is not None and (name.edge, name.day) == (self._edge, self._day):
                yield Stored(name, entry)

    def _free(self, drained_to: int, refused: Collection[str]) -> Iterator[Stored]:
        """The files that no merged file covers. The others are noted."""
        noted: set[str] = set()
        for stored in self._listed():
            stays = stored.name.drain_seq > drained_to or stored.entry.path in refused
            if stored.name.merged or stays:
                continue
            owner = _owner(self._lanes.get(stored.lane, ()), stored.name)
            if owner is None:
                yield stored
                continue
            owner.waits = True
            if owner.is_due and (owner.path in noted or len(noted) < DUE_MAX):
                noted.add(owner.path)
                owner.replaced.append(stored)


def groups(files: Iterable[Stored]) -> Iterator[list[Stored]]:
    """Files of one lane whose offsets follow each other in the order of drain_seqs."""
    group: list[Stored] = []
    for stored in sorted(files, key=lambda stored: (stored.lane, stored.name.drain_seq)):
        follows = group and group[-1].name.last_offset + 1 == stored.name.first_offset
        if not follows or group[-1].lane != stored.lane:
            yield group
            group = []
        group.append(stored)
    yield group


def _merged_files(listed: Iterable[Stored]) -> dict[Lane, list[Merged]]:
    """The merged files of a day by lane, in the order of drain_seqs."""
    found: dict[str, Merged] = {}
    lanes: dict[Lane, list[Merged]] = defaultdict(list)
    for stored in (stored for stored in listed if stored.name.merged):
        path = published(stored.entry.path)
        if path not in found:
            found[path] = Merged(stored.name, path, stored.lane)
            lanes[stored.lane].append(found[path])
        if is_staged(stored.entry.path):
            found[path].staged = stored.entry
        else:
            found[path].final = stored.entry
    for merged in lanes.values():
        merged.sort(key=lambda one: (one.name.drain_seq, one.name.first_offset))
    return lanes


def _owner(merged: Sequence[Merged], name: FileName) -> Merged | None:
    """The merged file that replaces a file. `merged` is in the order of drain_seqs.

    A merged file has the highest drain_seq of the files that it replaces, and others of its lane have lower
    or higher ones. Offsets are not enough: after a `backfill` there are two files with the same.
    """
    at = bisect_left(merged, name.drain_seq, key=lambda one: one.name.drain_seq)
    return merged[at] if at < len(merged) and merged[at].covers(name) else None
